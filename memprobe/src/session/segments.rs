//! Readings of the allocator's segments: what its events do not say, which is the pool and stream of a segment and the
//! blocks that await an event. The process is not paused.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::allocator_reading::{AllocatorReading, ProcessAllocator};
use crate::event::{Action, DeviceIndex, Event, SegmentReading, Tgid, TimeNs};
use crate::torch::allocator::active::NoAllocator;
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
/// Shortest time from a reading to the next one that differs in active and requested bytes alone. In a program at work
/// they differ at each reading, and each reading has all segments.
const AMOUNTS_INTERVAL: Duration = Duration::from_secs(10);
/// Live blocks from which on a reading has a thread of its own: so many take some 25 ms.
const MANY_BLOCKS: u64 = 1 << 15;

/// Reads the segments of one process, at most once a second and only after its events changed something.
pub(super) struct SegmentReader {
    allocator: ProcessAllocator,
    reading: Option<JoinHandle<AllocatorReading<SegmentTables>>>,
    /// Live blocks, as far as events tell.
    live: u64,
    /// True if an event came since the last reading.
    has_changed: bool,
    due: Option<Instant>,
    pause: Duration,
    /// Latest readings in a row during which the tables changed.
    changed: u32,
    /// The reading that was taken last.
    last: Option<Arc<SegmentReading>>,
    /// Age of the last reading from which on one with other amounts follows.
    amounts_interval: Duration,
    /// True if this allocator cannot be read: that was said once.
    is_refused: bool,
}

