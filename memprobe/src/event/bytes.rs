//! Formats byte counts for people.

use crate::event::Bytes;

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Formats with two decimals and a binary unit, such as `4.12 GiB`; below one KiB whole bytes, such as `512
/// B`. Never wider than 11 columns.
pub fn human(bytes: Bytes) -> String {
    scaled(bytes, 1023.995, |_| 2)
}

/// Formats with three figures and a binary unit, such as `4.12 GiB`, `31.2 GiB` or `640 MiB`; below one KiB
/// whole bytes. Never wider than 8 columns, for tables with many columns.
pub fn short(bytes: Bytes) -> String {
    // A value that rounds up to one more digit gets one decimal less.
    scaled(bytes, 1023.5, |value| match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    })
}

/// Formats with the unit in which the number is below `limit`, so that none prints as 1024.
fn scaled(bytes: Bytes, limit: f64, decimals: impl Fn(f64) -> usize) -> String {
    if bytes.0 < 1024 {
        return format!("{} B", bytes.0);
    }
    let mut value = bytes.0 as f64;
    let mut unit = 0;
    while value >= limit && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.*} {}", decimals(value), UNITS[unit])
}

/// Formats a signed difference, such as `+1.00 MiB` or `-512 B`; `0 B` has no sign.
pub fn signed(bytes: i64) -> String {
    let size = human(Bytes(bytes.unsigned_abs()));
    match bytes {
        0 => size,
        1.. => format!("+{size}"),
        _ => format!("-{size}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_are_whole_bytes() {
        assert_eq!(human(Bytes(0)), "0 B");
        assert_eq!(human(Bytes(1023)), "1023 B");
    }

    #[test]
    fn larger_numbers_take_the_unit_that_keeps_them_below_1024() {
        assert_eq!(human(Bytes(1024)), "1.00 KiB");
        assert_eq!(human(Bytes(1536)), "1.50 KiB");
        assert_eq!(human(Bytes(4_423_816_314)), "4.12 GiB");
        assert_eq!(human(Bytes(u64::MAX)), "16.00 EiB");
    }

    #[test]
    fn rounding_never_prints_1024_of_a_unit() {
        for power in [20, 30, 40, 50, 60] {
            let text = human(Bytes((1 << power) - 1));
            assert!(text.starts_with("1.00 "), "{text}");
        }
    }

    #[test]
    fn no_number_is_wider_than_eleven_columns() {
        for power in 0..64 {
            for near in [-1_i64, 0, 1] {
                assert!(human(Bytes((1_u64 << power).wrapping_add_signed(near))).len() <= 11);
            }
        }
    }

    #[test]
    fn short_numbers_keep_three_figures_in_eight_columns() {
        assert_eq!(short(Bytes(1023)), "1023 B");
        assert_eq!(short(Bytes(4_423_816_314)), "4.12 GiB");
        assert_eq!(short(Bytes(33_500_000_000)), "31.2 GiB");
        assert_eq!(short(Bytes(640 << 20)), "640 MiB");
        assert_eq!(short(Bytes((1023 << 20) + (1 << 18))), "1023 MiB");
        assert_eq!(short(Bytes((1 << 30) - 1)), "1.00 GiB");
        for power in 0..64 {
            for near in [-1_i64, 0, 1] {
                assert!(short(Bytes((1_u64 << power).wrapping_add_signed(near))).len() <= 8);
            }
        }
    }

    #[test]
    fn differences_carry_their_sign() {
        assert_eq!(signed(0), "0 B");
        assert_eq!(signed(1 << 20), "+1.00 MiB");
        assert_eq!(signed(-512), "-512 B");
        assert_eq!(signed(i64::MIN), "-8.00 EiB");
    }
}
