use super::*;
use crate::attribution::WithCategories;
use crate::attribution::allocation_groups::samples::{Program, learning_for};
use crate::ledger::Analysis;
use crate::ledger::snapshot::Grouping;

/// Keys from the block: its size.
static SIZES: BlockKeys = BlockKeys {
    of_allocation: |allocation| allocation.size.0,
    of_block: |block| Some(block.size.0),
    name: |_| None,
};

/// Returns the keys of every breakdown, and of one more.
fn all_keys() -> impl Iterator<Item = &'static BlockKeys> {
    let breakdowns = Breakdown::ALL.iter().map(|breakdown| breakdown.keys());
    breakdowns.chain([&SIZES])
}

fn program() -> Program {
    learning_for(10, |iteration| iteration % 3 == 0)
}

fn device(table: &BreakdownLedger, ledger: &Ledger) -> DeviceBreakdown {
    let mut devices = table.devices(&ledger.snapshot(TimeNs(0), Grouping::User));
    assert_eq!(devices.len(), 1);
    devices.remove(0)
}

/// Sums the rows and the remainders, now and at the peak.
fn sums(device: &DeviceBreakdown) -> [i128; 2] {
    let holdings = device.rows.iter().map(|row| row.holding);
    let rows = holdings.reduce(Holding::and).unwrap_or_default();
    let rest =
        |at: usize| i128::from(device.before_attach[at].0) + i128::from(device.unaccounted[at]);
    [
        i128::from(rows.live.0) + rest(0),
        i128::from(rows.at_peak.0) + rest(1),
    ]
}

#[test]
fn every_breakdown_adds_up_to_the_allocator_now_and_at_the_peak() {
    for keys in all_keys() {
        let analyses = WithCategories::new(BreakdownLedger::of(keys));
        let played = program().analyzed(analyses);
        let device = device(&played.analyses.table, &played.ledger);
        let snapshot = &played.ledger.snapshot(TimeNs(0), Grouping::User).devices[0];
        let totals = [snapshot.totals.allocated, snapshot.peak.allocated];
        let expected = totals.map(|bytes| i128::from(bytes.0));
        assert!(expected.iter().all(|bytes| *bytes > 0));
        assert_eq!(sums(&device), expected, "{keys:?}");
        assert_eq!([device.totals, device.peak].map(|it| it.allocated), totals);
        let blocks = device.rows.iter().map(|row| row.holding.live_blocks);
        assert_eq!(blocks.sum::<u64>(), device.live_blocks, "{keys:?}");
    }
}

#[test]
fn every_breakdown_that_begins_late_adds_up_from_then_on() {
    let program = program();
    let all = program.events.len();
    for keys in all_keys() {
        for start in [0, all / 3, all / 2, all - 1] {
            let mut late: Option<WithCategories<BreakdownLedger>> = None;
            let mut seen = 0;
            program.play(|event, change, ledger| {
                if let Some(late) = &mut late {
                    late.apply(event, change, ledger);
                } else if seen >= start {
                    let table = BreakdownLedger::of(keys).with_live(ledger, TimeNs(0));
                    let categories = AttributionLedger::new(None).with_known(ledger, TimeNs(0));
                    late = Some(WithCategories { categories, table });
                }
                seen += 1;
                let snapshot = ledger.snapshot(TimeNs(0), Grouping::User);
                for device in late.iter().flat_map(|late| late.table.devices(&snapshot)) {
                    let expected = [device.totals, device.peak];
                    let expected = expected.map(|it| i128::from(it.allocated.0));
                    assert_eq!(sums(&device), expected, "{keys:?} from {start}");
                }
            });
            assert!(late.is_some());
        }
    }
}

#[test]
fn a_key_from_a_block_is_that_of_its_allocation() {
    for keys in all_keys() {
        program().play(|event, change, ledger| {
            if let (Event::Memory(event), Some((id, _))) = (event, change.allocated()) {
                let key = (keys.of_block)(ledger.block(id));
                let expected = (keys.of_allocation)(event);
                assert!(key.is_none_or(|key| key == expected), "{keys:?}");
            }
        });
    }
}

#[test]
fn only_keys_from_allocations_take_memory_for_each_block() {
    let ledger = program().play(|_, _, _| {});
    let table = |keys| BreakdownLedger::of(keys).with_live(&ledger, TimeNs(0));
    let (sizes, threads) = (table(&SIZES), table(Breakdown::Thread.keys()));
    assert_eq!(sizes.by_block.bytes(), 0);
    assert!(threads.by_block.bytes() > 0);
    let keys = |table: &BreakdownLedger| {
        let rows = device(table, &ledger).rows.into_iter();
        rows.map(|row| row.key).collect::<Vec<_>>()
    };
    assert_eq!(keys(&threads), [BreakdownKey::BeforeOpening]);
    assert!(
        keys(&sizes)
            .iter()
            .all(|key| matches!(key, BreakdownKey::Key(_)))
    );
}

#[test]
fn keys_beyond_the_cap_are_one_row_of_the_device() {
    let ledger = program().play(|_, _, _| {});
    let (block, _) = ledger.blocks().next().expect("a live block");
    let mut table = BreakdownLedger::late(Breakdown::Thread, &ledger, TimeNs(0));
    for key in 0..MAX_ROWS as u64 + 2 {
        table.add(block, BreakdownKey::Key(key), false, &ledger, 0);
    }
    let device = device(&table, &ledger);
    assert_eq!(device.rows.len(), MAX_ROWS + 1);
    let allocs = |key| {
        let row = device.rows.iter().find(|row| row.key == key);
        row.map(|row| row.holding.allocs)
    };
    let known = device
        .rows
        .iter()
        .filter(|row| matches!(row.key, BreakdownKey::Key(_)));
    let counted = known.map(|row| row.holding.allocs).sum::<u64>();
    let too_many = allocs(BreakdownKey::TooMany).expect("a row for the excess");
    assert_eq!(counted + too_many, MAX_ROWS as u64 + 2);
}
