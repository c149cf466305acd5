use std::cell::RefCell;

use super::class::{Classes, TorchKind};
use super::collector::{self, WalkExtent};
use super::fake::FakeHeap;
use super::frames::Variable;
use super::image::Image;
use super::paths::Paths;
use super::process_scan::{PreviousScan, ProcessScan};
use super::retainers::HeapRetainers;
use super::{Heap, modules, optimizers};
use crate::process::memory::ReadMemory;
use crate::process::memory::fake::{FakeMemory, SharedMemory};
use crate::python::layout::{Attributes, ClassLayout, HeapLayout, ObjectLayout, PythonLayout};
use crate::python::versions::LAYOUTS;

fn scan(heap: &Heap<'_, impl ReadMemory>, interpreter: u64) -> ProcessScan {
    let lists = &heap.layout.heap.collector;
    let (listed, walked) = collector::listed(heap.memory, lists, interpreter, WalkExtent::All);
    walked.unwrap();
    ProcessScan::of(heap, &listed)
}

fn text_of(memory: &FakeMemory, layout: &PythonLayout, object: u64) -> String {
    Heap::of(memory, layout).text(object).unwrap().to_string()
}

#[test]
fn every_object_of_every_generation_is_listed() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let objects: Vec<_> = (0..11).map(|_| heap.list(&[])).collect();
        let (memory, interpreter) = heap.finish();
        let scan = scan(&Heap::of(&memory, layout), interpreter);
        let mut found: Vec<_> = scan.objects.iter().map(|object| object.address()).collect();
        found.sort_unstable();
        assert_eq!(found, objects);
    }
}

#[test]
fn what_is_known_to_matter_is_looked_for_where_it_lay() {
    for layout in &LAYOUTS {
        let program = program(layout);
        let all = scan(&Heap::of(&program.memory, layout), program.interpreter);
        assert!(!all.modules.is_empty() && !all.globals.is_empty());
        let known = PreviousScan::of(all.clone(), &Classes::default());
        let again = |memory: &FakeMemory| {
            let mut scan = ProcessScan::default();
            let heap = Heap::of(memory, layout);
            scan.add_known(&heap, &known);
            assert!(scan.modules.is_empty() && scan.optimizers.is_empty());
            scan.add_known_holders(&heap, &known);
            scan
        };
        let found = again(&program.memory);
        assert_eq!(found.modules, all.modules);
        assert_eq!(
            (&found.optimizers, &found.globals),
            (&all.optimizers, &all.globals)
        );
        // Another object lies there now.
        let mut memory = program.memory.clone();
        memory.write(all.modules[0] + u64::from(ObjectLayout::KIND), &[0; 8]);
        assert_eq!(again(&memory).modules, all.modules[1..]);
    }
}

#[test]
fn contents_that_moved_are_read_again_where_their_container_has_changed() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let item = heap.list(&[]);
        let list = heap.list(&[item]);
        // Nothing else that is read lies near.
        heap.reserve(64 << 10);
        let moved = heap.reserve(64);
        heap.put_word(moved, 0_u64, item);
        heap.reserve(64 << 10);
        let (memory, interpreter) = heap.finish();
        let memory = RefCell::new(memory);
        let image = Image::of(SharedMemory(&memory), 1 << 20);
        let heap = Heap::of(&image, layout);
        let found = scan(&heap, interpreter);
        found.keep_contents(&heap);
        let known = PreviousScan::of(found, &heap.into_classes());
        let to = moved.to_le_bytes();
        memory
            .borrow_mut()
            .write(list + u64::from(HeapLayout::LIST_ITEMS), &to);
        image.renew();
        for is_read_again in [false, true] {
            let heap = Heap::of(&image, layout);
            if is_read_again {
                image.open();
                known.keep_moved_contents(&heap);
            }
            image.close();
            let class = heap.class_of(list).unwrap();
            let mut items = Vec::new();
            let read = heap.contents(&class, list, |_, item| items.push(item));
            assert_eq!(read.is_ok(), is_read_again);
            assert_eq!(items == [item], is_read_again);
        }
    }
}

