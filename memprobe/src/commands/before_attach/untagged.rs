//! Memory that sleeps without a known tag: a reason to read the objects of its process.

use hashbrown::HashSet;

use crate::event::{Action, Address, BlockLabels, MemoryEvent};
use crate::ledger::Ledger;
use crate::view::counted;

/// Most addresses of sleeping memory that are followed.
const MAX_ASLEEP: usize = 1 << 16;

#[derive(Default)]
pub(super) struct UntaggedMemory {
    /// Memory that sleeps and has no tag.
    asleep: HashSet<Address>,
    /// Memory for which a reading found no tag.
    tried: HashSet<Address>,
    tagged: HashSet<Address>,
    /// Memory that was made or freed since the last reading began: its tag may be of another allocation.
    changed: HashSet<Address>,
}

impl UntaggedMemory {
    /// Begins with the memory of a ledger.
    pub(super) fn of(ledger: &Ledger) -> Self {
        let memory = ledger.segment_memory();
        let untagged =
            memory.filter(|memory| memory.is_asleep && ledger.segment_tag(memory.addr).is_none());
        let untagged = untagged.map(|memory| memory.addr);
        Self {
            asleep: untagged.take(MAX_ASLEEP).collect(),
            ..Self::default()
        }
    }

    pub(super) fn apply(&mut self, event: &MemoryEvent) {
        let addr = event.addr;
        match event.action {
            Action::SegmentSleep if self.tagged.contains(&addr) => {}
            Action::SegmentSleep if self.asleep.len() >= MAX_ASLEEP => {}
            Action::SegmentSleep => _ = self.asleep.insert(addr),
            Action::SegmentWake => _ = self.asleep.remove(&addr),
            Action::SegmentAlloc | Action::SegmentFree => {
                self.asleep.remove(&addr);
                self.tried.remove(&addr);
                self.tagged.remove(&addr);
                if self.changed.len() < MAX_ASLEEP {
                    self.changed.insert(addr);
                }
            }
            _ => {}
        }
    }

    /// True if a reading may find tags.
    pub(super) fn is_wanted(&self) -> bool {
        self.asleep.iter().any(|addr| !self.tried.contains(addr))
    }

    pub(super) fn begin_reading(&mut self) {
        self.changed.clear();
    }

    /// Keeps the tags of memory that did not change during the reading. Returns a sentence if some of it was asleep
    /// without a tag.
    pub(super) fn end_reading(&mut self, labels: &mut BlockLabels) -> Option<String> {
        let asleep = self.asleep.len();
        let is_new = self.is_wanted();
        let is_full = self.changed.len() >= MAX_ASLEEP;
        labels
            .tags
            .retain(|tagged| !is_full && !self.changed.contains(&tagged.addr));
        self.tagged = labels.tags.iter().map(|tagged| tagged.addr).collect();
        self.asleep.retain(|addr| !self.tagged.contains(addr));
        self.tried.clone_from(&self.asleep);
        let tagged = asleep - self.asleep.len();
        is_new.then(|| match tagged {
            0 => "the tags of memory that sleeps are not known: no object of Python has them"
                .to_owned(),
            _ => {
                let all = counted(asleep as u64, "sleeping allocation");
                format!("{tagged} of {all} have a tag of the program")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{
        Bytes, DeviceIndex, PurposeId, StackId, TaggedAllocation, Tgid, Tid, TimeNs,
    };

    fn apply(memory: &mut UntaggedMemory, action: Action, addr: u64) {
        memory.apply(&MemoryEvent {
            time: TimeNs(1),
            tgid: Tgid(7),
            tid: Tid(7),
            action,
            addr: Address(addr),
            size: Bytes(512),
            device: Some(DeviceIndex(0)),
            totals: None,
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            call: None,
        });
    }

    /// Tags that are left of a reading of these addresses.
    fn read(memory: &mut UntaggedMemory, addresses: &[u64]) -> Vec<u64> {
        let tagged = |addr: &u64| TaggedAllocation {
            addr: Address(*addr),
            size: Bytes(512),
            tag: "weights".into(),
        };
        let mut labels = BlockLabels {
            time: TimeNs(2),
            tgid: Tgid(7),
            blocks: Vec::new(),
            optimizers: Vec::new(),
            tags: addresses.iter().map(tagged).collect(),
        };
        memory.end_reading(&mut labels);
        labels.tags.iter().map(|tagged| tagged.addr.0).collect()
    }

    #[test]
    fn memory_without_a_tag_is_read_once() {
        let mut memory = UntaggedMemory::default();
        apply(&mut memory, Action::SegmentAlloc, 0x1000);
        assert!(!memory.is_wanted());
        apply(&mut memory, Action::SegmentSleep, 0x1000);
        apply(&mut memory, Action::SegmentSleep, 0x2000);
        assert!(memory.is_wanted());
        memory.begin_reading();
        assert_eq!(read(&mut memory, &[0x1000]), [0x1000]);
        assert!(!memory.is_wanted());
        for addr in [0x1000, 0x2000] {
            apply(&mut memory, Action::SegmentWake, addr);
            apply(&mut memory, Action::SegmentSleep, addr);
            assert!(!memory.is_wanted());
        }
        apply(&mut memory, Action::SegmentFree, 0x1000);
        apply(&mut memory, Action::SegmentSleep, 0x1000);
        assert!(memory.is_wanted());
    }

    #[test]
    fn memory_that_changes_during_a_reading_has_no_tag() {
        let mut memory = UntaggedMemory::default();
        apply(&mut memory, Action::SegmentAlloc, 0x1000);
        memory.begin_reading();
        apply(&mut memory, Action::SegmentAlloc, 0x2000);
        assert_eq!(read(&mut memory, &[0x1000, 0x2000]), [0x1000]);
    }
}
