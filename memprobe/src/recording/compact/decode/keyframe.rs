//! Frames of a keyframe to the state of a ledger. The input is untrusted.

use std::sync::Arc;

use super::super::columns::{ColumnReader, FrameColumn};
use super::super::{MAX_RECORDS, keyframe_record, record};
use super::{CompactDecoder, FrameReader, device, segment_part};
use crate::event::{
    Address, BlockPurposes, Bytes, DeviceIndex, Event, Losses, PurposeId, StackId, Tid, TimeNs,
    TimeShare, Totals,
};
use crate::ledger::keyframe::{
    Agreement, BlockKeyframe, CallSiteKey, CallSiteKeyframe, CallSitesKeyframe, CudaGroupKeyframe,
    CudaMemoryKeyframe, CudaName, DeviceKeyframe, DriverMemoryState, LedgerKeyframe, Refused,
    SegmentMemoryKeyframe, TallyKeyframe,
};
use crate::ledger::snapshot::BudgetState;
use crate::recording::MAX_STACKS;

/// Most records of one keyframe.
const MAX_KEYFRAME: u64 = 1 << 23;

/// Most threads with names.
const MAX_THREADS: usize = 1 << 16;

/// Most call sites, and lines, of a device or library.
const MAX_CALL_SITES: usize = 1 << 18;

/// Most devices with reserved bytes.
const MAX_DEVICES: usize = 256;

/// Most segments.
const MAX_SEGMENTS: usize = 1 << 20;

/// Decodes the frames of one keyframe, in order.
#[derive(Default)]
pub(in crate::recording::compact) struct KeyframeDecoder {
    decoder: CompactDecoder,
    state: LedgerKeyframe,
    owner: CallSiteOwner,
    records: u64,
    has_ended: bool,
}

/// Owner of the next call sites.
#[derive(Clone, Copy, Default)]
enum CallSiteOwner {
    #[default]
    None,
    Device,
    CudaDevice,
    CudaGroup,
}

impl KeyframeDecoder {
    /// Returns the state; `None` if frames are missing.
    pub(in crate::recording::compact) fn finish(self) -> Option<LedgerKeyframe> {
        self.has_ended.then_some(self.state)
    }

    /// Returns true if no frame is missing.
    pub(in crate::recording::compact) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Decodes the next frame. An error describes the fault in a few words.
    pub(in crate::recording::compact) fn frame(&mut self, payload: &[u8]) -> Result<(), String> {
        let mut frame = FrameReader {
            columns: ColumnReader::new(payload)?,
            time: 0,
            addr: 0,
        };
        self.decoder.definitions.read(&mut frame.columns)?;
        let mut records = 0;
        while !frame.columns.of(FrameColumn::Kinds).is_empty() {
            records += 1;
            if self.has_ended || records > MAX_RECORDS || self.records > MAX_KEYFRAME {
                return Err("a keyframe of too many records".to_owned());
            }
            let kind = frame.columns.of(FrameColumn::Kinds).number()?;
            self.record(kind, &mut frame)?;
        }
        Ok(())
    }

