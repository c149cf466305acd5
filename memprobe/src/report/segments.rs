//! Table of the allocator's segments and pools at one moment of a recording.

use std::io::{BufRead, Write};
use std::rc::Rc;
use std::time::Duration;

use super::document::{self, TableReport, document};
use super::preamble::push_beginning;
use super::replay::{self, RecordingReplay};
use super::{Outcome, ReportError, ReportOptions, RowLimit, SegmentMoment};
use crate::attribution::segments::{SegmentLedger, SegmentMoments, maps_of};
use crate::attribution::tables::{SegmentBlockState, SegmentMap};
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::ledger::AnalyzedLedger;
use crate::recording::Reader;
use crate::view::table::{Cell, Column, Output, Page, Rows, Table};
use crate::view::{
    MapGlyphs, SegmentEntry, clean, counted, drawing, duration, pools, segment_columns,
};

/// Columns of the drawing of a segment in text.
const DRAWN: usize = 64;

pub(super) struct SegmentReport<'a> {
    pub(super) replay: &'a RecordingReplay,
    pub(super) maps: Vec<SegmentMap>,
    /// Names the moment, after the device.
    pub(super) moment: String,
    pub(super) options: &'a ReportOptions,
}

pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let SegmentsAt {
        replay,
        played,
        moment,
    } = at_moment(reader, options)?;
    let (_, maps) = maps_of(&played);
    let report = SegmentReport {
        replay: &replay,
        maps,
        moment,
        options,
    };
    document::write(&report, &replay, options, out)
}

/// Ledger and segments at a moment of a recording.
pub(super) struct SegmentsAt {
    pub(super) replay: RecordingReplay,
    pub(super) played: AnalyzedLedger<SegmentLedger>,
    /// Names the moment.
    pub(super) moment: String,
}

/// Replays a recording up to the wanted moment.
pub(super) fn at_moment<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
) -> Result<SegmentsAt, ReportError> {
    let again = reader.reopened().ok_or_else(|| {
        ReportError::NoMoment("a pipe cannot be read twice; give a file".to_owned())
    })?;
    let analyses = (SegmentLedger::default(), SegmentMoments::default());
    let (replay, (segments, moments)) = replay::run(reader, options.grouping, analyses)?;
    let (events, moment) = match (options.moment, moments.peak, moments.out_of_memory) {
        (SegmentMoment::Peak, Some(at), _) => (at, Some("at the peak")),
        (SegmentMoment::OutOfMemory, _, Some(at)) => (at, Some("at the last out-of-memory error")),
        (SegmentMoment::OutOfMemory, _, None) => {
            return Err(ReportError::NoMoment(
                "no request failed in it; leave out --at oom, or give --at end".to_owned(),
            ));
        }
        (SegmentMoment::End | SegmentMoment::Peak, ..) => (u64::MAX, None),
    };
    // The first replay has learnt the pools of segments that were read only after this moment.
    let known = SegmentLedger::with_facts_of(&segments);
    let played = replay::run_until(again, events, known)?;
    let now = played.ledger.last_event();
    let after = now.map_or(0, |now| now.0.saturating_sub(replay.snapshot.started.0));
    let after = duration(Duration::from_nanos(after));
    let moment = match moment {
        Some(name) => format!("{name} ({after} after attach)"),
        None => "at the end of the recording".to_owned(),
    };
    Ok(SegmentsAt {
        replay,
        played,
        moment,
    })
}

fn table(map: &SegmentMap, options: &ReportOptions) -> Table<SegmentEntry> {
    let mut columns = segment_columns();
    if options.request.is_none() {
        columns.retain(|column| column.key != "unusable");
    }
    let mut table = Table::new(columns);
    let device = map.index;
    for pool in pools(map) {
        table.push(
            Output::Text,
            SegmentEntry::of_pool(&pool, device, options.request),
        );
        let shown = options.top.of(pool.rows.len());
        for (row, at) in pool.rows.iter().zip(0..) {
            let mut entry = SegmentEntry::of_segment(row, device, options.request);
            if at >= shown {
                table.push(Output::Data, entry);
                continue;
            }
            table.push(Output::Data, entry.clone());
            entry.name = format!("  {}", entry.name);
            table.push(Output::Text, entry);
        }
        if let RowLimit::Rows(_) = options.top
            && pool.rows.len() > shown
        {
            let hidden = counted((pool.rows.len() - shown) as u64, "other segment");
            let name = format!("  ({hidden}; --limit all shows them)");
            table.push(
                Output::Remark,
                SegmentEntry {
                    name,
                    ..SegmentEntry::default()
                },
            );
        }
    }
    table.extend(Output::All, SegmentEntry::rest(map));
    table
}

