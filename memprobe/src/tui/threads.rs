//! Screen of threads: the memory that each allocated.

use super::context::ProcessContext;
use super::table_screen::{
    Cell, Column, Content, Cut, KeyHint, Query, Row, RowOf, TableOf, TableScreen, amount,
};
use super::tabs::Tab;
use super::theme::Theme;
use crate::attribution::tables::{AllocatingThread, DeviceThreads, ThreadRow};
use crate::event::bytes::human;
use crate::event::{Bytes, Tid};
use crate::view::{BEFORE_ATTACH, UNACCOUNTED, counted, thread};

type ThreadColumn = Column<Threads>;

const COLUMNS: [ThreadColumn; 7] = [
    ThreadColumn::number("LIVE", 11, 0, |_, row| Cell::Bytes(row.data.live)).styled(Theme::strong),
    ThreadColumn::number("AT PEAK", 11, 44, |_, row| Cell::Bytes(row.data.at_peak)),
    ThreadColumn::number("PEAK", 11, 100, |_, row| Cell::bytes(row.data.peak)),
    ThreadColumn::number("BLOCKS", 7, 56, |_, row| count(row.data.blocks)),
    ThreadColumn::number("ALLOCS", 9, 90, |_, row| count(row.data.allocs)),
    ThreadColumn::number("TID", 8, 50, |_, row| {
        row.data.tid.map_or(Cell::Unknown, |tid| {
            Cell::Ranked(tid.0.into(), tid.0.to_string())
        })
    })
    .climbing(),
    ThreadColumn::name("THREAD", 0, Cut::End, |_, row| {
        Cell::Text(row.data.name.clone())
    }),
];

fn count(number: Option<u64>) -> Cell {
    number.map_or(Cell::Unknown, Cell::Count)
}

/// Thread of a row, or the name of bytes without one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    Thread(AllocatingThread),
    Rest(&'static str),
}

/// Memory that a thread allocated.
#[derive(Clone, PartialEq, Debug)]
pub struct ThreadData {
    live: i128,
    at_peak: i128,
    peak: Option<Bytes>,
    blocks: Option<u64>,
    allocs: Option<u64>,
    tid: Option<Tid>,
    name: String,
}

/// Threads of the device shown.
#[derive(Default)]
pub struct Threads;

impl Content for Threads {
    type Key = Key;
    type Data = ThreadData;
    type Context = ProcessContext;

    const SEARCHED: &'static str = "thread";

    fn tab(&self) -> Option<Tab> {
        Some(Tab::Threads)
    }

    fn columns(&self) -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn build(&mut self, query: &mut Query<Key>, context: &ProcessContext) -> TableOf<Self> {
        let Some(device) = shown(context) else {
            return TableOf::<Self>::default();
        };
        let rows = device.rows.iter().map(thread_row).chain(rest(device));
        let entries: Vec<(RowOf<Self>, ())> = rows.map(|row| (row, ())).collect();
        let live = |row: &RowOf<Self>| row.data.live;
        let searched = |row: &RowOf<Self>| row.data.name.clone();
        query.table(self, entries, live, searched, |_, ()| Vec::new())
    }

    fn nothing(screen: &TableScreen<Self>, _context: &ProcessContext) -> Option<(String, String)> {
        let (first, second) = match screen.table.all {
            _ if screen.table.shown > 0 => return None,
            0 => ("No memory was allocated yet.", ""),
            _ => ("No thread matches the filter.", "Esc shows all threads."),
        };
        Some((first.to_owned(), second.to_owned()))
    }

    fn total(&self, context: &ProcessContext) -> Option<(i128, &'static str)> {
        let device = shown(context)?;
        Some((device.totals.allocated.0.into(), "allocated"))
    }

