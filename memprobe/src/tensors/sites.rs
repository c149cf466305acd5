//! Lines and purposes of a snapshot's blocks, from the events around it.
//!
//! The allocator reuses addresses. The ledger has the owners of blocks that are live now, but a
//! snapshot is of an earlier moment. All changes of an address since the start of the reading are
//! therefore stored. Each block gets the line that owned the address at the snapshot's moment.

use std::collections::HashMap;
use std::sync::Arc;

use hashbrown::HashSet;

use crate::event::tensors::{Block, Consistency, TensorSnapshot};
use crate::event::{
    Action, Address, BlockLabels, BlockPurpose, Bytes, DeviceIndex, Event, Frame, TimeNs,
};
use crate::ledger::snapshot::Grouping;
use crate::ledger::{Analysis, BlockId, Change, Freed, Ledger};

/// Maximum number of events stored while a snapshot is read; beyond it no block gets a line.
const MOST: usize = 1 << 20;

/// A block as the ledger knew it: size, line and purpose.
type Known = Option<(Bytes, Option<Frame>, Option<Arc<BlockPurpose>>)>;

#[derive(Debug, Default)]
pub struct Sites {
    /// For each address, the times of its allocations and frees, with the block that was live
    /// before each.
    touched: HashMap<(DeviceIndex, Address), Vec<(TimeNs, Known)>>,
    stored: usize,
}

impl Analysis for Sites {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        let Event::Memory(event) = event else { return };
        let Some(device) = event.device else { return };
        if !matches!(event.action, Action::Alloc | Action::Free) {
            return;
        }
        self.stored = self.stored.saturating_add(1);
        if self.stored > MOST {
            return;
        }
        let before = match change {
            Change::Allocated { replaced, .. } => {
                let is_there = |id: &&BlockId| ledger.block(**id).addr == event.addr;
                replaced.iter().find(is_there).copied()
            }
            Change::Freed(Freed::Known(id)) => Some(*id),
            Change::Freed(Freed::BeforeAttach(id)) => *id,
            _ => ledger.block_at(device, event.addr),
        };
        let touched = self.touched.entry((device, event.addr)).or_default();
        touched.push((event.time, before.and_then(|id| known(ledger, id))));
    }
}

impl Sites {
    /// Sets the line and purpose of each block of the snapshot, where they are certain.
    pub fn sign(&self, ledger: &Ledger, snapshot: &mut TensorSnapshot) {
        if self.stored > MOST {
            let words = format!(
                "lines and uses of blocks: more than {MOST} came and went while the process was read"
            );
            snapshot.unread.push(words.into());
            return;
        }
        let left_out = ledger.refused().blocks;
        if left_out > 0 {
            let words = format!("what {left_out} blocks are for: there were too many at once");
            snapshot.unread.push(words.into());
        }
        let uses = ledger.losses().uses;
        if uses > 0 {
            let words = format!("what {uses} blocks are for: the ring buffer was half full");
            snapshot.unread.push(words.into());
        }
        let still = matches!(snapshot.consistency, Consistency::Paused { .. });
        let moment = Some(snapshot.moment).filter(|moment| still && *moment != TimeNs(0));
        // Many blocks are of one line.
        let mut sites: HashSet<Arc<Frame>> = HashSet::new();
        for block in &mut snapshot.blocks {
            if let Some((size, site, purpose)) = self.at(ledger, block, moment)
                && size == block.size
            {
                let shared = |site| Arc::clone(sites.get_or_insert_with(&site, shared_frame));
                block.site = site.map(shared);
                block.purpose = purpose.map(|purpose| in_words(&purpose));
            }
        }
    }

    /// Removes names of blocks that may have been freed since `names` was read.
    pub fn keep_untouched(&self, consistency: Consistency, names: &mut BlockLabels) {
        let still = matches!(consistency, Consistency::Paused { .. });
        let moment = Some(names.time).filter(|moment| still && *moment != TimeNs(0));
        let is_full = self.stored > MOST;
        names.blocks.retain(|block| {
            let touched = self.touched.get(&(block.device, block.addr));
            let is_untouched = touched.is_none_or(|touched| {
                moment.is_some_and(|moment| touched.iter().all(|(time, _)| *time <= moment))
            });
            is_untouched && !is_full
        });
    }

    /// Block that was live at that address and moment; `None` if uncertain.
    fn at(&self, ledger: &Ledger, block: &Block, moment: Option<TimeNs>) -> Known {
        let later = match self.touched.get(&(block.device, block.addr)) {
            Some(touched) => {
                let moment = moment?;
                touched.iter().find(|(time, _)| *time > moment)
            }
            None => None,
        };
        match later {
            Some((_, before)) => before.clone(),
            None => known(ledger, ledger.block_at(block.device, block.addr)?),
        }
    }
}

fn known(ledger: &Ledger, id: BlockId) -> Known {
    let block = ledger.block(id);
    let frame = ledger.site(block.stack, Grouping::User).frame();
    let purpose = ledger.purpose(block.purpose);
    Some((block.size, frame.cloned(), purpose.cloned()))
}

