//! JSON output of `memprobe snapshot`.

use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::environment::TestEnvironment;
use crate::memprobe::PATIENT;
use crate::process::Finished;

#[derive(Debug, Deserialize)]
pub struct Snapshot {
    /// One row per tensor, and per block or storage without one.
    pub tensors: Vec<Row>,
    /// Sums of each device.
    pub totals: Vec<Totals>,
    /// Duration of the pause; `None` if the process kept running.
    pub pause_ms: Option<f64>,
    /// Number of Python objects read.
    pub objects: u64,
    /// Parts of memory that could not be read.
    pub unread: Vec<String>,
}

/// Sums of one device.
#[derive(Debug, Deserialize)]
pub struct Totals {
    /// Device as PyTorch prints it.
    pub device: String,
    /// The allocator's own total; `None` without an allocator.
    pub allocated: Option<u64>,
    /// Bytes of the total that no row covers.
    pub remainder: Option<i64>,
    /// Reason for the remainder.
    pub reason: Option<String>,
}

/// A tensor, or memory without one.
#[derive(Debug, Deserialize, Clone)]
pub struct Row {
    /// The best name.
    pub name: Option<String>,
    /// All names.
    pub names: Vec<String>,
    /// Inference rule of each name; empty if all names follow from references alone.
    #[serde(default)]
    pub inferred: Vec<Option<String>>,
    /// `parameter`, `buffer`, `gradient`, `optimizer_state`, `saved`, `tensor` or `block`.
    pub kind: String,
    /// `None` for memory without a tensor.
    pub shape: Option<Vec<u64>>,
    /// Element type, without `torch.`.
    pub dtype: Option<String>,
    /// Device as PyTorch prints it.
    pub device: String,
    /// Bytes of its elements.
    pub bytes: Option<u64>,
    /// Bytes of the allocator that this row accounts for.
    pub allocated: u64,
    /// Address of its data.
    #[serde(deserialize_with = "address")]
    pub storage: Option<u64>,
    /// `untyped_storage().nbytes()`.
    pub storage_bytes: Option<u64>,
    /// `requires_grad`.
    pub requires_grad: bool,
    /// `grad_fn.name()`.
    pub grad_fn: Option<String>,
    /// Operation that saves it for the backward pass.
    #[serde(default)]
    pub saved_by: Option<String>,
    /// Path of its module.
    pub module: Option<String>,
    /// Root that keeps it alive.
    #[serde(default)]
    pub retained_by: Option<Retainer>,
    /// Name of its Python type.
    #[serde(default)]
    pub class: Option<String>,
    /// Address of the `TensorImpl`; `None` for memory without a tensor.
    #[serde(default, deserialize_with = "address")]
    pub object: Option<u64>,
}

/// Parses an address such as `0x7f00`.
fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text: Option<String> = Option::deserialize(from)?;
    let number = |text: String| {
        let digits = text.strip_prefix("0x").unwrap_or_default();
        u64::from_str_radix(digits, 16).map_err(|_| D::Error::custom(format!("no address: {text}")))
    };
    text.map(number).transpose()
}

impl Row {
    /// True for memory without a tensor.
    pub fn is_block(&self) -> bool {
        self.kind == "block"
    }

    pub fn texts(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }
}

/// The root that keeps memory alive.
#[derive(Debug, Deserialize, Clone)]
pub struct Retainer {
    /// A variable, or all slots of a container.
    pub root: String,
    /// True if no other retainer was found.
    pub exclusive: bool,
}

impl Snapshot {
    /// Parses the JSON output of `memprobe snapshot`.
    ///
    /// # Panics
    ///
    /// If it is something else.
    pub fn parse(json: &str) -> Self {
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
    }

    /// Returns the rows of a device.
    pub fn on<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a Row> {
        self.tensors.iter().filter(move |row| row.device == device)
    }

    /// Returns the sums of a device.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn totals_of(&self, device: &str) -> &Totals {
        let totals = self.totals.iter().find(|totals| totals.device == device);
        totals.unwrap_or_else(|| panic!("{device} is not there: {:?}", self.totals))
    }

    /// Returns the bytes that all rows of a device account for.
    pub fn holds(&self, device: &str) -> u64 {
        self.on(device).map(|row| row.allocated).sum()
    }
}

impl TestEnvironment {
    /// Runs `memprobe snapshot` on a process; it may fail.
    pub fn try_snapshot(&self, pid: u32, options: &[&str]) -> Finished {
        let pid = pid.to_string();
        let words = ["snapshot", "--pid", &pid];
        self.run(&[&words[..], options].concat())
    }

    /// Takes a snapshot of a process.
    pub fn snapshot(&self, pid: u32, options: &[&str]) -> Snapshot {
        let options = [&["--format", "json"], &PATIENT[..], options].concat();
        let printed = self.try_snapshot(pid, &options).succeeded();
        Snapshot::parse(&printed.stdout)
    }

    /// Saves a snapshot to a file.
    pub fn keep_snapshot(&self, pid: u32, file: &Path) {
        let file = file.to_str().expect("UTF-8");
        let options = [&["-o", file], &PATIENT[..]].concat();
        self.try_snapshot(pid, &options).succeeded();
    }
}
