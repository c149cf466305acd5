//! The caller of a native frame by the unwind tables (`.eh_frame`) of its library.
//!
//! Only the tables are followed. Where none covers an address, or the copy of the stack lacks a value that a rule
//! needs, the caller is unknown: following the frame pointer instead would name a function that may not have called.
//! Formats: DWARF 5, section 6.4; Linux Standard Base Core 5.0, sections 10.6.1 and 10.6.2; for the registers System V
//! ABI, AMD64 supplement 1.0, section 3.6.2.

use gimli::{
    BaseAddresses, CfaRule, DW_EH_PE_datarel, DW_EH_PE_pcrel, DW_EH_PE_sdata4, DW_EH_PE_udata4,
    EhFrame, EhFrameOffset, Encoding, EndianSlice, Evaluation, EvaluationResult,
    FrameDescriptionEntry, LittleEndian, Register, RegisterRule, UnwindContext, UnwindExpression,
    UnwindSection as _, Value, X86_64,
};

use crate::decode::StackCopy;
use crate::process::elf::ElfImage;
use crate::process::maps::Mapping;

/// The largest table that is used without its search table (`.eh_frame_hdr`), in bytes: it is read from its start
/// for each address.
const LARGEST_UNSORTED: usize = 16 << 20;

/// The most operations of an expression, which may contain loops. The longest of glibc 2.36 has 7, as have those of
/// libc10 and libtorch_python 2.15.0.
const MOST_OPERATIONS: u32 = 256;

/// The size of a register and of an address, in bytes.
const WORD: u8 = 8;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// The unwind table of a mapped library.
pub struct UnwindTable {
    entries: TableSection,
    search: Option<SearchTable>,
    bases: BaseAddresses,
    /// The (wrapping) difference between addresses in the process and in the file.
    bias: u64,
}

/// A section of a library's file.
#[derive(Clone, Debug)]
pub struct TableSection {
    /// Its address in the file.
    pub address: u64,
    pub bytes: Vec<u8>,
}

/// The table by which the entry of an address is found (`.eh_frame_hdr`): sorted pairs of two signed words of four bytes,
/// the first address of a function and the address of its entry, both from the section on.
struct SearchTable(TableSection);

/// The caller of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameCaller {
    /// The return address; after a signal handler, the address behind the first byte of the interrupted instruction.
    At(u64),
    /// The table says that the frame has no caller: a thread begins with it.
    Outermost,
    Unknown,
}

/// The registers of a frame that its caller's follow from.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    stack_pointer: u64,
    /// `None` if a table does not say where it was saved, or the copy of the stack ends before.
    frame_pointer: Option<u64>,
}

/// The rule by which the caller of a frame is found.
#[derive(Clone, Debug)]
pub enum FrameRule {
    Outermost,
    Caller(CallerRule),
}

#[derive(Clone, Debug)]
pub struct CallerRule {
    /// The canonical frame address: the stack pointer of the caller before its call.
    frame_address: CfaRule<usize>,
    return_address: RegisterRule<usize>,
    frame_pointer: RegisterRule<usize>,
    encoding: Encoding,
    /// A signal interrupted the caller, which called nothing.
    is_signal: bool,
}

impl UnwindTable {
    /// Reads the table of a library with these mappings; `None` if it has none, or one of more than `most` bytes.
    pub fn of(image: &ElfImage, mappings: &[Mapping], most: u64) -> Option<Self> {
        let bias = image.load_bias(mappings)?;
        let entries = TableSection::of(image, ".eh_frame", most)?;
        let left = most.saturating_sub(entries.bytes.len() as u64);
        let search = TableSection::of(image, ".eh_frame_hdr", left);
        let text = image.section(".text").map(|text| text.vaddr);
        Some(Self::of_sections(entries, search, text, bias))
    }

    /// Makes a table of its sections. `text` is the address of the code in the file, `bias` the (wrapping) difference
    /// between addresses in the process and in the file.
    pub fn of_sections(
        entries: TableSection,
        search: Option<TableSection>,
        text: Option<u64>,
        bias: u64,
    ) -> Self {
        let mut bases = BaseAddresses::default().set_eh_frame(entries.address);
        if let Some(text) = text {
            bases = bases.set_text(text);
        }
        Self {
            entries,
            search: search.and_then(SearchTable::of),
            bases,
            bias,
        }
    }

