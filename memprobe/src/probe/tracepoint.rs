//! The tracepoints of PyTorch's allocator: where they are and where they have their values.
//!
//! A tracepoint with a semaphore is jumped over unless a counter in the process's memory is above zero.
//! memprobe writes nothing there: it listens at the very jump, where the values are in place already.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use memprobe_common::{Operand, TracepointCookie};

use crate::process::elf::{ElfImage, Tracepoint};

/// The most code of a library that is decoded: libc10_cuda's is less than 1 MiB.
const MAX_CODE: u64 = 16 << 20;

/// The names of registers that are not all 64 bits of one with a number, by their place in [`Operand::REGISTERS`].
const NARROW: [[&str; 4]; 8] = [
    ["eax", "ax", "al", "ah"],
    ["ebx", "bx", "bl", "bh"],
    ["ecx", "cx", "cl", "ch"],
    ["edx", "dx", "dl", "dh"],
    ["esi", "si", "sil", ""],
    ["edi", "di", "dil", ""],
    ["ebp", "bp", "bpl", ""],
    ["esp", "sp", "spl", ""],
];

/// The cookie of a tracepoint's probe: `function` is its number among the functions of CUDA, and its
/// values come in the order of its notes. `None` where these cannot be understood.
pub fn cookie(function: u8, tracepoint: &Tracepoint) -> Option<TracepointCookie> {
    let mut operands = [None; TracepointCookie::OPERANDS];
    let texts = tracepoint.operands.split_ascii_whitespace();
    for (operand, text) in operands.iter_mut().zip(texts) {
        *operand = Some(parse(text)?);
    }
    operands[0]?;
    Some(TracepointCookie { function, operands })
}

/// The addresses of the instructions by which a tracepoint is passed whether somebody listens or not:
/// its `nop`, or every jump that decides on it. `None` where these are not certain.
pub fn passed(image: &ElfImage, tracepoint: &Tracepoint) -> Option<Vec<u64>> {
    let nop = tracepoint.vaddr;
    if !tracepoint.has_semaphore {
        return Some(vec![nop]);
    }
    let mut segments = image.segments().iter();
    let segment = segments.find(|segment| {
        segment.executable
            && (segment.vaddr..segment.vaddr.saturating_add(segment.file_size)).contains(&nop)
    })?;
    if segment.file_size > MAX_CODE {
        return None;
    }
    let length = usize::try_from(segment.file_size).ok()?;
    let code = image.bytes_at(segment.vaddr, length).ok()?;
    let starts = image.function_starts()?;
    deciding_jumps(&code, segment.vaddr, &starts, nop)
}

/// The jumps that lead to a `nop` or over it, as a counter that was tested just before says.
///
/// A breakpoint within an instruction would break the process: code is decoded from the starts of
/// functions on. And a way to the `nop` that were not found would be events that nobody sees: all code
/// is looked at, as compilers double such jumps.
fn deciding_jumps(code: &[u8], address: u64, starts: &[u64], nop: u64) -> Option<Vec<u64>> {
    let end = address + code.len() as u64;
    let mut jumps = Vec::new();
    let mut is_met = false;
    let ends = starts.iter().skip(1).copied().chain([end]);
    for (start, until) in starts.iter().copied().zip(ends) {
        let Some(part) = code_between(code, address, start, until.min(end)) else {
            continue;
        };
        let mut decoder = Decoder::with_ip(64, part, start, DecoderOptions::NONE);
        let mut before = [Instruction::default(); 2];
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.ip() == nop {
                is_met = instruction.mnemonic() == Mnemonic::Nop;
                if falls_through(&before[1]) {
                    jumps.push(decides(&before)?);
                }
            } else if instruction.near_branch_target() == nop {
                jumps.push(match instruction.flow_control() {
                    FlowControl::ConditionalBranch => decides(&[before[1], instruction])?,
                    FlowControl::UnconditionalBranch => decides(&before)?,
                    _ => return None,
                });
            }
            before = [before[1], instruction];
        }
    }
    (is_met && !jumps.is_empty()).then_some(jumps)
}

fn code_between(code: &[u8], address: u64, start: u64, end: u64) -> Option<&[u8]> {
    let from = usize::try_from(start.checked_sub(address)?).ok()?;
    let to = usize::try_from(end.checked_sub(address)?).ok()?;
    code.get(from..to)
}

/// True if execution can continue behind an instruction.
fn falls_through(instruction: &Instruction) -> bool {
    !matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::Return | FlowControl::IndirectBranch
    )
}

/// The address of the second instruction, if the two test 16 bits, as semaphores have, and jump.
fn decides([test, jump]: &[Instruction; 2]) -> Option<u64> {
    let is_test = matches!(
        test.code(),
        Code::Test_rm16_r16 | Code::Cmp_rm16_imm8 | Code::Cmp_rm16_imm16
    );
    let jumps = jump.flow_control() == FlowControl::ConditionalBranch;
    (is_test && jumps).then_some(jump.ip())
}

/// Parses a value as the assembler writes it: `-8@%rdi`, `-1@%al`, `-8@-56(%rbp)`, `8@(%rsp)`. Its
/// width stands before the `@`, negative where it has a sign. Constants, scaled indices and names
/// (`$1`, `8(%rax,%rbx,8)`, `symbol(%rip)`) are what compilers write for none of PyTorch's.
fn parse(text: &str) -> Option<Operand> {
    let (width, place) = text.split_once('@')?;
    let width = width.parse::<i8>().ok()?.unsigned_abs();
    if !matches!(width, 1 | 2 | 4 | 8) {
        return None;
    }
    let operand = |register, offset| Operand {
        register,
        offset,
        width,
    };
    if let Some(name) = place.strip_prefix('%') {
        return Some(operand(register(name)?, None));
    }
    let (offset, base) = place.strip_suffix(')')?.split_once("(%")?;
    let offset = match offset {
        "" => 0,
        number => number.parse().ok()?,
    };
    let base = Operand::REGISTERS.iter().position(|name| *name == base)?;
    Operand::OFFSETS
        .contains(&offset)
        .then_some(operand(u8::try_from(base).ok()?, Some(offset)))
}

