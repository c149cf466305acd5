//! Columns of CUDA memory outside the caching allocator, on the live screen and in reports.

use super::names::{BLOCKS, cuda_memory_kind, library_name};
use super::table::{Cell, Column, Tone, columns};
use super::text::clean;
use crate::event::{Bytes, DeviceIndex};
use crate::ledger::snapshot::OutsideRow;

/// Memory of one kind that a library got from CUDA, or the part of one of its lines.
#[derive(Clone, Default)]
pub struct OutsideEntry<'a> {
    pub library: String,
    pub space: &'static str,
    pub device: Option<DeviceIndex>,
    pub live: Bytes,
    pub peak: Bytes,
    pub blocks: u64,
    pub allocs: u64,
    /// Kind of memory, and its device; empty for a line.
    pub kind: String,
    pub name: String,
    /// Names of lines, to the right of the library.
    pub beside: Vec<String>,
    pub lines: Cell<'a>,
}

impl OutsideEntry<'_> {
    pub fn new(row: &OutsideRow) -> Self {
        Self {
            library: row.library.to_string(),
            space: row.space.as_str(),
            device: row.device,
            live: row.live,
            peak: row.peak,
            blocks: row.live_blocks,
            allocs: row.allocs,
            kind: cuda_memory_kind(row),
            name: clean(library_name(row)),
            ..Self::default()
        }
    }
}

pub const fn outside_columns<'a>() -> [Column<OutsideEntry<'a>>; 11] {
    columns![|row: OutsideEntry<'a>|
        data("library") => &row.library,
        data("space") => row.space,
        data("device") => row.device,
        number("live", "LIVE").screen(11, 0).tone(Tone::Strong) => row.live,
        number("peak", "PEAK").screen(11, 44) => row.peak,
        number("live_blocks", BLOCKS).screen(7, 56) => row.blocks,
        number("allocs", "ALLOCS") => row.allocs,
        label("KIND").screen(16, 70) => &row.kind,
        label("LIBRARY").name(0) => &row.name,
        trail() => Cell::list(row.beside.iter().map(|name| format!("<- {name}"))),
        json("lines") => row.lines.clone(),
    ]
}
