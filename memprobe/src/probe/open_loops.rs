//! Loops of the programs that the kernel's verifier need not follow round by round.
//!
//! A walk of a stack has up to 192 rounds, and the verifier follows each of them with all its branches: half a second for
//! each program with a walk. From Linux 6.9 on a loop may contain `may_goto`, an instruction that leaves the loop when
//! the kernel says so. The verifier then follows rounds only until one adds nothing new
//! (`is_state_visited`, kernel/bpf/verifier.c@v6.9). Older kernels refuse the instruction even where it is never
//! reached. The programs therefore mark its places (`memprobe-ebpf/src/verifier.rs`), and it is put there on loading.

use aya_obj::generated::bpf_insn;
use memprobe_common::open_loop::{IS_CLOSED, MAY_LEAVE};

/// `BPF_JMP | BPF_JEQ | BPF_K`, `BPF_ALU64 | BPF_MOV | BPF_K`, `BPF_JMP | BPF_JCOND` (include/uapi/linux/bpf.h).
const JUMP_IF_EQUAL: u8 = 0x15;
const MOVE: u8 = 0xb7;
const JUMP_IF_OVER: u8 = 0xe5;

/// Puts `may_goto` at the marked places.
pub(super) fn open(instructions: &mut [bpf_insn]) {
    for instruction in instructions {
        match (instruction.code, instruction.imm.cast_unsigned()) {
            (JUMP_IF_EQUAL, MAY_LEAVE) => {
                instruction.code = JUMP_IF_OVER;
                // `BPF_MAY_GOTO`, which is 0.
                instruction.set_src_reg(0);
                instruction.set_dst_reg(0);
                instruction.imm = 0;
            }
            (MOVE, IS_CLOSED) => instruction.imm = 0,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u8, imm: u32) -> bpf_insn {
        let registers = bpf_insn::new_bitfield_1(3, 0);
        bpf_insn {
            code,
            _bitfield_align_1: [],
            _bitfield_1: registers,
            off: -7,
            imm: imm.cast_signed(),
        }
    }

    #[test]
    fn only_marked_instructions_are_replaced() {
        let mut program = [
            instruction(JUMP_IF_EQUAL, MAY_LEAVE),
            instruction(MOVE, IS_CLOSED),
            instruction(JUMP_IF_EQUAL, 1),
            instruction(MOVE, MAY_LEAVE),
        ];
        open(&mut program);
        let codes = program.map(|it| (it.code, it.dst_reg(), it.off, it.imm));
        let mark = MAY_LEAVE.cast_signed();
        assert_eq!(
            codes,
            [
                (JUMP_IF_OVER, 0, -7, 0),
                (MOVE, 3, -7, 0),
                (JUMP_IF_EQUAL, 3, -7, 1),
                (MOVE, 3, -7, mark),
            ]
        );
    }

    #[test]
    fn each_walk_of_a_stack_has_open_loops() {
        let object = aya_obj::Object::parse(crate::probe::loader::OBJECT).expect("the object");
        for walk in ["event_with_stack", "cuda_return", "allocator_tracepoint"] {
            let key = object.programs[walk].function_key();
            let mut instructions = object.functions[&key].instructions.clone();
            open(&mut instructions);
            let open = instructions.iter().filter(|it| it.code == JUMP_IF_OVER);
            assert!(open.count() >= 2, "{walk} walks and sends frames in loops");
        }
    }
}
