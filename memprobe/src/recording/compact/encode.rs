//! Events to frames.

mod keyframe;

use std::sync::Arc;

use hashbrown::HashMap;

use super::columns::{ColumnWriter, FrameColumn};
use super::definitions::DefinitionWriter;
use super::frame::{FrameKind, PlainFrame};
use super::id_set::IdSet;
use super::varint::{push, push_bytes, push_difference};
use super::{GroupPolicy, MAX_PAYLOAD, record};
use crate::event::{
    Action, AtAttach, BlockLabels, BlockPurpose, BlockPurposes, CallPathOrigin, CaptureChange,
    CudaCall, DeviceIndex, DeviceSegments, DriverReading, Event, LabeledBlock, Losses, MemoryEvent,
    MemorySegment, Module, PhaseMark, PoolOwner, PoolSize, PrivatePoolState, PurposeId,
    SegmentReading, Stack, StackId, StackKind, TensorSpec, TimeNs, Totals,
};
use crate::recording::{
    End, EndReason, EndRecord, FORMAT, Header, HeaderRecord, MAX_DIMENSIONS, MAX_FRAMES,
    MAX_PURPOSE, MAX_STACKS,
};

pub(super) use keyframe::encode_keyframe;

/// Records after which a frame is closed.
const FRAME_RECORDS: usize = 1 << 16;

/// Bits of a class: fields that its events have.
pub(super) mod has {
    pub(in super::super) const DEVICE: u8 = 1;
    pub(in super::super) const TOTALS: u8 = 2;
    pub(in super::super) const STACK: u8 = 4;
    pub(in super::super) const PURPOSE: u8 = 8;
    pub(in super::super) const CALL: u8 = 16;
}

/// Bits of a record of a segment.
pub(super) mod segment {
    /// Absent for a block that awaits an event.
    pub(in super::super) const IS_SEGMENT: u8 = 1;
    pub(in super::super) const SMALL: u8 = 2;
    pub(in super::super) const PRIVATE: u8 = 4;
    pub(in super::super) const FREEABLE: u8 = 8;
    pub(in super::super) const EXPANDABLE: u8 = 16;
}

/// Fields that a memory event shares with many others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct EventClass {
    action: Action,
    tgid: u32,
    tid: u32,
    device: Option<DeviceIndex>,
    call: Option<CudaCall>,
    has: u8,
}

/// Numbers of the classes of a frame, from 0.
#[derive(Default)]
struct ClassNumbers {
    numbers: HashMap<EventClass, u64>,
    /// Recent classes, each at the place that its action, fields and thread give.
    recent: Vec<Option<(EventClass, u64)>>,
}

impl ClassNumbers {
    const RECENT: usize = 64;

    #[inline]
    fn number(&mut self, class: EventClass) -> u64 {
        let mixed = class.tid ^ (u32::from(class.has) << 1) ^ class.action as u32;
        let place = mixed as usize % Self::RECENT;
        match self.recent.get(place) {
            Some(Some((recent, number))) if *recent == class => *number,
            _ => self.look_up(class, place),
        }
    }

    fn look_up(&mut self, class: EventClass, place: usize) -> u64 {
        let next = self.numbers.len() as u64;
        let number = *self.numbers.entry(class).or_insert(next);
        self.recent.resize(Self::RECENT, None);
        self.recent[place] = Some((class, number));
        number
    }

    /// Classes in the order of their numbers.
    fn in_order(&self) -> Vec<EventClass> {
        let numbers = self.numbers.iter().map(|(class, number)| (*number, *class));
        let mut numbers: Vec<_> = numbers.collect();
        numbers.sort_unstable_by_key(|(number, _)| *number);
        numbers.into_iter().map(|(_, class)| class).collect()
    }

    fn clear(&mut self) {
        self.numbers.clear();
        self.recent.clear();
    }
}

/// Totals of each device after the previous event, as both sides of a file predict them.
pub(super) struct PredictedTotals(Box<[Totals; 256]>);

impl Default for PredictedTotals {
    fn default() -> Self {
        Self(Box::new([Totals::default(); 256]))
    }
}

