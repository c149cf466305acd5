//! PyTorch's objects: tensors and autograd's graph, and the tables of its allocator.

use memprobe::python::heap::capture::CaptureMode;
use memprobe::torch::allocator::active::AllocatorVariable;
use memprobe::torch::allocator::tables::{self, AllocatorTables};
use memprobe::torch::objects::Layouts;
use memprobe::torch::objects::graph::{self, RawGraph};

use crate::objects::Objects;

/// Versions of PyTorch that an input can name; with none, memprobe finds the layouts by the objects alone.
pub const VERSIONS: [Option<&str>; 13] = [
    None,
    Some("2.0.1"),
    Some("2.1.2"),
    Some("2.2.2"),
    Some("2.3.1"),
    Some("2.5.1"),
    Some("2.6.0"),
    Some("2.7.1"),
    Some("2.9.1"),
    Some("2.10.0"),
    Some("2.12.1"),
    Some("2.13.0"),
    Some("2.15.0"),
];

/// Reads Python's tensor objects, and all that they lead to.
pub fn read_tensors(data: &[u8]) {
    for mode in [CaptureMode::Paused, CaptureMode::Running] {
        let Some(graph) = graph_of(data, mode) else {
            continue;
        };
        let addresses = graph.tensors.iter().map(|tensor| tensor.object);
        assert!(addresses.is_sorted_by(|one, next| one < next));
        for tensor in &graph.tensors {
            assert!(tensor.storage.is_none_or(|at| graph.storage(at).is_some()));
        }
        let _ = graph.left_out.words();
    }
}

/// Returns the tensors of an input; `None` if no layout fits them.
pub fn graph_of(data: &[u8], mode: CaptureMode) -> Option<RawGraph> {
    let input = Objects::of(data)?;
    let version = *input.chosen(&VERSIONS);
    let layouts = Layouts::find(&input.memory, version, &input.addresses, mode).ok()?;
    let reader = layouts.reader(&input.memory);
    let objects = input.addresses.iter();
    let tensors: Vec<u64> = objects.filter_map(|&at| reader.tensor_of(at)).collect();
    Some(graph::collect(&reader, &tensors, &[]))
}

/// Reads the tables of the allocator.
pub fn read_allocator(data: &[u8]) {
    if let Some(tables) = tables_of(data) {
        let addresses = tables.blocks.iter().map(|block| block.addr);
        assert!(addresses.is_sorted_by(|one, next| one < next));
        let _ = tables.is_consistent();
    }
}

/// Returns the tables of the allocator to which the first address of an input points.
pub fn tables_of(data: &[u8]) -> Option<AllocatorTables> {
    let input = Objects::of(data)?;
    let version = *input.chosen(&VERSIONS);
    let variable = AllocatorVariable(*input.addresses.first()?);
    tables::read(&input.memory, variable, version).ok()
}
