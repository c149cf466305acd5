//! Robust trend test: decides if a series grows and at what rate, unaffected by single outliers.

/// Fewest steps fitted: shorter series rise by chance.
pub(super) const FEWEST_STEPS: usize = 8;

/// Least Kendall's tau of a growing series: rising pairs of steps minus falling ones, as a share of all
/// pairs.
const LEAST_TAU: f64 = 0.6;

/// Least tau in standard deviations of a series without trend. It selects less than one of a thousand random
/// rows.
const LEAST_DEVIATIONS: f64 = 3.3;

/// Least net gain as a share of all rises: the length of a random walk goes up and down.
const LEAST_NET: f64 = 0.5;

/// Least slope at the end as a share of the overall slope: a cache that has filled up stays below it.
const LEAST_LATE: f64 = 0.25;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Theil-Sen slope per step: median over all pairs of steps.
    pub slope: f64,
    /// Share of steps that are higher than the step before, 0 to 1.
    pub grew: f64,
}

/// Growth of a series; `None` if it does not clearly grow.
pub(super) fn fit(values: &[u64]) -> Option<Fit> {
    if values.len() < FEWEST_STEPS {
        return None;
    }
    let slope = theil_sen(values);
    let grows = slope > 0.0
        && tau(values) >= least_tau(values.len())
        && keeps(values)
        && late_slope(values) >= LEAST_LATE * slope;
    grows.then(|| Fit {
        slope,
        grew: share_of_rises(values),
    })
}

/// Theil-Sen estimator: the median slope over all pairs.
pub(super) fn theil_sen(values: &[u64]) -> f64 {
    let mut slopes = Vec::with_capacity(values.len() * values.len().saturating_sub(1) / 2);
    for (at, one) in values.iter().enumerate() {
        for (further, other) in values[at + 1..].iter().enumerate() {
            slopes.push((*other as f64 - *one as f64) / (further + 1) as f64);
        }
    }
    median(&mut slopes)
}

fn median(numbers: &mut [f64]) -> f64 {
    if numbers.is_empty() {
        return 0.0;
    }
    let middle = numbers.len() / 2;
    *numbers.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Kendall's tau against time; ties count for neither side.
fn tau(values: &[u64]) -> f64 {
    let (mut rising, mut falling, mut pairs) = (0_u32, 0_u32, 0_u32);
    for (at, one) in values.iter().enumerate() {
        for other in &values[at + 1..] {
            rising += u32::from(other > one);
            falling += u32::from(other < one);
            pairs += 1;
        }
    }
    (f64::from(rising) - f64::from(falling)) / f64::from(pairs.max(1))
}

/// Least tau for a number of steps. The variance of tau without trend is `2 (2n + 5) / (9 n (n - 1))`
/// (Kendall 1938); ties reduce it.
fn least_tau(steps: usize) -> f64 {
    let n = steps as f64;
    let deviation = (2.0 * (2.0 * n + 5.0) / (9.0 * n * (n - 1.0))).sqrt();
    LEAST_TAU.max(LEAST_DEVIATIONS * deviation)
}

fn keeps(values: &[u64]) -> bool {
    let rises: f64 = values
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]) as f64)
        .sum();
    let (Some(first), Some(last)) = (values.first(), values.last()) else {
        return false;
    };
    last.saturating_sub(*first) as f64 >= LEAST_NET * rises
}

/// Slope from the median of the middle third to that of the last third.
fn late_slope(values: &[u64]) -> f64 {
    let third = values.len() / 3;
    let of = |values: &[u64]| {
        let mut values: Vec<f64> = values.iter().map(|value| *value as f64).collect();
        median(&mut values)
    };
    let (rest, last) = values.split_at(values.len() - third);
    let middle = &rest[rest.len() - third..];
    (of(last) - of(middle)) / third.max(1) as f64
}

fn share_of_rises(values: &[u64]) -> f64 {
    let rises = values.windows(2).filter(|pair| pair[1] > pair[0]).count();
    rises as f64 / values.len().saturating_sub(1).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudorandom numbers, equal in every run.
    fn chance(seed: u64) -> impl Iterator<Item = u64> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> 40
        })
    }

    #[test]
    fn a_list_that_is_never_emptied_grows_at_its_rate() {
        let values: Vec<u64> = (0..8).map(|step| 1000 + 512 * step).collect();
        let fit = fit(&values).expect("growth");
        assert_eq!((fit.slope, fit.grew), (512.0, 1.0));
    }

    #[test]
    fn a_list_that_grows_every_tenth_time_grows() {
        let values: Vec<u64> = (0..60).map(|step| step / 10 * 5120).collect();
        let fit = fit(&values).expect("growth");
        assert!((400.0..700.0).contains(&fit.slope), "{}", fit.slope);
        assert!((0.08..0.09).contains(&fit.grew));
    }

    #[test]
    fn one_wild_step_bends_nothing() {
        let mut values: Vec<u64> = (0..40).map(|step| 100 * step).collect();
        values[20] = 1_000_000;
        assert_eq!(fit(&values), None, "most of what rose went again");
        assert_eq!(theil_sen(&values), 100.0);
    }

    #[test]
    fn what_stays_the_same_does_not_grow() {
        assert_eq!(fit(&[7; 100]), None);
        assert_eq!(fit(&[]), None);
    }

    #[test]
    fn what_rises_once_does_not_grow() {
        let values: Vec<u64> = (0..40)
            .map(|step| if step < 5 { 0 } else { 4096 })
            .collect();
        assert_eq!(fit(&values), None);
        let late: Vec<u64> = (0..40)
            .map(|step| if step < 30 { 0 } else { 4096 })
            .collect();
        assert_eq!(fit(&late), None);
    }

    #[test]
    fn a_store_that_fills_up_does_not_grow() {
        let values: Vec<u64> = (0..60).map(|step| 512 * step.min(20)).collect();
        assert_eq!(fit(&values), None);
    }

    #[test]
    fn what_is_filled_and_emptied_in_turn_does_not_grow() {
        let values: Vec<u64> = (0..100).map(|step| 512 * (step % 25)).collect();
        assert_eq!(fit(&values), None);
    }

    #[test]
    fn too_few_steps_say_nothing() {
        let values: Vec<u64> = (0..FEWEST_STEPS as u64 - 1).collect();
        assert_eq!(fit(&values), None);
    }

    #[test]
    fn of_a_thousand_rows_by_chance_none_is_named() {
        for steps in [8, 12, 30, 100] {
            let named = (1..=1000_u64)
                .filter(|seed| fit(&chance(*seed).take(steps).collect::<Vec<_>>()).is_some());
            assert!(named.count() <= 1, "{steps} steps");
        }
    }

    #[test]
    fn of_a_hundred_lengths_that_wander_few_are_named() {
        let named = (1..=100_u64).filter(|seed| {
            let steps = chance(*seed).take(100);
            let walk = steps.scan(1_000_u64, |at, step| {
                *at = if step % 2 == 0 {
                    *at + 1
                } else {
                    at.saturating_sub(1)
                };
                Some(*at)
            });
            fit(&walk.collect::<Vec<_>>()).is_some()
        });
        assert!(named.count() <= 2);
    }
}
