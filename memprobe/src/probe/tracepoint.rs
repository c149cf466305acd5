//! The tracepoints of PyTorch's allocator: where they are and where they have their values.

use memprobe_common::{Operand, TracepointCookie};

use crate::target::elf::Tracepoint;

/// What PyTorch calls itself in its tracepoints (c10/util/static_tracepoint.h@v2.6.0).
pub const PROVIDER: &str = "pytorch";

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
            provider: PROVIDER.to_owned(),
            name: "malloc".to_owned(),
            vaddr: 0x1000,
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
