//! Writes the first inputs of the readers into `corpus/`: real objects of running Pythons and PyTorches, a recording, an
//! ELF file, and one record of each kind.
//!
//! Usage: `seeds RECORDING ELF PYTHON... [-- PYTHON_WITH_PYTORCH...]`, as root.

mod native;
mod python;
mod pytorch;
mod target;

use std::error::Error;
use std::fs;
use std::path::Path;

use memprobe_common::{
    BlockStackRecord, CodeRecord, CudaRecord, CudaStackRecord, MarkRecord, MemoryRecord,
    NodeEnteredRecord, NodeMadeRecord, ProcessRecord, ShapedRecord, StackRecord, record,
};

const USAGE: &str = "usage: seeds RECORDING ELF PYTHON... [-- PYTHON_WITH_PYTORCH...]";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let mut argument = || arguments.next().ok_or(USAGE);
    write("recording", "short", &fs::read(argument()?)?)?;
    let library = argument()?;
    write("elf", "library", &fs::read(&library)?)?;
    write("unwind", "library", &native::unwind_input(&library)?)?;
    write("stack", "pattern", &[1; 1024])?;
    for (kind, size) in record_sizes() {
        let mut input = (size as u16).to_le_bytes().to_vec();
        input.push(kind);
        input.resize(2 + size, 1);
        // Twice: what a record leaves behind meets the next.
        write("records", &format!("kind-{kind}-{size}"), &input.repeat(2))?;
    }
    for python in arguments.by_ref().take_while(|word| word != "--") {
        python::write_inputs(&python)?;
    }
    for python in arguments {
        pytorch::write_inputs(&python)?;
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

fn write(reader: &str, name: &str, input: &[u8]) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(reader);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), input)
}
