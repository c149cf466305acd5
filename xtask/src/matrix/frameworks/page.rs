//! Formats the matrix of frameworks as a Markdown page.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::cell::{Cell, Compared, Comparison, Outcome};
use crate::markdown::wrapped;
use crate::pages::CommittedObject;

const INTRODUCTION: &str = "\
# Frameworks that memprobe was tried with

Written by `cargo xtask matrix --frameworks`. Each row is a small program of `tests/workloads/frameworks`, with random \
weights, on simulated GPUs. memprobe starts it and records all its processes. Each process keeps its own account:

- *events*: PyTorch's own history, compared event by event as for [the matrix](matrix.md): action, address, order, \
size, and the allocator's totals at every checkpoint. *stacks* are the Python stacks among them, compared frame by \
frame; *backward* the events of autograd's threads, compared with the line that calls `backward()`.
- *modules*: the innermost module of each block, by forward hooks and `named_modules()`. Blocks without \
a known module count as *unknown*.
- *tensors*: every tensor in a `memprobe snapshot` of the standing process, compared with Python's own objects; \
*names* are those of parameters, buffers, gradients and optimizer state among them.
- *iterations*: the iterations that `report --by iteration` finds, compared with the loop's own count.

A number is how many were compared. `-` means that the program gives no such account.
";

pub fn render(cells: &[Cell], committed: &CommittedObject) -> String {
    let mut page = INTRODUCTION.to_owned();
    let exact = cells.iter().filter(|cell| cell.is_exact()).count();
    let failed = |cell: &&Cell| matches!(cell.result, Outcome::Failed { .. });
    let failed = cells.iter().filter(failed).count();
    let mut line =
        |text: String| writeln!(page, "{text}").expect("writing to a string does not fail");
    line(format!(
        "\n{} programs: {exact} exact, {} differ, {failed} could not run.",
        cells.len(),
        cells.len() - exact - failed
    ));
    line(committed.note(cells.iter().map(|cell| cell.object.as_deref())));
    let set = |part: fn(&Cell) -> &str| {
        let set: BTreeSet<&str> = cells.iter().map(part).collect();
        let known: Vec<&str> = set.into_iter().filter(|text| !text.is_empty()).collect();
        known.join(", ")
    };
    line(format!("PyTorch: {}.", set(|cell| &cell.torch)));
    line(format!("Python: {}.", set(python)));
    line(format!("Kernel: {}.\n", set(|cell| &cell.kernel)));
    line(
        "| program | versions | processes | events | stacks | backward | modules | unknown | tensors | names \
         | iterations | date |"
            .to_owned(),
    );
    line(format!("|---|---|{}---|", "---:|".repeat(9)));
    let mut notes = Notes::default();
    for cell in cells {
        let columns = match &cell.result {
            Outcome::Ran(ran) => columns(ran, &mut notes),
            Outcome::Failed { words } => {
                format!(
                    "|  | **could not run**{} |{}",
                    notes.add(words),
                    "  |".repeat(8)
                )
            }
        };
        let mark = committed.mark(cell.object.as_deref());
        line(format!(
            "| {} {columns} {}{mark} |",
            cell.program, cell.date
        ));
    }
    for (at, note) in notes.0.iter().enumerate() {
        line(format!("\n{}. {}", at + 1, in_one_line(note)));
    }
    wrapped(&page)
}

fn python(cell: &Cell) -> &str {
    match &cell.result {
        Outcome::Ran(ran) => &ran.python,
        Outcome::Failed { .. } => "",
    }
}

fn columns(ran: &Comparison, notes: &mut Notes) -> String {
    let versions = ran.packages.iter();
    let versions: Vec<String> = versions
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let unknown = ran
        .modules
        .as_ref()
        .map(|modules| modules.unknown.to_string());
    let columns = [
        versions.join(", "),
        ran.processes.to_string(),
        notes.compared(Some(&ran.events)),
        ran.stacks.to_string(),
        ran.backward.to_string(),
        notes.compared(ran.modules.as_ref()),
        unknown.unwrap_or_else(|| "-".to_owned()),
        notes.compared(ran.tensors.as_ref()),
        ran.names.to_string(),
        notes.compared(ran.iterations.as_ref()),
    ];
    format!("| {} |", columns.join(" | "))
}

