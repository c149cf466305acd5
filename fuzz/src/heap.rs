//! The heap of a Python process: objects, classes, dicts, paths.

use memprobe::process::memory::ReadMemory;
use memprobe::python::heap::collector::{Generation, Listed};
use memprobe::python::heap::frames::Variable;
use memprobe::python::heap::image::Image as Cached;
use memprobe::python::heap::paths::Paths;
use memprobe::python::heap::process_scan::ProcessScan;
use memprobe::python::heap::{Heap, modules, notebook, optimizers};
use memprobe::python::versions::LAYOUTS;

use crate::objects::Objects;

/// Most bytes that a snapshot of one input may take.
const MAX_BYTES: usize = 1 << 22;

/// Takes a snapshot of the objects and searches the paths to each.
pub fn read(data: &[u8]) {
    let Some(input) = Objects::of(data) else {
        return;
    };
    let layout = input.chosen(&LAYOUTS);
    let objects = input.addresses;
    let image = Cached::of(&input.memory, MAX_BYTES);
    let heap = Heap::of(&image, layout);
    let listed = objects.iter().map(|&address| Listed {
        address,
        class: heap.type_of(address).unwrap_or(0),
        generation: Generation::Old,
    });
    let scan = ProcessScan::of(&heap, &listed.collect::<Vec<_>>());
    scan.keep_contents(&heap);
    let variables = objects.iter().map(|&value| Variable {
        text: "a.py:1 f() -> x".into(),
        name: "x".into(),
        note: "",
        value,
        rank: 0,
    });
    let variables: Vec<_> = variables.collect();
    image.close();
    let tree = modules::ObjectTree::of(modules::read(&heap, &scan.modules));
    assert!(tree.order.len() <= tree.modules.len());
    let _ = optimizers::read(&heap, &scan.optimizers);
    let paths = Paths::search(&heap, &scan, &variables);
    for &object in &objects {
        let _ = (paths.to_object(object), paths.to_tensor(object, 16));
    }
    assert!(image.extent().bytes <= MAX_BYTES);
}

/// Reads each object as a class, a dict, a text and a key.
pub fn read_classes(data: &[u8]) {
    let Some(input) = Objects::of(data) else {
        return;
    };
    let layout = input.chosen(&LAYOUTS);
    let objects = input.addresses;
    let heap = Heap::of(&input.memory, layout);
    for &object in &objects {
        read_object(&heap, object);
        let _ = notebook::cell(&input.memory, layout, object, "/ipykernel_1/2.py");
    }
}

fn read_object(heap: &Heap<'_, impl ReadMemory>, object: u64) {
    let _ = heap.class_index(object);
    let _ = heap.entries(object, |_| ());
    let _ = (heap.text(object), heap.key(object));
    if let Some(class) = heap.class_of(object) {
        let _ = heap.contents(&class, object, |_, _| ());
    }
}
