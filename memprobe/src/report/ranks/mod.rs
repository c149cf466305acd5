//! Comparison of many ranks in the same iteration: their peaks, and what one has more of than another.

mod first_failure;
mod rank_end;
mod table;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use super::difference::{ComparedSide, DiffOptions, NamedRecording, SearchedRecording};
use super::document::{self, TableReport};
use super::preamble::warnings;
use super::{Outcome, ReportError, ReportOptions};
use crate::attribution::chosen_moments::ChosenMoment;
use crate::attribution::failures::AllocationFailure;
use crate::compare::ranks::{RankExtreme, common_iteration, imbalance};
use crate::compare::{CompareBy, MemoryByKey};
use crate::event::bytes::{human, signed};
use crate::event::{Bytes, DeviceIndex, Totals};
use crate::view::clean;
use crate::view::table::{Cell, Column, Page, Table};
pub(in crate::report) use first_failure::{JobFailures, push_sentences};
pub(in crate::report) use rank_end::RankEnd;
pub use table::RankRow;

/// Tables of the imbalance, in order.
const TABLES: [CompareBy; 3] = [CompareBy::Line, CompareBy::Module, CompareBy::Category];

/// A device of a rank.
pub struct RankDevice {
    /// Place of its recording among all.
    place: usize,
    /// Such as `rank 3`, or the name of the file.
    name: String,
    recording: String,
    device: DeviceIndex,
    gpu: Option<String>,
    /// Memory of the GPU; `None` if the recording lacks it.
    capacity: Option<Bytes>,
    /// Highest totals of the whole recording.
    peak: Totals,
    /// Totals at the compared moment.
    then: Totals,
    ooms: u64,
    /// First failed request on this device.
    failure: Option<RankFailure>,
    /// Totals at the first failure of all ranks, if they are known.
    at_failure: Option<Totals>,
    /// Allocated bytes at the peak of each iteration, by number.
    pub iterations: BTreeMap<u64, u64>,
    sums: Vec<MemoryByKey>,
}

/// First failed request of a device of a rank.
struct RankFailure {
    found: AllocationFailure,
    /// Nanoseconds after the common start; `None` without one.
    since_start: Option<u64>,
    /// Milliseconds since 1970, if the recording has the time of day.
    wall_ms: Option<u64>,
    /// Its iteration, if it was in one.
    iteration: Option<u64>,
}

/// Ranks at the same iteration.
pub struct RankComparison<'a> {
    pub ranks: Vec<RankDevice>,
    /// `None` if the ranks are compared each at its own peak.
    iteration: Option<u64>,
    pub warnings: Vec<String>,
    failures: JobFailures,
    options: &'a ReportOptions,
}

/// Writes the comparison of recordings. `iteration` chooses the iteration; else it is the fullest that all ranks have.
///
/// `out` should be buffered. Returns the outcome of each recording; `None` if the reader closes the output early.
pub fn write_ranks<R: BufRead>(
    recordings: Vec<NamedRecording<'_, R>>,
    iteration: Option<u64>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Option<Vec<Outcome>>, ReportError> {
    let (report, outcomes) = RankComparison::read(recordings, iteration, options)?;
    let written = document::write_as(&report, options, out).and_then(|()| out.flush());
    super::unless_closed(written.map(|()| outcomes).map_err(ReportError::from))
}

impl<'a> RankComparison<'a> {
    /// Replays recordings twice: for their iterations, and for the live blocks at the compared peaks.
    pub fn read<R: BufRead>(
        recordings: Vec<NamedRecording<'_, R>>,
        iteration: Option<u64>,
        options: &'a ReportOptions,
    ) -> Result<(Self, Vec<Outcome>), ReportError> {
        let reading = DiffOptions {
            by: CompareBy::Line,
            moments: [ChosenMoment::Peak; 2],
            format: options.format,
            top: options.top,
            grouping: options.grouping,
            alike: options.alike,
            width: options.width,
            colour: options.colour,
            iteration: options.iteration.clone(),
        };
        let searched = recordings
            .into_iter()
            .map(|recording| SearchedRecording::read(recording, &reading));
        let searched = searched.collect::<Result<Vec<_>, _>>()?;
        let iteration = iteration.or_else(|| fullest(&searched));
        let moment = iteration.map_or(ChosenMoment::Peak, ChosenMoment::Iteration);
        let mut comparison = RankComparison {
            ranks: Vec::new(),
            iteration,
            warnings: Vec::new(),
            failures: JobFailures::default(),
            options,
        };
        let (mut outcomes, mut ends) = (Vec::new(), Vec::new());
        for recording in searched {
            let side = recording.at(&[moment], &reading)?;
            outcomes.push(side.replay.outcome());
            comparison.add(&side, ends.len());
            ends.push(rank_end(side));
        }
        comparison.note_failures(JobFailures::read(ends));
        Ok((comparison, outcomes))
    }
}

/// Number of the iteration to compare in; `None` if the ranks have none in common.
fn fullest(searched: &[SearchedRecording<'_>]) -> Option<u64> {
    let peaks = searched.iter().map(|recording| {
        let table = recording.search.categories.iterations();
        let rows = table.rows.into_iter().filter(|row| row.is_numbered());
        let peak = |row: crate::attribution::iterations::Iteration| {
            let devices = row.devices.iter();
            let gpus = devices.filter(|(index, _)| *index != DeviceIndex::CPU);
            let allocated = gpus.map(|(_, device)| device.peak.totals.allocated.0);
            Some((row.number, allocated.max()?))
        };
        rows.filter_map(peak).collect::<BTreeMap<_, _>>()
    });
    common_iteration(&peaks.collect::<Vec<_>>())
}

fn rank_end(side: ComparedSide<'_>) -> RankEnd {
    let time = side
        .failures
        .found
        .as_ref()
        .map(|failure| failure.event.time);
    let iteration = time.and_then(|time| side.iteration_at(time));
    let path = Some(&*side.path);
    let mut end = RankEnd::of(side.name, path, &side.replay, side.failures);
    end.iteration = iteration;
    end
}

/// `rank 3` for `rank3-1234-train.mprb`, else the name itself.
fn rank_name(file: &str) -> String {
    let digits = file.strip_prefix("rank").map(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_digit());
        &rest[..end.unwrap_or(rest.len())]
    });
    match digits.filter(|digits| !digits.is_empty()) {
        Some(number) => format!("rank {number}"),
        None => file.to_owned(),
    }
}

