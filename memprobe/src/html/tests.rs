use std::collections::BTreeSet;

use proptest::prelude::*;

use super::columns::Columns;
use super::device::{DeviceColumns, NO_CATEGORY};
use super::facts::PageFacts;
use super::replay::PageReplay;
use super::*;
use crate::attribution::allocation_groups::samples::{
    called, learning, learning_for, retained_by_losses,
};
use crate::event::{DeviceIndex, Event, Target};
use crate::ledger::Ledger;
use crate::recording::generated::any_stream;
use crate::recording::samples::{compact_recording, late_attach, recording, story};
use crate::report::explain::explain_recording;

fn no_source(_: &str) -> Result<String, String> {
    Err("tests have none".to_owned())
}

fn options(paths: PagePaths) -> PageOptions<'static> {
    PageOptions {
        file: "/home/me/trace.mprb",
        iteration: None,
        paths,
        source_of: &no_source,
    }
}

fn facts_of(events: &[Event]) -> (PageReplay, PageFacts, Columns) {
    facts_within(events, MAX_EVENTS)
}

/// Like [`facts_of`], for a page of at most `most` events of each device.
fn facts_within(events: &[Event], most: usize) -> (PageReplay, PageFacts, Columns) {
    let file = compact_recording(events);
    let reader = Reader::new(&file[..]).expect("a recording");
    let progress = AtomicU64::new(0);
    let replay = PageReplay::run(reader, "trace.mprb", None, most, &progress).expect("replayed");
    let (facts, columns) = PageFacts::of(&replay, &options(PagePaths::Whole));
    (replay, facts, columns)
}

/// A device as the scripts rebuild it.
struct Rebuilt {
    allocated: Vec<i64>,
    reserved: Vec<i64>,
    before: Vec<i64>,
    /// Address, size, first event and event of the end.
    blocks: Vec<(i64, i64, usize, usize)>,
}

impl Rebuilt {
    fn of(columns: &Columns, device: &DeviceColumns) -> Self {
        let sums = |values: Vec<i64>| -> Vec<i64> {
            let mut last = 0;
            let running = values.into_iter().map(|value| {
                last += value;
                last
            });
            running.collect()
        };
        let stacks = columns.numbers(device.stack);
        let mut last = vec![[0_i64; 2]; stacks.iter().max().map_or(0, |it| *it as usize + 1)];
        let (sizes, addrs) = (columns.signed(device.size), columns.signed(device.addr));
        let (births, lifetimes) = (
            columns.numbers(device.born),
            columns.numbers(device.lifetime),
        );
        let unit = device.unit.cast_signed();
        let mut born = 0;
        let mut change = vec![0; device.events + 1];
        let mut blocks = Vec::new();
        for (at, stack) in stacks.iter().enumerate() {
            let [size, addr] = &mut last[*stack as usize];
            *size += sizes[at];
            *addr += addrs[at];
            born += births[at] as usize;
            let ended = match lifetimes[at] as usize {
                0 => device.events,
                lifetime => born + lifetime,
            };
            change[born] += *size * unit;
            change[ended] -= *size * unit;
            blocks.push((*addr * unit, *size * unit, born, ended));
        }
        let residuals = columns.signed(device.allocated);
        let allocated = residuals.iter().zip(change).map(|(one, other)| one + other);
        Self {
            allocated: sums(allocated.collect()),
            reserved: sums(columns.signed(device.reserved)),
            before: sums(columns.signed(device.before)),
            blocks,
        }
    }

    fn live_at(&self, event: usize) -> BTreeSet<(i64, i64)> {
        let blocks = self.blocks.iter();
        let live = blocks.filter(|(_, _, born, ended)| *born <= event && event < *ended);
        live.map(|(addr, size, ..)| (*addr, *size)).collect()
    }
}