impl PredictedTotals {
    /// Totals that an event leads to if nothing else happened on its device.
    pub(super) fn after(&self, event: &MemoryEvent) -> Totals {
        let before = self.0[Self::index(event)];
        let (allocated, size) = (before.allocated.0, event.size.0);
        let allocated = match event.action {
            Action::Alloc => allocated.wrapping_add(size),
            Action::Free => allocated.wrapping_sub(size),
            _ => allocated,
        };
        Totals::of(allocated, before.reserved.0)
    }

    pub(super) fn set(&mut self, event: &MemoryEvent, totals: Totals) {
        self.0[Self::index(event)] = totals;
    }

    pub(super) fn clear(&mut self) {
        *self.0 = [Totals::default(); 256];
    }

    fn index(event: &MemoryEvent) -> usize {
        usize::from(event.device.unwrap_or(DeviceIndex::UNKNOWN).0)
    }
}

/// Encodes the events of a recording. Its memory is bounded by the definitions of the stream and one frame.
pub(in crate::recording) struct CompactEncoder {
    /// Kind of the frames with records.
    kind: FrameKind,
    header: Vec<u8>,
    columns: ColumnWriter,
    definitions: DefinitionWriter,
    classes: ClassNumbers,
    predicted: PredictedTotals,
    time: u64,
    addr: u64,
    times: [u64; 2],
    records: usize,
    frame_events: u32,
    group: u16,
    begins_group: bool,
    /// True among records whose end follows: a group does not end there, unless it is near its limits.
    is_in_list: bool,
    group_events: u64,
    /// Bytes of the group before compression.
    group_bytes: u64,
    policy: GroupPolicy,
    events: u64,
    losses: Losses,
    /// Definitions of the stream, to be repeated in each group that uses them.
    stacks: HashMap<StackId, Arc<Stack>>,
    purposes: BlockPurposes,
    group_stacks: IdSet,
    group_purposes: IdSet,
}

impl CompactEncoder {
    pub(crate) fn new(header: &Header) -> Self {
        Self::with_groups(header, GroupPolicy::default())
    }

    pub(crate) fn with_groups(header: &Header, policy: GroupPolicy) -> Self {
        Self {
            kind: FrameKind::Records,
            header: header_json(header),
            columns: ColumnWriter::default(),
            definitions: DefinitionWriter::default(),
            classes: ClassNumbers::default(),
            predicted: PredictedTotals::default(),
            time: 0,
            addr: 0,
            times: [u64::MAX, 0],
            records: 0,
            frame_events: 0,
            group: 0,
            begins_group: true,
            is_in_list: false,
            group_events: 0,
            group_bytes: 0,
            policy,
            events: 0,
            losses: Losses::default(),
            stacks: HashMap::new(),
            purposes: BlockPurposes::default(),
            group_stacks: IdSet::default(),
            group_purposes: IdSet::default(),
        }
    }

    /// Memory events so far.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Group of the frame that is open, or of the next one.
    pub(crate) fn group(&self) -> u16 {
        self.group
    }

    /// Emits the header again, since more is known of the target.
    pub(crate) fn describe(&mut self, header: &Header, emit: &mut impl FnMut(PlainFrame)) {
        self.header = header_json(header);
        self.close(emit);
        emit(self.header_frame());
    }

    /// Frame of the header, which begins a recording.
    pub(crate) fn header_frame(&self) -> PlainFrame {
        PlainFrame {
            kind: FrameKind::Header,
            group: self.group,
            first_event: self.events,
            events: 0,
            times: [0, 0],
            payload: self.header.clone(),
        }
    }

    /// Closes the recording, and returns its last frame.
    pub(crate) fn end(
        &mut self,
        reason: EndReason,
        time: Option<TimeNs>,
        emit: &mut impl FnMut(PlainFrame),
    ) -> PlainFrame {
        self.close(emit);
        let end = EndRecord::from(&End {
            reason,
            time,
            events: self.events,
            losses: self.losses,
        });
        PlainFrame {
            kind: FrameKind::End,
            payload: json(&end),
            ..self.header_frame()
        }
    }