/// Numbered notes under the table.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    /// Returns the reference to a note, with a space before it.
    fn add(&mut self, words: &str) -> String {
        let at = self.0.iter().position(|note| note == words);
        let at = at.unwrap_or_else(|| {
            self.0.push(words.to_owned());
            self.0.len() - 1
        });
        format!(" ({})", at + 1)
    }

    fn compared(&mut self, compared: Option<&Compared>) -> String {
        let Some(compared) = compared else {
            return "-".to_owned();
        };
        match &compared.first {
            None => compared.compared.to_string(),
            Some(first) => {
                let note = self.add(first);
                let (differing, all) = (compared.differing, compared.compared);
                format!("{all}, **{differing} differ**{note}")
            }
        }
    }
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(program: &str, result: Outcome) -> Cell {
        Cell {
            order: Some(0),
            program: program.to_owned(),
            torch: "2.15.0".to_owned(),
            date: "2026-11-23".to_owned(),
            kernel: "Linux 6.18.0".to_owned(),
            build: "abc".to_owned(),
            object: Some("0b1ec7".to_owned()),
            result,
        }
    }

    fn compared(compared: u64, first: Option<&str>) -> Compared {
        Compared {
            compared,
            unknown: 2,
            differing: u64::from(first.is_some()),
            first: first.map(str::to_owned),
        }
    }

    fn ran(iterations: Option<Compared>) -> Outcome {
        Outcome::Ran(Box::new(Comparison {
            packages: [("peft".to_owned(), "0.21.2".to_owned())].into(),
            python: "3.13.0".to_owned(),
            processes: 1,
            events: compared(100, None),
            stacks: 60,
            backward: 30,
            checkpoints: 8,
            modules: Some(compared(50, None)),
            tensors: Some(compared(40, None)),
            names: 20,
            iterations,
        }))
    }

    #[test]
    fn a_row_is_a_program_and_what_differs_has_a_note() {
        let words = "no wheel\n  for this Python".to_owned();
        let cells = [
            cell("exact", ran(None)),
            cell("wrong", ran(Some(compared(8, Some("7 iterations of 8"))))),
            cell("absent", Outcome::Failed { words }),
        ];
        let page = render(&cells, &CommittedObject::named("0b1ec7"));
        let table = &page[page.find("3 programs").unwrap()..];
        assert_eq!(
            table,
            "3 programs: 1 exact, 1 differ, 1 could not run.\n\
             Committed eBPF object: 0b1ec7, that of all 3.\n\
             PyTorch: 2.15.0.\n\
             Python: 3.13.0.\n\
             Kernel: Linux 6.18.0.\n\n\
             | program | versions | processes | events | stacks | backward | modules | unknown | tensors | names \
             | iterations | date |\n\
             |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n\
             | exact | peft 0.21.2 | 1 | 100 | 60 | 30 | 50 | 2 | 40 | 20 | - | 2026-11-23 |\n\
             | wrong | peft 0.21.2 | 1 | 100 | 60 | 30 | 50 | 2 | 40 | 20 | 8, **1 differ** (1) | 2026-11-23 |\n\
             | absent |  | **could not run** (2) |  |  |  |  |  |  |  |  | 2026-11-23 |\n\n\
             1. 7 iterations of 8\n\n\
             2. no wheel for this Python\n"
        );
    }

    #[test]
    fn a_stored_result_is_read_back() {
        let cells = [
            cell("exact", ran(None)),
            cell(
                "absent",
                Outcome::Failed {
                    words: "no".to_owned(),
                },
            ),
        ];
        let text = serde_json::to_string(&cells).unwrap();
        let read: Vec<Cell> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, cells);
        assert!(read[0].is_exact() && !read[1].is_exact());
    }
}
