//! Labels of lines, files and numbers: cleaned, shortened, and fitted to columns.
//!
//! Every text that comes from the target passes [`clean`] before it reaches a cell.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use unicode_width::UnicodeWidthChar;

use crate::event::{Frame, TimeNs};
use crate::model::snapshot::Site;

/// No label is longer than this, in characters: what follows could never be seen.
const LONGEST: usize = 2048;
/// Marks that may stand on one letter; more is an attack on the lines above and below.
const MARKS_A_LETTER: usize = 2;
const TAB: &str = "    ";

/// The text with everything taken out or spelled out that a terminal would act upon: control
/// characters, changes of writing direction, invisible characters. Bounded in length.
pub fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len().min(LONGEST));
    let mut marks = 0;
    for letter in text.chars().take(LONGEST) {
        match letter {
            '\t' => cleaned.push_str(TAB),
            _ if letter.is_control() || is_invisible(letter) => {
                cleaned.extend(letter.escape_unicode());
            }
            _ if letter.width() == Some(0) => {
                marks += 1;
                if marks <= MARKS_A_LETTER {
                    cleaned.push(letter);
                }
                continue;
            }
            _ => cleaned.push(letter),
        }
        marks = 0;
    }
    cleaned
}

/// Characters that change how their neighbours are drawn and cannot be seen themselves: soft
/// hyphen, zero-width and direction marks, separators, selectors, tags.
fn is_invisible(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Columns that a cleaned text takes.
pub fn width(text: &str) -> usize {
    text.chars().map(|letter| letter.width().unwrap_or(0)).sum()
}

/// The beginning of a cleaned text that fits into `columns`, with `mark` where it was cut.
pub fn fit(text: &str, columns: usize, mark: &str) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mark = if width(mark) <= columns { mark } else { "" };
    let mut room = columns - width(mark);
    let mut fitted = String::new();
    for letter in text.chars() {
        let wide = letter.width().unwrap_or(0);
        if wide > room {
            break;
        }
        room -= wide;
        fitted.push(letter);
    }
    fitted + mark
}

/// The end of a cleaned text that fits into `columns`, with `mark` where it was cut: for paths,
/// which say most at their end.
pub fn fit_end(text: &str, columns: usize, mark: &str) -> String {
    let reversed: String = text.chars().rev().collect();
    fit(&reversed, columns, mark).chars().rev().collect()
}

/// Shortest names of files that still tell them apart: `model.py`, or `vision/model.py` where
/// there is a `text/model.py` too.
#[derive(Clone, Debug, Default)]
pub struct FileNames {
    short: HashMap<Arc<str>, String>,
}

impl FileNames {
    /// Names for these files.
    pub fn of<'a>(files: impl Iterator<Item = &'a Arc<str>>) -> Self {
        let files: HashSet<&Arc<str>> = files.collect();
        let mut alike: HashMap<&str, Vec<&Arc<str>>> = HashMap::new();
        for file in files {
            alike.entry(tail(file, 1)).or_default().push(file);
        }
        let mut short = HashMap::new();
        for group in alike.into_values() {
            let parts = parts_that_differ(&group);
            for file in group {
                short.insert(file.clone(), clean(tail(file, parts)));
            }
        }
        Self { short }
    }

    /// The short name of a file.
    pub fn short(&self, file: &str) -> String {
        match self.short.get(file) {
            Some(name) => name.clone(),
            None => clean(tail(file, least_parts(file))),
        }
    }

    /// `model.py:88 forward`.
    pub fn frame(&self, frame: &Frame) -> String {
        let line = if frame.line == 0 {
            "?".to_owned()
        } else {
            frame.line.to_string()
        };
        format!(
            "{}:{line} {}",
            self.short(&frame.file),
            clean(&frame.function)
        )
    }

    /// What the row of a site is called.
    pub fn site(&self, site: &Site) -> String {
        match site {
            Site::Line(frame) => self.frame(frame),
            Site::Backward(frame) => format!("backward of {}", self.frame(frame)),
            Site::NoLine { thread, reason } => {
                format!("({}: {reason})", clean(thread))
            }
        }
    }
}

/// `__init__.py` says nothing without its folder.
fn least_parts(file: &str) -> usize {
    if matches!(tail(file, 1), "__init__.py" | "__main__.py") {
        2
    } else {
        1
    }
}

fn parts_that_differ(files: &[&Arc<str>]) -> usize {
    let least = files.first().map_or(1, |file| least_parts(file));
    let differ = |parts: &usize| {
        let tails: HashSet<&str> = files.iter().map(|file| tail(file, *parts)).collect();
        tails.len() == files.len()
    };
    (least..8).find(differ).unwrap_or(8)
}

