//! States of a recording that are kept for the way back, within a bound of bytes.

/// State at the begin of a group.
struct Checkpoint<S> {
    group: usize,
    bytes: u64,
    state: S,
}

/// States at every `stride`-th group, evenly over what was read. The first one always stays.
pub(super) struct Checkpoints<S> {
    states: Vec<Checkpoint<S>>,
    stride: usize,
    bytes: u64,
    max_bytes: u64,
    max_states: usize,
}

impl<S> Checkpoints<S> {
    /// Keeps at most so many states, of at most so many bytes together.
    pub(super) fn within(max_states: usize, max_bytes: u64) -> Self {
        Self {
            states: Vec::new(),
            stride: 1,
            bytes: 0,
            max_bytes,
            max_states,
        }
    }

    /// True if the state at the begin of a group is one to keep.
    pub(super) fn is_due(&self, group: usize) -> bool {
        group.is_multiple_of(self.stride)
    }

    /// Keeps the state at the begin of a group, which comes after the ones before. States beyond the bounds go: every
    /// second one, until the rest fits.
    pub(super) fn keep(&mut self, group: usize, bytes: u64, state: S) {
        self.states.push(Checkpoint {
            group,
            bytes,
            state,
        });
        self.bytes = self.bytes.saturating_add(bytes);
        while self.states.len() > 1 && self.is_over() {
            self.stride = self.stride.saturating_mul(2);
            let stride = self.stride;
            self.states.retain(|kept| kept.group.is_multiple_of(stride));
            self.bytes = self.states.iter().map(|kept| kept.bytes).sum();
        }
    }

    fn is_over(&self) -> bool {
        self.states.len() > self.max_states || self.bytes > self.max_bytes
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &S> {
        self.states.iter().map(|kept| &kept.state)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Groups of the states that are kept of a recording whose states have these sizes.
    fn thinned(max_states: usize, max_bytes: u64, sizes: &[u64]) -> Checkpoints<usize> {
        let mut states = Checkpoints::within(max_states, max_bytes);
        for (group, bytes) in sizes.iter().enumerate() {
            if states.is_due(group) {
                states.keep(group, *bytes, group);
            }
        }
        states
    }

    #[test]
    fn states_thin_out_evenly() {
        let states = thinned(64, 100, &[10; 65]);
        let groups: Vec<usize> = states.iter().copied().collect();
        assert_eq!(groups, [0, 8, 16, 24, 32, 40, 48, 56, 64]);
        let states = thinned(4, u64::MAX, &[1; 9]);
        assert_eq!(states.iter().copied().collect::<Vec<_>>(), [0, 4, 8]);
    }

    #[test]
    fn states_that_are_too_large_leave_the_first_alone() {
        let states = thinned(64, 100, &[0, 500, 500, 500, 500]);
        assert_eq!(states.iter().copied().collect::<Vec<_>>(), [0]);
        assert_eq!(thinned(64, 100, &[500, 1]).iter().count(), 1);
    }

    proptest! {
        #[test]
        fn the_bounds_hold_whatever_the_sizes_are(
            sizes in prop::collection::vec(0..5000_u64, 1..200),
            max_states in 1..40_usize,
            max_bytes in 1..20_000_u64,
        ) {
            let states = thinned(max_states, max_bytes, &sizes);
            let groups: Vec<usize> = states.iter().copied().collect();
            prop_assert_eq!(groups[0], 0);
            prop_assert!(groups.len() <= max_states);
            let bytes: u64 = groups.iter().map(|group| sizes[*group]).sum();
            prop_assert!(groups.len() == 1 || bytes <= max_bytes, "{} bytes", bytes);
            prop_assert_eq!(bytes, states.bytes);
            // At most twice as far apart as the bounds demand: all of the last stride are there.
            let expected: Vec<usize> = (0..sizes.len()).step_by(states.stride).collect();
            prop_assert!(groups.iter().all(|group| expected.contains(group)));
        }
    }
}