fn shared_frame(frame: &Frame) -> Arc<Frame> {
    Arc::new(frame.clone())
}

/// Purpose of a block, as text for a row without a tensor.
fn in_words(is: &BlockPurpose) -> Arc<str> {
    match is {
        BlockPurpose::Tensor(shape) => format!("made for a tensor {shape} {}", shape.dtype).into(),
        BlockPurpose::Other(purpose) => purpose.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::event::Bytes;
    use crate::event::Target;
    use crate::event::{
        Context, MemoryEvent, PurposeId, Stack, StackId, StackKind, Tgid, Tid, Totals,
    };
    use crate::ledger::AnalyzedLedger;
    use crate::tensors::named;
    use crate::tensors::samples::{BASE, line, training};

    fn event(action: Action, time: u64, stack: u32) -> Event {
        Event::Memory(MemoryEvent {
            time: TimeNs(time),
            tgid: Tgid(7),
            tid: Tid(7),
            action,
            addr: Address(BASE),
            size: Bytes(16 << 20),
            device: Some(DeviceIndex(0)),
            totals: Some(Totals {
                allocated: Bytes(if action == Action::Alloc { 16 << 20 } else { 0 }),
                reserved: Bytes(32 << 20),
            }),
            stack: StackId(stack),
            shape: PurposeId::NONE,
            call: None,
        })
    }

    fn defined(id: u32) -> Event {
        let stack = Stack {
            kind: StackKind::Python,
            frames: vec![line("/home/me/train.py", id, "f")],
            truncated: false,
            context: Context::default(),
        };
        Event::Stack(StackId(id), Arc::new(stack))
    }

    /// Line 1 allocates at 10, the reading begins at 20, the block is freed at 30, line 2 reuses it
    /// at 40. Returns the line of the block in a snapshot of `moment`.
    fn line_at(moment: u64, consistency: Consistency) -> Option<u32> {
        let mut ledger = Ledger::new(Target::default(), TimeNs(0));
        for event in [defined(1), defined(2), event(Action::Alloc, 10, 1)] {
            ledger.apply(&event);
        }
        let mut sites = Sites::default();
        for event in [event(Action::Free, 30, 0), event(Action::Alloc, 40, 2)] {
            let change = ledger.apply(&event);
            sites.apply(&event, &change, &ledger);
        }
        let mut snapshot = training();
        snapshot
            .blocks
            .iter_mut()
            .for_each(|block| block.site = None);
        snapshot.moment = TimeNs(moment);
        snapshot.consistency = consistency;
        sites.sign(&ledger, &mut snapshot);
        snapshot.blocks[0].site.as_ref().map(|site| site.line)
    }

    const PAUSED: Consistency = Consistency::Paused {
        pause: Duration::ZERO,
        retries: 0,
    };

    #[test]
    fn a_block_has_the_line_that_held_its_address_at_that_moment() {
        assert_eq!(line_at(25, PAUSED), Some(1));
        assert_eq!(line_at(45, PAUSED), Some(2));
    }

    #[test]
    fn an_address_that_changed_hands_at_an_unknown_moment_has_no_line() {
        assert_eq!(line_at(0, PAUSED), None);
        assert_eq!(line_at(25, Consistency::Running), None);
    }

    #[test]
    fn names_of_blocks_that_changed_hands_since_are_left_out() {
        let mut ledger = AnalyzedLedger::new(Target::default(), TimeNs(0), Sites::default());
        ledger.apply(&event(Action::Free, 30, 0));
        let sites = ledger.analyses;
        let left = |moment: u64, consistency: Consistency| {
            let mut names = named(&training(), Tgid(7));
            let all = names.blocks.len();
            names.time = TimeNs(moment);
            sites.keep_untouched(consistency, &mut names);
            all - names.blocks.len()
        };
        assert_eq!(left(25, PAUSED), 1);
        assert_eq!(left(35, PAUSED), 0);
        assert_eq!(left(0, PAUSED), 1);
        assert_eq!(left(35, Consistency::Running), 1);
    }

    #[test]
    fn a_block_that_nobody_touched_has_the_line_of_the_ledger() {
        let mut ledger = Ledger::new(Target::default(), TimeNs(0));
        for event in [defined(1), event(Action::Alloc, 10, 1)] {
            ledger.apply(&event);
        }
        let mut snapshot = training();
        snapshot
            .blocks
            .iter_mut()
            .for_each(|block| block.site = None);
        Sites::default().sign(&ledger, &mut snapshot);
        assert_eq!(
            snapshot.blocks[0].site,
            Some(Arc::new(line("/home/me/train.py", 1, "f")))
        );
        assert_eq!(snapshot.blocks[1].site, None);
        // Another size is another block.
        snapshot.blocks[0].site = None;
        snapshot.blocks[0].size = Bytes(512);
        Sites::default().sign(&ledger, &mut snapshot);
        assert_eq!(snapshot.blocks[0].site, None);
    }
}
