//! Formats the matrix as a Markdown page.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::cell::{Cell, Outcome};
use crate::markdown::wrapped;
use crate::pages::CommittedObject;

/// Name of the workload that memprobe attaches to late.
const LATE_ATTACH: &str = "late attach";

const INTRODUCTION: &str = "\
# What memprobe was tried on

Written by `cargo xtask matrix`. Each cell is a real training script on an unmodified PyTorch wheel from PyPI, on
simulated GPUs, recorded by memprobe from its first allocation to its end and compared with the history that PyTorch
itself kept inside the process: every event's action, address, order and device, the size, each stack frame by frame
(file, line, function), and the allocator's totals (allocated, reserved) at every checkpoint and at the end. Events of
autograd's threads have no Python stack in PyTorch's history; memprobe must lead them back to the line that called
`backward()`. Nothing may be lost.

*late attach*: memprobe comes ten times while a script is under way. The blocks that it finds in the allocator's tables
must be those that are live by PyTorch's own history, or by its own snapshot where threads on two devices and several
streams move memory meanwhile; with them each event's totals must be the allocator's own, and every event after that is
compared as above.

A number is how many events were compared and found exact. Events of *late attach* that were only replayed, to the moment
of a comparison, are not among them. *refused* means that memprobe said it cannot, in words; a
cell that is neither is a fault. PyTorch 2.0 keeps no times and no addresses of the blocks that are left (they follow
from their segments); before 2.3 autograd's threads have no names of their own. All else is compared on every release.
";

pub fn render(cells: &[Cell], committed: &CommittedObject) -> String {
    let mut page = INTRODUCTION.to_owned();
    let count =
        |wanted: fn(&Outcome) -> bool| cells.iter().filter(|cell| wanted(&cell.outcome)).count();
    let exact = count(|outcome| matches!(outcome, Outcome::Exact { .. }));
    let refused = count(|outcome| matches!(outcome, Outcome::Refused { .. }));
    let bad = count(Outcome::is_bad);
    let mut line =
        |text: String| writeln!(page, "{text}").expect("writing to a string does not fail");
    line(format!(
        "\n{} cells: {exact} exact, {refused} refused, {bad} neither.",
        cells.len()
    ));
    let objects = cells.iter().map(|cell| cell.object.as_deref());
    line(committed.note(objects));
    line(format!("Kernel: {}.", set_of(cells, |cell| &cell.kernel)));
    line(format!(
        "Python: {}.\n",
        set_of(cells, |cell| &cell.python_version)
    ));

    let workloads = in_order(cells, |cell| &cell.workload);
    line(format!(
        "| PyTorch | Python | {} | date |",
        workloads.join(" | ")
    ));
    line(format!("|---|---|{}---|", "---:|".repeat(workloads.len())));
    let mut notes: Vec<&str> = Vec::new();
    for row in rows(cells) {
        let columns: Vec<String> = workloads
            .iter()
            .map(|name| {
                let cell = row.iter().find(|cell| &cell.workload == name);
                cell.map_or_else(String::new, |cell| {
                    let mark = committed.mark(cell.object.as_deref());
                    shown(cell, &mut notes) + mark
                })
            })
            .collect();
        let dates: BTreeSet<&str> = row.iter().map(|cell| cell.date.as_str()).collect();
        line(format!(
            "| {} | {} | {} | {} |",
            row[0].torch,
            row[0].python,
            columns.join(" | "),
            dates.last().copied().unwrap_or_default()
        ));
    }
    for (at, note) in notes.iter().enumerate() {
        line(format!("\n{}. {}", at + 1, note.replace('\n', " ")));
    }
    wrapped(&page)
}

/// Groups the cells of each pair.
fn rows(cells: &[Cell]) -> impl Iterator<Item = &[Cell]> {
    cells.chunk_by(|one, other| (&one.torch, &one.python) == (&other.torch, &other.python))
}