/// Compares each event of each device with a ledger of the same events.
fn compare_with_ledger(events: &[Event]) {
    let (_, facts, columns) = facts_of(events);
    let mut ledger = Ledger::new(Target::default(), crate::event::TimeNs(0));
    let mut seen: std::collections::BTreeMap<DeviceIndex, usize> = Default::default();
    for event in events {
        ledger.apply(event);
        let (Event::Memory(memory), Some((device, sample))) = (event, ledger.moment(event)) else {
            continue;
        };
        let at = seen.entry(device).or_default();
        let event = std::mem::replace(at, *at + 1);
        let of_device = facts
            .devices
            .iter()
            .find(|it| it.name == device.to_string());
        let rebuilt = Rebuilt::of(&columns, &of_device.expect("the device").columns);
        assert_eq!(rebuilt.allocated[event], sample.totals.allocated.0 as i64);
        assert_eq!(rebuilt.reserved[event], sample.totals.reserved.0 as i64);
        let blocks = ledger.blocks().filter(|(_, block)| block.device == device);
        let known: BTreeSet<(i64, i64)> = blocks
            .map(|(_, block)| (block.addr.0 as i64, block.size.0 as i64))
            .collect();
        assert_eq!(rebuilt.live_at(event), known, "{memory:?}");
        let live: i64 = known.iter().map(|(_, size)| size).sum();
        let rest = rebuilt.allocated[event] - live - rebuilt.before[event];
        assert_eq!(rest, sample.unaccounted, "{memory:?}");
    }
    assert!(!seen.is_empty());
}

#[test]
fn every_moment_of_a_training_loop_is_that_of_the_ledger() {
    compare_with_ledger(&learning().events);
    compare_with_ledger(&learning_for(6, |iteration| iteration % 2 == 0).events);
}

#[test]
fn every_moment_of_a_late_attach_is_that_of_the_ledger() {
    compare_with_ledger(&late_attach());
}

#[test]
fn losses_and_two_devices_change_no_sum() {
    compare_with_ledger(&story());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_stream_has_a_page(events in any_stream()) {
        let file = recording(&events);
        let reader = Reader::new(&file[..]).expect("a recording");
        let mut out = Vec::new();
        write_page(reader, &options(PagePaths::Whole), &AtomicU64::new(0), &mut out).expect("a page");
        prop_assert!(out.ends_with(b"</html>\n"));
    }
}

#[test]
fn a_failed_request_is_the_moment_of_the_page() {
    let (_, facts, _) = facts_of(&story());
    let device = &facts.devices[0];
    let failed = device.failed.last().expect("a failed request");
    assert_eq!(
        (failed.size, failed.event + 1),
        (1 << 40, device.columns.events)
    );

    // The top of the page is what `explain` says of the same file.
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), compact_recording(&story())).expect("written");
    let reader = || Reader::open(file.path()).expect("a recording");
    let progress = AtomicU64::new(0);
    let replay =
        PageReplay::run(reader(), "trace.mprb", None, MAX_EVENTS, &progress).expect("replayed");
    let explained = explain_recording(reader(), "trace.mprb").expect("an explanation");
    assert_eq!(replay.explanation.verdict(), explained.verdict());
    let of_page = &replay.explanation.devices[0];
    assert_eq!(of_page.measures, explained.devices[0].measures);
    assert!(of_page.failed.is_some());
    let parts: u64 = of_page.parts.iter().map(|part| part.bytes.0).sum();
    assert_eq!(parts, failed.totals.reserved.0);
}

#[test]
fn blocks_have_the_categories_of_the_ledger() {
    let (replay, facts, columns) = facts_of(&learning().events);
    let device = &facts.devices[0].columns;
    let written = columns.numbers(device.category);
    let history = replay.history.allocations.allocations();
    assert_eq!(written.len(), history.len());
    for (code, allocation) in written.iter().zip(history) {
        let known = allocation.category.map_or(NO_CATEGORY, |it| it as u64);
        assert_eq!(*code, known);
    }
}

#[test]
fn blocks_have_the_retainers_of_the_last_reading() {
    let mut program = learning();
    program.read(|_| Some(retained_by_losses(3, None)));
    let (replay, facts, columns) = facts_of(&program.events);
    let live = replay.ledger.blocks().count();
    let labeled = columns.numbers(facts.devices[0].columns.labeled);
    assert_eq!(labeled.len(), 2 * live);
    let tables = serde_json::to_string(&facts.tables).expect("JSON");
    assert!(tables.contains("losses[*] (list)"), "{tables}");
}

