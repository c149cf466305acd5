//! Every allocation of a recording, with the category that its whole life shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::allocation_groups::{ModuleScope, place_of};
use super::category::Category;
use super::high_water_mark::PeakAnalysis;
use super::ledger::AttributionLedger;
use crate::event::{
    Action, Address, BlockLabels, BlockPurpose, Bytes, DeviceIndex, Event, LabeledBlock,
    MemoryEvent, PurposeId, Stack, Tid, TimeNs,
};
use crate::ledger::{
    BlockId, Change, CompactIndex, Freed, Ledger, PerBlock, StackRef, TotalsSample,
};

/// Cap on allocations, at 80 bytes each.
const MAX_ALLOCATIONS: usize = 1 << 25;

/// Allocations that there is room for at first.
const FIRST_ALLOCATIONS: usize = 1 << 10;

/// Cap on allocations with a label.
const MAX_LABELED: usize = 1 << 22;

/// Position of a memory event in the stream, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventNumber(pub u64);

impl EventNumber {
    /// Earlier than every event.
    pub const START: Self = Self(0);
    /// Later than every event.
    pub const END: Self = Self(u64::MAX);
}

/// A block from its allocation to its free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub addr: Address,
    /// Bytes of the block, as the allocator rounded them.
    pub size: Bytes,
    /// Time of the allocation; time of attach for a block that was live then.
    pub time: TimeNs,
    /// Time of the free; without meaning while the block is live.
    freed_at: TimeNs,
    pub born: EventNumber,
    /// [`EventNumber::END`] while the block is live.
    ended: EventNumber,
    pub stack: StackRef,
    pub purpose: PurposeId,
    /// Thread that allocated it; [`Tid::UNKNOWN`] for a block from before attach.
    pub tid: Tid,
    pub device: DeviceIndex,
    /// `None` if nothing is inferred: from before attach, without a label.
    pub category: Option<Category>,
    /// True if the block was live at attach.
    pub is_baseline: bool,
}

impl Allocation {
    /// Time of the free; `None` for a block that is live at the end.
    pub fn freed(&self) -> Option<TimeNs> {
        (self.ended != EventNumber::END).then_some(self.freed_at)
    }

    /// Event that freed it; [`EventNumber::END`] while the block is live.
    pub fn ended(&self) -> EventNumber {
        self.ended
    }

    /// True if the block is live just after an event.
    pub fn is_live_at(&self, event: EventNumber) -> bool {
        self.born <= event && (event < self.ended || self.ended == EventNumber::END)
    }
}

/// Event after which a device had the most allocated bytes, and its totals then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePeak {
    pub event: EventNumber,
    pub sample: TotalsSample,
}

/// Numbers of allocations: their indices in an [`AllocationHistory`] of the same events.
#[derive(Clone, Debug, Default)]
pub struct AllocationNumbers {
    next: usize,
    live: PerBlock<CompactIndex>,
}

impl AllocationNumbers {
    /// Number of the allocation that a change of the ledger begins or ends; of several that it ends, the last one.
    pub fn apply(&mut self, change: &Change) -> Option<usize> {
        let mut number = None;
        for ended in change.ended() {
            number = self.end(*ended);
        }
        match change {
            Change::Allocated {
                block,
                is_tracked: true,
                ..
            } => self.begin(*block),
            Change::Held(Some(block)) => self.begin(*block),
            Change::Freed(Freed::BeforeAttach(Some(block))) => self.end(*block),
            Change::Allocated { .. } => None,
            _ => number,
        }
    }

    /// Number of the allocation of a live block.
    pub fn of(&self, block: BlockId) -> Option<usize> {
        self.live.get(block).map(|index| index.index())
    }

    /// Gives the allocations the numbers in `numbers`, by their present ones. Every live one must have one there.
    fn renumber(&mut self, numbers: &[Option<u32>]) {
        self.next = numbers.iter().flatten().count();
        for live in self.live.values_mut() {
            if let Some(Some(number)) = numbers.get(live.index()) {
                *live = CompactIndex::of(*number as usize);
            }
        }
    }

    fn begin(&mut self, block: BlockId) -> Option<usize> {
        let number = (self.next < MAX_ALLOCATIONS).then_some(self.next)?;
        self.next += 1;
        self.live.insert(block, CompactIndex::of(number));
        Some(number)
    }

    fn end(&mut self, block: BlockId) -> Option<usize> {
        self.live.remove(block).map(|index| index.index())
    }
}

