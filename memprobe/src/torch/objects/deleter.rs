//! Determines the size of a class's objects from its deleting destructor, which passes it to the allocator. This
//! works with any allocator, and no subobject can be mistaken for the object.

use hashbrown::HashSet;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

use crate::process::memory::ReadMemory;

/// Offset of the deleting destructor in the virtual table, after the complete object destructor (Itanium C++
/// ABI, 2.5.2). It applies to classes whose first virtual function is the destructor.
const SLOT: u64 = 8;

/// Bytes of the function that are decoded. The longest of PyTorch 2.15's nodes has about 1,500.
const MAX_CODE: usize = 4 << 10;

const MAX_STEPS: usize = 2_000;

/// Size of the objects of the class with this virtual table; `None` if its destructor does not show it.
pub(super) fn object_size(memory: &impl ReadMemory, table: u64) -> Option<u64> {
    let start = memory.read_u64(table.checked_add(SLOT)?).ok()?;
    let code = memory.read_prefix(start, MAX_CODE as u64, MAX_CODE).ok()?;
    deleted_size(&code, start)
}

#[derive(Clone, Copy)]
struct Known {
    saved: Option<Register>,
    /// True if the first argument register holds the object.
    is_object: bool,
    second: Option<u64>,
}

/// Follows every path through the function at `start` to the jumps that leave it. Each must free the object
/// for which the function was called, with the same size: `operator delete(this, size)`.
fn deleted_size(code: &[u8], start: u64) -> Option<u64> {
    let mut facts = InstructionInfoFactory::new();
    let mut met = HashSet::new();
    let mut size = None;
    let mut branches = vec![(
        start,
        Known {
            saved: None,
            is_object: true,
            second: None,
        },
    )];
    while let Some((mut at, mut known)) = branches.pop() {
        while met.insert(at) {
            if met.len() > MAX_STEPS {
                return None;
            }
            let instruction = decoded(code, start, at)?;
            at = instruction.next_ip();
            match instruction.flow_control() {
                FlowControl::Next => known.after(&instruction, &mut facts),
                FlowControl::Call | FlowControl::IndirectCall => {
                    (known.is_object, known.second) = (false, None);
                }
                FlowControl::ConditionalBranch => {
                    branches.push((instruction.near_branch_target(), known));
                }
                FlowControl::UnconditionalBranch
                    if is_within(code, start, instruction.near_branch_target()) =>
                {
                    at = instruction.near_branch_target();
                }
                FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => {
                    let freed = known.second.filter(|_| known.is_object)?;
                    if size.is_some_and(|size| size != freed) {
                        return None;
                    }
                    size = Some(freed);
                    break;
                }
                _ => return None,
            }
        }
    }
    size
}

fn is_within(code: &[u8], start: u64, at: u64) -> bool {
    at.wrapping_sub(start) < code.len() as u64
}

