//! Frames to events. The input is untrusted.

mod keyframe;

use std::collections::VecDeque;
use std::str::FromStr;
use std::sync::Arc;

use super::columns::{ColumnReader, FrameColumn};
use super::definitions::DefinitionReader;
use super::encode::{PredictedTotals, has, segment};
use super::id_set::IdSet;
use super::varint::VarintReader;
use super::{MAX_RECORDS, record};
use crate::cuda::calls::function_named;
use crate::event::tensors::{Name, Retainer};
use crate::event::{
    Action, Address, AtAttach, BlockLabels, BlockPurpose, BlockPurposes, Bytes, CallPathOrigin,
    CalledModule, CaptureChange, Context, CudaCall, DeviceIndex, DriverCount, DriverReading, Event,
    LabeledBlock, Losses, MemoryEvent, MemorySegment, Module, Node, PhaseMark, Pool, PoolId,
    PoolOwner, PoolSize, PrivatePoolState, Purpose, PurposeId, Stack, StackId, StackKind,
    StepSettings, TaggedAllocation, TensorSpec, Tgid, Tid, TimeNs, TimeShare, Totals,
};
use crate::recording::line::dtype_named;
use crate::recording::names::{MAX_OPTIMIZERS, PendingNames};
use crate::recording::reader::lost_stack;
use crate::recording::segments::{DeviceRecord, MAX_DEVICES, PendingSegments, SegmentPart};
use crate::recording::{MAX_DIMENSIONS, MAX_FRAMES, MAX_STACKS};

pub(super) use keyframe::KeyframeDecoder;

/// Most frames of all stacks of one recording together. Fewer than in a trace, whose frames take more of the file.
const MAX_ALL_FRAMES: usize = 1 << 23;

const TOO_MANY_STACKS: &str = "more stacks than a recording may have";

/// Decodes the frames of a recording, in order. Its memory is bounded by the definitions of the recording and one
/// frame.
#[derive(Default)]
pub(super) struct CompactDecoder {
    definitions: DefinitionReader,
    predicted: PredictedTotals,
    /// Stacks and purposes that the events so far have defined.
    stacks: IdSet,
    /// The latest ones at least: IDs only grow ([`BlockPurposes`]).
    purposes: IdSet,
    /// Frames of all stacks that were returned.
    frames: usize,
    naming: PendingNames,
    segments: PendingSegments,
    /// True if records are missing.
    has_damage: bool,
}

/// Fields that many memory events of a frame share.
struct EventClass {
    model: MemoryEvent,
    has: u8,
}

/// Columns of one frame, and the last values of those with differences.
struct FrameReader<'a> {
    columns: ColumnReader<'a>,
    time: u64,
    addr: u64,
}

impl<'a> FrameReader<'a> {
    #[inline]
    fn time(&mut self) -> Result<TimeNs, &'static str> {
        self.time = self.columns.of(FrameColumn::Times).after(self.time)?;
        Ok(TimeNs(self.time))
    }

    #[inline]
    fn addr(&mut self) -> Result<Address, &'static str> {
        self.addr = self.columns.of(FrameColumn::Addresses).after(self.addr)?;
        Ok(Address(self.addr))
    }

    fn details(&mut self) -> &mut VarintReader<'a> {
        self.columns.of(FrameColumn::Details)
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        self.details().number()
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.details().u32()
    }

    /// Reads a word of an enumeration.
    fn word<T: FromStr>(&mut self, unknown: &'static str) -> Result<T, &'static str> {
        word(self.details(), unknown)
    }

    fn flag(&mut self) -> Result<bool, &'static str> {
        Ok(self.number()? != 0)
    }

    fn optional_number(&mut self) -> Result<Option<u64>, &'static str> {
        self.flag()?.then(|| self.number()).transpose()
    }

    fn device(&mut self) -> Result<DeviceIndex, &'static str> {
        device(self.number()?)
    }
}