    fn detail(&self, row: &RowOf<Self>, _wide: usize, _cut: &str) -> Vec<String> {
        let data = &row.data;
        let blocks = data
            .blocks
            .map(|blocks| format!(" in {}", counted(blocks, "block")));
        let peak = data.peak.map(|peak| format!(", at most {}", human(peak)));
        let tid = data.tid.map(|tid| format!(" (TID {})", tid.0));
        vec![format!(
            "{}{}: {}{}{}",
            data.name,
            tid.unwrap_or_default(),
            amount(data.live),
            blocks.unwrap_or_default(),
            peak.unwrap_or_default(),
        )]
    }

    fn own_keys(&self) -> &'static [KeyHint] {
        &[]
    }

    fn help(&self) -> [&'static str; 2] {
        ["", TERMS]
    }
}

const TERMS: &str = "\
THREAD      thread that allocated the blocks, wherever they are freed
AT PEAK     bytes live at the highest allocated total of the device
";

fn shown(context: &ProcessContext) -> Option<&DeviceThreads> {
    context.of_device(&context.threads, |device| device.index)
}

fn thread_row(row: &ThreadRow) -> RowOf<Threads> {
    let held = &row.holding;
    Row::leaf(
        Key::Thread(row.allocator),
        ThreadData {
            live: held.live.0.into(),
            at_peak: held.at_peak.0.into(),
            peak: held.peak,
            blocks: Some(held.live_blocks),
            allocs: Some(held.allocs),
            tid: match row.allocator {
                AllocatingThread::Thread(tid) => Some(tid),
                AllocatingThread::BeforeOpening | AllocatingThread::TooMany => None,
            },
            name: thread(row),
        },
    )
}

/// Rows that complete the sum to the allocator's total.
fn rest(device: &DeviceThreads) -> impl Iterator<Item = RowOf<Threads>> {
    let before = device.before_attach.map(|bytes| i128::from(bytes.0));
    let unaccounted = device.unaccounted.map(i128::from);
    let rows = [(BEFORE_ATTACH, before), (UNACCOUNTED, unaccounted)];
    let rows = rows.into_iter().filter(|(_, bytes)| *bytes != [0; 2]);
    rows.map(|(name, [live, at_peak])| {
        Row::leaf(
            Key::Rest(name),
            ThreadData {
                live,
                at_peak,
                peak: None,
                blocks: None,
                allocs: None,
                tid: None,
                name: name.to_owned(),
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::input::InputEvent;
    use super::super::samples;
    use super::super::test_support::{COLOUR, SMALL, Shown};
    use super::*;
    use crate::attribution::tables::Holding;
    use crate::event::{DeviceIndex, Totals};

    const MIB: u64 = 1 << 20;

    fn row(tid: u32, name: Option<&str>, live: u64) -> ThreadRow {
        ThreadRow {
            allocator: AllocatingThread::Thread(Tid(tid)),
            name: name.map(Into::into),
            holding: Holding {
                live: Bytes(live * MIB),
                live_blocks: live / 2,
                at_peak: Bytes(2 * live * MIB),
                at_peak_blocks: live,
                peak: Some(Bytes(3 * live * MIB)),
                allocs: 10 * live,
                alloc_bytes: Bytes(0),
            },
        }
    }

    fn screen(wanted: &[InputEvent]) -> Shown<Threads> {
        let mut context = ProcessContext::new(Arc::new(samples::normal()));
        context.threads = Some(Arc::new(vec![DeviceThreads {
            index: DeviceIndex(0),
            totals: Totals {
                allocated: Bytes(100 * MIB),
                reserved: Bytes(128 * MIB),
            },
            before_attach: [Bytes(20 * MIB), Bytes(30 * MIB)],
            unaccounted: [0; 2],
            rows: vec![
                row(1234, Some("python"), 50),
                row(1300, Some("pt_autograd_0"), 28),
                row(1301, None, 2),
            ],
        }]));
        Shown::new(Threads, context, SMALL).with(wanted)
    }

    #[test]
    fn threads_have_what_they_allocated() {
        insta::assert_snapshot!(screen(&[]).drawn(SMALL, &COLOUR));
    }

    #[test]
    fn the_rows_add_up_to_the_allocator() {
        let screen = screen(&[]);
        let live: i128 = screen.table.rows.iter().map(|row| row.data.live).sum();
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
