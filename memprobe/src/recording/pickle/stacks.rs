//! Stacks of a snapshot, as definitions for the stream of events.

use std::sync::Arc;

use hashbrown::HashMap;

use super::machine::{Document, ListId, Value};
use super::metadata::{ParsedFacts, StackFacts};
use crate::event::{Event, Frame, NoStack, Stack, StackId, StackKind};
use crate::recording::{MAX_ALL_FRAMES, MAX_FRAMES, MAX_STACKS};

/// Library of a frame whose library PyTorch did not record.
const NATIVE_CODE: &str = "native code";

/// Bytes of text that count as much as a frame. A longer text takes longer to compare.
const TEXT_OF_FRAME: usize = 64;

#[derive(Debug)]
pub(super) struct PickledStacks {
    /// Events share their list of frames if they have one stack.
    by_list: HashMap<(Option<ListId>, StackFacts), StackId>,
    by_frames: HashMap<Arc<Stack>, StackId>,
    parsed: ParsedFacts,
    /// Frames that may still be read. One short list may be in any number of stacks.
    frames_left: usize,
    /// Definitions so far.
    pub definitions: Vec<Event>,
    /// Stacks beyond the limits.
    pub refused: u64,
}

impl Default for PickledStacks {
    fn default() -> Self {
        Self {
            by_list: HashMap::new(),
            by_frames: HashMap::new(),
            parsed: ParsedFacts::default(),
            frames_left: MAX_ALL_FRAMES,
            definitions: Vec::new(),
            refused: 0,
        }
    }
}

impl PickledStacks {
    /// Returns the stack of an allocation with these frames and facts.
    pub fn of(
        &mut self,
        document: &Document,
        frames: Option<ListId>,
        facts: StackFacts,
    ) -> StackId {
        if let Some(id) = self.by_list.get(&(frames, facts)) {
            return *id;
        }
        let id = match self.read(document, frames, facts) {
            Some(stack) => self.intern(stack),
            None => {
                self.refused += 1;
                StackId::NONE
            }
        };
        self.by_list.insert((frames, facts), id);
        id
    }

    /// Reads a stack; `None` if too much was read before.
    fn read(
        &mut self,
        document: &Document,
        frames: Option<ListId>,
        facts: StackFacts,
    ) -> Option<Stack> {
        self.charge(facts.text_bytes(document))?;
        let mut stack = match frames {
            None => unknown(NoStack::NotRecorded),
            Some(list) => self.read_frames(document, document.list(list))?,
        };
        facts.add_to(document, &mut self.parsed, &mut stack);
        Some(stack)
    }

    /// Reads a stack of Python, below it the native code that Python called. Native code that runs Python is left out.
    fn read_frames(&mut self, document: &Document, all: &[Value]) -> Option<Stack> {
        let mut found: Vec<Frame> = Vec::new();
        let mut has_python = false;
        for value in all.iter().take(MAX_FRAMES) {
            let frame = frame(document, *value);
            let text = frame.as_ref();
            self.charge(text.map_or(0, |frame| frame.file.len() + frame.function.len()))?;
            if let Some(frame) = frame {
                let is_python = frame.library.is_none();
                has_python |= is_python;
                if is_python || !has_python {
                    found.push(frame);
                }
            }
        }
        Some(match has_python {
            true => Stack::new(StackKind::Python, found, all.len() > MAX_FRAMES),
            false => unknown(NoStack::NoPythonFrames),
        })
    }

    /// Takes a frame with this much text from those that may be read; `None` if it is beyond them.
    fn charge(&mut self, text: usize) -> Option<()> {
        let cost = 1 + text / TEXT_OF_FRAME;
        self.frames_left = self.frames_left.checked_sub(cost)?;
        Some(())
    }

    /// Returns the stack of an allocation without any.
    pub fn not_recorded(&mut self) -> StackId {
        self.intern(unknown(NoStack::NotRecorded))
    }

