use hashbrown::HashMap;

use super::*;
use crate::process::memory::fake::FakeMemory;
use crate::python::heap::fake::FakeHeap;
use crate::python::versions::LAYOUTS;

#[test]
fn what_a_full_copy_lacks_is_due_to_its_limit_and_damage_stays_damage() {
    let beyond = Broken::Unreadable(Cause::NotKept.at(0x7000));
    for broken in [None, Some(Broken::Allocating), Some(beyond)] {
        assert_eq!(Broken::of_full_copy(broken), Broken::TooLarge);
    }
    for broken in [
        Broken::TooMany,
        Broken::Link(0x7000),
        Broken::Unreadable(Cause::NotMapped.at(0x7000)),
    ] {
        assert_eq!(Broken::of_full_copy(Some(broken)), broken);
    }
}

/// List of an object of a [`FakeHeap`], by its place among all objects.
fn generation_of(place: usize) -> Generation {
    [
        Generation::New,
        Generation::Young,
        Generation::Old,
        Generation::Frozen,
    ][place % 4]
}

#[test]
fn generations_that_begin_four_bytes_earlier_are_found_by_their_lists() {
    for layout in &LAYOUTS {
        let mut packed = Box::new(*layout);
        packed.heap.collector.generations -= 4;
        let packed: &PythonLayout = Box::leak(packed);
        for of_process in [layout, packed] {
            let mut heap = FakeHeap::new(of_process);
            for _ in 0..11 {
                heap.list(&[]);
            }
            let (memory, interpreter) = heap.finish();
            let found = generations_offset(&memory, &layout.heap.collector, interpreter);
            assert_eq!(found, Some(of_process.heap.collector.generations));
            let none = generations_offset(&memory, &layout.heap.collector, interpreter + 8);
            assert_eq!(none, None, "there are no lists");
        }
    }
}

#[test]
fn lists_that_are_taken_apart_are_not_followed() {
    let layout = &LAYOUTS[0];
    let mut heap = FakeHeap::new(layout);
    let objects: Vec<_> = (0..9).map(|_| heap.list(&[])).collect();
    let (mut memory, interpreter) = heap.finish();
    let walk = |memory: &FakeMemory| {
        let lists = &layout.heap.collector;
        let (listed, walked) = listed(memory, lists, interpreter, WalkExtent::All);
        (walked, listed.len())
    };
    assert_eq!(walk(&memory), (Ok(()), 9));
    // A header that no longer points back. The other lists remain valid.
    memory.write(objects[4] - CollectorLayout::HEAD_SIZE + 8, &[0; 8]);
    let (walked, found) = walk(&memory);
    assert_eq!(walked, Err(Broken::Link(objects[4] - 16)));
    assert_eq!(found, 7);
    let collector = layout.heap.collector;
    let mark = interpreter + u64::from(collector.start) + u64::from(collector.collecting);
    memory.write(mark, &[1, 0, 0, 0]);
    assert_eq!(walk(&memory), (Err(Broken::Collecting), 0));
}

#[test]
fn a_torn_link_is_recognized_from_its_two_objects_alone() {
    let layout = &LAYOUTS[0];
    let none = Endings::default();
    for extent in [WalkExtent::All, WalkExtent::Added(&none)] {
        let mut heap = FakeHeap::new(layout);
        let objects: Vec<_> = (0..12).map(|_| heap.list(&[])).collect();
        let (mut memory, interpreter) = heap.finish();
        let is_forward = matches!(extent, WalkExtent::All);
        // The reference that leads back, in the direction of the walk, and the one that leads on.
        let node = objects[4] - CollectorLayout::HEAD_SIZE;
        let [on, back] = if is_forward { [0, 8] } else { [8, 0] };
        let word = |memory: &FakeMemory, at| memory.read_u64(at).unwrap();
        let whole = word(&memory, node + back);
        memory.write(node + back, &[0; 8]);
        let lists = &layout.heap.collector;
        let mut walk = ListWalk::new(&memory, lists, extent, |_| ());
        assert_eq!(walk.interpreter(interpreter), Err(Broken::Link(node)));
        let torn = walk.torn.expect("a torn link");
        assert_eq!(torn.fault(&memory), Some(Broken::Link(node)));
        // The object has left the list.
        let before = whole & !CollectorLayout::MARKS;
        let leads_on = word(&memory, before + on);
        memory.write(before + on, &[0; 8]);
        assert_eq!(torn.fault(&memory), None);
        // It is in the list again, torn at first, and then whole.
        memory.write(before + on, &leads_on.to_le_bytes());
        assert_eq!(torn.fault(&memory), Some(Broken::Link(node)));
        memory.write(node + back, &whole.to_le_bytes());
        assert_eq!(torn.fault(&memory), None);
    }
}

