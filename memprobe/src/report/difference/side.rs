//! One of the two recordings of a difference.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{DiffOptions, NamedRecording};
use crate::attribution::allocation_groups::ModuleScope;
use crate::attribution::chosen_moments::{
    ChosenMoment, FoundMoment, FoundOnDevices, MomentLedger, MomentSearch,
};
use crate::attribution::failures::FailureFinder;
use crate::attribution::iterations::Iteration;
use crate::compare::{CompareBy, MemoryByKey};
use crate::event::{DeviceIndex, TimeNs, Totals};
use crate::ledger::snapshot::Site;
use crate::recording::Reader;
use crate::report::peak::without_numbers;
use crate::report::preamble::target_lines;
use crate::report::replay::{self, RecordingReplay};
use crate::report::{Alike, ReportError, attribution};
use crate::view::table::Cell;
use crate::view::{clean, duration};

pub(in crate::report) struct ComparedSide<'a> {
    pub(in crate::report) name: &'a str,
    pub(in crate::report) replay: RecordingReplay,
    /// File, and first failed request.
    pub(in crate::report) path: PathBuf,
    pub(in crate::report) failures: FailureFinder,
    search: MomentSearch,
    ledger: MomentLedger,
    wanted: Vec<ChosenMoment>,
    /// The wanted moments, in order.
    pub(in crate::report) found: Vec<FoundOnDevices>,
}

/// Moment of one device, in words.
pub(super) struct NamedMoment {
    pub(super) device: Option<DeviceIndex>,
    pub(super) totals: Totals,
    pub(super) name: String,
    since_start: u64,
    iteration: Option<u64>,
}

/// A recording after its first replay.
pub(in crate::report) struct SearchedRecording<'a> {
    pub(in crate::report) name: &'a str,
    pub(in crate::report) replay: RecordingReplay,
    pub(in crate::report) search: MomentSearch,
    failures: FailureFinder,
    path: PathBuf,
    again: Reader<BufReader<File>>,
}

impl<'a> SearchedRecording<'a> {
    pub(in crate::report) fn read<R: BufRead>(
        recording: NamedRecording<'a, R>,
        options: &DiffOptions,
    ) -> Result<Self, ReportError> {
        let NamedRecording { name, reader } = recording;
        let again = reader.path().map(Path::to_owned).zip(reader.reopened());
        let (path, again) = again.ok_or_else(|| {
            ReportError::NoMoment(format!("{name}: a pipe cannot be read twice; give a file"))
        })?;
        let search = MomentSearch::new(options.iteration.clone());
        let analyses = (search, FailureFinder::first());
        let (replay, (search, failures)) = replay::run(reader, options.grouping, analyses)?;
        Ok(Self {
            name,
            replay,
            search,
            failures,
            path,
            again,
        })
    }

    /// Replays the recording once more, to sum the live blocks at these moments.
    pub(in crate::report) fn at(
        self,
        wanted: &[ChosenMoment],
        options: &DiffOptions,
    ) -> Result<ComparedSide<'a>, ReportError> {
        let Self {
            name,
            replay,
            search,
            failures,
            path,
            again,
        } = self;
        let find = |moment: &ChosenMoment| {
            let found = search.find(*moment);
            match missing(*moment, &search).filter(|_| found.is_empty()) {
                Some((kind, text)) => {
                    let text = format!("{name}: {text}");
                    Err(match kind {
                        Missing::Iteration => ReportError::NoIteration(text),
                        Missing::Moment => ReportError::NoMoment(text),
                    })
                }
                None => Ok(found),
            }
        };
        let found = wanted.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let ledger = MomentLedger::new(options.grouping, found.iter());
        let (_, ledger) = replay::run(again, options.grouping, ledger)?;
        Ok(ComparedSide {
            name,
            replay,
            path,
            failures,
            search,
            ledger,
            wanted: wanted.to_vec(),
            found,
        })
    }
}

impl<'a> ComparedSide<'a> {
    /// Replays a recording twice: to find the moments, and to sum the live blocks then.
    pub(super) fn read<R: BufRead>(
        recording: NamedRecording<'a, R>,
        wanted: &[ChosenMoment],
        options: &DiffOptions,
    ) -> Result<Self, ReportError> {
        SearchedRecording::read(recording, options)?.at(wanted, options)
    }

    pub(super) fn sites(&self) -> HashSet<&Site> {
        self.ledger.sites()
    }

    pub(super) fn knows_modules(&self) -> bool {
        self.ledger.knows_modules()
    }

    /// Memory of a device at the wanted moment number `at`; nothing for a device that the recording lacks.
    pub(super) fn memory(
        &self,
        device: Option<DeviceIndex>,
        at: usize,
        options: &DiffOptions,
    ) -> (NamedMoment, MemoryByKey) {
        let found = device.and_then(|index| Some((index, self.found[at].get(&index)?)));
        let Some((index, found)) = found else {
            return (NamedMoment::absent(), MemoryByKey::default());
        };
        let named = NamedMoment::new(index, found, self, self.wanted[at]);
        (named, self.sums(index, found, options.by, options.alike))
    }

