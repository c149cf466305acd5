use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const PLACES: [LayerKey; 3] = [
    (1, Category::Activation),
    (1, Category::Gradient),
    (2, Category::Unknown),
];

#[derive(Clone, Copy, Debug)]
enum Deed {
    Come { place: usize, size: u64 },
    Go { nth: usize },
    Turn { nth: usize, to: usize },
    EndLap,
}

fn deed() -> impl Strategy<Value = Deed> {
    let place = 0..PLACES.len();
    prop_oneof![
        5 => (place.clone(), 1..9_u64).prop_map(|(place, size)| Deed::Come { place, size }),
        4 => any::<usize>().prop_map(|nth| Deed::Go { nth }),
        2 => (any::<usize>(), place).prop_map(|(nth, to)| Deed::Turn { nth, to }),
        2 => Just(Deed::EndLap),
    ]
}

#[derive(Clone, Copy)]
struct Block {
    size: u64,
    born: u64,
}

/// Reference model: the same history, block by block.
#[derive(Default)]
struct Plainly {
    /// Each block with its latest place.
    blocks: Vec<(Block, usize)>,
    live: Vec<usize>,
    /// Live blocks at the peak of each interval, and their bytes.
    intervals: Vec<(Vec<usize>, u64)>,
}

impl Plainly {
    fn allocated(&self) -> u64 {
        self.live.iter().map(|at| self.blocks[*at].0.size).sum()
    }

    fn begin_interval(&mut self) {
        self.intervals.push((self.live.clone(), self.allocated()));
    }

    fn held(&self, interval: usize, place: usize) -> u64 {
        let live = self.intervals[interval].0.iter().map(|at| self.blocks[*at]);
        let there = live.filter(|(_, at)| *at == place);
        there.map(|(block, _)| block.size).sum()
    }
}

/// Applies the deeds to both. A moment level with the interval's peak replaces it.
fn play(deeds: &[Deed], most: usize) -> (LayerHistory, Plainly) {
    let (mut history, mut plainly) = (LayerHistory::new(0, most), Plainly::default());
    plainly.begin_interval();
    let mut ordinal = 0;
    for deed in deeds {
        match *deed {
            Deed::Come { place, size } => {
                ordinal += 1;
                plainly.live.push(plainly.blocks.len());
                plainly.blocks.push((
                    Block {
                        size,
                        born: ordinal,
                    },
                    place,
                ));
                history.add(PLACES[place], size, 0);
            }
            Deed::Go { nth } if !plainly.live.is_empty() => {
                ordinal += 1;
                let gone = plainly.live.remove(nth % plainly.live.len());
                let (block, place) = plainly.blocks[gone];
                history.release(PLACES[place], block.size, 0);
            }
            Deed::Turn { nth, to } if !plainly.live.is_empty() => {
                let turned = plainly.live[nth % plainly.live.len()];
                let (block, from) = plainly.blocks[turned];
                plainly.blocks[turned].1 = to;
                if from != to {
                    let shift = Shift {
                        size: block.size,
                        born: block.born,
                        peak: 0,
                        was: AtPeak::Gone,
                        oldest: 0,
                    };
                    let places = [Some(PLACES[from]), Some(PLACES[to])];
                    history.shift(places, shift);
                }
                continue;
            }
            Deed::EndLap => {
                plainly.begin_interval();
                history.pass_to(plainly.intervals.len() as u64 - 1, ordinal);
                continue;
            }
            Deed::Go { .. } | Deed::Turn { .. } => continue,
        }
        let (now, live) = (plainly.allocated(), plainly.live.clone());
        if let Some(highest) = plainly
            .intervals
            .last_mut()
            .filter(|(_, highest)| now >= *highest)
        {
            *highest = (live, now);
            history.reach(ordinal);
        }
    }
    (history, plainly)
}

fn held(history: &LayerHistory, interval: u64) -> BTreeMap<LayerKey, u64> {
    let all = history.iter();
    all.map(|(place, sample)| (*place, history.bytes_at_interval(sample, interval)))
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
}

proptest! {
    #[test]
    fn each_interval_matches_its_peak_after_reclassification(
        deeds in prop::collection::vec(deed(), 1..200),
        most in prop_oneof![Just(1 << 20), Just(6_usize)],
    ) {
        let (history, plainly) = play(&deeds, most);
        let last = plainly.intervals.len() - 1;
        prop_assert!(history.knows(last as u64) && !history.knows(last as u64 + 1));
        for interval in (0..=last).filter(|interval| history.knows(*interval as u64)) {
            let places = PLACES.iter().enumerate();
            let wanted: BTreeMap<LayerKey, u64> = places
                .map(|(at, place)| (*place, plainly.held(interval, at)))
                .filter(|(_, bytes)| *bytes > 0)
                .collect();
            prop_assert_eq!(held(&history, interval as u64), wanted, "lap {}", interval);
        }
        if most == 1 << 20 {
            prop_assert!(history.knows(0));
        }
        let differences: usize = history.iter().map(|(_, sample)| sample.differences()).sum();
        prop_assert_eq!(differences, history.differences);
    }
}

#[test]
fn equal_intervals_take_no_memory() {
    let mut history = LayerHistory::new(0, 1 << 20);
    history.add(PLACES[0], 512, 0);
    history.reach(1);
    for interval in 1..1000 {
        history.pass_to(interval, 1);
        history.add(PLACES[1], 64, 0);
        history.reach(1);
        history.release(PLACES[1], 64, 0);
    }
    assert_eq!(history.differences, 0);
    assert_eq!(
        held(&history, 500),
        BTreeMap::from([(PLACES[0], 512), (PLACES[1], 64)])
    );
}

#[test]
fn without_capacity_no_interval_is_stored() {
    let mut history = LayerHistory::new(0, 0);
    history.add(PLACES[0], 512, 0);
    history.reach(1);
    history.pass_to(100, 1);
    assert!(history.ended.is_empty() && history.changed.is_empty());
    assert!(!history.knows(99));
}
