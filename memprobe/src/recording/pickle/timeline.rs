//! Events of a snapshot, from its segments at the end back to the begin of its history.
//!
//! The sums at the end are the allocator's own. Going back, each event takes away what it added, so the sums at the
//! begin follow. What was live then is: blocks that the history frees and never allocates, and blocks of the end that
//! it never allocates. PyTorch keeps the stacks of the latter.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;

use super::history::{AllocatedBlock, EntryKind, MemoryPickle, TraceEntry};
use super::side_events::PickledSideEvent;
use super::stacks::PickledStacks;
use super::times::{Times, at};
use super::{History, HistoryFacts, NO_PROCESS};
use crate::event::{
    Action, Address, AtAttach, Bytes, DeviceIndex, Event, MemoryEvent, PurposeId, StackId, Tgid,
    Tid, TimeNs, Totals,
};
use crate::recording::Header;

/// Granularity of block sizes by default (`kMinBlockSize`, c10/cuda/CUDACachingAllocator.cpp@v2.15.0).
const GRANULARITY: u64 = 512;

/// Returns a snapshot's events, in the order of their times.
pub(super) fn events(
    mut snapshot: MemoryPickle,
    mut stacks: PickledStacks,
    purposes: Vec<Event>,
    header: Option<Header>,
) -> History {
    let mut facts = HistoryFacts {
        host_entries: snapshot.host_entries,
        unknown_entries: snapshot.unknown_entries,
        lacks_history: !snapshot.traces.iter().flatten().any(is_of_history),
        refused_side_events: snapshot.refused_side_events,
        refused_stacks: stacks.refused,
        ..HistoryFacts::default()
    };
    let times = Times::of(&snapshot, header.as_ref());
    let header = header.unwrap_or_else(|| times.header());
    facts.lacks_times = !facts.lacks_history && times.start_us.is_none();
    let traces = std::mem::take(&mut snapshot.traces);
    let side_events = std::mem::take(&mut snapshot.side_events);
    let mut side_events: Vec<_> = side_events.into_iter().map(Some).collect();
    let mut events = Vec::new();
    let devices = devices(&snapshot, traces);
    // Labels come after what was live at the begin on each device.
    let first_label = TimeNs(times.start.0.saturating_add(u64::from(devices.len() > 1)));
    for (ordinal, device) in devices {
        let mut timeline = Timeline {
            device: DeviceIndex(ordinal),
            totals: Totals::default(),
            stacks: &mut stacks,
            purposes: purposes.len(),
            facts: &mut facts,
            events: &mut events,
            side_events: &mut side_events,
            first_label,
            is_own: snapshot.is_own,
            tgid: header.target.tgid.unwrap_or(NO_PROCESS),
            start: times.start,
        };
        timeline.push(device, &times);
    }
    // Those of a device without a trace have no place.
    facts.refused_side_events += side_events.iter().flatten().count() as u64;
    // Stable: the events of one device keep their order.
    if !events.is_sorted_by_key(time_of) {
        events.sort_by_key(time_of);
    }
    let memory_events = events
        .iter()
        .filter(|event| matches!(event, Event::Memory(event) if event.action != Action::Held));
    let memory_events = memory_events.count() as u64;
    let mut events = VecDeque::from(events);
    let definitions = purposes.into_iter().chain(stacks.definitions);
    for definition in definitions.rev() {
        events.push_front(definition);
    }
    History {
        memory_events,
        events,
        header,
        facts,
    }
}

fn time_of(event: &Event) -> TimeNs {
    match event {
        Event::Memory(event) => event.time,
        Event::PhaseMark(mark) => mark.time,
        Event::BlockLabels(labels) | Event::BaselineLabels(labels) => labels.time,
        // The others stand at the begin.
        _ => TimeNs(0),
    }
}

fn is_of_history(entry: &TraceEntry) -> bool {
    !matches!(entry.kind, EntryKind::Side(_))
}

