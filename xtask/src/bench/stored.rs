//! Measurements that the repository has, in `docs/cost.json`, and the places of documents written from them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::table::{Style, Table};
use crate::markdown::wrapped;
use crate::pages::CommittedObject;

/// The measurements of a part, with the builds and the machine that they are of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredPart {
    /// Name on the command line, such as `loop`; of the loop with another model or with waiting `loop-gpt`,
    /// `loop-nested` and `loop-waiting`.
    pub part: String,
    /// The command that measures it again.
    pub command: String,
    /// Date (UTC), such as `2026-11-24`.
    pub date: String,
    /// Lines that name the machine, kernel and versions.
    pub machine: Vec<String>,
    /// First digits of memprobe's hash.
    pub memprobe: Option<String>,
    /// First digits of the eBPF object's hash.
    pub object: String,
    pub table: Table,
}

/// A place in a document that holds a part's table.
struct Place {
    document: &'static str,
    /// Path of [`FILE`] from the document.
    link: &'static str,
    part: &'static str,
    /// Rows by the first cell, and columns by the heading; all if empty.
    rows: &'static [&'static str],
    columns: &'static [&'static str],
}

const FILE: &str = "docs/cost.json";

const PLACES: [Place; 10] = [
    Place {
        document: "README.md",
        link: FILE,
        part: "loop",
        rows: &[
            "empty uprobe at the same place",
            ATTACH,
            RECORD,
            "PyTorch's history, stacks=\"python\"",
            "PyTorch's history, stacks=\"all\"",
        ],
        columns: &["", "slower", "µs/event"],
    },
    whole("loop"),
    whole("loop-gpt"),
    whole("loop-nested"),
    whole("loop-waiting"),
    whole("recording"),
    whole("footprint"),
    whole("ranks"),
    whole("snapshot"),
    whole("scale"),
];

/// Rows of the training loop whose costs the sentence about a longer step takes.
const ATTACH: &str = "memprobe attach";
const RECORD: &str = "memprobe record --detail tensors -o FILE";

/// The place of a part in the guide.
const fn whole(part: &'static str) -> Place {
    Place {
        document: "docs/guide/src/cost.md",
        link: "../../cost.json",
        part,
        rows: &[],
        columns: &[],
    }
}

/// Reads the stored measurements; none if there is no file.
pub fn read(root: &Path) -> Result<Vec<StoredPart>> {
    let path = root.join(FILE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path)?;
    serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
}

