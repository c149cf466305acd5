//! Estimates of the memory that a copy of a state takes.

use super::Ledger;
use super::analysis::AnalyzedLedger;
use super::device::DeviceLedger;
use super::snapshot::TotalsPoint;

/// Bytes of a live block: its fields and its place in the index of addresses.
const BLOCK: u64 = 48;

/// Bytes of an interned stack in its tables; copies share the stack itself.
const STACK: u64 = 128;

/// Steps of the timelines of a device.
const TIMELINE_POINTS: u64 = super::MAX_POINTS as u64 + 3 * 400;

/// A state whose copies have a known size.
pub trait CopySize {
    /// Estimates the bytes that a copy takes, without what it shares with the original.
    fn copy_bytes(&self) -> u64;
}

impl CopySize for () {
    fn copy_bytes(&self) -> u64 {
        0
    }
}

impl<A: CopySize> CopySize for Option<A> {
    fn copy_bytes(&self) -> u64 {
        self.as_ref().map_or(0, CopySize::copy_bytes)
    }
}

impl<A: CopySize> CopySize for AnalyzedLedger<A> {
    fn copy_bytes(&self) -> u64 {
        self.ledger
            .copy_bytes()
            .saturating_add(self.analyses.copy_bytes())
    }
}

impl CopySize for Ledger {
    fn copy_bytes(&self) -> u64 {
        let blocks = self.store.slots() as u64 * BLOCK;
        let stacks = self.stacks().count() as u64 * STACK;
        let devices = self.devices.values().map(DeviceLedger::copy_bytes);
        blocks + stacks + devices.sum::<u64>() + self.baseline.copy_bytes()
    }
}

impl DeviceLedger {
    fn copy_bytes(&self) -> u64 {
        self.call_sites.copy_bytes() + TIMELINE_POINTS * size_of::<TotalsPoint>() as u64
    }
}
