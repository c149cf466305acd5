//! Properties: reading terminates within its bounds whatever the target's memory contains, and no returned
//! tensor contradicts itself.

use proptest::prelude::*;

use super::graph::RawGraph;
use super::tests::{Training, process};

/// Strategy for a corrupt word: any value, a small number, a huge length, or an address in the process.
/// Addresses create cycles and pointers to objects of the wrong kind.
fn astray(objects: Vec<u64>) -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..0x400_u64,
        Just(u64::MAX),
        Just(1 << 40),
        prop::sample::select(objects),
    ]
}

/// Checks that the result is consistent.
fn check(graph: &RawGraph) {
    for tensor in &graph.tensors {
        if let Some(geometry) = &tensor.geometry {
            assert!(geometry.shape.len() <= 64);
            assert!(geometry.strides.is_empty() || geometry.strides.len() == geometry.shape.len());
        }
        assert!(
            tensor
                .storage
                .is_none_or(|storage| graph.storage(storage).is_some())
        );
    }
    for saved in &graph.saved {
        assert!(graph.node(saved.node).is_some());
    }
    assert!(graph.tensors.is_sorted_by(|a, b| a.object < b.object));
    assert!(graph.nodes.is_sorted_by(|a, b| a.address < b.address));
    assert!(graph.saved.is_sorted_by(|a, b| a < b));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_process_that_lies_is_read_to_an_end(
        minor in 0..=15_u32,
        spoilt in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..40),
        seed in prop::collection::vec(any::<u64>(), 40),
        kinds in prop::collection::vec(0..5_u8, 40),
        knows_version in any::<bool>(),
    ) {
        let mut training = Training::of(process(minor));
        let objects = training.process.heap.all.clone();
        for (at, (object, word)) in spoilt.into_iter().enumerate() {
            let (address, size) = objects[object.index(objects.len())];
            if size < 8 {
                continue;
            }
            let to = address + word.index(size / 8) as u64 * 8;
            let value = match kinds[at] {
                0 => seed[at],
                1 => seed[at] % 0x400,
                2 => u64::MAX - seed[at] % 16,
                3 => 1 << (seed[at] % 64),
                _ => objects[seed[at] as usize % objects.len()].0,
            };
            training.process.heap.memory.write(to, &value.to_le_bytes());
        }
        let version = format!("2.{minor}.0");
        if let Ok(layouts) = training.layouts(knows_version.then_some(&version)) {
            check(&training.collect(&layouts));
        }
    }

    #[test]
    fn one_word_that_leads_astray_harms_only_what_it_belongs_to(
        minor in 0..=15_u32,
        object in any::<prop::sample::Index>(),
        word in any::<prop::sample::Index>(),
        (objects, value) in {
            let objects: Vec<u64> = Training::of(process(15)).process.heap.all.iter().map(|one| one.0).collect();
            (Just(objects.clone()), astray(objects))
        },
    ) {
        let _ = objects;
        let mut training = Training::of(process(minor));
        let layouts = training.layouts(Some(&format!("2.{minor}.0"))).unwrap();
        let all = training.process.heap.all.clone();
        let (address, size) = all[object.index(all.len())];
        prop_assume!(size >= 8);
        let to = address + word.index(size / 8) as u64 * 8;
        training.process.heap.memory.write(to, &value.to_le_bytes());
        check(&training.collect(&layouts));
    }
}
