//! Screen of CUDA memory outside the caching allocator: by library and kind, with the lines of each.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::bars::Tab;
use super::context::ProcessContext;
use super::table_screen::{
    Content, Fold, Needs, Note, Query, RowOf, ScreenContext, ScreenLayout, ScreenParts,
    SourcePlace, TableOf, TableRow, TableScreen, draw_text,
};
use super::theme::Theme;
use crate::event::bytes::human;
use crate::ledger::snapshot::{LineRow, OutsideRow, Site};
use crate::view::table::{Colour, Column, Page, Table};
use crate::view::{
    CUT, FileNames, OWNER_COLUMNS, OutsideEntry, OwnerEntry, clean, cuda_memory_kind, named_site,
    outside_columns, whole_frame,
};

/// Height from which the totals by kind are shown.
const TALL: u16 = 24;

const COLUMNS: [Column<OutsideEntry<'static>>; 11] = outside_columns();

/// Key of a row: the index of its library and kind, and the line.
type OutsideKey = (String, Option<Site>);

#[derive(Default)]
pub struct Outside {
    /// True after the first rows, which are all opened.
    has_rows: bool,
}

static PARTS: ScreenParts<OutsideEntry<'static>> = ScreenParts {
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
below       totals of each kind, with memory in the table of lines
",
};

impl Content for Outside {
    type Key = OutsideKey;
    type Data = OutsideEntry<'static>;
    type Context = ProcessContext;

    /// Peaks do not swing within an iteration, so rows stay in their places.
    const FIRST_SORT: &'static str = "PEAK";

    fn parts(&self) -> &'static ScreenParts<OutsideEntry<'static>> {
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
        let searched = |row: &RowOf<Self>| detail(&row.data);
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
        let kinds = context.feed.shown.cuda.kinds.len() as u16;
        Needs {
            second: if height >= TALL && kinds > 0 {
                kinds + 1
            } else {
                0
            },
            devices: 0,
            totals: 0,
            ..context.needs(height)
        }
    }

    fn draw_around(
        _screen: &TableScreen<Self>,
        buffer: &mut Buffer,
        layout: &ScreenLayout,
        context: &ProcessContext,
        theme: &Theme,
    ) {
        let kinds = OwnerEntry::by_kind(&context.feed.shown.cuda);
        let mut page = Page::new(usize::from(layout.second.width), Colour::Plain);
        page.table(&Table::of(OWNER_COLUMNS, kinds));
        let text = page.into_text();
        for (line, y) in text.lines().zip(layout.second.y..layout.second.bottom()) {
            let area = Rect::new(layout.second.x, y, layout.second.width, 1);
            // Reports always have this mark; a terminal may lack it.
            let line = line.replace(CUT, theme.glyphs.cut);
            draw_text(buffer, area, &line, theme.faint(), theme);
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
        vec![match &row.key.1 {
            None => detail(&row.data),
            Some(site) => format!("{} {}", human(row.data.live), named_site(site, whole_frame)),
        }]
    }
}

/// Library and kind of memory, in whole.
fn detail(library: &OutsideEntry<'_>) -> String {
    format!("{}  {}", clean(&library.library), library.kind)
}

fn key(library: &OutsideRow) -> OutsideKey {
    let name = format!("{} {}", library.library, cuda_memory_kind(library));
    (name, None)
}

fn library_row(library: &OutsideRow, query: &Query<OutsideKey>) -> RowOf<Outside> {
    let key = key(library);
    let fold = query.fold(!library.lines.is_empty(), &key);
    let data = OutsideEntry::new(library);
    TableRow::leaf(key, data).at(0, fold)
}

fn line_row(library: &str, line: &LineRow) -> RowOf<Outside> {
    let data = OutsideEntry {
        live: line.live,
        peak: line.peak,
        blocks: line.live_blocks,
        allocs: line.allocs,
        name: FileNames::default().site(&line.site),
        ..OutsideEntry::default()
    };
    let key = (library.to_owned(), Some(line.site.clone()));
    TableRow::leaf(key, data).at(1, Fold::Leaf)
}
