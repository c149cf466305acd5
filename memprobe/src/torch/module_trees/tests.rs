use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;
use crate::process::memory::ReadResult;
use crate::process::memory::fake::FakeMemory;
use crate::python::heap::fake::FakeHeap;
use crate::python::layout::ObjectLayout;
use crate::python::versions::LAYOUTS;

/// Memory that a test changes while it is being read, with the number of reads.
#[derive(Clone)]
struct Shared(Rc<RefCell<FakeMemory>>, Rc<Cell<usize>>);

impl ReadMemory for Shared {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        self.1.set(self.1.get() + 1);
        self.0.borrow().read(address, into)
    }
}

/// A heap of modules.
struct Nets {
    heap: FakeHeap,
    base: u64,
}

impl Nets {
    fn new(layout: &'static PythonLayout) -> Self {
        let mut heap = FakeHeap::new(layout);
        let base = heap.python_class("Module", "torch.nn.modules.module", &[]);
        Self { heap, base }
    }

    fn class(&mut self, name: &str) -> u64 {
        let class = self.heap.python_class(name, "net", &[]);
        self.heap
            .put_word(class, crate::python::layout::ClassLayout::BASE, self.base);
        class
    }

    fn module(&mut self, class: u64, children: &[(&str, u64)]) -> u64 {
        let entries: Vec<_> = children
            .iter()
            .map(|&(name, child)| (self.heap.text(name), child))
            .collect();
        let children = self.heap.dict(&entries);
        self.heap.with_dict(class, &[("_modules", children)])
    }

    fn finish(self) -> (Shared, ModuleNames<Shared>) {
        let layout = *self.heap.layout;
        let (memory, _) = self.heap.finish();
        let memory = Shared(Rc::new(RefCell::new(memory)), Rc::default());
        (memory.clone(), ModuleNames::of(memory, layout))
    }
}

fn path(names: &mut ModuleNames<Shared>, modules: &[u64]) -> Module {
    path_of(names, modules, false)
}

/// Asks as if the kernel had just met the modules; nothing changes until there is an answer.
fn path_of(names: &mut ModuleNames<Shared>, modules: &[u64], cut: bool) -> Module {
    let modules = called_now(names, modules);
    let calls = Calls {
        modules: modules.clone(),
        cut,
    };
    let answer = names.path(&calls);
    in_the_end(names, &calls, answer)
}

fn called_now(names: &ModuleNames<Shared>, modules: &[u64]) -> Vec<ModuleCall> {
    let kind = u64::from(ObjectLayout::KIND);
    let called = modules.iter().map(|&object| ModuleCall {
        object,
        class: names
            .memory
            .read_u64(object.wrapping_add(kind))
            .unwrap_or(0),
    });
    called.collect()
}

/// Asks once and expects no answer yet.
fn ask(names: &mut ModuleNames<Shared>, modules: &[u64]) -> (Vec<ModuleCall>, Question) {
    let modules = called_now(names, modules);
    let calls = Calls {
        modules: modules.clone(),
        cut: false,
    };
    match names.path(&calls) {
        Answer::Later(question) => (modules, question),
        Answer::Is(module) => panic!("{module:?} at once"),
    }
}

fn ask_again(
    names: &mut ModuleNames<Shared>,
    (modules, question): (Vec<ModuleCall>, Question),
) -> Module {
    let calls = Calls {
        modules: modules.clone(),
        cut: false,
    };
    let answer = names.path_later(&calls, question);
    in_the_end(names, &calls, answer)
}

/// Asks again until there is an answer.
fn in_the_end(names: &mut ModuleNames<Shared>, calls: &Calls, mut answer: Answer) -> Module {
    for _ in 0..4 * confidence::STAYS {
        let question = match answer {
            Answer::Is(module) => return module,
            Answer::Later(question) => question,
        };
        pass(names, 1);
        answer = names.path_later(calls, question);
    }
    panic!("no answer to {calls:?}")
}

fn called(path: &str) -> Module {
    Module::Called(path.into())
}

/// Lets this many checks of unconfirmed modules pass.
fn pass(names: &mut ModuleNames<Shared>, moments: u32) {
    for _ in 0..moments {
        names.watch = ReadTiming::default();
        names.watch(&|| None);
    }
}

/// Makes the regular check run at once.
fn look(names: &mut ModuleNames<Shared>) -> bool {
    names.next_look = Instant::now();
    names.look_again(&|| None)
}