    /// Encodes an event; emits the frames that it fills.
    pub(crate) fn event(&mut self, event: &Event, emit: &mut impl FnMut(PlainFrame)) {
        match event {
            Event::Memory(event) => self.memory(event),
            Event::Stack(id, stack) => {
                self.stack(record::STACK, *id, stack);
                if self.stacks.len() < MAX_STACKS || self.stacks.contains_key(id) {
                    self.stacks.insert(*id, Arc::clone(stack));
                }
            }
            Event::BlockPurpose(id, purpose) => {
                self.purpose(record::PURPOSE, *id, purpose);
                self.purposes.define(*id, purpose);
            }
            Event::Thread(tid, name) => {
                self.begin(record::THREAD);
                self.number(tid.0.into());
                self.string(name);
            }
            Event::AtAttach(found) => self.at_attach(found),
            Event::PhaseMark(mark) => self.mark(mark),
            Event::BlockLabels(labels) => self.labels(record::LABELS, labels, emit),
            Event::BaselineLabels(labels) => self.labels(record::BASELINE_LABELS, labels, emit),
            Event::Segments(reading) => self.segments(reading, emit),
            Event::Driver(reading) => self.driver(reading),
            Event::Loss(losses) => {
                self.losses = *losses;
                self.begin(record::LOSS);
                let Losses {
                    events,
                    stacks,
                    malformed,
                    uses,
                } = *losses;
                self.numbers([events, stacks, malformed, uses]);
            }
            Event::Capture(change) => self.capture(change),
        }
        self.close_when_full(emit);
    }

    /// Emits the frame that is open, if it has records.
    pub(crate) fn close(&mut self, emit: &mut impl FnMut(PlainFrame)) {
        if self.records == 0 {
            return;
        }
        if self.kind == FrameKind::Keyframe {
            return self.close_keyframe(emit);
        }
        self.write_classes();
        if self.begins_group && self.events > u64::from(self.frame_events) {
            // A reader that begins with this group has a header too.
            let header = self.header_frame();
            let first_event = self.events - u64::from(self.frame_events);
            emit(PlainFrame {
                first_event,
                ..header
            });
        }
        let [first, last] = self.times;
        self.group_bytes += self.columns.length() as u64;
        emit(PlainFrame {
            kind: FrameKind::Records,
            group: self.group,
            first_event: self.events - u64::from(self.frame_events),
            events: self.frame_events,
            times: [first.min(last), last],
            payload: self.columns.take(),
        });
        let is_full = self.group_events >= self.policy.events
            || self.group_bytes >= self.policy.bytes
            || self.definitions.are_many();
        self.begins_group = is_full && !self.is_in_list || self.definitions.are_too_many();
        if self.begins_group {
            self.group = self.group.wrapping_add(1);
            (self.group_events, self.group_bytes) = (0, 0);
            self.definitions.clear();
            self.group_stacks.clear();
            self.group_purposes.clear();
        }
        self.classes.clear();
        self.predicted.clear();
        (self.time, self.addr) = (0, 0);
        self.times = [u64::MAX, 0];
        (self.records, self.frame_events) = (0, 0);
    }

    fn close_when_full(&mut self, emit: &mut impl FnMut(PlainFrame)) {
        let most = self.policy.frame_bytes;
        let is_full = self.records >= FRAME_RECORDS
            || self.records.is_multiple_of(32) && self.columns.length() >= most
            || self.columns.of(FrameColumn::Strings).len() >= most;
        if is_full {
            self.close(emit);
        }
    }

    #[inline]
    fn begin(&mut self, kind: u64) {
        if self.records == 0 {
            self.definitions.begin_frame(&mut self.columns);
        }
        self.records += 1;
        push(self.columns.of(FrameColumn::Kinds), kind);
    }

    #[inline]
    fn time(&mut self, TimeNs(time): TimeNs) {
        push_difference(self.columns.of(FrameColumn::Times), self.time, time);
        self.time = time;
        self.times = [self.times[0].min(time), self.times[1].max(time)];
    }

    fn number(&mut self, number: u64) {
        push(self.columns.of(FrameColumn::Details), number);
    }

    fn numbers<const N: usize>(&mut self, numbers: [u64; N]) {
        numbers.into_iter().for_each(|number| self.number(number));
    }

    fn string(&mut self, text: &str) {
        let number = self.definitions.string(&mut self.columns, text);
        self.number(number);
    }

    fn optional_string(&mut self, text: Option<&str>) {
        let number = self.definitions.optional_string(&mut self.columns, text);
        self.number(number);
    }

