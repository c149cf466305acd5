//! Unwind tables of a library, and a stack that is unwound by them alone.

use gimli::UnwindContext;
use memprobe::decode::StackCopy;
use memprobe::symbolize::native::unwind::{FrameCaller, Registers, TableSection, UnwindTable};

/// The address of the code, for tables that count from it.
const TEXT: u64 = 0x1000;

/// The most callers of a frame.
const MOST_CALLERS: usize = 256;

/// A frame, its stack, and the tables of its library, which is mapped at the addresses of its file.
pub struct UnwindInput {
    /// A return address.
    pub address: u64,
    pub frame_pointer: u64,
    pub stack_pointer: u64,
    pub entries: TableSection,
    /// Not used if it is empty.
    pub search: TableSection,
    /// The bytes from the stack pointer on.
    pub stack: Vec<u8>,
}

pub fn read(data: &[u8]) {
    let _ = callers_of(data);
}

/// Unwinds the stack of an input. Returns the callers of its frame, innermost first.
pub fn callers_of(data: &[u8]) -> Option<Vec<u64>> {
    let input = UnwindInput::of(data)?;
    let search = Some(input.search).filter(|search| !search.bytes.is_empty());
    let table = UnwindTable::of_sections(input.entries, search, Some(TEXT), 0);
    let stack = StackCopy {
        address: input.stack_pointer,
        frame_pointer: input.frame_pointer,
        bytes: input.stack,
    };
    let mut context = UnwindContext::new();
    let mut registers = Registers::of(&stack);
    let mut callers = Vec::new();
    let mut address = input.address;
    while let Some(rule) = table.rule_at(address.wrapping_sub(1), &mut context)
        && let FrameCaller::At(caller) = rule.unwind(&table, &mut registers, &stack)
        && callers.len() < MOST_CALLERS
    {
        callers.push(caller);
        address = caller;
    }
    Some(callers)
}

impl UnwindInput {
    /// Reads an input: return address, frame pointer, stack pointer; two sections, each with its address and a length
    /// of two bytes before it; the stack.
    fn of(data: &[u8]) -> Option<Self> {
        let (address, data) = word(data)?;
        let (frame_pointer, data) = word(data)?;
        let (stack_pointer, data) = word(data)?;
        let (entries, data) = section(data)?;
        let (search, stack) = section(data)?;
        Some(Self {
            address,
            frame_pointer,
            stack_pointer,
            entries,
            search,
            stack: stack.to_vec(),
        })
    }

    /// Returns the bytes of the input. A section has at most 65,535.
    pub fn into_bytes(self) -> Vec<u8> {
        let words = [self.address, self.frame_pointer, self.stack_pointer];
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        for section in [self.entries, self.search] {
            bytes.extend(section.address.to_le_bytes());
            bytes.extend((section.bytes.len() as u16).to_le_bytes());
            bytes.extend(section.bytes);
        }
        bytes.extend(self.stack);
        bytes
    }
}

fn word(data: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = data.split_first_chunk()?;
    Some((u64::from_le_bytes(*word), rest))
}

fn section(data: &[u8]) -> Option<(TableSection, &[u8])> {
    let (address, data) = word(data)?;
    let (length, data) = data.split_first_chunk()?;
    let (bytes, rest) = data.split_at_checked(u16::from_le_bytes(*length).into())?;
    let bytes = bytes.to_vec();
    Some((TableSection { address, bytes }, rest))
}
