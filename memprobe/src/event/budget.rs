//! The budget of `--max-overhead`, and what memprobe gives up to keep it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};

use super::{Tgid, TimeNs};

/// Share of a process's time, in parts per million.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TimeShare(pub u32);

impl TimeShare {
    const WHOLE: f64 = 1_000_000.0;

    /// Returns the share that `part` is of `whole`; 0 of no time.
    pub fn of(part: Duration, whole: Duration) -> Self {
        if whole.is_zero() {
            return Self(0);
        }
        Self::from_ratio(part.as_secs_f64() / whole.as_secs_f64())
    }

    /// Returns the share of a ratio such as 0.01.
    pub fn from_ratio(ratio: f64) -> Self {
        // A cast of floats saturates.
        Self((ratio * Self::WHOLE).round() as u32)
    }

    pub fn ratio(self) -> f64 {
        f64::from(self.0) / Self::WHOLE
    }
}

impl fmt::Display for TimeShare {
    /// Writes percent with two significant digits: `1 %`, `0.25 %`, `12 %`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.ratio() * 100.0;
        let decimals = match percent {
            ..0.995 => 2,
            ..9.95 => 1,
            _ => 0,
        };
        let text = format!("{percent:.decimals$}");
        let text = match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.'),
            false => &text,
        };
        f.pad(&format!("{text} %"))
    }
}

/// Detail of the recording at present, in the order of giving up. Each level also lacks the detail of the levels before
/// it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, EnumString,
)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum CaptureLevel {
    /// All that was asked for.
    #[default]
    Full,
    WithoutShapes,
    /// Backward passes count for the line that calls `backward()`.
    WithoutGraph,
    WithoutModules,
    /// The probes on PyTorch are off.
    Paused,
}

impl CaptureLevel {
    pub const ALL: [Self; 5] = [
        Self::Full,
        Self::WithoutShapes,
        Self::WithoutGraph,
        Self::WithoutModules,
        Self::Paused,
    ];

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// Cost of the probes to a process, by the part of the detail that causes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCost {
    pub shapes: Duration,
    pub graph: Duration,
    /// Everything else; giving up modules makes it smaller by an unknown part.
    pub rest: Duration,
}

impl ProbeCost {
    pub fn total(self) -> Duration {
        self.shapes + self.graph + self.rest
    }

    /// Cost that is left at a level.
    pub fn at(self, level: CaptureLevel) -> Duration {
        match level {
            CaptureLevel::Full => self.total(),
            CaptureLevel::WithoutShapes => self.graph + self.rest,
            CaptureLevel::WithoutGraph | CaptureLevel::WithoutModules => self.rest,
            CaptureLevel::Paused => Duration::ZERO,
        }
    }

    pub fn add(&mut self, more: Self) {
        self.shapes += more.shapes;
        self.graph += more.graph;
        self.rest += more.rest;
    }

    /// Returns a part of the cost, between 0 and 1.
    #[must_use]
    pub fn part(self, part: f64) -> Self {
        Self {
            shapes: self.shapes.mul_f64(part),
            graph: self.graph.mul_f64(part),
            rest: self.rest.mul_f64(part),
        }
    }
}

/// memprobe has changed what it records of a process, or has estimated the cost anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureChange {
    pub time: TimeNs,
    pub tgid: Tgid,
    /// Level from now on. After [`CaptureLevel::Paused`] come events that bring the live blocks up to date.
    pub level: CaptureLevel,
    /// Estimated share of the process's time that memprobe has taken in the last seconds, pauses included.
    pub overhead: TimeShare,
    pub budget: TimeShare,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_as_percent() {
        for (ppm, text) in [
            (10_000, "1 %"),
            (2_500, "0.25 %"),
            (123_400, "12 %"),
            (15_000, "1.5 %"),
            (0, "0 %"),
            (1_000_000, "100 %"),
        ] {
            assert_eq!(TimeShare(ppm).to_string(), text);
        }
    }

    #[test]
    fn a_share_of_no_time_is_nothing() {
        let second = Duration::from_secs(1);
        assert_eq!(TimeShare::of(second, Duration::ZERO), TimeShare(0));
        assert_eq!(TimeShare::of(second / 100, second), TimeShare(10_000));
    }

    #[test]
    fn levels_are_in_the_order_of_giving_up() {
        assert!(CaptureLevel::ALL.is_sorted());
        for level in CaptureLevel::ALL {
            assert_eq!(level.as_str().parse(), Ok(level));
        }
    }
}
