//! The question for the terminal's background, and its answer among the keys.
//!
//! The question is OSC 11 of xterm's ctlseqs: `OSC 11 ; ? ST`. Nobody waits for the answer: many terminals are silent,
//! and a slow connection delays it. crossterm knows no such answer, and passes it on as keys. [`AnswerFilter`]
//! recognizes it among them at any time, also when it comes in pieces.

use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};

use super::palette::Background;

pub const QUESTION: &str = "\x1b]11;?\x1b\\";

/// Begin of an answer, behind `OSC`. The colour follows as in `rgb:ffff/ffff/ffff`, or `rgba:` with a fourth part.
const NUMBER: &str = "11;";
/// Longest answer, in characters.
const MAX_ANSWER: usize = 32;
/// Luminance from which on a background counts as light: black and white text have equal contrast there (WCAG 2).
const LIGHT: f64 = 0.179;

/// Takes the answer out of the keys. Keys that only look like its begin are passed on late, but in order.
#[derive(Debug, Default)]
pub struct AnswerFilter {
    state: FilterState,
    held: Vec<Event>,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum FilterState {
    /// There was no question, or its answer has come.
    #[default]
    Idle,
    Asked,
    /// An Esc was passed on. It may have been the begin of an answer in two pieces.
    AfterEscape,
    Inside,
    /// An Esc within an answer, which may be the begin of its end.
    InsideAfterEscape,
}

/// Outcome of an event.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FilteredInput {
    /// Events that are no part of an answer.
    pub events: Vec<Event>,
    /// The answer, once it is complete.
    pub background: Option<Background>,
}

impl AnswerFilter {
    /// Expects an answer from now on.
    pub fn expect(&mut self) {
        self.state = FilterState::Asked;
    }

    pub fn is_expecting(&self) -> bool {
        self.state != FilterState::Idle
    }

    pub fn filter(&mut self, event: Event) -> FilteredInput {
        let Event::Key(key) = event else {
            // Sizes and the mouse may come between the pieces of an answer.
            return pass(vec![event]);
        };
        match self.state {
            FilterState::Idle => return pass(vec![event]),
            FilterState::Asked | FilterState::AfterEscape => {
                let begins = is_alt(key, ']')
                    || (self.state == FilterState::AfterEscape && plain(key) == Some(']'));
                if begins {
                    self.state = FilterState::Inside;
                    self.held.push(event);
                    return FilteredInput::default();
                }
                self.state = match key.code {
                    KeyCode::Esc => FilterState::AfterEscape,
                    _ => FilterState::Asked,
                };
                return pass(vec![event]);
            }
            FilterState::Inside => {
                if is_bell(key) || is_alt(key, '\\') {
                    return self.end(event);
                }
                if key.code == KeyCode::Esc {
                    self.state = FilterState::InsideAfterEscape;
                    self.held.push(event);
                    return FilteredInput::default();
                }
                if let Some(letter) = plain(key) {
                    self.text.push(letter);
                    if is_begin_of_answer(&self.text) {
                        self.held.push(event);
                        return FilteredInput::default();
                    }
                }
            }
            FilterState::InsideAfterEscape if plain(key) == Some('\\') => return self.end(event),
            FilterState::InsideAfterEscape => {}
        }
        self.give_up(event)
    }

    /// Ends an answer with this event.
    fn end(&mut self, event: Event) -> FilteredInput {
        let Some(colour) = self.text.strip_prefix(NUMBER) else {
            return self.give_up(event);
        };
        let background = parse(colour).unwrap_or(Background::Unknown);
        *self = Self::default();
        FilteredInput {
            events: Vec::new(),
            background: Some(background),
        }
    }

    /// Passes on what was held: it was no answer.
    fn give_up(&mut self, event: Event) -> FilteredInput {
        let mut events = std::mem::take(&mut self.held);
        events.push(event);
        self.text.clear();
        self.state = FilterState::Asked;
        pass(events)
    }
}

fn pass(events: Vec<Event>) -> FilteredInput {
    FilteredInput {
        events,
        background: None,
    }
}

fn is_alt(key: KeyEvent, letter: char) -> bool {
    key.code == KeyCode::Char(letter) && key.modifiers == KeyModifiers::ALT
}

/// True for BEL, which ends an answer as ST does.
fn is_bell(key: KeyEvent) -> bool {
    key.code == KeyCode::Char('g') && key.modifiers == KeyModifiers::CONTROL
}

/// Returns the letter of a key without Alt and Control.
fn plain(key: KeyEvent) -> Option<char> {
    match key.code {
        KeyCode::Char(letter) if (key.modifiers - KeyModifiers::SHIFT).is_empty() => Some(letter),
        _ => None,
    }
}

fn is_begin_of_answer(text: &str) -> bool {
    match text.strip_prefix(NUMBER) {
        None => NUMBER.starts_with(text),
        Some(colour) => {
            text.len() <= MAX_ANSWER
                && colour.chars().all(|letter| {
                    letter.is_ascii_hexdigit() || matches!(letter, 'r' | 'g' | ':' | '/')
                })
        }
    }
}

/// Parses `rgb:R/G/B` or `rgba:R/G/B/A`, of one to four hexadecimal digits each.
fn parse(colour: &str) -> Option<Background> {
    let parts = colour
        .strip_prefix("rgb:")
        .or_else(|| colour.strip_prefix("rgba:"))?;
    let channels: Option<Vec<f64>> = parts.split('/').map(channel).collect();
    let [red, green, blue, ..] = channels?[..] else {
        return None;
    };
    let luminance = 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
    Some(if luminance < LIGHT {
        Background::Dark
    } else {
        Background::Light
    })
}