/// The last `parts` parts of a path.
fn tail(file: &str, parts: usize) -> &str {
    let cut = file.rmatch_indices('/').nth(parts.saturating_sub(1));
    match cut {
        Some((at, _)) if at + 1 < file.len() => &file[at + 1..],
        _ => file,
    }
}

/// A count with separators: `3,292,114`.
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

/// A count in at most six columns: `99,999`, then `100k`, `12.3M`.
pub fn short_count(number: u64) -> String {
    match number {
        0..100_000 => count(number),
        100_000..1_000_000 => format!("{}k", number / 1000),
        1_000_000..999_950_000 => format!("{:.1}M", number as f64 / 1e6),
        _ => format!("{:.1e}", number as f64),
    }
}

/// A rate per second in at most seven columns.
pub fn rate(per_second: f64) -> String {
    if !per_second.is_finite() || per_second < 0.0 {
        "-".to_owned()
    } else if per_second < 999.95 {
        format!("{per_second:.1}")
    } else {
        short_count(per_second.round() as u64)
    }
}

/// A share of a whole in at most six columns; a dash where there is no whole.
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

/// Time between two moments: `00:12:31`, with days before it where there are any.
pub fn clock(from: TimeNs, to: TimeNs) -> String {
    let seconds = to.0.saturating_sub(from.0) / 1_000_000_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days == 0 {
        clock
    } else {
        format!("{days}d {clock}")
    }
}

/// A length of time in few columns: `850 ms`, `40 s`, `2 min`, `1.5 h`.
pub fn span(nanoseconds: u64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
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
    fn nothing_that_a_terminal_acts_upon_gets_through() {
        let hostile = "a\x1b[31m\x07\u{9b}2J\u{202e}\u{200b}\u{2028}\r\n\0z";
        let cleaned = clean(hostile);
        assert!(
            cleaned
                .chars()
                .all(|letter| !letter.is_control() && !is_invisible(letter))
        );
        assert!(cleaned.starts_with("a\\u{1b}[31m\\u{7}"), "{cleaned}");
        assert!(cleaned.ends_with('z'));
    }

    #[test]
    fn accents_stay_and_towers_of_them_do_not() {
        assert_eq!(clean("e\u{301}"), "e\u{301}");
        let tower: String = std::iter::once('e').chain(['\u{301}'; 500]).collect();
        assert_eq!(clean(&tower).chars().count(), 1 + MARKS_A_LETTER);
    }

    #[test]
    fn a_text_of_any_length_gives_a_short_label() {
        assert!(clean(&"x".repeat(1 << 20)).len() <= LONGEST);
    }

    #[test]
    fn wide_letters_are_counted_as_two_columns() {
        assert_eq!(fit("模型模型.py", 6, "…"), "模型…");
        assert_eq!(width(&fit("模型模型.py", 6, "…")), 5);
        assert_eq!(fit("abc", 0, "…"), "");
        assert_eq!(fit_end("/long/path/model.py", 10, "…"), "…/model.py");
    }

    #[test]
    fn files_are_named_as_shortly_as_they_can_be_told_apart() {
        let files: Vec<Arc<str>> = [
            "/a/text/model.py",
            "/a/vision/model.py",
            "/a/train.py",
            "/x/nn/__init__.py",
        ]
        .map(Arc::from)
        .to_vec();
        let names = FileNames::of(files.iter());
        assert_eq!(names.short(&files[0]), "text/model.py");
        assert_eq!(names.short(&files[1]), "vision/model.py");
        assert_eq!(names.short(&files[2]), "train.py");
        assert_eq!(names.short(&files[3]), "nn/__init__.py");
        assert_eq!(names.short("/unseen/loss.py"), "loss.py");
        assert_eq!(names.short("<string>"), "<string>");
        assert_eq!(names.short("/"), "/");
        assert_eq!(names.short(""), "");
    }

    #[test]
    fn numbers_fit_their_columns() {
        assert_eq!(count(3_292_114), "3,292,114");
        assert_eq!(count(42), "42");
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
    }

    #[test]
    fn clocks_count_days() {
        let seconds = |s: u64| TimeNs(s * 1_000_000_000);
        assert_eq!(clock(seconds(5), seconds(756)), "00:12:31");
        assert_eq!(clock(seconds(9), seconds(5)), "00:00:00");
        assert_eq!(clock(seconds(0), seconds(90_061)), "1d 01:01:01");
    }
}
