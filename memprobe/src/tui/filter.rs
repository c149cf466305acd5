//! Filter of lines by a regular expression on their names.

use regex::{Regex, RegexBuilder};

use super::input::InputEvent;

/// Longest pattern, in characters.
const LONGEST_PATTERN: usize = 500;
/// Largest compiled regular expression, in bytes.
const LARGEST: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub struct Filter {
    pattern: String,
    meaning: Meaning,
}

#[derive(Clone, Debug, Default)]
enum Meaning {
    #[default]
    All,
    Matching(Regex),
    Invalid(String),
}

impl Filter {
    /// Compiles a pattern; case matters only if it contains an uppercase letter.
    pub fn new(pattern: &str) -> Self {
        let meaning = if pattern.is_empty() {
            Meaning::All
        } else {
            let built = RegexBuilder::new(pattern)
                .case_insensitive(!pattern.chars().any(char::is_uppercase))
                .size_limit(LARGEST)
                .build();
            match built {
                Ok(regex) => Meaning::Matching(regex),
                Err(error) => Meaning::Invalid(reason(&error)),
            }
        };
        Self {
            pattern: pattern.to_owned(),
            meaning,
        }
    }

    /// Returns the filter after an edit at the end of its pattern; `None` if the input does not edit it.
    pub fn edited(&self, wanted: InputEvent) -> Option<Self> {
        let mut pattern = self.pattern.clone();
        match wanted {
            InputEvent::Type(letter)
                if !letter.is_control() && pattern.chars().count() < LONGEST_PATTERN =>
            {
                pattern.push(letter);
            }
            InputEvent::Erase => {
                pattern.pop();
            }
            InputEvent::EraseWord => {
                let end = pattern.trim_end().rfind(' ').map_or(0, |at| at + 1);
                pattern.truncate(end);
            }
            InputEvent::EraseAll => pattern.clear(),
            _ => return None,
        }
        Some(Self::new(&pattern))
    }

    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Returns the reason why the pattern is invalid; all lines are shown then.
    pub fn error(&self) -> Option<&str> {
        match &self.meaning {
            Meaning::Invalid(reason) => Some(reason),
            _ => None,
        }
    }

    pub fn is_active(&self) -> bool {
        matches!(self.meaning, Meaning::Matching(_))
    }

    pub fn shows(&self, name: &str) -> bool {
        match &self.meaning {
            Meaning::Matching(regex) => regex.is_match(name),
            Meaning::All | Meaning::Invalid(_) => true,
        }
    }
}

/// Returns the last line of the regex crate's multi-line message, which states the reason.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.trim().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pattern_shows_all() {
        assert!(Filter::default().shows("anything"));
        assert!(!Filter::new("").is_active());
    }

    #[test]
    fn capitals_matter_only_where_the_pattern_has_one() {
        assert!(Filter::new("model").shows("/a/Model.py:1 f"));
        assert!(!Filter::new("Model").shows("/a/model.py:1 f"));
    }

    #[test]
    fn an_invalid_pattern_shows_its_error_and_hides_nothing() {
        let filter = Filter::new("model[");
        assert_eq!(filter.error(), Some("unclosed character class"));
        assert!(filter.shows("train.py") && !filter.is_active());
    }

    #[test]
    fn a_pattern_that_would_take_all_memory_is_refused() {
        assert!(Filter::new(r"(\w{500}){500}").error().is_some());
    }
}