/// Returns a channel from 0 to 1.
fn channel(digits: &str) -> Option<f64> {
    if digits.is_empty() || digits.len() > 4 {
        return None;
    }
    let value = u32::from_str_radix(digits, 16).ok()?;
    let most = 16_u32.pow(u32::try_from(digits.len()).ok()?) - 1;
    Some(f64::from(value) / f64::from(most))
}

/// Undoes the gamma of sRGB.
fn linear(channel: f64) -> f64 {
    if channel <= 0.04045 {
        channel / 12.92
    } else {
        ((channel + 0.055) / 1.055).powf(2.4)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::Dice;
    use super::*;

    fn key(code: KeyCode, modifiers: KeyModifiers) -> Event {
        Event::Key(KeyEvent::new(code, modifiers))
    }

    /// The events that crossterm makes of these bytes, which arrive in pieces.
    fn events(pieces: &[&str]) -> Vec<Event> {
        let mut events = Vec::new();
        for piece in pieces {
            let mut letters = piece.chars().peekable();
            while let Some(letter) = letters.next() {
                events.push(match letter {
                    '\x1b' => match letters.next() {
                        Some(next) => key(KeyCode::Char(next), KeyModifiers::ALT),
                        None => key(KeyCode::Esc, KeyModifiers::NONE),
                    },
                    '\x07' => key(KeyCode::Char('g'), KeyModifiers::CONTROL),
                    letter if letter.is_uppercase() => {
                        key(KeyCode::Char(letter), KeyModifiers::SHIFT)
                    }
                    letter => key(KeyCode::Char(letter), KeyModifiers::NONE),
                });
            }
        }
        events
    }

    /// Passes these through a filter that expects an answer.
    fn filtered(events: &[Event]) -> (Vec<Event>, Option<Background>) {
        let mut filter = AnswerFilter::default();
        filter.expect();
        let (mut passed, mut background) = (Vec::new(), None);
        for event in events {
            let filtered = filter.filter(event.clone());
            passed.extend(filtered.events);
            background = background.or(filtered.background);
        }
        assert_eq!(filter.is_expecting(), background.is_none());
        (passed, background)
    }

    #[test]
    fn the_answer_is_read_in_every_form() {
        for (answer, expected) in [
            ("\x1b]11;rgb:0000/0000/0000\x1b\\", Background::Dark),
            ("\x1b]11;rgb:ffff/ffff/ffff\x07", Background::Light),
            ("\x1b]11;rgb:FD/F6/e3\x1b\\", Background::Light),
            ("\x1b]11;rgba:1e1e/1e1e/1e1e/ffff\x07", Background::Dark),
            ("\x1b]11;rgb:0/2/3\x07", Background::Dark),
            ("\x1b]11;rgb:7/7/7\x07", Background::Light),
            ("\x1b]11;rgb:ffff/ffff\x07", Background::Unknown),
            ("\x1b]11;rgb:fffff/0/0\x07", Background::Unknown),
        ] {
            let (passed, background) = filtered(&events(&[answer]));
            assert_eq!((passed, background), (Vec::new(), Some(expected)));
        }
    }

    #[test]
    fn keys_around_an_answer_keep_their_order() {
        let typed = events(&["ab", "\x1b]11;rgb:ffff/ffff/ffff\x1b\\", "c]1"]);
        let (passed, background) = filtered(&typed);
        assert_eq!(passed, events(&["abc]1"]));
        assert_eq!(background, Some(Background::Light));
    }

    #[test]
    fn an_answer_in_pieces_is_no_key() {
        let answer = "\x1b]11;rgb:1212/3434/5656\x1b\\";
        for first in 1..answer.len() {
            for second in first..answer.len() {
                let pieces = [&answer[..first], &answer[first..second], &answer[second..]];
                let (passed, background) = filtered(&events(&pieces));
                assert_eq!(background, Some(Background::Dark), "{pieces:?}");
                // Esc at the end of a piece cannot be told from the key. It closes and never quits.
                let escape = key(KeyCode::Esc, KeyModifiers::NONE);
                assert!(passed.iter().all(|event| *event == escape), "{pieces:?}");
            }
        }
    }

    #[test]
    fn other_events_pass_an_answer_at_once() {
        let mut filter = AnswerFilter::default();
        filter.expect();
        for event in events(&["\x1b]11;rgb:0/0"]) {
            assert_eq!(filter.filter(event), FilteredInput::default());
        }
        let resized = Event::Resize(80, 24);
        assert_eq!(filter.filter(resized.clone()), pass(vec![resized]));
        let rest = events(&["/0\x07"]);
        let last = rest.into_iter().map(|event| filter.filter(event)).last();
        assert_eq!(last.unwrap().background, Some(Background::Dark));
    }

    #[test]
    fn keys_that_are_no_answer_are_not_lost() {
        let letters: Vec<char> = "\x1b\x07]1;rgb:/0fq\\".chars().collect();
        let mut dice = Dice::new();
        for _ in 0..2000 {
            let pieces: Vec<String> = (0..dice.roll(4))
                .map(|_| {
                    let letter = |_| letters[dice.roll(letters.len() as u64) as usize];
                    (0..8).map(letter).collect()
                })
                .collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            // A key that begins nothing lets go of what is held.
            let typed = [events(&pieces), events(&["x"])].concat();
            let (passed, background) = filtered(&typed);
            if background.is_none() {
                assert_eq!(passed, typed, "{pieces:?}");
            }
        }
    }

    #[test]
    fn without_a_question_every_key_passes() {
        let mut filter = AnswerFilter::default();
        for event in events(&["\x1b]11;rgb:0/0/0\x07"]) {
            assert_eq!(filter.filter(event.clone()), pass(vec![event]));
        }
    }
}
