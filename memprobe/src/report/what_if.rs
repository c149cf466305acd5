//! Report of a replay under other settings of PyTorch's allocator.

use std::io::{BufRead, Write};

use super::document::{self, TableReport, document};
use super::preamble::push_beginning;
use super::replay::{self, RecordingReplay};
use super::{Outcome, ReportError, ReportOptions};
use crate::estimate::AllocatorSettings;
use crate::estimate::what_if::{
    FailedOutcome, ReplayedFailure, SimulatedPeak, WhatIf, WhatIfDevice, WhatIfFacts,
};
use crate::event::bytes::{human, signed};
use crate::event::{Bytes, DeviceIndex};
use crate::recording::{Header, Reader, RecordingDamage};
use crate::view::table::{Cell, Column, Output, Page, Table, columns};
use crate::view::{FileNames, cells, clean, counted};

/// Settings to replay a recording under, and their text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhatIfSettings {
    pub text: String,
    pub settings: AllocatorSettings,
}

/// A run of a device: recorded, replayed under its own settings, or under others.
struct RunRow<'a> {
    device: DeviceIndex,
    run: &'static str,
    settings: &'a str,
    name: String,
    peak: SimulatedPeak,
    /// Reserved bytes beyond those of the recording.
    change: Option<i64>,
    exact: Option<bool>,
    failed: Option<&'static str>,
}

fn columns<'a>() -> Vec<Column<RunRow<'a>>> {
    columns![|row: RunRow<'a>|
        data("device") => row.device,
        data("run") => row.run,
        data("settings") => row.settings,
        number("peak_allocated", "PEAK ALLOCATED") => row.peak.allocated,
        number("peak_reserved", "PEAK RESERVED") => row.peak.reserved,
        number("change", "CHANGE") => row.change.map_or(Cell::Blank, Cell::Signed),
        number("cached_at_peak", "CACHED THEN") => row.peak.cached(),
        figure("SHARE") => Cell::share(row.peak.cached().0, row.peak.reserved.0),
        data("exact") => row.exact,
        data("failed_request") => row.failed,
        label("RUN") => &*row.name,
    ]
    .into()
}

pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    wanted: &WhatIfSettings,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let again = reader.reopened().ok_or_else(|| {
        ReportError::NoMoment("a pipe cannot be read twice; give a file".to_owned())
    })?;
    let conf = RecordedConf::of(reader.header(), &wanted.text);
    let torch = reader.header().target.torch.clone();
    let facts = WhatIfFacts::with_settings(conf.settings);
    let (_, facts) = replay::run(reader, options.grouping, facts)?;
    // The text was parsed without the version of the recorded PyTorch.
    let settings = AllocatorSettings::parse_for(&wanted.text, torch.as_deref());
    let simulations = WhatIf::new(facts, settings.unwrap_or(wanted.settings));
    let (replay, simulations) = replay::run(again, options.grouping, simulations)?;
    let losses = RecordingDamage::losses_of_recording(replay.damage, replay.snapshot.health.losses);
    let report = WhatIfReport {
        devices: simulations.results(losses.events.saturating_add(losses.malformed)),
        replay: &replay,
        wanted,
        conf: &conf,
    };
    document::write(&report, &replay, options, out)
}

/// Settings in the environment of the recorded run.
struct RecordedConf {
    /// Empty if there are none, or if they cannot be simulated.
    text: String,
    settings: AllocatorSettings,
    /// Reason that they cannot be simulated.
    refused: Option<String>,
    /// Rule that is assumed, since the recording does not tell the version of PyTorch.
    unknown_version: Option<String>,
}

impl RecordedConf {
    fn of(header: &Header, wanted: &str) -> Self {
        let conf = header.target.allocator_conf.as_deref();
        let torch = header.target.torch.as_deref();
        let parsed = conf.map(|conf| AllocatorSettings::parse_recorded(conf, torch));
        let parsed = parsed.transpose();
        let refused = parsed.as_ref().err().map(|error| {
            let conf = clean(conf.unwrap_or_default());
            format!(
                "The recorded run had the settings {conf}, which cannot be simulated: {}. Default ones stand for them.",
                clean(&error.to_string())
            )
        });
        let settings = parsed.ok().flatten();
        let mut texts = [conf, Some(wanted)].into_iter().flatten();
        let depends = texts.any(AllocatorSettings::depends_on_version);
        let unknown_version = (torch.is_none() && depends).then(|| {
            "The recording does not tell the version of PyTorch: `>` begins behind the last named size, as since 2.10."
                .to_owned()
        });
        Self {
            unknown_version,
            text: settings.and(conf).map_or_else(String::new, clean),
            settings: settings.unwrap_or_default(),
            refused,
        }
    }