    /// Writes a word of an enumeration, at full length: later frames need no earlier definition of it.
    fn word(&mut self, word: &str) {
        push_bytes(self.columns.of(FrameColumn::Details), word.as_bytes());
    }

    /// Writes 0 for nothing, and otherwise 1 and the number.
    fn optional_number(&mut self, number: Option<u64>) {
        self.number(number.is_some().into());
        if let Some(number) = number {
            self.number(number);
        }
    }

    fn memory(&mut self, event: &MemoryEvent) {
        self.repeat_definitions(event);
        let knows_purpose =
            event.shape == PurposeId::NO_TENSOR || self.group_purposes.contains(event.shape.0);
        let mut has = 0;
        for (bit, is_there) in [
            (has::DEVICE, event.device.is_some()),
            (has::TOTALS, event.totals.is_some()),
            (has::STACK, event.stack != StackId::NONE),
            (has::PURPOSE, knows_purpose),
            (has::CALL, event.call.is_some()),
        ] {
            has |= if is_there { bit } else { 0 };
        }
        let class = EventClass {
            action: event.action,
            tgid: event.tgid.0,
            tid: event.tid.0,
            device: event.device,
            call: event.call,
            has,
        };
        let class = self.classes.number(class);
        self.begin(record::MEMORY + class);
        self.time(event.time);
        push_difference(
            self.columns.of(FrameColumn::Addresses),
            self.addr,
            event.addr.0,
        );
        self.addr = event.addr.0;
        push(self.columns.of(FrameColumn::Sizes), event.size.0);
        if has & has::STACK != 0 {
            push(self.columns.of(FrameColumn::Stacks), event.stack.0.into());
        }
        if has & has::PURPOSE != 0 {
            push(self.columns.of(FrameColumn::Purposes), event.shape.0.into());
        }
        if let Some(totals) = event.totals {
            let Totals {
                allocated,
                reserved,
            } = self.predicted.after(event);
            let column = self.columns.of(FrameColumn::Allocated);
            push_difference(column, allocated.0, totals.allocated.0);
            let column = self.columns.of(FrameColumn::Reserved);
            push_difference(column, reserved.0, totals.reserved.0);
            self.predicted.set(event, totals);
        }
        if event.action != Action::Held {
            self.events += 1;
            self.group_events += 1;
            self.frame_events += 1;
        }
    }

    /// Defines the stack and the purpose of an event in this group, if an earlier one did.
    fn repeat_definitions(&mut self, event: &MemoryEvent) {
        self.repeat_stack(event.stack);
        if event.shape < PurposeId::FIRST || self.group_purposes.contains(event.shape.0) {
            return;
        }
        if let Some(purpose) = self.purposes.get(event.shape).map(Arc::clone) {
            self.purpose(record::PURPOSE_REPEATED, event.shape, &purpose);
        }
    }

    fn repeat_stack(&mut self, id: StackId) {
        if id == StackId::NONE || self.group_stacks.contains(id.0) {
            return;
        }
        if let Some(stack) = self.stacks.get(&id).map(Arc::clone) {
            self.stack(record::STACK_REPEATED, id, &stack);
        }
    }

    /// Writes the classes of the frame, in the order of their numbers.
    fn write_classes(&mut self) {
        for class in self.classes.in_order() {
            let column = self.columns.of(FrameColumn::Classes);
            push_bytes(column, class.action.as_str().as_bytes());
            for number in [class.has.into(), class.tgid, class.tid] {
                push(column, number.into());
            }
            if let Some(device) = class.device {
                push(column, device.0.into());
            }
            if let Some(call) = class.call {
                push_bytes(column, call.function.as_bytes());
                push_bytes(column, call.space.as_str().as_bytes());
            }
        }
    }

    fn stack(&mut self, kind: u64, id: StackId, stack: &Stack) {
        self.begin(kind);
        self.number(id.0.into());
        self.stack_fields(stack);
        let node = stack.context.node.as_ref();
        let forward = node.and_then(|node| node.forward.as_ref());
        self.optional_string(node.map(|node| &*node.name));
        if node.is_some() {
            self.number(forward.is_some().into());
        }
        if let Some(forward) = forward {
            self.stack_fields(forward);
        }
        self.group_stacks.insert(id.0);
    }

