//! The rank that failed first: time and request of the failure, and the memory of the other ranks at that moment.

use std::collections::BTreeMap;
use std::time::Duration;

use super::rank_end::{RankEnd, RankMemory, UnknownMemory};
use crate::attribution::failures::AllocationFailure;
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex, TimeNs, Totals};
use crate::report::cells;
use crate::view::table::{Cell, Page};
use crate::view::{FileNames, clean, counted, duration};

/// Lead with which a process ends first, in nanoseconds (1 s). memprobe sees an end some milliseconds late.
const LEAD: u64 = 1_000_000_000;

/// Most names in a list of text.
const MAX_NAMES: usize = 4;

const NO_ORDER: &str = "The recordings are of different machines or boots, or do not name theirs, so their order is \
                        unknown.";

/// Order of the first failed requests of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FailureOrder {
    #[default]
    NoFailure,
    /// Place of the rank that failed first.
    First(usize),
    Unknown,
}

/// Failures of the ranks of a job.
#[derive(Debug, Default)]
pub struct JobFailures {
    pub(super) ends: Vec<RankEnd>,
    order: FailureOrder,
    /// Memory of each rank at the first failure; empty without one.
    memory: Vec<RankMemory>,
}

impl JobFailures {
    /// Finds the first failure, and reads the recordings again up to that moment.
    pub(in crate::report) fn read(ends: Vec<RankEnd>) -> Self {
        let order = FailureOrder::of(&ends);
        let mut memory = Vec::new();
        if let FailureOrder::First(first) = order
            && let Some(failed) = ends[first].failed()
        {
            let all = ends.iter();
            memory.extend(all.map(|end| end.memory_at(failed, &ends[first])));
        }
        Self {
            ends,
            order,
            memory,
        }
    }

    /// Sentences about the first failure, or the first end; empty without one.
    pub(in crate::report) fn sentences(&self) -> Vec<String> {
        match self.order {
            FailureOrder::First(first) => self.first_failure(first),
            FailureOrder::Unknown => {
                let failed = self.ends.iter().filter(|end| end.failure.is_some());
                let labels: Vec<String> = failed.map(failure_label).collect();
                let labels = named(&labels);
                vec![format!("Out of memory: {labels}."), NO_ORDER.to_owned()]
            }
            FailureOrder::NoFailure => self.ended_first().into_iter().collect(),
        }
    }

    /// True if a request failed in any rank.
    pub(super) fn any(&self) -> bool {
        self.order != FailureOrder::NoFailure
    }

    fn first_failure(&self, first: usize) -> Vec<String> {
        let end = &self.ends[first];
        let Some(failure) = &end.failure else {
            return Vec::new();
        };
        let failed = self.ends.iter().filter(|end| end.failure.is_some());
        let label = failure_label(end);
        let mut sentences = vec![match failed.count() {
            1 => format!("{label} alone ran out of memory."),
            all => format!(
                "{label} was the first of {} to run out of memory.",
                counted(all as u64, "rank")
            ),
        }];
        let when = self.when(first, failure.event.time);
        let iteration = end.iteration;
        let iteration =
            iteration.map_or(String::new(), |number| format!(", in iteration {number}"));
        sentences.push(format!("{when}, {}{iteration}.", request(failure)));
        if end.failures > 1 {
            let all = counted(end.failures, "request");
            sentences.push(format!("It is the first of {all} that failed there."));
        }
        sentences.extend(self.allocated_then(first));
        sentences.extend(self.ended_before(first, failure.event.time));
        sentences
    }

    /// Describes what the other ranks had allocated at the first failure.
    fn allocated_then(&self, first: usize) -> Vec<String> {
        let mut known: Vec<(Bytes, String)> = Vec::new();
        let mut unknown: BTreeMap<UnknownMemory, Vec<String>> = BTreeMap::new();
        for (end, memory) in self.others(first) {
            match memory {
                RankMemory::Known(devices) => known.extend(
                    devices
                        .iter()
                        .map(|(index, totals)| (totals.allocated, label(&end.name, Some(*index)))),
                ),
                RankMemory::Unknown(reason) => {
                    unknown.entry(*reason).or_default().push(clean(&end.name));
                }
                RankMemory::Ended => {}
            }
        }
        known.sort();
        let mut sentences = Vec::new();
        match &known[..] {
            [] => {}
            [(bytes, label)] => {
                sentences.push(format!("{label} had {} allocated then.", human(*bytes)));
            }
            [(least, _), .., (most, _)] if least == most => {
                sentences.push(format!(
                    "Each of the others had {} allocated then.",
                    human(*least)
                ));
            }
            [(least, one), .., (most, other)] => sentences.push(format!(
                "The others had {} ({one}) to {} ({other}) allocated then.",
                human(*least),
                human(*most)
            )),
        }
        sentences.extend(unknown.into_iter().map(|(reason, labels)| {
            let reason: &str = reason.into();
            format!(
                "The memory of {} then is unknown: {reason}.",
                named(&labels)
            )
        }));
        sentences
    }

