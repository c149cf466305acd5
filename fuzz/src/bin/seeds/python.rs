//! Objects of Python, for the readers of the heap.

use std::error::Error;
use std::ffi::OsStr;
use std::process::Command;

use memprobe::python::PythonProcess;
use memprobe::python::heap::Heap;
use memprobe::python::versions::LAYOUTS;

use crate::target::{Seen, Target};
use crate::write;

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

/// Writes the inputs of a Python.
pub fn write_inputs(interpreter: &OsStr) -> Result<(), Box<dyn Error>> {
    let target = Target::start(Command::new(interpreter).args(["-S", "-E", "-c", PROGRAM]))?;
    let minor = PythonProcess::detect(target.tgid())?.version.minor;
    let layout = LAYOUTS.iter().position(|layout| layout.minor == minor);
    let layout = layout.ok_or_else(|| format!("no table for Python 3.{minor}"))?;
    for (number, objects) in target.lines.iter().enumerate() {
        let memory = Seen::of(target.tgid());
        read_all(&Heap::of(&memory, &LAYOUTS[layout]), objects);
        let input = memory.into_input(layout as u8, objects);
        write("heap", &format!("python3.{minor}-{number}"), &input)?;
    }
    Ok(())
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
