//! Reads fake processes whose objects are laid out by each row of the tables.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::fake::{FakeProcess, New};
use super::graph::{LeftOut, MAX_REACHED, RawGraph, Saved, SavedTensor, collect};
use super::layout_versions::{AUTOGRAD, AutogradLayout, NODES, NodeLayout, StorageLayout, TENSORS};
use super::layout_versions::{DeviceOrder, HANDLES, TensorLayout};
use super::{Geometry, LayoutError, LayoutOrigin, Layouts, NotOne, TensorImplClass};
use crate::event::DeviceIndex;
use crate::event::tensors::TensorDevice;
use crate::process::memory::ReadMemory as _;
use crate::python::heap::capture::CaptureMode;

/// The rows of version `2.minor`.
pub(super) fn rows(minor: u32) -> (TensorLayout, StorageLayout, AutogradLayout, NodeLayout) {
    let of_it = |[from, to]: &[(u32, u32); 2]| (*from..=*to).contains(&(2, minor));
    let tensor = TENSORS.iter().find(|row| of_it(&row.0)).unwrap();
    let autograd = AUTOGRAD.iter().find(|row| of_it(&row.0)).unwrap();
    let node = NODES.iter().find(|row| of_it(&row.0)).unwrap();
    (tensor.1, tensor.2, autograd.1, node.1)
}

pub(super) fn process(minor: u32) -> FakeProcess {
    let (tensor, storage, autograd, node) = rows(minor);
    FakeProcess::of((tensor, storage), autograd, node)
}

/// A small training run in a process.
#[derive(Debug)]
pub(super) struct Training {
    pub(super) process: FakeProcess,
    pub(super) weight: u64,
    pub(super) grad: u64,
    pub(super) view: u64,
    pub(super) deep: u64,
    /// Tensors that the nodes save and that have no Python object.
    pub(super) activation: u64,
    pub(super) in_list: u64,
    pub(super) relu: u64,
    pub(super) python: Vec<u64>,
}

impl Training {
    pub(super) fn of(mut process: FakeProcess) -> Self {
        let cuda = [1, 0];
        let plain = |shape: &[u64]| New {
            shape: shape.to_vec(),
            device: cuda,
            ..New::default()
        };
        let grad = process.tensor(&plain(&[4, 8]));
        let weight = process.tensor(&New {
            requires_grad: true,
            grad,
            ..plain(&[4, 8])
        });
        let accumulate = process.node("N5torch8autograd14AccumulateGradE", &[], u64::MAX, &[0; 8]);
        let activation = process.tensor(&plain(&[3, 5, 7]));
        let in_list = process.tensor(&plain(&[9]));
        let list = [
            process.saved(in_list, false),
            process.released(),
            process.saved(weight, true),
        ];
        let list = process.list(&list);
        let rest = [process.saved(activation, true), list, process.released()].concat();
        let relu = "N5torch8autograd9generated13ReluBackward0E";
        let relu = process.node(relu, &[accumulate, accumulate], 7, &rest);
        let inner = "N5torch8autograd9generated12MulBackward0E";
        let inner = process.node(inner, &[], 5, &process.saved(grad, false));
        let slices = [vec![0; 40], inner.to_le_bytes().to_vec(), vec![0; 8]].concat();
        let slices = process.node("N5torch8autograd10CopySlicesE", &[relu], 6, &slices);
        let out = process.tensor(&New {
            grad_fn: slices,
            ..plain(&[4])
        });
        let view = process.tensor(&New {
            base: weight,
            ..plain(&[2, 8])
        });
        let deep = process.tensor(&plain(&[2, 1, 3, 1, 2, 1, 2]));
        let python = [weight, view, deep, out].map(|tensor| process.python(tensor));
        Self {
            python: python.to_vec(),
            process,
            weight,
            grad,
            view,
            deep,
            activation,
            in_list,
            relu,
        }
    }

    pub(super) fn layouts(&self, version: Option<&str>) -> Result<Layouts, LayoutError> {
        Layouts::find(
            &self.process.heap.memory,
            version,
            &self.python,
            CaptureMode::Paused,
        )
    }

    pub(super) fn collect(&self, layouts: &Layouts) -> RawGraph {
        let reader = layouts.reader(&self.process.heap.memory);
        let tensors = self.python.iter();
        let tensors: Vec<u64> = tensors
            .filter_map(|object| reader.tensor_of(*object))
            .collect();
        collect(&reader, &tensors, &[])
    }
}

