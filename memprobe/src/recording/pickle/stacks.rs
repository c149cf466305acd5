//! Stacks of a snapshot, as definitions for the stream of events.

use std::sync::Arc;

use hashbrown::HashMap;

use super::machine::{Document, ListId, Value};
use super::metadata::StackFacts;
use crate::event::{Event, Frame, NoStack, Stack, StackId, StackKind};
use crate::recording::{MAX_FRAMES, MAX_STACKS};

/// Library of a frame whose library PyTorch did not record.
const NATIVE_CODE: &str = "native code";

#[derive(Debug, Default)]
pub(super) struct PickledStacks {
    /// Events share their list of frames if they have one stack.
    by_list: HashMap<(ListId, StackFacts), StackId>,
    by_frames: HashMap<Arc<Stack>, StackId>,
    /// Definitions so far.
    pub definitions: Vec<Event>,
}

impl PickledStacks {
    /// Returns the stack of an allocation with these frames and facts.
    pub fn of(
        &mut self,
        document: &Document,
        frames: Option<ListId>,
        facts: StackFacts,
    ) -> StackId {
        if let Some(id) = frames.and_then(|list| self.by_list.get(&(list, facts))) {
            return *id;
        }
        let mut stack = stack(document, frames);
        facts.add_to(document, &mut stack);
        let id = self.intern(stack);
        if let Some(list) = frames {
            self.by_list.insert((list, facts), id);
        }
        id
    }

    /// Returns the stack of an allocation without any.
    pub fn not_recorded(&mut self) -> StackId {
        self.intern(unknown(NoStack::NotRecorded))
    }

    /// Forgets the lists of the document.
    pub fn without_lists(self) -> Self {
        Self {
            by_list: HashMap::new(),
            ..self
        }
    }

    fn intern(&mut self, stack: Stack) -> StackId {
        if let Some(id) = self.by_frames.get(&stack) {
            return *id;
        }
        if self.by_frames.len() >= MAX_STACKS {
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

/// Returns a stack of Python, below it the native code that Python called. Native code that runs Python is left out.
fn stack(document: &Document, frames: Option<ListId>) -> Stack {
    let Some(list) = frames else {
        return unknown(NoStack::NotRecorded);
    };
    let all = document.list(list);
    let mut found: Vec<Frame> = Vec::new();
    let mut has_python = false;
    for value in all.iter().take(MAX_FRAMES) {
        if let Some(frame) = frame(document, *value) {
            let is_python = frame.library.is_none();
            has_python |= is_python;
            if is_python || !has_python {
                found.push(frame);
            }
        }
    }
    if !has_python {
        return unknown(NoStack::NoPythonFrames);
    }
    Stack::new(StackKind::Python, found, all.len() > MAX_FRAMES)
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