/// Keeps measurements in place of earlier ones of the same parts. It is an error if one names a path of the checkout.
pub fn put(root: &Path, new: Vec<StoredPart>) -> Result<()> {
    let mut parts = read(root)?;
    parts.retain(|part| !new.iter().any(|new| new.part == part.part));
    parts.extend(new);
    parts.sort_by(|one, other| one.part.cmp(&other.part));
    let path = root.join(FILE);
    let text = serde_json::to_string_pretty(&parts)? + "\n";
    if text.contains(&*root.to_string_lossy()) {
        bail!(
            "a measurement names a path of this checkout, {}: {FILE} is not written",
            root.display()
        );
    }
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns each document with its places written from the stored measurements.
pub fn documents(root: &Path, committed: &CommittedObject) -> Result<Vec<(PathBuf, String)>> {
    let parts = read(root)?;
    let mut documents: Vec<(PathBuf, String)> = Vec::new();
    for place in &PLACES {
        let path = root.join(place.document);
        if !documents.iter().any(|(known, _)| *known == path) {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            documents.push((path.clone(), text));
        }
        let Some(part) = parts.iter().find(|part| part.part == place.part) else {
            continue;
        };
        let document = documents.iter_mut().find(|(known, _)| *known == path);
        let (_, text) = document.expect("just added");
        *text = with_block(text, place.part, &block(part, place, committed))
            .with_context(|| format!("{} has no place for {}", place.document, place.part))?;
    }
    Ok(documents)
}

/// Begins the place of a part.
fn marker(part: &str) -> String {
    format!("<!-- `cargo xtask bench --keep` writes this: {part} -->\n")
}

/// Ends a place.
const END: &str = "<!-- end -->\n";

/// Replaces the text between the marker of a part and the end; `None` if there is no such place.
fn with_block(document: &str, part: &str, block: &str) -> Option<String> {
    let marker = marker(part);
    let (before, after) = document.split_once(&marker)?;
    let (_, rest) = after.split_once(END)?;
    Some(format!("{before}{marker}{block}{END}{rest}"))
}

/// Formats a part for a place: the source of its figures, the table, and what follows from it.
fn block(part: &StoredPart, place: &Place, committed: &CommittedObject) -> String {
    let mark = committed.mark(Some(&part.object));
    let note = match mark {
        "" => String::new(),
        mark => format!("{}: not the committed object. ", mark.trim()),
    };
    let StoredPart {
        command,
        date,
        object,
        table,
        ..
    } = part;
    let lines = part.machine.iter().map(String::as_str);
    let machine: Vec<&str> = lines.filter(|line| !line.starts_with("Date: ")).collect();
    let machine = machine.join("; ");
    let link = place.link;
    let mut text = format!(
        "{}. `{command}`, {date}, eBPF object {object}{mark} ([raw samples]({link})). {note}{machine}.\n\n",
        table.title()
    );
    let chosen = table.chosen(place.rows, place.columns);
    text += &chosen.lines(Style::Markdown).join("\n");
    text.push('\n');
    if place.rows.is_empty() {
        for note in chosen.notes() {
            text += &format!("\n{note}\n");
        }
    }
    if let Some(sentence) = longer_step(part) {
        text += &format!("\n{sentence}\n");
    }
    wrapped(&text)
}

/// A sentence about a training step that keeps a GPU busy; `None` if the part has no such figures.
fn longer_step(part: &StoredPart) -> Option<String> {
    if part.part != "loop" {
        return None;
    }
    let block = &part.table.raw()["samples"][0]["block"];
    let events = block["events"].as_f64()? / block["iterations"].as_f64()?;
    let cost = |row: &str| -> Option<f64> {
        let cell = part.table.cell(row, "µs/event")?;
        Some(cell.trim_start_matches('+').parse::<f64>().ok()? * events / 1000.0)
    };
    let [least, most] = [cost(ATTACH)?, cost(RECORD)?];
    let [least, most] = [least.min(most), least.max(most)].map(|loss| format!("{loss:.1}"));
    let loss = if least == most {
        format!("about {least}")
    } else {
        format!("{least} to {most}")
    };
    Some(format!(
        "A training step of 100 ms on a GPU with as many events would lose {loss} ms."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_measurement_with_a_path_of_the_checkout_is_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("docs")).unwrap();
        put(root.path(), vec![part()]).unwrap();
        let mut with_path = part();
        let program = root.path().join("target/release/memprobe");
        with_path.table.samples([json!({"memprobe": program})]);
        assert!(put(root.path(), vec![with_path]).is_err());
        assert_eq!(read(root.path()).unwrap(), [part()]);
    }

    /// The table of a loop with the costs of `attach` and `record`.
    fn table(costs: [(&str, &str); 2]) -> Table {
        let mut table = Table::new("A loop", &["", "µs/iteration", "slower", "µs/event"]);
        let rows = [ATTACH, RECORD].into_iter().zip(costs);
        let rows = rows.map(|(name, (slower, microseconds))| (name, slower, microseconds));
        for (name, slower, microseconds) in [("no profiler", "-", "-")].into_iter().chain(rows) {
            table.row([name, "1000", slower, microseconds].map(str::to_owned));
        }
        table.note("Medians.");
        table.samples([json!({"block": {"events": 3760, "iterations": 20}})]);
        table
    }

    fn part() -> StoredPart {
        StoredPart {
            part: "loop".to_owned(),
            command: "cargo xtask bench --keep --only loop".to_owned(),
            date: "2026-11-24".to_owned(),
            machine: vec!["Machine: M".to_owned(), "Kernel: K".to_owned()],
            memprobe: None,
            object: "abc".to_owned(),
            table: table([("+25 %", "+2.00"), ("+32 %", "+2.60")]),
        }
    }

    #[test]
    fn a_table_names_its_command_its_object_and_its_samples() {
        let text = block(&part(), &whole("loop"), &CommittedObject::named("abc"));
        let expected = "\
A loop. `cargo xtask bench --keep --only loop`, 2026-11-24, eBPF object abc ([raw samples](../../cost.json)). Machine:
M; Kernel: K.

|                                          | µs/iteration | slower | µs/event |
| :--------------------------------------- | -----------: | -----: | -------: |
| no profiler                              |         1000 |      - |        - |
| memprobe attach                          |         1000 |  +25 % |    +2.00 |
| memprobe record --detail tensors -o FILE |         1000 |  +32 % |    +2.60 |

Medians.

A training step of 100 ms on a GPU with as many events would lose 0.4 to 0.5 ms.
";
        assert_eq!(text, expected);
        let stale = block(&part(), &whole("loop"), &CommittedObject::named("abd"));
        let stale = stale.replace('\n', " ");
        assert!(stale.contains("abc † ") && stale.contains("†: not the committed object."));
    }

    #[test]
    fn a_loss_with_equal_bounds_is_one_number() {
        let mut part = part();
        part.table = table([("+25 %", "+2.00"), ("+26 %", "+2.01")]);
        let sentence = longer_step(&part).unwrap();
        assert!(sentence.ends_with("would lose about 0.4 ms."), "{sentence}");
    }

    #[test]
    fn the_readme_has_few_rows_and_columns() {
        let text = block(&part(), &PLACES[0], &CommittedObject::named("abc"));
        assert!(!text.contains("no profiler") && !text.contains("µs/iteration"));
        assert!(text.contains("| memprobe attach                          |  +25 % |    +2.00 |"));
    }

    #[test]
    fn a_block_replaces_the_text_at_its_place() {
        let place = format!("a\n{}old\n{END}b\n", marker("loop"));
        let text = with_block(&place, "loop", "new\n");
        assert_eq!(text, Some(format!("a\n{}new\n{END}b\n", marker("loop"))));
        assert_eq!(with_block(&place, "ranks", "new\n"), None);
    }

    #[test]
    fn measurements_replace_those_of_their_part() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join("docs")).expect("made");
        let ranks = StoredPart {
            part: "ranks".to_owned(),
            ..part()
        };
        put(root.path(), vec![ranks.clone(), part()]).expect("written");
        let again = StoredPart {
            date: "2026-12-01".to_owned(),
            ..part()
        };
        put(root.path(), vec![again.clone()]).expect("written");
        assert_eq!(read(root.path()).expect("read"), [again, ranks]);
    }

    #[test]
    fn every_document_has_its_places() {
        let root = crate::repository::Repository::here();
        for place in &PLACES {
            let text = fs::read_to_string(root.root().join(place.document)).expect("a document");
            let found = with_block(&text, place.part, "");
            assert!(found.is_some(), "{}: {}", place.document, place.part);
        }
    }
}
