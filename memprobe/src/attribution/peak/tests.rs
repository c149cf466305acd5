use proptest::prelude::*;

use super::super::allocation_groups::ModuleScope;
use super::super::allocation_groups::samples::{DEVICE, Program, backward, called, learning};
use super::*;
use crate::attribution::WithCategories;
use crate::event::{Bytes, TimeNs};

const MIB: u64 = 1 << 20;

fn peak_of(program: &Program) -> (PeakView, Ledger) {
    let played = program.analyzed(WithCategories::new(PeakLedger::new(Grouping::User)));
    let WithCategories { categories, table } = played.analyses;
    let view = table.view(DEVICE, &categories).expect("a device");
    (view, played.ledger)
}

fn sum(view: &PeakView) -> u64 {
    view.parts.iter().map(|(_, held)| held.at_peak.0).sum()
}

#[test]
fn memory_at_the_peak_is_known_after_it_is_freed() {
    let (view, ledger) = peak_of(&learning());
    let live: u64 = ledger.snapshot(TimeNs(0), Grouping::User).devices[0]
        .totals
        .allocated
        .0;
    assert!(live < view.moment.totals.allocated.0);
    assert_eq!(mib(view.moment.totals.allocated), 10 + 22 + 6 + 1 + 2);
    let head: Vec<u64> = view
        .parts
        .iter()
        .filter(|(part, _)| part.origin.place == ModuleScope::Module("GPT.head".into()))
        .map(|(_, held)| held.at_peak.0 / MIB)
        .collect();
    assert_eq!(head.iter().sum::<u64>(), 8 + 6);
}

fn mib(bytes: Bytes) -> u64 {
    bytes.0 / MIB
}

#[test]
fn of_equal_peaks_the_first_counts() {
    let mut program = Program::default();
    let (one, other) = (program.stack(called(1, "")), program.stack(called(2, "")));
    let first = program.alloc(one, 1024);
    program.free(first);
    program.alloc(other, 1024);
    let (view, _) = peak_of(&program);
    assert_eq!(view.parts.len(), 1);
    assert_eq!(
        view.parts[0].0.origin.site.frame().map(|frame| frame.line),
        Some(1)
    );
}

#[test]
fn of_equal_peaks_the_best_known_counts() {
    let mut program = Program::default();
    let (unknown, known) = (
        program.stack(called(1, "")),
        program.stack(called(2, "Net")),
    );
    let blocks = [program.alloc(unknown, 1024), program.alloc(known, 512)];
    for addr in blocks {
        program.free(addr);
    }
    program.alloc(known, 1536);
    let (view, _) = peak_of(&program);
    let [(part, held)] = &view.parts[..] else {
        panic!("{:?}", view.parts)
    };
    assert_eq!(part.origin.place, ModuleScope::Module("Net".into()));
    assert_eq!(held.at_peak, Bytes(1536));
}

#[test]
fn modules_of_one_class_go_by_their_variables() {
    let mut program = Program::default();
    let paths = ["Sequential.0", "Sequential#2.0"];
    let stacks = paths.map(|path| program.stack(called(1, path)));
    let backward = program.stack(backward(2, "MmBackward0", None));
    let [one, other] = stacks.map(|stack| program.alloc(stack, 512));
    program.read_modules(&[(one, "G.0", paths[0]), (other, "D.0", paths[1])]);
    program.alloc(backward, 512);
    let played = program.analyzed(WithCategories::new(PeakLedger::new(Grouping::User)));
    let WithCategories { categories, table } = played.analyses;
    let view = table.view(DEVICE, &categories).expect("a device");
    let mut modules: Vec<_> = view
        .parts
        .iter()
        .map(|(part, _)| &part.origin.place)
        .collect();
    modules.sort_unstable();
    let named = |path: &str| ModuleScope::Module(path.into());
    let unknown = ModuleScope::BackwardUnknown;
    assert_eq!(modules, [&named("D.0"), &named("G.0"), &unknown]);
    let device = categories.device(DEVICE).expect("a device");
    let saved = device.saved(Grouping::User);
    let mut modules: Vec<_> = saved.iter().map(|row| row.module.path()).collect();
    modules.sort_unstable();
    assert_eq!(modules, [Some(&"D.0".into()), Some(&"G.0".into())]);
}

#[test]
fn a_device_that_only_frees_held_most_before_the_first_event() {
    let mut program = Program::attached_at(4 * MIB);
    program.free_from_before(MIB);
    // Same as in a recording without the state at attach.
    program.events.remove(0);
    let (view, _) = peak_of(&program);
    assert_eq!(mib(view.moment.totals.allocated), 4);
    assert_eq!((mib(view.moment.before_attach), view.parts.len()), (4, 0));
}

proptest! {
    #[test]
    fn what_was_live_at_the_peak_adds_up_to_what_the_allocator_said(
        steps in prop::collection::vec((0..5_u32, any::<usize>(), 1..40_u64), 1..200),
    ) {
        let mut program = Program::attached_at(MIB);
        let stacks: Vec<_> = (1..6).map(|line| program.stack(called(line, "Net"))).collect();
        let mut live = Vec::new();
        // Naive copy of the live blocks at each peak so far.
        let (mut allocated, mut highest, mut copy) = (0, 0, Vec::new());
        for (kind, pick, size) in steps {
            if kind < 3 || live.is_empty() {
                let line = pick % stacks.len();
                let size = size * 512;
                live.push((program.alloc(stacks[line], size), line, size));
                allocated += size;
            } else {
                let (addr, _, size) = live.swap_remove(pick % live.len());
                program.free(addr);
                allocated -= size;
            }
            if allocated > highest {
                (highest, copy) = (allocated, live.clone());
            }
        }
        let (view, ledger) = peak_of(&program);
        prop_assert_eq!(sum(&view) + view.moment.before_attach.0, view.moment.totals.allocated.0);
        prop_assert_eq!(view.moment.totals.allocated, ledger.snapshot(TimeNs(0), Grouping::User).devices[0].peak.allocated);
        for (part, held) in &view.parts {
            let line = part.origin.site.frame().map_or(0, |frame| frame.line as usize);
            let of_line = copy.iter().filter(|(_, at, _)| at + 1 == line);
            prop_assert_eq!(held.at_peak.0, of_line.clone().map(|(.., size)| size).sum::<u64>());
            prop_assert_eq!(held.at_peak_blocks, of_line.count() as u64);
        }
    }
}