#[test]
fn reads_the_entries_of_dicts_of_every_kind() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let names: Vec<_> = (0..300)
            .map(|number| heap.text(&format!("k{number}")))
            .collect();
        let all: Vec<_> = names.iter().map(|&name| (name, name + 1)).collect();
        let mut some = all.clone();
        some[7].1 = 0;
        let (small, large) = (heap.dict(&some[..8]), heap.dict(&all));
        let (memory, _) = heap.finish();
        let heap = Heap::of(&memory, layout);
        let entries = |dict| {
            let mut entries = Vec::new();
            heap.entries(dict, |entry| entries.push((entry.key, entry.value)))
                .unwrap();
            entries
        };
        assert_eq!(entries(small), some[..7]);
        assert_eq!(entries(large), all);
        let found = heap.values_of(large, ["k299", "other"]).unwrap();
        assert_eq!(found, [Some(names[299] + 1), None]);
    }
}

#[test]
fn attributes_are_found_with_and_without_a_dict() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let class = heap.python_class("Holder", "made", &["first", "second", "third"]);
        let values = [heap.list(&[]), 0, heap.list(&[])];
        let mut objects =
            vec![heap.with_dict(class, &[("first", values[0]), ("third", values[2])])];
        if layout.heap.attributes != Attributes::Dict {
            objects.push(heap.with_values(class, &values));
        }
        let (memory, _) = heap.finish();
        let heap = Heap::of(&memory, layout);
        let class = heap.class_at(heap.class_index(class).unwrap()).unwrap();
        for object in objects {
            let mut found = Vec::new();
            let each = |entry: super::dict::DictEntry| {
                found.push((text_of(&memory, layout, entry.key), entry.value));
            };
            heap.attributes(&class, object, each).unwrap();
            let expected = [
                ("first".to_owned(), values[0]),
                ("third".to_owned(), values[2]),
            ];
            assert_eq!(found, expected, "3.{}", layout.minor);
        }
    }
}

#[test]
fn classes_have_the_role_of_any_class_in_their_resolution_order() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let object = heap.class("object", 0, 0);
        let tensor = heap.class("torch._C.TensorBase", 0, object);
        let module = heap.python_class("Module", "torch.nn.modules.module", &[]);
        let optimizer = heap.python_class("Optimizer", "torch.optim.optimizer", &[]);
        let mixin = heap.python_class("Mixin", "net", &[]);
        let mut class = |base, bases: &[u64]| {
            let class = heap.python_class("Derived", "net", &[]);
            heap.derive(class, base, bases);
            class
        };
        let between = class(mixin, &[mixin, module, object]);
        let not_ready = class(module, &[]);
        let cases = [
            (class(mixin, &[mixin, module, object]), TorchKind::Module),
            (class(module, &[module, mixin, object]), TorchKind::Module),
            (
                class(mixin, &[mixin, between, module, object]),
                TorchKind::Module,
            ),
            (
                class(mixin, &[mixin, optimizer, object]),
                TorchKind::Optimizer,
            ),
            (class(tensor, &[mixin, tensor, object]), TorchKind::Tensor),
            (class(mixin, &[mixin, object]), TorchKind::Other),
            (not_ready, TorchKind::Module),
        ];
        heap.put_word(not_ready, ClassLayout::MRO, 0);
        let (memory, _) = heap.finish();
        let heap = Heap::of(&memory, layout);
        for (number, (class, role)) in cases.into_iter().enumerate() {
            let class = heap.class_at(heap.class_index(class).unwrap()).unwrap();
            assert_eq!(class.role, role, "case {number} of 3.{}", layout.minor);
        }
    }
}

/// A model of two layers, its optimizer, a cache, and a tensor that is a variable of a function.
struct Program {
    memory: FakeMemory,
    interpreter: u64,
    weight: u64,
    average: u64,
    cached: u64,
    local: Variable,
}