/// A register by any name of its lower bits. The second byte (`ah`) is a place of its own.
fn register(name: &str) -> Option<u8> {
    let whole = Operand::REGISTERS.iter().position(|whole| *whole == name);
    let narrow = || NARROW.iter().position(|names| names[..3].contains(&name));
    let numbered = || {
        let number = name.strip_prefix('r')?.strip_suffix(['d', 'w', 'b'])?;
        let number = number.parse::<usize>().ok()?;
        (8..16).contains(&number).then_some(number)
    };
    let found = whole.or_else(narrow).or_else(numbered)?;
    u8::try_from(found).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracepoint(operands: &str) -> Tracepoint {
        Tracepoint {
            provider: "pytorch".to_owned(),
            name: "malloc".to_owned(),
            vaddr: 0x1000,
            has_semaphore: true,
            operands: operands.to_owned(),
        }
    }

    /// Register, offset and width of each value.
    fn parsed(operands: &str) -> Option<Vec<(&'static str, Option<i16>, u8)>> {
        let cookie = cookie(9, &tracepoint(operands))?;
        assert_eq!(cookie.function, 9);
        let known = cookie.operands.into_iter().flatten();
        let named = known.map(|operand| {
            let register = Operand::REGISTERS[usize::from(operand.register)];
            (register, operand.offset, operand.width)
        });
        Some(named.collect())
    }

    #[test]
    fn the_values_of_the_wheels_are_understood() {
        assert_eq!(
            parsed("-8@%rax -1@%dl -8@%rbx -8@-56(%rbp)"),
            Some(vec![("rax", None, 8), ("rdx", None, 1), ("rbx", None, 8)])
        );
        assert_eq!(
            parsed("-8@-56(%rbp) -1@%r10b 8@56(%rsp)"),
            Some(vec![
                ("rbp", Some(-56), 8),
                ("r10", None, 1),
                ("rsp", Some(56), 8)
            ])
        );
        assert_eq!(parsed("-8@%rdi"), Some(vec![("rdi", None, 8)]));
        assert_eq!(parsed("-4@(%r8)"), Some(vec![("r8", Some(0), 4)]));
    }

    /// The jumps that decide on the `nop` at an offset of a function.
    fn jumps(code: &[u8], nop: u64) -> Option<Vec<u64>> {
        deciding_jumps(code, 0x1000, &[0x1000], 0x1000 + nop)
    }

    #[test]
    fn a_tracepoint_is_heard_at_the_jump_over_it() {
        // push rbp; test ax, ax; je +1; nop (uncached_delete of 2.6)
        let short = [0x55, 0x66, 0x85, 0xc0, 0x74, 0x01, 0x90];
        assert_eq!(jumps(&short, 6), Some(vec![0x1004]));
        // test dx, dx; je near; nop (allocate of 2.15)
        let near = [0x66, 0x85, 0xd2, 0x0f, 0x84, 0xed, 0xfd, 0xff, 0xff, 0x90];
        assert_eq!(jumps(&near, 9), Some(vec![0x1003]));
    }

    #[test]
    fn every_way_to_a_tracepoint_is_found_also_from_another_function() {
        // test si, si; je +3; nop; jmp -; then: test si, si; je -; jmp to the nop (allocate of 2.6)
        let code = [
            0x66, 0x85, 0xf6, 0x74, 0x03, 0x90, 0xeb, 0x00, 0x66, 0x85, 0xf6, 0x74, 0xfb, 0xeb,
            0xf6,
        ];
        assert_eq!(jumps(&code, 5), Some(vec![0x1003, 0x100b]));
        assert_eq!(
            deciding_jumps(&code, 0x1000, &[0x1000, 0x1008], 0x1005),
            Some(vec![0x1003, 0x100b])
        );
    }

    #[test]
    fn without_a_certain_jump_there_is_no_place() {
        // mov eax, 0x9001740f, whose bytes look like a jump and a nop
        assert_eq!(jumps(&[0xb8, 0x0f, 0x74, 0x01, 0x90], 4), None);
        // test ax, ax; je +1; push rbp; nop
        assert_eq!(jumps(&[0x66, 0x85, 0xc0, 0x74, 0x01, 0x55, 0x90], 6), None);
        // test rax, rax, which is no semaphore; je +1; nop
        assert_eq!(jumps(&[0x48, 0x85, 0xc0, 0x74, 0x01, 0x90], 5), None);
        // as it should be, and a jump to the nop from where nothing was tested
        let other = [0x66, 0x85, 0xc0, 0x74, 0x01, 0x90, 0x55, 0xeb, 0xfc];
        assert_eq!(jumps(&other, 5), None);
        assert_eq!(jumps(&[0x90], 0), None);
        assert_eq!(jumps(&[], 0), None);
    }

    #[test]
    fn what_is_not_understood_is_no_probe() {
        for operands in [
            "",
            "-8@$5",
            "8@%xmm0",
            "-8@8(%rax,%rbx,8)",
            "-8@4096(%rsp)",
            "-8@global(%rip)",
            "-3@%rax",
            "-1@%ah",
            "-8@%r7b",
            "%rax",
            "-8@",
        ] {
            assert_eq!(parsed(operands), None, "{operands}");
        }
    }
}