    fn record(&mut self, kind: u64, frame: &mut FrameReader<'_>) -> Result<(), String> {
        match kind {
            keyframe_record::MOMENT => self.moment(frame)?,
            record::STACK => self.stack(frame)?,
            keyframe_record::STACK_ID => {
                let (id, number) = (StackId(frame.u32()?), frame.u32()?);
                if self.state.ids.len() >= MAX_STACKS {
                    return Err("a keyframe of too many stacks".to_owned());
                }
                self.state.ids.push((id, number));
            }
            record::PURPOSE => {
                let id = PurposeId(frame.u32()?);
                let purpose = Arc::new(self.decoder.purpose(frame)?);
                if self.state.purposes.len() > 2 * BlockPurposes::MOST {
                    return Err("a keyframe of too many purposes".to_owned());
                }
                self.state.purposes.push((id, purpose));
            }
            record::THREAD => {
                let tid = Tid(frame.u32()?);
                let name = self.decoder.string(frame)?;
                if self.state.threads.len() >= MAX_THREADS {
                    return Err("a keyframe of too many threads".to_owned());
                }
                self.state.threads.push((tid, name));
            }
            keyframe_record::DEVICE => {
                let device = self.device(frame)?;
                let is_after = |last: &DeviceKeyframe| last.index < device.index;
                if !self.state.devices.last().is_none_or(is_after) {
                    return Err("devices out of order".to_owned());
                }
                self.state.devices.push(device);
                self.owner = CallSiteOwner::Device;
            }
            keyframe_record::CUDA_DEVICE => {
                let device = self.device(frame)?;
                self.state.cuda.devices.push(device);
                self.owner = CallSiteOwner::CudaDevice;
            }
            keyframe_record::CUDA_KIND => {
                let kind = frame.word("memory of an unknown kind")?;
                self.state.cuda.peaks.insert(kind, frame.number()?);
            }
            keyframe_record::CUDA_GROUP => {
                let group = self.cuda_group(frame)?;
                self.state.cuda.groups.push(group);
                self.owner = CallSiteOwner::CudaGroup;
            }
            keyframe_record::CALL_SITE => self.call_site(frame)?,
            keyframe_record::LINE_PEAKS => self.line_peaks(frame)?,
            keyframe_record::BLOCK => self.block(frame)?,
            keyframe_record::CUDA_MEMORY => {
                let memory = cuda_memory(frame)?;
                self.state.cuda.live.push(memory);
            }
            record::SEGMENT => {
                let (device, part) = segment_part(frame)?;
                self.decoder.segments.add(device, part)?;
                // The record at the end counts them.
                return Ok(());
            }
            record::LABEL => {
                let label = self.decoder.label(frame)?;
                self.decoder.naming.add(label)?;
                // The record at the end counts them.
                return Ok(());
            }
            record::TAG => {
                let tagged = self.decoder.tag(frame)?;
                self.decoder.naming.add_tag(tagged)?;
                return Ok(());
            }
            record::LABELS => self.state.labels = self.decoder.labels(frame)?,
            record::BASELINE_LABELS => self.state.baseline_labels = self.decoder.labels(frame)?,
            record::SEGMENTS => {
                if let Some(Event::Segments(reading)) = self.decoder.segments(frame)? {
                    self.state.segments = Some(reading);
                }
            }
            keyframe_record::SEGMENT_MEMORY => {
                let memory = segment_memory(frame)?;
                if self.state.segment_memory.len() >= MAX_SEGMENTS {
                    return Err("a keyframe of too many segments".to_owned());
                }
                self.state.segment_memory.push(memory);
            }
            keyframe_record::DRIVER_MEMORY => {
                let (device, memory) = driver_memory(frame)?;
                self.state.driver.devices.insert(device, memory);
            }
            keyframe_record::RESERVED => {
                let (device, bytes) = (frame.device()?, Bytes(frame.number()?));
                if self.state.reserved.len() > MAX_DEVICES {
                    return Err("a keyframe of too many devices".to_owned());
                }
                self.state.reserved.push((device, bytes));
            }
            keyframe_record::DRIVER_STATE => {
                self.state.driver.changed = TimeNs(frame.number()?);
                self.state.driver.unread = self.decoder.optional_string(frame)?;
            }
            keyframe_record::END => {
                if frame.number()? != self.records {
                    return Err("parts of a keyframe are missing".to_owned());
                }
                self.has_ended = true;
            }
            _ => return Err("a record of unknown kind".to_owned()),
        }
        self.records += 1;
        Ok(())
    }

