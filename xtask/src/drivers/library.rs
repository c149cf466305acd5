//! Symbols of a library file: sizes, places in the file, and the class of a function's first instruction.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};
use object::{Object, ObjectSegment, ObjectSymbol};

/// The longest instruction of x86-64, in bytes. No more of a function is read: the driver's licence
/// forbids disassembly, and a uprobe replaces no more.
const LONGEST_INSTRUCTION: u64 = 15;

/// A library file.
#[derive(Debug)]
pub struct Library {
    bytes: Vec<u8>,
}

/// A function of a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its size in bytes, by the symbol table.
    pub size: u64,
    /// The offset of its first instruction in the file.
    pub offset: u64,
    /// The class of its first instruction, such as `cmp mem, imm`.
    pub entry: String,
}

impl Library {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        object::File::parse(&*bytes)
            .with_context(|| format!("{} is no library", path.display()))?;
        Ok(Self { bytes })
    }

    /// Number of functions that it exports whose names begin with `start`.
    pub fn exported(&self, start: &str) -> usize {
        let Ok(file) = object::File::parse(&*self.bytes) else {
            return 0;
        };
        file.dynamic_symbols()
            .filter(|symbol| symbol.is_definition())
            .filter(|symbol| symbol.name().is_ok_and(|name| name.starts_with(start)))
            .count()
    }

    /// The exported function of that name.
    pub fn function(&self, name: &str) -> Option<Function> {
        let file = object::File::parse(&*self.bytes).ok()?;
        let symbol = file
            .dynamic_symbols()
            .find(|symbol| symbol.is_definition() && symbol.name() == Ok(name))?;
        let segment = file.segments().find(|segment| {
            let start = segment.address();
            (start..start + segment.size()).contains(&symbol.address())
        })?;
        let (in_file, _) = segment.file_range();
        let offset = in_file + (symbol.address() - segment.address());
        let code = segment
            .data_range(symbol.address(), LONGEST_INSTRUCTION)
            .ok()??;
        Some(Function {
            size: symbol.size(),
            offset,
            entry: class(code)?,
        })
    }
}

/// The class of the first instruction of `code`: its mnemonic and the kinds of its operands.
fn class(code: &[u8]) -> Option<String> {
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    if instruction.is_invalid() {
        return None;
    }
    let operands: Vec<&str> = (0..instruction.op_count())
        .map(|index| operand(&instruction, index))
        .collect();
    let mnemonic = format!("{:?}", instruction.mnemonic()).to_lowercase();
    Some(
        format!("{mnemonic} {}", operands.join(", "))
            .trim_end()
            .to_owned(),
    )
}

fn operand(instruction: &Instruction, index: u32) -> &'static str {
    match instruction.op_kind(index) {
        OpKind::Register => "reg",
        OpKind::Memory => "mem",
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => "rel",
        _ => "imm",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_named_by_its_first_instruction_alone() {
        // cmp dword ptr [rip+1], 0x321cba00; jne
        let trampoline = [0x81, 0x3d, 1, 0, 0, 0, 0, 0xba, 0x1c, 0x32, 0x75, 2];
        assert_eq!(class(&trampoline).unwrap(), "cmp mem, imm");
        // push rbp; mov rbp, rsp
        assert_eq!(class(&[0x55, 0x48, 0x89, 0xe5]).unwrap(), "push reg");
        // mov [rsp-0x18], rbx
        assert_eq!(
            class(&[0x48, 0x89, 0x5c, 0x24, 0xe8]).unwrap(),
            "mov mem, reg"
        );
        assert_eq!(class(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap(), "endbr64");
        assert_eq!(class(&[0x06]), None);
    }

    #[test]
    fn a_library_without_a_function_says_so() {
        let itself = std::env::current_exe().unwrap();
        let library = Library::read(&itself).unwrap();
        assert_eq!(library.function("cuMemAlloc_v2"), None);
        assert_eq!(library.exported("nvml"), 0);
        assert!(Library::read(Path::new("/etc/hostname")).is_err());
    }
}
