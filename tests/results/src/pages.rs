//! Pages of `memprobe explain`: the text that stays from run to run, and the facts that its JSON has too.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use memprobe::event::Bytes;
use memprobe::event::bytes::human;
use memprobe::report::DocumentFormat;
use serde_json::Value;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::PATIENT;
use memprobe_tests::process::Background;

/// Owners of memory that a page shows one by one, and measures.
const SHOWN_OWNERS: usize = 4;
const SHOWN_MEASURES: usize = 3;

/// Page of `explain` about a process.
pub struct ExplainedPage {
    pub pid: u32,
    pub text: String,
}

/// Explains a process on the simulated driver of a folder.
pub fn explain(
    environment: &TestEnvironment,
    shared: &Path,
    pid: u32,
    format: DocumentFormat,
) -> String {
    let mut command = environment.memprobe();
    command.env("CUDASIM_SHARED", shared);
    if let Some(folder) = environment.pytorch().simulated_libraries() {
        command.env("LD_LIBRARY_PATH", folder);
    }
    set_driver(&mut command);
    command.args(["explain", &pid.to_string()]).args(PATIENT);
    let format = match format {
        DocumentFormat::Text => "text",
        DocumentFormat::Json => "json",
    };
    command.args(["--duration", "1s", "--format", format]);
    Background::start(&mut command).finish().succeeded().stdout
}

impl ExplainedPage {
    pub fn of(environment: &TestEnvironment, shared: &Path, pid: u32) -> Self {
        let text = explain(environment, shared, pid, DocumentFormat::Text);
        Self { pid, text }
    }

    /// The page without what differs from run to run, of a process that rests.
    pub fn golden(&self) -> String {
        let mut page = String::new();
        for line in self.text.lines() {
            let line = match line.split_whitespace().next() {
                Some("PID") => "PID …".to_owned(),
                Some("watched") => "watched for …; …".to_owned(),
                Some("next:") => line.replace(&self.pid.to_string(), "PID"),
                _ => without_folders(line),
            };
            let _ = writeln!(page, "{}", line.trim_end());
        }
        page
    }

    /// The page without what differs from moment to moment, of a program that runs on: figures, the bar, and all rows of
    /// tables but those with one of these names.
    pub fn golden_of_running(&self, names: &[&str]) -> String {
        let golden = self.golden();
        let (before, after) = golden.split_once("\n[").expect("a bar");
        let (_, after) = after.split_once('\n').expect("rows");
        // Sentences break at other words from run to run.
        let mut page = without_figures(&before.trim_end().replace("\n  ", " "));
        page.push_str("\n\n");
        let is_figure = |word: &str| {
            let number = word.trim_start_matches(['+', '<', '=']);
            number.starts_with(|first: char| first.is_ascii_digit())
        };
        for line in after.lines() {
            // On a busy machine too little happens to tell.
            let line = match line.starts_with("GROWS  ") {
                true => "GROWS  …",
                false => line,
            };
            let words: Vec<&str> = line.split_whitespace().collect();
            let is_row = line.starts_with(' ') && words.iter().take(2).any(|word| is_figure(word));
            if !is_row || names.iter().any(|name| line.contains(name)) {
                let _ = writeln!(page, "{}", without_figures(&words.join(" ")));
            }
        }
        page
    }

    /// Checks that the page has the facts of the JSON, in words. The process must rest between both.
    ///
    /// # Panics
    ///
    /// If one is missing, or the parts of the GPU do not add up to its memory.
    pub fn assert_same_facts(&self, document: &str) {
        let page = &self.text;
        let document: Value = serde_json::from_str(document).expect("JSON");
        let text = document["verdict"]["text"].as_str().expect("a verdict");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(page).contains(&words(text)), "{text}\n{page}");
        assert!(page.lines().count() <= 40, "{page}");
        let device = &document["devices"][0];
        let rows = |key: &str| device[key].as_array().expect("rows").clone();
        let bytes = |row: &Value| row["bytes"].as_u64().expect("bytes");
        let sum: u64 = rows("parts").iter().map(bytes).sum();
        assert_eq!(device["gpu_total"].as_u64(), Some(sum), "{device}");
        let live = device["allocated"].as_u64().expect("bytes");
        let owned: u64 = rows("owners").iter().map(bytes).sum();
        assert_eq!(owned, live, "{device}");
        let shown = rows("owners").into_iter().take(SHOWN_OWNERS);
        let measures = rows("measures").into_iter().take(SHOWN_MEASURES);
        for row in rows("parts").into_iter().chain(shown).chain(measures) {
            let figure = human(Bytes(bytes(&row)));
            // A long name is cut.
            let name = ["name", "action"].iter().find_map(|key| row[*key].as_str());
            let name: String = name.unwrap_or_default().chars().take(40).collect();
            let is_row = |line: &str| line.contains(&figure) && line.contains(&name);
            assert!(page.lines().any(is_row), "{row}\n{page}");
        }
        for next in document["next"].as_array().expect("commands") {
            let next = next.as_str().expect("a command");
            assert!(page.contains(&format!("next: {next}   ")), "{next}\n{page}");
        }
    }
}

/// Verdict and next commands of a document, without figures.
pub fn running_verdict(document: &Value) -> String {
    let text = document["verdict"]["text"].as_str().expect("a verdict");
    let pid = document["pid"].to_string();
    let next = document["next"].as_array().expect("commands").iter();
    let next = next.map(|next| next.as_str().expect("a command").replace(&pid, "PID"));
    let lines: Vec<String> = std::iter::once(without_figures(text)).chain(next).collect();
    lines.join("\n")
}

/// Text whose figures with a unit are dots, and the lines on which functions stand.
fn without_figures(text: &str) -> String {
    const UNITS: [&str; 8] = ["B", "KiB", "MiB", "GiB", "ms", "s", "min", "h"];
    const DURATIONS: [&str; 4] = ["ms", "s", "min", "h"];
    let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    for at in 0..words.len() {
        let next = words.get(at + 1).cloned().unwrap_or_default();
        let unit = next.trim_end_matches(['.', ',', ')', ';']);
        let word = &words[at];
        // The line on which a function stands.
        if let Some((file, _)) = word.split_once(".py:").filter(|_| next.ends_with("()")) {
            words[at] = format!("{file}.py:…");
            continue;
        }
        let number = word.trim_matches(|c: char| !c.is_ascii_digit());
        let is_number = number.parse::<f64>().is_ok();
        if is_number && (UNITS.contains(&unit) || word.contains('%')) {
            words[at] = word.replace(number, "…");
            if DURATIONS.contains(&unit) {
                words[at + 1] = next.replace(unit, "…");
            }
        }
    }
    words.join(" ")
}

/// Gives a program a GPU of 24 GiB, whose context takes 417 MiB.
pub fn set_driver(command: &mut Command) {
    command
        .env("CUDASIM_DEVICES", "1")
        .env("CUDASIM_MEMORY", "24g")
        .env("CUDASIM_CTX_BYTES", (417_u64 << 20).to_string());
}

/// Paths of temporary files in the command.
fn without_folders(line: &str) -> String {
    let words = line.split(' ');
    let words = words.map(|word| if word.starts_with('/') { "…" } else { word });
    words.collect::<Vec<_>>().join(" ")
}