    fn moment(&mut self, frame: &mut FrameReader<'_>) -> Result<(), String> {
        let state = &mut self.state;
        state.started = TimeNs(frame.number()?);
        state.last_event = frame.optional_number()?.map(TimeNs);
        (state.events, state.malformed) = (frame.number()?, frame.number()?);
        state.losses = Losses {
            events: frame.number()?,
            stacks: frame.number()?,
            malformed: frame.number()?,
            uses: frame.number()?,
        };
        state.agreement = Agreement {
            confirmed: frame.number()?,
            suspected: frame.number()?,
            suspected_at: TimeNs(frame.number()?),
            explicable: frame.number()?,
            loss_at: frame.optional_number()?.map(TimeNs),
            changed_at: frame.optional_number()?.map(TimeNs),
        };
        state.budget = frame.flag()?.then(|| budget(frame)).transpose()?;
        state.unread_at_attach = self.decoder.optional_string(frame)?;
        state.refused = Refused {
            blocks: frame.number()?,
            stacks: frame.number()?,
            threads: frame.number()?,
        };
        state.stacks_refused = frame.flag()?;
        state.cuda.layer = frame.word("an unknown layer of software")?;
        Ok(())
    }

    fn stack(&mut self, frame: &mut FrameReader<'_>) -> Result<(), String> {
        let number = frame.u32()? as usize;
        let stack = self.decoder.stack(frame)?;
        let stacks = &mut self.state.stacks;
        if number != stacks.len() + 1 || number > MAX_STACKS {
            return Err("stacks of a keyframe out of order".to_owned());
        }
        self.decoder.count_frames(&stack)?;
        stacks.push(Arc::new(stack));
        Ok(())
    }

    fn device(&mut self, frame: &mut FrameReader<'_>) -> Result<DeviceKeyframe, &'static str> {
        let index = frame.device()?;
        let mut totals = || Ok::<_, &str>(Totals::of(frame.number()?, frame.number()?));
        let (totals, peak) = (totals()?, totals()?);
        Ok(DeviceKeyframe {
            index,
            totals,
            peak,
            found: frame.number()?,
            unknown: frame.number()?,
            unseen_frees: frame.number()?,
            ooms: frame.number()?,
            is_as_found: frame.flag()?,
            unread: self.decoder.optional_string(frame)?,
            call_sites: CallSitesKeyframe::default(),
            blocks: Vec::new(),
        })
    }

    fn cuda_group(
        &mut self,
        frame: &mut FrameReader<'_>,
    ) -> Result<CudaGroupKeyframe, &'static str> {
        Ok(CudaGroupKeyframe {
            library: self.decoder.string(frame)?,
            space: frame.word("memory of an unknown kind")?,
            device: frame.optional_number()?.map(device).transpose()?,
            counts: counts(frame)?,
            call_sites: CallSitesKeyframe::default(),
        })
    }

