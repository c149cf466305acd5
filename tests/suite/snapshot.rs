//! What `memprobe snapshot` says, as JSON.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::ground::Ground;
use crate::process::Finished;

/// A whole snapshot.
#[derive(Debug, Deserialize)]
pub struct Snapshot {
    /// A row for each tensor, and for each block or storage without one.
    pub tensors: Vec<Row>,
    /// What the rows come to.
    pub totals: Value,
    /// Everything, for what only some tests look at.
    #[serde(skip)]
    pub all: Value,
}

/// A tensor, or memory without one.
#[derive(Debug, Deserialize, Clone)]
pub struct Row {
    /// The best name.
    pub name: Option<String>,
    /// All of them.
    pub names: Vec<Named>,
    /// `parameter`, `buffer`, `gradient`, `optimizer_state`, `saved`, `tensor` or `block`.
    pub kind: String,
    /// `None` for memory without a tensor.
    pub shape: Option<Vec<u64>>,
    /// Without `torch.`.
    pub dtype: Option<String>,
    /// As PyTorch writes it.
    pub device: String,
    /// Of its elements.
    pub bytes: Option<u64>,
    /// Of the allocator's bytes, those that it answers for.
    pub holds: u64,
    /// The address of its data.
    pub storage: Option<u64>,
    /// `untyped_storage().nbytes()`.
    pub storage_bytes: Option<u64>,
    /// `requires_grad`; `None` for memory without a tensor.
    pub requires_grad: Option<bool>,
    /// `grad_fn.name()`.
    pub grad_fn: Option<String>,
    /// The operation that keeps it for the backward pass.
    #[serde(default)]
    pub saved_by: Option<String>,
    /// The path of its module.
    pub module: Option<String>,
    /// The name of its Python type.
    #[serde(default)]
    pub class: Option<String>,
    /// The address of the `TensorImpl`; `None` for memory without a tensor.
    #[serde(default)]
    pub object: Option<u64>,
}

/// A name.
#[derive(Debug, Deserialize, Clone)]
#[serde(untagged)]
pub enum Named {
    /// That follows references alone.
    Plain(String),
    /// With the rule that inferred it.
    Ruled {
        /// The name.
        name: String,
        /// The rule.
        #[serde(default)]
        inferred: Option<String>,
    },
}

impl Named {
    /// The name itself.
    pub fn text(&self) -> &str {
        match self {
            Self::Plain(name) | Self::Ruled { name, .. } => name,
        }
    }
}

impl Row {
    /// Whether it is memory without a tensor.
    pub fn is_block(&self) -> bool {
        self.kind == "block"
    }

    /// Its names.
    pub fn texts(&self) -> Vec<&str> {
        self.names.iter().map(Named::text).collect()
    }
}

impl Snapshot {
    /// Of the JSON that `memprobe snapshot` prints.
    ///
    /// # Panics
    ///
    /// Where it is something else.
    pub fn parse(json: &str) -> Self {
        let all: Value =
            serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
        let snapshot: Self =
            serde_json::from_value(all.clone()).unwrap_or_else(|error| panic!("{error}: {json}"));
        Self { all, ..snapshot }
    }

    /// The rows of a device.
    pub fn on<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a Row> {
        self.tensors.iter().filter(move |row| row.device == device)
    }

    /// What all rows of a device answer for.
    pub fn holds(&self, device: &str) -> u64 {
        self.on(device).map(|row| row.holds).sum()
    }
}

impl Ground {
    /// Runs `memprobe snapshot` on a process, however that ends.
    pub fn try_snapshot(&self, pid: u32, options: &[&str]) -> Finished {
        let pid = pid.to_string();
        let words = ["snapshot", "--pid", &pid];
        self.run(&[&words[..], options].concat())
    }

    /// A snapshot of a process.
    pub fn snapshot(&self, pid: u32, options: &[&str]) -> Snapshot {
        let options = [&["--format", "json"], options].concat();
        let printed = self.try_snapshot(pid, &options).succeeded();
        Snapshot::parse(&printed.stdout)
    }

    /// A snapshot that is kept in a file.
    pub fn keep_snapshot(&self, pid: u32, file: &Path) {
        let file = file.to_str().expect("UTF-8");
        self.try_snapshot(pid, &["-o", file]).succeeded();
    }
}