impl RankComparison<'_> {
    /// Adds the devices of a recording, by its place among all.
    fn add(&mut self, side: &ComparedSide<'_>, place: usize) {
        let snapshot = &side.replay.snapshot;
        let warnings = warnings(&side.replay).into_iter();
        let name = clean(side.name);
        self.warnings
            .extend(warnings.map(|warning| format!("{name}: {warning}")));
        let found = side.found.first().into_iter().flatten();
        for (index, found) in found.filter(|(index, _)| **index != DeviceIndex::CPU) {
            let device = snapshot
                .devices
                .iter()
                .find(|device| device.index == *index);
            let sums = TABLES.map(|by| side.sums(*index, found, by, self.options.alike));
            let unaccounted = sums[0].unaccounted;
            if unaccounted != 0 {
                self.warnings.push(format!(
                    "{name}: {} of {index} are in no row, because events were lost.",
                    signed(unaccounted)
                ));
            }
            self.ranks.push(RankDevice {
                place,
                name: rank_name(side.name),
                recording: side.name.to_owned(),
                device: *index,
                gpu: snapshot.target.gpu(*index).map(crate::view::gpu_number),
                capacity: snapshot.target.gpu(*index).and_then(|gpu| gpu.memory),
                peak: device.map_or(Totals::default(), |device| device.peak),
                then: found.moment.totals,
                ooms: device.map_or(0, |device| device.ooms),
                failure: None,
                at_failure: None,
                iterations: side.iteration_peaks(*index),
                sums: sums.into(),
            });
        }
    }

    /// Adds the first failures of the devices, and their memory at the first of all.
    fn note_failures(&mut self, failures: JobFailures) {
        for rank in &mut self.ranks {
            let end = &failures.ends[rank.place];
            rank.at_failure = failures.totals_then(rank.place, rank.device);
            let failure = end.failure.as_ref();
            let failure = failure.filter(|_| end.failed_on(rank.device));
            rank.failure = failure.map(|found| RankFailure {
                found: found.clone(),
                since_start: failures.since_start(rank.place, found.event.time),
                wall_ms: end.failed_ms(),
                iteration: end.iteration,
            });
        }
        self.failures = failures;
    }

    /// The first rank to fail, with its request, or the one that is nearest to it.
    pub fn verdict(&self) -> String {
        self.sentences().join(" ")
    }

    fn sentences(&self) -> Vec<String> {
        let mut sentences = self.failures.sentences();
        if !self.failures.any() {
            sentences.insert(0, self.nearest_to_failure());
        }
        sentences
    }

    /// The rank with the least memory left, or with the most reserved bytes if a capacity is unknown.
    fn nearest_to_failure(&self) -> String {
        let left = |rank: &RankDevice| {
            let capacity = rank.capacity?.0;
            Some((capacity.saturating_sub(rank.peak.reserved.0), capacity))
        };
        let rooms: Option<Vec<_>> = self.ranks.iter().map(left).collect();
        let rooms = rooms.unwrap_or_default();
        let least = rooms.iter().zip(&self.ranks).min_by_key(|(room, _)| **room);
        match least {
            Some(((room, capacity), rank)) => format!(
                "No rank ran out of memory. {} left least to its GPU: {} of {}.",
                label(rank),
                human(Bytes(*room)),
                human(Bytes(*capacity))
            ),
            None => match self.ranks.iter().max_by_key(|rank| rank.peak.reserved) {
                Some(most) => format!(
                    "No rank ran out of memory. {} reserved most: {}.",
                    label(most),
                    human(most.peak.reserved)
                ),
                None => "The recordings have no memory of PyTorch's CUDA allocator.".to_owned(),
            },
        }
    }

    pub fn moment(&self) -> String {
        match self.iteration {
            Some(number) => format!("At the peak of each rank in iteration {number}:"),
            None => "The ranks have no iteration in common. At the peak of each rank:".to_owned(),
        }
    }

    pub fn spread(&self) -> Option<String> {
        let bytes = self
            .ranks
            .iter()
            .map(|rank| rank.then.allocated.0)
            .collect();
        let ranks = crate::compare::ranks::RankBytes { bytes };
        let (least, most) = (ranks.least(), ranks.most());
        let named = |extreme: RankExtreme| {
            let rank = self.ranks.get(extreme.rank)?;
            Some(format!(
                "{} in {}",
                human(Bytes(extreme.bytes)),
                label(rank)
            ))
        };
        Some(format!(
            "allocated: {} to {}, a difference of {}",
            named(least)?,
            named(most)?,
            human(Bytes(ranks.spread()))
        ))
    }

    /// The table of ranks.
    pub fn ranks_table(&self) -> Table<&RankDevice> {
        table::ranks(&self.ranks)
    }

    /// Tables of what differs between ranks: by line, by module, by category.
    pub fn differences(&self) -> impl Iterator<Item = Table<RankRow>> {
        let top = self.options.top;
        let tables = TABLES.into_iter().enumerate();
        tables.map(move |(at, by)| table::text(by, self.rows(at), top))
    }

    fn rows(&self, at: usize) -> Vec<RankRow> {
        let sums: Vec<MemoryByKey> = self
            .ranks
            .iter()
            .map(|rank| rank.sums[at].clone())
            .collect();
        table::rows(TABLES[at], &imbalance(&sums), &sums, &self.ranks)
    }
}

