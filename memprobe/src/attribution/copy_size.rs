//! Estimates of the memory that copies of the analyses take.

use std::sync::Arc;

use super::device::DeviceAttribution;
use super::ledger::AttributionLedger;
use crate::ledger::CopySize;

/// Bytes of a stack: its properties, its origin, and what was learned of it.
const STACK: u64 = 160;

impl CopySize for AttributionLedger {
    fn copy_bytes(&self) -> u64 {
        // Copies share the finished intervals. Up to half of their table may be unused.
        let intervals = self.intervals.stored() * 2 * size_of::<Arc<()>>();
        let devices = self.devices.values().map(DeviceAttribution::copy_bytes);
        let stacks = self.origins.len() as u64 * STACK;
        intervals as u64 + stacks + self.blocks.copy_bytes() + devices.sum::<u64>()
    }
}
