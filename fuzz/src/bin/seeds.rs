//! Writes the first inputs of the readers into `corpus/`: real objects of running Pythons, a recording, an ELF file, and
//! one record of each kind.
//!
//! Usage: `seeds RECORDING ELF PYTHON...`, as root.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use memprobe::event::Tgid;
use memprobe::process::memory::{ProcessMemory, ReadMemory, ReadResult};
use memprobe::python::PythonProcess;
use memprobe::python::heap::Heap;
use memprobe::python::versions::LAYOUTS;
use memprobe_common::{
    BlockStackRecord, CodeRecord, CudaRecord, CudaStackRecord, MarkRecord, MemoryRecord,
    NodeEnteredRecord, NodeMadeRecord, ProcessRecord, ShapedRecord, StackRecord, record,
};
use memprobe_fuzz::image::Image;

/// Prints the addresses of objects of many kinds, one line for each input, and waits.
const PROGRAM: &str = r"
import collections, contextvars, functools, itertools, queue, sys, threading, types
class Plain:
    def __init__(self): self.x, self.y = 1, [2, 3]
class Slots:
    __slots__ = ('a', 'b')
    def __init__(self): self.a, self.b = {}, ()
class Many(Plain, dict): pass
@functools.lru_cache
def cached(x): return [x]
cached('key')
local = threading.local(); local.value = [1]
variable = contextvars.ContextVar('variable'); variable.set([2])
waiting = queue.SimpleQueue(); waiting.put([3])
values = [
    [Plain(), Slots(), Many()],
    [{'a': 1, ('b', 2): None, 3.5: 'é'}, dict.fromkeys(range(40)), {}],
    [[1, [2]], (1, (2,)), {1, 'a'}, collections.deque([1, [2]]), frozenset('ab')],
    [cached, local, variable, waiting, contextvars.copy_context()],
    [iter([1]), zip([1], [2]), map(str, [1]), enumerate([1]), itertools.cycle([1])],
    [types.MappingProxyType({'a': []}), (lambda: values).__closure__, len, Plain],
    ['text', 'ünï', '\U0001f600', 1 << 70, -5, True, None, b'bytes'],
    [sys.modules[__name__]],
]
for kind in values:
    print(*[id(value) for value in kind if value is not None])
print('end', flush=True)
sys.stdin.read()
";

/// Memory of a process that remembers all that was read of it.
struct Seen {
    memory: ProcessMemory,
    bytes: RefCell<BTreeMap<u64, u8>>,
}

