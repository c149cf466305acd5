//! Ends of backward passes on the thread that called `backward()`, as those of the CPU.
//!
//! No event shows such an end. If no optimizer's step follows, a block freed next is of the pass, or a gradient that the
//! program drops. A block without the size of a parameter is no gradient. The others are gradients if, in a pass before,
//! the blocks freed after the last allocation had the sizes of all parameters, each once.

use std::collections::{BTreeMap, HashSet};

use super::category::CategoryRule;

/// Cap on origins of gradients.
const MAX_GRADIENTS: usize = 1 << 16;

/// Origin and bytes of a block.
type Freed = (u32, u64);

#[derive(Clone, Debug, Default)]
pub(super) struct PassTail {
    /// Number of parameters by their bytes, when the pass began.
    parameters: BTreeMap<u64, usize>,
    /// Blocks with the size of a parameter, freed since the pass last allocated.
    freed: Vec<Freed>,
    gradients: HashSet<Freed>,
}

impl PassTail {
    /// Begins a pass of a program with parameters of so many bytes.
    pub(super) fn begin(&mut self, parameters: impl Iterator<Item = u64>) {
        self.parameters.clear();
        self.freed.clear();
        for bytes in parameters {
            *self.parameters.entry(bytes).or_default() += 1;
        }
    }

    pub(super) fn allocate(&mut self) {
        self.freed.clear();
    }

    /// Returns the rule of a block that the pass allocated and that is freed now.
    pub(super) fn free(&mut self, origin: u32, bytes: u64) -> CategoryRule {
        if self.parameters.is_empty() {
            return CategoryRule::InOrAfterBackward;
        }
        if !self.parameters.contains_key(&bytes) {
            return CategoryRule::WithinBackward;
        }
        // One more than there are parameters tells as much as many more.
        if self.freed.len() <= self.parameters.values().sum() {
            self.freed.push((origin, bytes));
        }
        match self.gradients.contains(&(origin, bytes)) {
            true => CategoryRule::FreedAfterBackward,
            false => CategoryRule::InOrAfterBackward,
        }
    }

    /// Ends a pass that `survivors` blocks outlive.
    pub(super) fn end(&mut self, survivors: usize) {
        let mut sizes = BTreeMap::<u64, usize>::new();
        for (_, bytes) in &self.freed {
            *sizes.entry(*bytes).or_default() += 1;
        }
        let is_one_each = !self.freed.is_empty() && sizes == self.parameters && survivors == 0;
        if is_one_each && self.gradients.len() < MAX_GRADIENTS {
            self.gradients.extend(self.freed.drain(..));
        }
        self.freed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHT: Freed = (1, 4096);
    const BIAS: Freed = (2, 512);

    /// A pass that frees these blocks after its last allocation; returns their rules.
    fn pass(tail: &mut PassTail, freed: &[Freed], survivors: usize) -> Vec<CategoryRule> {
        tail.begin([4096, 512].into_iter());
        tail.free(9, 4096);
        tail.allocate();
        let freed = freed.iter();
        let rules = freed
            .map(|(origin, bytes)| tail.free(*origin, *bytes))
            .collect();
        tail.end(survivors);
        rules
    }

    #[test]
    fn blocks_of_all_parameters_sizes_are_gradients_from_the_second_pass_on() {
        let mut tail = PassTail::default();
        let passing = (3, 1536);
        let rules = pass(&mut tail, &[passing, WEIGHT, BIAS], 0);
        let unknown = CategoryRule::InOrAfterBackward;
        assert_eq!(rules, [CategoryRule::WithinBackward, unknown, unknown]);
        let rules = pass(&mut tail, &[WEIGHT, BIAS, (9, 4096)], 0);
        let gradient = CategoryRule::FreedAfterBackward;
        assert_eq!(rules, [gradient, gradient, unknown]);
    }

    #[test]
    fn other_blocks_of_a_parameters_size_stay_unknown() {
        for (freed, survivors) in [
            (&[WEIGHT, BIAS, (3, 4096)][..], 0),
            (&[WEIGHT], 0),
            (&[WEIGHT, BIAS], 1),
            (&[], 0),
        ] {
            let mut tail = PassTail::default();
            pass(&mut tail, freed, survivors);
            let rules = pass(&mut tail, &[WEIGHT], 0);
            assert_eq!(
                rules,
                [CategoryRule::InOrAfterBackward],
                "{freed:?} {survivors}"
            );
        }
    }

    #[test]
    fn without_known_parameters_everything_is_unknown() {
        let mut tail = PassTail::default();
        tail.begin(std::iter::empty());
        assert_eq!(tail.free(1, 1536), CategoryRule::InOrAfterBackward);
        tail.end(0);
    }
}
