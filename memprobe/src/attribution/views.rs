//! Plain data for views, taken from the ledgers at one moment.

use std::cmp::Reverse;

use super::category::{Category, Composition};
use super::iterations::{Iteration, IterationKind, Iterations};
use super::ledger::AttributionLedger;
use super::modules::ModuleLedger;
use super::view::DeviceView;
use crate::attribution::tables::{
    DeviceCategories, DeviceModules, IterationChoice, IterationLayers, IterationRow, Portion,
    PortionRow, Portions,
};
use crate::event::{Bytes, DeviceIndex, TimeNs};
use crate::ledger::snapshot::Snapshot;

/// Memory by module on each device, at the moment of a snapshot of the ledger.
pub fn modules(ledger: &ModuleLedger, snapshot: &Snapshot) -> Vec<DeviceModules> {
    let devices = snapshot.devices.iter().filter_map(|device| {
        let tree = ledger.tree(device.index)?;
        let before = device.before_attach.live.0;
        Some(DeviceModules {
            index: device.index,
            since: ledger.since,
            totals: device.totals,
            before_attach: Bytes(before.saturating_sub(tree.labeled.live.0)),
            unaccounted: device.unaccounted,
            tree,
        })
    });
    devices.collect()
}

/// Memory by category on each device at a moment, with the iterations of `table`.
pub fn categories(
    ledger: &AttributionLedger,
    table: &Iterations,
    now: TimeNs,
) -> Vec<DeviceCategories> {
    let devices = ledger.devices().filter_map(|index| {
        let view = ledger.device(index)?;
        let (start, step, points) = points(&view, now);
        let iterations = table.rows.iter().rev();
        Some(DeviceCategories {
            index,
            since: ledger.since,
            totals: view.now().totals,
            peak: view.peak().totals.allocated,
            read_before: ledger.read.map(|read| now.0.saturating_sub(read.0)),
            exact: exact(&view),
            rows: rows(&view, &points),
            start,
            step,
            points,
            iterations: iterations.filter_map(|it| iteration(it, index)).collect(),
            source: table.source,
            phase: ledger.phase(),
        })
    });
    devices.collect()
}

/// Memory by module on each device, at the peak of an iteration of `table`. Empty if layers are not counted.
pub fn layers(
    ledger: &AttributionLedger,
    table: &Iterations,
    which: IterationChoice,
) -> Vec<IterationLayers> {
    let Some(layering) = ledger.layering() else {
        return Vec::new();
    };
    let devices = ledger.devices().map(|index| {
        let knows = |row: &&Iteration| row.devices.iter().any(|(of, _)| *of == index);
        let mut rows = table.rows.iter().filter(|row| row.is_numbered());
        let mut whole = rows
            .clone()
            .filter(|row| row.kind == IterationKind::Whole)
            .filter(knows);
        let first = whole.clone().next();
        let latest = whole.next_back();
        let row = match which {
            IterationChoice::Latest => None,
            IterationChoice::Numbered(number) => whole
                .find(|row| row.number == number)
                .or(first.filter(|first| number < first.number)),
        };
        let row = row.or(latest).or(rows.rfind(knows));
        IterationLayers {
            index,
            since: ledger.since,
            source: table.source,
            iteration: row.and_then(|row| iteration(row, index)),
            whole: first
                .zip(latest)
                .map(|(first, latest)| (first.number, latest.number)),
            layers: row.and_then(|row| layering.in_iteration(index, row)),
        }
    });
    devices.collect()
}

/// Bytes of live blocks with a category from a heap snapshot.
fn exact(view: &DeviceView<'_>) -> Bytes {
    let rows = view.categories().into_iter();
    let exact = rows.filter(|row| row.rule.is_exact());
    Bytes(exact.fold(0, |sum, row| sum.saturating_add(row.live)))
}

/// Timeline up to `now`; the state after the last event is constant.
fn points(view: &DeviceView<'_>, now: TimeNs) -> (TimeNs, u64, Vec<Portions>) {
    let divided = view.timeline();
    let stored = divided.points.iter();
    let mut points: Vec<Portions> = stored.map(|point| portions(&point.composition)).collect();
    let passed = now.0.saturating_sub(divided.start.0) / divided.step.max(1);
    // At most the length of the timeline itself.
    let wanted = usize::try_from(passed).map_or(usize::MAX, |passed| passed.saturating_add(1));
    let wanted = wanted.min(crate::ledger::MAX_POINTS).max(points.len());
    points.resize(wanted, portions(&view.now().composition));
    (divided.start, divided.step, points)
}

fn portions(composition: &Composition) -> Portions {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let by_category = composition.by_category();
    Portion::ALL.map(|portion| match portion {
        Portion::BeforeAttach => signed(composition.before_attach),
        Portion::Of(category) => signed(by_category[category as usize]),
        Portion::Unaccounted => composition.unaccounted,
    })
}

fn rows(view: &DeviceView<'_>, points: &[Portions]) -> Vec<PortionRow> {
    let (now, peak) = (
        portions(&view.now().composition),
        portions(&view.peak().composition),
    );
    let rules = view.categories();
    let row = |(at, portion): (usize, &Portion)| {
        let of = |category: Category| {
            let mut of = rules.clone();
            of.retain(|row| row.rule.category() == category);
            of.sort_by_key(|row| Reverse((row.live, row.at_peak)));
            of
        };
        let rules = match portion {
            Portion::Of(category) => of(*category),
            Portion::BeforeAttach | Portion::Unaccounted => Vec::new(),
        };
        let most = points.iter().map(|point| point[at]).max().unwrap_or(0);
        PortionRow {
            portion: *portion,
            live: now[at],
            blocks: match portion {
                Portion::Of(_) => Some(rules.iter().map(|row| row.blocks).sum()),
                Portion::BeforeAttach | Portion::Unaccounted => None,
            },
            at_peak: peak[at],
            most: most.max(now[at]).max(peak[at]),
            rules,
        }
    };
    let rows = Portion::ALL.iter().enumerate().map(row);
    rows.filter(|row| row.live != 0 || row.at_peak != 0 || row.most != 0)
        .collect()
}