impl ReadMemory for Seen {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        self.memory.read(address, into)?;
        let bytes = into.iter().copied();
        self.bytes.borrow_mut().extend((address..).zip(bytes));
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let mut argument = || {
        arguments
            .next()
            .ok_or("usage: seeds RECORDING ELF PYTHON...")
    };
    write("recording", "short", &fs::read(argument()?)?)?;
    write("elf", "library", &fs::read(argument()?)?)?;
    write("stack", "pattern", &[1; 1024])?;
    for (kind, size) in record_sizes() {
        let mut input = (size as u16).to_le_bytes().to_vec();
        input.push(kind);
        input.resize(2 + size, 1);
        // Twice: what a record leaves behind meets the next.
        write("records", &format!("kind-{kind}-{size}"), &input.repeat(2))?;
    }
    for python in arguments {
        let mut program = Command::new(&python)
            .args(["-S", "-E", "-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let written = of_python(&mut program);
        program.kill()?;
        program.wait()?;
        written?;
    }
    Ok(())
}

/// Kind and size of each record.
fn record_sizes() -> [(u8, usize); 19] {
    [
        (record::BLOCK, size_of::<MemoryRecord>()),
        (record::BLOCK, size_of::<ShapedRecord>()),
        (record::OUT_OF_MEMORY, size_of::<MemoryRecord>()),
        (record::CPU_BLOCK, size_of::<ShapedRecord>()),
        (record::CPU_FREE, size_of::<MemoryRecord>()),
        (record::BACKWARD, size_of::<MemoryRecord>()),
        (record::BLOCK_WITH_STACK, size_of::<BlockStackRecord>()),
        (record::CUDA_CALL, size_of::<CudaRecord>()),
        (record::CUDA_CALL_WITH_STACK, size_of::<CudaStackRecord>()),
        (record::STACK, size_of::<StackRecord>()),
        (record::NODE_MADE, size_of::<NodeMadeRecord>()),
        (record::NODE_ENTERED, size_of::<NodeEnteredRecord>()),
        (record::MARK, size_of::<MarkRecord>()),
        (record::CODE_FREED, size_of::<CodeRecord>()),
        (record::FORKED, size_of::<ProcessRecord>()),
        (record::EXECUTED, size_of::<ProcessRecord>()),
        (record::EXITED, size_of::<ProcessRecord>()),
        (record::LIBRARY_MAPPED, size_of::<ProcessRecord>()),
        (record::FOUND, size_of::<ProcessRecord>()),
    ]
}

/// Writes the inputs of one running Python, for the readers of objects.
fn of_python(program: &mut Child) -> Result<(), Box<dyn Error>> {
    let printed = program.stdout.take().ok_or("no output")?;
    let lines = BufReader::new(printed).lines().collect_until_end()?;
    let python = PythonProcess::detect(Tgid(program.id()))?;
    let minor = python.version.minor;
    let layout = LAYOUTS.iter().position(|layout| layout.minor == minor);
    let layout = layout.ok_or_else(|| format!("no table for Python 3.{minor}"))?;
    for (number, objects) in lines.into_iter().enumerate() {
        let memory = Seen {
            memory: python.memory(),
            bytes: RefCell::default(),
        };
        read_all(&Heap::of(&memory, &LAYOUTS[layout]), &objects);
        let mut input = vec![layout as u8, objects.len() as u8];
        input.extend(objects.iter().flat_map(|object| object.to_le_bytes()));
        for (address, bytes) in pieces(&memory.bytes.into_inner()) {
            Image::describe(address, &bytes, &mut input);
        }
        without_paths(&mut input);
        write("heap", &format!("python3.{minor}-{number}"), &input)?;
    }
    Ok(())
}

/// Overwrites the paths of the home and the working folder, which say more of this machine than of Python.
fn without_paths(input: &mut [u8]) {
    let folders = ["HOME", "PWD"].map(|name| std::env::var_os(name).unwrap_or_default());
    for folder in folders.iter().map(|folder| folder.as_encoded_bytes()) {
        let places = 0..input.len().saturating_sub(folder.len());
        for at in places.filter(|_| folder.len() > 1) {
            if input[at..].starts_with(folder) {
                input[at + 1..at + folder.len()].fill(b'x');
            }
        }
    }
}

/// Reads objects, and what they refer to.
fn read_all(heap: &Heap<'_, Seen>, objects: &[u64]) {
    for &object in objects {
        let mut held = vec![object];
        if let Some(class) = heap.class_of(object) {
            let _ = heap.contents(&class, object, |_, value| held.push(value));
        }
        for value in held {
            let _ = (heap.class_of(value), heap.text(value), heap.key(value));
        }
    }
}

/// Joins bytes to pieces; short gaps stay in a piece.
fn pieces(bytes: &BTreeMap<u64, u8>) -> Vec<(u64, Vec<u8>)> {
    const GAP: u64 = 10;
    let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
    for (&address, &byte) in bytes {
        match pieces.last_mut() {
            Some((start, piece)) if address - (*start + piece.len() as u64) <= GAP => {
                piece.resize((address - *start) as usize, 0);
                piece.push(byte);
            }
            _ => pieces.push((address, vec![byte])),
        }
    }
    pieces
}

trait UntilEnd {
    fn collect_until_end(self) -> Result<Vec<Vec<u64>>, Box<dyn Error>>;
}

impl<I: Iterator<Item = std::io::Result<String>>> UntilEnd for I {
    /// Reads lines of addresses up to the line `end`.
    fn collect_until_end(self) -> Result<Vec<Vec<u64>>, Box<dyn Error>> {
        let mut all = Vec::new();
        for line in self {
            let line = line?;
            if line == "end" {
                return Ok(all);
            }
            let addresses = line.split_whitespace().map(str::parse);
            all.push(addresses.collect::<Result<Vec<_>, _>>()?);
        }
        Err("the program ended early".into())
    }
}

fn write(reader: &str, name: &str, input: &[u8]) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(reader);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), input)
}