impl SegmentReader {
    pub(super) fn of(tgid: Tgid) -> Self {
        Self {
            allocator: ProcessAllocator::of(tgid),
            reading: None,
            live: 0,
            has_changed: false,
            due: None,
            pause: FIRST_PAUSE,
            changed: 0,
            last: None,
            amounts_interval: AMOUNTS_INTERVAL,
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
            match memory.action {
                Action::Held | Action::Alloc => self.live += 1,
                Action::Free => self.live = self.live.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// True while a thread reads. Later events must wait for the reading, which enters the stream at its moment.
    pub(super) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Gives up the reading in progress, if there is one: events cannot wait for it.
    pub(super) fn give_up_reading(&mut self) {
        if self.reading.take().is_some() {
            self.has_changed = true;
            self.due = Some(Instant::now() + INTERVAL);
        }
    }

    /// Reads if it is time to, or takes the result of a thread. Returns a reading that differs from the last one. What
    /// differs in amounts alone follows the last one after [`AMOUNTS_INTERVAL`].
    pub(super) fn read_if_due(
        &mut self,
        torch: Option<&str>,
        now: Instant,
    ) -> Option<Arc<SegmentReading>> {
        if let Some(reading) = self.reading.take_if(|reading| reading.is_finished()) {
            let reading = self.allocator.join(reading);
            return self.conclude(reading);
        }
        let is_due = self.due.is_some_and(|due| due <= now);
        if self.is_reading() || !is_due || !self.has_changed || self.is_refused {
            return None;
        }
        if self.live < MANY_BLOCKS {
            return self.read(torch);
        }
        self.allocator.version = torch.map(str::to_owned);
        self.reading = self.allocator.begin(segments::read).ok();
        if self.reading.is_none() {
            self.due = Some(now + INTERVAL);
        }
        None
    }

    /// Reads once more, at the end of a recording.
    pub(super) fn read_last(&mut self, torch: Option<&str>) -> Option<Arc<SegmentReading>> {
        if self.due.is_none() || self.is_refused {
            return None;
        }
        self.amounts_interval = Duration::ZERO;
        let begun = self.reading.take();
        let begun = begun.map(|reading| self.allocator.join(reading));
        let mut reading = begun.and_then(|reading| self.conclude(reading));
        // Records that are still in the ring buffer may have changed something.
        self.has_changed = true;
        let end = Instant::now() + LAST_READING;
        loop {
            // A reading that only says why none was whole does not end the attempts.
            reading = self.read(torch).or(reading);
            if self.changed == 0 || Instant::now() >= end {
                return reading;
            }
        }
    }

    fn read(&mut self, torch: Option<&str>) -> Option<Arc<SegmentReading>> {
        self.allocator.version = torch.map(str::to_owned);
        let reading = self.allocator.read(segments::read);
        self.conclude(reading)
    }

    fn conclude(
        &mut self,
        reading: AllocatorReading<SegmentTables>,
    ) -> Option<Arc<SegmentReading>> {
        let AllocatorReading {
            result: tables,
            time,
            took: cost,
            ..
        } = reading;
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
            tgid: self.allocator.tgid(),
            devices,
            unread,
        };
        if !unread_or_new(&reading) || !self.differs(&reading) {
            return None;
        }
        let reading = Arc::new(reading);
        self.last = Some(Arc::clone(&reading));
        Some(reading)
    }

    /// False if the last reading says the same, or differs in amounts alone and is recent.
    fn differs(&mut self, reading: &SegmentReading) -> bool {
        let Some(last) = &self.last else { return true };
        if !last.has_same_segments(reading) {
            return true;
        }
        if last.has_same_amounts(reading) {
            return false;
        }
        let age = Duration::from_nanos(reading.time.0.saturating_sub(last.time.0));
        let is_due = age >= self.amounts_interval;
        // It is read again then, even if no event comes.
        self.has_changed |= !is_due;
        is_due
    }

    /// Returns a reading that only says that none was whole.
    fn always_changed(&mut self, time: TimeNs) -> Arc<SegmentReading> {
        let reason =
            format!("the allocator's tables changed during each of {REPORTED_CHANGES} readings");
        let reading = Arc::new(SegmentReading {
            time,
            tgid: self.allocator.tgid(),
            devices: Vec::new(),
            unread: Some(reason.into()),
        });
        self.last = Some(Arc::clone(&reading));
        reading
    }
}

/// False for a process that has no segment yet, which is no news.
fn unread_or_new(reading: &SegmentReading) -> bool {
    reading.unread.is_some() || !reading.devices.is_empty()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::event::{Bytes, DeviceSegments, Totals};

    /// A reader of this process, which has no allocator, after so many blocks.
    fn reader(live: u64) -> SegmentReader {
        let mut reader = SegmentReader::of(Tgid(std::process::id()));
        reader.live = live;
        reader.begin(Instant::now());
        reader
    }

    /// A device without segments whose program requested some bytes.
    fn devices(requested: u64) -> Vec<DeviceSegments> {
        vec![DeviceSegments {
            device: DeviceIndex(0),
            totals: Totals::default(),
            active: Bytes(512),
            requested: Bytes(requested),
            segments: Vec::new(),
            awaiting: Vec::new(),
        }]
    }

    /// Looks at a reader that is due, and asserts that it has read then.
    fn assert_reads(reader: &mut SegmentReader) {
        assert_eq!(reader.read_if_due(None, Instant::now()), None);
        assert!(!reader.is_reading());
        assert!(!reader.has_changed);
    }

    #[test]
    fn few_blocks_are_read_at_once() {
        assert_reads(&mut reader(MANY_BLOCKS - 1));
    }

    #[test]
    fn many_blocks_are_read_on_a_thread() {
        let mut reader = reader(MANY_BLOCKS);
        assert_eq!(reader.read_if_due(None, Instant::now()), None);
        assert!(reader.is_reading());
        while !reader.reading.as_ref().is_some_and(JoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(1));
        }
        assert_reads(&mut reader);
    }

    #[test]
    fn amounts_follow_later_and_at_the_end() {
        let read = |requested, time| {
            let mut reading = AllocatorReading::of(SegmentTables::Whole(devices(requested)));
            reading.time = TimeNs(time);
            reading
        };
        let mut reader = reader(0);
        let mut takes = |requested, time| reader.conclude(read(requested, time)).is_some();
        assert!(takes(5, 0));
        assert!(!takes(5, 1_000_000_000));
        assert!(!takes(6, 2_000_000_000));
        assert!(takes(6, 10_000_000_000));
        assert!(!takes(7, 11_000_000_000));
        // An idle program is read again.
        assert!(reader.has_changed);
        reader.read_last(None);
        let last = reader.conclude(read(7, 11_100_000_000)).expect("a reading");
        assert_eq!(last.devices[0].requested, Bytes(7));
    }

    #[test]
    fn a_reading_that_is_given_up_is_made_again() {
        let mut reader = reader(MANY_BLOCKS);
        reader.read_if_due(None, Instant::now());
        reader.give_up_reading();
        assert!(!reader.is_reading());
        reader.read_if_due(None, Instant::now() + INTERVAL);
        assert!(reader.is_reading());
    }

    #[test]
    fn the_end_of_a_recording_waits_for_the_reading() {
        let mut reader = reader(MANY_BLOCKS);
        reader.read_if_due(None, Instant::now());
        assert_eq!(reader.read_last(None), None);
        assert!(!reader.is_reading());
    }
}
