//! Placement of a probe within its function.
//!
//! A uprobe whose instruction the kernel can emulate costs a fraction of one that it must
//! single-step out of line. So the probe goes to the first instruction that is emulated and before
//! which no register that the probe reads, and no memory, has been written. Entry and return probe
//! of a function sit together: the kernel takes the return address from the top of the stack, which
//! is where it was at the entry as long as the stack pointer is among what the probe reads.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Formatter as _, Instruction, InstructionInfo,
    InstructionInfoFactory, IntelFormatter, OpAccess, Register,
};

/// Bytes of a function that are searched for a place.
pub const SEARCHED: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbePlace {
    /// Bytes from the function's first instruction.
    pub offset: u64,
    /// Bytes of the instruction there, which the probe replaces; 1 where it cannot be decoded.
    pub length: u64,
    pub emulated: bool,
}

impl ProbePlace {
    /// Finds the place in a function that begins with `code`, for a probe that reads `needed`
    /// (64-bit registers). Falls back to the function's entry, which is always right.
    pub fn find(code: &[u8], needed: &[Register]) -> Self {
        let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
        let mut facts = InstructionInfoFactory::new();
        let mut instruction = Instruction::default();
        while decoder.can_decode() && decoder.position() < SEARCHED {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                break;
            }
            if is_emulated(&instruction) && !repeats(&instruction) {
                return Self::at(&instruction);
            }
            if writes(facts.info(&instruction), needed)
                || instruction.flow_control() != FlowControl::Next
            {
                break;
            }
        }
        Self::entry(code)
    }

    fn entry(code: &[u8]) -> Self {
        let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
        let first = decoder.decode();
        match first.is_invalid() {
            true => Self {
                offset: 0,
                length: 1,
                emulated: false,
            },
            false => Self::at(&first),
        }
    }

    /// The place of an instruction that was decoded with the function's start as address 0.
    fn at(instruction: &Instruction) -> Self {
        Self {
            offset: instruction.ip(),
            length: instruction.len() as u64,
            emulated: is_emulated(instruction),
        }
    }

    /// Bytes from the function's start to the end of the probed instruction.
    pub fn end(self) -> u64 {
        self.offset + self.length
    }
}

/// True if an instruction writes one of these registers, or memory.
fn writes(info: &InstructionInfo, needed: &[Register]) -> bool {
    let is_write = |access: OpAccess| {
        !matches!(
            access,
            OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
        )
    };
    let mut registers = info.used_registers().iter();
    let mut memory = info.used_memory().iter();
    registers
        .any(|used| is_write(used.access()) && needed.contains(&used.register().full_register()))
        || memory.any(|used| is_write(used.access()))
}

/// True if a branch leads back to itself or before it: a probe there would fire more than once a call.
fn repeats(instruction: &Instruction) -> bool {
    let is_jump = instruction.is_jcc_short_or_near() || instruction.is_jmp_short_or_near();
    is_jump && instruction.near_branch_target() <= instruction.ip()
}

/// True if the kernel emulates this instruction instead of single-stepping it: `push` of a register, `nop`, and jumps
/// and calls relative to the instruction pointer (`branch_setup_xol_ops` and `push_setup_xol_ops`,
/// arch/x86/kernel/uprobes.c, Linux 6.1). It takes none with an operand-size prefix but `nop`.
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

