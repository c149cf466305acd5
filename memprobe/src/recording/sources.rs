//! Source text in a recording: whole files of the user, and lines of libraries that stacks name.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Most bytes of all texts that a reader keeps.
const MAX_TEXT: usize = 64 << 20;

/// Most single lines that a reader keeps.
const MAX_LINES: usize = 1 << 18;

/// Most files that a reader keeps.
const MAX_FILES: usize = 1 << 14;

/// Consecutive lines of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceExcerpt {
    /// Path as the frames have it.
    pub file: Arc<str>,
    pub first_line: u32,
    /// True if it is the whole file.
    pub is_whole: bool,
    /// Time of the file's last change in milliseconds since 1970; `None` if unknown.
    pub modified_ms: Option<u64>,
    pub text: String,
}

/// Source text of a recording, by file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedSources {
    files: BTreeMap<Arc<str>, RecordedSource>,
    bytes: usize,
    lines: usize,
}

/// Text of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedSource {
    /// The whole text, if it was recorded.
    whole: Option<Arc<str>>,
    /// Single lines, by number.
    lines: BTreeMap<u32, Box<str>>,
    pub modified_ms: Option<u64>,
}

impl RecordedSources {
    /// Adds an excerpt. Later ones replace earlier ones; those beyond the limits are left out.
    pub fn add(&mut self, excerpt: SourceExcerpt) {
        let is_new = !self.files.contains_key(&excerpt.file);
        if self.bytes + excerpt.text.len() > MAX_TEXT || is_new && self.files.len() >= MAX_FILES {
            return;
        }
        self.bytes += excerpt.text.len();
        let source = self.files.entry(excerpt.file).or_default();
        source.modified_ms = excerpt.modified_ms;
        if excerpt.is_whole {
            source.whole = Some(excerpt.text.into());
            return;
        }
        let numbers = excerpt.first_line..u32::MAX;
        for (number, line) in numbers.zip(excerpt.text.lines()) {
            if self.lines >= MAX_LINES {
                return;
            }
            self.lines += usize::from(source.lines.insert(number, line.into()).is_none());
        }
    }

    /// Adds all texts of another part of the recording.
    pub fn merge(&mut self, other: &Self) {
        for (file, source) in &other.files {
            let is_known = self.files.get(file).is_some_and(|known| known == source);
            if is_known {
                continue;
            }
            let excerpt = |first_line, text: &str, is_whole| SourceExcerpt {
                file: Arc::clone(file),
                first_line,
                is_whole,
                modified_ms: source.modified_ms,
                text: text.to_owned(),
            };
            for (number, line) in &source.lines {
                self.add(excerpt(*number, line, false));
            }
            if let Some(text) = &source.whole {
                self.add(excerpt(1, text, true));
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub fn file(&self, file: &str) -> Option<&RecordedSource> {
        self.files.get(file)
    }
}

impl RecordedSource {
    /// Returns the whole text; `None` if only single lines were recorded.
    pub fn text(&self) -> Option<&str> {
        self.whole.as_deref()
    }

    /// Returns a line; `None` if it was not recorded. Lines count from 1.
    pub fn line(&self, line: u32) -> Option<&str> {
        match &self.whole {
            Some(text) => text
                .lines()
                .nth(usize::try_from(line).ok()?.checked_sub(1)?),
            None => self.lines.get(&line).map(|line| &**line),
        }
    }

    /// Returns the whole text, or the recorded lines with empty ones between them.
    pub fn sparse_text(&self) -> String {
        if let Some(text) = &self.whole {
            return (**text).to_owned();
        }
        let mut text = String::new();
        let mut next = 1;
        for (number, line) in &self.lines {
            if *number as usize > MAX_LINES {
                break;
            }
            let gap = (*number).saturating_sub(next);
            text.extend(std::iter::repeat_n('\n', gap as usize));
            text.push_str(line);
            text.push('\n');
            next = number.saturating_add(1);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt(file: &str, first_line: u32, text: &str) -> SourceExcerpt {
        SourceExcerpt {
            file: file.into(),
            first_line,
            is_whole: false,
            modified_ms: None,
            text: text.to_owned(),
        }
    }

    #[test]
    fn single_lines_keep_their_numbers_and_a_whole_file_replaces_them() {
        let mut sources = RecordedSources::default();
        sources.add(excerpt("a.py", 3, "c\nd"));
        sources.add(excerpt("a.py", 6, "f"));
        let file = sources.file("a.py").unwrap();
        assert_eq!(file.text(), None);
        assert_eq!((file.line(4), file.line(5)), (Some("d"), None));
        assert_eq!(file.sparse_text(), "\n\nc\nd\n\nf\n");
        let mut part = RecordedSources::default();
        part.add(SourceExcerpt {
            is_whole: true,
            ..excerpt("a.py", 1, "one\ntwo\n")
        });
        sources.merge(&part);
        sources.merge(&part);
        let file = sources.file("a.py").unwrap();
        assert_eq!(
            (file.text(), file.line(2)),
            (Some("one\ntwo\n"), Some("two"))
        );
        assert_eq!((file.line(0), file.line(3)), (None, None));
    }

    #[test]
    fn texts_beyond_the_limits_are_left_out() {
        let mut sources = RecordedSources::default();
        for at in 0..70 {
            sources.add(excerpt(&format!("{at}.py"), 1, &"x".repeat(1 << 20)));
        }
        assert_eq!(sources.files.len(), 64);
        let mut sources = RecordedSources::default();
        sources.add(excerpt("far.py", u32::MAX, "last\nbeyond"));
        assert!(sources.file("far.py").unwrap().sparse_text().len() < 1 << 20);
    }
}