/// Allocations of a process, updated by each event.
#[derive(Clone, Debug, Default)]
pub struct AllocationHistory {
    events: u64,
    allocations: Vec<Allocation>,
    numbers: AllocationNumbers,
    /// Latest label of an allocation, by its index.
    labels: hashbrown::HashMap<u32, Arc<LabeledBlock>>,
    peaks: BTreeMap<DeviceIndex, DevicePeak>,
    /// Last failed request, and the totals of all devices then.
    out_of_memory: Option<(EventNumber, Vec<(DeviceIndex, TotalsSample)>)>,
    /// Allocations beyond the caps on blocks and allocations.
    left_out: u64,
    /// Number of allocations when some were last forgotten.
    remaining: usize,
}

impl AllocationHistory {
    /// Allocations in the order of the stream.
    pub fn allocations(&self) -> &[Allocation] {
        &self.allocations
    }

    /// Latest label that the process's objects gave the block of an allocation, by its index.
    pub fn label(&self, index: usize) -> Option<&LabeledBlock> {
        let index = u32::try_from(index).ok()?;
        self.labels.get(&index).map(|label| &**label)
    }

    /// Peak of each device, as the ledger of categories chose it.
    pub fn peaks(&self) -> &BTreeMap<DeviceIndex, DevicePeak> {
        &self.peaks
    }

    /// Last failed request, and the totals of all devices then; `None` if no request failed.
    pub fn out_of_memory(&self) -> Option<(EventNumber, &[(DeviceIndex, TotalsSample)])> {
        let (event, samples) = self.out_of_memory.as_ref()?;
        Some((*event, samples))
    }

    /// Number of the last memory event.
    pub fn events(&self) -> EventNumber {
        EventNumber(self.events)
    }

    /// Allocations that are missing here, since there were too many at once or in all.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Index of the allocation of a live block.
    pub fn index_of(&self, block: BlockId) -> Option<usize> {
        self.numbers.of(block)
    }

    /// Gives live blocks the category that they have now. To be called after the last event.
    pub fn finish(&mut self, ledger: &Ledger, categories: &AttributionLedger) {
        for (id, _) in ledger.blocks() {
            if let Some(index) = self.numbers.of(id) {
                let rule = categories.rule_of(id);
                self.allocations[index].category = rule.map(|rule| rule.category());
            }
        }
    }

    /// True if there are at least `least` more allocations than when some were last forgotten, and a quarter more: then
    /// looking through all of them costs little for each.
    pub fn has_grown(&self, least: usize) -> bool {
        self.allocations.len() - self.remaining >= least.max(self.remaining / 4).max(1)
    }

    /// Forgets ended allocations that are not needed. The others get new indices, in the same order.
    pub fn forget_ended(&mut self, mut is_needed: impl FnMut(&Allocation) -> bool) {
        let mut next = 0;
        let mut indices = Vec::with_capacity(self.allocations.len());
        self.allocations.retain(|allocation| {
            let stays = allocation.ended == EventNumber::END || is_needed(allocation);
            indices.push(stays.then_some(next));
            next += u32::from(stays);
            stays
        });
        self.remaining = self.allocations.len();
        self.numbers.renumber(&indices);
        let labels = std::mem::take(&mut self.labels).into_iter();
        let labels = labels.filter_map(|(index, label)| {
            let index = indices.get(index as usize).copied().flatten()?;
            Some((index, label))
        });
        self.labels = labels.collect();
    }

    fn begin(&mut self, id: BlockId, event: &MemoryEvent, ledger: &Ledger) {
        if self.numbers.begin(id).is_none() {
            self.left_out += 1;
            return;
        }
        let block = ledger.block(id);
        if self.allocations.len() == self.allocations.capacity() {
            // A vector would double itself, and these are most of the memory of a replay.
            let more = (self.allocations.len() / 4).max(FIRST_ALLOCATIONS);
            self.allocations.reserve_exact(more);
        }
        self.allocations.push(Allocation {
            addr: block.addr,
            size: block.size,
            time: event.time,
            freed_at: event.time,
            born: self.events(),
            ended: EventNumber::END,
            stack: block.stack,
            purpose: block.purpose,
            tid: event.tid,
            device: block.device,
            category: None,
            is_baseline: block.is_baseline,
        });
    }

    fn end(&mut self, id: BlockId, time: TimeNs, category: Option<Category>) {
        if let Some(index) = self.numbers.end(id) {
            let allocation = &mut self.allocations[index];
            allocation.freed_at = time;
            allocation.ended = EventNumber(self.events);
            allocation.category = category;
        }
    }

