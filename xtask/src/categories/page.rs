//! Formats the shares as a Markdown page.

use std::fmt::Write as _;

use super::{Results, Row, Shares};
use crate::markdown::wrapped;
use crate::pages::CommittedObject;

/// The page, with a line for each part that the results fill in.
const TEMPLATE: &str = include_str!("page.md");

/// True purposes with a column of their own, as the comparison names them.
const PURPOSES: [(&str, &str); 7] = [
    ("Parameter", "parameters, buffers"),
    ("Gradient", "gradients"),
    ("OptimizerState", "optimizer state"),
    ("Saved", "saved for backward"),
    ("Given", "inputs"),
    ("Cached", "KV cache"),
    ("NoTensor", "no tensor"),
];

pub fn render(results: &Results, committed: &CommittedObject) -> String {
    let page = TEMPLATE
        .replace("{circumstances}\n", &circumstances(results, committed))
        .replace("{shares}\n", &shares(&results.rows))
        .replace("{purposes}\n", &purposes(&results.rows));
    wrapped(&page)
}

fn circumstances(results: &Results, committed: &CommittedObject) -> String {
    let pythons = results.pythons.iter();
    let pythons = pythons
        .filter(|(torch, _)| results.rows.iter().any(|row| &row.torch == *torch))
        .map(|(torch, python)| format!("PyTorch {torch} on Python {python}"));
    let Results {
        date,
        kernel,
        memprobe,
        ebpf_object,
        ..
    } = results;
    format!(
        "Date: {date}. Kernel: {kernel}. {}, on the simulated CUDA. memprobe {memprobe}, eBPF object {ebpf_object}{}.\n{}\n",
        pythons.collect::<Vec<_>>().join(", "),
        committed.mark(Some(ebpf_object)),
        committed.note([Some(ebpf_object.as_str())].into_iter())
    )
}

/// Bytes of all tensors, in percent.
fn shares(rows: &[Row]) -> String {
    let mut table =
        "| workload | PyTorch | right | unknown | wrong | late: right | unknown | wrong |\n\
                     |---|---|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for row in rows {
        let of =
            |shares: Option<&Shares>| match shares.and_then(|shares| percent(shares, "Tensors")) {
                Some(percent) => percent.map(|share| format!("{share:.1} %")).join(" | "),
                None => "– | – | –".to_owned(),
            };
        let (start, late) = (of(Some(&row.from_start)), of(row.late.as_ref()));
        line(
            &mut table,
            format!("| {} | {} | {start} | {late} |", title(row), row.torch),
        );
    }
    table
}

/// Right bytes of each purpose, in percent: from the start, and late.
fn purposes(rows: &[Row]) -> String {
    let heads = PURPOSES.map(|(_, head)| head).join(" | ");
    let rules = "---:|".repeat(PURPOSES.len());
    let mut table = format!("| workload | PyTorch | {heads} |\n|---|---|{rules}\n");
    for row in rows {
        let cells = PURPOSES.map(|(purpose, _)| {
            let right = |shares: Option<&Shares>| {
                let percent = percent(shares?, purpose)?;
                Some(format!("{:.1}", percent[0]))
            };
            match (right(Some(&row.from_start)), right(row.late.as_ref())) {
                (None, None) => String::new(),
                (start, late) => [start, late]
                    .map(|share| share.unwrap_or_else(|| "–".to_owned()))
                    .join(" / "),
            }
        });
        line(
            &mut table,
            format!("| {} | {} | {} |", title(row), row.torch, cells.join(" | ")),
        );
    }
    table
}

fn title(row: &Row) -> String {
    let script = row.script.strip_prefix("--profile ").unwrap_or(&row.script);
    let options = match row.options.as_str() {
        "" => String::new(),
        options => format!(", `{options}`"),
    };
    format!("{} (`{script}`){options}", row.workload)
}

fn percent(shares: &Shares, purpose: &str) -> Option<[f64; 3]> {
    let bytes = shares.get(purpose)?;
    let all: u64 = bytes.iter().sum();
    (all > 0).then(|| bytes.map(|bytes| 100.0 * bytes as f64 / all as f64))
}

fn line(table: &mut String, text: String) {
    writeln!(table, "{text}").expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_their_own_sum_and_a_missing_late_one_is_a_dash() {
        let shares: Shares = [
            ("Tensors".to_owned(), [3, 1, 0]),
            ("Given".to_owned(), [1, 0, 1]),
        ]
        .into();
        let row = Row {
            workload: "server".to_owned(),
            script: "--profile serve.py".to_owned(),
            options: "--detail lines".to_owned(),
            torch: "2.6.0".to_owned(),
            from_start: shares,
            late: None,
        };
        let title = "| server (`serve.py`), `--detail lines` | 2.6.0 |";
        let rows = [row];
        let expected = format!("{title} 75.0 % | 25.0 % | 0.0 % | – | – | – |\n");
        assert!(super::shares(&rows).ends_with(&expected));
        let expected = format!("{title}  |  |  |  | 50.0 / – |  |  |\n");
        assert!(purposes(&rows).ends_with(&expected), "{}", purposes(&rows));
    }
}