#[test]
fn a_module_has_its_class_and_the_attributes_that_lead_to_it() {
    for layout in &LAYOUTS {
        let mut nets = Nets::new(layout);
        let (linear, list, gpt) = (
            nets.class("Linear"),
            nets.class("ModuleList"),
            nets.class("GPT"),
        );
        let leaves = [(); 2].map(|()| nets.module(linear, &[]));
        let layers = nets.module(list, &[("0", leaves[0]), ("1", leaves[1])]);
        let nothing = nets.heap.int(0);
        let top = nets.module(gpt, &[("none", nothing), ("layers", layers)]);
        let (_, mut names) = nets.finish();
        assert_eq!(path(&mut names, &[top]), called("GPT"));
        // The list itself is never called.
        assert_eq!(path(&mut names, &[top, leaves[1]]), called("GPT.layers.1"));
    }
}

#[test]
fn trees_of_one_class_are_numbered_as_they_are_met() {
    let mut nets = Nets::new(&LAYOUTS[6]);
    let class = nets.class("Net");
    let child = nets.module(class, &[]);
    let tops = [
        nets.module(class, &[("child", child)]),
        nets.module(class, &[]),
    ];
    let (_, mut names) = nets.finish();
    assert_eq!(path(&mut names, &[tops[1]]), called("Net"));
    assert_eq!(path(&mut names, &[tops[0], child]), called("Net#2.child"));
    assert_eq!(path(&mut names, &[tops[1]]), called("Net"));
}

#[test]
fn the_reads_for_a_stack_grow_with_its_depth_and_not_with_its_square() {
    const DEPTH: usize = 100;
    let mut nets = Nets::new(&LAYOUTS[6]);
    let class = nets.class("Nest");
    let mut nest = vec![nets.module(class, &[])];
    for depth in 1..DEPTH {
        let inner = nest[depth - 1];
        nest.push(nets.module(class, &[("inner", inner)]));
    }
    nest.reverse();
    let (memory, mut names) = nets.finish();
    let innermost = format!("Nest{}", ".inner".repeat(DEPTH - 1));
    assert_eq!(path(&mut names, &nest), called(&innermost));
    let modules = called_now(&names, &nest);
    memory.1.set(0);
    let calls = Calls {
        modules,
        cut: false,
    };
    assert_eq!(names.path(&calls), Answer::Is(called(&innermost)));
    let reads = memory.1.get();
    // The module, and the slot in its parent.
    assert!(reads <= 2 * DEPTH, "{reads}");
}

#[test]
fn objects_of_called_trees_have_paths() {
    let mut nets = Nets::new(&LAYOUTS[6]);
    let class = nets.class("Net");
    let [child, average_child] = [(); 2].map(|()| nets.module(class, &[]));
    let net = nets.module(class, &[("child", child)]);
    let average = nets.module(class, &[("child", average_child)]);
    let (memory, mut names) = nets.finish();
    let mut calls = CallPaths::default();
    names.add_paths(&mut calls);
    assert!(calls.paths.is_empty());
    path(&mut names, &[net]);
    names.add_paths(&mut calls);
    let path_of = |calls: &CallPaths, object| {
        let path = calls.paths.get(&ModuleAddress { object, class });
        path.map(|path| path.to_string())
    };
    assert_eq!(path_of(&calls, child).as_deref(), Some("Net.child"));
    assert_eq!(path_of(&calls, average), None, "it was not called");
    path(&mut names, &[average]);
    names.add_paths(&mut calls);
    assert_eq!(
        path_of(&calls, average_child).as_deref(),
        Some("Net#2.child")
    );
    // A module that was freed had its path at the time of the snapshot.
    let references = net + u64::from(ObjectLayout::REFERENCES);
    memory
        .0
        .borrow_mut()
        .write(references, &0_u64.to_le_bytes());
    look(&mut names);
    names.add_paths(&mut calls);
    assert_eq!(path_of(&calls, net).as_deref(), Some("Net"));
}

#[test]
fn paths_are_added_once() {
    let mut nets = Nets::new(&LAYOUTS[6]);
    let class = nets.class("Net");
    let [net, other] = [(); 2].map(|()| nets.module(class, &[]));
    let (_, mut names) = nets.finish();
    let mut calls = CallPaths::default();
    path(&mut names, &[net]);
    names.add_paths(&mut calls);
    // A second visit of the first tree would add it again.
    calls.paths.clear();
    path(&mut names, &[other]);
    names.add_paths(&mut calls);
    let found: Vec<_> = calls.paths.keys().map(|module| module.object).collect();
    assert_eq!(found, [other]);
}

