use proptest::prelude::*;

use super::super::allocation_groups::samples::{DEVICE, Program, backward, called, learning};
use super::*;
use crate::attribution::WithCategories;
use crate::event::{StackId, TimeNs};
use crate::ledger::snapshot::Grouping;

const MIB: u64 = 1 << 20;

/// Module tree and ledger at the end of a program.
fn tree_of(program: &Program) -> (ModuleTree, Ledger) {
    let played = program.analyzed(WithCategories::new(ModuleLedger::default()));
    let tree = played.analyses.table.tree(DEVICE).expect("a device");
    (tree, played.ledger)
}

fn named<'a>(rows: &'a [ModuleRow], path: &str) -> &'a ModuleRow {
    let (name, rest) = path
        .split_once('.')
        .map_or((path, None), |(a, b)| (a, Some(b)));
    let row = rows.iter().find(|row| *row.name == *name).expect("a row");
    rest.map_or(row, |rest| named(&row.parts, rest))
}

fn mib(bytes: crate::event::Bytes) -> u64 {
    bytes.0 / MIB
}

#[test]
fn a_module_holds_what_its_parts_hold() {
    let (tree, _) = tree_of(&learning());
    let gpt = &named(&tree.modules, "GPT").total.all;
    assert_eq!(
        (mib(gpt.at_peak), gpt.live.0),
        (3 + 4 + 3 + 4 + 8 + 6 + 2, 0)
    );
    let layers = named(&tree.modules, "GPT.layers");
    assert_eq!(mib(layers.total.all.at_peak), 3 + 4 + 3 + 4 + 2);
    assert_eq!(
        layers.own.all,
        Holding {
            peak: Some(crate::event::Bytes(0)),
            ..Holding::default()
        }
    );
    assert_eq!(layers.total.all.allocs, 5);
}

#[test]
fn forward_backward_and_what_is_computed_again_are_apart() {
    let (tree, _) = tree_of(&learning());
    let at_peak = |path: &str| {
        let sums = named(&tree.modules, path).total;
        [Pass::Forward, Pass::Recompute, Pass::Backward].map(|pass| mib(sums.pass(pass).at_peak))
    };
    assert_eq!(at_peak("GPT.head"), [8, 0, 6]);
    assert_eq!(at_peak("GPT.layers.1.mlp"), [4, 2, 0]);
    assert_eq!(at_peak("GPT"), [22, 2, 6]);
}

#[test]
fn memory_without_a_module_is_outside_the_tree() {
    let (tree, _) = tree_of(&learning());
    let others: Vec<_> = tree
        .others
        .iter()
        .map(|(place, sums)| (place.clone(), sums.all.at_peak.0))
        .collect();
    assert_eq!(
        others,
        [
            (ModuleScope::Outside, 512),
            (ModuleScope::BackwardUnknown, MIB)
        ]
    );
    assert_eq!(tree.peak.before_attach.0, 10 * MIB);
}

#[test]
fn the_peak_of_a_module_is_that_of_all_its_parts_together() {
    let mut program = Program::default();
    let (one, other) = (
        program.stack(called(1, "Net.a")),
        program.stack(called(2, "Net.b")),
    );
    let first = program.alloc(one, 4096);
    program.free(first);
    program.alloc(other, 2048);
    let (tree, _) = tree_of(&program);
    let net = named(&tree.modules, "Net");
    assert_eq!(net.total.all.peak.map(|peak| peak.0), Some(4096));
    assert_eq!(
        named(&net.parts, "b").total.all.peak.map(|peak| peak.0),
        Some(2048)
    );
    assert_eq!(net.total.all.at_peak.0, 4096);
}

#[test]
fn modules_that_differ_in_number_alone_are_one_row() {
    let (tree, _) = tree_of(&learning());
    let folded = fold(tree.modules);
    let layers = named(&folded, "GPT.layers");
    assert_eq!(layers.parts.len(), 1);
    let both = &layers.parts[0];
    assert_eq!((&*both.name, both.count), ("0..1", 2));
    assert_eq!(mib(both.total.all.at_peak), 16);
    let mlp = named(&both.parts, "mlp");
    assert_eq!((mib(mlp.total.all.at_peak), mlp.total.all.peak), (10, None));
}

