//! Limits of the model's stores, and counters of refused entries.

/// Limits of the model's stores. [`Refused`] counts the excess: a refused block shows as
/// unaccounted bytes, a refused stack as a row of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Live blocks of all devices together; about 60 bytes each here, and 100 with the analyses of a live screen.
    pub blocks: usize,
    pub stacks: usize,
    /// Frames of all stacks together; 40 bytes each, without their shared strings.
    pub frames: usize,
    /// Pairs of a device and a stack that allocated on it; about 500 bytes each.
    pub holders: usize,
    pub threads: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            blocks: 32_000_000,
            stacks: 250_000,
            frames: 8_000_000,
            holders: 100_000,
            threads: 65_536,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refused {
    /// Blocks; their bytes are part of `unaccounted`.
    pub blocks: u64,
    /// Definitions of stacks, and first uses of a stack on a device. Allocations of such a stack
    /// appear in the row "too many stacks".
    pub stacks: u64,
    pub threads: u64,
}

/// Remaining capacity that the devices share.
#[derive(Clone, Debug)]
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

    /// Reserves room for a block; returns false and counts a refusal if the store is full.
    pub(super) fn take_block(&mut self) -> bool {
        take(&mut self.blocks, &mut self.refused.blocks)
    }

    pub(super) fn give_block_back(&mut self) {
        self.blocks += 1;
    }

    /// Reserves room for a call site; returns false and counts a refusal if the store is full.
    pub(super) fn take_call_site(&mut self) -> bool {
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
