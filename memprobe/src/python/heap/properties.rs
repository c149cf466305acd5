//! Property: reading terminates soon, whatever the target's memory contains.

use std::cell::Cell;

use proptest::prelude::*;

use super::collector::{self, Generation, Listed, WalkExtent};
use super::contents::Step;
use super::frames::Variable;
use super::image::Image;
use super::paths::Paths;
use super::process_scan::{PreviousScan, ProcessScan};
use super::{Heap, modules, notebook, optimizers};
use crate::process::memory::{Cause, ReadMemory, ReadResult, Unreadable};
use crate::python::layout::{ClassLayout, PythonLayout};
use crate::python::versions::LAYOUTS;

const BASE: u64 = 0x7f00_0000_0000;
const SIZE: u64 = 256 << 10;

/// Memory full of pointers into itself, lengths and zeros. Part of it changes with each read.
struct Hostile {
    seed: u64,
    /// Changing words out of 256.
    restless: u64,
    reads: Cell<u64>,
}

impl Hostile {
    fn new(seed: u64, restless: u64) -> Self {
        Self {
            seed,
            restless,
            reads: Cell::new(0),
        }
    }

    fn mixed(&self, at: u64) -> u64 {
        let mut word = at
            .wrapping_add(self.seed)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word ^ word >> 27
    }

    /// The word at a multiple of eight.
    fn word(&self, at: u64) -> u64 {
        let mut random = self.mixed(at);
        if random & 0xff < self.restless {
            random = self.mixed(at ^ self.reads.get() << 32);
        }
        let pointer = BASE + (random >> 8) % SIZE / 16 * 16;
        match random & 7 {
            0..4 => pointer,
            // Flags of a ready class, of every kind.
            4 => ClassLayout::READY | random & 0xffff_ffff & !0xff0,
            5 => random >> 8 & 0xff,
            6 => 0,
            _ => random,
        }
    }
}

impl ReadMemory for Hostile {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        self.reads.set(self.reads.get() + 1);
        let cause = Cause::NotMapped;
        let end = address.checked_add(into.len() as u64);
        if address < BASE || end.is_none_or(|end| end > BASE + SIZE) {
            return Err(Unreadable { address, cause });
        }
        for (at, byte) in (address..).zip(into) {
            *byte = self.word(at & !7).to_le_bytes()[(at % 8) as usize];
        }
        Ok(())
    }
}

fn explore(memory: &impl ReadMemory, layout: &PythonLayout, seed: u64) {
    let image = Image::of(memory, 1 << 20);
    let _ = collector::interpreters(&image, layout, BASE + seed % SIZE);
    let lists = &layout.heap.collector;
    let (mut listed, _) = collector::listed(&image, lists, BASE + 64, WalkExtent::All);
    let at = |number: u64| BASE + (seed.wrapping_mul(number) % SIZE) / 16 * 16;
    listed.extend((0..400).map(|number| Listed {
        address: at(number),
        class: at(number + 7),
        generation: Generation::Old,
    }));
    let heap = Heap::of(&image, layout);
    let mut scan = ProcessScan::of(&heap, &listed);
    scan.keep_contents(&heap);
    let known = PreviousScan::of(scan.clone(), &heap.classes.borrow());
    let mut again = ProcessScan::default();
    again.add_known(&heap, &known);
    let extent = WalkExtent::Added(&known.endings);
    let _ = collector::listed(&image, lists, BASE + 64, extent);
    // Treat the objects as every kind that PyTorch makes.
    let all: Vec<_> = scan.objects.iter().map(|object| object.address()).collect();
    scan.globals = all.clone();
    let tree = modules::ObjectTree::of(modules::read(&heap, &all));
    assert!(tree.order.len() <= tree.modules.len());
    let _ = optimizers::read(&heap, &all);
    let _ = notebook::cell(&image, layout, BASE, "/ipykernel_1/2.py");
    for &object in &all {
        let _ = heap.cached(object, |_, _| ());
        let _ = heap.of_threads(object, |_, _| ());
        let _ = heap.queued(object, |_, _| ());
        let _ = heap.context_values(object, |_, _| ());
        notebook::prefer_history(&heap, &mut vec![(Step::Attribute(object), object)]);
    }
    let variables: Vec<_> = all
        .iter()
        .map(|&value| Variable {
            text: "a.py:1 f() -> x".into(),
            name: "x".into(),
            note: "",
            value,
            rank: 0,
        })
        .collect();
    image.close();
    let paths = Paths::search(&heap, &scan, &variables);
    for address in scan.objects.iter().map(|object| object.address()) {
        let _ = paths.to_object(address);
        let _ = paths.to_tensor(address, 16);
        let _ = heap.key(address);
    }
    assert!(image.extent().bytes <= 1 << 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn hostile_memory_is_read_to_an_end(seed: u64, restless in 0_u64..64, version in 0..LAYOUTS.len()) {
        let memory = Hostile::new(seed, restless);
        explore(&memory, &LAYOUTS[version], seed | 1);
    }
}
