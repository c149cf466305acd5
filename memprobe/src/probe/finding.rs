//! Findings of the checks whether memprobe can work: a sentence, its severity and the remedy.

use std::fmt::Display;

use serde::Serialize;
use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Worth knowing; memprobe works.
    Note,
    /// memprobe works, and something will be missing or slow.
    Warn,
    #[strum(serialize = "FAIL")]
    Fail,
}

impl Level {
    pub const fn word(self) -> &'static str {
        self.into_str()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[error("{found}{}", .remedy.as_ref().map(|remedy| format!(".\n{remedy}")).unwrap_or_default())]
pub struct Finding {
    /// Name of the check, stable across versions (`kernel_types`).
    pub check: &'static str,
    pub level: Level,
    pub found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The same as values, for programs.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub facts: Map<String, Value>,
}

impl Finding {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Level::Ok, found.into(), None)
    }

    pub fn note(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Level::Note, found.into(), None)
    }

    pub fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(check, Level::Warn, found.into(), Some(remedy.into()))
    }

    pub fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(check, Level::Fail, found.into(), Some(remedy.into()))
    }

    /// Splits an error of memprobe's form: the problem, and on the next line the remedy.
    pub fn from_error(check: &'static str, level: Level, error: impl Display) -> Self {
        let text = format!("{error:#}");
        let (found, remedy) = match text.split_once('\n') {
            Some((found, remedy)) => (found, Some(remedy.replace('\n', " "))),
            None => (text.as_str(), None),
        };
        Self::new(check, level, found.trim_end_matches('.').to_owned(), remedy)
    }

    fn new(check: &'static str, level: Level, found: String, remedy: Option<String>) -> Self {
        Self {
            check,
            level,
            found,
            remedy,
            facts: Map::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), value.into());
        self
    }

    /// Name of the check for people: `kernel types`, `PID namespace`.
    pub fn title(&self) -> String {
        let word = |word: &str| match word {
            "pid" | "bpf" | "jit" => word.to_ascii_uppercase(),
            "python" => "Python".to_owned(),
            "pytorch" => "PyTorch".to_owned(),
            _ => word.to_owned(),
        };
        let words: Vec<_> = self.check.split('_').map(word).collect();
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_becomes_a_finding_and_is_an_error_again() {
        let error = "it has ended.\nFind the right one\nwith pgrep";
        let finding = Finding::from_error("python", Level::Fail, error);
        assert_eq!(finding.found, "it has ended");
        assert_eq!(
            finding.remedy.as_deref(),
            Some("Find the right one with pgrep")
        );
        assert_eq!(
            finding.to_string(),
            "it has ended.\nFind the right one with pgrep"
        );
    }

    #[test]
    fn the_levels_rise() {
        assert!(Level::Ok < Level::Note && Level::Note < Level::Warn && Level::Warn < Level::Fail);
    }
}
