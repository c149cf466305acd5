//! Cells and rows that several tables have in common.

use super::names::{BEFORE_ATTACH, UNACCOUNTED, line_pools};
use super::table::Cell;
use crate::event::Frame;
use crate::ledger::snapshot::{LineRow, Site};

pub fn known_line(frame: &Frame) -> Option<u32> {
    (frame.line != 0).then_some(frame.line)
}

pub fn frame(frame: &Frame) -> Cell<'_> {
    let mut fields = vec![
        ("file", (&*frame.file).into()),
        ("line", known_line(frame).into()),
        ("function", (&*frame.function).into()),
    ];
    // Present for native code.
    let library = frame.library.as_deref();
    fields.extend(library.map(|library| ("library", library.into())));
    Cell::Object(fields)
}

pub fn file(site: Option<&Site>) -> Cell<'_> {
    site.and_then(Site::frame).map(|frame| &*frame.file).into()
}

pub fn line(site: Option<&Site>) -> Cell<'_> {
    site.and_then(Site::frame).and_then(known_line).into()
}

pub fn function(site: Option<&Site>) -> Cell<'_> {
    let frame = site.and_then(Site::frame);
    frame.map(|frame| &*frame.function).into()
}

/// Thread of memory without a line.
pub fn thread(site: Option<&Site>) -> Cell<'_> {
    let nobody = site.and_then(Site::nobody);
    nobody.map(|(thread, _)| &**thread).into()
}

/// Reason that memory has no line.
pub fn reason(site: Option<&Site>) -> Cell<'_> {
    site.and_then(Site::nobody).map(|(_, reason)| reason).into()
}

pub fn node(site: Option<&Site>) -> Cell<'_> {
    site.and_then(Site::node).map(|node| &**node).into()
}

pub fn frames(frames: &[Frame]) -> Cell<'_> {
    Cell::list(frames.iter().map(frame))
}

/// Live bytes of a line by the pool over CUDA, inferred from native code; blank if no stack shows one.
pub fn pools(line: &LineRow) -> Cell<'static> {
    let pools = line_pools(line);
    if pools.is_empty() {
        return Cell::Blank;
    }
    let pools = pools.into_iter();
    let pools =
        pools.map(|(name, live)| Cell::Object(vec![("name", name.into()), ("live", live.into())]));
    Cell::List(pools.collect())
}

/// A row that completes a sum to the allocator's total.
pub struct Remainder {
    /// Keyword in CSV and JSON.
    pub kind: &'static str,
    pub name: &'static str,
    /// Bytes now, and at the peak.
    pub bytes: [Cell<'static>; 2],
}

/// Bytes now and at the peak that no other row has, unless all are 0.
pub fn remainders(before_attach: [u64; 2], unaccounted: [i64; 2]) -> Vec<Remainder> {
    let before_attach = (before_attach != [0; 2]).then(|| Remainder {
        kind: "before_attach",
        name: BEFORE_ATTACH,
        bytes: before_attach.map(Cell::Bytes),
    });
    let unaccounted = (unaccounted != [0; 2]).then(|| Remainder {
        kind: "unaccounted",
        name: UNACCOUNTED,
        bytes: unaccounted.map(Cell::Signed),
    });
    before_attach.into_iter().chain(unaccounted).collect()
}
