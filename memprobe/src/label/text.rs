//! Texts from the target without anything that a terminal would obey, fitted to columns.

use unicode_width::UnicodeWidthChar;

/// No cleaned text is longer than this, in characters: what follows could never be seen.
const LONGEST: usize = 2048;
/// Marks that may stand on one letter; more is an attack on the lines above and below.
const MARKS_A_LETTER: usize = 2;
const TAB: &str = "    ";
/// The mark of a cut by [`clean`], which does not know what its terminal can draw.
const ENDED: &str = "...";
/// The mark of a cut where no other is asked for.
pub const CUT: &str = "…";

/// The text with everything taken out or spelled out that a terminal would act upon: control
/// characters, changes of writing direction, invisible characters. Bounded in length; what is cut
/// is marked.
pub fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len().min(LONGEST));
    let mut marks = 0;
    for (place, letter) in text.chars().enumerate() {
        if place == LONGEST {
            cleaned.push_str(ENDED);
            break;
        }
        match letter {
            '\t' => cleaned.push_str(TAB),
            _ if letter.is_control() || is_invisible(letter) => {
                cleaned.extend(letter.escape_default());
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

/// The beginning and the end of a cleaned text that fits into `columns`, with `mark` between them
/// where it was cut: for names that say what they are at their beginning and whose at their end.
pub fn fit_middle(text: &str, columns: usize, mark: &str) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(width(mark));
    let begin = fit(text, room * 2 / 5, "");
    let end = fit_end(text, columns - width(&begin), mark);
    begin + &end
}

/// Breaks a text between words into lines of so many columns.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            line.push_str(word);
        } else if width(line) + 1 + width(word) <= columns {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(format!("  {word}"));
        }
    }
    lines
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
        assert!(cleaned.ends_with("\\r\\n\\u{0}z"), "{cleaned}");
        assert_eq!(clean("user\u{202e}nimda"), "user\\u{202e}nimda");
        assert_eq!(clean("größe 🐍"), "größe 🐍");
    }

    #[test]
    fn accents_stay_and_towers_of_them_do_not() {
        assert_eq!(clean("e\u{301}"), "e\u{301}");
        let tower: String = std::iter::once('e').chain(['\u{301}'; 500]).collect();
        assert_eq!(clean(&tower).chars().count(), 1 + MARKS_A_LETTER);
    }

    #[test]
    fn a_text_of_any_length_gives_a_short_label_that_says_it_was_cut() {
        let cleaned = clean(&"x".repeat(1 << 20));
        assert_eq!(cleaned.chars().count(), LONGEST + ENDED.len());
        assert!(cleaned.ends_with(ENDED));
        assert_eq!(clean(&"x".repeat(LONGEST)).chars().count(), LONGEST);
    }

    #[test]
    fn wide_letters_are_counted_as_two_columns() {
        assert_eq!(fit("模型模型.py", 6, CUT), "模型…");
        assert_eq!(width(&fit("模型模型.py", 6, CUT)), 5);
        assert_eq!(fit_end("/long/path/model.py", 10, CUT), "…/model.py");
    }

    #[test]
    fn a_text_cut_in_the_middle_keeps_both_ends() {
        let name = "Adam.exp_avg[encoder.layers.0.weight]";
        assert_eq!(fit_middle(name, 37, CUT), name);
        assert_eq!(fit_middle(name, 21, CUT), "Adam.exp…rs.0.weight]");
        assert!(width(&fit_middle("模型模型模型", 6, CUT)) <= 6);
        for columns in 0..4 {
            assert!(width(&fit_middle(name, columns, CUT)) <= columns);
        }
    }

    #[test]
    fn only_what_does_not_fit_is_cut() {
        assert_eq!(fit("forward", 7, CUT), "forward");
        assert_eq!(fit("forward", 6, CUT), "forwa…");
        assert_eq!(fit("abc", 0, CUT), "");
    }
}