fn word<T: FromStr>(
    column: &mut VarintReader<'_>,
    unknown: &'static str,
) -> Result<T, &'static str> {
    text(column)?.parse().map_err(|_| unknown)
}

fn text<'a>(column: &mut VarintReader<'a>) -> Result<&'a str, &'static str> {
    std::str::from_utf8(column.bytes()?).map_err(|_| "a word that is no UTF-8")
}

fn device(number: u64) -> Result<DeviceIndex, &'static str> {
    let index = u8::try_from(number);
    index.map(DeviceIndex).map_err(|_| "a device beyond 255")
}

impl CompactDecoder {
    /// Notes that records are missing: what they defined or began is unknown.
    pub(super) fn skip_damage(&mut self) {
        self.has_damage = true;
        self.naming = PendingNames::default();
        self.segments = PendingSegments::default();
    }

    /// Forgets the definitions of the previous group.
    pub(super) fn begin_group(&mut self) {
        self.definitions.clear();
    }

    /// Appends the events of a frame; returns the number of memory events. An error describes the fault in a few
    /// words; the frame has no events then.
    pub(super) fn frame(
        &mut self,
        payload: &[u8],
        events: &mut VecDeque<Event>,
    ) -> Result<u64, String> {
        let before = events.len();
        let decoded = self.each_event(payload, &mut |event| events.push_back(event));
        if decoded.is_err() {
            events.truncate(before);
        }
        decoded
    }

    /// Passes on the events of a frame; returns the number of memory events. Before an error some may have been passed on.
    fn each_event(&mut self, payload: &[u8], sink: &mut impl FnMut(Event)) -> Result<u64, String> {
        let mut frame = FrameReader {
            columns: ColumnReader::new(payload)?,
            time: 0,
            addr: 0,
        };
        self.definitions.read(&mut frame.columns)?;
        self.predicted.clear();
        let classes = Self::classes(&mut frame)?;
        let (mut records, mut memory_events) = (0, 0);
        while !frame.columns.of(FrameColumn::Kinds).is_empty() {
            records += 1;
            if records > MAX_RECORDS {
                return Err(format!("more than {MAX_RECORDS} records"));
            }
            let kind = frame.columns.of(FrameColumn::Kinds).number()?;
            match kind.checked_sub(record::MEMORY) {
                Some(class) => {
                    let class = usize::try_from(class).ok().and_then(|at| classes.get(at));
                    let class = class.ok_or("an event of an unknown class")?;
                    let event = self.memory(&mut frame, class)?;
                    memory_events += u64::from(event.action != Action::Held);
                    self.define_missing(event.stack, sink);
                    sink(Event::Memory(event));
                }
                None => self.other(kind, &mut frame, sink)?,
            }
        }
        Ok(memory_events)
    }

    fn classes(frame: &mut FrameReader<'_>) -> Result<Vec<EventClass>, String> {
        let mut classes = Vec::new();
        let column = frame.columns.of(FrameColumn::Classes);
        while !column.is_empty() {
            if classes.len() >= MAX_RECORDS {
                return Err(format!("more than {MAX_RECORDS} classes"));
            }
            let action = word(column, "an unknown action")?;
            let has = column.byte()?;
            let (tgid, tid) = (Tgid(column.u32()?), Tid(column.u32()?));
            let device = match has & has::DEVICE {
                0 => None,
                _ => Some(device(column.number()?)?),
            };
            let call = match has & has::CALL {
                0 => None,
                _ => Some(CudaCall {
                    function: function_named(text(column)?)
                        .ok_or("no function of CUDA")?
                        .name,
                    space: word(column, "memory of an unknown kind")?,
                }),
            };
            let model = MemoryEvent {
                time: TimeNs(0),
                tgid,
                tid,
                action,
                addr: Address(0),
                size: Bytes(0),
                device,
                totals: None,
                stack: StackId::NONE,
                shape: PurposeId::NONE,
                call,
            };
            classes.push(EventClass { model, has });
        }
        Ok(classes)
    }