fn program(layout: &'static PythonLayout) -> Program {
    let mut heap = FakeHeap::new(layout);
    let tensor_class = heap.class("torch._C.TensorBase", 0, 0);
    let module_class = heap.python_class("Module", "torch.nn.modules.module", &[]);
    let other_class = heap.python_class("Module", "elsewhere", &[]);
    let optimizer_class = heap.python_class("Optimizer", "torch.optim.optimizer", &[]);
    let [weight, average, cached, local] = [(); 4].map(|()| heap.object(tensor_class, 32));
    let named = |heap: &mut FakeHeap, entries: &[(&str, u64)]| {
        let entries: Vec<_> = entries
            .iter()
            .map(|&(name, value)| (heap.text(name), value))
            .collect();
        heap.dict(&entries)
    };
    let nothing = named(&mut heap, &[]);
    let parameters = named(&mut heap, &[("weight", weight)]);
    let gates = [
        ("_parameters", parameters),
        ("_buffers", nothing),
        ("_modules", nothing),
    ];
    let layer = heap.with_dict(module_class, &gates);
    let layers = named(&mut heap, &[("0", layer)]);
    let gates = [
        ("_parameters", nothing),
        ("_buffers", nothing),
        ("_modules", layers),
    ];
    let model = heap.with_dict(module_class, &gates);
    let stranger = heap.with_dict(other_class, &gates);
    let averages = named(&mut heap, &[("exp_avg", average)]);
    let state = heap.dict(&[(weight, averages)]);
    let list = heap.list(&[weight]);
    let bool_class = heap.class("bool", ClassLayout::LONG, heap.int_class);
    let off = heap.int(0);
    heap.put_word(off, ObjectLayout::KIND, bool_class);
    let rate = heap.reserve(32);
    heap.put_word(rate, ObjectLayout::KIND, tensor_class);
    let settings = [("params", list), ("foreach", off), ("lr", rate)];
    let group = named(&mut heap, &settings);
    let groups = heap.list(&[group]);
    let optimizer = heap.with_dict(
        optimizer_class,
        &[("state", state), ("param_groups", groups)],
    );
    let (key, number) = (heap.text("it's"), heap.int(-3));
    let tuple = heap.tuple(&[nothing, cached]);
    let by_number = heap.dict(&[(number, tuple)]);
    let cache = heap.dict(&[(key, by_number)]);
    heap.module("elsewhere", &[("far", cache)]);
    let globals = [
        ("model", model),
        ("stranger", stranger),
        ("optimizer", optimizer),
        ("cache", cache),
    ];
    heap.module("__main__", &globals);
    let (memory, interpreter) = heap.finish();
    Program {
        memory,
        interpreter,
        weight,
        average,
        cached,
        local: Variable {
            text: "train.py:31 train() -> x".into(),
            name: "x".into(),
            note: "",
            value: local,
            rank: 0,
        },
    }
}

#[test]
fn recognizes_tensors_modules_and_optimizers_by_class() {
    for layout in &LAYOUTS {
        let program = program(layout);
        let heap = Heap::of(&program.memory, layout);
        let scan = scan(&heap, program.interpreter);
        assert_eq!(scan.tensors.len(), 4);
        assert_eq!((scan.modules.len(), scan.optimizers.len()), (2, 1));
        assert_eq!(scan.globals.len(), 2);
        let classes = heap.into_classes();
        let classes = (0..).map_while(|index| classes.get(index));
        let modules = classes.filter(|class| &*class.name == "Module");
        let roles: Vec<_> = modules.map(|class| class.role).collect();
        assert!(roles.contains(&TorchKind::Module) && roles.contains(&TorchKind::Other));
    }
}

#[test]
fn modules_and_optimizers_are_read_with_their_names() {
    for layout in &LAYOUTS {
        let program = program(layout);
        let heap = Heap::of(&program.memory, layout);
        let scan = scan(&heap, program.interpreter);
        let tree = modules::ObjectTree::of(modules::read(&heap, &scan.modules));
        let mut paths: Vec<_> = tree.places.iter().map(|place| &*place.path).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["", "0"]);
        let (layer, _) = tree.every_place().nth(1).unwrap();
        assert_eq!(layer.parameters, [("weight".into(), program.weight)]);
        let optimizers = optimizers::read(&heap, &scan.optimizers);
        let state = &optimizers.state[0];
        assert_eq!((&*state.optimizer, &*state.name), ("Optimizer", "exp_avg"));
        assert_eq!(
            (state.tensor, state.parameter),
            (program.average, Some(program.weight))
        );
        let position = &optimizers.positions[&program.weight];
        assert_eq!(&**position, "param_groups[0]['params'][0]");
        let [settings] = optimizers.settings.as_slice() else {
            panic!("of one group: {:?}", optimizers.settings);
        };
        assert_eq!((settings.foreach, settings.fused), (Some(false), None));
        assert!(settings.has_tensor_rate && !settings.differentiable);
    }
}

