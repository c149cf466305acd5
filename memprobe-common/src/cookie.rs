//! Cookies: one word that each probe passes to its program.

/// The cookie of the probes of a function of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaCookie {
    /// Names the function to user space.
    pub function: u8,
    /// The record needs the stack of the caller.
    pub wants_stack: bool,
    /// The function makes the context of argument 0 current. A call within another call of CUDA puts it
    /// into the outer call's [`CudaRecord::context`](crate::CudaRecord::context).
    pub sets_context: bool,
    /// A description behind an argument, which is read at the entry.
    pub description: Option<Description>,
}

/// A structure that an argument points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// The argument, counted from 0.
    pub argument: u8,
    /// Bytes that are read, at most those of [`CudaRecord::description`](crate::CudaRecord::description).
    pub bytes: u8,
}

impl CudaCookie {
    const WANTS_STACK: u64 = 1 << 8;
    const SETS_CONTEXT: u64 = 1 << 9;
    const ARGUMENT_SHIFT: u32 = 16;
    const BYTES_SHIFT: u32 = 24;

    /// Packs the cookie into one word.
    pub const fn to_word(self) -> u64 {
        let mut word = self.function as u64;
        if self.wants_stack {
            word |= Self::WANTS_STACK;
        }
        if self.sets_context {
            word |= Self::SETS_CONTEXT;
        }
        if let Some(Description { argument, bytes }) = self.description {
            word |= (argument as u64 + 1) << Self::ARGUMENT_SHIFT;
            word |= (bytes as u64) << Self::BYTES_SHIFT;
        }
        word
    }

    /// Unpacks a word of [`Self::to_word`].
    pub const fn of_word(word: u64) -> Self {
        Self {
            function: word as u8,
            wants_stack: word & Self::WANTS_STACK != 0,
            sets_context: word & Self::SETS_CONTEXT != 0,
            description: match (word >> Self::ARGUMENT_SHIFT) as u8 {
                0 => None,
                argument => Some(Description {
                    argument: argument - 1,
                    bytes: (word >> Self::BYTES_SHIFT) as u8,
                }),
            },
        }
    }
}

/// The cookie of the probe of a tracepoint of PyTorch's allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracepointCookie {
    /// Names the tracepoint to user space, among the functions of CUDA.
    pub function: u8,
    /// Locations of its values, in the order of the record's arguments; `None` after the last.
    pub operands: [Option<Operand>; TracepointCookie::OPERANDS],
}

/// Location of a tracepoint's value: a register, or memory at an offset from the address in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// One of [`Operand::REGISTERS`], by its index there.
    pub register: u8,
    /// For memory: bytes from the address in the register, -1024 to 1023.
    pub offset: Option<i16>,
    /// Bytes of the value: 1, 2, 4 or 8.
    pub width: u8,
}

impl Operand {
    /// The registers, in the program's order.
    pub const REGISTERS: [&'static str; 16] = [
        "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15",
    ];

    /// The offsets that fit into a cookie.
    pub const OFFSETS: core::ops::RangeInclusive<i16> = -1024..=1023;

    const IN_MEMORY: u64 = 1 << 4;
    const WIDTH_SHIFT: u32 = 5;
    const OFFSET_SHIFT: u32 = 7;
    const OFFSET_BITS: u32 = 11;

    const fn to_bits(self) -> u64 {
        let (memory, offset) = match self.offset {
            Some(offset) => (Self::IN_MEMORY, offset as u64),
            None => (0, 0),
        };
        (self.register as u64 & 15)
            | memory
            | ((self.width.trailing_zeros() as u64 & 3) << Self::WIDTH_SHIFT)
            | ((offset & ((1 << Self::OFFSET_BITS) - 1)) << Self::OFFSET_SHIFT)
    }

    const fn of_bits(bits: u64) -> Self {
        let offset = (bits >> Self::OFFSET_SHIFT) as i64;
        let unused = i64::BITS - Self::OFFSET_BITS;
        let offset = ((offset << unused) >> unused) as i16;
        Self {
            register: (bits & 15) as u8,
            offset: if bits & Self::IN_MEMORY != 0 {
                Some(offset)
            } else {
                None
            },
            width: 1 << ((bits >> Self::WIDTH_SHIFT) & 3),
        }
    }
}

impl TracepointCookie {
    /// The most values of a tracepoint that are read.
    pub const OPERANDS: usize = 3;

    const FUNCTION_BITS: u32 = 8;
    const OPERAND_BITS: u32 = 18;
    const COUNT_SHIFT: u32 = Self::FUNCTION_BITS + Self::OPERANDS as u32 * Self::OPERAND_BITS;

    /// Packs the cookie into one word.
    pub const fn to_word(self) -> u64 {
        let mut word = self.function as u64;
        let mut at = 0;
        while at < Self::OPERANDS {
            let Some(operand) = self.operands[at] else {
                break;
            };
            word |= operand.to_bits() << Self::shift(at);
            at += 1;
        }
        word | (at as u64) << Self::COUNT_SHIFT
    }

    /// Unpacks a word of [`Self::to_word`].
    pub const fn of_word(word: u64) -> Self {
        let mut operands = [None; Self::OPERANDS];
        let mut at = 0;
        while at < Self::OPERANDS && at < Self::count_of(word) {
            operands[at] = Some(Self::operand_of(word, at));
            at += 1;
        }
        Self {
            function: Self::function_of(word),
            operands,
        }
    }

    /// [`Self::function`] of such a word.
    pub const fn function_of(word: u64) -> u8 {
        word as u8
    }

    /// Number of values in such a word.
    pub const fn count_of(word: u64) -> usize {
        (word >> Self::COUNT_SHIFT) as usize
    }

    /// Location of value `at` in such a word, counted from 0.
    pub const fn operand_of(word: u64, at: usize) -> Operand {
        let bits = word >> Self::shift(at);
        Operand::of_bits(bits & ((1 << Self::OPERAND_BITS) - 1))
    }

    const fn shift(at: usize) -> u32 {
        Self::FUNCTION_BITS + at as u32 * Self::OPERAND_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cuda_cookie_survives_packing() {
        let described = Some(Description {
            argument: 1,
            bytes: 40,
        });
        for (function, description) in [(0, None), (77, described), (255, None)] {
            for (wants_stack, sets_context) in [(false, true), (true, false), (true, true)] {
                let cookie = CudaCookie {
                    function,
                    wants_stack,
                    sets_context,
                    description,
                };
                assert_eq!(CudaCookie::of_word(cookie.to_word()), cookie);
            }
        }
    }

    #[test]
    fn a_tracepoint_cookie_survives_packing() {
        let operand = |register, offset, width| {
            Some(Operand {
                register,
                offset,
                width,
            })
        };
        let many = [
            [
                operand(0, None, 8),
                operand(3, None, 1),
                operand(6, Some(-56), 8),
            ],
            [operand(15, Some(-1024), 4), operand(7, Some(1023), 2), None],
            [operand(5, None, 8), None, None],
            [None; 3],
        ];
        for (function, operands) in (7..).zip(many) {
            let cookie = TracepointCookie { function, operands };
            assert_eq!(TracepointCookie::of_word(cookie.to_word()), cookie);
        }
    }
}