fn iteration(iteration: &Iteration, index: DeviceIndex) -> Option<IterationRow> {
    let (_, device) = iteration.devices.iter().find(|(of, _)| *of == index)?;
    Some(IterationRow {
        number: iteration.number,
        kind: iteration.kind,
        epoch: iteration.epoch,
        length: iteration.end.0.saturating_sub(iteration.begin.0),
        peak: device.peak.totals.allocated,
        end: device.end,
        allocs: device.allocs,
    })
}

#[cfg(test)]
mod tests {
    use super::super::WithCategories;
    use super::super::allocation_groups::samples::{DEVICE, learning};
    use super::*;
    use crate::attribution::tables::{CoverageStart, ModuleRow};
    use crate::ledger::snapshot::Grouping;
    use crate::ledger::{Analysis, Ledger};

    #[test]
    fn the_rows_of_a_screen_add_up_to_what_the_allocator_says() {
        let played = learning().analyzed(WithCategories::new(ModuleLedger::default()));
        let (module_ledger, ledger) = (played.analyses.table, played.analyses.categories);
        let now = TimeNs(9_000_000_000);
        let device = &categories(&ledger, &ledger.latest_iterations(8), now)[0];
        let sum = |of: fn(&PortionRow) -> i64| device.rows.iter().map(of).sum::<i64>();
        assert_eq!(sum(|row| row.live) as u64, device.totals.allocated.0);
        assert_eq!(sum(|row| row.at_peak) as u64, device.peak.0);
        assert_eq!(
            device.points.last().map(|point| point.iter().sum::<i64>()),
            Some(sum(|row| row.live))
        );
        let modules = &modules(&module_ledger, &played.ledger.snapshot(now, Grouping::User))[0];
        assert_eq!((modules.index, modules.totals), (DEVICE, device.totals));
    }

    #[test]
    fn ledgers_that_begin_late_add_up_from_then_on_and_know_the_module_of_what_is_live() {
        let program = learning();
        let mut always = WithCategories::new(ModuleLedger::default());
        let all = program.events.len();
        for at in [0, all / 3, all / 2, all - 1] {
            let mut late: Option<WithCategories<ModuleLedger>> = None;
            let mut heard = 0;
            always = WithCategories::new(ModuleLedger::default());
            program.play(|event, change, ledger| {
                always.apply(event, change, ledger);
                if let Some(late) = &mut late {
                    late.apply(event, change, ledger);
                } else if heard >= at {
                    late = Some(begun(ledger));
                }
                heard += 1;
                if let Some(late) = &late {
                    let now = TimeNs(9_000_000_000);
                    let modules = (&always.table, &late.table);
                    assert_agree(ledger, modules, &late.categories, now);
                }
            });
        }
        assert!(!always.table.tree(DEVICE).unwrap().modules.is_empty());
    }

    fn begun(ledger: &Ledger) -> WithCategories<ModuleLedger> {
        let now = TimeNs(0);
        let categories = AttributionLedger::new(None).with_latest_layers();
        WithCategories {
            categories: categories.with_known(ledger, now),
            table: ModuleLedger::late(ledger, now),
        }
    }

    /// A ledger started late agrees with a complete one on live memory by module, and its rows add up.
    fn assert_agree(
        ledger: &Ledger,
        (always, late): (&ModuleLedger, &ModuleLedger),
        attribution: &AttributionLedger,
        now: TimeNs,
    ) {
        let snapshot = ledger.snapshot(now, Grouping::User);
        let (always, late) = (modules(always, &snapshot), modules(late, &snapshot));
        for (always, late) in always.iter().zip(&late) {
            let bytes = |row: &ModuleRow| (row.total.all.live, row.own.all.live);
            let of = |device: &DeviceModules, name: &str| {
                let mut rows = device.tree.modules.iter();
                rows.find(|row| &*row.name == name).map(bytes)
            };
            for row in &always.tree.modules {
                let known = of(late, &row.name).unwrap_or_default();
                assert_eq!(known, bytes(row), "{}", row.name);
            }
            let tops = late.tree.modules.iter().map(|row| row.total.all);
            let others = late.tree.others.iter().map(|(_, sums)| sums.all);
            let (live, at_peak) = tops.chain(others).fold((0, 0), |(live, at_peak), it| {
                (live + it.live.0, at_peak + it.at_peak.0)
            });
            assert_eq!(live + late.before_attach.0, late.totals.allocated.0);
            let peak = late.tree.peak;
            assert_eq!(at_peak + peak.before_attach.0, peak.totals.allocated.0);
        }
        for device in categories(attribution, &attribution.latest_iterations(8), now) {
            let sum = |of: fn(&PortionRow) -> i64| device.rows.iter().map(of).sum::<i64>();
            assert_eq!(sum(|row| row.live) as u64, device.totals.allocated.0);
            assert_eq!(sum(|row| row.at_peak) as u64, device.peak.0);
            assert_eq!(device.since, CoverageStart::Opening);
        }
    }
}