    fn others(&self, first: usize) -> impl Iterator<Item = (&RankEnd, &RankMemory)> {
        let all = self.ends.iter().zip(&self.memory).enumerate();
        all.filter(move |(at, _)| *at != first)
            .map(|(_, entry)| entry)
    }

    /// Names the ranks whose process ended before the first failure, without a failed request.
    fn ended_before(&self, first: usize, failed: TimeNs) -> Option<String> {
        let ended = self.others(first);
        let ended = ended.filter(|(_, memory)| **memory == RankMemory::Ended);
        let ended = ended.filter_map(|(end, _)| Some((end.exited?, clean(&end.name))));
        let (times, labels): (Vec<TimeNs>, Vec<String>) = ended.unzip();
        let earliest = times.into_iter().min()?;
        let before = duration(Duration::from_nanos(failed.0.saturating_sub(earliest.0)));
        Some(match &labels[..] {
            [label] => format!("{label} had ended {before} before, without a failed request."),
            _ => format!(
                "{} had ended, the first of them {before} before.",
                named(&labels)
            ),
        })
    }

    /// Names the rank whose process ended first, if no request failed and the others went on.
    fn ended_first(&self) -> Option<String> {
        let (end, exited, next) = self.first_to_end()?;
        let at = self.ends.iter().position(|it| std::ptr::eq(it, end))?;
        let lead = duration(Duration::from_nanos(next.0.saturating_sub(exited.0)));
        let when = self.when(at, exited);
        Some(format!(
            "{} ended first: {when}, {lead} before the next.",
            clean(&end.name)
        ))
    }

    /// Returns the first rank to end, its end and the next one's. All others must have gone on for a while.
    fn first_to_end(&self) -> Option<(&RankEnd, TimeNs, TimeNs)> {
        let ends = self.ends.iter().filter_map(|end| Some((end, end.exited?)));
        let (first, exited) = ends.min_by_key(|(_, exited)| *exited)?;
        let others = self.ends.iter().filter(|end| !std::ptr::eq(*end, first));
        let others: Vec<&RankEnd> = others.collect();
        let next = others.iter().map(|end| end.until).min()?;
        let is_comparable = others.iter().all(|end| end.has_clock_of(first));
        let is_first = next.0.saturating_sub(exited.0) >= LEAD;
        (is_comparable && is_first).then_some((first, exited, next))
    }

    /// Earliest start of the recordings that share the clock of one; `None` if there is no other.
    fn common_start(&self, at: usize) -> Option<TimeNs> {
        let own = &self.ends[at];
        let same = self.ends.iter().filter(|end| end.has_clock_of(own));
        let starts: Vec<TimeNs> = same.map(|end| end.start).collect();
        starts.iter().min().copied().filter(|_| starts.len() > 1)
    }

    /// Nanoseconds from the common start to a moment of a rank.
    pub(super) fn since_start(&self, at: usize, time: TimeNs) -> Option<u64> {
        time.0.checked_sub(self.common_start(at)?.0)
    }

    fn when(&self, at: usize, time: TimeNs) -> String {
        let words = |nanoseconds| duration(Duration::from_nanos(nanoseconds));
        match self.since_start(at, time) {
            Some(since) => format!("{} after the common start", words(since)),
            None => {
                let since = time.0.saturating_sub(self.ends[at].start.0);
                format!("{} after the start of its recording", words(since))
            }
        }
    }

    /// Totals of a device of a rank at the first failure, if they are known.
    pub(super) fn totals_then(&self, at: usize, device: DeviceIndex) -> Option<Totals> {
        match self.memory.get(at)? {
            RankMemory::Known(devices) => devices.get(&device).copied(),
            RankMemory::Ended | RankMemory::Unknown(_) => None,
        }
    }

