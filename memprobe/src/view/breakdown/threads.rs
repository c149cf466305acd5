//! Memory by the thread that allocated it.

use super::{BreakdownEntry, BreakdownView, FIGURES};
use crate::view::clean;
use crate::view::table::{Cell, Column, SortOrder, columns, joined};

pub(super) static VIEW: BreakdownView = BreakdownView {
    noun: "thread",
    meaning: "A thread that allocated memory: the main thread, autograd's, a data loader's, ...",
    plural: "threads",
    key: "T",
    columns: &COLUMNS,
    name: |_, name| name.map_or_else(|| "(no name)".to_owned(), clean),
    number: |tid| format!(" (TID {tid})"),
    legend: "A block belongs to the thread that allocated it.",
    terms: "\
THREAD      thread that allocated the blocks, wherever they are freed
AT PEAK     bytes live at the highest allocated total of the device
",
};

const COLUMNS: [Column<BreakdownEntry>; 9] = joined(
    FIGURES,
    columns![|row: BreakdownEntry|
        number("tid", "TID").screen(8, 50).order(Some(SortOrder::Climbing)) => row.key.map(Cell::Number),
        data("kind") => row.kind,
        text("name", "THREAD").name(0) => &row.name,
    ],
);
