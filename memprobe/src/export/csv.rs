//! CSV of allocations, one row each.

use std::io::{BufRead, Write};
use std::sync::atomic::AtomicU64;

use super::ExportError;
use super::allocation_rows::{columns, each_allocation};
use super::replay::ExportReplay;
use crate::recording::Reader;
use crate::view::table::CsvWriter;

pub(super) fn write<R: BufRead>(
    replay: &ExportReplay,
    reader: &Reader<R>,
    progress: &AtomicU64,
    out: &mut impl Write,
) -> Result<(), ExportError> {
    let columns = columns();
    let mut table = CsvWriter::new(&columns, out)?;
    each_allocation(replay, reader, progress, |row| Ok(table.row(row)?))?;
    Ok(table.flush()?)
}
