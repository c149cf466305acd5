//! Growth of memory: the slope of its lowest bytes, which do not swing within an iteration.

use super::snapshot::GrowthRate;
use crate::event::TimeNs;

/// Intervals that are kept.
const INTERVALS: usize = 12;
/// Nanoseconds of the first intervals. They double when there is no room for more.
const FIRST_INTERVAL: u64 = 1_000_000_000;
/// Intervals before anything is said of growth.
const FEWEST: usize = 4;
/// Rises, without a fall, that are called steady.
const STEADY: usize = 3;

/// Lowest bytes of the current interval of a [`GrowthRecorder`]. A value of its own: events lower it, and it lies beside
/// what else they change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floor(u64);

impl Floor {
    /// Records bytes that may have fallen.
    pub(super) fn lower_to(&mut self, bytes: u64) {
        self.0 = self.0.min(bytes);
    }
}

/// Lowest bytes of each interval since the first tick.
#[derive(Clone, Debug, Default)]
pub(super) struct GrowthRecorder {
    floors: [u64; INTERVALS],
    finished: usize,
    /// Doublings of [`FIRST_INTERVAL`].
    doublings: u32,
    /// Start of the current interval; `None` before the first tick.
    begun: Option<TimeNs>,
}

impl GrowthRecorder {
    /// Records the bytes at `now`, and finishes the current interval if it is over. Returns the end of the interval
    /// that goes on.
    pub(super) fn tick(&mut self, now: TimeNs, bytes: u64, floor: &mut Floor) -> TimeNs {
        let mut begun = *self.begun.get_or_insert_with(|| {
            *floor = Floor(bytes);
            now
        });
        while now.0.saturating_sub(begun.0) >= self.interval() {
            if self.finished == INTERVALS {
                self.double();
                continue;
            }
            self.floors[self.finished] = floor.0;
            self.finished += 1;
            begun.0 += self.interval();
            *floor = Floor(bytes);
        }
        self.begun = Some(begun);
        TimeNs(begun.0.saturating_add(self.interval()))
    }

    fn interval(&self) -> u64 {
        FIRST_INTERVAL << self.doublings
    }

    /// Joins each two intervals.
    fn double(&mut self) {
        self.finished /= 2;
        for at in 0..self.finished {
            self.floors[at] = self.floors[2 * at].min(self.floors[2 * at + 1]);
        }
        // 2^33 s are more than the nanoseconds of a u64.
        self.doublings = (self.doublings + 1).min(33);
    }

    /// Span of time that [`Self::growth`] covers; `None` if it is unknown.
    pub(super) fn span(&self) -> Option<(TimeNs, TimeNs)> {
        let begun = self.begun.filter(|_| self.finished >= FEWEST)?;
        let before = |intervals: u64| begun.0.saturating_sub(self.interval() * intervals);
        let first = self.finished / 2 - 1;
        // The lowest bytes of an interval in which memory grows are those at its begin.
        let from = before((self.finished - first) as u64);
        Some((TimeNs(from), TimeNs(before(1))))
    }

    /// Growth in the second half of the intervals; `None` if they are too few.
    pub(super) fn growth(&self) -> Option<GrowthRate> {
        if self.finished < FEWEST {
            return None;
        }
        let half = &self.floors[self.finished / 2 - 1..self.finished];
        let (first, last) = (*half.first()?, *half.last()?);
        let steps = half.len() - 1;
        let time = i128::from(self.interval()) * steps as i128;
        let per_minute = (i128::from(last) - i128::from(first)) * 60_000_000_000 / time;
        let rises = half.windows(2).filter(|pair| pair[0] < pair[1]).count();
        Some(GrowthRate {
            per_minute: per_minute.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
            is_steady: half.is_sorted() && rises >= STEADY,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Ticks five times a second. `live` gives the bytes at each tick, and lower ones between it and the next.
    fn recorded(seconds: u64, live: impl Fn(u64) -> [u64; 2]) -> Option<GrowthRate> {
        let (mut recorder, mut floor) = (GrowthRecorder::default(), Floor::default());
        for tick in 0..=seconds * 5 {
            let [now, low] = live(tick);
            recorder.tick(TimeNs(tick * 200_000_000), now, &mut floor);
            floor.lower_to(low);
        }
        recorder.growth()
    }

    #[test]
    fn a_leak_below_a_swing_is_growth_and_steady() {
        for seconds in [7, 60, 600] {
            // 1 MiB a second, under a swing of up to 500 MiB.
            let growth = recorded(seconds, |tick| {
                let leaked = tick / 5 * MIB;
                [leaked + (tick * 7 % 13) * 40 * MIB, leaked]
            });
            let growth = growth.unwrap();
            assert!(growth.is_steady, "after {seconds} s: {growth:?}");
            assert_eq!(growth.per_minute, 60 * MIB as i64, "after {seconds} s");
        }
    }

    #[test]
    fn a_swing_and_a_warm_up_are_no_growth() {
        let swing = recorded(60, |tick| [tick * 7 % 13 * 40 * MIB, 3 * MIB]);
        let none = GrowthRate {
            per_minute: 0,
            is_steady: false,
        };
        assert_eq!(swing, Some(none));
        let warm_up = recorded(60, |tick| [tick.min(30) * MIB; 2]);
        assert_eq!(warm_up, Some(none));
    }

    #[test]
    fn the_span_is_that_of_the_growth() {
        let mut recorder = GrowthRecorder::default();
        let mut floor = Floor::default();
        for tick in 0..=60 {
            recorder.tick(TimeNs(tick * 200_000_000), tick, &mut floor);
        }
        // 12 intervals of 1 s: from the begin of the 6th to that of the 12th.
        let seconds = recorder.span().map(|(from, to)| (from.0, to.0));
        assert_eq!(seconds, Some((5_000_000_000, 11_000_000_000)));
        assert_eq!(GrowthRecorder::default().span(), None);
    }

    #[test]
    fn memory_that_is_given_back_falls() {
        let growth = recorded(8, |tick| [(100 - tick) * MIB; 2]).unwrap();
        assert!(growth.per_minute < 0 && !growth.is_steady, "{growth:?}");
    }

    #[test]
    fn the_first_seconds_say_nothing() {
        assert_eq!(recorded(3, |tick| [tick * MIB; 2]), None);
    }

    #[test]
    fn a_late_tick_does_not_take_long_or_overflow() {
        let (mut recorder, mut floor) = (GrowthRecorder::default(), Floor::default());
        for time in [0, 1 << 40, u64::MAX - 1, u64::MAX] {
            let end = recorder.tick(TimeNs(time), time, &mut floor);
            assert!(end.0 > time || end.0 == u64::MAX);
            floor.lower_to(0);
        }
        assert!(recorder.growth().is_some());
    }
}
