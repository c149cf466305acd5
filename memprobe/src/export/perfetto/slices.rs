//! Iterations and phases as slices of two tracks.

use super::Track;
use super::messages::DebugAnnotation;
use crate::attribution::iterations::{Iteration, IterationKind};
use crate::attribution::phase::Phase;
use crate::event::TimeNs;
use crate::export::replay::ExportReplay;

/// Begin or end of a slice.
pub(super) struct SliceEdge {
    pub track: Track,
    pub time: TimeNs,
    /// `None` for the end.
    pub begin: Option<SliceBegin>,
}

pub(super) struct SliceBegin {
    pub name: String,
    pub annotations: Vec<DebugAnnotation>,
}

/// TraceSlices of a recording. Those of a track follow each other.
pub(super) struct TraceSlices {
    /// In order of time.
    pub edges: Vec<SliceEdge>,
    /// Iterations that are no longer known.
    pub dropped: u64,
}

impl TraceSlices {
    pub(super) fn of(replay: &ExportReplay) -> Self {
        let iterations = replay.categories.iterations();
        let mut edges = Vec::new();
        for iteration in &iterations.rows {
            if let Some(begin) = iteration_slice(iteration) {
                push(
                    &mut edges,
                    Track::Iterations,
                    begin,
                    iteration.begin..iteration.end,
                );
            }
        }
        let begins = replay.phases.begins();
        let ends = begins.iter().skip(1).map(|(time, _)| *time);
        for ((begin, phase), end) in begins.iter().zip(ends.chain([replay.end()])) {
            if *phase != Phase::Other {
                let slice = SliceBegin {
                    name: phase.as_str().to_owned(),
                    annotations: Vec::new(),
                };
                push(&mut edges, Track::Phases, slice, *begin..end);
            }
        }
        // A stable sort: equal times of a track stay in their order.
        edges.sort_by_key(|edge| edge.time);
        Self {
            edges,
            dropped: iterations.dropped,
        }
    }
}

/// Adds a slice. It begins no earlier than the last one of its track ended.
fn push(
    edges: &mut Vec<SliceEdge>,
    track: Track,
    begin: SliceBegin,
    time: std::ops::Range<TimeNs>,
) {
    let last = edges.last().filter(|last| last.track == track);
    let start = last.map_or(time.start, |last| last.time.max(time.start));
    edges.push(SliceEdge {
        track,
        time: start,
        begin: Some(begin),
    });
    edges.push(SliceEdge {
        track,
        time: start.max(time.end),
        begin: None,
    });
}

/// `None` if nothing separates iterations.
fn iteration_slice(iteration: &Iteration) -> Option<SliceBegin> {
    let name = match iteration.kind {
        IterationKind::Undivided => return None,
        IterationKind::Before => "before the first iteration".to_owned(),
        IterationKind::Whole => format!("iteration {}", iteration.number),
        IterationKind::Evaluation => "evaluation".to_owned(),
        IterationKind::Unfinished => format!("iteration {} (unfinished)", iteration.number),
    };
    let devices = iteration.devices.iter();
    let mut annotations: Vec<_> = devices
        .map(|(device, at)| {
            annotation(
                format!("peak allocated of {device}"),
                at.peak.totals.allocated.0,
            )
        })
        .collect();
    if iteration.batches > 0 {
        annotations.push(annotation("batches".to_owned(), iteration.batches.into()));
    }
    Some(SliceBegin { name, annotations })
}

/// Number beside an event.
pub(super) fn annotation(name: String, value: u64) -> DebugAnnotation {
    DebugAnnotation {
        name: Some(name),
        uint_value: Some(value),
    }
}