impl SegmentReport<'_> {
    fn push_map(&self, page: &mut Page, map: &SegmentMap) {
        page.blank();
        page.strong(&format!(
            "{} {}: allocated {}, reserved {}",
            map.index,
            self.moment,
            human(map.totals.allocated),
            human(map.totals.reserved),
        ));
        if let Some(reason) = &map.unread {
            page.warning(&format!(
                "warning: the segments are not known: {}",
                clean(reason)
            ));
            return;
        }
        page.table(&table(map, self.options));
        page.blank();
        for note in summary(map, self.options.request) {
            page.note(&note);
        }
        self.push_drawings(page, map);
    }

    /// Draws the segments that are neither empty nor full, the largest first.
    fn push_drawings(&self, page: &mut Page, map: &SegmentMap) {
        let mut drawn: Vec<_> = map
            .segments
            .iter()
            .filter(|row| row.pieces.len() > 1)
            .collect();
        if drawn.is_empty() {
            return;
        }
        drawn.sort_by_key(|row| (std::cmp::Reverse(row.size), row.addr));
        page.blank();
        let shown = match self.options.top {
            RowLimit::All => drawn.len(),
            RowLimit::Rows(most) => most.min(drawn.len()),
        };
        for row in &drawn[..shown] {
            let map = drawing(&row.pieces, DRAWN, &MapGlyphs::ASCII);
            page.line(&format!(
                "{:#x} {:>10} |{map}|",
                row.addr.0,
                human(row.size)
            ));
        }
        page.legend(&[MapGlyphs::ASCII.legend()]);
    }
}

/// Sentences on a map: what is free, and what `empty_cache()` would return.
pub(super) fn summary(map: &SegmentMap, request: Option<Bytes>) -> Vec<String> {
    let [awaiting, cached, split] = [
        SegmentBlockState::AwaitingEvent,
        SegmentBlockState::Cached,
        SegmentBlockState::InactiveSplit,
    ]
    .map(|state| map.bytes(state));
    let largest = map.segments.iter().map(|row| row.largest_free()).max();
    let mut notes = vec![format!(
        "torch.cuda.empty_cache() would return {}. The largest free block has {}.",
        human(map.returnable()),
        human(largest.unwrap_or_default()),
    )];
    notes.push(format!(
        "Free: {} cached, {} split from live blocks, {} awaiting an event.",
        human(cached),
        human(split),
        human(awaiting),
    ));
    if let Some(request) = request {
        let free = map.segments.iter().flat_map(|row| row.free());
        let (too_small, enough): (Vec<_>, Vec<_>) = free.partition(|free| *free < request);
        let sum = |sizes: &[Bytes]| Bytes(sizes.iter().map(|size| size.0).sum());
        notes.push(format!(
            "For a request of {}: {} free in blocks that are too small, {} in {} large enough. A request gets blocks of \
             its own pool and stream only.",
            human(request),
            human(sum(&too_small)),
            human(sum(&enough)),
            counted(enough.len() as u64, "block"),
        ));
    }
    if map.unplaced != 0 {
        notes.push(
            "Segments changed after the last reading of the allocator's tables: the pool of new ones is unknown."
                .to_owned(),
        );
    }
    notes
}

struct MapRows<'a>(&'a SegmentMap, &'a ReportOptions);

impl Rows for MapRows<'_> {
    fn each(&self, emit: &mut dyn FnMut(Cell<'_>)) {
        table(self.0, self.1).each(emit);
    }
}

