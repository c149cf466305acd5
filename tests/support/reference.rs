//! PyTorch's own record of a workload (written by `workloads/reference.py`).

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Record of a whole run.
#[derive(Debug, Deserialize)]
pub struct Reference {
    pub torch: String,
    pub python: String,
    /// PID in the target's own namespace.
    pub pid: u32,
    /// Exit status of the workload.
    pub exit_status: i32,
    /// End of the recording, in nanoseconds of `CLOCK_MONOTONIC`.
    pub end_ns: u64,
    /// Events of each device, by ordinal.
    pub devices: Vec<DeviceEvents>,
    /// Totals at each point that the workload marked, for every device.
    pub checkpoints: Vec<Checkpoint>,
    /// State of each device at the end, by ordinal.
    pub r#final: Vec<FinalState>,
}

/// Events on a device, oldest first.
#[derive(Debug, Deserialize)]
pub struct DeviceEvents {
    /// Device ordinal.
    pub device: u8,
    pub events: Vec<TraceEvent>,
}

/// An entry of PyTorch's history.
#[derive(Debug, Deserialize)]
pub struct TraceEvent {
    /// `alloc`, `free_requested`, `free_completed`, `segment_alloc`, `segment_free`, `oom`, ...
    pub action: String,
    /// Address of the block or segment.
    pub addr: u64,
    /// Requested bytes (not rounded), or bytes of the segment.
    pub size: u64,
    /// Microseconds of wall-clock time.
    pub time_us: u64,
    /// Innermost first.
    pub frames: Vec<TraceFrame>,
}

/// A Python frame.
#[derive(Debug, Deserialize, Clone, PartialEq, Eq, Hash)]
pub struct TraceFrame {
    /// `co_filename`.
    pub file: String,
    pub line: u32,
    /// `co_name`.
    pub function: String,
}

/// Totals of the allocator at a marked point, in bytes.
#[derive(Debug, Deserialize)]
pub struct Checkpoint {
    /// The workload's label of the point.
    pub label: String,
    /// Device ordinal.
    pub device: u8,
    /// `memory_allocated()`.
    pub allocated: u64,
    /// `memory_reserved()`.
    pub reserved: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub monotonic_ns: u64,
}

/// A device after the workload.
#[derive(Debug, Deserialize)]
pub struct FinalState {
    /// Device ordinal.
    pub device: u8,
    /// `memory_allocated()`.
    pub allocated: u64,
    /// Requested bytes of the allocated ones.
    pub requested: u64,
    /// `memory_reserved()`.
    pub reserved: u64,
    /// Live blocks.
    pub live: Vec<LiveBlock>,
    /// `memory_stats()`; some are -1 for "no limit".
    pub stats: BTreeMap<String, i64>,
}

/// A live block.
#[derive(Debug, Deserialize)]
pub struct LiveBlock {
    pub addr: u64,
    /// Bytes after rounding.
    pub size: u64,
    /// Requested bytes.
    pub requested: u64,
}

impl Reference {
    /// Reads a file written by `reference.py`.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is no reference", path.display()))
    }

    /// Replays every device's events and compares the result with the allocator's own totals.
    pub fn check_ledger(&self) -> Result<()> {
        for (events, end) in self.devices.iter().zip(&self.r#final) {
            check_device(&events.events, end).with_context(|| format!("device {}", end.device))?;
        }
        Ok(())
    }

    /// Counts the events of this kind on all devices.
    pub fn count(&self, action: &str) -> usize {
        let events = self.devices.iter().flat_map(|device| &device.events);
        events.filter(|event| event.action == action).count()
    }

    /// Returns the number of frames in the deepest stack.
    pub fn deepest_stack(&self) -> usize {
        let events = self.devices.iter().flat_map(|device| &device.events);
        events.map(|event| event.frames.len()).max().unwrap_or(0)
    }
}

fn check_device(events: &[TraceEvent], end: &FinalState) -> Result<()> {
    let mut blocks = BTreeMap::new();
    let mut segments = BTreeMap::new();
    for event in events {
        let (ledger, taken) = match event.action.as_str() {
            "alloc" => (&mut blocks, true),
            "free_requested" => (&mut blocks, false),
            "segment_alloc" => (&mut segments, true),
            "segment_free" => (&mut segments, false),
            _ => continue,
        };
        if taken {
            let before = ledger.insert(event.addr, event.size);
            ensure!(before.is_none(), "{:#x} was handed out twice", event.addr);
        } else {
            let size = ledger.remove(&event.addr);
            ensure!(
                size == Some(event.size),
                "{:#x} was freed as {}, not as {size:?}",
                event.addr,
                event.size
            );
        }
    }
    let live: BTreeMap<u64, u64> = end
        .live
        .iter()
        .map(|block| (block.addr, block.requested))
        .collect();
    ensure!(
        blocks == live,
        "blocks left: {} by the events, {} by the allocator",
        blocks.len(),
        live.len()
    );
    let requested: u64 = blocks.values().sum();
    ensure!(
        requested == end.requested,
        "requested: {requested} by the events, {}",
        end.requested
    );
    let allocated: u64 = end.live.iter().map(|block| block.size).sum();
    ensure!(
        allocated == end.allocated,
        "allocated: {allocated} by the blocks, {}",
        end.allocated
    );
    let reserved: u64 = segments.values().sum();
    ensure!(
        reserved == end.reserved,
        "reserved: {reserved} by the events, {}",
        end.reserved
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(action: &str, addr: u64, size: u64) -> TraceEvent {
        TraceEvent {
            action: action.to_owned(),
            addr,
            size,
            time_us: 0,
            frames: Vec::new(),
        }
    }

    fn one_live_block() -> FinalState {
        FinalState {
            device: 0,
            allocated: 512,
            requested: 100,
            reserved: 2048,
            live: vec![LiveBlock {
                addr: 16,
                size: 512,
                requested: 100,
            }],
            stats: BTreeMap::new(),
        }
    }

    #[test]
    fn events_that_add_up_pass() {
        let events = [
            event("segment_alloc", 16, 2048),
            event("alloc", 16, 700),
            event("free_requested", 16, 700),
            event("free_completed", 16, 700),
            event("alloc", 16, 100),
        ];
        check_device(&events, &one_live_block()).unwrap();
    }

    #[test]
    fn a_missing_or_wrong_event_is_found() {
        let segment = || event("segment_alloc", 16, 2048);
        let wrong = [
            vec![segment()],
            vec![segment(), event("alloc", 16, 101)],
            vec![segment(), event("alloc", 16, 100), event("alloc", 16, 100)],
            vec![
                segment(),
                event("alloc", 16, 100),
                event("free_requested", 16, 50),
            ],
            vec![event("alloc", 16, 100)],
        ];
        for events in wrong {
            assert!(
                check_device(&events, &one_live_block()).is_err(),
                "{events:?}"
            );
        }
    }
}