#[test]
fn a_module_in_two_places_has_the_first_one() {
    let mut nets = Nets::new(&LAYOUTS[6]);
    let class = nets.class("Net");
    let shared = nets.module(class, &[]);
    let top = nets.module(class, &[("encoder", shared), ("decoder", shared)]);
    let (_, mut names) = nets.finish();
    assert_eq!(path(&mut names, &[top, shared]), called("Net.encoder"));
}

#[test]
fn a_module_that_is_not_below_its_caller_starts_a_path() {
    let mut nets = Nets::new(&LAYOUTS[6]);
    let (net, loss) = (nets.class("Net"), nets.class("Loss"));
    let inner = nets.module(loss, &[]);
    let of_loss = nets.module(loss, &[("inner", inner)]);
    let child = nets.module(net, &[]);
    let top = nets.module(net, &[("child", child)]);
    let (_, mut names) = nets.finish();
    // By the time its children were read, it may have been another module for long.
    assert_eq!(path(&mut names, &[top, of_loss, inner]), Module::Unknown);
    assert_eq!(
        path(&mut names, &[top, of_loss, inner]),
        called("Loss.inner")
    );
    // Back in the tree that was entered first.
    assert_eq!(
        path(&mut names, &[top, of_loss, child]),
        called("Net.child")
    );
}

#[test]
fn a_module_that_is_called_alone_belongs_to_the_tree_that_it_was_met_in() {
    let mut nets = Nets::new(&LAYOUTS[6]);
    let net = nets.class("Net");
    let child = nets.module(net, &[]);
    let top = nets.module(net, &[("child", child)]);
    let (_, mut names) = nets.finish();
    assert_eq!(path(&mut names, &[child]), called("Net"));
    assert_eq!(path(&mut names, &[top]), called("Net#2"));
    // A checkpoint calls the child alone in the backward pass.
    assert_eq!(path(&mut names, &[child]), called("Net#2.child"));
}

#[test]
fn where_the_outermost_module_may_be_missing_only_trees_that_are_known_have_names() {
    let mut nets = Nets::new(&LAYOUTS[6]);
    let net = nets.class("Net");
    let child = nets.module(net, &[]);
    let top = nets.module(net, &[("child", child)]);
    let (_, mut names) = nets.finish();
    assert_eq!(path_of(&mut names, &[child], true), Module::Unknown);
    path(&mut names, &[top]);
    assert_eq!(path_of(&mut names, &[child], true), called("Net.child"));
}

#[test]
fn a_child_that_comes_later_is_found() {
    let layout = &LAYOUTS[6];
    let mut nets = Nets::new(layout);
    let net = nets.class("Net");
    let child = nets.module(net, &[]);
    let name = nets.heap.text("later");
    let (before, after) = (nets.heap.keys(&[], 0), nets.heap.keys(&[(name, child)], 0));
    let children = nets.heap.dict(&[]);
    let keys = crate::python::layout::DictLayout::KEYS;
    nets.heap.put_word(children, keys, before);
    let top = nets.heap.with_dict(net, &[("_modules", children)]);
    let (memory, mut names) = nets.finish();
    assert_eq!(path(&mut names, &[top]), called("Net"));
    memory
        .0
        .borrow_mut()
        .write(children + u64::from(keys), &after.to_le_bytes());
    assert_eq!(path(&mut names, &[top, child]), called("Net.later"));
}

#[test]
fn what_is_no_module_has_no_name_and_is_tried_again_after_a_while() {
    for layout in &LAYOUTS {
        let mut nets = Nets::new(layout);
        let plain = nets.heap.python_class("Plain", "net", &[]);
        let object = nets.heap.with_dict(plain, &[]);
        let (_, mut names) = nets.finish();
        for wrong in [object, plain, 0, 8, u64::MAX, object + 8] {
            assert_eq!(path(&mut names, &[wrong]), Module::Unknown, "{wrong:#x}");
        }
        assert!(look(&mut names));
        assert!(!look(&mut names), "there is nothing left to try");
    }
}

#[test]
fn what_never_has_a_name_is_tried_less_and_less_often() {
    let (_, mut names) = Nets::new(&LAYOUTS[6]).finish();
    let mut tries = Vec::new();
    for number in 1..=70 {
        path(&mut names, &[8]);
        if look(&mut names) {
            tries.push(number);
        }
    }
    assert_eq!(tries, [1, 3, 7, 15, 31, 63]);
}