/// Facts of one device.
#[derive(Default)]
struct Device<'a> {
    blocks: Vec<&'a AllocatedBlock>,
    reserved: u64,
    trace: Vec<TraceEntry>,
}

fn devices(snapshot: &MemoryPickle, traces: Vec<Vec<TraceEntry>>) -> BTreeMap<u8, Device<'_>> {
    let mut devices: BTreeMap<u8, Device> = BTreeMap::new();
    for segment in &snapshot.segments {
        let device = devices.entry(segment.device.0).or_default();
        device.reserved = device.reserved.saturating_add(segment.size);
        device.blocks.extend(&segment.blocks);
    }
    for (ordinal, trace) in traces.into_iter().enumerate() {
        if !trace.is_empty() {
            devices.entry(ordinal as u8).or_default().trace = trace;
        }
    }
    devices
}

/// Writes the events of one device.
struct Timeline<'b> {
    device: DeviceIndex,
    /// Totals after the last event.
    totals: Totals,
    stacks: &'b mut PickledStacks,
    /// Number of definitions of purposes.
    purposes: usize,
    facts: &'b mut HistoryFacts,
    events: &'b mut Vec<Event>,
    /// Marks and labels that have no place yet.
    side_events: &'b mut [Option<PickledSideEvent>],
    /// Earliest time of a mark or labels.
    first_label: TimeNs,
    /// True if every allocation that was seen is in the trace: other blocks are from before it.
    is_own: bool,
    tgid: Tgid,
    start: TimeNs,
}

/// An event with the size of its block, in order.
#[derive(Clone, Copy)]
struct Step {
    action: Action,
    address: u64,
    size: u64,
    time_us: Option<u64>,
    stack: StackId,
    purpose: PurposeId,
    tid: Tid,
}

impl Step {
    fn of(entry: &TraceEntry, action: Action, size: u64) -> Self {
        Self {
            action,
            address: entry.address,
            size,
            time_us: entry.time_us,
            stack: entry.stack,
            purpose: entry.purpose,
            tid: entry.tid,
        }
    }
}

/// Steps of a device, and the blocks that were live before the first.
struct Steps<'a> {
    steps: Vec<Step>,
    /// Marks and labels, with the number of steps before each.
    sides: Vec<(usize, u32)>,
    /// Blocks that the history frees but does not allocate: address and size.
    freed: Vec<(u64, u64)>,
    /// Blocks of the end that the history does not allocate.
    remaining: Vec<&'a AllocatedBlock>,
}