fn decoded(code: &[u8], start: u64, at: u64) -> Option<Instruction> {
    let rest = code.get(at.wrapping_sub(start) as usize..)?;
    let instruction = Decoder::with_ip(64, rest, at, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

impl Known {
    /// Applies the effect of an instruction without control flow.
    fn after(&mut self, instruction: &Instruction, facts: &mut InstructionInfoFactory) {
        let before = *self;
        let used = facts.info(instruction).used_registers();
        let written = used.iter().filter(|used| {
            !matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess
            )
        });
        for register in written.map(|used| used.register().full_register()) {
            match register {
                Register::RDI => self.is_object = false,
                Register::RSI => self.second = None,
                // A pop restores the caller's value; by then the first argument holds the object again.
                register if self.saved == Some(register) => self.saved = None,
                _ => {}
            }
        }
        if instruction.mnemonic() != Mnemonic::Mov || instruction.op0_kind() != OpKind::Register {
            return;
        }
        let to = instruction.op0_register();
        match instruction.op1_kind() {
            OpKind::Register => match (to, instruction.op1_register()) {
                (Register::RDI, from) => self.is_object = before.saved == Some(from),
                (to, Register::RDI) if before.is_object && outlasts_calls(to) => {
                    self.saved = Some(to);
                }
                _ => {}
            },
            OpKind::Immediate32 | OpKind::Immediate32to64
                if to.full_register() == Register::RSI =>
            {
                self.second = Some(instruction.immediate(1));
            }
            _ => {}
        }
    }
}

/// True for callee-saved registers (System V ABI, x86-64, 3.2.1).
fn outlasts_calls(register: Register) -> bool {
    use Register::{R12, R13, R14, R15, RBP, RBX};
    [RBX, RBP, R12, R13, R14, R15].contains(&register)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake::FakeObjects;
    use super::*;

    /// lea rax, [rip+0xfc47b09]; push rbx; mov rbx, rdi; mov [rdi], rax; call 0xfc85f0 (of a node without own
    /// fields in PyTorch 2.15)
    const BEGINNING: &[u8] = &[
        0x48, 0x8d, 0x05, 0x09, 0x7b, 0xc4, 0x0f, 0x53, 0x48, 0x89, 0xfb, 0x48, 0x89, 0x07, 0xe8,
        0x6d, 0x45, 0xe3, 0xfb,
    ];
    /// mov rdi, rbx; mov esi, 0x1d8; pop rbx; jmp 0xfbf440
    const END: &[u8] = &[
        0x48, 0x89, 0xdf, 0xbe, 0xd8, 0x01, 0, 0, 0x5b, 0xe9, 0xaf, 0xb3, 0xe2, 0xfb,
    ];
    const START: u64 = 0x0519_4070;

    fn of(parts: &[&[u8]]) -> Option<u64> {
        deleted_size(&parts.concat(), START)
    }

    #[test]
    fn the_size_is_what_the_function_gives_back() {
        assert_eq!(of(&[BEGINNING, END]), Some(0x1d8));
        let mut heap = FakeObjects::default();
        let table = heap.class("4Mine", &["N5torch8autograd4NodeE"]);
        assert_eq!(object_size(&heap.memory, table), None, "no code is there");
        heap.deleter(table, 0x1d8);
        assert_eq!(object_size(&heap.memory, table), Some(0x1d8));
    }

    #[test]
    fn parts_that_are_deleted_before_are_not_taken_for_the_object() {
        // mov rdi, [rbx+0x1d8]; test rdi, rdi; je +10; mov esi, 0x18; call …
        let part = [
            &[
                0x48, 0x8b, 0xbb, 0xd8, 0x01, 0, 0, 0x48, 0x85, 0xff, 0x74, 0x0a,
            ][..],
            &[0xbe, 0x18, 0, 0, 0, 0xe8, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(of(&[BEGINNING, &part, END]), Some(0x1d8));
        // … and at the end, in place of the object: jmp …
        let part = [0x48, 0x8b, 0xbb, 0xd8, 0x01, 0, 0, 0xbe, 0x18, 0, 0, 0];
        assert_eq!(of(&[BEGINNING, &part, &[0xe9, 0, 0, 0, 0x10]]), None);
    }

    #[test]
    fn a_function_that_says_two_things_or_none_says_nothing() {
        // test al, al; je +14
        let branch = [0x84, 0xc0, 0x74, END.len() as u8];
        let mut other = END.to_vec();
        other[4] = 0xe0;
        assert_eq!(of(&[BEGINNING, &branch, END, END]), Some(0x1d8));
        assert_eq!(of(&[BEGINNING, &branch, END, &other]), None);
        assert_eq!(of(&[BEGINNING, &branch, END, &[0xc3]]), None, "ret");
        assert_eq!(of(&[BEGINNING]), None, "there is no more");
        assert_eq!(of(&[&[0xeb, 0xfe]]), None, "it never ends");
        // mov rbx, rax, before the end.
        assert_eq!(of(&[BEGINNING, &[0x48, 0x89, 0xc3], END]), None);
    }

    proptest! {
        #[test]
        fn whatever_is_there_comes_to_an_end(code in prop::collection::vec(any::<u8>(), 0..600), start in any::<u64>()) {
            deleted_size(&code, start);
        }
    }
}
