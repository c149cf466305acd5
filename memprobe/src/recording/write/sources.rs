//! Source text of the lines that a recording's stacks name.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::event::Stack;
use crate::ledger::grouping::{CodeOwner, origin};
use crate::recording::SourceExcerpt;

/// Lines before and after a named line of a library.
const CONTEXT: u32 = 4;

/// Most bytes of the texts of one recording.
const MAX_TEXT: usize = 16 << 20;

/// Most bytes of one file.
pub const MAX_SOURCE: usize = 1 << 20;

/// Most files that are looked at.
const MAX_FILES: usize = 4096;

/// Most lines of libraries.
const MAX_LINES: usize = 1 << 16;

/// Most bytes of texts of libraries that are kept for their further lines.
const MAX_KEPT: usize = 8 << 20;

/// Text of a source file, as a process has it.
#[derive(Clone, Debug)]
pub struct SourceOfProcess {
    pub text: String,
    pub modified_ms: Option<u64>,
}

/// Reads a source file of the recorded process; `None` if that is impossible.
pub type ReadSource = Box<dyn FnMut(&str) -> Option<SourceOfProcess> + Send>;

/// Collects the text of the lines that stacks name: whole files of the user, and of libraries the lines around those.
pub(in crate::recording) struct SourceCollector {
    read: ReadSource,
    /// Files that have been looked at, with the text of those of libraries.
    files: HashMap<Arc<str>, Option<SourceOfProcess>>,
    kept: usize,
    /// Lines of libraries that are recorded.
    lines: BTreeSet<(Arc<str>, u32)>,
    /// Bytes that may still be recorded.
    left: usize,
}

impl SourceCollector {
    /// `most` bounds the bytes of all texts.
    pub(in crate::recording) fn new(read: ReadSource, most: u64) -> Self {
        Self {
            read,
            files: HashMap::new(),
            kept: 0,
            lines: BTreeSet::new(),
            left: usize::try_from(most).map_or(MAX_TEXT, |most| most.min(MAX_TEXT)),
        }
    }

    /// Returns the excerpts that a stack names for the first time.
    pub(in crate::recording) fn excerpts(&mut self, stack: &Stack) -> Vec<SourceExcerpt> {
        let node = stack.context.node.as_ref();
        let forward = node.and_then(|node| node.forward.as_ref());
        let forward = forward.iter().flat_map(|forward| &forward.frames);
        let frames = stack.frames.iter().chain(forward);
        let mut excerpts = Vec::new();
        for frame in frames {
            // Native code has a library, and generated code no file.
            let is_file = frame.library.is_none() && frame.file.ends_with(".py");
            if is_file && frame.line > 0 {
                excerpts.extend(self.excerpt(&frame.file, frame.line));
            }
        }
        excerpts
    }

    fn excerpt(&mut self, file: &Arc<str>, line: u32) -> Option<SourceExcerpt> {
        let is_of_user = origin(file) == CodeOwner::User;
        if !self.files.contains_key(file) {
            let source = self.read(file)?;
            if is_of_user {
                let whole = SourceExcerpt {
                    file: Arc::clone(file),
                    first_line: 1,
                    is_whole: true,
                    modified_ms: source.modified_ms,
                    text: source.text,
                };
                return self.within_limits(whole);
            }
            self.kept += source.text.len();
            self.files.insert(Arc::clone(file), Some(source));
        }
        let source = self.files.get(file)?.as_ref()?;
        if self.lines.len() >= MAX_LINES || !self.lines.insert((Arc::clone(file), line)) {
            return None;
        }
        let first_line = line.saturating_sub(CONTEXT).max(1);
        let lines = source.text.lines().skip(first_line as usize - 1);
        let lines: Vec<&str> = lines.take(2 * CONTEXT as usize + 1).collect();
        let excerpt = SourceExcerpt {
            file: Arc::clone(file),
            first_line,
            is_whole: false,
            modified_ms: source.modified_ms,
            text: lines.join("\n"),
        };
        self.within_limits(excerpt)
    }

    /// Reads a file for the first time. An unread one is not tried again.
    fn read(&mut self, file: &Arc<str>) -> Option<SourceOfProcess> {
        if self.files.len() >= MAX_FILES || self.kept > MAX_KEPT {
            return None;
        }
        self.files.insert(Arc::clone(file), None);
        let source = (self.read)(file)?;
        (source.text.len() <= MAX_SOURCE).then_some(source)
    }

    fn within_limits(&mut self, excerpt: SourceExcerpt) -> Option<SourceExcerpt> {
        self.left = self.left.checked_sub(excerpt.text.len())?;
        Some(excerpt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Context, Frame, StackKind};

    fn stack(frames: &[(&str, u32)]) -> Stack {
        let frames = frames.iter().map(|(file, line)| Frame {
            file: (*file).into(),
            line: *line,
            function: "f".into(),
            library: None,
        });
        Stack {
            kind: StackKind::Python,
            frames: frames.collect(),
            truncated: false,
            context: Context::default(),
        }
    }

    fn collector(most: u64) -> SourceCollector {
        let read = |file: &str| {
            let lines: Vec<String> = (1..=100).map(|line| format!("line {line}")).collect();
            (!file.contains("missing")).then(|| SourceOfProcess {
                text: lines.join("\n"),
                modified_ms: Some(7),
            })
        };
        SourceCollector::new(Box::new(read), most)
    }

    #[test]
    fn a_file_of_the_user_is_recorded_once_and_a_library_by_its_lines() {
        let mut sources = collector(u64::MAX);
        const LIBRARY: &str = "/v/lib/python3.12/site-packages/torch/nn/functional.py";
        let found = sources.excerpts(&stack(&[(LIBRARY, 50), ("/home/me/train.py", 9)]));
        let shown: Vec<_> = found
            .iter()
            .map(|it| {
                (
                    &*it.file,
                    it.first_line,
                    it.is_whole,
                    it.text.lines().count(),
                )
            })
            .collect();
        let expected = [(LIBRARY, 46, false, 9), ("/home/me/train.py", 1, true, 100)];
        assert_eq!(shown, expected);
        assert!(
            sources
                .excerpts(&stack(&[(LIBRARY, 50), ("/home/me/train.py", 3)]))
                .is_empty()
        );
        assert_eq!(sources.excerpts(&stack(&[(LIBRARY, 2)]))[0].first_line, 1);
        for other in ["<stdin>", "/x/missing.py", "/etc/passwd"] {
            assert!(
                sources.excerpts(&stack(&[(other, 1)])).is_empty(),
                "{other}"
            );
        }
    }

    #[test]
    fn a_recording_takes_no_more_text_than_it_may() {
        let mut sources = collector(1000);
        let first = sources.excerpts(&stack(&[("/a.py", 1)]));
        assert_eq!(first.len(), 1);
        assert!(sources.excerpts(&stack(&[("/b.py", 1)])).is_empty());
    }
}
