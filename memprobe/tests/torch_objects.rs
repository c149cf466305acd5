//! Reads tensors and autograd graphs of real PyTorch processes from outside and compares each with
//! PyTorch's own answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use memprobe::event::Tgid;
use memprobe::process::memory::ProcessMemory;
use memprobe::torch::objects::graph::{LeftOut, RawGraph, Saved, collect};
use memprobe::torch::objects::{LayoutOrigin, Layouts, RawTensor, TensorImplClass};
use memprobe::torch::tensors::CaptureMode;
use serde_json::Value;

const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/torch_objects.py"
);

/// Environment variables for the interpreter of most tests, and for others in the format of `PATH`.
/// `cargo xtask test` sets both.
const PYTHONS: [&str; 2] = ["MEMPROBE_TEST_PYTHON", "MEMPROBE_TEST_EACH_PYTHON"];

/// Returns one process per PyTorch in the environment, started once. Each ends when this test
/// process exits and closes its input.
fn targets() -> &'static [Target] {
    static TARGETS: OnceLock<Vec<Target>> = OnceLock::new();
    TARGETS.get_or_init(|| {
        pythons()
            .iter()
            .map(|python| Target::start(python))
            .collect()
    })
}

/// Returns every interpreter with PyTorch that the environment lists.
fn pythons() -> Vec<PathBuf> {
    let named = PYTHONS.map(|name| std::env::var_os(name).unwrap_or_default());
    let mut pythons: Vec<PathBuf> = named
        .iter()
        .flat_map(std::env::split_paths)
        .filter(|python| !python.as_os_str().is_empty())
        .collect();
    pythons.dedup();
    if pythons.is_empty() {
        println!(
            "skipped: {} names no PyTorch; run `cargo xtask test`",
            PYTHONS[0]
        );
    }
    pythons
}

/// A fixture process with tensors.
struct Target {
    /// Keeps standard input open, and so the process alive.
    _process: Child,
    truth: Value,
    memory: ProcessMemory,
}

impl Target {
    fn start(python: &Path) -> Self {
        let mut child = Command::new(python)
            .args(["-W", "ignore", FIXTURE])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let truth = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("{}: {error}: {line}", python.display()));
        Self {
            memory: ProcessMemory::new(Tgid(child.id())),
            _process: child,
            truth,
        }
    }

    fn version(&self) -> &str {
        self.truth["torch"].as_str().unwrap()
    }

    fn tensors(&self) -> &[Value] {
        self.truth["tensors"].as_array().unwrap()
    }

    /// Returns the addresses of the tensors' Python objects.
    fn objects(&self) -> Vec<u64> {
        let known = self
            .tensors()
            .iter()
            .map(|tensor| number(&tensor["python"]));
        let more = ["old_view", "hooked"].map(|name| number(&self.truth[name]));
        known.chain(more).collect()
    }

    fn layouts(&self, version: Option<&str>) -> Layouts {
        Layouts::find(&self.memory, version, &self.objects(), CaptureMode::Paused).unwrap()
    }

    fn collect(&self, layouts: &Layouts) -> RawGraph {
        let reader = layouts.reader(&self.memory);
        let tensors = self.objects().into_iter().map(|object| {
            let tensor = reader.tensor_of(object);
            tensor.unwrap_or_else(|| panic!("{object:#x} stands for no tensor"))
        });
        let tensors: Vec<u64> = tensors.collect();
        collect(&reader, &tensors, &[])
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(number).collect()
}

/// Compares a tensor with PyTorch's description of it.
fn compare(graph: &RawGraph, truth: &Value, found: &RawTensor) {
    let name = &truth["name"];
    assert_eq!(found.object, number(&truth["tensor"]), "{name}");
    let python = found.python.map(NonZeroU64::get);
    assert_eq!(python, truth["python"].as_u64(), "{name}");
    assert_eq!(
        found.dtype.to_string(),
        truth["dtype"].as_str().unwrap(),
        "{name}"
    );
    assert_eq!(
        found.device.to_string(),
        truth["device"].as_str().unwrap(),
        "{name}"
    );
    assert_eq!(
        found.requires_grad,
        truth["requires_grad"].as_bool(),
        "{name}"
    );
    assert_eq!(
        found.references().grad,
        truth["grad"].as_u64(),
        "{name}: its gradient"
    );
    assert_eq!(
        found.references().base,
        truth["base"].as_u64(),
        "{name}: what it looks at"
    );
    let geometry = found.geometry.as_ref().unwrap();
    assert_eq!(geometry.shape[..], numbers(&truth["shape"]), "{name}");
    if truth["stride"].is_null() {
        assert!(matches!(found.class, TensorImplClass::Other(_)), "{name}");
        assert!(!found.references().parts.is_empty(), "{name}: its parts");
        assert_eq!(found.storage, None, "{name}");
        return;
    }
    assert_eq!(found.class, TensorImplClass::Dense, "{name}");
    let strides: Vec<u64> = geometry
        .strides
        .iter()
        .map(|stride| stride.unsigned_abs())
        .collect();
    assert_eq!(strides, numbers(&truth["stride"]), "{name}");
    assert_eq!(geometry.offset, number(&truth["offset"]), "{name}");
    assert_eq!(
        found.storage,
        truth["storage"].as_u64(),
        "{name}: its storage"
    );
    let storage = graph.storage(found.storage.unwrap()).unwrap();
    assert_eq!(storage.data.0, number(&truth["data"]), "{name}: its data");
    assert_eq!(
        storage.bytes.0,
        number(&truth["bytes"]),
        "{name}: bytes of its storage"
    );
    assert_eq!(storage.device, found.device, "{name}");
}

