//! Waterfall of a process's memory on each device, at one moment of a recording.

use std::io::{BufRead, Write};
use std::sync::Arc;

use super::document::{self, TableReport, document};
use super::preamble::push_beginning;
use super::replay::RecordingReplay;
use super::segments::{SegmentsAt, at_moment};
use super::{Outcome, ReportError, ReportOptions, RowLimit};
use crate::attribution::segments::maps_of;
use crate::attribution::tables::{OwnerKind, Waterfall};
use crate::attribution::waterfall::waterfalls;
use crate::event::bytes::human;
use crate::event::{Bytes, DriverCount, DriverReading, Event, Tgid, TimeNs};
use crate::recording::{DumpFacts, Reader};
use crate::view::table::{Cell, Column, Output, Page, Table};
use crate::view::{OWNER_COLUMNS, OwnerEntry, clean, counted, owner_notes};

struct OwnerReport<'a> {
    replay: &'a RecordingReplay,
    waterfalls: Vec<Waterfall>,
    /// Totals by kind of memory.
    kinds: Vec<OwnerEntry>,
    now: TimeNs,
    moment: String,
    options: &'a ReportOptions,
}

pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let dump = reader.header().dump.clone();
    let SegmentsAt {
        replay,
        mut played,
        moment,
    } = at_moment(reader, options)?;
    // The events of a dump may have no count of the driver.
    let has_count = !played.ledger.driver().devices.is_empty();
    if let Some(dump) = dump.as_deref().filter(|_| !has_count) {
        let tgid = played.ledger.target.tgid;
        played.ledger.apply(&dumped(dump, tgid));
    }
    let (now, maps) = maps_of(&played);
    let now = now.unwrap_or_default();
    let snapshot = played.ledger.snapshot(now, options.grouping);
    let report = OwnerReport {
        replay: &replay,
        waterfalls: waterfalls(&played.ledger, &snapshot, &maps, options.grouping),
        kinds: OwnerEntry::by_kind(&snapshot.cuda),
        now,
        moment,
        options,
    };
    document::write(&report, &replay, options, out)
}

/// The driver's count in the header of a dump.
fn dumped(dump: &DumpFacts, tgid: Option<Tgid>) -> Event {
    let devices = dump.gpus.iter().map(|gpu| DriverCount {
        device: gpu.device,
        total: Bytes(gpu.total),
        used: Bytes(gpu.used),
        process: gpu.own.map(Bytes),
    });
    let asked = dump.gpus.iter().map(|gpu| gpu.asked).min();
    let asked = asked.unwrap_or(dump.time);
    Event::Driver(Arc::new(DriverReading {
        time: asked,
        asked,
        tgid: tgid.unwrap_or(Tgid(0)),
        devices: devices.collect(),
        unread: dump.gpus_unknown.as_deref().map(Into::into),
    }))
}

fn table(of: &Waterfall, options: &ReportOptions) -> Table<OwnerEntry> {
    let mut table = Table::new(OWNER_COLUMNS);
    let limit = match options.top {
        RowLimit::All => usize::MAX,
        RowLimit::Rows(most) => most,
    };
    let (mut shown, mut hidden) = (0, 0);
    let mut entries = OwnerEntry::all(of).into_iter().peekable();
    while let Some(entry) = entries.next() {
        let is_line = entry.row.id == OwnerKind::Line;
        shown = if is_line { shown + 1 } else { 0 };
        let is_hidden = is_line && shown > limit;
        hidden += u64::from(is_hidden);
        let output = if is_hidden { Output::Data } else { Output::All };
        let mut remark = entry.clone();
        table.push(output, entry);
        let is_last = entries
            .peek()
            .is_none_or(|next| next.row.id != OwnerKind::Line);
        if hidden > 0 && is_last {
            let lines = counted(hidden, "other line");
            remark.indented = format!("    ({lines}; --limit all shows them)");
            table.push(Output::Remark, remark);
            hidden = 0;
        }
    }
    table
}

impl OwnerReport<'_> {
    fn kinds(&self) -> Table<OwnerEntry> {
        Table::of(OWNER_COLUMNS, self.kinds.iter().cloned())
    }
}

impl TableReport for OwnerReport<'_> {
    type Row = OwnerEntry;

    fn text(&self, page: &mut Page) {
        push_beginning(page, self.replay);
        for of in &self.waterfalls {
            let whole = of.rows.first().map_or(0, |row| row.bytes);
            let whole = Bytes(u64::try_from(whole).unwrap_or_default());
            page.blank();
            page.strong(&format!("{} {}: {}", of.index, self.moment, human(whole)));
            page.table(&table(of, self.options));
            page.blank();
            for note in owner_notes(of, self.now) {
                page.note(&note);
            }
        }
        if self.waterfalls.is_empty() {
            page.blank();
            page.note(NOTHING);
        }
        if !self.kinds.is_empty() {
            page.blank();
            page.strong(BY_KIND);
            page.table(&self.kinds());
        }
    }

    fn document(&self) -> Cell<'_> {
        let devices = self.waterfalls.iter().map(|of| {
            let driver = of.driver;
            Cell::Object(vec![
                ("device", of.index.into()),
                ("allocated", of.totals.allocated.into()),
                ("reserved", of.totals.reserved.into()),
                ("process", driver.and_then(|driver| driver.process).into()),
                ("used", driver.map(|driver| driver.used).into()),
                ("total", driver.map(|driver| driver.total).into()),
                ("exact", driver.map(|driver| driver.is_exact).into()),
                (
                    "driver_unknown",
                    of.driver_unknown
                        .as_deref()
                        .map(Cell::from)
                        .unwrap_or_default(),
                ),
                (
                    "notes",
                    Cell::list(owner_notes(of, self.now).iter().map(|note| clean(note))),
                ),
                ("rows", table(of, self.options).into()),
            ])
        });
        let mut notes = vec![format!("The rows are those {}.", self.moment)];
        if self.waterfalls.is_empty() {
            notes.push(NOTHING.to_owned());
        }
        let mut document = document(self.replay, Cell::list(notes), devices);
        if let Cell::Object(fields) = &mut document {
            fields.push(("kinds", self.kinds().into()));
        }
        document
    }

    fn columns(&self) -> Vec<Column<OwnerEntry>> {
        OWNER_COLUMNS.into()
    }

    fn tables(&self) -> impl Iterator<Item = Table<OwnerEntry>> {
        let waterfalls = self.waterfalls.iter().map(|of| table(of, self.options));
        waterfalls.chain(std::iter::once(self.kinds()))
    }
}

/// Heading of the totals by kind.
const BY_KIND: &str = "CUDA memory beside PyTorch's caching allocator, by kind";

const NOTHING: &str = "The recording has no memory of a GPU.";