/// Compares the graph with the objects that were laid out.
fn compare(training: &Training, graph: &RawGraph, minor: u32) {
    let weight = graph.tensor(training.weight).unwrap();
    assert_eq!(weight.class, TensorImplClass::Dense, "2.{minor}");
    assert_eq!(weight.device, TensorDevice::Cuda(DeviceIndex(0)));
    assert_eq!(weight.references().grad, Some(training.grad));
    assert_eq!(weight.requires_grad, Some(true));
    assert_eq!(weight.python, NonZeroU64::new(training.python[0]));
    let storage = graph.storage(weight.storage.unwrap()).unwrap();
    assert_eq!((storage.data.0, storage.bytes.0), (0x7f00_0000_0000, 128));
    let view = graph.tensor(training.view).unwrap();
    assert_eq!(
        (view.references().base, view.requires_grad),
        (Some(training.weight), Some(true))
    );
    assert!(!view.references().outdated);
    let deep = graph.tensor(training.deep).unwrap();
    let geometry = Geometry {
        shape: [2, 1, 3, 1, 2, 1, 2].into(),
        strides: vec![12, 12, 4, 4, 2, 2, 1],
        offset: 0,
    };
    assert_eq!(deep.geometry, Some(Arc::new(geometry)));
    let relu = graph.node(training.relu).unwrap();
    assert_eq!(relu.name.as_deref(), Some("ReluBackward0"));
    assert_eq!((relu.sequence, relu.next.len()), (Some(7), 2));
    let names: Vec<_> = graph
        .nodes
        .iter()
        .filter_map(|node| node.name.as_deref())
        .collect();
    assert!(
        names.contains(&"torch::autograd::AccumulateGrad"),
        "{names:?}"
    );
    assert!(names.contains(&"torch::autograd::CopySlices"), "{names:?}");
    let saved_as = |tensor, saved| {
        let is_it = |found: &&SavedTensor| (found.tensor, found.saved) == (tensor, saved);
        assert_eq!(graph.saved.iter().filter(is_it).count(), 1, "2.{minor}");
    };
    saved_as(training.activation, Saved::Original);
    saved_as(training.in_list, Saved::Alias);
    saved_as(training.weight, Saved::Original);
    saved_as(training.grad, Saved::Alias);
    assert_eq!(graph.saved.len(), 4);
    assert_eq!(graph.left_out, LeftOut::default());
    assert!(graph.left_out.words().is_empty());
}

#[test]
fn every_version_is_read_by_its_rows() {
    for minor in 0..=15 {
        let training = Training::of(process(minor));
        let layouts = training
            .layouts(Some(&format!("2.{minor}.0+cu126")))
            .unwrap();
        assert_eq!(layouts.origin, LayoutOrigin::Version);
        compare(&training, &training.collect(&layouts), minor);
    }
}

#[test]
fn every_version_is_read_also_where_it_is_not_known_or_not_the_one_that_is_said() {
    for minor in 0..=15 {
        let training = Training::of(process(minor));
        for version in [None, Some("2.16.0"), Some("two")] {
            let layouts = training.layouts(version).unwrap();
            assert_eq!(layouts.origin, LayoutOrigin::OtherVersion);
            compare(&training, &training.collect(&layouts), minor);
        }
    }
}

#[test]
fn a_layout_of_no_known_version_is_found_by_what_the_fields_say() {
    for handle in HANDLES {
        let (_, _, autograd, node) = rows(15);
        let tensor = TensorLayout {
            handle,
            storage: 40,
            autograd: 48,
            version: 64,
            python: 80,
            dimensions: 88,
            device: DeviceOrder::PresenceLast,
        };
        let mut process = FakeProcess::of((tensor, StorageLayout { data: 32 }), autograd, node);
        let mut samples = Vec::new();
        for shape in [&[3, 4][..], &[5], &[2, 2, 2], &[7, 3], &[6, 1, 2, 3, 1, 2]] {
            let tensor = process.tensor(&New {
                shape: shape.to_vec(),
                requires_grad: shape.len() == 2,
                ..New::default()
            });
            samples.push(process.python(tensor));
        }
        let memory = &process.heap.memory;
        let layouts = Layouts::find(memory, Some("2.99"), &samples, CaptureMode::Paused).unwrap();
        assert_eq!(layouts.origin, LayoutOrigin::Calibrated);
        assert_eq!((layouts.tensor, layouts.storage.data), (tensor, 32));
        let reader = layouts.reader(memory);
        let object = reader.tensor_of(samples[0]).unwrap();
        let read = reader.tensor(object).unwrap();
        assert_eq!(read.geometry.unwrap().shape[..], [3, 4]);
        assert_eq!(read.requires_grad, Some(true));
    }
}

#[test]
fn without_informative_tensors_guesses_nothing() {
    let training = Training::of(process(15));
    let memory = &training.process.heap.memory;
    let find =
        |samples: &[u64]| Layouts::find(memory, Some("2.15.0"), samples, CaptureMode::Paused);
    assert_eq!(find(&[]).unwrap_err(), LayoutError::NoTensors);
    let unknown = LayoutError::UnknownLayout(Some("2.15.0".to_owned()));
    assert_eq!(
        find(&[0, 7, u64::MAX, training.weight]).unwrap_err(),
        unknown
    );
}