fn page_of(events: &[Event], paths: PagePaths) -> String {
    let file = recording(events);
    let reader = Reader::new(&file[..]).expect("a recording");
    let mut out = Vec::new();
    write_page(reader, &options(paths), &AtomicU64::new(0), &mut out).expect("a page");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn the_page_loads_nothing_and_says_what_was_lost() {
    let page = page_of(&story(), PagePaths::Whole);
    for attribute in [" src=", " href=", "url(http", "@import"] {
        assert!(!page.contains(attribute), "{attribute}");
    }
    assert!(page.contains("default-src 'none'; script-src 'sha256-"));
    assert!(page.contains("3 events lost"));
    assert!(page.contains("python train.py --lr &quot;0.1&quot;"));
    assert!(page.contains("<noscript>"));
    // Every place of the template is filled.
    assert!(!page.contains("{{"));
}

#[test]
fn a_redacted_page_has_no_command_and_no_folder() {
    let page = page_of(&story(), PagePaths::Short);
    assert!(!page.contains("--lr") && !page.contains("/home/me"));
    assert!(page.contains("(command left out)"));
    let (replay, _, _) = facts_of(&story());
    let (facts, _) = PageFacts::of(&replay, &options(PagePaths::Short));
    let facts = serde_json::to_string(&facts).expect("JSON");
    assert!(
        facts.contains("train.py:31") && !facts.contains("/home/me"),
        "{facts}"
    );
}

/// Compares a page of at most `most` events of each device with the page of all events. Returns the held events.
fn compare_with_whole_page(events: &[Event], most: usize) -> usize {
    let (_, whole, all) = facts_of(events);
    let (_, facts, columns) = facts_within(events, most);
    let mut events = 0;
    for (part, whole) in facts.devices.iter().zip(&whole.devices) {
        assert_eq!(part.all_events, whole.columns.events);
        assert_eq!(part.columns.events, most.min(part.all_events));
        let held = Rebuilt::of(&columns, &part.columns);
        let complete = Rebuilt::of(&all, &whole.columns);
        for event in 0..part.columns.events {
            let there = part.first_event + event;
            assert_eq!(held.allocated[event], complete.allocated[there]);
            assert_eq!(held.reserved[event], complete.reserved[there]);
            assert_eq!(held.before[event], complete.before[there]);
            assert_eq!(held.live_at(event), complete.live_at(there));
        }
        events += part.columns.events;
    }
    events
}

#[test]
fn events_beyond_the_limit_leave_those_around_the_moment_with_the_same_sums() {
    let events = learning().events;
    let all = compare_with_whole_page(&events, MAX_EVENTS);
    for most in [all / 2, all / 7, 5, 1] {
        assert!(compare_with_whole_page(&events, most) < all);
    }
    compare_with_whole_page(&late_attach(), 7);
}

#[test]
fn labels_and_categories_stay_with_their_allocations_when_others_are_forgotten() {
    let mut program = learning();
    program.read(|_| Some(retained_by_losses(3, None)));
    let stack = program.stack(called(7, "net"));
    for _ in 0..100 {
        let addr = program.alloc(stack, 512);
        program.free(addr);
    }
    let (whole, _, _) = facts_of(&program.events);
    let (part, _, _) = facts_within(&program.events, 20);
    let named = |replay: &PageReplay| {
        let history = &replay.history.allocations;
        let all = history.allocations().iter().enumerate();
        let named = all.filter_map(|(index, allocation)| {
            let label = history.label(index)?.clone();
            Some((*allocation, label))
        });
        named.collect::<Vec<_>>()
    };
    let (all, held) = (named(&whole), named(&part));
    assert!(!all.is_empty());
    assert_eq!(held, all);
    // 20 events may be kept twice, the newest and those around the moment; each begins or ends one allocation.
    let count = |replay: &PageReplay| replay.history.allocations.allocations().len();
    let live = part.ledger.blocks().count();
    assert!(count(&whole) >= 100 + live);
    assert!(count(&part) <= 40 + live, "{}", count(&part));
}
