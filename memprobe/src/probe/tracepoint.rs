//! The tracepoints of PyTorch's allocator: where they are and where they have their values.
//!
//! A tracepoint with a semaphore is jumped over unless a counter in the process's memory is above zero.
//! memprobe writes nothing there: it listens at the very jump, where the values are in place already.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use memprobe_common::{Operand, TracepointCookie};

use crate::target::elf::{ElfImage, Tracepoint};

/// The most bytes of a function that are decoded to find the jump.
const MOST_CODE: u64 = 64 << 10;

/// The names of registers that are not all 64 bits of one with a number, by their place in
/// [`Operand::REGISTERS`].
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
    for (operand, text) in operands
        .iter_mut()
        .zip(tracepoint.operands.split_ascii_whitespace())
    {
        *operand = Some(parse(text)?);
    }
    operands[0]?;
    Some(TracepointCookie { function, operands })
}

/// The address of the instruction at which a tracepoint is passed whether somebody listens or not: its
/// `nop`, or the jump before it. `None` where that is not certain.
pub fn passed(image: &ElfImage, tracepoint: &Tracepoint) -> Option<u64> {
    if !tracepoint.has_semaphore {
        return Some(tracepoint.vaddr);
    }
    let start = image.function_start(tracepoint.vaddr)?;
    let length = tracepoint.vaddr.checked_sub(start)?;
    if length > MOST_CODE {
        return None;
    }
    let code = image
        .bytes_at(start, usize::try_from(length).ok()? + 1)
        .ok()?;
    jump_before_end(&code, start)
}

/// The address of the conditional jump that is the last instruction but one of `code`, whose last is
/// a `nop`. A breakpoint within an instruction would break the process: code is decoded from the start
/// of its function on, and every byte of it must make sense.
fn jump_before_end(code: &[u8], start: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut last: Option<Instruction> = None;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        if !decoder.can_decode() {
            let jump = last.filter(|last| last.flow_control() == FlowControl::ConditionalBranch)?;
            let is_nop = instruction.mnemonic() == iced_x86::Mnemonic::Nop;
            return is_nop.then_some(jump.ip());
        }
        last = Some(instruction);
    }
    None
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
    let narrow = || {
        let narrow = NARROW.iter();
        narrow
            .map(|names| &names[..3])
            .position(|names| names.contains(&name))
    };
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

    #[test]
    fn a_tracepoint_is_heard_at_the_jump_over_it() {
        // push rbp; test ax, ax; je +1; nop (uncached_delete of 2.6)
        let short = [0x55, 0x66, 0x85, 0xc0, 0x74, 0x01, 0x90];
        assert_eq!(jump_before_end(&short, 0x1000), Some(0x1004));
        // test dx, dx; je near; nop (allocate of 2.15)
        let near = [0x66, 0x85, 0xd2, 0x0f, 0x84, 0xed, 0xfd, 0xff, 0xff, 0x90];
        assert_eq!(jump_before_end(&near, 0x2000), Some(0x2003));
    }

    #[test]
    fn without_a_jump_right_before_it_there_is_no_place() {
        // mov eax, 0x9001740f, cut where its bytes look like a jump and a nop
        assert_eq!(jump_before_end(&[0xb8, 0x0f, 0x74, 0x01, 0x90], 0), None);
        // je +1; push rbp; nop
        assert_eq!(jump_before_end(&[0x74, 0x01, 0x55, 0x90], 0), None);
        // an invalid byte before
        assert_eq!(jump_before_end(&[0x06, 0x74, 0x01, 0x90], 0), None);
        assert_eq!(jump_before_end(&[0x90], 0), None);
        assert_eq!(jump_before_end(&[], 0), None);
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
