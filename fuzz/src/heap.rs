//! The heap of a Python process: objects, classes, dicts, paths.

use memprobe::process::memory::ReadMemory;
use memprobe::python::heap::collector::{Generation, Listed};
use memprobe::python::heap::frames::Variable;
use memprobe::python::heap::image::Image as Cached;
use memprobe::python::heap::paths::Paths;
use memprobe::python::heap::process_scan::ProcessScan;
use memprobe::python::heap::{Heap, modules, notebook, optimizers};
use memprobe::python::layout::PythonLayout;
use memprobe::python::versions::LAYOUTS;

use crate::image::Image;

/// Most objects of one input, and most bytes that a snapshot of it may take.
const MAX_OBJECTS: usize = 256;
const MAX_BYTES: usize = 1 << 22;

/// An input: the layout by index, the number of objects, their addresses, and the memory.
struct Input {
    layout: &'static PythonLayout,
    objects: Vec<u64>,
    memory: Image,
}

impl Input {
    fn of(data: &[u8]) -> Option<Self> {
        let ([layout, count], rest) = data.split_first_chunk()?;
        let count = 8 * usize::from(*count).min(MAX_OBJECTS).min(rest.len() / 8);
        let (objects, memory) = rest.split_at(count);
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        Some(Self {
            layout: &LAYOUTS[usize::from(*layout) % LAYOUTS.len()],
            objects: objects.chunks_exact(8).map(word).collect(),
            memory: Image::of(memory),
        })
    }
}

/// Takes a snapshot of the objects and searches the paths to each.
pub fn read(data: &[u8]) {
    let Some(input) = Input::of(data) else {
        return;
    };
    let (layout, objects) = (input.layout, input.objects);
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
    let Some(input) = Input::of(data) else {
        return;
    };
    let (layout, objects) = (input.layout, input.objects);
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