#[test]
fn what_was_added_to_a_list_is_found_from_its_end() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let objects: Vec<_> = (0..40_000).map(|_| heap.list(&[])).collect();
        let (memory, interpreter) = heap.finish();
        // Places of the old objects that are found.
        let found = |known: &dyn Fn(usize) -> Option<Generation>| {
            let known = (0..40_000).filter_map(|place| Some((objects[place], known(place)?)));
            let known = Endings::of(known.collect::<Vec<_>>().into_iter());
            let (lists, extent) = (&layout.heap.collector, WalkExtent::Added(&known));
            let (listed, walked) = listed(&memory, lists, interpreter, extent);
            walked.unwrap();
            let places: HashMap<u64, usize> = objects.iter().copied().zip(0..).collect();
            let old = listed
                .into_iter()
                .filter(|it| it.generation == Generation::Old);
            old.map(|it| places[&it.address]).collect::<Vec<_>>()
        };
        let backwards = |from: usize, count: usize| -> Vec<_> {
            (0..count).map(|number| from - 4 * number).collect()
        };
        // 50 objects were added behind all others.
        let added = |place: usize| (place < 39_800).then(|| generation_of(place));
        assert_eq!(found(&added), backwards(39_998, 50 + 255));
        // The collector has moved some of the old ones behind them.
        let moved =
            |place: usize| (!(39_600..39_900).contains(&place)).then(|| generation_of(place));
        assert_eq!(found(&moved), backwards(39_998, 25 + 75 + 230));
        // The last ones were young, and known as such.
        let grown = |place: usize| {
            let was = if place < 39_800 {
                generation_of(place)
            } else {
                Generation::New
            };
            Some(was)
        };
        assert_eq!(found(&grown), backwards(39_998, 50 + 255));
        // A list of few objects may have been put into another order.
        let few = |place: usize| (place < 32_000).then(|| generation_of(place));
        assert_eq!(found(&few), backwards(39_998, 1 << 13));
        // Without a known object, the walk ends at the beginning.
        assert_eq!(found(&|_| None), backwards(39_998, 10_000));
    }
}

#[test]
fn of_young_objects_many_are_looked_at_again_and_not_all() {
    let layout = &LAYOUTS[0];
    let mut heap = FakeHeap::new(layout);
    let objects: Vec<_> = (0..200_000).map(|_| heap.list(&[])).collect();
    let (memory, interpreter) = heap.finish();
    let known = objects.into_iter().enumerate();
    let mut known: Vec<_> = known
        .map(|(place, object)| (object, generation_of(place)))
        .collect();
    known.sort_by_key(|(_, list)| *list as u8);
    let known = Endings::of(known.into_iter());
    let (lists, extent) = (&layout.heap.collector, WalkExtent::Added(&known));
    let (listed, walked) = listed(&memory, lists, interpreter, extent);
    walked.unwrap();
    let young = |it: &&Listed| !matches!(it.generation, Generation::Old | Generation::Frozen);
    assert_eq!(listed.iter().filter(young).count(), 2 << 15);
    assert_eq!(listed.len(), (2 << 15) + 2 * 255);
}