#[test]
fn every_tensor_of_a_process_is_read_as_pytorch_knows_it() {
    for target in targets() {
        let layouts = target.layouts(Some(target.version()));
        assert_eq!(layouts.origin, LayoutOrigin::Version);
        let graph = target.collect(&layouts);
        for truth in target.tensors() {
            let found = graph.tensor(number(&truth["tensor"]));
            compare(
                &graph,
                truth,
                found.unwrap_or_else(|| panic!("{truth} is not there")),
            );
        }
        let names = target.truth["grad_fn"].as_object().unwrap();
        for truth in target.tensors() {
            let found = graph.tensor(number(&truth["tensor"])).unwrap();
            let name = found
                .references()
                .grad_fn
                .and_then(|node| graph.node(node)?.name.clone());
            let truth_name = &names[truth["name"].as_str().unwrap()];
            assert_eq!(name.as_deref(), truth_name.as_str(), "{}", truth["name"]);
        }
        let reader = layouts.reader(&target.memory);
        let old = reader.tensor_of(number(&target.truth["old_view"]));
        let old = graph.tensor(old.unwrap()).unwrap();
        assert_eq!(
            (old.references().outdated, old.requires_grad),
            (true, Some(true))
        );
        println!(
            "PyTorch {}: {} tensors compared; {} tensors, {} storages, {} nodes, {} saved in all",
            target.version(),
            target.tensors().len(),
            graph.tensors.len(),
            graph.storages.len(),
            graph.nodes.len(),
            graph.saved.len()
        );
        let left_out = LeftOut {
            packed: 2,
            ..LeftOut::default()
        };
        assert_eq!(
            graph.left_out, left_out,
            "two are in the hands of a checkpoint"
        );
    }
}

/// True if saved-tensor hooks replace the tensors that the graph saves.
fn is_hooked(truth: &Value) -> bool {
    ["hooked", "checkpointed"].contains(&truth["name"].as_str().unwrap())
}

/// Saved tensors by operation: its name, sequence number, shapes and storages, with a count.
type SavedByOperation = BTreeMap<(String, u64, Vec<(Vec<u64>, u64)>), usize>;

#[test]
fn tensors_saved_by_operations_are_found_with_their_names() {
    for target in targets() {
        let layouts = target.layouts(Some(target.version()));
        let graph = target.collect(&layouts);
        // PyTorch 2.1 added `_sequence_nr`.
        let has_sequence = !target.version().starts_with("2.0");
        let mut expected = SavedByOperation::new();
        for node in target.truth["graph"].as_array().unwrap() {
            let saved = node["saved"].as_array().unwrap().iter();
            let saved = saved.map(|saved| (numbers(&saved[0]), number(&saved[1])));
            let name = node["name"].as_str().unwrap().to_owned();
            let sequence = node["sequence"].as_u64().unwrap_or(u64::MAX);
            *expected
                .entry((name, sequence, saved.collect()))
                .or_default() += 1;
        }
        let mut found = SavedByOperation::new();
        let hooked: BTreeSet<u64> = graph
            .saved
            .iter()
            .filter(|saved| saved.saved == Saved::Packed)
            .map(|saved| saved.node)
            .collect();
        assert_eq!(hooked.len(), 1, "one operation keeps what a hook made");
        let roots = target.truth["tensors"].as_array().unwrap().iter();
        let roots = roots.filter(|truth| !is_hooked(truth));
        let roots =
            roots.filter_map(|truth| graph.tensor(number(&truth["tensor"]))?.references().grad_fn);
        for node in reachable(&graph, roots.collect()) {
            let node = graph.node(node).unwrap();
            let saved = graph
                .saved
                .iter()
                .filter(|saved| saved.node == node.address);
            let mut saved: Vec<(Vec<u64>, u64)> = saved
                .map(|saved| {
                    let tensor = graph.tensor(saved.tensor).unwrap();
                    let shape = tensor.geometry.as_ref().unwrap().shape.to_vec();
                    (shape, tensor.storage.unwrap())
                })
                .collect();
            saved.sort();
            let name = node.name.as_deref().unwrap_or("?").to_owned();
            let sequence = node.sequence.filter(|_| has_sequence).unwrap_or(u64::MAX);
            *found.entry((name, sequence, saved)).or_default() += 1;
        }
        let missing: Vec<_> = expected
            .iter()
            .filter(|(operation, _)| !found.contains_key(*operation))
            .collect();
        let wrong: Vec<_> = found
            .iter()
            .filter(|(operation, _)| !expected.contains_key(*operation))
            .collect();
        assert!(
            missing.is_empty() && wrong.is_empty(),
            "PyTorch {}: missing {missing:#?}, and there instead {wrong:#?}",
            target.version()
        );
        let saved: usize = expected.keys().map(|(_, _, saved)| saved.len()).sum();
        println!(
            "PyTorch {}: {} nodes keep {saved} tensors",
            target.version(),
            expected.len()
        );
    }
}

/// Returns the nodes reachable from `waiting`.
fn reachable(graph: &RawGraph, mut waiting: Vec<u64>) -> BTreeSet<u64> {
    let mut reached = BTreeSet::new();
    while let Some(node) = waiting.pop() {
        if reached.insert(node) {
            waiting.extend(&graph.node(node).unwrap().next);
        }
    }
    reached
}

#[test]
fn a_layout_is_found_among_the_tensors_where_the_version_is_not_known() {
    for target in targets() {
        let own = target.layouts(Some(target.version()));
        let wanted = target.collect(&own);
        for version in [None, Some("9.0.0")] {
            let layouts = target.layouts(version);
            assert_eq!(layouts.origin, LayoutOrigin::OtherVersion);
            assert_eq!(
                target.collect(&layouts),
                wanted,
                "PyTorch {}",
                target.version()
            );
        }
    }
}
