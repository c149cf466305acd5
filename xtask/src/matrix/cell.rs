//! One cell of the matrix: a workload on one PyTorch and Python.

use std::path::Path;
use std::process::Command;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::store::Stored;
use crate::pytorch::RELEASES;

/// Result of one cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Version of PyTorch.
    pub torch: String,
    /// Minor version of Python, such as `3.11`.
    pub python: String,
    /// Name of the workload.
    pub workload: String,
    /// Full version of Python.
    pub python_version: String,
    /// Date of the run (UTC), such as `2026-11-21`.
    pub date: String,
    /// Kernel, such as `Linux 6.18.44`.
    pub kernel: String,
    /// Identifies the build of memprobe and of the comparison.
    pub build: String,
    /// First digits of the eBPF object's hash; early cells have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Cell {
    /// True for the result of this workload on this pair.
    pub fn is_of(&self, python: &str, torch: &str, workload: &str) -> bool {
        (&*self.python, &*self.torch, &*self.workload) == (python, torch, workload)
    }
}

impl Stored for Cell {
    type Order = (Option<usize>, Option<u8>);

    fn order(&self) -> Self::Order {
        let release = RELEASES
            .iter()
            .position(|release| release.torch == self.torch);
        let minor = self.python.strip_prefix("3.");
        (release, minor.and_then(|text| text.parse().ok()))
    }

    fn is_same(&self, other: &Self) -> bool {
        self.is_of(&other.python, &other.torch, &other.workload)
    }

    fn is_done(&self, build: &str) -> bool {
        self.build == build && !self.outcome.is_bad()
    }
}

/// Outcome of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum Outcome {
    /// Every event, frame and total matches PyTorch's own history.
    Exact {
        /// Compared events.
        events: u64,
        /// Events that were only replayed, to the moment of a comparison. Early cells of late attach
        /// counted them among `events`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counted: Option<u64>,
        /// Python stacks compared frame by frame.
        stacks: u64,
        /// Events on autograd's threads, attributed to the line that waits for them.
        backward: u64,
        /// Points at which the allocator's totals were compared.
        checkpoints: u64,
    },
    /// Memprobe reported that it does not support this version.
    Refused {
        /// Error message.
        words: String,
    },
    /// Memprobe's result differs from PyTorch's history.
    Differs {
        /// The first difference.
        words: String,
    },
    /// The comparison itself failed.
    Failed {
        /// Error message.
        words: String,
    },
}

/// Maximum characters of a stored message.
const MAX_WORDS: usize = 400;

impl Outcome {
    /// True if this outcome is a defect.
    pub fn is_bad(&self) -> bool {
        matches!(self, Self::Differs { .. } | Self::Failed { .. })
    }

    /// Formats the outcome for the terminal.
    pub fn in_a_line(&self) -> String {
        match self {
            Self::Exact {
                events,
                stacks,
                backward,
                checkpoints,
                ..
            } => format!(
                "exact: {events} events, {stacks} stacks, {backward} of backward, {checkpoints} checkpoints"
            ),
            Self::Refused { words } => format!("refused: {words}"),
            Self::Differs { words } => format!("DIFFERS: {words}"),
            Self::Failed { words } => format!("FAILED: {words}"),
        }
    }
}

/// Answer of the program that runs a cell.
pub trait Answer: DeserializeOwned {
    /// Returns the outcome of a failed comparison.
    fn failed(words: &str) -> Self;

    /// Applies `change` to each message.
    fn change_words(&mut self, change: impl FnMut(&mut String));
}

impl Answer for Outcome {
    fn failed(words: &str) -> Self {
        Self::Failed {
            words: words.to_owned(),
        }
    }

    fn change_words(&mut self, mut change: impl FnMut(&mut String)) {
        match self {
            Self::Exact { .. } => {}
            Self::Refused { words } | Self::Differs { words } | Self::Failed { words } => {
                change(words);
            }
        }
    }
}

/// Removes the machine's paths and shortens the messages.
fn for_the_repository<A: Answer>(mut answer: A, environment: &str) -> A {
    answer.change_words(|words| {
        *words = words.replace(environment, "ENVIRONMENT");
        if let Some((end, _)) = words.char_indices().nth(MAX_WORDS) {
            words.truncate(end);
            words.push('…');
        }
    });
    answer
}

/// Runs a workload on the PyTorch of this interpreter.
pub fn attempt<A: Answer>(program: &Path, memprobe: &Path, python: &Path, workload: &[&str]) -> A {
    let output = Command::new(program)
        .args(workload)
        .env("MEMPROBE_TEST_PYTHON", python)
        .env_remove("MEMPROBE_TEST_EACH_PYTHON")
        .env("MEMPROBE_BIN", memprobe)
        .output();
    let outcome = match output {
        Ok(output) if output.status.success() => read(&String::from_utf8_lossy(&output.stdout)),
        Ok(output) => A::failed(&reason(&String::from_utf8_lossy(&output.stderr))),
        Err(error) => A::failed(&format!("cannot start {}: {error}", program.display())),
    };
    let environment = python.ancestors().nth(2).unwrap_or(python);
    for_the_repository(outcome, &environment.to_string_lossy())
}

fn read<A: Answer>(answer: &str) -> A {
    let line = answer.lines().last().unwrap_or_default();
    serde_json::from_str(line)
        .unwrap_or_else(|error| A::failed(&format!("answered {line:?}: {error}")))
}

/// Extracts a panic's message without its backtrace.
fn reason(stderr: &str) -> String {
    let end = stderr.find("stack backtrace:").unwrap_or(stderr.len());
    let said = stderr[..end].trim();
    let start = said.find("panicked at ").unwrap_or(0);
    said[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(outcome: &Outcome) -> &str {
        match outcome {
            Outcome::Exact { .. } => "",
            Outcome::Refused { words } | Outcome::Differs { words } | Outcome::Failed { words } => {
                words
            }
        }
    }

    #[test]
    fn an_answer_becomes_an_outcome() {
        let exact = r#"{"outcome":"exact","events":4,"stacks":3,"backward":2,"checkpoints":1,"python":"3.11.7"}"#;
        let outcome: Outcome = read(exact);
        assert!(
            matches!(outcome, Outcome::Exact { events: 4, .. }) && !outcome.is_bad(),
            "{outcome:?}"
        );
        let refused: Outcome =
            read("noise\n{\"outcome\":\"refused\",\"words\":\"memprobe: no\"}\n");
        assert_eq!(words_of(&refused), "memprobe: no");
        assert!(!refused.is_bad());
        assert!(read::<Outcome>("").is_bad());
    }

    #[test]
    fn a_panic_is_shown_without_its_trace() {
        let said =
            reason("noise\nthread 'main' panicked at a.rs:1:2:\nwrong\nstack backtrace:\n 0: x");
        assert_eq!(said, "panicked at a.rs:1:2:\nwrong");
    }

    #[test]
    fn notes_have_no_path_of_this_machine_and_an_end() {
        let outcome = Outcome::failed(&format!("/home/me/env/bin {}", "x".repeat(1000)));
        let outcome = for_the_repository(outcome, "/home/me/env");
        let words = words_of(&outcome);
        assert!(words.starts_with("ENVIRONMENT/bin x"), "{words}");
        assert!(words.chars().count() <= MAX_WORDS + 1);
    }
}
