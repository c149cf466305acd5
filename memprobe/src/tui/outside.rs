//! Screen of CUDA memory outside the caching allocator: by library and kind, with the lines of each.

use super::bars::Tab;
use super::context::ProcessContext;
use super::table_screen::{
    Content, Fold, Needs, Note, Query, RowOf, ScreenContext, ScreenParts, SourcePlace, TableOf,
    TableRow, TableScreen,
};
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::ledger::snapshot::{LineRow, OutsideRow, Site};
use crate::view::table::{Cell, Column, Tone, columns};
use crate::view::{FileNames, clean, cuda_memory_kind, library_name, named_site, whole_frame};

const COLUMNS: [Column<OutsideData>; 5] = columns![|row: OutsideData|
    figure("LIVE").screen(11, 0).tone(Tone::Strong) => row.live,
    figure("PEAK").screen(11, 44) => row.peak,
    figure("BLOCKS").screen(7, 56) => row.blocks,
    label("KIND").screen(16, 70) => row.kind.as_deref().map_or(Cell::Text("".into()), Cell::from),
    label("LIBRARY").name(0) => &row.name,
];

/// Key of a row: the index of its library and kind, and the line.
type OutsideKey = (String, Option<Site>);

#[derive(Clone, PartialEq, Debug)]
pub struct OutsideData {
    live: Bytes,
    peak: Bytes,
    blocks: u64,
    kind: Option<String>,
    name: String,
    detail: String,
}

#[derive(Default)]
pub struct Outside {
    /// True after the first rows, which are all opened.
    has_rows: bool,
}

static PARTS: ScreenParts<OutsideData> = ScreenParts {
    tab: Some(Tab::Outside),
    columns: &COLUMNS,
    searched: "library and kind",
    keys: &[("Enter", "lines", 2), ("*", "all lines", 5)],
    help: "\
Enter       the lines that called the library
*           the lines of all libraries
",
    terms: "\
KIND        kind of memory, and the device that it is on
LIBRARY     library or program that called into CUDA
",
};

impl Content for Outside {
    type Key = OutsideKey;
    type Data = OutsideData;
    type Context = ProcessContext;

    /// Peaks do not swing within an iteration, so rows stay in their places.
    const FIRST_SORT: &'static str = "PEAK";

    fn parts(&self) -> &'static ScreenParts<OutsideData> {
        &PARTS
    }

    fn build(&mut self, query: &mut Query<OutsideKey>, context: &ProcessContext) -> TableOf<Self> {
        let libraries = &context.feed.shown.cuda.rows;
        if !self.has_rows {
            query.open.extend(libraries.iter().map(key));
        }
        self.has_rows |= !libraries.is_empty();
        let entry = |library| (library_row(library, query), library);
        let entries: Vec<(RowOf<Self>, &OutsideRow)> = libraries.iter().map(entry).collect();
        let live = |row: &RowOf<Self>| row.data.live.0.into();
        let searched = |row: &RowOf<Self>| row.data.detail.clone();
        query.table(self, entries, live, searched, |row, library| {
            let lines = library.lines.iter().filter(|_| row.fold == Fold::Open);
            let mut lines: Vec<RowOf<Self>> =
                lines.map(|line| line_row(&row.key.0, line)).collect();
            query.arrange(self, &mut lines, |row| row);
            lines
        })
    }

    fn keys_beneath(&self, _row: &RowOf<Self>, context: &ProcessContext) -> Vec<OutsideKey> {
        let libraries = context.feed.shown.cuda.rows.iter();
        libraries.map(key).collect()
    }

    fn place(&self, row: &RowOf<Self>) -> Option<SourcePlace> {
        SourcePlace::of(row.key.1.as_ref()?.frame()?)
    }

    fn needs(&self, _width: u16, height: u16, context: &ProcessContext) -> Needs {
        Needs {
            devices: 0,
            totals: 0,
            ..context.needs(height)
        }
    }

    fn nothing(screen: &TableScreen<Self>, _context: &ProcessContext) -> Option<[Note; 2]> {
        let (first, second) = match screen.table.all {
            _ if screen.table.shown > 0 => return None,
            0 => ("No other CUDA memory was allocated since attach.", ""),
            _ => ("No library matches the filter.", "Esc shows all libraries."),
        };
        Some([first.into(), second.into()])
    }

    fn total(&self, context: &ProcessContext) -> Option<(i128, &'static str)> {
        let live = context.feed.shown.cuda.live();
        Some((live.0.into(), "outside the caching allocator"))
    }

    fn detail(&self, row: &RowOf<Self>, _wide: usize, _cut: &str) -> Vec<String> {
        vec![row.data.detail.clone()]
    }
}

fn key(library: &OutsideRow) -> OutsideKey {
    let name = format!("{} {}", library.library, cuda_memory_kind(library));
    (name, None)
}

fn library_row(library: &OutsideRow, query: &Query<OutsideKey>) -> RowOf<Outside> {
    let key = key(library);
    let fold = query.fold(!library.lines.is_empty(), &key);
    let data = OutsideData {
        live: library.live,
        peak: library.peak,
        blocks: library.live_blocks,
        kind: Some(cuda_memory_kind(library)),
        name: clean(library_name(library)),
        detail: format!("{}  {}", clean(&library.library), cuda_memory_kind(library)),
    };
    TableRow::leaf(key, data).at(0, fold)
}

fn line_row(library: &str, line: &LineRow) -> RowOf<Outside> {
    let site = named_site(&line.site, whole_frame);
    let data = OutsideData {
        live: line.live,
        peak: line.peak,
        blocks: line.live_blocks,
        kind: None,
        name: FileNames::default().site(&line.site),
        detail: format!("{} {site}", human(line.live)),
    };
    let key = (library.to_owned(), Some(line.site.clone()));
    TableRow::leaf(key, data).at(1, Fold::Leaf)
}
