//! Text from the target: stripped of terminal control sequences and fitted to columns.

use unicode_width::UnicodeWidthChar;

/// Longest cleaned text, in characters; more would not fit on a screen.
const LONGEST: usize = 2048;
/// Longest line of a message, in characters: two of the longest paths, and the words around them.
const LONGEST_LINE: usize = 10_000;
/// Combining marks kept per character; more would draw over the lines above and below.
const MARKS_A_LETTER: usize = 2;
const TAB: &str = "    ";
/// Mark for text cut by [`clean`]. ASCII, because [`clean`] does not know the terminal's character set.
const ENDED: &str = "...";
pub const CUT: &str = "…";

/// Removes or escapes all characters that a terminal would interpret: control characters, changes of writing
/// direction and invisible characters. Cuts and marks text beyond `LONGEST` characters.
pub fn clean(text: &str) -> String {
    clean_up_to(text, LONGEST)
}

/// Cleans a message as [`clean`] does, and keeps its lines.
pub fn clean_message(text: &str) -> String {
    let lines: Vec<_> = text
        .split('\n')
        .map(|line| clean_up_to(line, LONGEST_LINE))
        .collect();
    lines.join("\n")
}

fn clean_up_to(text: &str, longest: usize) -> String {
    let mut cleaned = String::with_capacity(text.len().min(longest));
    let mut marks = 0;
    for (place, letter) in text.chars().enumerate() {
        if place == longest {
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

/// Returns true for invisible characters that change how their neighbours are drawn.
pub(super) fn is_invisible(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns the columns that a cleaned text occupies.
pub fn width(text: &str) -> usize {
    text.chars().map(|letter| letter.width().unwrap_or(0)).sum()
}

/// Cuts a cleaned text to `columns`; `mark` replaces the part that was cut off.
pub fn fit(text: &str, columns: usize, mark: &str) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mark = if width(mark) <= columns { mark } else { "" };
    let mut left = columns - width(mark);
    let mut fitted = String::new();
    for letter in text.chars() {
        let wide = letter.width().unwrap_or(0);
        if wide > left {
            break;
        }
        left -= wide;
        fitted.push(letter);
    }
    fitted + mark
}

/// Cuts the beginning of a cleaned text to fit `columns`, for paths, whose end says most.
pub fn fit_end(text: &str, columns: usize, mark: &str) -> String {
    let reversed: String = text.chars().rev().collect();
    fit(&reversed, columns, mark).chars().rev().collect()
}

/// Cuts the middle of a cleaned text to fit `columns`, for module paths and tensor names, which differ at both ends.
pub fn fit_middle(text: &str, columns: usize, mark: &str) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let limit = columns.saturating_sub(width(mark));
    let begin = fit(text, limit * 2 / 5, "");
    let end = fit_end(text, columns - width(&begin), mark);
    begin + &end
}

/// Wraps a text at spaces to lines of at most `columns`; every line but the first is indented by two spaces.
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
    fn a_message_keeps_its_lines_and_loses_all_else_that_a_terminal_acts_upon() {
        let cleaned = clean_message("it has ended.\n/tmp/\x1b]0;owned\x07/lib.so\r\u{202e}\n");
        assert_eq!(
            cleaned,
            "it has ended.\n/tmp/\\u{1b}]0;owned\\u{7}/lib.so\\r\\u{202e}\n"
        );
        assert_eq!(clean_message(&cleaned), cleaned);
        assert_eq!(clean_message(&"x".repeat(9000)).len(), 9000);
        assert!(clean_message(&"x".repeat(1 << 20)).len() < 11_000);
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
