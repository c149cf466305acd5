//! Texts from the target, and numbers, as people read them.

use std::collections::{BTreeMap, BTreeSet};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::event::Frame;

/// A text from the target without anything that a terminal would obey: control characters and
/// those that turn the direction of writing are spelt out.
pub(super) fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => clean.extend(character.escape_unicode()),
            _ if character.is_control() => clean.extend(character.escape_default()),
            _ => clean.push(character),
        }
    }
    clean
}

/// Columns that a text takes.
pub(super) fn columns(text: &str) -> usize {
    text.width()
}

/// A text in no more than `width` columns; what is cut is marked.
pub(super) fn clip(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut clipped = String::new();
    let mut room = width.saturating_sub(1);
    for character in text.chars() {
        let takes = character.width().unwrap_or(0);
        if takes > room {
            break;
        }
        room -= takes;
        clipped.push(character);
    }
    if width > 0 {
        clipped.push('…');
    }
    clipped
}

/// `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 event`, `2,000 events`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    format!(
        "{} {noun}{}",
        grouped(number),
        if number == 1 { "" } else { "s" }
    )
}

/// Nanoseconds as `0.25 s`, `2 min 03 s` or `1 h 02 min`.
pub(super) fn duration(nanos: u64) -> String {
    let seconds = nanos / 1_000_000_000;
    match seconds {
        0..60 => format!("{:.2} s", (nanos / 10_000_000) as f64 / 100.0),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// What part of `whole` a number of bytes is.
pub(super) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1}%", part as f64 * 100.0 / whole as f64)
}

/// Short names of files, told apart by their folder where their last part is the same.
#[derive(Default)]
pub(super) struct FileNames {
    by_last_part: BTreeMap<String, BTreeSet<String>>,
}

impl FileNames {
    /// Takes note of a file that will be shown.
    pub(super) fn add(&mut self, file: &str) {
        let files = self
            .by_last_part
            .entry(last_parts(file, 1).to_owned())
            .or_default();
        files.insert(file.to_owned());
    }

    /// `model.py:88 forward`; `nn/model.py:88 forward` if there is another `model.py`.
    pub(super) fn line(&self, frame: &Frame) -> String {
        let same = self
            .by_last_part
            .get(last_parts(&frame.file, 1))
            .map_or(1, BTreeSet::len);
        let last = last_parts(&frame.file, 1);
        // `__init__.py` says nothing without its folder.
        let folder = same > 1 || matches!(last, "__init__.py" | "__main__.py");
        let file = clean(if folder {
            last_parts(&frame.file, 2)
        } else {
            last
        });
        let function = clean(&frame.function);
        match frame.line {
            0 => format!("{file}:? {function}"),
            line => format!("{file}:{line} {function}"),
        }
    }
}

/// The last `count` parts of a path.
fn last_parts(file: &str, count: usize) -> &str {
    let mut slashes = file.rmatch_indices('/').map(|(at, _)| at);
    match slashes.nth(count - 1) {
        Some(at) if at + 1 < file.len() => &file[at + 1..],
        _ => file,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::samples::frame;

    #[test]
    fn what_a_terminal_would_obey_is_spelt_out() {
        assert_eq!(clean("a\x1b[31mb\n\t\u{9b}"), "a\\u{1b}[31mb\\n\\t\\u{9b}");
        assert_eq!(clean("user\u{202e}nimda"), "user\\u{202e}nimda");
        assert_eq!(clean("größe 🐍"), "größe 🐍");
    }

    #[test]
    fn clipped_texts_fit_even_with_wide_characters() {
        assert_eq!(clip("forward", 7), "forward");
        assert_eq!(clip("forward", 6), "forwa…");
        assert_eq!(clip("模型模型", 6), "模型…");
        assert_eq!(clip("abc", 0), "");
    }

    #[test]
    fn numbers_read_as_people_write_them() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(counted(1, "event"), "1 event");
        assert_eq!(counted(2, "event"), "2 events");
        assert_eq!(duration(250_000_000), "0.25 s");
        assert_eq!(duration(59_999_999_999), "59.99 s");
        assert_eq!(duration(123_000_000_000), "2 min 03 s");
        assert_eq!(duration(3_720_000_000_000), "1 h 02 min");
        assert_eq!(share(0, 0), "-");
        assert_eq!(share(0, 10), "0.0%");
        assert_eq!(share(1, 1000), "0.1%");
        assert_eq!(
            (&*share(305, 1000), &*share(3046, 10_000)),
            ("30.5%", "30.5%")
        );
        assert_eq!(share(u64::MAX, u64::MAX), "100.0%");
    }

    #[test]
    fn files_of_the_same_name_are_told_apart() {
        let mut names = FileNames::default();
        for file in ["/a/nn/model.py", "/a/rl/model.py", "/a/train.py"] {
            names.add(file);
        }
        assert_eq!(
            names.line(&frame("/a/nn/model.py", 8, "f")),
            "nn/model.py:8 f"
        );
        assert_eq!(names.line(&frame("/a/train.py", 0, "f")), "train.py:? f");
        assert_eq!(
            names.line(&frame("/a/nn/__init__.py", 3, "f")),
            "nn/__init__.py:3 f"
        );
        assert_eq!(names.line(&frame("unseen/", 1, "f")), "unseen/:1 f");
    }
}
