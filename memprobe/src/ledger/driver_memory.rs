//! Memory of the GPUs as the driver counts it, and what that leaves beside the memory of known calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::event::{Bytes, DeviceIndex, DriverReading, TimeNs};

/// Answer of the driver about one device, joined with the ledger at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverMemoryState {
    /// Time of the answer.
    pub time: TimeNs,
    /// Memory of the GPU.
    pub total: Bytes,
    /// Bytes of all processes.
    pub used: Bytes,
    /// Bytes of this process; `None` if the driver does not say.
    pub process: Option<Bytes>,
    /// Bytes of this process that no known allocation accounts for: CUDA's context and modules, memory from before
    /// attach. Negative if the allocator counts memory as reserved that CUDA does not give it.
    pub unattributed: Option<i64>,
    /// True if no allocation changed while the driver was asked.
    pub is_exact: bool,
}

/// Answers of the driver by device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverMemories {
    pub devices: BTreeMap<DeviceIndex, DriverMemoryState>,
    /// Reason why devices may be missing.
    pub unread: Option<Arc<str>>,
    /// Last change of the memory that CUDA has given out.
    pub changed: TimeNs,
}

impl DriverMemories {
    /// Takes an answer. `known` returns the bytes of known allocations on a device.
    pub(super) fn read(&mut self, reading: &DriverReading, known: impl Fn(DeviceIndex) -> i64) {
        self.unread.clone_from(&reading.unread);
        for memory in &reading.devices {
            let is_exact = self.changed < reading.asked;
            let process = memory.process.map(|process| saturated(process.0));
            let now = process.map(|process| process.saturating_sub(known(memory.device)));
            let before = self.devices.get(&memory.device);
            let before = before.filter(|before| before.is_exact && !is_exact);
            let (unattributed, is_exact) = match before {
                Some(before) => (before.unattributed.or(now), true),
                None => (now, is_exact),
            };
            let state = DriverMemoryState {
                time: reading.time,
                total: memory.total,
                used: memory.used,
                process: memory.process,
                unattributed,
                is_exact,
            };
            self.devices.insert(memory.device, state);
        }
    }
}

/// Bytes as a signed number.
pub fn saturated(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{DriverCount, Tgid};

    const CUDA: DeviceIndex = DeviceIndex(0);

    fn reading(asked: u64, process: u64) -> DriverReading {
        DriverReading {
            time: TimeNs(asked + 5),
            asked: TimeNs(asked),
            tgid: Tgid(1),
            devices: vec![DriverCount {
                device: CUDA,
                total: Bytes(1000),
                used: Bytes(900),
                process: Some(Bytes(process)),
            }],
            unread: None,
        }
    }

    #[test]
    fn a_change_during_the_question_does_not_replace_an_exact_remainder() {
        let mut memories = DriverMemories::default();
        let mut read = |asked, process, changed, known| {
            memories.changed = TimeNs(changed);
            memories.read(&reading(asked, process), |_| known);
            let state = memories.devices[&CUDA];
            (state.process, state.unattributed, state.is_exact)
        };
        assert_eq!(read(10, 300, 12, 250), (Some(Bytes(300)), Some(50), false));
        assert_eq!(read(20, 320, 15, 280), (Some(Bytes(320)), Some(40), true));
        assert_eq!(read(30, 400, 31, 280), (Some(Bytes(400)), Some(40), true));
        assert_eq!(read(50, 200, 31, 280), (Some(Bytes(200)), Some(-80), true));
    }
}