#[test]
fn keys_and_values_of_caches_are_found_in_layers_and_in_lists() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let tensor_class = heap.class("torch._C.TensorBase", 0, 0);
        let tensors = [(); 4].map(|()| heap.object(tensor_class, 32));
        let [key, value, first, second] = tensors;
        let mut class = |name: &str, module: &str| {
            let base = heap.python_class(name, module, &[]);
            let class = heap.python_class("Dynamic", module, &[]);
            heap.derive(class, base, &[base]);
            class
        };
        let layer = class("CacheLayerMixin", "transformers.cache_utils");
        let cache = class("Cache", "transformers.cache_utils");
        let other = class("Cache", "elsewhere");
        heap.with_dict(layer, &[("keys", key), ("values", value)]);
        let list = heap.list(&[first, second]);
        heap.with_dict(cache, &[("key_cache", list)]);
        heap.with_dict(other, &[("keys", first)]);
        let (memory, interpreter) = heap.finish();
        let heap = Heap::of(&memory, layout);
        let scan = scan(&heap, interpreter);
        let mut cached = optimizers::cached(&heap, &scan.kv_caches);
        cached.sort_unstable();
        assert_eq!(cached, tensors);
    }
}

#[test]
fn paths_are_the_shortest_that_python_could_write() {
    for layout in &LAYOUTS {
        let program = program(layout);
        let heap = Heap::of(&program.memory, layout);
        let scan = scan(&heap, program.interpreter);
        let variables = [program.local.clone()];
        let paths = Paths::search(&heap, &scan, &variables);
        let to = |tensor| -> Vec<String> {
            let paths = paths.to_tensor(tensor, 8);
            paths.into_iter().map(|path| path.text).collect()
        };
        assert_eq!(to(program.cached), ["cache['it\\'s'][-3][1]"]);
        assert_eq!(to(program.local.value), ["train.py:31 train() -> x"]);
        // Tensors that modules and optimizers hold have other names.
        assert_eq!(to(program.average), [""; 0]);
        assert_eq!(
            to(program.weight),
            ["optimizer.param_groups[0]['params'][0]"]
        );
    }
}

#[test]
fn an_image_of_a_heap_has_all_that_its_paths_need() {
    for layout in &LAYOUTS {
        let program = program(layout);
        let image = Image::of(&program.memory, 1 << 30);
        let heap = Heap::of(&image, layout);
        let scan = scan(&heap, program.interpreter);
        scan.keep_contents(&heap);
        image.close();
        let paths = Paths::search(&heap, &scan, &[]);
        let path = paths.to_object(program.cached);
        assert_eq!(path.unwrap().name, "cache['it\\'s'][-3][1]");
        assert_eq!(image.extent().missed, 0);
    }
}

/// The holders of some tensors, and the path of one of them.
fn holders_of(
    (memory, layout, interpreter): (&FakeMemory, &PythonLayout, u64),
    variables: &[Variable],
    tensors: &[u64],
) -> Vec<(String, Option<String>, Vec<String>)> {
    let heap = Heap::of(memory, layout);
    let scan = scan(&heap, interpreter);
    let paths = Paths::search(&heap, &scan, variables);
    let mut holders = HeapRetainers::of(&paths);
    let mut held: Vec<Vec<String>> = Vec::new();
    for &tensor in tensors {
        for by in holders.by_paths(&paths, tensor) {
            let place = by.retainer as usize;
            held.resize(held.len().max(place + 1), Vec::new());
            let slot = paths.slot(by.path).unwrap();
            held[place].push(slot.to_string());
        }
    }
    let all = holders.all.iter().zip(held);
    all.map(|(holder, slots)| {
        let class = holder.class.as_deref().map(str::to_owned);
        (holder.path.to_string(), class, slots)
    })
    .collect()
}

fn variable(text: &str, value: u64, rank: u32) -> Variable {
    let name = text.rsplit(' ').next().unwrap_or(text);
    Variable {
        text: text.into(),
        name: name.into(),
        note: "",
        value,
        rank,
    }
}