    fn memory(
        &mut self,
        event: &MemoryEvent,
        change: &Change,
        ledger: &Ledger,
        categories: &AttributionLedger,
    ) {
        self.events += 1;
        let ended = categories.ended.map(|rule| rule.category());
        match change {
            Change::Allocated {
                block,
                is_tracked,
                replaced,
            } => {
                // The ledger of categories names the last one; of several, the others stay unknown.
                let mut category = ended;
                for replaced in replaced.iter().rev() {
                    self.end(*replaced, event.time, category.take());
                }
                match is_tracked {
                    true => self.begin(*block, event, ledger),
                    false => self.left_out += 1,
                }
            }
            Change::Held(Some(block)) => self.begin(*block, event, ledger),
            Change::Freed(Freed::Known(block) | Freed::BeforeAttach(Some(block))) => {
                self.end(*block, event.time, ended);
            }
            Change::OutOfMemory => {
                let samples = ledger.moments(event.time).collect();
                self.out_of_memory = Some((self.events(), samples));
            }
            _ => {}
        }
        if categories.is_peak
            && let Some((device, sample)) = ledger.moment(&Event::Memory(*event))
        {
            let event = self.events();
            self.peaks.insert(device, DevicePeak { event, sample });
        }
    }

    fn name(&mut self, labels: &BlockLabels, ledger: &Ledger) {
        for label in &labels.blocks {
            let is_labeled = label.name.is_some() || label.retainer.is_some();
            let block = ledger.block_at(label.device, label.addr);
            let block = block.filter(|block| ledger.block(*block).size == label.size);
            let index = block.and_then(|block| self.numbers.of(block));
            let (Some(index), true) = (index, is_labeled) else {
                continue;
            };
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            if self.labels.len() < MAX_LABELED || self.labels.contains_key(&index) {
                self.labels.insert(index, Arc::new(label.clone()));
            }
        }
    }
}

impl PeakAnalysis for AllocationHistory {
    fn apply(
        &mut self,
        event: &Event,
        change: &Change,
        ledger: &Ledger,
        categories: &AttributionLedger,
    ) {
        match event {
            Event::Memory(event) if is_of_allocator(event.action) => {
                self.memory(event, change, ledger, categories);
            }
            Event::BlockLabels(labels) => self.name(labels, ledger),
            _ => {}
        }
    }
}

/// True for events of blocks, which have a number.
pub fn is_of_allocator(action: Action) -> bool {
    matches!(
        action,
        Action::Alloc | Action::Free | Action::Held | Action::OutOfMemory
    )
}

/// Requested bytes of a block: those of its tensor, or of the block if they are unknown.
pub fn requested(size: Bytes, purpose: Option<&BlockPurpose>) -> Bytes {
    let requested = purpose.and_then(|purpose| purpose.tensor()?.requested);
    requested
        .filter(|requested| *requested <= size)
        .unwrap_or(size)
}

/// Module that the allocations of a stack count under, named as in reports.
pub fn module_of(stack: &Stack, categories: &AttributionLedger) -> ModuleScope {
    match place_of(stack).0 {
        ModuleScope::Module(path) => ModuleScope::Module(categories.root_variables.named(&path)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::WithCategories;
    use super::super::allocation_groups::samples::{DEVICE, learning};
    use super::*;

    #[test]
    fn allocations_that_are_live_at_the_peak_and_at_the_end_add_up() {
        let played = learning().analyzed(WithCategories::new(AllocationHistory::default()));
        let WithCategories {
            categories,
            table: mut history,
        } = played.analyses;
        history.finish(&played.ledger, &categories);
        let live = |event| {
            let all = history.allocations().iter();
            let live = all.filter(|it| it.device == DEVICE && it.is_live_at(event));
            live.map(|it| it.size.0).sum::<u64>()
        };
        let peak = history.peaks()[&DEVICE];
        let known = peak.sample.totals.allocated.0 - peak.sample.before_attach.0;
        assert_eq!(live(peak.event), known);
        let (_, end) = played.ledger.moments(TimeNs(0)).next().expect("a device");
        let known = end.totals.allocated.0 - end.before_attach.0;
        assert_eq!(live(EventNumber::END), known);
        assert!(known < peak.sample.totals.allocated.0);
    }

    #[test]
    fn categories_are_those_of_the_ledger_at_the_peak() {
        let played = learning().analyzed(WithCategories::new(AllocationHistory::default()));
        let WithCategories {
            categories,
            table: mut history,
        } = played.analyses;
        history.finish(&played.ledger, &categories);
        let peak = history.peaks()[&DEVICE].event;
        let composition = &categories
            .device(DEVICE)
            .expect("a device")
            .peak()
            .composition;
        for category in Category::ALL {
            let all = history.allocations().iter();
            let of = all.filter(|it| it.category == Some(*category) && it.is_live_at(peak));
            let bytes: u64 = of.map(|it| it.size.0).sum();
            assert_eq!(bytes, composition.of(*category), "{category:?}");
        }
    }
}