#[test]
fn another_object_at_the_address_of_a_module_is_noticed() {
    for layout in &LAYOUTS {
        let mut nets = Nets::new(layout);
        let (net, other) = (nets.class("Net"), nets.class("Other"));
        let child = nets.module(net, &[]);
        let top = nets.module(net, &[("child", child)]);
        let (memory, mut names) = nets.finish();
        assert_eq!(path(&mut names, &[top, child]), called("Net.child"));
        assert!(!look(&mut names));
        let class = child + u64::from(ObjectLayout::KIND);
        memory.0.borrow_mut().write(class, &other.to_le_bytes());
        // It keeps its path, because it has the same slot.
        assert!(!look(&mut names));
        let class = top + u64::from(ObjectLayout::KIND);
        memory.0.borrow_mut().write(class, &other.to_le_bytes());
        assert!(look(&mut names));
        assert_eq!(path(&mut names, &[top, child]), called("Other.child"));
    }
}

#[test]
fn a_module_of_another_class_than_was_called_is_not_the_one() {
    let mut nets = Nets::new(&LAYOUTS[6]);
    let (net, other) = (nets.class("Net"), nets.class("Other"));
    let top = nets.module(net, &[]);
    let (_, mut names) = nets.finish();
    let of_class = |names: &mut ModuleNames<Shared>, class| {
        names.path(&Calls {
            modules: vec![ModuleCall { object: top, class }],
            cut: false,
        })
    };
    assert_eq!(of_class(&mut names, other), Answer::Is(Module::Unknown));
    assert!(names.trees.is_empty(), "nor is it a top");
    assert_eq!(of_class(&mut names, net), Answer::Is(called("Net")));
}

#[test]
fn a_new_stack_with_another_module_at_a_known_address_does_not_have_the_old_name() {
    for layout in &LAYOUTS {
        let mut nets = Nets::new(layout);
        let (net, other) = (nets.class("Net"), nets.class("Other"));
        let top = nets.module(net, &[]);
        let (memory, mut names) = nets.finish();
        assert_eq!(path(&mut names, &[top]), called("Net"));
        let class = top + u64::from(ObjectLayout::KIND);
        memory.0.borrow_mut().write(class, &other.to_le_bytes());
        assert_eq!(path(&mut names, &[top]), Module::Unknown);
        assert!(look(&mut names), "stacks from before are sent again");
        assert_eq!(path(&mut names, &[top]), called("Other"));
        assert!(!look(&mut names));
    }
}

#[test]
fn what_is_below_modules_that_are_made_and_dropped_has_a_name_once_it_stays() {
    for layout in &LAYOUTS {
        let mut nets = Nets::new(layout);
        let (net, loss) = (nets.class("Net"), nets.class("Loss"));
        let tops = [(); 2].map(|()| {
            let child = nets.module(loss, &[]);
            (nets.module(net, &[("child", child)]), child)
        });
        let stranger = nets.module(loss, &[]);
        let (memory, mut names) = nets.finish();
        let [(first, _), (second, child)] = tops;
        assert_eq!(path(&mut names, &[first]), called("Net"));
        let references = first + u64::from(ObjectLayout::REFERENCES);
        memory.0.borrow_mut().write(references, &[0; 8]);
        look(&mut names);
        // Its class is its name, regardless of its identity.
        assert_eq!(path(&mut names, &[second]), called("Net"));
        assert_eq!(path(&mut names, &[second, child]), Module::Unknown);
        assert_eq!(path(&mut names, &[child]), Module::Unknown);
        for _ in 0..2 {
            assert_eq!(path(&mut names, &[second, stranger]), Module::Unknown);
            pass(&mut names, confidence::STAYS);
        }
        assert_eq!(path(&mut names, &[second, child]), Module::Unknown);
        pass(&mut names, confidence::LASTS);
        assert_eq!(path(&mut names, &[second, child]), called("Net.child"));
        assert_eq!(path(&mut names, &[child]), called("Net.child"));
    }
}

#[test]
fn a_part_of_another_tree_at_the_place_of_a_top_is_no_top() {
    for layout in &LAYOUTS {
        let mut nets = Nets::new(layout);
        let (net, leaf) = (nets.class("Net"), nets.class("Leaf"));
        let (gone, top) = (nets.module(net, &[]), nets.module(net, &[]));
        let child = nets.module(leaf, &[]);
        let old = nets.module(net, &[("child", child)]);
        let (memory, mut names) = nets.finish();
        assert_eq!(path(&mut names, &[gone]), called("Net"));
        assert_eq!(path(&mut names, &[top]), called("Net#2"));
        assert_eq!(path(&mut names, &[old, child]), called("Net#3.child"));
        for top in [gone, old] {
            let class = top + u64::from(ObjectLayout::KIND);
            memory.0.borrow_mut().write(class, &leaf.to_le_bytes());
        }
        look(&mut names);
        for module in [gone, old] {
            assert_eq!(path(&mut names, &[top, module]), Module::Unknown);
        }
    }
}