    /// Memory of a device at a moment of [`Self::found`].
    pub(in crate::report) fn sums(
        &self,
        index: DeviceIndex,
        found: &FoundMoment,
        by: CompareBy,
        alike: Alike,
    ) -> MemoryByKey {
        let memory = self.ledger.memory_at(index, found.clone(), &self.search);
        let module = |place: &ModuleScope| match (place, alike) {
            (ModuleScope::Module(path), Alike::Folded) => {
                ModuleScope::Module(without_numbers(path).into())
            }
            (place, _) => place.clone(),
        };
        MemoryByKey::of(&memory, by, module)
    }

    /// Number of the iteration around a time, if there is one.
    pub(in crate::report) fn iteration_at(&self, time: TimeNs) -> Option<u64> {
        let table = self.search.categories.iterations();
        let mut rows = table.rows.iter().filter(|row| row.is_numbered());
        let row = rows.find(|row| (row.begin..=row.end).contains(&time))?;
        Some(row.number)
    }

    /// Allocated bytes of a device at the peak of each iteration, by number.
    pub(in crate::report) fn iteration_peaks(&self, device: DeviceIndex) -> BTreeMap<u64, u64> {
        let table = self.search.categories.iterations();
        let rows = table.rows.iter().filter(|row| row.is_numbered());
        let peak = |row: &Iteration| {
            let (_, found) = row.devices.iter().find(|(index, _)| *index == device)?;
            Some((row.number, found.peak.totals.allocated.0))
        };
        rows.filter_map(peak).collect()
    }

    /// File and process.
    pub(super) fn heading(&self) -> String {
        let target = &self.replay.snapshot.target;
        let [command, facts] = target_lines(target, &self.replay.header.version);
        format!("{}  {command}  {facts}", clean(self.name))
    }

    pub(super) fn cell(&self) -> Cell<'_> {
        let (snapshot, damage) = (&self.replay.snapshot, self.replay.damage);
        Cell::Object(vec![
            ("recording", self.name.into()),
            ("command", (&*snapshot.target.command).into()),
            ("pid", snapshot.target.tgid.map(|tgid| tgid.0).into()),
            ("truncated", self.replay.truncated.into()),
            ("damage", Cell::if_known(damage.map(|it| it.to_string()))),
            ("events", snapshot.health.events.into()),
            ("lost_events", snapshot.health.losses.events.into()),
        ])
    }
}

/// Kind of a moment that a recording lacks.
#[derive(Clone, Copy)]
enum Missing {
    Iteration,
    Moment,
}

/// Reason that a recording may lack a moment, with advice; `None` for a moment that all recordings have.
fn missing(moment: ChosenMoment, search: &MomentSearch) -> Option<(Missing, String)> {
    match moment {
        ChosenMoment::Peak | ChosenMoment::End => None,
        ChosenMoment::OutOfMemory => Some((
            Missing::Moment,
            "no request failed in it; compare at the peak or the end".to_owned(),
        )),
        ChosenMoment::Iteration(_) => Some((
            Missing::Iteration,
            match search.iterations() {
                Some((first, last)) if first < last => {
                    format!("it has {first} to {last}; give one of these")
                }
                Some((only, _)) => format!("it has only {only}; give that"),
                None => attribution::source_of_iterations(&search.categories.iterations()),
            },
        )),
    }
}

impl NamedMoment {
    fn absent() -> Self {
        Self {
            device: None,
            totals: Totals::default(),
            name: "no memory".to_owned(),
            since_start: 0,
            iteration: None,
        }
    }

    fn new(
        device: DeviceIndex,
        found: &FoundMoment,
        side: &ComparedSide<'_>,
        moment: ChosenMoment,
    ) -> Self {
        let start = side.replay.snapshot.started.0;
        let since_start = found.moment.time.0.saturating_sub(start);
        let what = match moment {
            ChosenMoment::Peak => "peak".to_owned(),
            ChosenMoment::End => "end".to_owned(),
            ChosenMoment::OutOfMemory => "last out-of-memory error".to_owned(),
            ChosenMoment::Iteration(number) => format!("peak of iteration {number}"),
        };
        let within = match (moment, found.iteration) {
            (ChosenMoment::Iteration(_), _) | (_, None) => String::new(),
            (_, Some(number)) => format!(", iteration {number}"),
        };
        let after = duration(Duration::from_nanos(since_start));
        Self {
            device: Some(device),
            totals: found.moment.totals,
            name: format!("{what}, {after} after the start{within}"),
            since_start,
            iteration: found.iteration,
        }
    }

    pub(super) fn cell(&self) -> Cell<'_> {
        let Some(device) = self.device else {
            return Cell::Unknown;
        };
        Cell::Object(vec![
            ("device", device.into()),
            ("time_ns", self.since_start.into()),
            ("iteration", self.iteration.into()),
            ("allocated", self.totals.allocated.into()),
            ("reserved", self.totals.reserved.into()),
        ])
    }
}
