//! Screen of threads: the memory that each allocated.

use super::bars::Tab;
use super::context::ProcessContext;
use super::table_screen::{
    Content, Note, Query, RowOf, ScreenParts, TableOf, TableRow, TableScreen,
};
use crate::attribution::tables::{AllocatingThread, DeviceThreads, ThreadRow};
use crate::event::bytes::human;
use crate::view::cells::remainders;
use crate::view::table::{Cell, Precision};
use crate::view::{THREAD_COLUMNS, ThreadEntry, counted};

/// Thread of a row, or the name of bytes without one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ThreadKey {
    Thread(AllocatingThread),
    Rest(&'static str),
}

#[derive(Default)]
pub struct Threads;

static PARTS: ScreenParts<ThreadEntry> = ScreenParts {
    tab: Some(Tab::Threads),
    columns: &THREAD_COLUMNS,
    searched: "thread",
    keys: &[],
    help: "",
    terms: "\
THREAD      thread that allocated the blocks, wherever they are freed
AT PEAK     bytes live at the highest allocated total of the device
",
};

impl Content for Threads {
    type Key = ThreadKey;
    type Data = ThreadEntry;
    type Context = ProcessContext;

    /// Peaks do not swing within an iteration, so rows stay in their places.
    const FIRST_SORT: &'static str = "PEAK";

    fn parts(&self) -> &'static ScreenParts<ThreadEntry> {
        &PARTS
    }

    fn build(&mut self, query: &mut Query<ThreadKey>, context: &ProcessContext) -> TableOf<Self> {
        let Some(device) = shown(context) else {
            return TableOf::<Self>::default();
        };
        let rows = device.rows.iter().map(thread_row).chain(rest(device));
        let entries: Vec<(RowOf<Self>, ())> = rows.map(|row| (row, ())).collect();
        let live = |row: &RowOf<Self>| row.data.bytes[0].rank();
        let searched = |row: &RowOf<Self>| row.data.name.clone();
        query.table(self, entries, live, searched, |_, ()| Vec::new())
    }

    fn nothing(screen: &TableScreen<Self>, _context: &ProcessContext) -> Option<[Note; 2]> {
        let (first, second) = match screen.table.all {
            _ if screen.table.shown > 0 => return None,
            0 => ("No memory was allocated yet.", ""),
            _ => ("No thread matches the filter.", "Esc shows all threads."),
        };
        Some([first.into(), second.into()])
    }

    fn total(&self, context: &ProcessContext) -> Option<(i128, &'static str)> {
        let device = shown(context)?;
        Some((device.totals.allocated.0.into(), "allocated"))
    }

    fn detail(&self, row: &RowOf<Self>, _wide: usize, _cut: &str) -> Vec<String> {
        let data = &row.data;
        let blocks = data.counts.map(|[blocks, _]| counted(blocks, "block"));
        let blocks = blocks.map(|blocks| format!(" in {blocks}"));
        let peak = data.peak.map(|peak| format!(", at most {}", human(peak)));
        let tid = data.tid.map(|tid| format!(" (TID {})", tid.0));
        vec![format!(
            "{}{}: {}{}{}",
            data.name,
            tid.unwrap_or_default(),
            data.bytes[0].text(Precision::Exact),
            blocks.unwrap_or_default(),
            peak.unwrap_or_default(),
        )]
    }
}

fn shown(context: &ProcessContext) -> Option<&DeviceThreads> {
    context.of_device(&context.threads, |device| device.index)
}

fn thread_row(row: &ThreadRow) -> RowOf<Threads> {
    TableRow::leaf(ThreadKey::Thread(row.allocator), ThreadEntry::new(row))
}

/// Rows that complete the sum to the allocator's total.
fn rest(device: &DeviceThreads) -> impl Iterator<Item = RowOf<Threads>> {
    let before = device.before_attach.map(|bytes| bytes.0);
    let rest = remainders(before, device.unaccounted).into_iter();
    rest.map(|rest| {
        let key = ThreadKey::Rest(rest.name);
        let mut line = ThreadEntry::from(rest);
        line.bytes = line.bytes.map(|bytes| Cell::from(bytes.rank()));
        TableRow::leaf(key, line)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::input::InputEvent;
    use super::super::samples;
    use super::super::test_support::{COLOUR, SMALL, Shown};
    use super::*;

    fn screen(wanted: &[InputEvent]) -> Shown<Threads> {
        let mut context = ProcessContext::new(Arc::new(samples::normal()));
        context.threads = Some(samples::threads());
        Shown::new(Threads, context, SMALL).with(wanted)
    }

    #[test]
    fn threads_have_what_they_allocated() {
        insta::assert_snapshot!(screen(&[]).drawn(SMALL, &COLOUR));
    }

    #[test]
    fn the_rows_add_up_to_the_allocator() {
        let screen = screen(&[]);
        let live: i128 = screen
            .table
            .rows
            .iter()
            .map(|row| row.data.bytes[0].rank())
            .sum();
        let total = screen.content.total(&screen.context);
        assert_eq!(Some((live, "allocated")), total);
    }

    #[test]
    fn help_names_the_terms_of_threads() {
        let help = screen(&[InputEvent::Help, InputEvent::Page(1)]).drawn(SMALL, &COLOUR);
        assert!(
            help.to_string().contains("wherever they are freed"),
            "{help}"
        );
    }
}
