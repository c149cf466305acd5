//! Rates of events, as moving averages.

use crate::event::TimeNs;

/// Seconds after which an old rate still has a weight of 1/e.
const MEMORY_SECONDS: f64 = 1.0;

/// Rates below this become 0: they only fade, and would be shown as 0.
const NOTHING: f64 = 0.01;

/// Time between two ticks, and its weight in the average.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    seconds: f64,
    weight: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ticks {
    last: Option<TimeNs>,
}

impl Ticks {
    /// Returns the interval that ends at `now`; `None` at the first tick or if no time has passed.
    pub(super) fn tick(&mut self, now: TimeNs) -> Option<Interval> {
        let Some(last) = self.last else {
            self.last = Some(now);
            return None;
        };
        let nanoseconds = now.0.checked_sub(last.0).filter(|passed| *passed > 0)?;
        self.last = Some(now);
        let seconds = nanoseconds as f64 / 1e9;
        Some(Interval {
            seconds,
            weight: 1.0 - (-seconds / MEMORY_SECONDS).exp(),
        })
    }
}

/// Exponentially weighted moving average of a counter's growth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MovingRate {
    counted: u64,
    per_second: f64,
}

impl MovingRate {
    pub(super) fn tick(&mut self, count: u64, interval: Interval) {
        let growth = count.saturating_sub(self.counted);
        self.counted = count;
        if growth == 0 && self.per_second == 0.0 {
            return;
        }
        let current = growth as f64 / interval.seconds;
        self.per_second += (current - self.per_second) * interval.weight;
        if growth == 0 && self.per_second < NOTHING {
            self.per_second = 0.0;
        }
    }

    /// Sets the counter's value at the first tick; growth is measured from there.
    pub(super) fn start(&mut self, count: u64) {
        self.counted = count;
    }

    pub(super) fn per_second(&self) -> f64 {
        self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rate: &mut MovingRate, ticks: &mut Ticks, from: u64, times: u64, growth: u64) {
        for step in 1..=times {
            if let Some(interval) = ticks.tick(TimeNs((from + step) * 200_000_000)) {
                rate.tick(rate.counted + growth, interval);
            }
        }
    }

    #[test]
    fn a_steady_rate_is_found_and_fades_to_nothing() {
        let (mut rate, mut ticks) = (MovingRate::default(), Ticks::default());
        run(&mut rate, &mut ticks, 0, 50, 20);
        assert!(
            (rate.per_second() - 100.0).abs() < 0.1,
            "{}",
            rate.per_second()
        );
        run(&mut rate, &mut ticks, 50, 100, 0);
        assert_eq!(rate.per_second(), 0.0);
    }

    #[test]
    fn ticks_without_time_between_them_or_back_in_time_change_nothing() {
        let mut ticks = Ticks::default();
        assert!(ticks.tick(TimeNs(10)).is_none());
        assert!(ticks.tick(TimeNs(10)).is_none());
        assert!(ticks.tick(TimeNs(3)).is_none());
        assert!(ticks.tick(TimeNs(11)).is_some());
    }
}