impl Timeline<'_> {
    fn push(&mut self, mut device: Device<'_>, times: &Times) {
        let found = self.steps(&device);
        device.trace = Vec::new();
        self.totals = totals_before(&device, &found);
        let beginning = 1 + found.remaining.len() + found.freed.len();
        // There is room for the definitions of the stacks too: to grow later would copy all events.
        let definitions = self.stacks.definitions.len() + self.purposes + 1;
        let more = found.steps.len() + found.sides.len() + beginning + definitions;
        self.events.reserve_exact(more);
        let first = found.steps.first();
        let first = first.filter(|_| self.is_own);
        let attach = first.map_or(self.start, |step| times.of_step(step.time_us, self.start));
        self.push_beginning(&found, attach);
        let mut time = self.start;
        let mut sides = found.sides.iter().peekable();
        for (index, step) in found.steps.iter().enumerate() {
            let next = times.of_step(step.time_us, time);
            while let Some((_, side)) = sides.next_if(|(at, _)| *at <= index) {
                self.push_side_event(*side, times, (time, next));
            }
            time = next;
            self.push_step(step, time);
        }
        for (_, side) in sides {
            self.push_side_event(*side, times, (time, TimeNs(u64::MAX)));
        }
    }

    /// Adds a mark or labels between the times of the events beside it.
    fn push_side_event(&mut self, index: u32, times: &Times, (earliest, latest): (TimeNs, TimeNs)) {
        let found = self.side_events.get_mut(index as usize);
        let Some(PickledSideEvent { event, time_us, .. }) = found.and_then(Option::take) else {
            return;
        };
        let own = times.since_start(time_us).unwrap_or(earliest);
        let time = own.clamp(earliest, latest).max(self.first_label);
        self.events.push(at(event, time));
    }

    /// Adds the blocks that were live at the begin of the history: those with a stack as allocations.
    fn push_beginning(&mut self, found: &Steps<'_>, attach: TimeNs) {
        let (restated, unknown): (Vec<&AllocatedBlock>, Vec<&AllocatedBlock>) =
            (found.remaining.iter()).partition(|block| block.stack.is_some() && !self.is_own);
        let allocations = sum(restated.iter().map(|block| block.size));
        let allocated = self.totals.allocated.0.saturating_sub(allocations);
        self.totals.allocated = Bytes(allocated);
        let start = AtAttach {
            time: attach,
            tgid: self.tgid,
            device: Some(self.device),
            totals: self.totals,
            peak: self.totals,
            unread: None,
        };
        self.events.push(Event::AtAttach(start));
        let unknown = unknown.iter().map(|block| (block.address, block.size));
        for (address, size) in found.freed.iter().copied().chain(unknown) {
            let unknown = (StackId::NONE, PurposeId::NONE, Tid::UNKNOWN);
            let event = self.event(self.start, Action::Held, address, size, unknown);
            self.events.push(event);
            self.facts.before += 1;
        }
        for block in &restated {
            let allocated = self.totals.allocated.0.saturating_add(block.size);
            self.totals.allocated = Bytes(allocated);
            let stack = block.stack.unwrap_or(StackId::NONE);
            let origin = (stack, block.purpose, Tid::UNKNOWN);
            let event = self.event(self.start, Action::Alloc, block.address, block.size, origin);
            self.events.push(event);
        }
        self.facts.restated += restated.len() as u64;
    }

    fn push_step(&mut self, step: &Step, time: TimeNs) {
        let Totals {
            allocated,
            reserved,
        } = &mut self.totals;
        match step.action {
            Action::Alloc => allocated.0 = allocated.0.saturating_add(step.size),
            Action::Free => allocated.0 = allocated.0.saturating_sub(step.size),
            Action::SegmentAlloc => reserved.0 = reserved.0.saturating_add(step.size),
            Action::SegmentFree => reserved.0 = reserved.0.saturating_sub(step.size),
            _ => {}
        }
        let origin = match step.action {
            Action::Free | Action::SegmentFree => (StackId::NONE, PurposeId::NONE, step.tid),
            _ => (step.stack, step.purpose, step.tid),
        };
        let event = self.event(time, step.action, step.address, step.size, origin);
        self.events.push(event);
    }

    fn event(
        &self,
        time: TimeNs,
        action: Action,
        address: u64,
        size: u64,
        (stack, shape, tid): (StackId, PurposeId, Tid),
    ) -> Event {
        let is_segment = matches!(action, Action::SegmentAlloc | Action::SegmentFree);
        Event::Memory(MemoryEvent {
            time,
            tgid: self.tgid,
            tid,
            action,
            addr: Address(address),
            size: Bytes(size),
            device: Some(self.device),
            totals: (!is_segment).then_some(self.totals),
            stack,
            shape,
            call: None,
        })
    }

    /// Finds the size of each block, and the blocks that were live at the begin.
    fn steps<'a>(&mut self, device: &Device<'a>) -> Steps<'a> {
        let mut found = Steps {
            steps: Vec::with_capacity(device.trace.len()),
            sides: Vec::new(),
            freed: Vec::new(),
            remaining: Vec::new(),
        };
        // Index of the step that allocated the block at an address; `None` once it was freed.
        let mut allocated: HashMap<u64, Option<usize>> = HashMap::new();
        for entry in &device.trace {
            let address = entry.address;
            let rounded = entry.block.unwrap_or_else(|| rounded(entry.size));
            let step = |action, size| Step::of(entry, action, size);
            let steps = &mut found.steps;
            match entry.kind {
                EntryKind::Alloc => {
                    let index = steps.len();
                    if let Some(Some(lost)) = allocated.insert(address, Some(index)) {
                        let size = steps[lost].size;
                        steps.push(step(Action::Free, size));
                        self.facts.missing_events += 1;
                        allocated.insert(address, Some(index + 1));
                    }
                    steps.push(step(Action::Alloc, rounded));
                }
                EntryKind::Free => match allocated.insert(address, None) {
                    Some(Some(alloc)) => {
                        let size = steps[alloc].size;
                        self.facts.inferred_sizes += 1;
                        steps.push(step(Action::Free, size));
                    }
                    Some(None) => self.facts.missing_events += 1,
                    None => {
                        self.facts.inferred_sizes += 1;
                        found.freed.push((address, rounded));
                        steps.push(step(Action::Free, rounded));
                    }
                },
                EntryKind::SegmentAlloc | EntryKind::SegmentMap => {
                    steps.push(step(Action::SegmentAlloc, entry.size));
                }
                EntryKind::SegmentFree | EntryKind::SegmentUnmap => {
                    steps.push(step(Action::SegmentFree, entry.size));
                }
                EntryKind::Side(index) => found.sides.push((steps.len(), index)),
                EntryKind::OutOfMemory => steps.push(step(Action::OutOfMemory, entry.size)),
            }
        }
        self.settle(device, allocated, found)
    }

    /// Gives the blocks of the end their exact sizes. What contradicts the end is set right after the last event.
    fn settle<'a>(
        &mut self,
        device: &Device<'a>,
        mut allocated: HashMap<u64, Option<usize>>,
        mut found: Steps<'a>,
    ) -> Steps<'a> {
        let time_us = device.trace.last().and_then(|last| last.time_us);
        for block in &device.blocks {
            match allocated.remove(&block.address) {
                Some(Some(alloc)) => found.steps[alloc].size = block.size,
                Some(None) => {
                    self.facts.missing_events += 1;
                    found.steps.push(Step {
                        action: Action::Alloc,
                        address: block.address,
                        size: block.size,
                        time_us,
                        stack: block.stack.unwrap_or_else(|| self.stacks.not_recorded()),
                        purpose: block.purpose,
                        tid: Tid::UNKNOWN,
                    });
                }
                None => found.remaining.push(*block),
            }
        }
        let mut gone: Vec<usize> = allocated.into_values().flatten().collect();
        gone.sort_unstable();
        for alloc in gone {
            self.facts.missing_events += 1;
            found.steps.push(Step {
                action: Action::Free,
                time_us,
                ..found.steps[alloc]
            });
        }
        found
    }
}

/// Returns the totals before the first event: those of the segments, less what the events added.
fn totals_before(device: &Device<'_>, found: &Steps<'_>) -> Totals {
    let of = |action| {
        let steps = found.steps.iter().filter(move |step| step.action == action);
        sum(steps.map(|step| step.size))
    };
    let remaining = sum(found.remaining.iter().map(|block| block.size));
    let freed = sum(found.freed.iter().map(|(_, size)| *size));
    let reserved = device.reserved.saturating_add(of(Action::SegmentFree));
    Totals::of(
        remaining.saturating_add(freed),
        reserved.saturating_sub(of(Action::SegmentAlloc)),
    )
}

/// Adds sizes of a file, which may hold any number.
fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// Rounds a request as the allocator does by default (`round_size`).
pub fn rounded(size: u64) -> u64 {
    size.max(1)
        .checked_next_multiple_of(GRANULARITY)
        .unwrap_or(size)
}
