//! Lines and purposes of a snapshot's blocks, from the events around it.
//!
//! The allocator reuses addresses. The ledger has the owners of blocks that are live now, but a
//! snapshot is of an earlier moment. All changes of an address since the start of the reading are
//! therefore stored. Each block gets the line that owned the address at the snapshot's moment.

use std::collections::HashMap;
use std::sync::Arc;

use crate::event::tensors::{Block, Consistency, TensorSnapshot};
use crate::event::{Action, Address, BlockLabels, BlockPurpose, DeviceIndex, Event, TimeNs};
use crate::ledger::{Known, Ledgers};

/// Maximum number of events stored while a snapshot is read; beyond it no block gets a line.
const MOST: usize = 1 << 20;

/// Changes of addresses since the start of the reading.
#[derive(Debug, Default)]
pub struct Sites {
    /// For each address, the times of its allocations and frees, with the block that was live
    /// before each.
    touched: HashMap<(DeviceIndex, Address), Vec<(TimeNs, Known)>>,
    stored: usize,
}

impl Sites {
    /// Records an event; call it before the ledgers apply the event.
    pub fn note(&mut self, ledgers: Ledgers<'_>, event: &Event) {
        let Event::Memory(event) = event else { return };
        let Some(device) = event.device else { return };
        if !matches!(event.action, Action::Alloc | Action::Free) {
            return;
        }
        self.stored = self.stored.saturating_add(1);
        if self.stored <= MOST {
            let before = ledgers.at(device, event.addr);
            let touched = self.touched.entry((device, event.addr)).or_default();
            touched.push((event.time, before));
        }
    }

    /// Sets the line and purpose of each block of the snapshot, where they are certain.
    pub fn sign(&self, ledgers: Ledgers<'_>, snapshot: &mut TensorSnapshot) {
        if self.stored > MOST {
            let words = format!(
                "lines and uses of blocks: more than {MOST} came and went while the process was read"
            );
            snapshot.unread.push(words.into());
            return;
        }
        let left_out = ledgers.uses.left_out();
        if left_out > 0 {
            let words = format!("what {left_out} blocks are for: there were too many at once");
            snapshot.unread.push(words.into());
        }
        let uses = ledgers.lines.losses().uses;
        if uses > 0 {
            let words = format!("what {uses} blocks are for: the ring buffer was half full");
            snapshot.unread.push(words.into());
        }
        let still = matches!(snapshot.consistency, Consistency::Paused { .. });
        let moment = Some(snapshot.moment).filter(|moment| still && *moment != TimeNs(0));
        for block in &mut snapshot.blocks {
            if let Some((size, site, is)) = self.at(ledgers, block, moment)
                && size == block.size
            {
                block.site = site;
                block.purpose = is.map(|is| in_words(&is));
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
    fn at(&self, ledgers: Ledgers<'_>, block: &Block, moment: Option<TimeNs>) -> Known {
        let Some(touched) = self.touched.get(&(block.device, block.addr)) else {
            return ledgers.at(block.device, block.addr);
        };
        let moment = moment?;
        let later = touched.iter().find(|(time, _)| *time > moment);
        match later {
            Some((_, before)) => before.clone(),
            None => ledgers.at(block.device, block.addr),
        }
    }
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
    use crate::ledger::{BlockUses, Model};
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
        let mut model = Model::new(Target::default(), TimeNs(0));
        for event in [defined(1), defined(2), event(Action::Alloc, 10, 1)] {
            model.apply(&event);
        }
        let mut sites = Sites::default();
        for event in [event(Action::Free, 30, 0), event(Action::Alloc, 40, 2)] {
            note(&mut sites, &model, &event);
            model.apply(&event);
        }
        let mut snapshot = training();
        snapshot
            .blocks
            .iter_mut()
            .for_each(|block| block.site = None);
        snapshot.moment = TimeNs(moment);
        snapshot.consistency = consistency;
        sign(&sites, &model, &mut snapshot);
        snapshot.blocks[0].site.as_ref().map(|site| site.line)
    }

    fn note(sites: &mut Sites, lines: &Model, event: &Event) {
        let uses = &BlockUses::default();
        sites.note(Ledgers { lines, uses }, event);
    }

    fn sign(sites: &Sites, lines: &Model, snapshot: &mut TensorSnapshot) {
        let uses = &BlockUses::default();
        sites.sign(Ledgers { lines, uses }, snapshot);
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
        let model = Model::new(Target::default(), TimeNs(0));
        let mut sites = Sites::default();
        note(&mut sites, &model, &event(Action::Free, 30, 0));
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
        let mut model = Model::new(Target::default(), TimeNs(0));
        for event in [defined(1), event(Action::Alloc, 10, 1)] {
            model.apply(&event);
        }
        let mut snapshot = training();
        snapshot
            .blocks
            .iter_mut()
            .for_each(|block| block.site = None);
        sign(&Sites::default(), &model, &mut snapshot);
        assert_eq!(
            snapshot.blocks[0].site,
            Some(line("/home/me/train.py", 1, "f"))
        );
        assert_eq!(snapshot.blocks[1].site, None);
        // Another size is another block.
        snapshot.blocks[0].site = None;
        snapshot.blocks[0].size = Bytes(512);
        sign(&Sites::default(), &model, &mut snapshot);
        assert_eq!(snapshot.blocks[0].site, None);
    }
}
