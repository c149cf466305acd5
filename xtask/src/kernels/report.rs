//! What came out, for people and for the repository.

use std::time::Duration;

use super::catalog::{Expected, Kernel};
use super::guest::Accelerator;
use super::image::Image;
use super::script::Told;

/// What became of a kernel.
pub struct Outcome {
    pub kernel: &'static Kernel,
    pub image: Image,
    pub told: Told,
    /// From the start of the guest to its end.
    pub took: Duration,
    /// What went against the expectation.
    pub complaints: Vec<String>,
}

impl Outcome {
    /// Whether memprobe did what is expected of it there.
    pub fn is_good(&self) -> bool {
        self.complaints.is_empty()
    }

    fn cells(&self) -> [String; 6] {
        let release = if self.told.release.is_empty() {
            "did not start".to_owned()
        } else {
            self.told.release.clone()
        };
        let passed: usize = self.told.programs.iter().map(|ran| ran.passed).sum();
        let events: u64 = self.told.programs.iter().map(|ran| ran.events).sum();
        let stacks: u64 = self.told.programs.iter().map(|ran| ran.stacks).sum();
        let result = match (self.is_good(), self.kernel.expected) {
            (true, Expected::Works) => "works".to_owned(),
            (true, Expected::Refused) => "refused with words".to_owned(),
            (false, _) => format!("**{}**", self.complaints.join("; ")),
        };
        let compared = match events {
            0 => "-".to_owned(),
            _ => format!("{events} events, {stacks} stacks"),
        };
        [
            release,
            format!("{} ({})", self.kernel.why, self.image.version),
            result,
            passed.to_string(),
            compared,
            format!("{} s", self.took.as_secs()),
        ]
    }
}

/// The table, in Markdown.
pub fn table(outcomes: &[Outcome]) -> String {
    let head = [
        "kernel",
        "of",
        "memprobe",
        "tests passed",
        "compared with PyTorch's recorder, none differing",
        "took",
    ];
    let rows: Vec<[String; 6]> = outcomes.iter().map(Outcome::cells).collect();
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        text += &format!("| {} |\n", row.join(" | "));
    }
    text
}

/// The page of the repository.
pub fn page(outcomes: &[Outcome], accelerator: &Accelerator, versions: &str, date: &str) -> String {
    let by = match accelerator {
        Accelerator::Kvm => "KVM",
        Accelerator::Tcg { .. } => "qemu's translation (no KVM)",
    };
    format!(
        "# Kernels\n\n\
         What memprobe does on the kernels of distributions, each booted in a virtual machine: {date}, {versions}, {by}.\n\
         `cargo xtask kernels` runs it all and writes this page; [catalog.rs](../xtask/src/kernels/catalog.rs) has the kernels \
         and the tests.\n\n\
         {}\n\
         On each kernel real training runs, unmodified PyTorch on the simulated CUDA, is recorded by memprobe and by PyTorch itself, and every \
         event, size, frame and total is compared; memprobe is killed while it records, attached twice at once, given too little room, and \
         attached twenty times at random moments.\n",
        table(outcomes)
    )
}

#[cfg(test)]
mod tests {
    use super::super::catalog::KERNELS;
    use super::super::script::Ran;
    use super::*;

    fn outcome(kernel: &'static Kernel, complaints: &[&str]) -> Outcome {
        Outcome {
            kernel,
            image: serde_json::from_str(r#"{"package":"p","version":"6.1.9-1","modules":[]}"#)
                .unwrap(),
            told: Told {
                release: "6.1.0-9-amd64".to_owned(),
                programs: vec![Ran {
                    passed: 4,
                    events: 10,
                    stacks: 5,
                    ..Ran::default()
                }],
                over: true,
            },
            took: Duration::from_secs(3),
            complaints: complaints.iter().map(|&it| it.to_owned()).collect(),
        }
    }

    #[test]
    fn a_row_says_what_memprobe_did() {
        let text = table(&[
            outcome(&KERNELS[0], &[]),
            outcome(&KERNELS[3], &[]),
            outcome(&KERNELS[3], &["robustness did not end"]),
        ]);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert!(rows[0].contains("| refused with words | 4 |"), "{text}");
        assert!(
            rows[1].contains("| works | 4 | 10 events, 5 stacks |"),
            "{text}"
        );
        assert!(rows[2].contains("| **robustness did not end** |"), "{text}");
    }
}
