//! Which lines are shown: those whose name matches a regular expression.

use regex::{Regex, RegexBuilder};

use super::input::Wanted;

/// A filter may be this long, in characters.
const LONGEST_PATTERN: usize = 500;

/// A program of a regular expression may take this many bytes.
const LARGEST: usize = 1 << 20;

/// What a person typed, and what it means.
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
    /// The filter of a pattern: capitals matter only where the pattern has one.
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

    /// The filter after a change at the end of its pattern; `None` where that changes nothing.
    pub fn edited(&self, wanted: Wanted) -> Option<Self> {
        let mut pattern = self.pattern.clone();
        match wanted {
            Wanted::Type(letter)
                if !letter.is_control() && pattern.chars().count() < LONGEST_PATTERN =>
            {
                pattern.push(letter);
            }
            Wanted::Erase => {
                pattern.pop();
            }
            Wanted::EraseWord => {
                let kept = pattern.trim_end().rfind(' ').map_or(0, |at| at + 1);
                pattern.truncate(kept);
            }
            Wanted::EraseAll => pattern.clear(),
            _ => return None,
        }
        Some(Self::new(&pattern))
    }

    /// What was typed.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Why the pattern means nothing; all lines are shown then.
    pub fn error(&self) -> Option<&str> {
        match &self.meaning {
            Meaning::Invalid(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether lines may be left out.
    pub fn is_active(&self) -> bool {
        matches!(self.meaning, Meaning::Matching(_))
    }

    /// Whether a line of this name is shown.
    pub fn shows(&self, name: &str) -> bool {
        match &self.meaning {
            Meaning::Matching(regex) => regex.is_match(name),
            Meaning::All | Meaning::Invalid(_) => true,
        }
    }
}

/// The regex crate draws a picture over several lines; its last says what is wrong.
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
    fn an_invalid_pattern_says_why_and_hides_nothing() {
        let filter = Filter::new("model[");
        assert_eq!(filter.error(), Some("unclosed character class"));
        assert!(filter.shows("train.py") && !filter.is_active());
    }

    #[test]
    fn a_pattern_that_would_take_all_memory_is_refused() {
        assert!(Filter::new(r"(\w{500}){500}").error().is_some());
    }
}
