//! End of a recording whose processes run on: later events stay out, also while names are read.
//!
//! The last names are read after the end. A block that was freed or allocated in between may be another block by then,
//! so only untouched blocks get a label.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::event::{Address, BlockLabels, DeviceIndex, Event, Tgid, TimeNs};
use crate::session::{HostEvent, HostItem};

/// Most blocks whose changes after the end are remembered. Beyond them nothing is labeled.
const MAX_TOUCHED: usize = 1 << 20;

/// Allocator blocks of processes: they are equal to those of [`BlockLabels`] by device and address.
type BlockKey = (Tgid, Option<DeviceIndex>, Address);

#[derive(Debug, Default)]
pub(super) struct Cutoff {
    end: Option<TimeNs>,
    /// True once the losses of the recording were counted: later ones are not its own.
    is_over: bool,
    /// Blocks with events after the end, and the time of the first one.
    touched: HashMap<BlockKey, TimeNs>,
    /// True if changes after the end may be unknown.
    has_missed: bool,
}

/// Decision about an event of the stream.
#[derive(Debug)]
pub(super) enum Filtered {
    Event(HostEvent),
    /// After the end; with its time, if it has one.
    LeftOut(Option<TimeNs>),
}

impl Cutoff {
    pub(super) const fn end_at(&mut self, end: TimeNs) {
        self.end = Some(end);
    }

    /// True for an event of memory from before the end.
    pub(super) fn passes(&self, event: &HostEvent) -> bool {
        let HostItem::Event(Event::Memory(memory)) = &event.item else {
            return false;
        };
        self.end.is_none_or(|end| memory.time <= end)
    }

    /// Marks that every loss up to the end has been passed on.
    pub(super) const fn is_over(&mut self) {
        self.is_over = true;
    }

    pub(super) fn filter(&mut self, event: HostEvent) -> Filtered {
        let Some(end) = self.end else {
            return Filtered::Event(event);
        };
        let mut event = event;
        // The last reading of segments comes after the end of a recording with a duration.
        if let HostItem::Event(Event::Segments(reading)) = &mut event.item
            && reading.time > end
        {
            Arc::make_mut(reading).time = end;
        }
        if let HostItem::Event(Event::Driver(reading)) = &mut event.item
            && reading.time > end
        {
            Arc::make_mut(reading).time = end;
        }
        if let HostItem::Event(Event::BaselineLabels(labels)) = &mut event.item
            && labels.time > end
        {
            Arc::make_mut(labels).time = end;
        }
        let time = match &event.item {
            HostItem::Event(Event::Memory(memory)) => memory.time,
            HostItem::Event(Event::PhaseMark(mark)) => mark.time,
            HostItem::Event(Event::AtAttach(found)) => found.time,
            HostItem::Event(Event::Capture(change)) => change.time,
            HostItem::Event(Event::Loss(_)) if self.is_over => {
                self.has_missed = true;
                return Filtered::LeftOut(None);
            }
            HostItem::SnapshotPoint(_) if self.is_over => return Filtered::LeftOut(None),
            _ => return Filtered::Event(event),
        };
        if time <= end {
            return Filtered::Event(event);
        }
        if let HostItem::Event(Event::Memory(memory)) = &event.item {
            self.touch((event.tgid, memory.device, memory.addr), time);
        }
        Filtered::LeftOut(Some(time))
    }

    fn touch(&mut self, block: BlockKey, time: TimeNs) {
        if self.touched.len() >= MAX_TOUCHED && !self.touched.contains_key(&block) {
            self.has_missed = true;
            return;
        }
        self.touched.entry(block).or_insert(time);
    }

