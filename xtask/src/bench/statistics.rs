//! Medians and quartiles. Other load on the machine causes outliers on one side only, which distort
//! a mean.

/// Repeated measurements of one number, sorted; never empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured(Vec<f64>);

impl Measured {
    /// Returns `None` if there are no values.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        (!values.is_empty()).then_some(Self(values))
    }

    /// Returns the quantile for `share` (0 to 1), with linear interpolation.
    pub fn quantile(&self, share: f64) -> f64 {
        let place = share.clamp(0.0, 1.0) * (self.0.len() - 1) as f64;
        let below = place.floor() as usize;
        let above = place.ceil() as usize;
        self.0[below] + (self.0[above] - self.0[below]) * (place - below as f64)
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Returns the first and third quartile.
    pub fn quartiles(&self) -> (f64, f64) {
        (self.quantile(0.25), self.quantile(0.75))
    }
}

/// Random orders, so that nothing always follows the same thing (xorshift64).
#[derive(Debug)]
pub struct Shuffle(u64);

impl Shuffle {
    /// Seeds the orders by the clock; the samples keep them.
    pub fn new() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self::seeded(now.map_or(1, |now| now.as_nanos() as u64))
    }

    fn seeded(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Returns the numbers below `count` in a random order (Fisher and Yates).
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order = Vec::from_iter(0..count);
        for last in (1..count).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            order.swap(last, (self.0 % (last as u64 + 1)) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(values: &[f64]) -> Measured {
        Measured::of(values.to_vec()).unwrap()
    }

    #[test]
    fn the_median_does_not_care_for_one_outlier() {
        assert_eq!(measured(&[3.0, 1.0, 1000.0, 2.0, 4.0]).median(), 3.0);
    }

    #[test]
    fn between_two_measurements_lies_their_middle() {
        assert_eq!(measured(&[1.0, 2.0]).median(), 1.5);
        assert_eq!(measured(&[1.0, 2.0, 3.0, 4.0]).quartiles(), (1.75, 3.25));
    }

    #[test]
    fn orders_are_whole_and_differ() {
        let mut shuffle = Shuffle::seeded(7);
        let orders: Vec<_> = (0..20).map(|_| shuffle.order(4)).collect();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
        }
        assert!((0..4).all(|first| orders.iter().any(|order| order[0] == first)));
    }

    #[test]
    fn one_measurement_is_its_own_median_and_none_has_none() {
        assert_eq!(measured(&[7.0]).quartiles(), (7.0, 7.0));
        assert_eq!(Measured::of(Vec::new()), None);
    }
}