#[test]
fn a_module_within_a_strange_tree_that_is_gone_at_some_moment_has_not_stayed() {
    for layout in &LAYOUTS {
        let mut nets = Nets::new(layout);
        let (net, loss) = (nets.class("Net"), nets.class("Loss"));
        let (top, stranger) = (nets.module(net, &[]), nets.module(loss, &[]));
        let (memory, mut names) = nets.finish();
        let references = stranger + u64::from(ObjectLayout::REFERENCES);
        let is_there = |there: u8| {
            let count = [there, 0, 0, 0, 0, 0, 0, 0];
            memory.0.borrow_mut().write(references, &count);
        };
        let first = ask(&mut names, &[top, stranger]);
        // Between its calls it was dropped and created again at the same address.
        is_there(0);
        pass(&mut names, 1);
        is_there(1);
        assert_eq!(ask_again(&mut names, first), Module::Unknown);
        pass(&mut names, confidence::STAYS);
        assert_eq!(path(&mut names, &[top, stranger]), Module::Unknown);
        pass(&mut names, confidence::LASTS);
        assert_eq!(path(&mut names, &[top, stranger]), called("Loss"));
    }
}

#[test]
fn a_tree_of_which_the_parts_change_places_before_it_was_seen_to_stay_gives_no_name() {
    for layout in &LAYOUTS {
        let mut nets = Nets::new(layout);
        let net = nets.class("Net");
        let parts = [(); 2].map(|()| nets.module(net, &[]));
        let (first, second) = (nets.heap.text("first"), nets.heap.text("second"));
        let [before, after] = [[parts[0], parts[1]], [parts[1], parts[0]]]
            .map(|[one, other]| nets.heap.keys(&[(first, one), (second, other)], 0));
        let children = nets.heap.dict(&[]);
        let keys = crate::python::layout::DictLayout::KEYS;
        nets.heap.put_word(children, keys, before);
        let top = nets.heap.with_dict(net, &[("_modules", children)]);
        let (memory, mut names) = nets.finish();
        let asked = ask(&mut names, &[top, parts[0]]);
        pass(&mut names, confidence::STAYS - 1);
        let keys = children + u64::from(keys);
        memory.0.borrow_mut().write(keys, &after.to_le_bytes());
        assert_eq!(ask_again(&mut names, asked), Module::Unknown);
        assert_eq!(path(&mut names, &[top, parts[0]]), called("Net.second"));
    }
}

#[test]
fn the_number_of_a_tree_that_is_over_is_given_to_the_next_one() {
    for layout in &LAYOUTS {
        let mut nets = Nets::new(layout);
        let net = nets.class("Net");
        let tops = [(); 3].map(|()| nets.module(net, &[]));
        let (memory, mut names) = nets.finish();
        assert_eq!(path(&mut names, &[tops[0]]), called("Net"));
        let references = tops[0] + u64::from(ObjectLayout::REFERENCES);
        memory.0.borrow_mut().write(references, &[0; 8]);
        assert_eq!(path(&mut names, &[tops[1]]), called("Net"));
        assert_eq!(path(&mut names, &[tops[2]]), called("Net#2"));
        assert!(!look(&mut names), "nothing has another name");
    }
}

#[test]
fn trees_have_an_end_even_where_they_hold_themselves() {
    let layout = &LAYOUTS[6];
    let mut nets = Nets::new(layout);
    let net = nets.class("Net");
    let name = nets.heap.text("own");
    let children = nets.heap.dict(&[]);
    let top = nets.heap.with_dict(net, &[("_modules", children)]);
    let keys = nets.heap.keys(&[(name, top)], 0);
    nets.heap
        .put_word(children, crate::python::layout::DictLayout::KEYS, keys);
    let (_, mut names) = nets.finish();
    assert_eq!(path(&mut names, &[top]), called("Net"));
}

#[test]
fn damaged_trees_are_no_reason_to_panic() {
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for layout in &LAYOUTS {
        for _ in 0..200 {
            let mut nets = Nets::new(layout);
            let net = nets.class("Net");
            let child = nets.module(net, &[]);
            let top = nets.module(net, &[("child", child)]);
            let (memory, mut names) = nets.finish();
            for _ in 0..6 {
                let word = 0x5000_0000 + 8 * (random() % 0x800);
                let value = match random() % 3 {
                    0 => random(),
                    1 => 0x5000_0000 + 8 * (random() % 0x800),
                    _ => random() % 0x1000,
                };
                memory.0.borrow_mut().write(word, &value.to_le_bytes());
                path(&mut names, &[top, child]);
                look(&mut names);
            }
        }
    }
}
