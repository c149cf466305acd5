//! Results per kernel, for people and for the repository. The rows are stored as JSON beside the
//! page, so that a single kernel can be tested again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::catalog::{Expected, KERNELS, Kernel};
use super::script::GuestOutput;
use crate::markdown::wrapped;
use crate::pages::CommittedObject;

/// Result of one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Name in the list of kernels.
    pub kernel: String,
    /// Output of `uname -r`.
    pub release: String,
    /// Version of its package.
    pub version: String,
    /// Deviations from the expected behaviour.
    pub complaints: Vec<String>,
    /// Output of `doctor` about loading the eBPF programs.
    pub programs: Option<String>,
    /// Instructions that the kernel's verifier processed for the longest program.
    #[serde(default)]
    pub followed: Option<u32>,
    /// Names of the tests that passed.
    pub tests: Vec<String>,
    /// Events, and their stacks, that matched PyTorch's own recorder.
    pub events: u64,
    pub stacks: u64,
    /// Accelerator that ran the guest: `KVM` or `qemu`.
    pub by: String,
    /// Date of the run.
    pub date: String,
    /// First digits of the hashes of memprobe and of its eBPF object; early rows have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memprobe: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

impl Row {
    /// Builds a row from a guest's output.
    pub fn of(
        kernel: &Kernel,
        version: &str,
        output: &GuestOutput,
        complaints: Vec<String>,
    ) -> Self {
        let mut tests: Vec<String> = output
            .programs
            .iter()
            .flat_map(|ran| ran.tests.clone())
            .collect();
        tests.sort_unstable();
        Self {
            kernel: kernel.name.to_owned(),
            release: output.release.clone(),
            version: version.to_owned(),
            complaints,
            programs: output.programs.iter().find_map(|ran| ran.programs.clone()),
            followed: output.programs.iter().find_map(|ran| ran.followed),
            tests,
            events: output.programs.iter().map(|ran| ran.events).sum(),
            stacks: output.programs.iter().map(|ran| ran.stacks).sum(),
            by: String::new(),
            date: String::new(),
            memprobe: None,
            object: None,
        }
    }

    /// True if memprobe behaved as expected on this kernel.
    pub fn is_good(&self) -> bool {
        self.complaints.is_empty()
    }

    fn cells(&self, kernel: &Kernel, committed: &CommittedObject) -> [String; COLUMNS.len()] {
        let result = match (self.is_good(), kernel.expected) {
            (true, Expected::Works) => "works".to_owned(),
            (true, Expected::Refused) => "refused with words".to_owned(),
            (false, _) => format!("**{}**", self.complaints.join("; ")),
        };
        let or_nothing = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let compared = format!("{} events, {} stacks", self.events, self.stacks);
        [
            or_nothing(Some(self.release.clone()).filter(|release| !release.is_empty())),
            format!("{}: {}", kernel.origin(), kernel.reason),
            self.version.clone(),
            result,
            or_nothing(self.programs.clone()),
            or_nothing(self.followed.map(|followed| followed.to_string())),
            or_nothing((self.events > 0).then_some(compared)),
            self.tests.len().to_string(),
            format!(
                "{}, {}{}",
                self.date,
                self.by,
                committed.mark(self.object.as_deref())
            ),
        ]
    }
}

const COLUMNS: [&str; 9] = [
    "kernel",
    "of",
    "package",
    "memprobe",
    "doctor there",
    "instructions followed",
    "compared with PyTorch's recorder, none differing",
    "tests passed",
    "tried",
];

/// Formats the rows as a Markdown table.
pub fn table(rows: &[Row], committed: &CommittedObject) -> String {
    let mut text = format!(
        "| {} |\n|{}\n",
        COLUMNS.join(" | "),
        "---|".repeat(COLUMNS.len())
    );
    for row in rows {
        if let Some(kernel) = Kernel::named(&row.kernel) {
            text += &format!("| {} |\n", row.cells(kernel, committed).join(" | "));
        }
    }
    text
}

