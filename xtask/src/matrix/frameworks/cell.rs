//! Result of one program of a framework.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::matrix::cell::Answer;
use crate::matrix::store::Stored;

/// Result of one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Place in the list of programs.
    pub order: Option<usize>,
    /// Name of the program.
    pub program: String,
    /// Version of PyTorch.
    pub torch: String,
    /// Date of the run (UTC), such as `2026-11-23`.
    pub date: String,
    /// Kernel, such as `Linux 6.18.44`.
    pub kernel: String,
    /// Identifies the build of memprobe and of the comparison.
    pub build: String,
    /// First digits of the eBPF object's hash; early cells have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    #[serde(flatten)]
    pub result: Outcome,
}

/// Outcome of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum Outcome {
    /// The program ran, and was compared.
    Ran(Box<Comparison>),
    /// The program did not run.
    Failed {
        /// Error message.
        words: String,
    },
}

/// Comparison of a program's processes with their own accounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// Versions of the frameworks.
    pub packages: BTreeMap<String, String>,
    /// Full version of Python.
    pub python: String,
    pub processes: u64,
    pub events: Compared,
    pub stacks: u64,
    pub backward: u64,
    /// Points at which the allocator's totals were compared.
    pub checkpoints: u64,
    pub modules: Option<Compared>,
    /// Tensors of a snapshot.
    pub tensors: Option<Compared>,
    /// Names of these.
    pub names: u64,
    pub iterations: Option<Compared>,
}

/// Comparison of one kind of facts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    pub compared: u64,
    /// Facts that memprobe gives as unknown.
    pub unknown: u64,
    pub differing: u64,
    /// The first difference.
    pub first: Option<String>,
}

impl Comparison {
    /// Returns each kind of facts that was compared.
    pub fn parts(&self) -> impl Iterator<Item = &Compared> {
        let optional = [&self.modules, &self.tensors, &self.iterations];
        std::iter::once(&self.events).chain(optional.into_iter().flatten())
    }
}

impl Cell {
    /// True if the program ran and nothing differs.
    pub fn is_exact(&self) -> bool {
        match &self.result {
            Outcome::Ran(comparison) => comparison.parts().all(|part| part.differing == 0),
            Outcome::Failed { .. } => false,
        }
    }

    /// Formats the result for the terminal.
    pub fn in_a_line(&self) -> String {
        match &self.result {
            Outcome::Failed { words } => format!("FAILED: {words}"),
            Outcome::Ran(ran) => {
                let firsts = ran.parts().filter_map(|part| part.first.as_deref());
                let differing: Vec<&str> = firsts.collect();
                let events = ran.events.compared;
                match differing.is_empty() {
                    true => format!("exact: {events} events, {} stacks", ran.stacks),
                    false => format!("DIFFERS: {}", differing.join("\n    ")),
                }
            }
        }
    }
}

impl Answer for Outcome {
    fn failed(words: &str) -> Self {
        Self::Failed {
            words: words.to_owned(),
        }
    }

    fn change_words(&mut self, mut change: impl FnMut(&mut String)) {
        match self {
            Self::Failed { words } => change(words),
            Self::Ran(ran) => {
                let optional = [&mut ran.modules, &mut ran.tensors, &mut ran.iterations];
                let parts = std::iter::once(&mut ran.events).chain(optional.into_iter().flatten());
                parts
                    .filter_map(|part| part.first.as_mut())
                    .for_each(change);
            }
        }
    }
}

impl Stored for Cell {
    type Order = Option<usize>;

    fn order(&self) -> Self::Order {
        self.order
    }

    fn is_same(&self, other: &Self) -> bool {
        self.program == other.program
    }

    fn is_done(&self, build: &str) -> bool {
        self.build == build && self.is_exact()
    }
}