#[test]
fn the_slots_of_a_container_are_one_holder_by_the_variable_that_refers_to_it_for_longest() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let class = heap.class("torch._C.TensorBase", 0, 0);
        let tensors: Vec<_> = (0..3).map(|_| heap.object(class, 32)).collect();
        let losses = heap.list(&tensors);
        heap.module("__main__", &[]);
        let (memory, interpreter) = heap.finish();
        let variables = [
            variable("train.py:31 main() -> losses", losses, 0),
            variable("train.py:9 iterate() -> kept", losses, 1),
            variable("torch/x.py:5 call() -> it", losses, 1 << 16),
        ];
        let held = holders_of((&memory, layout, interpreter), &variables, &tensors);
        let slots = (0..3).map(|at| format!("train.py:31 main() -> losses[{at}]"));
        assert_eq!(
            held,
            [(
                "train.py:31 main() -> losses[*]".to_owned(),
                Some("list".to_owned()),
                slots.collect()
            )]
        );
    }
}

#[test]
fn a_global_holds_what_it_is_passed_on_as_and_numbers_are_slots_as_a_dict_with_many_tensors_has() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let class = heap.class("torch._C.TensorBase", 0, 0);
        let tensors: Vec<_> = (0..12).map(|_| heap.object(class, 32)).collect();
        let few: Vec<_> = (0..2)
            .map(|at| (heap.text(&format!("part{at}")), tensors[at]))
            .collect();
        let many: Vec<_> = (2..11)
            .map(|at| (heap.text(&format!("step{at}")), tensors[at]))
            .collect();
        let number = heap.int(7);
        let (few, many) = (heap.dict(&few), heap.dict(&many));
        let numbered = heap.dict(&[(number, tensors[11])]);
        let globals = [("few", few), ("many", many), ("numbered", numbered)];
        heap.module("__main__", &globals);
        let (memory, interpreter) = heap.finish();
        let variables = [variable("train.py:9 iterate() -> it", many, 0)];
        let held = holders_of((&memory, layout, interpreter), &variables, &tensors);
        let mut names: Vec<_> = held.iter().map(|(name, ..)| &**name).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["few['part0']", "few['part1']", "many[*]", "numbered[*]"]
        );
        let many = held.iter().find(|(name, ..)| name == "many[*]").unwrap();
        assert_eq!((many.1.as_deref(), many.2.len()), (Some("dict"), 9));
        assert!(many.2.contains(&"many['step5']".to_owned()));
    }
}

/// Text of the first path to each tensor.
fn first_names(
    (memory, layout, interpreter): (&FakeMemory, &PythonLayout, u64),
    variables: &[Variable],
    tensors: &[u64],
) -> Vec<String> {
    let heap = Heap::of(memory, layout);
    let scan = scan(&heap, interpreter);
    let paths = Paths::search(&heap, &scan, variables);
    let name = |tensor: &u64| paths.to_tensor(*tensor, 1).pop().map(|path| path.text);
    tensors
        .iter()
        .map(|tensor| name(tensor).unwrap_or_default())
        .collect()
}

#[test]
fn globals_and_outer_frames_name_and_hold_before_the_calls_that_use_an_object() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let class = heap.class("torch._C.TensorBase", 0, 0);
        let server = heap.python_class("Server", "serve", &[]);
        let cache = heap.python_class("Cache", "transformers.cache_utils", &[]);
        let tensors: Vec<_> = (0..4).map(|_| heap.object(class, 32)).collect();
        let keys = heap.list(&tensors[..1]);
        let cached = heap.with_dict(cache, &[("keys", keys), ("last", tensors[1])]);
        let server = heap.with_dict(server, &[("cache", cached)]);
        let arguments = heap.list(&tensors[2..3]);
        let registry = heap.list(&tensors[3..]);
        heap.module("__main__", &[("server", server)]);
        heap.module("transformers.cache_utils", &[("registry", registry)]);
        let (memory, interpreter) = heap.finish();
        let library = 1 << 16;
        let variables = [
            variable("serve.py:9 answer() -> last", tensors[1], 2),
            variable(
                "utils.py:20 generate() -> arguments",
                arguments,
                library + 3,
            ),
            variable("modeling.py:4 forward() -> self", cached, library + 5),
            variable("modeling.py:4 forward() -> keys", keys, library + 5),
            variable("modeling.py:4 forward() -> it", arguments, library + 5),
            variable("modeling.py:4 forward() -> key", tensors[2], library + 5),
            variable("modeling.py:4 forward() -> other", tensors[3], library + 5),
        ];
        let process = (&memory, layout, interpreter);
        let names = [
            "server.cache.keys[0]",
            "server.cache.last",
            "utils.py:20 generate() -> arguments[0]",
            "transformers.cache_utils.registry[0]",
        ];
        assert_eq!(first_names(process, &variables, &tensors), names);
        let held = holders_of(process, &variables, &tensors);
        let holders: Vec<_> = held.iter().map(|(name, ..)| &**name).collect();
        let folded = names.map(|name| name.replace("[0]", "[*]"));
        assert_eq!(holders, folded);
    }
}

