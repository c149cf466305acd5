//! What `memprobe snapshot` says, as JSON.

use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::ground::Ground;
use crate::process::Finished;

/// A whole snapshot.
#[derive(Debug, Deserialize)]
pub struct Snapshot {
    /// A row for each tensor, and for each block or storage without one.
    pub tensors: Vec<Row>,
    /// What the rows of each device come to.
    pub totals: Vec<Totals>,
    /// How long the process stood still; `None` where it ran on.
    pub pause_ms: Option<f64>,
    /// Python objects that were looked at.
    pub objects: u64,
    /// What could not be read.
    pub unread: Vec<String>,
}

/// The account of a device.
#[derive(Debug, Deserialize)]
pub struct Totals {
    /// As PyTorch writes it.
    pub device: String,
    /// The allocator's own total; `None` where there is none.
    pub allocated: Option<u64>,
    /// What of it no row answers for.
    pub remainder: Option<i64>,
    /// Why there is a remainder.
    pub reason: Option<String>,
}

/// A tensor, or memory without one.
#[derive(Debug, Deserialize, Clone)]
pub struct Row {
    /// The best name.
    pub name: Option<String>,
    /// All of them.
    pub names: Vec<String>,
    /// For each name the rule that inferred it; empty where all follow references alone.
    #[serde(default)]
    pub inferred: Vec<Option<String>>,
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
    #[serde(deserialize_with = "address")]
    pub storage: Option<u64>,
    /// `untyped_storage().nbytes()`.
    pub storage_bytes: Option<u64>,
    /// `requires_grad`.
    pub requires_grad: bool,
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
    #[serde(default, deserialize_with = "address")]
    pub object: Option<u64>,
}

/// An address as files have it, such as `0x7f00`.
fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text: Option<String> = Option::deserialize(from)?;
    let number = |text: String| {
        let digits = text.strip_prefix("0x").unwrap_or_default();
        u64::from_str_radix(digits, 16).map_err(|_| D::Error::custom(format!("no address: {text}")))
    };
    text.map(number).transpose()
}

impl Row {
    /// Whether it is memory without a tensor.
    pub fn is_block(&self) -> bool {
        self.kind == "block"
    }

    /// Its names.
    pub fn texts(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }
}

impl Snapshot {
    /// Of the JSON that `memprobe snapshot` prints.
    ///
    /// # Panics
    ///
    /// Where it is something else.
    pub fn parse(json: &str) -> Self {
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
    }

    /// The rows of a device.
    pub fn on<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a Row> {
        self.tensors.iter().filter(move |row| row.device == device)
    }

    /// The account of a device.
    ///
    /// # Panics
    ///
    /// Where there is none.
    pub fn totals_of(&self, device: &str) -> &Totals {
        let totals = self.totals.iter().find(|totals| totals.device == device);
        totals.unwrap_or_else(|| panic!("{device} is not there: {:?}", self.totals))
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