    /// Returns the call sites that the next records belong to.
    fn owned(&mut self) -> Result<&mut CallSitesKeyframe, &'static str> {
        let LedgerKeyframe { devices, cuda, .. } = &mut self.state;
        let owner = match self.owner {
            CallSiteOwner::None => None,
            CallSiteOwner::Device => devices.last_mut().map(|device| &mut device.call_sites),
            CallSiteOwner::CudaDevice => {
                let device = cuda.devices.last_mut();
                device.map(|device| &mut device.call_sites)
            }
            CallSiteOwner::CudaGroup => cuda.groups.last_mut().map(|group| &mut group.call_sites),
        };
        owner.ok_or("a call site of no device")
    }

    fn call_site(&mut self, frame: &mut FrameReader<'_>) -> Result<(), &'static str> {
        let key = match frame.number()? {
            0 => CallSiteKey::Stack(frame.u32()?),
            1 => CallSiteKey::Thread(self.decoder.string(frame)?),
            2 => CallSiteKey::Overflow,
            _ => return Err("a call site of unknown kind"),
        };
        let counts = counts(frame)?;
        let call_sites = &mut self.owned()?.call_sites;
        if call_sites.len() >= MAX_CALL_SITES {
            return Err("too many call sites");
        }
        call_sites.push(CallSiteKeyframe { key, counts });
        Ok(())
    }

    fn line_peaks(&mut self, frame: &mut FrameReader<'_>) -> Result<(), &'static str> {
        let slot = usize::try_from(frame.number()?).unwrap_or(usize::MAX);
        let count = frame.details().count()?;
        let peaks = self.owned()?.line_peaks.get_mut(slot);
        let peaks = peaks.ok_or("lines of an unknown grouping")?;
        if peaks.len() + count > MAX_CALL_SITES {
            return Err("too many lines");
        }
        for _ in 0..count {
            peaks.push(frame.number()?);
        }
        Ok(())
    }

    fn block(&mut self, frame: &mut FrameReader<'_>) -> Result<(), &'static str> {
        let block = BlockKeyframe {
            addr: frame.addr()?,
            size: Bytes(frame.columns.of(FrameColumn::Sizes).number()?),
            stack: frame.columns.of(FrameColumn::Stacks).u32()?,
            purpose: PurposeId(frame.columns.of(FrameColumn::Purposes).u32()?),
            call_site: frame.u32()?.checked_sub(1),
        };
        let device = self.state.devices.last_mut();
        device.ok_or("a block of no device")?.blocks.push(block);
        Ok(())
    }
}

fn counts(frame: &mut FrameReader<'_>) -> Result<TallyKeyframe, &'static str> {
    Ok(TallyKeyframe {
        peak: frame.number()?,
        allocs: frame.number()?,
        alloc_bytes: frame.number()?,
    })
}

fn budget(frame: &mut FrameReader<'_>) -> Result<BudgetState, &'static str> {
    const UNKNOWN: &str = "a level of detail that is not known";
    let mut share = || Ok::<_, &str>(TimeShare(frame.u32()?));
    let (budget, overhead, peak_overhead) = (share()?, share()?, share()?);
    Ok(BudgetState {
        budget,
        overhead,
        peak_overhead,
        level: frame.word(UNKNOWN)?,
        deepest: frame.word(UNKNOWN)?,
        since: TimeNs(frame.number()?),
        started: TimeNs(frame.number()?),
        pauses: frame.number()?,
        paused: frame.number()?,
    })
}

fn cuda_memory(frame: &mut FrameReader<'_>) -> Result<CudaMemoryKeyframe, &'static str> {
    let kind = frame.number()?;
    let number = frame.number()?;
    let name = match kind {
        0 => CudaName::Address(number),
        1 => CudaName::Array(number),
        2 => CudaName::Handle(number),
        _ => return Err("memory of an unknown kind"),
    };
    Ok(CudaMemoryKeyframe {
        name,
        size: Bytes(frame.number()?),
        group: frame.u32()?,
        call_site: frame.u32()?,
        on_device: match frame.flag()? {
            true => Some((frame.device()?, frame.u32()?)),
            false => None,
        },
    })
}

fn segment_memory(frame: &mut FrameReader<'_>) -> Result<SegmentMemoryKeyframe, &'static str> {
    let (addr, size) = (Address(frame.number()?), Bytes(frame.number()?));
    if addr.0.checked_add(size.0).is_none() {
        return Err("a segment beyond the last address");
    }
    Ok(SegmentMemoryKeyframe {
        addr,
        size,
        stack: frame.u32()?,
        device: frame.optional_number()?.map(device).transpose()?,
        kind: frame.word("memory of an unknown kind")?,
        is_asleep: frame.flag()?,
    })
}

fn driver_memory(
    frame: &mut FrameReader<'_>,
) -> Result<(DeviceIndex, DriverMemoryState), &'static str> {
    let device = frame.device()?;
    let state = DriverMemoryState {
        time: TimeNs(frame.number()?),
        total: Bytes(frame.number()?),
        used: Bytes(frame.number()?),
        process: frame.optional_number()?.map(Bytes),
        unattributed: frame.optional_number()?.map(u64::cast_signed),
        is_exact: frame.flag()?,
    };
    Ok((device, state))
}