/// First instruction of `code` in assembler syntax, such as `push r14`; `None` if the bytes are not one. Branches name
/// their target by `address`, that of the code; operands relative to the instruction pointer are written with `rip`.
pub fn written(code: &[u8], address: u64) -> Option<String> {
    let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
    if instruction.is_invalid() {
        return None;
    }
    let mut text = String::new();
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_rip_relative_addresses(true);
    options.set_branch_leading_zeros(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    formatter.format(&instruction, &mut text);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGUMENTS: [Register; 7] = [
        Register::RDI,
        Register::RSI,
        Register::RDX,
        Register::RCX,
        Register::R8,
        Register::R9,
        Register::RSP,
    ];

    fn emulated(offset: u64, length: u64) -> ProbePlace {
        ProbePlace {
            offset,
            length,
            emulated: true,
        }
    }

    /// The entry, single-stepped.
    fn entry(length: u64) -> ProbePlace {
        ProbePlace {
            offset: 0,
            length,
            emulated: false,
        }
    }

    #[test]
    fn an_instruction_is_written_as_assemblers_write_it() {
        assert_eq!(written(&[0x41, 0x56], 0).as_deref(), Some("push r14"));
        assert_eq!(written(&[0x48, 0x89], 0), None);
    }

    #[test]
    fn operands_and_branches_are_written_with_the_address_of_the_code() {
        // cmp dword ptr [rip+0x1234], 5
        let compare = [0x81, 0x3d, 0x34, 0x12, 0, 0, 5, 0, 0, 0];
        assert_eq!(
            written(&compare, 0x7000).as_deref(),
            Some("cmp dword ptr [rip+0x1234],0x5")
        );
        assert_eq!(
            written(&[0x75, 0x10], 0x7000).as_deref(),
            Some("jne short 0x7012")
        );
    }

    #[test]
    fn a_push_at_the_entry_is_taken() {
        // push r14; mov r14, rdi
        let place = ProbePlace::find(&[0x41, 0x56, 0x49, 0x89, 0xfe], &ARGUMENTS);
        assert_eq!(place, emulated(0, 2));
        assert_eq!(place.end(), 2);
    }

    #[test]
    fn a_load_into_another_register_is_passed_over() {
        // mov rax, [rip+0x1234]; push r14 (c10::reportMemoryUsageToProfiler of torch 2.15)
        let place = ProbePlace::find(
            &[0x48, 0x8b, 0x05, 0x34, 0x12, 0, 0, 0x41, 0x56],
            &ARGUMENTS,
        );
        assert_eq!(place, emulated(7, 2));
    }

    #[test]
    fn a_comparison_with_memory_is_passed_over_to_the_branch() {
        // cmp dword ptr [rip+0x1234], imm32; jne +16 (the shape of libcuda's functions, 470 to 555)
        let code = [
            0x81, 0x3d, 0x34, 0x12, 0, 0, 0x78, 0x56, 0x34, 0x12, 0x75, 0x10, 0xff, 0x25, 0, 0, 0,
            0,
        ];
        assert_eq!(ProbePlace::find(&code, &ARGUMENTS), emulated(10, 2));
    }

    #[test]
    fn a_landing_pad_is_passed_over() {
        // endbr64; push rbp
        let place = ProbePlace::find(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55], &ARGUMENTS);
        assert_eq!(place, emulated(4, 1));
    }

    #[test]
    fn a_write_to_a_needed_register_ends_the_search_at_the_entry() {
        // mov edi, 1 (writes all of rdi); push rbp
        let place = ProbePlace::find(&[0xbf, 1, 0, 0, 0, 0x55], &ARGUMENTS);
        assert_eq!(place, entry(5));
    }

    #[test]
    fn a_moved_stack_pointer_ends_the_search_where_it_is_read() {
        // sub rsp, 8; push rbp
        let code = [0x48, 0x83, 0xec, 8, 0x55];
        assert_eq!(ProbePlace::find(&code, &ARGUMENTS), entry(4));
        assert_eq!(ProbePlace::find(&code, &[Register::RDI]), emulated(4, 1));
    }

    #[test]
    fn a_write_to_memory_ends_the_search_at_the_entry() {
        // mov [rdi], rax; push rbp
        let place = ProbePlace::find(&[0x48, 0x89, 0x07, 0x55], &ARGUMENTS);
        assert_eq!(place, entry(3));
    }

    #[test]
    fn a_branch_back_to_the_start_is_no_place() {
        // cmp dword ptr [rdi], 0; jne -5
        let place = ProbePlace::find(&[0x83, 0x3f, 0x00, 0x75, 0xfb], &ARGUMENTS);
        assert_eq!(place, entry(3));
    }

    #[test]
    fn the_search_does_not_follow_an_early_return() {
        // ret; push rbp
        let place = ProbePlace::find(&[0xc3, 0x55], &ARGUMENTS);
        assert_eq!(place, entry(1));
    }

    #[test]
    fn bytes_that_are_no_code_give_the_entry() {
        assert_eq!(ProbePlace::find(&[0x06, 0x55], &ARGUMENTS), entry(1));
        assert_eq!(ProbePlace::find(&[], &ARGUMENTS), entry(1));
    }

    #[test]
    fn the_search_ends_within_its_bound() {
        // mov rax, rax without end
        let code = [0x48, 0x89, 0xc0].repeat(100);
        assert_eq!(ProbePlace::find(&code, &ARGUMENTS), entry(3));
    }
}
