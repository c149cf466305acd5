//! Baseline: the blocks live before the first event, read from the running process and put first.

use std::thread::JoinHandle;

use super::allocator_reading::{AllocatorReading, ProcessAllocator};
use crate::event::{AtAttach, DeviceIndex, Event, Tgid, TimeNs};
use crate::torch::allocator::reconcile::Reconciler;
use crate::torch::allocator::tables::{self, AllocatorTables, TablesError};
use crate::view::clean;

/// Reason for a process without an allocator of PyTorch.
const UNLISTED: &str = "CUDA lists no memory of a process";

/// Attempts to read consistent tables: a running process may change them meanwhile.
const ATTEMPTS: u32 = 40;

/// Sentence for people if `event` says that the baseline's blocks are one row.
pub(super) fn notice(event: &Event) -> Option<String> {
    let Event::AtAttach(AtAttach {
        unread: Some(reason),
        device,
        ..
    }) = event
    else {
        return None;
    };
    // Of the CPU it is never known, and every view says so.
    if *device == Some(DeviceIndex::CPU) {
        return None;
    }
    Some(format!(
        "memory from before attach cannot be told block by block: {}",
        clean(reason)
    ))
}

/// Reads what a process held when its probes were in place, and keeps its events back until then.
///
/// A reading of millions of blocks takes seconds, so it has a thread of its own: events are taken meanwhile.
pub(super) struct BaselineReader {
    allocator: ProcessAllocator,
    reconciler: Reconciler,
    reading: Option<JoinHandle<AllocatorReading<AllocatorTables>>>,
    tables: Result<AllocatorTables, TablesError>,
    /// When the tables had been read.
    read: TimeNs,
    /// Attempts so far; 0 until the probes are in place.
    attempts: u32,
    has_events: bool,
    has_given_up: bool,
}

impl BaselineReader {
    pub(super) fn of(tgid: Tgid) -> Self {
        let since = super::now();
        Self {
            allocator: ProcessAllocator::of(tgid),
            reconciler: Reconciler::new(tgid, since),
            reading: None,
            tables: Ok(AllocatorTables::default()),
            read: since,
            attempts: 0,
            has_events: false,
            has_given_up: false,
        }
    }

    /// Begins the first reading, once the probes are in place. `version` is PyTorch's.
    pub(super) fn begin(&mut self, version: Option<String>) {
        if self.attempts == 0 {
            self.allocator.version = version;
            self.begin_reading();
        }
    }

    /// Settles at once, for a process whose memory from before attach nothing lists.
    pub(super) fn settle_unlisted(&mut self) {
        if !self.reconciler.is_settled() {
            self.reconciler.give_up(None, UNLISTED);
        }
    }

    /// True if the probes are in place and the baseline is not settled yet.
    pub(super) fn is_reading(&self) -> bool {
        self.attempts > 0 && !self.reconciler.is_settled()
    }

    /// True if the baseline is known, or is one row.
    pub(super) fn is_settled(&self) -> bool {
        self.reconciler.is_settled()
    }

    /// True if it has nothing more to say of any event.
    pub(super) fn is_over(&self) -> bool {
        !self.has_given_up && self.reconciler.is_over()
    }

    /// True if the blocks could not be read.
    pub(super) fn has_given_up(&self) -> bool {
        self.has_given_up
    }

    fn begin_reading(&mut self) {
        self.attempts += 1;
        match self.allocator.begin(tables::read) {
            Ok(reading) => self.reading = Some(reading),
            Err(error) => self.tables = Err(error),
        }
    }

    /// Waits until the reading in progress ends, if there is one. Events from before its end may still be on their way.
    pub(super) fn wait_for_reading(&mut self) {
        if let Some(reading) = self.reading.take() {
            let reading = self.allocator.join(reading);
            log::debug!("the allocator's blocks: {:?}", reading.took);
            (self.tables, self.read) = (reading.result, reading.time);
        }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.has_events = true;
        self.reconciler.push(event);
    }

    /// Settles without reading: by its first event, nothing came before.
    pub(super) fn settle_with_nothing(&mut self) {
        if !self.reconciler.is_settled() {
            // Where something does not add up after all, the tables say what.
            if self.reconciler.settle(&AllocatorTables::default()).is_ok() {
                self.reading = None;
            }
        }
    }

    /// Goes on, after events were taken; `all` says that none is left that had happened by then.
    pub(super) fn settle(&mut self, all: bool) {
        if self.reconciler.is_settled() {
            return;
        }
        if let Some(reading) = &self.reading {
            if reading.is_finished() || self.reconciler.is_full() {
                self.wait_for_reading();
            }
            // The events that were taken last may be older than the tables.
            return;
        }
        let reconciler = &mut self.reconciler;
        if reconciler.is_full() {
            return self.give_up("too many events during the reading");
        }
        if reconciler.has_lost() {
            return self.give_up("events were lost during the reading");
        }
        if self.attempts == 0 {
            return;
        }
        // Until then there may be events that the tables know of already.
        if !all && reconciler.latest() <= self.read {
            return;
        }
        let wrong = match &self.tables {
            Ok(tables) => match reconciler.settle(tables) {
                Ok(()) => return self.forget_tables(),
                Err(mismatch) => mismatch.to_string(),
            },
            Err(reason) => reason.to_string(),
        };
        if self.attempts < ATTEMPTS {
            self.begin_reading();
        } else {
            self.give_up(&wrong);
        }
    }

