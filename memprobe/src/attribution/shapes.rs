//! Live blocks by tensor shape, element type and line.
//!
//! The ledger follows the results of [`crate::ledger::Model`]: both have the same live blocks. The rows of
//! a device therefore add up to those of the table of lines.

use std::collections::HashMap;
use std::sync::Arc;

use crate::event::{
    Action, Address, BlockPurposes, Bytes, DeviceIndex, Event, MemoryEvent, NoStack, Purpose,
    PurposeId, StackId, TensorSpec,
};
use crate::ledger::applied::{Applied, Freed};
use crate::ledger::grouping;
use crate::ledger::snapshot::{Grouping, PurposeInfo, ShapeRow, Site};

/// Maximum number of rows; the excess is one row per device.
const MOST_ROWS: usize = 1 << 18;

/// Maximum number of stacks; blocks of later ones have no line.
const MOST_STACKS: usize = 1 << 20;

/// Ledger of memory by tensor and line.
#[derive(Debug)]
pub struct ShapeLedger {
    grouping: Grouping,
    uses: BlockPurposes,
    /// Distinct lines of all stacks.
    lines: Vec<Site>,
    by_line: HashMap<Site, u32>,
    by_stack: HashMap<StackId, u32>,
    rows: Vec<TensorRow>,
    by_key: HashMap<Key, usize>,
    /// Row and bytes of each live block.
    live: HashMap<(DeviceIndex, Address), (usize, Bytes)>,
}

/// Key of a row.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    device: DeviceIndex,
    what: PurposeInfo,
    line: u32,
}

#[derive(Debug)]
struct TensorRow {
    key: Key,
    live: u64,
    peak: u64,
    blocks: u64,
    allocs: u64,
}

impl ShapeLedger {
    pub fn new(grouping: Grouping) -> Self {
        let mut ledger = Self {
            grouping,
            uses: BlockPurposes::default(),
            lines: Vec::new(),
            by_line: HashMap::new(),
            by_stack: HashMap::new(),
            rows: Vec::new(),
            by_key: HashMap::new(),
            live: HashMap::new(),
        };
        ledger.line(Site::NoLine {
            thread: "".into(),
            reason: NoStack::Lost.as_str(),
        });
        ledger
    }

    /// Applies the next event of the stream, with its effect on the ledger of lines.
    pub fn apply(&mut self, event: &Event, applied: &Applied) {
        match event {
            Event::Stack(id, stack) => {
                let known = self.by_stack.contains_key(id);
                if known || self.by_stack.len() < MOST_STACKS {
                    let line = self.line(grouping::site(stack, self.grouping));
                    self.by_stack.insert(*id, line);
                }
            }
            Event::BlockPurpose(id, is) => self.uses.define(*id, is),
            Event::Memory(event) => self.apply_memory(event, applied),
            Event::Thread(..)
            | Event::AtAttach(_)
            | Event::PhaseMark(_)
            | Event::BlockLabels(_)
            | Event::Loss(_) => {}
        }
    }

    fn apply_memory(&mut self, event: &MemoryEvent, applied: &Applied) {
        let Some(device) = event.device else { return };
        match (event.action, applied) {
            (
                Action::Alloc,
                Applied::Alloc {
                    replaced,
                    is_tracked,
                },
            ) => {
                for ended in replaced {
                    self.release(device, ended.addr);
                }
                self.hold(device, event, *is_tracked);
            }
            (Action::Free, Applied::Free(Freed::Known { .. })) => {
                self.release(device, event.addr);
            }
            _ => {}
        }
    }

    fn hold(&mut self, device: DeviceIndex, event: &MemoryEvent, is_tracked: bool) {
        let what = match self.uses.get(event.shape) {
            Some(is) => PurposeInfo::Known(Arc::clone(is)),
            None if event.shape == PurposeId::NO_TENSOR => PurposeInfo::NoTensor,
            None => PurposeInfo::Unknown,
        };
        let line = self.by_stack.get(&event.stack).copied().unwrap_or(0);
        let index = self.row(Key { device, what, line });
        let row = &mut self.rows[index];
        row.allocs = row.allocs.saturating_add(1);
        if is_tracked {
            row.live = row.live.saturating_add(event.size.0);
            row.peak = row.peak.max(row.live);
            row.blocks += 1;
            self.live.insert((device, event.addr), (index, event.size));
        }
    }

    fn release(&mut self, device: DeviceIndex, addr: Address) {
        if let Some((index, size)) = self.live.remove(&(device, addr)) {
            let row = &mut self.rows[index];
            row.live = row.live.saturating_sub(size.0);
            row.blocks = row.blocks.saturating_sub(1);
        }
    }

    fn row(&mut self, key: Key) -> usize {
        if let Some(row) = self.by_key.get(&key) {
            return *row;
        }
        let key = if self.rows.len() < MOST_ROWS {
            key
        } else {
            Key {
                what: PurposeInfo::TooMany,
                line: 0,
                ..key
            }
        };
        let next = self.rows.len();
        let index = *self.by_key.entry(key.clone()).or_insert(next);
        if index == next {
            self.rows.push(TensorRow {
                key,
                live: 0,
                peak: 0,
                blocks: 0,
                allocs: 0,
            });
        }
        index
    }

