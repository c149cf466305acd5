//! Workloads that stop at named points and report their own tensors there (see
//! `workloads/tensor_reference.py`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use tempfile::TempDir;

use crate::process::{Background, wait_until};
use crate::pytorch::PyTorch;

/// A workload with named points.
pub struct PausedWorkload {
    pub target: Background,
    folder: TempDir,
}

/// A workload's own account at a point.
#[derive(Debug, Deserialize)]
pub struct Truth {
    pub python: String,
    pub torch: String,
    /// One per device, by ordinal; empty if CUDA is not in use.
    pub devices: Vec<Allocator>,
    /// Tensors reachable from Python, and their gradients.
    pub tensors: Vec<Held>,
    /// Tensors saved by the graph.
    pub saved: Vec<Saved>,
    /// Tensors that other tensors are built on: the base of a view, the parts of a sparse tensor.
    pub within: Vec<Saved>,
    /// Number of graph nodes by name.
    pub nodes: BTreeMap<String, u64>,
    /// Expected names of tensors with these shapes; `*` stands for a line number.
    pub expected: Vec<(String, Vec<u64>)>,
}

/// Account of a device by the caching allocator itself.
#[derive(Debug, Deserialize)]
pub struct Allocator {
    /// Device ordinal.
    pub device: u8,
    /// `memory_allocated()`.
    pub allocated: u64,
    /// `memory_reserved()`.
    pub reserved: u64,
    /// Address, bytes and requested bytes of each live block.
    pub blocks: Vec<(u64, u64, u64)>,
}

/// A tensor reachable from Python.
#[derive(Debug, Deserialize)]
pub struct Held {
    /// Address of its `TensorImpl`.
    pub object: u64,
    /// True if it has a Python object.
    pub python: bool,
    /// Name of its type.
    pub class: String,
    /// `shape`; `None` for a nested tensor.
    pub shape: Option<Vec<u64>>,
    /// `dtype`, without `torch.`.
    pub dtype: String,
    /// `device`.
    pub device: String,
    /// `layout`, without `torch.`.
    pub layout: String,
    /// `numel() * element_size()`; for a sparse tensor, bytes of its indices and values.
    pub bytes: u64,
    /// `None` for a tensor without storage.
    pub storage: Option<StorageTruth>,
    /// `requires_grad`.
    pub requires_grad: bool,
    /// `grad_fn.name()`.
    pub grad_fn: Option<String>,
    /// True for a differentiable view.
    pub view: bool,
    /// Names as a parameter, from every root module.
    pub parameter: Vec<String>,
    /// Names as a buffer.
    pub buffer: Vec<String>,
    /// Optimizer, key and address of the parameter.
    pub state: Vec<(String, String, u64)>,
    /// Addresses of the tensors whose `.grad` it is.
    pub gradient_of: Vec<u64>,
}

#[derive(Debug, Deserialize, Clone, Copy, PartialEq, Eq)]
pub struct StorageTruth {
    /// Address of its `StorageImpl`.
    pub object: u64,
    /// `data_ptr()`.
    pub data: u64,
    /// `nbytes()`.
    pub bytes: u64,
}

/// A tensor that a graph node or another tensor refers to.
#[derive(Debug, Deserialize)]
pub struct Saved {
    /// Name of the node, or class of the tensor.
    pub op: String,
    /// Attribute of the node or tensor.
    pub attribute: String,
    /// `shape`.
    pub shape: Vec<u64>,
    /// `dtype`, without `torch.`.
    pub dtype: String,
    /// `device`.
    pub device: String,
    /// `numel() * element_size()`; for a sparse tensor, bytes of its indices and values.
    pub bytes: u64,
    pub storage: Option<StorageTruth>,
}

impl PausedWorkload {
    /// Starts a workload (with its arguments).
    pub fn start(pytorch: &PyTorch, workload: &[&str], settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = pytorch.command();
        // Warnings about versions and CUDA's context do not matter here.
        command.args(["-W", "ignore"]).args(workload);
        command.arg("--folder").arg(folder.path());
        command.envs(settings.iter().copied());
        Self {
            target: Background::start(&mut command),
            folder,
        }
    }

    pub fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Waits until the process stops at a point; returns its name, or `None` after the last.
    pub fn next_point(&mut self) -> Option<String> {
        let (point, over) = (self.path("point"), self.path("over"));
        let name = self.wait("a point", || {
            if over.exists() {
                return Some(None);
            }
            std::fs::read_to_string(&point).ok().map(Some)
        });
        name.inspect(|name| println!("  at {name}"))
    }

    /// Returns the process that stopped at the point: the workload, or one that it started.
    pub fn stopped_pid(&self) -> u32 {
        let text = std::fs::read_to_string(self.path("pid")).expect("a PID");
        text.parse().expect("a number")
    }

    /// Continues to the point of this name.
    ///
    /// # Panics
    ///
    /// If there is no such point.
    pub fn go_to(&mut self, wanted: &str) {
        while let Some(point) = self.next_point() {
            if point == wanted {
                return;
            }
            self.go_on();
        }
        panic!("there is no point {wanted:?}");
    }

    /// Requests the process's own account at a point. Make the snapshot to compare before this
    /// call.
    pub fn truth(&mut self) -> Truth {
        let ask = self.path("ask");
        std::fs::write(&ask, "").expect("written");
        self.wait("the answer", || (!ask.exists()).then_some(()));
        let answer = std::fs::read(self.path("answer")).expect("an answer");
        serde_json::from_slice(&answer).expect("the answer is JSON")
    }

    /// Continues from a point.
    pub fn go_on(&mut self) {
        let go = self.path("go");
        std::fs::write(&go, "").expect("written");
        self.wait("it goes on", || (!go.exists()).then_some(()));
    }

    /// Passes all remaining points and waits for the end.
    pub fn end(mut self) {
        while self.next_point().is_some() {
            self.go_on();
        }
        self.target.finish().succeeded();
    }

    /// Returns a path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn wait<T>(&mut self, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
        let target = &mut self.target;
        wait_until(what, || {
            let ended = target.has_ended();
            let found = done();
            assert!(
                found.is_some() || !ended,
                "the workload ended before {what}: {}{}",
                target.stdout(),
                target.stderr()
            );
            found
        })
    }
}

impl Truth {
    /// Returns the tensor at this address.
    pub fn tensor(&self, object: u64) -> Option<&Held> {
        self.tensors.iter().find(|tensor| tensor.object == object)
    }
}