fn shown<'a>(cell: &'a Cell, notes: &mut Vec<&'a str>) -> String {
    let mut noted = |word: &str, words: &'a str| {
        let at = notes.iter().position(|note| *note == words);
        let at = at.unwrap_or_else(|| {
            notes.push(words);
            notes.len() - 1
        });
        format!("{word} ({})", at + 1)
    };
    match &cell.outcome {
        // Early cells do not tell compared events from counted ones: compared were at least those with
        // a stack, and those of backward passes.
        Outcome::Exact {
            counted: None,
            stacks,
            backward,
            ..
        } if cell.workload == LATE_ATTACH => format!("≥ {}", stacks + backward),
        Outcome::Exact { events, .. } => events.to_string(),
        Outcome::Refused { words } => noted("*refused*", words),
        Outcome::Differs { words } => noted("**differs**", words),
        Outcome::Failed { words } => noted("**failed**", words),
    }
}

/// Returns the distinct values, sorted.
fn set_of<'a>(cells: &'a [Cell], part: impl Fn(&'a Cell) -> &'a String) -> String {
    let set: BTreeSet<&str> = cells
        .iter()
        .map(|cell| part(cell).as_str())
        .filter(|text| !text.is_empty())
        .collect();
    set.into_iter().collect::<Vec<_>>().join(", ")
}

/// Returns the distinct values in order of first occurrence.
fn in_order<'a>(cells: &'a [Cell], part: impl Fn(&'a Cell) -> &'a String) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for cell in cells {
        if !order.contains(part(cell)) {
            order.push(part(cell).clone());
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(python: &str, workload: &str, outcome: Outcome) -> Cell {
        Cell {
            torch: "2.6.0".to_owned(),
            python: python.to_owned(),
            workload: workload.to_owned(),
            python_version: format!("{python}.4"),
            date: "2026-11-21".to_owned(),
            kernel: "Linux 6.18.0".to_owned(),
            build: "abc".to_owned(),
            object: Some("0b1ec7".to_owned()),
            outcome,
        }
    }

    #[test]
    fn a_row_is_a_pair_and_what_is_not_exact_has_a_note() {
        let exact = Outcome::Exact {
            events: 1234,
            counted: None,
            stacks: 5,
            backward: 1,
            checkpoints: 1,
        };
        let refused = Outcome::Refused {
            words: "memprobe: Python 3.13 is not known".to_owned(),
        };
        let cells = [
            cell("3.11", "threads", exact),
            cell("3.13", "threads", refused.clone()),
            cell("3.13", "recursion", refused),
        ];
        let page = render(&cells, &CommittedObject::named("0b1ec7"));
        let table = &page[page.find("3 cells").unwrap()..];
        assert_eq!(
            table,
            "3 cells: 1 exact, 2 refused, 0 neither.\n\
             Committed eBPF object: 0b1ec7, that of all 3.\n\
             Kernel: Linux 6.18.0.\n\
             Python: 3.11.4, 3.13.4.\n\n\
             | PyTorch | Python | threads | recursion | date |\n\
             |---|---|---:|---:|---|\n\
             | 2.6.0 | 3.11 | 1234 |  | 2026-11-21 |\n\
             | 2.6.0 | 3.13 | *refused* (1) | *refused* (1) | 2026-11-21 |\n\n\
             1. memprobe: Python 3.13 is not known\n"
        );
    }

    #[test]
    fn cells_of_another_object_are_stale_and_counted_events_are_not_compared_ones() {
        let exact = |counted| Outcome::Exact {
            events: 58_148,
            counted,
            stacks: 945,
            backward: 495,
            checkpoints: 45,
        };
        let old = Cell {
            object: None,
            ..cell("3.9", LATE_ATTACH, exact(None))
        };
        let cells = [old, cell("3.11", LATE_ATTACH, exact(Some(56_000)))];
        let page = render(&cells, &CommittedObject::named("0b1ec7"));
        assert!(page.contains("| 2.6.0 | 3.9 | ≥ 1440 † |"), "{page}");
        assert!(page.contains("| 2.6.0 | 3.11 | 58148 |"), "{page}");
        assert!(page.contains("0b1ec7, that of 1 of 2."), "{page}");
    }
}