    /// Object of a JSON document.
    pub(in crate::report) fn cell(&self) -> Cell<'_> {
        let order = match self.order {
            FailureOrder::NoFailure => Cell::Unknown,
            FailureOrder::First(_) => "known".into(),
            FailureOrder::Unknown => "unknown".into(),
        };
        let failed = self.ends.iter().enumerate();
        let mut failed: Vec<usize> = failed
            .filter(|(_, end)| end.failure.is_some())
            .map(|(at, _)| at)
            .collect();
        if let FailureOrder::First(_) = self.order {
            failed.sort_by_key(|at| self.ends[*at].failed());
        }
        let failed = failed.into_iter().filter_map(|at| self.failure_cell(at));
        let memory = self.ends.iter().zip(&self.memory);
        let memory = memory.flat_map(|(end, memory)| memory_cells(end, memory));
        let ended = self.first_to_end().map(|(end, _, next)| (end, next));
        Cell::Object(vec![
            ("order", order),
            ("failed", Cell::list(failed)),
            ("allocated_then", Cell::list(memory)),
            (
                "ended_first",
                ended.map_or(Cell::Unknown, |(end, next)| self.end_cell(end, next)),
            ),
        ])
    }

    fn failure_cell(&self, at: usize) -> Option<Cell<'_>> {
        let end = &self.ends[at];
        let failure = end.failure.as_ref()?;
        let (event, site) = (&failure.event, Some(&failure.site));
        let own = event.time.0.saturating_sub(end.start.0);
        Some(Cell::Object(vec![
            ("rank", (&*end.name).into()),
            ("recording", (&*end.recording).into()),
            ("device", event.device.into()),
            ("action", event.action.as_str().into()),
            ("time_ns", self.since_start(at, event.time).into()),
            ("recording_time_ns", own.into()),
            ("wall_ms", end.failed_ms().into()),
            ("iteration", end.iteration.into()),
            ("bytes", event.size.into()),
            ("file", cells::file(site)),
            ("line", cells::line(site)),
            ("function", cells::function(site)),
            ("module", failure.module.as_deref().into()),
            ("call", Cell::if_known(event.call.map(|call| call.function))),
            ("library", Cell::if_known(failure.library.as_deref())),
            ("failures", end.failures.into()),
        ]))
    }

    fn end_cell<'a>(&self, end: &'a RankEnd, next: TimeNs) -> Cell<'a> {
        let at = self.ends.iter().position(|it| std::ptr::eq(it, end));
        let since = |time| self.since_start(at?, time);
        Cell::Object(vec![
            ("rank", (&*end.name).into()),
            ("recording", (&*end.recording).into()),
            ("time_ns", end.exited.and_then(since).into()),
            ("next_ns", since(next).into()),
        ])
    }
}

impl FailureOrder {
    fn of(ends: &[RankEnd]) -> Self {
        let failed = ends.iter().enumerate();
        let failed = failed.filter_map(|(at, end)| Some((at, end.failed()?)));
        let Some((first, _)) = failed.clone().min_by_key(|(_, time)| *time) else {
            return Self::NoFailure;
        };
        let is_alone = failed.clone().count() == 1;
        let mut others = failed.map(|(at, _)| &ends[at]);
        match is_alone || others.all(|end| end.has_clock_of(&ends[first])) {
            true => Self::First(first),
            false => Self::Unknown,
        }
    }
}

/// Memory of each device of a rank at the first failure, or the reason why it is unknown.
fn memory_cells<'a>(end: &'a RankEnd, memory: &RankMemory) -> Vec<Cell<'a>> {
    let row = |device: Option<DeviceIndex>, totals: Option<Totals>, unknown: Cell<'a>| {
        Cell::Object(vec![
            ("rank", (&*end.name).into()),
            ("recording", (&*end.recording).into()),
            ("device", device.into()),
            ("allocated", totals.map(|totals| totals.allocated).into()),
            ("reserved", totals.map(|totals| totals.reserved).into()),
            ("unknown", unknown),
        ])
    };
    match memory {
        RankMemory::Known(devices) => {
            let devices = devices.iter();
            let rows =
                devices.map(|(index, totals)| row(Some(*index), Some(*totals), Cell::Absent));
            rows.collect()
        }
        RankMemory::Ended => vec![row(None, None, "the process had ended".into())],
        RankMemory::Unknown(reason) => {
            let reason: &'static str = reason.into();
            vec![row(None, None, reason.into())]
        }
    }
}

/// Adds the sentences of a verdict, the first one in bold.
pub(in crate::report) fn push_sentences(page: &mut Page, sentences: &[String]) {
    if let Some((first, rest)) = sentences.split_first() {
        page.strong(first);
        if !rest.is_empty() {
            page.note(&rest.join(" "));
        }
    }
}

/// Such as `rank 3 (cuda:0)`.
pub(super) fn label(name: &str, device: Option<DeviceIndex>) -> String {
    match device {
        Some(device) => format!("{} ({device})", clean(name)),
        None => clean(name),
    }
}

fn failure_label(end: &RankEnd) -> String {
    let device = end
        .failure
        .as_ref()
        .and_then(|failure| failure.event.device);
    label(&end.name, device)
}

/// Describes a failed request: its line, its bytes, and the call of CUDA if it was one.
fn request(failure: &AllocationFailure) -> String {
    let line = FileNames::default().site(&failure.site);
    let module = failure.module.as_deref();
    let module = module.map_or(String::new(), |module| format!(" (in {})", clean(module)));
    let size = human(failure.event.size);
    let Some(call) = failure.event.call else {
        return format!("{line}{module} asked for {size}");
    };
    let library = failure.library.as_deref();
    let library = library.map(|path| path.rsplit('/').next().unwrap_or(path));
    let library = library.map_or(String::new(), |name| format!(" in {}", clean(name)));
    let function = call.function;
    format!("{line}{module} asked for {size} by {function}{library}, which may go on without it")
}

/// Joins names; further ones are counted.
fn named(labels: &[String]) -> String {
    let shown = &labels[..labels.len().min(MAX_NAMES)];
    match labels.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests;