    #[inline]
    fn memory(
        &mut self,
        frame: &mut FrameReader<'_>,
        class: &EventClass,
    ) -> Result<MemoryEvent, &'static str> {
        let mut event = MemoryEvent {
            time: frame.time()?,
            addr: frame.addr()?,
            ..class.model
        };
        event.size = Bytes(frame.columns.of(FrameColumn::Sizes).number()?);
        if class.has & has::STACK != 0 {
            event.stack = StackId(frame.columns.of(FrameColumn::Stacks).u32()?);
        }
        if class.has & has::PURPOSE != 0 {
            let purpose = frame.columns.of(FrameColumn::Purposes).u32()?;
            // One whose definition was damaged is unknown.
            if purpose < PurposeId::FIRST.0 || self.purposes.contains(purpose) {
                event.shape = PurposeId(purpose);
            }
        }
        if class.has & has::TOTALS != 0 {
            let Totals {
                allocated,
                reserved,
            } = self.predicted.after(&event);
            let allocated = frame
                .columns
                .of(FrameColumn::Allocated)
                .after(allocated.0)?;
            let reserved = frame.columns.of(FrameColumn::Reserved).after(reserved.0)?;
            let totals = Totals::of(allocated, reserved);
            self.predicted.set(&event, totals);
            event.totals = Some(totals);
        }
        Ok(event)
    }

    /// Defines a stack that the recording does not define, as a lost one.
    #[inline]
    fn define_missing(&mut self, id: StackId, sink: &mut impl FnMut(Event)) {
        let is_known = id == StackId::NONE || self.stacks.contains(id.0);
        if is_known || self.stacks.len() >= MAX_STACKS {
            return;
        }
        self.stacks.insert(id.0);
        let thread = self.definitions.intern("");
        sink(Event::Stack(id, Arc::new(lost_stack(thread))));
    }

    /// Decodes a record that is no memory event.
    fn other(
        &mut self,
        kind: u64,
        frame: &mut FrameReader<'_>,
        sink: &mut impl FnMut(Event),
    ) -> Result<(), String> {
        let event = match kind {
            record::STACK | record::STACK_REPEATED => {
                let id = frame.u32()?;
                let stack = self.stack(frame)?;
                let is_new = !self.stacks.contains(id);
                if is_new && self.stacks.len() >= MAX_STACKS {
                    return Err(TOO_MANY_STACKS.to_owned());
                }
                self.stacks.insert(id);
                // A repetition counts once: each group has them.
                let is_event = kind == record::STACK || is_new;
                if is_event {
                    self.count_frames(&stack)?;
                }
                is_event.then(|| Event::Stack(StackId(id), Arc::new(stack)))
            }
            record::PURPOSE | record::PURPOSE_REPEATED => {
                let id = frame.u32()?;
                let purpose = self.purpose(frame)?;
                let is_new = self.purposes.insert(id);
                self.purposes.limit_beyond(2 * BlockPurposes::MOST);
                (kind == record::PURPOSE || is_new)
                    .then(|| Event::BlockPurpose(PurposeId(id), Arc::new(purpose)))
            }
            record::THREAD => {
                let tid = Tid(frame.u32()?);
                Some(Event::Thread(tid, self.string(frame)?))
            }
            record::AT_ATTACH => Some(Event::AtAttach(self.at_attach(frame)?)),
            record::MARK => {
                let mark = self.mark(frame)?;
                self.define_missing(mark.stack, sink);
                Some(Event::PhaseMark(mark))
            }
            record::LABEL => {
                let label = self.label(frame)?;
                self.naming.add(label)?;
                None
            }
            record::TAG => {
                let tagged = self.tag(frame)?;
                self.naming.add_tag(tagged)?;
                None
            }
            record::LABELS => self.labels(frame)?.map(Event::BlockLabels),
            record::BASELINE_LABELS => self.labels(frame)?.map(Event::BaselineLabels),
            record::SEGMENT => {
                let (device, part) = segment_part(frame)?;
                self.segments.add(device, part)?;
                None
            }
            record::SEGMENTS => self.segments(frame)?,
            record::LOSS => Some(Event::Loss(Losses {
                events: frame.number()?,
                stacks: frame.number()?,
                malformed: frame.number()?,
                uses: frame.number()?,
            })),
            record::DRIVER => Some(Event::Driver(Arc::new(self.driver(frame)?))),
            record::CAPTURE => Some(Event::Capture(CaptureChange {
                time: frame.time()?,
                tgid: Tgid(frame.u32()?),
                level: frame.word("a level of detail that is not known")?,
                overhead: TimeShare(frame.u32()?),
                budget: TimeShare(frame.u32()?),
            })),
            _ => return Err("a record of unknown kind".to_owned()),
        };
        if let Some(event) = event {
            sink(event);
        }
        Ok(())
    }

    fn count_frames(&mut self, stack: &Stack) -> Result<(), String> {
        let node = stack.context.node.as_ref();
        let forward = node.and_then(|node| node.forward.as_ref());
        self.frames += stack.frames.len() + forward.map_or(0, |forward| forward.frames.len());
        match self.frames {
            ..=MAX_ALL_FRAMES => Ok(()),
            _ => Err(format!("more than {MAX_ALL_FRAMES} frames")),
        }
    }

    fn string(&mut self, frame: &mut FrameReader<'_>) -> Result<Arc<str>, &'static str> {
        Ok(self.definitions.string(frame.number()?))
    }

    fn optional_string(
        &mut self,
        frame: &mut FrameReader<'_>,
    ) -> Result<Option<Arc<str>>, &'static str> {
        Ok(self.definitions.optional_string(frame.number()?))
    }

    fn stack(&mut self, frame: &mut FrameReader<'_>) -> Result<Stack, String> {
        let mut stack = self.stack_fields(frame)?;
        if let Some(name) = self.optional_string(frame)? {
            let forward = frame
                .flag()?
                .then(|| self.stack_fields(frame))
                .transpose()?;
            stack.context.node = Some(Arc::new(Node {
                name,
                forward: forward.map(Arc::new),
            }));
        }
        Ok(stack)
    }

    fn stack_fields(&mut self, frame: &mut FrameReader<'_>) -> Result<Stack, String> {
        let kind = text(frame.details())?;
        let thread = self.optional_string(frame)?;
        let reason = text(frame.details())?;
        let thread = || thread.ok_or("a stack without its thread");
        let kind = match kind {
            "python" => StackKind::Python,
            "native" => StackKind::Native,
            "waiting" => StackKind::Waiting { thread: thread()? },
            "unknown" => StackKind::Unknown {
                thread: thread()?,
                reason: reason
                    .parse()
                    .map_err(|_| "a stack without a reason that is known")?,
            },
            _ => return Err("a stack of unknown kind".to_owned()),
        };
        let truncated = frame.flag()?;
        let module = match frame.number()? {
            0 => Module::Outside,
            1 => Module::Unknown,
            path => Module::Called(self.definitions.string(path - 2)),
        };
        let grad = frame.word("a stack with an unknown grad mode")?;
        let count = frame.details().count()?;
        if count > MAX_FRAMES {
            return Err(format!("a stack of {count} frames"));
        }
        let mut frames = Vec::with_capacity(count);
        let mut line = 0;
        for _ in 0..count {
            line = frame.details().after(line)?;
            frames.push(self.definitions.line(line));
        }
        Ok(Stack {
            kind,
            frames,
            truncated,
            context: Context {
                module,
                grad,
                node: None,
            },
        })
    }

    fn purpose(&mut self, frame: &mut FrameReader<'_>) -> Result<BlockPurpose, String> {
        if frame.flag()? {
            return Ok(BlockPurpose::Other(Purpose {
                what: self.optional_string(frame)?,
                function: self.string(frame)?,
                library: self.string(frame)?,
            }));
        }
        let dimensions = frame.details().count()?;
        if dimensions > MAX_DIMENSIONS {
            return Err(format!("a tensor of {dimensions} dimensions"));
        }
        let sizes = (0..dimensions)
            .map(|_| frame.number())
            .collect::<Result<_, _>>()?;
        let more = frame.u32()?;
        let dtype = text(frame.details())?;
        Ok(BlockPurpose::Tensor(TensorSpec {
            sizes,
            more,
            dtype: dtype_named(dtype).ok_or("an unknown type of elements")?,
            requested: frame.optional_number()?.map(Bytes),
        }))
    }

    fn at_attach(&mut self, frame: &mut FrameReader<'_>) -> Result<AtAttach, &'static str> {
        let (time, tgid) = (frame.time()?, Tgid(frame.u32()?));
        let device = frame.optional_number()?.map(device).transpose()?;
        let mut totals = || Ok::<_, &str>(Totals::of(frame.number()?, frame.number()?));
        let (totals, peak) = (totals()?, totals()?);
        Ok(AtAttach {
            time,
            tgid,
            device,
            totals,
            peak,
            unread: self.optional_string(frame)?,
        })
    }

    fn mark(&mut self, frame: &mut FrameReader<'_>) -> Result<PhaseMark, String> {
        Ok(PhaseMark {
            time: frame.time()?,
            tgid: Tgid(frame.u32()?),
            tid: Tid(frame.u32()?),
            phase: frame.word("a mark of an unknown phase")?,
            class: self.string(frame)?,
            stack: StackId(frame.u32()?),
        })
    }

    fn label(&mut self, frame: &mut FrameReader<'_>) -> Result<LabeledBlock, String> {
        let (addr, size) = (Address(frame.number()?), Bytes(frame.number()?));
        let device = frame.device()?;
        let kind = match text(frame.details())? {
            "" => None,
            word => Some(word.parse().map_err(|_| "a block of unknown kind")?),
        };
        let name = self.optional_string(frame)?;
        let rule = self.optional_string(frame)?;
        let module = self.optional_string(frame)?;
        let path = self.optional_string(frame)?;
        let origin = match frame.flag()? {
            true => CallPathOrigin::Call,
            false => CallPathOrigin::Class,
        };
        let saved_by = self.optional_string(frame)?;
        let is_saved_variable = frame.flag()?;
        let retainer = match self.optional_string(frame)? {
            Some(by) => Some(Arc::new(Retainer {
                by,
                class: self.optional_string(frame)?,
                slot: self.optional_string(frame)?,
                through: self.optional_string(frame)?,
                exclusive: frame.flag()?,
            })),
            None => None,
        };
        Ok(LabeledBlock {
            addr,
            size,
            device,
            kind,
            name: name.map(|text| Name {
                text,
                inferred: rule.as_deref().map(Name::rule),
            }),
            module,
            called: path.map(|path| CalledModule { path, origin }),
            saved_by,
            retainer,
            is_saved_variable,
        })
    }

    fn tag(&mut self, frame: &mut FrameReader<'_>) -> Result<TaggedAllocation, String> {
        Ok(TaggedAllocation {
            addr: Address(frame.number()?),
            size: Bytes(frame.number()?),
            tag: self.string(frame)?,
        })
    }

    /// Returns the labels of a moment; `None` if some of them are lost.
    fn labels(&mut self, frame: &mut FrameReader<'_>) -> Result<Option<Arc<BlockLabels>>, String> {
        let (time, tgid, count) = (frame.time()?, Tgid(frame.u32()?), frame.number()?);
        let groups = frame.details().count()?;
        if groups > MAX_OPTIMIZERS {
            return Err(format!("more than {MAX_OPTIMIZERS} settings of optimizers"));
        }
        let mut optimizers = Vec::new();
        for _ in 0..groups {
            let class = self.string(frame)?;
            let mut optional =
                || Ok::<_, &str>(frame.number()?.checked_sub(1).map(|flag| flag != 0));
            let (foreach, fused) = (optional()?, optional()?);
            optimizers.push(StepSettings {
                class: (*class).to_owned(),
                foreach,
                fused,
                differentiable: frame.flag()?,
                has_tensor_rate: frame.flag()?,
            });
        }
        match self.naming.end((time, tgid), count, optimizers) {
            Ok(labels) => Ok(Some(Arc::new(labels))),
            Err(_) if self.has_damage => Ok(None),
            Err(reason) => Err(reason),
        }
    }

    fn driver(&mut self, frame: &mut FrameReader<'_>) -> Result<DriverReading, String> {
        let (time, tgid) = (frame.time()?, Tgid(frame.u32()?));
        let asked = TimeNs(frame.number()?);
        let unread = self.optional_string(frame)?;
        let devices = frame.details().count()?;
        if devices > MAX_DEVICES {
            return Err(format!("memory of more than {MAX_DEVICES} devices"));
        }
        let devices = (0..devices).map(|_| {
            Ok::<_, &str>(DriverCount {
                device: frame.device()?,
                total: Bytes(frame.number()?),
                used: Bytes(frame.number()?),
                process: frame.optional_number()?.map(Bytes),
            })
        });
        let devices = devices.collect::<Result<_, _>>()?;
        Ok(DriverReading {
            time,
            asked,
            tgid,
            devices,
            unread,
        })
    }

    /// Returns a reading of the segments; `None` if some of them are lost.
    fn segments(&mut self, frame: &mut FrameReader<'_>) -> Result<Option<Event>, String> {
        let (time, tgid, count) = (frame.time()?, Tgid(frame.u32()?), frame.number()?);
        let unread = self.optional_string(frame)?;
        let devices = frame.details().count()?;
        if devices > MAX_DEVICES {
            return Err(format!("segments of more than {MAX_DEVICES} devices"));
        }
        let devices = (0..devices).map(|_| {
            Ok::<_, &str>(DeviceRecord {
                device: frame.device()?,
                allocated: frame.number()?,
                reserved: frame.number()?,
                active: frame.number()?,
                requested: frame.number()?,
            })
        });
        let devices: Vec<_> = devices.collect::<Result<_, _>>()?;
        match self.segments.end(count, &devices, unread, time, tgid) {
            Ok(reading) => Ok(Some(Event::Segments(Arc::new(reading)))),
            Err(_) if self.has_damage => Ok(None),
            Err(reason) => Err(reason),
        }
    }
}

fn segment_part(frame: &mut FrameReader<'_>) -> Result<(DeviceIndex, SegmentPart), &'static str> {
    let flags = frame.details().byte()?;
    let device = frame.device()?;
    let (addr, size) = (Address(frame.number()?), Bytes(frame.number()?));
    if flags & segment::IS_SEGMENT == 0 {
        return Ok((device, SegmentPart::Awaiting(addr, size)));
    }
    let stream = frame.number()?;
    let owner = match flags & segment::PRIVATE {
        0 => PoolOwner::Default,
        _ => PoolOwner::Private {
            id: PoolId(frame.number()?, frame.number()?),
            state: match flags & segment::FREEABLE {
                0 => PrivatePoolState::InUse,
                _ => PrivatePoolState::Freeable,
            },
        },
    };
    let expandable = match flags & segment::EXPANDABLE {
        0 => None,
        _ => Some(Address(frame.number()?)),
    };
    let size_class = match flags & segment::SMALL {
        0 => PoolSize::Large,
        _ => PoolSize::Small,
    };
    let found = MemorySegment {
        addr,
        size,
        stream,
        pool: Pool {
            owner,
            size: size_class,
        },
        expandable,
    };
    Ok((device, SegmentPart::Segment(found)))
}
