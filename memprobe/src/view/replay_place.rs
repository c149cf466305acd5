//! Places in a recording that a user names.

use std::time::Duration;

/// Forms of a place, for messages.
pub const REPLAY_PLACES: &str =
    "peak, oom, start, end, a time such as 12.5s, iteration 40, event 1000";

/// Place in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayPlace {
    Start,
    End,
    /// The highest allocated bytes of the device that has most.
    Peak,
    /// The next out-of-memory error; the first one behind the last.
    OutOfMemory,
    /// Time since the start.
    Time(Duration),
    /// The begin of the iteration with this number.
    Iteration(u64),
    /// The moment after so many memory events.
    Event(u64),
}

impl std::str::FromStr for ReplayPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let unknown = || format!("no place in a recording: give {REPLAY_PLACES}");
        let words: Vec<&str> = text
            .split([' ', '=', ':'])
            .filter(|it| !it.is_empty())
            .collect();
        let number = |text: &str| text.replace([',', '_'], "").parse().map_err(|_| unknown());
        Ok(match words[..] {
            ["start" | "begin"] => Self::Start,
            ["end"] => Self::End,
            ["peak"] => Self::Peak,
            ["oom"] => Self::OutOfMemory,
            ["iteration" | "it" | "step", at] => Self::Iteration(number(at)?),
            ["event", at] => Self::Event(number(at)?),
            [_, ..] => Self::Time(time(text).ok_or_else(unknown)?),
            [] => return Err(unknown()),
        })
    }
}

/// Parses a time such as `12.5s`, `900ms` or `1m 30s`.
fn time(text: &str) -> Option<Duration> {
    let whole = humantime::parse_duration(text).ok();
    whole.or_else(|| {
        let units = [
            ("ms", 1e-3),
            ("us", 1e-6),
            ("s", 1.0),
            ("m", 60.0),
            ("h", 3600.0),
        ];
        let (number, unit) = units
            .iter()
            .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
        let seconds: f64 = number.trim().parse().ok()?;
        Duration::try_from_secs_f64(seconds * unit).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_words_times_iterations_and_events() {
        let place = |text: &str| text.parse::<ReplayPlace>();
        assert_eq!(place("peak"), Ok(ReplayPlace::Peak));
        assert_eq!(place(" oom "), Ok(ReplayPlace::OutOfMemory));
        assert_eq!(place("iteration 12"), Ok(ReplayPlace::Iteration(12)));
        assert_eq!(place("event=1,000"), Ok(ReplayPlace::Event(1000)));
        for (text, milliseconds) in [("12.5s", 12_500), ("900ms", 900), ("1m 30s", 90_000)] {
            let time = ReplayPlace::Time(Duration::from_millis(milliseconds));
            assert_eq!(place(text), Ok(time), "{text}");
        }
        for text in [
            "",
            "12",
            "soon",
            "iteration",
            "iteration x",
            "-1s",
            "nans",
            "1e99h",
        ] {
            assert!(place(text).is_err(), "{text}");
        }
    }
}