    /// Returns the memory that the table takes, in bytes.
    pub fn bytes(&self) -> u64 {
        let search = self
            .search
            .as_ref()
            .map_or(0, |search| search.0.bytes.len());
        (self.entries.bytes.len() + search) as u64
    }

    /// Returns the rule for a frame whose code is at `address` in the process, which is within its call instruction;
    /// `None` if the table has none.
    pub fn rule_at(&self, address: u64, context: &mut UnwindContext<usize>) -> Option<FrameRule> {
        let address = address.wrapping_sub(self.bias);
        let section = self.section();
        let entry = self.entry_of(&section, address)?;
        let row = entry.unwind_info_for_address(&section, &self.bases, context, address);
        let row = row.ok()?;
        // A register without a rule that a callee must preserve has its caller's value.
        let frame_pointer = row.register(X86_64::RBP);
        let frame_pointer = frame_pointer.unwrap_or(RegisterRule::SameValue);
        let return_address = match row.register(X86_64::RA)? {
            RegisterRule::Undefined => return Some(FrameRule::Outermost),
            saved => saved,
        };
        Some(FrameRule::Caller(CallerRule {
            frame_address: row.cfa().clone(),
            return_address,
            frame_pointer,
            encoding: entry.cie().encoding(),
            is_signal: entry.is_signal_trampoline(),
        }))
    }

    fn section(&self) -> EhFrame<Bytes<'_>> {
        EhFrame::new(&self.entries.bytes, LittleEndian)
    }

    /// Returns the entry of the function that contains an address of the file.
    fn entry_of<'a>(
        &self,
        section: &EhFrame<Bytes<'a>>,
        address: u64,
    ) -> Option<FrameDescriptionEntry<Bytes<'a>>> {
        let get = EhFrame::cie_from_offset;
        let entry = match &self.search {
            Some(search) => {
                let offset = search
                    .entry_of(address)?
                    .checked_sub(self.entries.address)?;
                let offset = EhFrameOffset(usize::try_from(offset).ok()?);
                section.fde_from_offset(&self.bases, offset, get)
            }
            None if self.entries.bytes.len() <= LARGEST_UNSORTED => {
                section.fde_for_address(&self.bases, address, get)
            }
            None => return None,
        };
        entry.ok().filter(|entry| entry.contains(address))
    }
}

impl TableSection {
    /// Reads a section of this name; `None` if the library has none, or one of more than `most` bytes.
    pub fn of(image: &ElfImage, name: &str, most: u64) -> Option<Self> {
        let (addresses, bytes) = image.section_contents(name, most)?;
        let address = addresses.start;
        Some(Self { address, bytes })
    }
}

impl SearchTable {
    /// The version, and the encodings of the address of `.eh_frame`, of the number of pairs, and of the pairs, as linkers
    /// write them: in 2026 all of 2,353 libraries and programs of Debian 12, Python and PyTorch that have such a table.
    /// A table with others is not used.
    const FORMAT: [u8; 4] = [
        1,
        DW_EH_PE_pcrel.0 | DW_EH_PE_sdata4.0,
        DW_EH_PE_udata4.0,
        DW_EH_PE_datarel.0 | DW_EH_PE_sdata4.0,
    ];

    /// The bytes before the pairs: the format, an address, and the number of pairs.
    const HEAD: usize = 12;

    fn of(section: TableSection) -> Option<Self> {
        let is_known =
            section.bytes.starts_with(&Self::FORMAT) && section.bytes.len() >= Self::HEAD;
        is_known.then_some(Self(section))
    }

    /// Returns the address of the last entry whose function begins at or before an address.
    fn entry_of(&self, address: u64) -> Option<u64> {
        let (head, pairs) = self.0.bytes.split_first_chunk::<{ Self::HEAD }>()?;
        let count = u32::from_le_bytes(*head.last_chunk()?);
        let (words, _) = pairs.as_chunks();
        let (pairs, _) = words.as_chunks();
        let pairs = pairs.get(..count as usize)?;
        let address_of = |distance: [u8; 4]| {
            let distance = i32::from_le_bytes(distance);
            self.0.address.checked_add_signed(distance.into())
        };
        let begins_before =
            |[start, _]: &[_; 2]| address_of(*start).is_some_and(|start| start <= address);
        let [_, entry] = pairs[..pairs.partition_point(begins_before)].last()?;
        address_of(*entry)
    }
}