#[test]
fn numbered_parts_without_parts_may_be_anything_and_stay_apart() {
    let mut program = Program::default();
    for path in ["Net.0", "Net.1", "Net.2.conv", "Net.3.conv", "Net.4.bn"] {
        let stack = program.stack(called(1, path));
        program.alloc(stack, 512);
    }
    let (tree, _) = tree_of(&program);
    let folded = fold(tree.modules);
    let names: Vec<_> = folded[0].parts.iter().map(|row| &*row.name).collect();
    assert_eq!(names, ["0", "1", "2..3", "4"]);
}

#[test]
fn a_path_of_many_parts_is_cut_where_nobody_would_look() {
    let mut program = Program::default();
    let stack = program.stack(called(1, &vec!["x"; 10_000].join(".")));
    program.alloc(stack, 512);
    let (tree, _) = tree_of(&program);
    let mut depth = 0;
    let mut rows = &tree.modules;
    while let [row] = &rows[..] {
        depth += 1;
        rows = &row.parts;
    }
    assert_eq!(depth, DEEPEST);
}

#[test]
fn without_modules_the_tree_says_so() {
    let mut program = Program::default();
    let stack = program.stack(called(1, ""));
    program.alloc(stack, 512);
    let (tree, _) = tree_of(&program);
    assert!(!tree.knows_modules && tree.modules.is_empty());
}

fn own(rows: &[ModuleRow], of: fn(&Holding) -> u64) -> u64 {
    rows.iter()
        .map(|row| of(&row.own.all) + own(&row.parts, of))
        .sum()
}

fn parts_are_part(rows: &[ModuleRow]) {
    for row in rows {
        let figures: [fn(&Holding) -> u64; 4] = [
            |it: &Holding| it.live.0,
            |it| it.at_peak.0,
            |it| it.allocs,
            |it| it.live_blocks,
        ];
        for of in figures {
            let parts: u64 = row.parts.iter().map(|part| of(&part.total.all)).sum();
            assert_eq!(of(&row.total.all), of(&row.own.all) + parts);
            let passes: u64 = [Pass::Forward, Pass::Recompute, Pass::Backward]
                .map(|pass| of(&row.total.pass(pass)))
                .iter()
                .sum();
            assert_eq!(of(&row.total.all), passes);
        }
        assert!(row.total.all.peak >= row.own.all.peak);
        parts_are_part(&row.parts);
    }
}

proptest! {
    #[test]
    fn the_tree_adds_up_to_what_the_allocator_says(
        held in 0..3_u64,
        steps in prop::collection::vec((0..8_u32, any::<usize>(), 1..40_u64), 1..120),
    ) {
        let mut program = Program::attached_at(held * MIB);
        let paths = ["Net", "Net.a", "Net.a.0", "Net.a.1.x", "Other", "", "?"];
        let mut stacks: Vec<StackId> = paths.iter().map(|path| program.stack(called(1, path))).collect();
        stacks.extend(paths.iter().map(|path| program.stack(backward(2, "N", Some(called(1, path))))));
        let mut before = held * MIB;
        for (kind, pick, size) in steps {
            match (kind, program.nth_live(pick)) {
                (0..=4, _) | (_, None) => { program.alloc(stacks[pick % stacks.len()], size * 512); }
                (5, _) if before > 0 => { before -= MIB; program.free_from_before(MIB); }
                (_, Some(addr)) => program.free(addr),
            }
        }
        let (tree, ledger) = tree_of(&program);
        let device = &ledger.snapshot(TimeNs(0), Grouping::User).devices[0];
        let outside_modules = |of: fn(&Holding) -> u64| -> u64 { tree.others.iter().map(|(_, sums)| of(&sums.all)).sum() };
        let live = own(&tree.modules, |it| it.live.0) + outside_modules(|it| it.live.0);
        prop_assert_eq!(live + device.before_attach.live.0, device.totals.allocated.0);
        let then = own(&tree.modules, |it| it.at_peak.0) + outside_modules(|it| it.at_peak.0);
        prop_assert_eq!(then + tree.peak.before_attach.0, tree.peak.totals.allocated.0);
        prop_assert_eq!(tree.peak.totals.allocated, device.peak.allocated);
        parts_are_part(&tree.modules);
        let folded = fold(tree.modules.clone());
        prop_assert_eq!(own(&folded, |it| it.at_peak.0), own(&tree.modules, |it| it.at_peak.0));
        parts_are_part(&tree.modules);
    }
}
