//! JSON numbers and strings, appended to a line without heap allocation.

/// Appends `text` as a JSON string, quotes included. The result is valid for any `text`.
pub fn push_string(line: &mut Vec<u8>, text: &str) {
    line.push(b'"');
    push_escaped(line, text);
    line.push(b'"');
}

/// Appends `text` escaped for use inside a JSON string.
pub fn push_escaped(line: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => line.extend_from_slice(&[b'\\', byte]),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\t' => line.extend_from_slice(b"\\t"),
            b'\r' => line.extend_from_slice(b"\\r"),
            // DEL is legal in JSON, but terminals and editors should not get it raw.
            0..=0x1f | 0x7f => {
                line.extend_from_slice(b"\\u00");
                line.push(HEX[usize::from(byte >> 4)]);
                line.push(HEX[usize::from(byte & 0xf)]);
            }
            _ => line.push(byte),
        }
    }
}

pub fn push_number(line: &mut Vec<u8>, number: impl itoa::Integer) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a field: its `key` with the punctuation around it, and an integer.
pub fn push_number_field(line: &mut Vec<u8>, key: &[u8], number: impl itoa::Integer) {
    line.extend_from_slice(key);
    push_number(line, number);
}

/// Appends a field: its `key` with the punctuation around it, and a JSON string.
pub fn push_string_field(line: &mut Vec<u8>, key: &[u8], text: &str) {
    line.extend_from_slice(key);
    push_string(line, text);
}

pub fn push_hex(line: &mut Vec<u8>, number: u64) {
    line.extend_from_slice(b"0x");
    let digits = (64 - number.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        line.push(HEX[(number >> (4 * digit)) as usize & 0xf]);
    }
}

/// Appends the time from `start` to `time` (both in nanoseconds) in microseconds, with three decimals.
pub fn push_micros(line: &mut Vec<u8>, start: u64, time: u64) {
    if time < start {
        line.push(b'-');
    }
    let distance = time.abs_diff(start);
    push_number(line, distance / 1000);
    let rest = distance % 1000;
    line.push(b'.');
    for digit in [rest / 100, rest / 10 % 10, rest % 10] {
        line.push(b'0' + digit as u8);
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut line = Vec::new();
        write(&mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn every_character_below_u_2100_survives_a_strict_parser() {
        let hostile: String = (0..0x2100)
            .filter_map(char::from_u32)
            .chain("🐍\u{10ffff}".chars())
            .collect();
        let json = text(|line| push_string(line, &hostile));
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
        assert!(!json.bytes().any(|byte| byte < 0x20 || byte == 0x7f));
    }

    #[test]
    fn hex_is_what_the_standard_library_writes() {
        for number in [0, 1, 15, 16, 255, 256, 0x7f12_3456_7890, u64::MAX] {
            assert_eq!(text(|line| push_hex(line, number)), format!("{number:#x}"));
        }
    }

    #[test]
    fn microseconds_keep_every_nanosecond() {
        assert_eq!(text(|line| push_micros(line, 5, 5)), "0.000");
        assert_eq!(text(|line| push_micros(line, 5, 6)), "0.001");
        assert_eq!(text(|line| push_micros(line, 0, 1_234_567)), "1234.567");
        assert_eq!(text(|line| push_micros(line, 1_000, 990)), "-0.010");
        assert_eq!(
            text(|line| push_micros(line, 0, u64::MAX)),
            "18446744073709551.615"
        );
    }
}
