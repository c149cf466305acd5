//! State of a ledger to frames of a keyframe.

use super::super::columns::FrameColumn;
use super::super::definitions::DefinitionWriter;
use super::super::frame::{FrameKind, PlainFrame};
use super::super::varint::{push, push_difference};
use super::super::{keyframe_record, record};
use super::CompactEncoder;
use crate::event::{Losses, StackId, TimeNs};
use crate::ledger::keyframe::{
    BlockKeyframe, CallSiteKey, CallSitesKeyframe, CudaKeyframe, CudaMemoryKeyframe, CudaName,
    DeviceKeyframe, LedgerKeyframe, TallyKeyframe,
};
use crate::ledger::snapshot::BudgetState;
use crate::recording::Header;

/// Peaks of lines in one record.
const PEAKS: usize = 1 << 14;

/// Encodes a keyframe at the begin of a group, as frames for [`super::super::decode::KeyframeDecoder`].
pub(in crate::recording) fn encode_keyframe(
    state: &LedgerKeyframe,
    group: u16,
    first_event: u64,
    emit: &mut impl FnMut(PlainFrame),
) {
    let mut encoder = CompactEncoder {
        kind: FrameKind::Keyframe,
        group,
        events: first_event,
        definitions: DefinitionWriter::default(),
        ..CompactEncoder::new(&Header::default())
    };
    encoder.keyframe(state, emit);
}

/// Keyframe that is being encoded: counts the records, so that a reader notices a missing frame.
struct RecordCount(u64);

impl CompactEncoder {
    fn keyframe(&mut self, state: &LedgerKeyframe, emit: &mut impl FnMut(PlainFrame)) {
        let time = state.last_event.unwrap_or(state.started).0;
        self.times = [time, time];
        let mut count = RecordCount(0);
        self.moment(state);
        self.next(&mut count, emit);
        for (at, stack) in state.stacks.iter().enumerate() {
            let number = u32::try_from(at + 1).unwrap_or(u32::MAX);
            self.stack(record::STACK, StackId(number), stack);
            self.next(&mut count, emit);
        }
        for (id, stack) in &state.ids {
            self.begin(keyframe_record::STACK_ID);
            self.numbers([id.0.into(), (*stack).into()]);
            self.next(&mut count, emit);
        }
        for (id, purpose) in &state.purposes {
            self.purpose(record::PURPOSE, *id, purpose);
            self.next(&mut count, emit);
        }
        for (tid, name) in &state.threads {
            self.begin(record::THREAD);
            self.number(tid.0.into());
            self.string(name);
            self.next(&mut count, emit);
        }
        for device in &state.devices {
            self.device_state(keyframe_record::DEVICE, device, &mut count, emit);
        }
        self.cuda(&state.cuda, &mut count, emit);
        if let Some(reading) = &state.segments {
            self.segments(reading, emit);
            self.next(&mut count, emit);
        }
        self.segment_memory(state, &mut count, emit);
        self.driver_memory(state, &mut count, emit);
        for (end, labels) in [
            (record::BASELINE_LABELS, &state.baseline_labels),
            (record::LABELS, &state.labels),
        ] {
            if let Some(labels) = labels {
                self.labels(end, labels, emit);
                self.next(&mut count, emit);
            }
        }
        self.begin(keyframe_record::END);
        self.number(count.0);
        self.close(emit);
    }

    fn segment_memory(
        &mut self,
        state: &LedgerKeyframe,
        count: &mut RecordCount,
        emit: &mut impl FnMut(PlainFrame),
    ) {
        for memory in &state.segment_memory {
            self.begin(keyframe_record::SEGMENT_MEMORY);
            self.numbers([memory.addr.0, memory.size.0, memory.stack.into()]);
            self.optional_number(memory.device.map(|device| device.0.into()));
            self.word(memory.kind.as_str());
            self.number(memory.is_asleep.into());
            self.next(count, emit);
        }
    }

    fn driver_memory(
        &mut self,
        state: &LedgerKeyframe,
        count: &mut RecordCount,
        emit: &mut impl FnMut(PlainFrame),
    ) {
        for (device, memory) in &state.driver.devices {
            self.begin(keyframe_record::DRIVER_MEMORY);
            self.numbers([
                device.0.into(),
                memory.time.0,
                memory.total.0,
                memory.used.0,
            ]);
            self.optional_number(memory.process.map(|process| process.0));
            self.optional_number(memory.unattributed.map(i64::cast_unsigned));
            self.number(memory.is_exact.into());
            self.next(count, emit);
        }
        for (device, bytes) in &state.reserved {
            self.begin(keyframe_record::RESERVED);
            self.numbers([device.0.into(), bytes.0]);
            self.next(count, emit);
        }
        self.begin(keyframe_record::DRIVER_STATE);
        self.number(state.driver.changed.0);
        self.optional_string(state.driver.unread.as_deref());
        self.next(count, emit);
    }

    /// Ends a record.
    fn next(&mut self, count: &mut RecordCount, emit: &mut impl FnMut(PlainFrame)) {
        count.0 += 1;
        self.close_when_full(emit);
    }

    /// Emits the frame that is open.
    pub(super) fn close_keyframe(&mut self, emit: &mut impl FnMut(PlainFrame)) {
        emit(PlainFrame {
            kind: FrameKind::Keyframe,
            group: self.group,
            first_event: self.events,
            events: 0,
            times: self.times,
            payload: self.columns.take(),
        });
        (self.time, self.addr) = (0, 0);
        self.records = 0;
    }