    fn line(&mut self, site: Site) -> u32 {
        let next = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
        let line = *self.by_line.entry(site.clone()).or_insert(next);
        if line == next {
            self.lines.push(site);
        }
        line
    }

    /// Rows of a device, in no particular order.
    pub fn rows(&self, device: DeviceIndex) -> Vec<ShapeRow> {
        let of_it = self.rows.iter().filter(|row| row.key.device == device);
        of_it
            .filter_map(|row| {
                Some(ShapeRow {
                    what: row.key.what.clone(),
                    site: self.lines.get(row.key.line as usize)?.clone(),
                    live: Bytes(row.live),
                    peak: Bytes(row.peak),
                    live_blocks: row.blocks,
                    allocs: row.allocs,
                })
            })
            .collect()
    }
}

impl PurposeInfo {
    /// Shape, if the block is a tensor's.
    pub fn shape(&self) -> Option<&TensorSpec> {
        match self {
            Self::Known(is) => is.tensor(),
            Self::NoTensor | Self::Unknown | Self::TooMany => None,
        }
    }

    /// Purpose, if it is known and not a tensor.
    pub fn purpose(&self) -> Option<&Purpose> {
        match self {
            Self::Known(is) => is.purpose(),
            Self::NoTensor | Self::Unknown | Self::TooMany => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Context;
    use crate::event::Target;
    use crate::event::tensors::DType;
    use crate::event::{BlockPurpose, Stack, StackKind, Tgid, Tid, TimeNs, Totals};
    use crate::ledger::Model;

    const DEVICE: DeviceIndex = DeviceIndex(0);

    /// A model and a ledger of shapes that receive the same events.
    struct Both {
        model: Model,
        shapes: ShapeLedger,
        allocated: u64,
    }

    impl Both {
        fn new() -> Self {
            let mut both = Self {
                model: Model::new(Target::default(), TimeNs(0)),
                shapes: ShapeLedger::new(Grouping::User),
                allocated: 0,
            };
            let frame = crate::event::Frame {
                file: "train.py".into(),
                line: 7,
                function: "main".into(),
                library: None,
            };
            both.hear(Event::Stack(
                StackId(1),
                Arc::new(Stack {
                    kind: StackKind::Python,
                    frames: vec![frame],
                    truncated: false,
                    context: Context::default(),
                }),
            ));
            let shape = TensorSpec {
                sizes: vec![3, 33],
                more: 0,
                dtype: DType::FLOAT32,
                requested: Some(Bytes(396)),
            };
            both.hear(Event::BlockPurpose(
                PurposeId(2),
                Arc::new(BlockPurpose::Tensor(shape)),
            ));
            both
        }

        fn hear(&mut self, event: Event) {
            let applied = self.model.apply(&event);
            self.shapes.apply(&event, &applied);
        }

        fn memory(&mut self, action: Action, addr: u64, size: u64, shape: PurposeId) {
            match action {
                Action::Alloc => self.allocated += size,
                _ => self.allocated -= size,
            }
            let stack = match action {
                Action::Alloc => StackId(1),
                _ => StackId::NONE,
            };
            self.hear(Event::Memory(MemoryEvent {
                time: TimeNs(1),
                tgid: Tgid(1),
                tid: Tid(1),
                action,
                addr: Address(addr),
                size: Bytes(size),
                device: Some(DEVICE),
                totals: Some(Totals {
                    allocated: Bytes(self.allocated),
                    reserved: Bytes(1 << 20),
                }),
                stack,
                shape,
                call: None,
            }));
        }

        fn row(&self, is: impl Fn(&PurposeInfo) -> bool) -> (u64, u64, u64, u64) {
            let rows = self.shapes.rows(DEVICE);
            let row = rows.iter().find(|row| is(&row.what)).expect("a row");
            (row.live.0, row.peak.0, row.live_blocks, row.allocs)
        }
    }

    #[test]
    fn equal_tensors_of_a_line_are_one_row() {
        let mut both = Both::new();
        both.memory(Action::Alloc, 0x1000, 512, PurposeId(2));
        both.memory(Action::Alloc, 0x2000, 512, PurposeId(2));
        both.memory(Action::Alloc, 0x3000, 1024, PurposeId::NO_TENSOR);
        both.memory(Action::Free, 0x1000, 512, PurposeId::NONE);
        assert_eq!(both.row(|what| what.shape().is_some()), (512, 1024, 1, 2));
        assert_eq!(
            both.row(|what| *what == PurposeInfo::NoTensor),
            (1024, 1024, 1, 1)
        );
        let lines = both.model.snapshot(TimeNs(2), Grouping::User);
        let live: u64 = both.shapes.rows(DEVICE).iter().map(|row| row.live.0).sum();
        assert_eq!(live, lines.devices[0].lines[0].live.0);
    }

    #[test]
    fn a_block_whose_free_was_missed_ends_where_the_next_one_begins() {
        let mut both = Both::new();
        both.memory(Action::Alloc, 0x1000, 512, PurposeId(2));
        both.memory(Action::Alloc, 0x1000, 512, PurposeId::NONE);
        assert_eq!(both.row(|what| what.shape().is_some()), (0, 512, 0, 1));
        assert_eq!(
            both.row(|what| *what == PurposeInfo::Unknown),
            (512, 512, 1, 1)
        );
    }
}
