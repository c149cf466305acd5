//! Where in a function to put its probe.
//!
//! A uprobe whose instruction the kernel can emulate costs a fraction of one that it must
//! single-step out of line. So the probe goes to the first instruction that is emulated and before
//! which no register that the probe reads has been written.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Formatter as _, Instruction,
    InstructionInfoFactory, IntelFormatter, OpAccess, Register,
};

/// How far into a function the search goes, in bytes.
pub const SEARCHED: usize = 64;

/// Where a probe sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes from the function's first instruction.
    pub offset: u64,
    /// Whether the kernel emulates the instruction there.
    pub emulated: bool,
}

impl Place {
    /// Finds the place in a function that begins with `code`, for a probe that reads `needed`
    /// (64-bit registers). Falls back to the function's entry, which is always right.
    pub fn find(code: &[u8], needed: &[Register]) -> Self {
        let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
        let mut facts = InstructionInfoFactory::new();
        let mut instruction = Instruction::default();
        while decoder.can_decode() && decoder.position() < SEARCHED {
            let offset = decoder.position() as u64;
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                break;
            }
            if is_emulated(&instruction) {
                return Self {
                    offset,
                    emulated: true,
                };
            }
            let writes_needed = facts
                .info(&instruction)
                .used_registers()
                .iter()
                .any(|used| {
                    let written = !matches!(
                        used.access(),
                        OpAccess::Read | OpAccess::CondRead | OpAccess::None
                    );
                    written && needed.contains(&used.register().full_register())
                });
            if writes_needed || instruction.flow_control() != FlowControl::Next {
                break;
            }
        }
        Self::entry(code)
    }

    /// The function's first instruction: where return probes must sit, as the kernel takes the
    /// return address from the top of the stack there.
    pub fn entry(code: &[u8]) -> Self {
        let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
        let emulated = decoder.can_decode() && is_emulated(&decoder.decode());
        Self {
            offset: 0,
            emulated,
        }
    }
}

/// Whether the kernel emulates this instruction instead of single-stepping it: `push` of a
/// register, `nop`, and jumps and calls relative to the instruction pointer
/// (`branch_setup_xol_ops` and `push_setup_xol_ops`, arch/x86/kernel/uprobes.c, Linux 6.1).
fn is_emulated(instruction: &Instruction) -> bool {
    match instruction.code() {
        Code::Push_r64 | Code::Nopd | Code::Nopw | Code::Nopq => true,
        _ => {
            instruction.is_jcc_short_or_near()
                || instruction.is_jmp_short_or_near()
                || instruction.is_call_near()
        }
    }
}

/// The first instruction of `code` as an assembler would write it, such as `push r14`; `None` where
/// these bytes are none.
pub fn written(code: &[u8]) -> Option<String> {
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    if instruction.is_invalid() {
        return None;
    }
    let mut text = String::new();
    IntelFormatter::new().format(&instruction, &mut text);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGUMENTS: [Register; 5] = [
        Register::RDI,
        Register::RSI,
        Register::RDX,
        Register::RCX,
        Register::R8,
    ];

    #[test]
    fn an_instruction_is_written_as_assemblers_write_it() {
        assert_eq!(written(&[0x41, 0x56]).as_deref(), Some("push r14"));
        assert_eq!(written(&[0x48, 0x89]), None);
    }

    #[test]
    fn a_push_at_the_entry_is_taken() {
        // push r14; mov r14, rdi
        let place = Place::find(&[0x41, 0x56, 0x49, 0x89, 0xfe], &ARGUMENTS);
        assert_eq!(
            place,
            Place {
                offset: 0,
                emulated: true
            }
        );
    }

    #[test]
    fn a_load_into_another_register_is_passed_over() {
        // mov rax, [rip+0x1234]; push r14 (c10::reportMemoryUsageToProfiler of torch 2.15)
        let place = Place::find(
            &[0x48, 0x8b, 0x05, 0x34, 0x12, 0, 0, 0x41, 0x56],
            &ARGUMENTS,
        );
        assert_eq!(
            place,
            Place {
                offset: 7,
                emulated: true
            }
        );
    }

    #[test]
    fn a_landing_pad_is_passed_over() {
        // endbr64; push rbp
        let place = Place::find(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55], &ARGUMENTS);
        assert_eq!(
            place,
            Place {
                offset: 4,
                emulated: true
            }
        );
    }

    #[test]
    fn a_write_to_a_needed_register_ends_the_search_at_the_entry() {
        // mov edi, 1 (writes all of rdi); push rbp
        let place = Place::find(&[0xbf, 1, 0, 0, 0, 0x55], &ARGUMENTS);
        assert_eq!(
            place,
            Place {
                offset: 0,
                emulated: false
            }
        );
    }

    #[test]
    fn the_search_does_not_follow_an_early_return() {
        // ret; push rbp
        let place = Place::find(&[0xc3, 0x55], &ARGUMENTS);
        assert_eq!(
            place,
            Place {
                offset: 0,
                emulated: false
            }
        );
    }

    #[test]
    fn bytes_that_are_no_code_give_the_entry() {
        assert_eq!(
            Place::find(&[0x06, 0x55], &ARGUMENTS),
            Place {
                offset: 0,
                emulated: false
            }
        );
        assert_eq!(
            Place::find(&[], &ARGUMENTS),
            Place {
                offset: 0,
                emulated: false
            }
        );
    }

    #[test]
    fn the_search_ends_within_its_bound() {
        // mov rax, rax without end
        let code = [0x48, 0x89, 0xc0].repeat(100);
        assert_eq!(
            Place::find(&code, &ARGUMENTS),
            Place {
                offset: 0,
                emulated: false
            }
        );
    }
}