    /// Notes on the settings of the recorded run, and on the wanted ones.
    fn notes(&self) -> impl Iterator<Item = String> {
        self.refused.iter().chain(&self.unknown_version).cloned()
    }
}

struct WhatIfReport<'a> {
    replay: &'a RecordingReplay,
    devices: Vec<WhatIfDevice>,
    wanted: &'a WhatIfSettings,
    conf: &'a RecordedConf,
}

impl<'a> TableReport for WhatIfReport<'a> {
    type Row = RunRow<'a>;

    fn text(&self, page: &mut Page) {
        push_beginning(page, self.replay);
        for device in &self.devices {
            page.blank();
            page.strong(&verdict(device, &self.wanted.text));
            page.table(&self.table(device));
            if let Some(failed) = &device.failed {
                page.note(&failed_request(failed));
            }
            for note in notes(device).into_iter().chain(self.conf.notes()) {
                page.note(&note);
            }
        }
        if self.devices.is_empty() {
            page.blank();
            page.line("The recording has no request of PyTorch's CUDA allocator.");
        }
    }

    fn document(&self) -> Cell<'_> {
        let devices = self.devices.iter().map(|device| {
            Cell::Object(vec![
                ("device", device.device.into()),
                ("requests", device.requests.into()),
                ("reproduced", device.is_reproduced().into()),
                ("exact", device.is_exact().into()),
                ("failed", Cell::if_known(device.failed.map(failed_cell))),
                ("unknown_streams", unknown_stream_cells(device)),
                (
                    "notes",
                    Cell::list(
                        notes(device)
                            .into_iter()
                            .chain(self.conf.notes())
                            .map(Cell::from),
                    ),
                ),
                ("rows", self.table(device).into()),
            ])
        });
        document(self.replay, Cell::Absent, devices)
    }

    fn columns(&self) -> Vec<Column<RunRow<'a>>> {
        columns()
    }

    fn tables(&self) -> impl Iterator<Item = Table<RunRow<'a>>> {
        self.devices.iter().map(|device| self.table(device))
    }
}

impl<'a> WhatIfReport<'a> {
    fn table(&self, device: &WhatIfDevice) -> Table<RunRow<'a>> {
        let change = |peak: SimulatedPeak| {
            let recorded = device.recorded.reserved.0.cast_signed();
            Some(peak.reserved.0.cast_signed().wrapping_sub(recorded))
        };
        let own = match device.recorded_settings {
            settings if settings == self.conf.settings => self.conf.text.as_str(),
            settings if settings.expandable => "expandable_segments:True",
            _ => "",
        };
        let mut table = Table::new(columns());
        table.push(
            Output::All,
            RunRow {
                device: device.device,
                run: "recorded",
                settings: own,
                name: "recorded".to_owned(),
                peak: device.recorded,
                change: None,
                exact: None,
                failed: device.failed.map(|_| "failed"),
            },
        );
        table.push(
            Output::All,
            RunRow {
                device: device.device,
                run: "reproduced",
                settings: own,
                name: match own {
                    "" => "replayed with default settings".to_owned(),
                    own => format!("replayed with {own}"),
                },
                peak: device.reproduced,
                change: change(device.reproduced),
                exact: Some(device.is_reproduced()),
                failed: None,
            },
        );
        table.push(
            Output::All,
            RunRow {
                device: device.device,
                run: "what_if",
                settings: &self.wanted.text,
                name: format!("with {}", self.wanted.text),
                peak: device.simulated,
                change: change(device.simulated),
                exact: Some(device.is_exact()),
                failed: device.failed.map(|failed| failed.outcome.as_str()),
            },
        );
        table
    }
}

fn verdict(device: &WhatIfDevice, settings: &str) -> String {
    let (was, now) = (device.recorded.reserved, device.simulated.reserved);
    let change = now.0.cast_signed().wrapping_sub(was.0.cast_signed());
    let about = if device.is_exact() { "" } else { "about " };
    format!(
        "{}  {settings}: {about}{} reserved at most, was {}: {}",
        device.device,
        human(now),
        human(was),
        signed(change)
    )
}