    /// Goes on without, if need be: the process or the recording ends, or it cannot be probed.
    pub(super) fn finish(&mut self, reason: &str) {
        if self.attempts == 0 && !self.has_events {
            // Neither probed nor heard of: there is nothing to say of it.
            return;
        }
        self.wait_for_reading();
        self.settle(true);
        if !self.reconciler.is_settled() {
            self.give_up(reason);
        }
    }

    fn give_up(&mut self, reason: &str) {
        self.has_given_up = true;
        let tables = self.tables.as_ref().ok();
        self.reconciler.give_up(tables, reason);
        self.forget_tables();
    }

    /// Frees the tables once the baseline is settled: they have an entry for each block.
    fn forget_tables(&mut self) {
        self.tables = Ok(AllocatorTables::default());
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.reconciler.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Action, Address, Bytes, MemoryEvent, PurposeId, StackId, Tid, Totals};
    use crate::torch::allocator::reconcile::MAX_EVENTS;
    use crate::torch::allocator::tables::{DeviceCounters, HeldBlock};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    const TGID: Tgid = Tgid(7);
    const BLOCK: (Address, Bytes) = (Address(0x7f00_0000_0000), Bytes(512));
    const TOTALS: Totals = Totals {
        allocated: BLOCK.1,
        reserved: Bytes(2 << 20),
    };

    /// A process with one block, which it may free.
    fn tables() -> AllocatorTables {
        AllocatorTables {
            devices: vec![DeviceCounters {
                device: DeviceIndex(0),
                totals: TOTALS,
                peak: TOTALS,
                steady: true,
            }],
            blocks: vec![HeldBlock {
                addr: BLOCK.0,
                size: BLOCK.1,
                requested: BLOCK.1,
                device: DeviceIndex(0),
                stream: 0,
            }],
            gone: Vec::new(),
        }
    }

    fn free() -> Event {
        Event::Memory(MemoryEvent {
            time: super::super::now(),
            tgid: TGID,
            tid: Tid(7),
            action: Action::Free,
            addr: BLOCK.0,
            size: BLOCK.1,
            device: Some(DeviceIndex(0)),
            totals: Some(Totals {
                allocated: Bytes(0),
                ..TOTALS
            }),
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            call: None,
        })
    }

    /// A reader whose first reading ends when something is sent.
    fn reading() -> (BaselineReader, mpsc::Sender<AllocatorTables>) {
        let (sender, tables) = mpsc::channel();
        let mut reader = BaselineReader::of(TGID);
        reader.attempts = ATTEMPTS;
        reader.reading = Some(thread::spawn(move || {
            AllocatorReading::of(tables.recv().unwrap())
        }));
        (reader, sender)
    }

    fn wait_until_read(reader: &BaselineReader) {
        while reader
            .reading
            .as_ref()
            .is_some_and(|reading| !reading.is_finished())
        {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn actions(reader: &mut BaselineReader) -> Vec<Action> {
        let events = std::iter::from_fn(|| reader.pop());
        let actions = events.filter_map(|event| match event {
            Event::Memory(memory) => Some(memory.action),
            _ => None,
        });
        actions.collect()
    }

    #[test]
    fn events_are_taken_while_the_tables_are_read() {
        let (mut reader, sender) = reading();
        reader.settle(true);
        reader.push(free());
        reader.settle(true);
        assert!(reader.is_reading());
        sender.send(AllocatorTables::default()).unwrap();
        wait_until_read(&reader);
        reader.settle(true);
        reader.settle(true);
        assert_eq!(actions(&mut reader), [Action::Held, Action::Free]);
    }

    #[test]
    fn tables_wait_for_the_events_from_before_their_end() {
        let (mut reader, sender) = reading();
        // The block is free already, and its event is still on its way.
        sender.send(AllocatorTables::default()).unwrap();
        wait_until_read(&reader);
        reader.settle(true);
        assert!(reader.is_reading());
        reader.push(free());
        reader.settle(true);
        assert_eq!(actions(&mut reader), [Action::Held, Action::Free]);
    }

    #[test]
    fn the_end_waits_for_the_reading_in_progress() {
        let (mut reader, sender) = reading();
        let end = thread::spawn(move || {
            reader.finish("the process has ended");
            reader
        });
        sender.send(tables()).unwrap();
        let mut reader = end.join().unwrap();
        assert_eq!(actions(&mut reader), [Action::Held]);
        assert!(!reader.has_given_up());
    }

    #[test]
    fn too_many_events_wait_for_the_reading_in_progress_and_end_it() {
        let (mut reader, sender) = reading();
        for _ in 0..MAX_EVENTS {
            reader.push(free());
        }
        sender.send(tables()).unwrap();
        reader.settle(false);
        assert!(reader.is_reading());
        reader.settle(false);
        assert!(reader.has_given_up());
    }
}