    /// Writes a stack without its node. Outer frames that do not fit into a payload are dropped.
    fn stack_fields(&mut self, stack: &Stack) {
        let mut lines = Vec::new();
        for frame in stack.frames.iter().take(MAX_FRAMES) {
            if self.columns.length() > MAX_PAYLOAD / 2 {
                break;
            }
            lines.push(self.definitions.line(&mut self.columns, frame));
        }
        let (kind, thread, reason) = match &stack.kind {
            StackKind::Python => ("python", None, None),
            StackKind::Native => ("native", None, None),
            StackKind::Waiting { thread } => ("waiting", Some(&**thread), None),
            StackKind::Unknown { thread, reason } => {
                ("unknown", Some(&**thread), Some(reason.as_str()))
            }
        };
        self.word(kind);
        self.optional_string(thread);
        self.word(reason.unwrap_or_default());
        self.number((stack.truncated || lines.len() < stack.frames.len()).into());
        let module = match &stack.context.module {
            Module::Outside => 0,
            Module::Unknown => 1,
            Module::Called(path) => 2 + self.definitions.string(&mut self.columns, path),
        };
        self.number(module);
        self.word(stack.context.grad.as_str());
        self.number(lines.len() as u64);
        let mut before = 0;
        for line in lines {
            push_difference(self.columns.of(FrameColumn::Details), before, line);
            before = line;
        }
    }

    fn purpose(&mut self, kind: u64, id: PurposeId, purpose: &BlockPurpose) {
        self.begin(kind);
        self.number(id.0.into());
        match purpose {
            BlockPurpose::Tensor(tensor) => {
                self.number(0);
                self.tensor(tensor);
            }
            BlockPurpose::Other(purpose) => {
                self.number(1);
                self.optional_string(purpose.what.as_deref().map(clipped));
                self.string(clipped(&purpose.function));
                self.string(clipped(&purpose.library));
            }
        }
        self.group_purposes.insert(id.0);
    }

    fn tensor(&mut self, tensor: &TensorSpec) {
        let sizes = &tensor.sizes[..tensor.sizes.len().min(MAX_DIMENSIONS)];
        let omitted = (tensor.sizes.len() - sizes.len()) as u64;
        self.number(sizes.len() as u64);
        sizes.iter().for_each(|size| self.number(*size));
        self.number((u64::from(tensor.more) + omitted).min(u32::MAX.into()));
        match tensor.dtype.name() {
            Some(name) => self.word(name),
            None => self.word(&tensor.dtype.to_string()),
        }
        self.optional_number(tensor.requested.map(|bytes| bytes.0));
    }

    fn at_attach(&mut self, found: &AtAttach) {
        self.begin(record::AT_ATTACH);
        self.time(found.time);
        self.number(found.tgid.0.into());
        self.optional_number(found.device.map(|device| device.0.into()));
        for totals in [found.totals, found.peak] {
            self.numbers([totals.allocated.0, totals.reserved.0]);
        }
        self.optional_string(found.unread.as_deref());
    }

    fn mark(&mut self, mark: &PhaseMark) {
        self.repeat_stack(mark.stack);
        self.begin(record::MARK);
        self.time(mark.time);
        self.numbers([mark.tgid.0.into(), mark.tid.0.into()]);
        self.word(mark.phase.as_str());
        self.string(&mark.class);
        self.number(mark.stack.0.into());
    }

    fn capture(&mut self, change: &CaptureChange) {
        self.begin(record::CAPTURE);
        self.time(change.time);
        self.number(change.tgid.0.into());
        self.word(change.level.as_str());
        self.numbers([change.overhead.0.into(), change.budget.0.into()]);
    }

    fn driver(&mut self, reading: &DriverReading) {
        self.begin(record::DRIVER);
        self.time(reading.time);
        self.numbers([reading.tgid.0.into(), reading.asked.0]);
        self.optional_string(reading.unread.as_deref());
        self.number(reading.devices.len() as u64);
        for memory in &reading.devices {
            self.numbers([memory.device.0.into(), memory.total.0, memory.used.0]);
            self.optional_number(memory.process.map(|process| process.0));
        }
    }

