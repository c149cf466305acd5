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
    /// A reading that events from before its moment may still precede.
    pending: Option<SegmentReading>,
    /// True if no earlier event is left, except those ready to be taken.
    is_next: bool,
    /// The reading that was emitted last.
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
            pending: None,
            is_next: false,
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

    /// Reads if it is time to. Returns true if there is a reading to emit.
    pub(super) fn read_if_due(&mut self, torch: Option<&str>, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if !is_due || !self.has_changed || self.is_refused || self.pending.is_some() {
            return false;
        }
        self.read(torch)
    }

    /// Reads once more, at the end of a recording.
    pub(super) fn read_last(&mut self, torch: Option<&str>) -> bool {
        if self.due.is_none() || self.is_refused {
            return false;
        }
        // Records that are still in the ring buffer may have changed something.
        self.has_changed = true;
        self.pending = None;
        let end = Instant::now() + LAST_READING;
        loop {
            if self.read(torch) || !self.has_changed || Instant::now() >= end {
                return self.pending.is_some();
            }
        }
    }

    fn read(&mut self, torch: Option<&str>) -> bool {
        let start = Instant::now();
        let tables = self.tables(torch);
        let time = super::now();
        let cost = start.elapsed();
        let (devices, unread) = match tables {
            Ok(SegmentTables::Whole(devices)) => (devices, None),
            Ok(SegmentTables::Changed) => {
                self.due = Some(Instant::now() + self.pause.max(cost * SHARE));
                self.pause = (self.pause * 2).min(INTERVAL);
                return false;
            }
            // The process ends, or its library is being loaded.
            Err(TablesError::Unreadable(_) | TablesError::NoAllocator(NoAllocator::Process(_))) => {
                self.due = Some(Instant::now() + INTERVAL);
                return false;
            }
            Err(error) => {
                self.is_refused = true;
                (Vec::new(), Some(error.to_string().into()))
            }
        };
        self.has_changed = false;
        self.pause = FIRST_PAUSE;
        self.due = Some(Instant::now() + INTERVAL.max(cost * SHARE));
        let reading = SegmentReading {
            time,
            tgid: self.memory.tgid(),
            devices,
            unread,
        };
        let is_known = |last: &Arc<SegmentReading>| last.has_same_segments(&reading);
        if unread_or_new(&reading) && !self.last.as_ref().is_some_and(is_known) {
            self.pending = Some(reading);
            self.is_next = false;
        }
        self.pending.is_some()
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

    /// Marks that every record from before the reading has become an event.
    pub(super) fn settle(&mut self, all: bool) {
        self.is_next |= all && self.pending.is_some();
    }

    /// Returns the reading if `next`, the next event in order, comes after it.
    pub(super) fn take_before(&mut self, next: Option<&Event>) -> Option<Event> {
        let pending = self.pending.as_ref()?;
        let is_later = match next {
            None => self.is_next,
            Some(next) => time(next).is_some_and(|time| time > pending.time),
        };
        if !is_later {
            return None;
        }
        let reading = Arc::new(self.pending.take()?);
        self.last = Some(Arc::clone(&reading));
        Some(Event::Segments(reading))
    }

    /// True if a reading waits for earlier events.
    pub(super) const fn is_pending(&self) -> bool {
        self.pending.is_some()
    }
}

/// False for a process that has no segment yet, which is no news.
fn unread_or_new(reading: &SegmentReading) -> bool {
    reading.unread.is_some() || !reading.devices.is_empty()
}

/// Time of an event that has a place in the stream.
pub(super) fn time(event: &Event) -> Option<TimeNs> {
    match event {
        Event::Memory(memory) => Some(memory.time),
        Event::PhaseMark(mark) => Some(mark.time),
        _ => None,
    }
}
