//! A workload that stands still at named points, and what it holds there by its own account
//! (see `workloads/tensor_reference.py`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use tempfile::TempDir;

use crate::process::{Background, wait_until};
use crate::pytorch::PyTorch;

/// A workload with points.
pub struct Standing {
    /// The process.
    pub target: Background,
    folder: TempDir,
}

/// What a workload says of a point.
#[derive(Debug, Deserialize)]
pub struct Truth {
    /// The version of Python.
    pub python: String,
    /// The version of PyTorch.
    pub torch: String,
    /// One per device, in order; none where CUDA is not in use.
    pub devices: Vec<Allocator>,
    /// The tensors that Python knows, and their gradients.
    pub tensors: Vec<Held>,
    /// What the graph keeps.
    pub saved: Vec<Saved>,
    /// What other tensors stand on: the base of a view, the parts of a sparse tensor.
    pub within: Vec<Saved>,
    /// Nodes of the graph by name.
    pub nodes: BTreeMap<String, u64>,
    /// What tensors of these shapes are to be called; `*` stands for a line.
    pub expected: Vec<(String, Vec<u64>)>,
}

/// The caching allocator's own account of a device.
#[derive(Debug, Deserialize)]
pub struct Allocator {
    /// Its ordinal.
    pub device: u8,
    /// `memory_allocated()`.
    pub allocated: u64,
    /// `memory_reserved()`.
    pub reserved: u64,
    /// Address, bytes and requested bytes of each live block.
    pub blocks: Vec<(u64, u64, u64)>,
}

/// A tensor that Python can reach.
#[derive(Debug, Deserialize)]
pub struct Held {
    /// The address of its `TensorImpl`.
    pub object: u64,
    /// Whether it has a Python object.
    pub python: bool,
    /// The name of its type.
    pub class: String,
    /// `shape`; `None` for a nested tensor.
    pub shape: Option<Vec<u64>>,
    /// `dtype`, without `torch.`.
    pub dtype: String,
    /// `device`.
    pub device: String,
    /// `layout`, without `torch.`.
    pub layout: String,
    /// `numel() * element_size()`.
    pub bytes: u64,
    /// `None` where it has none.
    pub storage: Option<StorageTruth>,
    /// `requires_grad`.
    pub requires_grad: bool,
    /// `grad_fn.name()`.
    pub grad_fn: Option<String>,
    /// Its names as a parameter, from every module that no other holds.
    pub parameter: Vec<String>,
    /// Its names as a buffer.
    pub buffer: Vec<String>,
    /// Optimizer, key and the address of the parameter.
    pub state: Vec<(String, String, u64)>,
    /// The addresses of those whose `.grad` it is.
    pub gradient_of: Vec<u64>,
}

/// A storage.
#[derive(Debug, Deserialize, Clone, Copy, PartialEq, Eq)]
pub struct StorageTruth {
    /// The address of its `StorageImpl`.
    pub object: u64,
    /// `data_ptr()`.
    pub data: u64,
    /// `nbytes()`.
    pub bytes: u64,
}

/// A tensor that a node of the graph keeps, or another tensor.
#[derive(Debug, Deserialize)]
pub struct Saved {
    /// The name of the node, or the class of the tensor.
    pub op: String,
    /// The attribute of it.
    pub attribute: String,
    /// `shape`.
    pub shape: Vec<u64>,
    /// `dtype`, without `torch.`.
    pub dtype: String,
    /// `device`.
    pub device: String,
    /// `numel() * element_size()`.
    pub bytes: u64,
    /// Its storage.
    pub storage: Option<StorageTruth>,
}

impl Standing {
    /// Starts a workload (with its arguments).
    pub fn start(pytorch: &PyTorch, workload: &[&str], settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = pytorch.command();
        // What is said of versions and of CUDA's context does not matter here.
        command.args(["-W", "ignore"]).args(workload);
        command.arg("--folder").arg(folder.path());
        command.envs(settings.iter().copied());
        Self {
            target: Background::start(&mut command),
            folder,
        }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Waits for a point, where the process then stands still; gives its name, or `None` after
    /// the last.
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

    /// Goes on to the point of this name.
    ///
    /// # Panics
    ///
    /// Where there is none.
    pub fn go_to(&mut self, wanted: &str) {
        while let Some(point) = self.next_point() {
            if point == wanted {
                return;
            }
            self.go_on();
        }
        panic!("there is no point {wanted:?}");
    }

    /// What the process says of itself at a point. Take what is compared with it before.
    pub fn truth(&mut self) -> Truth {
        let ask = self.path("ask");
        std::fs::write(&ask, "").expect("written");
        self.wait("the answer", || (!ask.exists()).then_some(()));
        let answer = std::fs::read(self.path("answer")).expect("an answer");
        serde_json::from_slice(&answer).expect("the answer is JSON")
    }

    /// Lets it go on from a point.
    pub fn go_on(&mut self) {
        let go = self.path("go");
        std::fs::write(&go, "").expect("written");
        self.wait("it goes on", || (!go.exists()).then_some(()));
    }

    /// Passes all points that are left, and waits for its end.
    pub fn end(mut self) {
        while self.next_point().is_some() {
            self.go_on();
        }
        self.target.finish().succeeded();
    }

    /// A file beside it.
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
    /// The tensor at this address.
    pub fn tensor(&self, object: u64) -> Option<&Held> {
        self.tensors.iter().find(|tensor| tensor.object == object)
    }
}
