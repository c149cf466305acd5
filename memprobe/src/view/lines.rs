//! Columns of lines, on the live screen and in reports.

use super::cells;
use super::names::BLOCKS;
use super::table::{Cell, Column, Tone, columns};
use crate::event::DeviceIndex;
use crate::ledger::snapshot::{LineRow, Site};

/// Heading of the change since the marked moment of a replay.
pub const CHANGE: &str = "CHANGE";

/// Heading of allocations a second.
pub const RATE: &str = "ALLOC/s";

/// Heading of growth a minute, and of growth an iteration.
pub const GROWTH: &str = "GROWTH/min";
pub const GROWTH_PER_ITERATION: &str = "GROWTH/it";

/// Cells of a row in a table of lines. Each view defines the cells that it shows.
pub trait LineCells {
    fn device(&self) -> Option<DeviceIndex> {
        None
    }

    fn kind(&self) -> &'static str {
        ""
    }

    fn site(&self) -> Option<&Site> {
        None
    }

    /// Figures of a row that is a line.
    fn line(&self) -> Option<&LineRow> {
        None
    }

    fn live(&self) -> Cell<'_>;

    fn change(&self) -> Cell<'_> {
        Cell::Unknown
    }

    fn peak(&self) -> Cell<'_>;
    fn blocks(&self) -> Option<u64>;

    fn rate(&self) -> Option<f64> {
        None
    }

    fn allocs(&self) -> Option<u64> {
        None
    }

    fn share(&self) -> Cell<'_>;

    fn growth(&self) -> Cell<'_> {
        Cell::Unknown
    }

    /// The share, for a bar.
    fn bar(&self) -> Cell<'_> {
        Cell::Unknown
    }

    fn name(&self) -> Cell<'_>;

    /// Callers to the right of the line.
    fn trailing(&self) -> Cell<'_> {
        Cell::Unknown
    }

    fn callers(&self) -> Cell<'_> {
        Cell::Unknown
    }
}

pub const fn line_columns<R: LineCells>() -> [Column<R>; 22] {
    columns![|row: R|
        data("device") => row.device(),
        data("kind") => row.kind(),
        data("file") => cells::file(row.site()),
        data("line") => cells::line(row.site()),
        data("function") => cells::function(row.site()),
        data("thread") => cells::thread(row.site()),
        data("reason") => cells::reason(row.site()),
        number("live", "LIVE").screen(11, 0).tone(Tone::Strong) => row.live(),
        figure(CHANGE).not_in_text().screen(12, 0) => row.change(),
        number("peak", "PEAK").screen(11, 60) => row.peak(),
        number("live_blocks", BLOCKS).short().screen(6, 70) => row.blocks(),
        figure(RATE).not_in_text().screen(7, 90) => row.rate(),
        number("allocs", "ALLOCS") => row.allocs(),
        data("alloc_bytes") => row.line().map(|line| line.alloc_bytes),
        figure("SHARE").screen(6, 44) => row.share(),
        figure(GROWTH).not_in_text().screen(10, 64) => row.growth(),
        label("").not_in_text().screen(10, 120).order(None).tone(Tone::Graph) => row.bar(),
        label("LINE").name(0) => row.name(),
        trail() => row.trailing(),
        json("callers") => row.callers(),
        json("node") => cells::node(row.site()),
        json("pools") => row.line().map_or(Cell::Blank, cells::pools),
    ]
}