    fn labels(&mut self, end: u64, labels: &BlockLabels, emit: &mut impl FnMut(PlainFrame)) {
        self.is_in_list = true;
        for block in &labels.blocks {
            self.label(block);
            self.close_when_full(emit);
        }
        for tagged in &labels.tags {
            self.begin(record::TAG);
            self.numbers([tagged.addr.0, tagged.size.0]);
            self.string(&tagged.tag);
            self.close_when_full(emit);
        }
        self.is_in_list = false;
        self.begin(end);
        self.time(labels.time);
        self.numbers([labels.tgid.0.into(), labels.blocks.len() as u64]);
        self.number(labels.optimizers.len() as u64);
        for group in &labels.optimizers {
            self.string(&group.class);
            let optional = |flag: Option<bool>| flag.map_or(0, |flag| 1 + u64::from(flag));
            self.numbers([optional(group.foreach), optional(group.fused)]);
            self.numbers([group.differentiable.into(), group.has_tensor_rate.into()]);
        }
    }

    fn label(&mut self, block: &LabeledBlock) {
        self.begin(record::LABEL);
        self.numbers([block.addr.0, block.size.0, block.device.0.into()]);
        self.word(block.kind.map_or("", |kind| kind.as_str()));
        let name = block.name.as_ref();
        self.optional_string(name.map(|name| &*name.text));
        self.optional_string(name.and_then(|name| name.inferred));
        self.optional_string(block.module.as_deref());
        let called = block.called.as_ref();
        self.optional_string(called.map(|called| &*called.path));
        let is_call = called.is_some_and(|called| called.origin == CallPathOrigin::Call);
        self.number(is_call.into());
        self.optional_string(block.saved_by.as_deref());
        self.number(block.is_saved_variable.into());
        let retainer = block.retainer.as_deref();
        self.optional_string(retainer.map(|retainer| &*retainer.by));
        if let Some(retainer) = retainer {
            self.optional_string(retainer.class.as_deref());
            self.optional_string(retainer.slot.as_deref());
            self.optional_string(retainer.through.as_deref());
            self.number(retainer.exclusive.into());
        }
    }

    fn segments(&mut self, reading: &SegmentReading, emit: &mut impl FnMut(PlainFrame)) {
        let mut records = 0;
        self.is_in_list = true;
        for device in &reading.devices {
            for segment in &device.segments {
                self.segment(device.device, segment);
                self.close_when_full(emit);
            }
            for (addr, size) in &device.awaiting {
                self.begin(record::SEGMENT);
                self.numbers([0, device.device.0.into(), addr.0, size.0]);
                self.close_when_full(emit);
            }
            records += device.segments.len() + device.awaiting.len();
        }
        self.is_in_list = false;
        self.begin(record::SEGMENTS);
        self.time(reading.time);
        self.numbers([reading.tgid.0.into(), records as u64]);
        self.optional_string(reading.unread.as_deref());
        self.number(reading.devices.len() as u64);
        for device in &reading.devices {
            let DeviceSegments {
                totals,
                active,
                requested,
                ..
            } = device;
            self.numbers([
                device.device.0.into(),
                totals.allocated.0,
                totals.reserved.0,
            ]);
            self.numbers([active.0, requested.0]);
        }
    }

    fn segment(&mut self, device: DeviceIndex, found: &MemorySegment) {
        let mut flags = segment::IS_SEGMENT;
        if found.pool.size == PoolSize::Small {
            flags |= segment::SMALL;
        }
        if let PoolOwner::Private { state, .. } = found.pool.owner {
            flags |= segment::PRIVATE;
            if state == PrivatePoolState::Freeable {
                flags |= segment::FREEABLE;
            }
        }
        if found.expandable.is_some() {
            flags |= segment::EXPANDABLE;
        }
        self.begin(record::SEGMENT);
        self.numbers([flags.into(), device.0.into(), found.addr.0, found.size.0]);
        self.number(found.stream);
        if let PoolOwner::Private { id, .. } = found.pool.owner {
            self.numbers([id.0, id.1]);
        }
        if let Some(start) = found.expandable {
            self.number(start.0);
        }
    }
}

fn header_json(header: &Header) -> Vec<u8> {
    json(&HeaderRecord {
        format: FORMAT,
        header,
    })
}

/// Returns a record as JSON. Serialization cannot fail: the records are plain data.
fn json(record: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(record).unwrap_or_default()
}

/// Cuts a text about a purpose at the boundary of a character.
fn clipped(text: &str) -> &str {
    let mut end = text.len().min(MAX_PURPOSE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
