//! First replay of a recording: its allocations, stacks, and the segments at its end.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ended::{EndedAllocations, ExportHistory};
use super::phase_spans::PhaseSpans;
use super::side_events::SideEvents;
use super::{ExportError, ExportMoment};
use crate::attribution::allocation_groups::ModuleScope;
use crate::attribution::allocations::{AllocationHistory, EventNumber, module_of};
use crate::attribution::segments::SegmentLedger;
use crate::attribution::{AttributionLedger, WithCategories};
use crate::event::{Action, Address, DeviceIndex, Event, Stack, TimeNs};
use crate::ledger::{Analysis, AnalyzedLedger, Change, Ledger, StackRef, TotalsSample};
use crate::recording::{Header, Reader};
use crate::view::counted;

type Analyses = (
    ((SegmentLedger, SegmentStacks), SideEvents),
    WithCategories<(ExportHistory, PhaseSpans)>,
);

/// Stacks that got the live segments of the caching allocator from CUDA.
#[derive(Debug, Default)]
pub(super) struct SegmentStacks(BTreeMap<(DeviceIndex, u64), StackRef>);

impl SegmentStacks {
    pub(super) fn get(&self, device: DeviceIndex, addr: Address) -> Option<StackRef> {
        self.0.get(&(device, addr.0)).copied()
    }
}

impl Analysis for SegmentStacks {
    fn apply(&mut self, event: &Event, _change: &Change, ledger: &Ledger) {
        let Event::Memory(event) = event else { return };
        let Some(device) = event.device else { return };
        let key = (device, event.addr.0);
        match event.action {
            Action::SegmentAlloc => _ = self.0.insert(key, ledger.stack_ref(event.stack)),
            Action::SegmentFree => _ = self.0.remove(&key),
            _ => {}
        }
    }
}

/// Everything that an export takes from a recording.
pub(super) struct ExportReplay {
    pub header: Header,
    pub ledger: Ledger,
    pub segments: SegmentLedger,
    pub segment_stacks: SegmentStacks,
    pub side_events: SideEvents,
    pub categories: AttributionLedger,
    pub history: AllocationHistory,
    /// Allocations that a profile needs no more; `None` for the other formats, whose history is complete.
    pub ended: Option<EndedAllocations>,
    pub phases: PhaseSpans,
    /// Events of any kind.
    pub events: usize,
    pub truncated: bool,
}

impl ExportReplay {
    /// Replays a whole recording; counts its events in `progress`. `history` has what the format needs of the allocations.
    pub(super) fn run<R: BufRead>(
        reader: &mut Reader<R>,
        history: ExportHistory,
        progress: &AtomicU64,
    ) -> Result<Self, ExportError> {
        let header = reader.header();
        let table = (history, PhaseSpans::default());
        let analyses: Analyses = (Default::default(), WithCategories::new(table));
        let mut replay = AnalyzedLedger::new(header.target.clone(), header.start, analyses);
        let mut events = 0;
        for event in reader.by_ref() {
            replay.apply(&event?);
            events += 1;
            progress.fetch_add(1, Ordering::Relaxed);
        }
        let AnalyzedLedger {
            mut ledger,
            analyses: (((segments, segment_stacks), side_events), with_categories),
        } = replay;
        let WithCategories {
            categories,
            table: (history, phases),
        } = with_categories;
        let (mut history, ended) = history.into_parts();
        history.finish(&ledger, &categories);
        // The version of torch is often recorded later than the start.
        let header = reader.header().clone();
        ledger.target = header.target.clone();
        Ok(Self {
            truncated: reader.truncated(),
            header,
            ledger,
            segments,
            segment_stacks,
            side_events,
            categories,
            history,
            ended,
            phases,
            events,
        })
    }

    /// Sentences on what the recording lacks.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.truncated {
            notes.push(
                "the end of the recording is missing: the export covers what is there".to_owned(),
            );
        }
        let losses = self.ledger.losses();
        if losses.any() {
            notes.push(format!(
                "lost while recording: {}, {}, {}: give `memprobe record` a larger --buffer-size",
                counted(losses.events, "event"),
                counted(losses.stacks, "stack"),
                counted(losses.malformed, "bad record"),
            ));
        }
        let left_out = self.history.left_out();
        if left_out > 0 {
            notes.push(format!(
                "{} are left out, since the recording has too many: record a shorter time with `--duration`",
                counted(left_out, "allocation")
            ));
        }
        notes
    }

    pub(super) fn stack(&self, stack: StackRef) -> &Stack {
        self.ledger.stack(stack)
    }

    /// Module that allocations of a stack count under; `None` outside modules, and if it is unknown.
    pub(super) fn module(&self, stack: StackRef) -> Option<String> {
        match self.module_scope(stack) {
            ModuleScope::Module(path) => Some(path.to_string()),
            _ => None,
        }
    }

    pub(super) fn module_scope(&self, stack: StackRef) -> ModuleScope {
        module_of(self.stack(stack), &self.categories)
    }

    /// Time of the last event.
    pub(super) fn end(&self) -> TimeNs {
        self.ledger.last_event().unwrap_or(self.header.start)
    }

    /// Microseconds since 1970 of a moment, or since the start if the wall clock was not set.
    pub(super) fn wall_us(&self, time: TimeNs) -> u64 {
        let since = time.0.saturating_sub(self.header.start.0) / 1000;
        let start = self.header.wall_start_ms.unwrap_or(0);
        start.saturating_mul(1000).saturating_add(since)
    }

    /// The wanted moment on each device, and the device's totals then.
    pub(super) fn moments(
        &self,
        moment: ExportMoment,
    ) -> Result<BTreeMap<DeviceIndex, (EventNumber, TotalsSample)>, ExportError> {
        let end = self.ledger.moments(self.end());
        let end = end.map(|(device, sample)| (device, (EventNumber::END, sample)));
        let mut moments: BTreeMap<_, _> = end.collect();
        match moment {
            ExportMoment::End => {}
            ExportMoment::Peak => {
                for (device, peak) in self.history.peaks() {
                    moments.insert(*device, (peak.event, peak.sample));
                }
            }
            ExportMoment::OutOfMemory => {
                let failed = self.history.out_of_memory();
                let (event, samples) = failed.ok_or_else(|| {
                    ExportError::NoMoment(
                        "no request failed in it; leave out --at oom, or give --at peak".to_owned(),
                    )
                })?;
                let samples = samples.iter();
                moments = samples
                    .map(|(device, sample)| (*device, (event, *sample)))
                    .collect();
            }
        }
        Ok(moments)
    }
}