/// Merges rows into `kernels.json` of a folder and rewrites its `kernels.md`.
pub fn keep(rows: &[Row], folder: &Path, committed: &CommittedObject) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let data = folder.join("kernels.json");
    let earlier: Vec<Row> = match fs::read(&data) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .with_context(|| format!("{} cannot be read", data.display()))?,
        Err(_) => Vec::new(),
    };
    let mut all: BTreeMap<String, Row> = BTreeMap::new();
    for row in earlier.iter().chain(rows) {
        all.insert(row.kernel.clone(), row.clone());
    }
    let all: Vec<Row> = KERNELS
        .iter()
        .filter_map(|kernel| all.remove(kernel.name))
        .collect();
    fs::write(&data, serde_json::to_string_pretty(&all)? + "\n")?;
    fs::write(folder.join("kernels.md"), page(&all, committed))?;
    Ok(())
}

/// Formats the repository's page.
pub fn page(rows: &[Row], committed: &CommittedObject) -> String {
    let mut tests: BTreeMap<&str, usize> = BTreeMap::new();
    for test in rows.iter().flat_map(|row| &row.tests) {
        *tests.entry(test).or_default() += 1;
    }
    let tests: String = tests
        .iter()
        .map(|(test, kernels)| format!("* {} ({kernels})\n", test.replace('_', " ")))
        .collect();
    wrapped(&format!(
        "# Kernels\n\n\
         Results of memprobe on the kernels of distributions, each booted in a virtual machine with unmodified\n\
         PyTorch on simulated CUDA. `cargo xtask kernels` writes this page;\n\
         [catalog.rs](../xtask/src/kernels/catalog.rs) lists the kernels and the tests.\n\n\
         Loading takes longer under \"qemu\", which translates the guest's code, than under KVM.\n\
         \"Instructions followed\" counts those of the longest program, as `memprobe doctor` shows; a verifier gives up at\n\
         1,000,000. Linux 5.15 does not report the number.\n\n\
         {}\n\n\
         {}\n\
         The tests that passed, all of the suite that CI runs on its own kernel too, with the number of kernels:\n\n{tests}",
        committed.note(rows.iter().map(|row| row.object.as_deref())),
        table(rows, committed)
    ))
}

#[cfg(test)]
mod tests {
    use super::super::script::Ran;
    use super::*;

    fn committed() -> CommittedObject {
        CommittedObject::named("0b1ec7")
    }

    fn row(kernel: &Kernel, complaints: &[&str]) -> Row {
        let output = GuestOutput {
            release: "6.1.0-9-amd64".to_owned(),
            programs: vec![Ran {
                tests: vec!["every_event_agrees".to_owned()],
                events: 10,
                stacks: 5,
                ..Ran::default()
            }],
            over: true,
        };
        let complaints = complaints.iter().map(|&it| it.to_owned()).collect();
        Row::of(kernel, "6.1.9-1", &output, complaints)
    }

    #[test]
    fn a_row_says_what_memprobe_did() {
        let rows = [
            row(&KERNELS[0], &[]),
            row(&KERNELS[3], &[]),
            row(&KERNELS[3], &["robustness did not end"]),
        ];
        let text = table(&rows, &committed());
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert!(rows[0].contains("| refused with words |"), "{text}");
        assert!(
            rows[1].contains("| works | - | - | 10 events, 5 stacks | 1 |"),
            "{text}"
        );
        assert!(rows[2].contains("| **robustness did not end** |"), "{text}");
    }

    #[test]
    fn a_kernel_that_is_tried_again_gets_a_new_row_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        keep(
            &[row(&KERNELS[3], &["bad"]), row(&KERNELS[0], &[])],
            folder.path(),
            &committed(),
        )
        .unwrap();
        let again = Row {
            object: Some("0b1ec7".to_owned()),
            ..row(&KERNELS[3], &[])
        };
        keep(&[again], folder.path(), &committed()).unwrap();
        let page = fs::read_to_string(folder.path().join("kernels.md")).unwrap();
        assert!(!page.contains("bad"), "{page}");
        assert_eq!(page.matches("6.1.9-1").count(), 2, "{page}");
        assert!(page.contains("* every event agrees (2)"), "{page}");
        assert!(page.contains("0b1ec7, that of 1 of 2."), "{page}");
    }
}
