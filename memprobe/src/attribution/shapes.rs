//! Live blocks by tensor shape, element type and line.
//!
//! The rows of a device add up to those of the table of lines.

use super::groups::{BlockGroup, GroupOrigin, Groups};
use super::high_water_mark::{HeldBytes, Holding};
use crate::event::{DeviceIndex, Event, NoStack, Purpose, TensorSpec};
use crate::ledger::snapshot::{Grouping, PurposeInfo, Site};
use crate::ledger::{Analysis, Change, Ledger, StackRef};

/// Memory by tensor and line, updated by every event.
#[derive(Clone, Debug)]
pub struct ShapeLedger(Groups<Site, HeldBytes>);

impl GroupOrigin for Site {
    fn of(stack: StackRef, ledger: &Ledger, grouping: Grouping) -> Self {
        ledger.site(stack, grouping).clone()
    }

    fn too_many() -> Self {
        Self::NoLine {
            thread: "".into(),
            reason: NoStack::Lost.as_str(),
        }
    }
}

impl ShapeLedger {
    pub fn new(grouping: Grouping) -> Self {
        Self(Groups::new(grouping))
    }

    /// Memory of each tensor and line on a device; not at the device's peak.
    pub fn rows(&self, device: DeviceIndex) -> impl Iterator<Item = (&BlockGroup<Site>, Holding)> {
        let rows = self.0.on(device);
        rows.map(|(_, entry)| (&entry.group, entry.value.holding(0)))
    }
}

impl Analysis for ShapeLedger {
    fn apply(&mut self, _: &Event, change: &Change, ledger: &Ledger) {
        self.0.apply(change, ledger, |_, entry, change| {
            entry.value.change(change, 0);
        });
    }
}

impl PurposeInfo {
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
    use std::sync::Arc;

    use crate::event::Target;
    use crate::event::tensors::DType;
    use crate::event::{
        Action, Address, BlockPurpose, Bytes, Context, MemoryEvent, PurposeId, Stack, StackId,
        StackKind, Tgid, Tid, TimeNs, Totals,
    };
    use crate::ledger::AnalyzedLedger;

    const DEVICE: DeviceIndex = DeviceIndex(0);

    /// A simulated allocator, and the ledgers that receive its events.
    struct Both {
        ledgers: AnalyzedLedger<ShapeLedger>,
        allocated: u64,
    }

    impl Both {
        fn new() -> Self {
            let mut both = Self {
                ledgers: AnalyzedLedger::new(
                    Target::default(),
                    TimeNs(0),
                    ShapeLedger::new(Grouping::User),
                ),
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
            self.ledgers.apply(&event);
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
            let mut rows = self.ledgers.analyses.rows(DEVICE);
            let (_, row) = rows.find(|(group, _)| is(&group.what)).expect("a row");
            let peak = row.peak.expect("a peak");
            (row.live.0, peak.0, row.live_blocks, row.allocs)
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
        let lines = both.ledgers.ledger.snapshot(TimeNs(2), Grouping::User);
        let live: u64 = both
            .ledgers
            .analyses
            .rows(DEVICE)
            .map(|(_, row)| row.live.0)
            .sum();
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