    fn moment(&mut self, state: &LedgerKeyframe) {
        self.begin(keyframe_record::MOMENT);
        self.number(state.started.0);
        self.optional_number(state.last_event.map(|time| time.0));
        let Losses {
            events,
            stacks,
            malformed,
            uses,
        } = state.losses;
        self.numbers([state.events, state.malformed]);
        self.numbers([events, stacks, malformed, uses]);
        let agreement = &state.agreement;
        let time = |time: Option<TimeNs>| time.map(|time| time.0);
        self.numbers([
            agreement.confirmed,
            agreement.suspected,
            agreement.suspected_at.0,
            agreement.explicable,
        ]);
        self.optional_number(time(agreement.loss_at));
        self.optional_number(time(agreement.changed_at));
        self.number(state.budget.is_some().into());
        if let Some(budget) = &state.budget {
            self.budget(budget);
        }
        self.optional_string(state.unread_at_attach.as_deref());
        let refused = &state.refused;
        self.numbers([refused.blocks, refused.stacks, refused.threads]);
        self.number(state.stacks_refused.into());
        self.word(state.cuda.layer.as_str());
    }

    fn budget(&mut self, budget: &BudgetState) {
        self.numbers([
            budget.budget.0.into(),
            budget.overhead.0.into(),
            budget.peak_overhead.0.into(),
        ]);
        self.word(budget.level.as_str());
        self.word(budget.deepest.as_str());
        self.numbers([budget.since.0, budget.started.0]);
        self.numbers([budget.pauses, budget.paused]);
    }

    fn device_state(
        &mut self,
        kind: u64,
        device: &DeviceKeyframe,
        count: &mut RecordCount,
        emit: &mut impl FnMut(PlainFrame),
    ) {
        self.begin(kind);
        self.number(device.index.0.into());
        for totals in [device.totals, device.peak] {
            self.numbers([totals.allocated.0, totals.reserved.0]);
        }
        self.numbers([device.found, device.unknown, device.unseen_frees]);
        self.numbers([device.ooms, device.is_as_found.into()]);
        self.optional_string(device.unread.as_deref());
        self.next(count, emit);
        self.call_sites(&device.call_sites, count, emit);
        for block in &device.blocks {
            self.block(block);
            self.next(count, emit);
        }
    }

    fn call_sites(
        &mut self,
        state: &CallSitesKeyframe,
        count: &mut RecordCount,
        emit: &mut impl FnMut(PlainFrame),
    ) {
        for call_site in &state.call_sites {
            self.begin(keyframe_record::CALL_SITE);
            match &call_site.key {
                CallSiteKey::Stack(number) => self.numbers([0, (*number).into()]),
                CallSiteKey::Thread(name) => {
                    self.number(1);
                    self.string(name);
                }
                CallSiteKey::Overflow => self.number(2),
            }
            self.counts(&call_site.counts);
            self.next(count, emit);
        }
        for (slot, peaks) in (0..).zip(&state.line_peaks) {
            for peaks in peaks.chunks(PEAKS) {
                self.begin(keyframe_record::LINE_PEAKS);
                self.numbers([slot, peaks.len() as u64]);
                peaks.iter().for_each(|peak| self.number(*peak));
                self.next(count, emit);
            }
        }
    }

    fn counts(&mut self, counts: &TallyKeyframe) {
        self.numbers([counts.peak, counts.allocs, counts.alloc_bytes]);
    }

    fn block(&mut self, block: &BlockKeyframe) {
        self.begin(keyframe_record::BLOCK);
        let addr = block.addr.0;
        push_difference(self.columns.of(FrameColumn::Addresses), self.addr, addr);
        self.addr = addr;
        push(self.columns.of(FrameColumn::Sizes), block.size.0);
        push(self.columns.of(FrameColumn::Stacks), block.stack.into());
        push(
            self.columns.of(FrameColumn::Purposes),
            block.purpose.0.into(),
        );
        self.number(block.call_site.map_or(0, |place| u64::from(place) + 1));
    }

    fn cuda(
        &mut self,
        state: &CudaKeyframe,
        count: &mut RecordCount,
        emit: &mut impl FnMut(PlainFrame),
    ) {
        for device in &state.devices {
            self.device_state(keyframe_record::CUDA_DEVICE, device, count, emit);
        }
        for (kind, peak) in &state.peaks {
            self.begin(keyframe_record::CUDA_KIND);
            self.word(kind.as_str());
            self.number(*peak);
            self.next(count, emit);
        }
        for group in &state.groups {
            self.begin(keyframe_record::CUDA_GROUP);
            self.string(&group.library);
            self.word(group.space.as_str());
            self.optional_number(group.device.map(|device| device.0.into()));
            self.counts(&group.counts);
            self.next(count, emit);
            self.call_sites(&group.call_sites, count, emit);
        }
        for memory in &state.live {
            self.cuda_memory(memory);
            self.next(count, emit);
        }
    }

    fn cuda_memory(&mut self, memory: &CudaMemoryKeyframe) {
        self.begin(keyframe_record::CUDA_MEMORY);
        let (kind, number) = match memory.name {
            CudaName::Address(number) => (0, number),
            CudaName::Array(number) => (1, number),
            CudaName::Handle(number) => (2, number),
        };
        self.numbers([kind, number, memory.size.0]);
        self.numbers([memory.group.into(), memory.call_site.into()]);
        self.number(memory.on_device.is_some().into());
        if let Some((device, place)) = memory.on_device {
            self.numbers([device.0.into(), place.into()]);
        }
    }
}