/// Such as `rank 3 (cuda:0)`.
pub fn label(rank: &RankDevice) -> String {
    first_failure::label(&rank.name, Some(rank.device))
}

impl TableReport for RankComparison<'_> {
    type Row = RankRow;

    fn text(&self, page: &mut Page) {
        push_sentences(page, &self.sentences());
        self.warnings
            .iter()
            .for_each(|warning| page.warning(&format!("warning: {warning}")));
        page.blank();
        page.table(&self.ranks_table());
        if self.ranks.len() < 2 {
            return;
        }
        page.blank();
        page.line(&self.moment());
        self.spread().iter().for_each(|spread| page.line(spread));
        for table in self.differences() {
            page.blank();
            page.table(&table);
        }
        page.legend(&["Categories are inferred from when memory was allocated and freed."]);
    }

    fn document(&self) -> Cell<'_> {
        let tables = TABLES.into_iter().enumerate().map(|(at, by)| {
            let mut table = Table::new(table::columns(""));
            table.extend(crate::view::table::Output::All, self.rows(at));
            let key = super::difference::keys::key_of_table(by);
            Cell::Object(vec![("by", key.into()), ("rows", table.into())])
        });
        Cell::Object(vec![
            ("verdict", self.verdict().into()),
            ("first_failure", self.failures.cell()),
            ("iteration", self.iteration.into()),
            (
                "warnings",
                Cell::list(self.warnings.iter().map(|text| Cell::from(&**text))),
            ),
            ("ranks", self.ranks_table().into()),
            ("tables", Cell::list(tables)),
        ])
    }

    fn columns(&self) -> Vec<Column<RankRow>> {
        table::columns("")
    }

    fn tables(&self) -> impl Iterator<Item = Table<RankRow>> {
        (0..TABLES.len()).map(|at| {
            let mut table = Table::new(table::columns(""));
            table.extend(crate::view::table::Output::All, self.rows(at));
            table
        })
    }
}

#[cfg(test)]
mod tests;
