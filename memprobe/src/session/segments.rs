//! Readings of the allocator's segments: what its events do not say, which is the pool and stream of a segment and the
//! blocks that await an event. The process is not paused.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::event::{Action, DeviceIndex, Event, SegmentReading, Tgid, TimeNs};
use crate::process::maps::Maps;
use crate::process::memory::ProcessMemory;
use crate::torch::allocator::active::{AllocatorVariable, NoAllocator};
use crate::torch::allocator::segments::{self, SegmentTables};
use crate::torch::allocator::tables::TablesError;

/// Shortest time between two readings.
const INTERVAL: Duration = Duration::from_secs(1);
/// Part of the time that readings may take: one in this number.
const SHARE: u32 = 100;
/// Pause after a reading during which the tables changed; it doubles up to [`INTERVAL`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Readings in a row that a change of the tables spoils, until that is said.
const REPORTED_CHANGES: u32 = 30;
/// Time for the last reading of a recording, if the tables change meanwhile. Events wait for it.
const LAST_READING: Duration = Duration::from_millis(200);

/// Reads the segments of one process, at most once a second and only after its events changed something.
pub(super) struct SegmentReader {
    memory: ProcessMemory,
    variable: Option<AllocatorVariable>,
    /// True if an event came since the last reading.
    has_changed: bool,
    due: Option<Instant>,
    pause: Duration,
    /// Latest readings in a row during which the tables changed.
    changed: u32,
    /// The reading that was taken last.
    last: Option<Arc<SegmentReading>>,
    /// True if this allocator cannot be read: that was said once.
    is_refused: bool,
}

impl SegmentReader {
    pub(super) fn of(tgid: Tgid) -> Self {
        Self {
            memory: ProcessMemory::new(tgid),
            variable: None,
            has_changed: false,
            due: None,
            pause: FIRST_PAUSE,
            changed: 0,
            last: None,
            is_refused: false,
        }
    }

    /// Lets the first reading begin: the blocks from before attach are known.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.due.is_none() && self.last.is_none() {
            self.due = Some(now);
            self.has_changed = true;
        }
    }

    /// Notes an event that goes on.
    pub(super) fn note(&mut self, event: &Event) {
        if let Event::Memory(memory) = event
            && memory.device != Some(DeviceIndex::CPU)
        {
            self.has_changed |= memory.action != Action::Held;
        }
    }

    /// Reads if it is time to. Returns a reading that differs from the last one.
    pub(super) fn read_if_due(
        &mut self,
        torch: Option<&str>,
        now: Instant,
    ) -> Option<Arc<SegmentReading>> {
        let is_due = self.due.is_some_and(|due| due <= now);
        if !is_due || !self.has_changed || self.is_refused {
            return None;
        }
        self.read(torch)
    }

    /// Reads once more, at the end of a recording.
    pub(super) fn read_last(&mut self, torch: Option<&str>) -> Option<Arc<SegmentReading>> {
        if self.due.is_none() || self.is_refused {
            return None;
        }
        // Records that are still in the ring buffer may have changed something.
        self.has_changed = true;
        let end = Instant::now() + LAST_READING;
        let mut reading = None;
        loop {
            // A reading that only says why none was whole does not end the attempts.
            reading = self.read(torch).or(reading);
            if self.changed == 0 || Instant::now() >= end {
                return reading;
            }
        }
    }

    fn read(&mut self, torch: Option<&str>) -> Option<Arc<SegmentReading>> {
        let start = Instant::now();
        let tables = self.tables(torch);
        let time = super::now();
        let cost = start.elapsed();
        log::debug!("the allocator's segments: {cost:?}");
        let (devices, unread) = match tables {
            Ok(SegmentTables::Whole(devices)) => (devices, None),
            Ok(SegmentTables::Changed) => {
                self.due = Some(Instant::now() + self.pause.max(cost * SHARE));
                self.pause = (self.pause * 2).min(INTERVAL);
                self.changed += 1;
                // Later readings may still succeed.
                return (self.changed == REPORTED_CHANGES).then(|| self.always_changed(time));
            }
            // The process ends, or its library is being loaded.
            Err(TablesError::Unreadable(_) | TablesError::NoAllocator(NoAllocator::Process(_))) => {
                self.changed = 0;
                self.due = Some(Instant::now() + INTERVAL);
                return None;
            }
            Err(error) => {
                self.is_refused = true;
                (Vec::new(), Some(error.to_string().into()))
            }
        };
        self.has_changed = false;
        self.changed = 0;
        self.pause = FIRST_PAUSE;
        self.due = Some(Instant::now() + INTERVAL.max(cost * SHARE));
        let reading = SegmentReading {
            time,
            tgid: self.memory.tgid(),
            devices,
            unread,
        };
        let is_known = |last: &Arc<SegmentReading>| last.has_same_segments(&reading);
        if !unread_or_new(&reading) || self.last.as_ref().is_some_and(is_known) {
            return None;
        }
        let reading = Arc::new(reading);
        self.last = Some(Arc::clone(&reading));
        Some(reading)
    }

    /// Returns a reading that only says that none was whole.
    fn always_changed(&mut self, time: TimeNs) -> Arc<SegmentReading> {
        let reason =
            format!("the allocator's tables changed during each of {REPORTED_CHANGES} readings");
        let reading = Arc::new(SegmentReading {
            time,
            tgid: self.memory.tgid(),
            devices: Vec::new(),
            unread: Some(reason.into()),
        });
        self.last = Some(Arc::clone(&reading));
        reading
    }

    fn tables(&mut self, torch: Option<&str>) -> Result<SegmentTables, TablesError> {
        let variable = match self.variable {
            Some(variable) => variable,
            None => {
                let tgid = self.memory.tgid();
                let maps =
                    Maps::of(tgid).map_err(|error| NoAllocator::Process(error.to_string()))?;
                match AllocatorVariable::find(tgid, &maps)? {
                    Some(variable) => *self.variable.insert(variable),
                    None => return Ok(SegmentTables::Whole(Vec::new())),
                }
            }
        };
        segments::read(&self.memory, variable, torch)
    }
}

/// False for a process that has no segment yet, which is no news.
fn unread_or_new(reading: &SegmentReading) -> bool {
    reading.unread.is_some() || !reading.devices.is_empty()
}
