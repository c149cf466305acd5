//! Numbers and durations as text. `crate::event::bytes` formats sizes.

use std::time::Duration;

/// Formats a count with separators: `3,292,114`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun: `1 event`, `2,000 events`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number))
}

/// Formats a count in at most six columns: `99,999`, then `100k`, `12.3M`.
pub fn short_count(number: u64) -> String {
    match number {
        0..100_000 => count(number),
        100_000..1_000_000 => format!("{}k", number / 1000),
        1_000_000..999_950_000 => format!("{:.1}M", number as f64 / 1e6),
        _ => format!("{:.1e}", number as f64),
    }
}

/// Formats a rate per second in at most seven columns.
pub fn rate(per_second: f64) -> String {
    if !per_second.is_finite() || per_second < 0.0 {
        "-".to_owned()
    } else if per_second < 999.95 {
        format!("{per_second:.1}")
    } else {
        short_count(per_second.round() as u64)
    }
}

/// Formats a share in at most six columns; `-` if the whole is not positive.
pub fn percent(part: i128, whole: i128) -> String {
    if whole <= 0 {
        return "-".to_owned();
    }
    let share = 100.0 * part as f64 / whole as f64;
    if share.abs() < 999.95 {
        format!("{share:.1}%")
    } else {
        format!("{share:.0}%")
    }
}

/// Formats a duration as `00:12:31`, preceded by days if there are any.
pub fn clock(length: Duration) -> String {
    let seconds = length.as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days == 0 {
        clock
    } else {
        format!("{days}d {clock}")
    }
}

/// Formats a duration as `0.25 s`, `2 min 03 s` or `1 h 02 min`.
pub fn duration(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0..60 => format!("{seconds}.{:02} s", length.subsec_millis() / 10),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Formats a duration in few columns: `850 ms`, `40 s`, `2 min`, `1.5 h`.
pub fn span(length: Duration) -> String {
    let seconds = length.as_secs_f64();
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else if seconds < 7200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_columns() {
        assert_eq!(count(3_292_114), "3,292,114");
        assert_eq!(count(1000), "1,000");
        assert_eq!(count(999), "999");
        assert_eq!(count(0), "0");
        assert_eq!(counted(1, "event"), "1 event");
        assert_eq!(counted(2000, "event"), "2,000 events");
        for number in [
            0,
            99_999,
            100_000,
            999_999,
            1_000_000,
            999_999_999,
            u64::MAX,
        ] {
            assert!(short_count(number).len() <= 6, "{}", short_count(number));
        }
        assert_eq!(rate(118.23), "118.2");
        assert_eq!(rate(12_040.0), "12,040");
        assert_eq!(rate(f64::NAN), "-");
        assert_eq!(percent(437, 1000), "43.7%");
        assert_eq!(percent(1, 0), "-");
        assert_eq!(percent(-1, 1000), "-0.1%");
        assert_eq!(percent(u64::MAX.into(), u64::MAX.into()), "100.0%");
    }

    #[test]
    fn clocks_count_days() {
        assert_eq!(clock(Duration::from_secs(751)), "00:12:31");
        assert_eq!(clock(Duration::ZERO), "00:00:00");
        assert_eq!(clock(Duration::from_secs(90_061)), "1d 01:01:01");
    }

    #[test]
    fn lengths_of_time_are_as_exact_as_they_are_short() {
        assert_eq!(duration(Duration::from_millis(250)), "0.25 s");
        assert_eq!(duration(Duration::from_nanos(59_999_999_999)), "59.99 s");
        assert_eq!(duration(Duration::from_secs(123)), "2 min 03 s");
        assert_eq!(duration(Duration::from_secs(3720)), "1 h 02 min");
        assert_eq!(span(Duration::from_millis(850)), "850 ms");
        assert_eq!(span(Duration::from_secs(119)), "119 s");
        assert_eq!(span(Duration::from_secs(120)), "2 min");
        assert_eq!(span(Duration::from_secs(7200)), "2.0 h");
    }
}