fn failed_request(failed: &ReplayedFailure) -> String {
    let size = human(failed.size);
    match failed.outcome {
        FailedOutcome::Fits => format!(
            "The failed request of {size} would have fitted, within the {} that the allocator had reserved at most.",
            human(failed.least_capacity)
        ),
        FailedOutcome::FailsToo => format!(
            "The failed request of {size} would have failed too, with up to {} from CUDA.",
            human(failed.most_capacity)
        ),
        FailedOutcome::Unknown => format!(
            "The failed request of {size} may have fitted: it needs more than the {} reserved before, and the recording \
             does not tell how much of up to {} was free.",
            human(failed.least_capacity),
            human(failed.most_capacity)
        ),
    }
}

fn failed_cell(failed: ReplayedFailure) -> Cell<'static> {
    Cell::Object(vec![
        ("size", failed.size.into()),
        ("outcome", failed.outcome.as_str().into()),
        ("least_capacity", failed.least_capacity.into()),
        ("most_capacity", failed.most_capacity.into()),
    ])
}

/// Reasons why the result may be inexact.
fn notes(device: &WhatIfDevice) -> Vec<String> {
    let caveats = &device.caveats;
    let mut notes = Vec::new();
    if device.failed.is_some() {
        notes.push("The replay ends at the first out-of-memory error.".to_owned());
    }
    if device.is_exact() {
        notes.push(format!(
            "Exact: the replay of {} has the totals of the recording after every event.",
            counted(device.requests, "request")
        ));
        if device.has_streams {
            notes.push(
                "It has several streams. A free that awaited another one (record_stream) between two readings of the \
                 tables is not seen: if the program calls record_stream, this is an estimate."
                    .to_owned(),
            );
        }
        return notes;
    }
    let reproduced = device.reproduced.reserved.0.cast_signed();
    let difference = reproduced.wrapping_sub(device.recorded.reserved.0.cast_signed());
    notes.push(match (difference, device.differing_events) {
        (0, 0) => "Inexact, although the replay has the totals of the recording after every event:".to_owned(),
        (0, events) => format!(
            "Inexact: the replay of the recorded run has its peak, but other totals after {}:",
            counted(events, "event")
        ),
        (difference, events) => format!(
            "Inexact: against the recording, this replay of it reserves {} at the peak, and has other totals after {}. The \
             program had other settings, or:",
            signed(difference),
            counted(events, "event")
        ),
    });
    let mut note = |number: u64, text: String| {
        if number > 0 {
            notes.push(format!("- {text}"));
        }
    };
    note(
        caveats.unknown_sizes,
        format!(
            "{} of unknown exact size, without a recorded tensor (--detail tensors): the block may be up to 1 MiB larger.",
            counted(caveats.unknown_sizes, "request")
        ),
    );
    note(caveats.unknown_places, unknown_streams(device));
    note(
        caveats.before_attach,
        format!(
            "{} were allocated before attach: record the process from its start.",
            human(Bytes(caveats.before_attach))
        ),
    );
    note(
        caveats.doubtful_releases,
        format!(
            "{} of cached memory may be of a full GPU rather than of empty_cache().",
            counted(caveats.doubtful_releases, "release")
        ),
    );
    note(
        caveats.deferred_frees,
        format!(
            "{} awaited another stream (record_stream): the replay reuses it at once.",
            counted(caveats.deferred_frees, "freed block")
        ),
    );
    note(
        caveats.lost_events,
        format!("{} were lost.", counted(caveats.lost_events, "event")),
    );
    notes
}

fn unknown_stream_cells(device: &WhatIfDevice) -> Cell<'_> {
    Cell::list(device.unknown_streams.iter().map(|line| {
        let site = Some(&line.site);
        Cell::Object(vec![
            ("file", cells::file(site)),
            ("line", cells::line(site)),
            ("function", cells::function(site)),
            ("reason", cells::reason(site)),
            ("requests", line.requests.into()),
        ])
    }))
}

/// Names the lines whose requests are on an unknown stream.
fn unknown_streams(device: &WhatIfDevice) -> String {
    let names = FileNames::default();
    let all = device.caveats.unknown_places;
    let lines = device.unknown_streams.iter();
    let mut parts: Vec<String> = lines
        .map(|line| format!("{} of {}", line.requests, names.site(&line.site)))
        .collect();
    let named: u64 = (device.unknown_streams.iter())
        .map(|line| line.requests)
        .sum();
    if all > named {
        parts.push(format!("{} of other lines", all - named));
    }
    format!(
        "{} on an unknown stream, counted as on the default one: {}.",
        counted(all, "request"),
        parts.join(", ")
    )
}

#[cfg(test)]
mod tests;