impl FrameRule {
    /// Finds the caller of the frame with these registers, which become the caller's. `table` is the rule's.
    pub fn unwind(
        &self,
        table: &UnwindTable,
        registers: &mut Registers,
        stack: &StackCopy,
    ) -> FrameCaller {
        let Self::Caller(rule) = self else {
            return FrameCaller::Outermost;
        };
        let frame = CallFrame {
            rule,
            table,
            registers,
            stack,
        };
        let Some((address, caller)) = frame.caller() else {
            return FrameCaller::Unknown;
        };
        *registers = caller;
        FrameCaller::At(address)
    }
}

impl Registers {
    /// Returns the registers of the frame that the copy begins in.
    pub fn of(stack: &StackCopy) -> Self {
        Self {
            stack_pointer: stack.address,
            frame_pointer: Some(stack.frame_pointer),
        }
    }

    fn get(&self, register: Register) -> Option<u64> {
        match register {
            X86_64::RSP => Some(self.stack_pointer),
            X86_64::RBP => self.frame_pointer,
            _ => None,
        }
    }
}

/// A frame, with all that its caller is found by.
struct CallFrame<'a> {
    rule: &'a CallerRule,
    table: &'a UnwindTable,
    registers: &'a Registers,
    stack: &'a StackCopy,
}

impl CallFrame<'_> {
    /// Returns the return address and the caller's registers.
    fn caller(&self) -> Option<(u64, Registers)> {
        let end = match self.rule.frame_address {
            CfaRule::RegisterAndOffset { register, offset } => {
                self.registers.get(register)?.checked_add_signed(offset)?
            }
            CfaRule::Expression(expression) => self.evaluate(expression, None)?,
        };
        // Stacks grow downwards, so that unwinding ends.
        if end <= self.registers.stack_pointer {
            return None;
        }
        let address = self.saved(&self.rule.return_address, end, None)?;
        let address = address.checked_add(u64::from(self.rule.is_signal))?;
        let before = self.registers.frame_pointer;
        let caller = Registers {
            stack_pointer: end,
            frame_pointer: self.saved(&self.rule.frame_pointer, end, before),
        };
        // A thread's first frame may have a return address of zero.
        (address != 0).then_some((address, caller))
    }

    /// Returns the caller's value of a register, which has the value `now` in this frame. `end` is the frame's
    /// canonical address.
    fn saved(&self, rule: &RegisterRule<usize>, end: u64, now: Option<u64>) -> Option<u64> {
        match *rule {
            RegisterRule::SameValue => now,
            RegisterRule::Offset(offset) => self.stack.word_at(end.checked_add_signed(offset)?),
            RegisterRule::ValOffset(offset) => end.checked_add_signed(offset),
            RegisterRule::Register(other) => self.registers.get(other),
            RegisterRule::Expression(place) => self.stack.word_at(self.evaluate(place, Some(end))?),
            RegisterRule::ValExpression(value) => self.evaluate(value, Some(end)),
            RegisterRule::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// Evaluates an expression of the table, with `first` on its stack.
    fn evaluate(&self, expression: UnwindExpression<usize>, first: Option<u64>) -> Option<u64> {
        let expression = expression.get(&self.table.section()).ok()?;
        let mut evaluation = Evaluation::new(expression.0, self.rule.encoding);
        evaluation.set_max_iterations(MOST_OPERATIONS);
        if let Some(first) = first {
            evaluation.set_initial_value(first);
        }
        let mut needed = evaluation.evaluate().ok()?;
        loop {
            needed = match needed {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = Value::Generic(self.registers.get(register)?);
                    evaluation.resume_with_register(value).ok()?
                }
                EvaluationResult::RequiresMemory { address, size, .. } if size == WORD => {
                    let value = Value::Generic(self.stack.word_at(address)?);
                    evaluation.resume_with_memory(value).ok()?
                }
                _ => return None,
            };
        }
        evaluation.value_result()?.to_u64(u64::MAX).ok()
    }
}

#[cfg(test)]
mod tests;