impl TableReport for SegmentReport<'_> {
    type Row = SegmentEntry;

    fn text(&self, page: &mut Page) {
        push_beginning(page, self.replay);
        for map in &self.maps {
            self.push_map(page, map);
        }
        if self.maps.is_empty() {
            page.blank();
            page.note(NOT_READ);
        }
    }

    fn document(&self) -> Cell<'_> {
        let devices = self.maps.iter().map(|map| {
            Cell::Object(vec![
                ("device", map.index.into()),
                ("allocated", map.totals.allocated.into()),
                ("reserved", map.totals.reserved.into()),
                ("requested", map.requested.into()),
                ("empty_cache", map.returnable().into()),
                (
                    "unread",
                    map.unread.as_deref().map(Cell::from).unwrap_or_default(),
                ),
                ("rows", Cell::Rows(Rc::new(MapRows(map, self.options)))),
            ])
        });
        let mut notes = vec![format!("The segments are those {}.", self.moment)];
        if self.maps.is_empty() {
            notes.push(NOT_READ.to_owned());
        }
        document(self.replay, Cell::list(notes), devices)
    }

    fn columns(&self) -> Vec<Column<SegmentEntry>> {
        segment_columns()
    }

    fn tables(&self) -> impl Iterator<Item = Table<SegmentEntry>> {
        self.maps.iter().map(|map| table(map, self.options))
    }
}

const NOT_READ: &str = "The recording has no reading of the allocator's segments: an earlier memprobe wrote it, or the \
                        process ended before its first reading. Record again, with time.sleep(2) at the end of a short \
                        script.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::segments::tests::reading;
    use crate::event::PoolOwner;
    use crate::event::{
        Action, Address, Event, MemoryEvent, MemorySegment, Pool, PoolId, PoolSize,
        PrivatePoolState,
    };
    use crate::recording::samples::{MIB, memory, recording, totals};
    use crate::report::{By, ReportFormat, write};

    /// A program whose peak is before its end: two segments, then one of a graph, and a failed request.
    fn program() -> Vec<Event> {
        let at = |place: u64| 0x7f00_0000_0000 + place * (64 << 20);
        let segment = |place, mib: u64, owner| MemorySegment {
            addr: Address(at(place)),
            size: Bytes(mib * MIB),
            stream: if place == 2 { 0x55d0 } else { 0 },
            pool: Pool {
                owner,
                size: PoolSize::Large,
            },
            expandable: None,
        };
        let event = |action, micros, addr, mib: u64, [allocated, reserved]: [u64; 2]| {
            Event::Memory(MemoryEvent {
                totals: totals(allocated * MIB, reserved * MIB),
                ..memory(action, micros, addr, mib * MIB)
            })
        };
        let graph = PoolOwner::Private {
            id: PoolId(1, 0),
            state: PrivatePoolState::InUse,
        };
        let segments = vec![
            segment(0, 20, PoolOwner::Default),
            segment(1, 32, PoolOwner::Default),
            segment(2, 20, graph),
        ];
        vec![
            event(Action::Alloc, 1, at(0), 4, [4, 72]),
            event(Action::Alloc, 2, at(0) + 10 * MIB, 6, [10, 72]),
            event(Action::Alloc, 3, at(1), 32, [42, 72]),
            event(Action::Alloc, 4, at(2), 8, [50, 72]),
            event(Action::Free, 5, at(1), 32, [18, 72]),
            event(Action::OutOfMemory, 6, 0, 64, [18, 72]),
            event(Action::Free, 7, at(0), 4, [14, 72]),
            reading(segments, &[]),
        ]
    }

    fn report(options: ReportOptions) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), recording(&program())).unwrap();
        let mut out = Vec::new();
        let options = ReportOptions {
            by: By::Segment,
            ..options
        };
        write(Reader::open(file.path()).unwrap(), &options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn segments_at_the_end_as_text_with_what_a_request_cannot_use() {
        insta::assert_snapshot!(report(ReportOptions {
            width: 130,
            moment: SegmentMoment::End,
            request: Some(Bytes(16 * MIB)),
            ..ReportOptions::default()
        }));
    }

    #[test]
    fn segments_at_the_end_as_csv() {
        insta::assert_snapshot!(report(ReportOptions {
            format: ReportFormat::Csv,
            moment: SegmentMoment::End,
            ..ReportOptions::default()
        }));
    }
}