#[test]
fn finds_the_layout_of_a_running_process_from_a_few_live_tensors() {
    let mut process = process(15);
    let living = (1..=4).map(|size| {
        let tensor = process.tensor(&New {
            shape: vec![size],
            ..New::default()
        });
        process.python(tensor)
    });
    let living: Vec<u64> = living.collect();
    let samples: Vec<u64> = (1..=9).map(|dead| dead * 8).chain(living).collect();
    let memory = &process.heap.memory;
    let find = |version, samples: &[u64], manner| {
        let found = Layouts::find(memory, Some(version), samples, manner);
        found.map(|layouts| layouts.origin).ok()
    };
    let own = Some(LayoutOrigin::Version);
    assert_eq!(find("2.15.0", &samples, CaptureMode::Running), own);
    assert_eq!(find("2.15.0", &samples, CaptureMode::Paused), None);
    assert_eq!(find("2.15.0", &samples[..12], CaptureMode::Running), None);
    assert_eq!(find("2.0.1", &samples, CaptureMode::Running), None);
    // With many samples only the older ones are read, which come last.
    let (dying, old) = samples.split_at(9);
    let many = [dying.repeat(20), old.repeat(50)].concat();
    assert_eq!(find("2.15.0", &many, CaptureMode::Paused), own);
    // A few living ones among many are found wherever they are.
    let many = [old, &dying.repeat(100)].concat();
    assert_eq!(find("2.15.0", &many, CaptureMode::Running), own);
    assert_eq!(find("2.15.0", &many, CaptureMode::Paused), None);
    let many = [&old[..3], &dying.repeat(100)].concat();
    assert_eq!(find("2.15.0", &many, CaptureMode::Running), None);
}

#[test]
fn what_stands_for_no_tensor_or_is_none_is_refused() {
    let training = Training::of(process(15));
    let layouts = training.layouts(Some("2.15.0")).unwrap();
    let reader = layouts.reader(&training.process.heap.memory);
    let storage = reader.tensor(training.weight).unwrap().storage.unwrap();
    assert_eq!(reader.tensor(storage), Err(NotOne::Class));
    let read = reader.objects.storage(layouts.storage, training.weight);
    assert_eq!(read, Err(NotOne::Class));
    assert!(matches!(reader.tensor(8), Err(NotOne::Unreadable(_))));
    assert_eq!(reader.tensor_of(training.weight), None);
}

#[test]
fn a_shape_that_does_not_fit_the_number_of_elements_is_none() {
    let mut training = Training::of(process(15));
    let layouts = training.layouts(Some("2.15.0")).unwrap();
    let at = training.weight + (layouts.tensor.dimensions + TensorLayout::ELEMENTS) as u64;
    training
        .process
        .heap
        .memory
        .write(at, &31_u64.to_le_bytes());
    let reader = layouts.reader(&training.process.heap.memory);
    assert_eq!(reader.tensor(training.weight), Err(NotOne::Fields));
    let graph = training.collect(&layouts);
    assert_eq!(graph.left_out.tensors, 1);
    assert_eq!(graph.left_out.words().len(), 1);
}

#[test]
fn a_node_of_an_unknown_allocator_is_not_searched_and_that_is_said() {
    let mut training = Training::of(process(15));
    let layouts = training.layouts(Some("2.15.0")).unwrap();
    let chunk = training.relu - 8;
    training
        .process
        .heap
        .memory
        .write(chunk, &0x1234_5678_9abc_u64.to_le_bytes());
    let graph = training.collect(&layouts);
    assert_eq!(graph.left_out.unsearched, 1);
    let saves = |saved: &SavedTensor| saved.tensor == training.activation;
    assert!(!graph.saved.iter().any(saves));
}

#[test]
fn a_node_whose_class_gives_its_size_is_searched_with_any_allocator() {
    let mut training = Training::of(process(15));
    let heap = &mut training.process.heap;
    let (_, size) = heap
        .all
        .iter()
        .find(|one| one.0 == training.relu)
        .copied()
        .unwrap();
    let table = heap.memory.read_u64(training.relu).unwrap();
    heap.deleter(table, size as u32);
    heap.memory
        .write(training.relu - 8, &0x1234_5678_9abc_u64.to_le_bytes());
    let layouts = training.layouts(Some("2.15.0")).unwrap();
    compare(&training, &training.collect(&layouts), 15);
}

#[test]
fn tensors_beyond_the_limit_are_noted() {
    let training = Training::of(process(15));
    let layouts = training.layouts(Some("2.15.0")).unwrap();
    let reader = layouts.reader(&training.process.heap.memory);
    let left_out = |tensors: usize| {
        // No tensor lies there; each counts all the same.
        let addresses: Vec<u64> = (1..=tensors as u64).map(|number| 8 * number).collect();
        collect(&reader, &addresses, &[]).left_out
    };
    let most = left_out(MAX_REACHED);
    assert_eq!((most.has_more_tensors, most.too_many), (false, 0));
    let more = left_out(MAX_REACHED + 3);
    assert_eq!((more.has_more_tensors, more.too_many), (true, 3));
}