    /// Forgets the lists and texts of the document.
    pub fn without_lists(self) -> Self {
        Self {
            by_list: HashMap::new(),
            parsed: ParsedFacts::default(),
            ..self
        }
    }

    fn intern(&mut self, stack: Stack) -> StackId {
        if let Some(id) = self.by_frames.get(&stack) {
            return *id;
        }
        if self.by_frames.len() >= MAX_STACKS {
            self.refused += 1;
            return StackId::NONE;
        }
        let id = StackId(self.by_frames.len() as u32 + 1);
        let stack = Arc::new(stack);
        self.by_frames.insert(Arc::clone(&stack), id);
        self.definitions.push(Event::Stack(id, stack));
        id
    }
}

fn unknown(reason: NoStack) -> Stack {
    let thread = "".into();
    Stack::new(StackKind::Unknown { thread, reason }, Vec::new(), false)
}

fn frame(document: &Document, value: Value) -> Option<Frame> {
    let Value::Dict(frame) = value else {
        return None;
    };
    let text = |key| match document.get(frame, key) {
        Some(Value::Text(text)) => Some(Arc::clone(document.text(text))),
        _ => None,
    };
    let file = text("filename")?;
    let line = match document.get(frame, "line") {
        Some(Value::Int(line)) => u32::try_from(line).unwrap_or(0),
        _ => 0,
    };
    Some(Frame {
        library: (!is_python(&file)).then(|| NATIVE_CODE.into()),
        function: text("name").unwrap_or_else(|| "".into()),
        line,
        file,
    })
}

/// Returns true for the file of a code object: a source file, or a name such as `<string>`.
fn is_python(file: &str) -> bool {
    file.ends_with(".py") || file.starts_with('<') || file.ends_with(".ipynb")
}

#[cfg(test)]
mod tests {
    use super::super::machine;
    use super::super::samples::{Plain, line};
    use super::*;

    /// The lists of frames in a document.
    fn lists(frames: Vec<Plain>) -> (Document, Vec<ListId>) {
        let document = machine::decode(&*Plain::List(frames).pickled()).expect("decoded");
        let Value::List(root) = document.root else {
            unreachable!("the root is a list");
        };
        let lists = document.list(root).iter().filter_map(|item| match item {
            Value::List(list) => Some(*list),
            _ => None,
        });
        let lists = lists.collect();
        (document, lists)
    }

    #[test]
    fn stacks_beyond_the_frames_of_a_recording_are_refused() {
        let (document, lists) = lists((1..=3).map(line).collect());
        // One for the stack, one for each frame; a stack that is known costs nothing.
        let mut stacks = PickledStacks {
            frames_left: 8,
            ..PickledStacks::default()
        };
        let none = StackFacts::default();
        let of =
            |stacks: &mut PickledStacks, at: usize| stacks.of(&document, Some(lists[at]), none);
        assert_eq!([0, 1, 0].map(|at| of(&mut stacks, at).0), [1, 2, 1]);
        assert_eq!(stacks.refused, 0);
        assert_eq!([2, 2].map(|at| of(&mut stacks, at)), [StackId::NONE; 2]);
        assert_eq!(of(&mut stacks, 1), StackId(2));
        assert_eq!((stacks.refused, stacks.definitions.len()), (1, 2));
    }

    #[test]
    fn a_long_text_counts_as_many_frames() {
        let frame = |file| {
            Plain::dict([
                ("filename", file),
                ("line", Plain::Int(1)),
                ("name", Plain::Text("step")),
            ])
        };
        let long = frame(Plain::long(100 * TEXT_OF_FRAME));
        let (document, lists) = lists(vec![Plain::same(50, long)]);
        let mut stacks = PickledStacks {
            frames_left: 4000,
            ..PickledStacks::default()
        };
        let id = stacks.of(&document, Some(lists[0]), StackFacts::default());
        assert_eq!((id, stacks.refused), (StackId::NONE, 1));
    }
}