    /// Restricts labels read after the end to the blocks that did not change since, and dates them to the end.
    /// Fails if the changes are unknown.
    pub(super) fn restrict(&self, labels: &mut BlockLabels) -> anyhow::Result<()> {
        let Some(end) = self.end.filter(|end| labels.time > *end) else {
            return Ok(());
        };
        if self.has_missed {
            anyhow::bail!("events were lost after the recording, while its objects were read");
        }
        let (tgid, read_at) = (labels.tgid, labels.time);
        labels.blocks.retain(|block| {
            let touched = self.touched.get(&(tgid, Some(block.device), block.addr));
            touched.is_none_or(|time| *time > read_at)
        });
        labels.time = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{
        Action, Bytes, LabeledBlock, Losses, MemoryEvent, PurposeId, StackId, Tid, Totals,
    };

    const TGID: Tgid = Tgid(7);
    const CUDA: DeviceIndex = DeviceIndex(0);

    fn event(item: HostItem) -> HostEvent {
        HostEvent { tgid: TGID, item }
    }

    fn free(time: u64, addr: u64) -> HostEvent {
        event(HostItem::Event(Event::Memory(MemoryEvent {
            time: TimeNs(time),
            tgid: TGID,
            tid: Tid(7),
            action: Action::Free,
            addr: Address(addr),
            size: Bytes(512),
            device: Some(CUDA),
            totals: Some(Totals::default()),
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            call: None,
        })))
    }

    fn labels(time: u64, blocks: &[u64]) -> BlockLabels {
        let labeled = |addr: &u64| LabeledBlock::unlabeled(Address(*addr), Bytes(512), CUDA);
        BlockLabels {
            time: TimeNs(time),
            tgid: TGID,
            blocks: blocks.iter().map(labeled).collect(),
            optimizers: Vec::new(),
            tags: Vec::new(),
        }
    }

    fn addresses(labels: &BlockLabels) -> Vec<u64> {
        labels.blocks.iter().map(|block| block.addr.0).collect()
    }

    #[test]
    fn events_after_the_end_stay_out() {
        let mut cutoff = Cutoff::default();
        assert!(matches!(cutoff.filter(free(500, 1)), Filtered::Event(_)));
        assert!(cutoff.passes(&free(500, 1)));
        cutoff.end_at(TimeNs(100));
        assert!(cutoff.passes(&free(100, 1)));
        assert!(!cutoff.passes(&free(101, 1)));
        assert!(!cutoff.passes(&event(HostItem::Ended)));
        assert!(matches!(cutoff.filter(free(100, 1)), Filtered::Event(_)));
        let later = cutoff.filter(free(101, 1));
        assert!(matches!(later, Filtered::LeftOut(Some(TimeNs(101)))));
        assert!(matches!(
            cutoff.filter(event(HostItem::Ended)),
            Filtered::Event(_)
        ));
    }

    #[test]
    fn a_block_that_changed_between_the_end_and_the_reading_gets_no_label() {
        let mut cutoff = Cutoff::default();
        cutoff.end_at(TimeNs(100));
        for event in [free(90, 1), free(110, 2), free(150, 3)] {
            cutoff.filter(event);
        }
        let mut late = labels(120, &[1, 2, 3]);
        cutoff.restrict(&mut late).unwrap();
        assert_eq!((addresses(&late), late.time), (vec![1, 3], TimeNs(100)));
        let mut early = labels(95, &[1, 2, 3]);
        cutoff.restrict(&mut early).unwrap();
        assert_eq!((addresses(&early), early.time), (vec![1, 2, 3], TimeNs(95)));
    }

    #[test]
    fn losses_after_the_end_are_not_those_of_the_recording_and_leave_no_label() {
        let loss = || event(HostItem::Event(Event::Loss(Losses::default())));
        let mut cutoff = Cutoff::default();
        cutoff.end_at(TimeNs(100));
        assert!(matches!(cutoff.filter(loss()), Filtered::Event(_)));
        assert!(cutoff.restrict(&mut labels(120, &[1])).is_ok());
        cutoff.is_over();
        assert!(matches!(cutoff.filter(loss()), Filtered::LeftOut(None)));
        assert!(cutoff.restrict(&mut labels(120, &[1])).is_err());
        assert!(cutoff.restrict(&mut labels(95, &[1])).is_ok());
    }
}
