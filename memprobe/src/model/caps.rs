//! How much the model keeps at most, and what it refused because of that.

/// How much the model keeps at most. What is beyond is counted in [`Refused`], never forgotten in
/// silence: a refused block shows as unaccounted bytes, a refused stack as a row of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Live blocks, of all devices together; about 50 bytes each.
    pub blocks: usize,
    /// Defined stacks.
    pub stacks: usize,
    /// Frames of all defined stacks together; 40 bytes each, without the texts that they share.
    pub frames: usize,
    /// Pairs of a device and a stack that allocated on it; about 500 bytes each.
    pub holders: usize,
    /// Named threads.
    pub threads: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            blocks: 32_000_000,
            stacks: 100_000,
            frames: 2_000_000,
            holders: 100_000,
            threads: 65_536,
        }
    }
}

/// What was refused because a store was full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refused {
    /// Blocks; their bytes are part of `unaccounted`.
    pub blocks: u64,
    /// Definitions of stacks, and first uses of a stack on a device. Allocations of such a stack
    /// stand in the row "too many stacks".
    pub stacks: u64,
    /// Names of threads.
    pub threads: u64,
}

/// What is left of the caps that the devices share.
#[derive(Debug)]
pub(super) struct Budget {
    blocks: usize,
    holders: usize,
    pub(super) refused: Refused,
}

impl Budget {
    pub(super) fn new(caps: &Caps) -> Self {
        Self {
            blocks: caps.blocks,
            holders: caps.holders,
            refused: Refused::default(),
        }
    }

    /// Whether one more block may be kept.
    pub(super) fn take_block(&mut self) -> bool {
        take(&mut self.blocks, &mut self.refused.blocks)
    }

    /// A kept block is gone.
    pub(super) fn give_block_back(&mut self) {
        self.blocks += 1;
    }

    /// Whether one more holder may be kept.
    pub(super) fn take_holder(&mut self) -> bool {
        take(&mut self.holders, &mut self.refused.stacks)
    }
}

fn take(left: &mut usize, refused: &mut u64) -> bool {
    match left.checked_sub(1) {
        Some(rest) => {
            *left = rest;
            true
        }
        None => {
            *refused += 1;
            false
        }
    }
}