#[test]
fn a_long_path_from_a_global_loses_to_a_short_one_from_a_frame() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let class = heap.class("torch._C.TensorBase", 0, 0);
        let [far, near] = [(); 2].map(|()| heap.object(class, 32));
        let mut chain = heap.list(&[far]);
        let mut nodes = Vec::new();
        for _ in 0..40 {
            chain = heap.list(&[chain]);
            nodes.push(chain);
        }
        let short = heap.list(&[near]);
        let short = heap.list(&[short]);
        heap.module("__main__", &[("chain", chain), ("short", short)]);
        let (memory, interpreter) = heap.finish();
        let variables = [
            variable("a.py:1 f() -> node", nodes[3], 4),
            variable("a.py:1 f() -> near", near, 4),
        ];
        let names = first_names((&memory, layout, interpreter), &variables, &[far, near]);
        let far = format!("a.py:1 f() -> node{}", "[0]".repeat(5));
        assert_eq!(names, [far, "short[0][0]".to_owned()]);
    }
}

#[test]
fn globals_are_named_after_their_module_and_not_through_a_function_of_it() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let class = heap.class("torch._C.TensorBase", 0, 0);
        let tensor = heap.object(class, 32);
        let namespace = heap.list(&[tensor]);
        let module = heap.module("cachelib", &[("cache", namespace)]);
        let dict = heap.word(module, HeapLayout::MODULE_DICT);
        let function = heap.list(&[dict]);
        heap.module("__main__", &[("load", function)]);
        let (memory, interpreter) = heap.finish();
        let names = first_names((&memory, layout, interpreter), &[], &[tensor]);
        assert_eq!(names, ["cachelib.cache[0]"]);
    }
}

#[test]
fn models_in_a_list_are_named_before_the_variable_of_a_loop_over_it() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        heap.class("torch._C.TensorBase", 0, 0);
        let module = heap.python_class("Module", "torch.nn.modules.module", &[]);
        let optimizer = heap.python_class("Optimizer", "torch.optim.optimizer", &[]);
        let models = [(); 4].map(|()| heap.with_dict(module, &[]));
        let [optimizer, other] = [(); 2].map(|()| heap.with_dict(optimizer, &[]));
        let of_globals = heap.list(&models[..2]);
        let of_frame = heap.list(&models[2..]);
        let name = heap.text("generator");
        let another_name = heap.text("discriminator");
        let optimizers = heap.dict(&[(name, optimizer), (another_name, other)]);
        // A single model keeps its variable.
        let only = heap.with_dict(module, &[]);
        let name = heap.text("model");
        let arguments = heap.dict(&[(name, only)]);
        let globals = [
            ("models", of_globals),
            ("model", models[1]),
            ("optimizers", optimizers),
            ("step", optimizer),
        ];
        heap.module("__main__", &globals);
        let (memory, interpreter) = heap.finish();
        let variables = [
            variable("train.py:9 train() -> first", models[2], 3),
            variable("train.py:9 train() -> nets", of_frame, 3),
            variable("train.py:9 train() -> net", models[3], 3),
            variable("train.py:9 train() -> kwargs", arguments, 3),
            variable("train.py:9 train() -> only", only, 3),
        ];
        let heap = Heap::of(&memory, layout);
        let scan = scan(&heap, interpreter);
        let paths = Paths::search(&heap, &scan, &variables);
        let name = |object: u64| paths.to_object(object).map(|path| path.name);
        let names = models.map(|model| name(model).expect("reached"));
        assert_eq!(names, ["models[0]", "models[1]", "first", "nets[1]"]);
        assert_eq!(name(optimizer).as_deref(), Some("optimizers['generator']"));
        assert_eq!(name(only).as_deref(), Some("only"));
    }
}
