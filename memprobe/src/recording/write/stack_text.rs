//! Text of a stack on the timeline.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::event::{Frame, Stack, StackId};
use crate::ledger::grouping::site;
use crate::ledger::snapshot::Grouping;
use crate::view::{
    CUT, FileNames, clean, fit, fit_end, named_site, named_stack, native_place, place,
};

use super::json;

/// Frames written beside every allocation; the stack's own record has all. Keeps a deep recursion from
/// writing kilobytes for every event.
const SHOWN_FRAMES: usize = 24;

/// Most stacks kept for formatting (shared with the rest of memprobe).
const MAX_STACKS: usize = 1 << 20;

/// Most formatted stacks cached (about 1 KiB each); the cache is cleared when full.
const MAX_TEXTS: usize = 1 << 14;

/// Most columns of a file or function name.
const SHOWN_COLUMNS: usize = 120;

/// Text written beside an event about its stack; both fields are escaped for JSON strings.
pub(super) struct StackText {
    /// Name of the stack's row in the table of lines: `train.py:31 forward`.
    pub name: Vec<u8>,
    pub frames: Vec<u8>,
}

impl StackText {
    fn of(stack: &Stack, grouping: Grouping) -> Self {
        Self {
            name: escaped(&named_site(&site(stack, grouping), shown_frame)),
            frames: escaped(&named_stack(stack, SHOWN_FRAMES, shown_frame)),
        }
    }
}

/// Number of a stack's definition. A [`StackId`] may be redefined, but slices begun under the earlier
/// definition keep its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Definition(u32);

impl Definition {
    pub(super) const NONE: Self = Self(u32::MAX);
}

/// Stacks and their texts, formatted once and used for many events.
#[derive(Default)]
pub(super) struct StackTexts {
    grouping: Grouping,
    current: HashMap<StackId, Definition>,
    stacks: Vec<Arc<Stack>>,
    texts: HashMap<u32, StackText>,
}

impl StackTexts {
    pub(super) fn new(grouping: Grouping) -> Self {
        Self {
            grouping,
            ..Self::default()
        }
    }

    pub(super) fn define(&mut self, id: StackId, stack: &Arc<Stack>) {
        if self.stacks.get(self.current(id).0 as usize) == Some(stack) {
            return;
        }
        if self.stacks.len() >= MAX_STACKS {
            self.current.remove(&id);
            return;
        }
        let definition = Definition(self.stacks.len() as u32);
        self.current.insert(id, definition);
        self.stacks.push(Arc::clone(stack));
    }

    pub(super) fn current(&self, id: StackId) -> Definition {
        self.current.get(&id).copied().unwrap_or(Definition::NONE)
    }

    pub(super) fn text(&mut self, definition: Definition) -> Option<&StackText> {
        let stack = self.stacks.get(definition.0 as usize)?;
        if self.texts.len() >= MAX_TEXTS && !self.texts.contains_key(&definition.0) {
            self.texts.clear();
        }
        let text = self.texts.entry(definition.0);
        Some(text.or_insert_with(|| StackText::of(stack, self.grouping)))
    }
}

fn shown_frame(frame: &Frame) -> String {
    if let Some(place) = native_place(frame) {
        return fit(&place, SHOWN_COLUMNS, CUT);
    }
    let function = fit(&clean(&frame.function), SHOWN_COLUMNS, CUT);
    let file = fit_end(&FileNames::default().short(&frame.file), SHOWN_COLUMNS, CUT);
    place(&file, frame.line, &function)
}

fn escaped(text: &str) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(text.len());
    json::push_escaped(&mut escaped, text);
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Context;
    use crate::event::{NoStack, StackKind};

    fn frame(file: &str, line: u32, function: &str) -> Frame {
        Frame {
            file: file.into(),
            line,
            function: function.into(),
            library: None,
        }
    }

    fn stack(kind: StackKind, frames: Vec<Frame>) -> Stack {
        Stack {
            kind,
            frames,
            truncated: false,
            context: Context::default(),
        }
    }

    fn texts(stack: &Stack) -> (String, String) {
        let text = StackText::of(stack, Grouping::User);
        (
            String::from_utf8(text.name).unwrap(),
            String::from_utf8(text.frames).unwrap(),
        )
    }

    #[test]
    fn a_stack_is_named_after_the_innermost_line_of_the_users_own_code() {
        let stack = stack(
            StackKind::Python,
            vec![
                frame(
                    "/v/lib/python3.12/site-packages/torch/nn/modules/linear.py",
                    134,
                    "forward",
                ),
                frame("/home/me/model.py", 88, "forward"),
                frame("/home/me/train.py", 31, "<module>"),
            ],
        );
        assert_eq!(
            texts(&stack),
            (
                "model.py:88 forward".into(),
                "linear.py:134 forward <- model.py:88 forward <- train.py:31 <module>".into()
            )
        );
    }

    #[test]
    fn a_stack_wholly_inside_libraries_is_named_after_its_innermost_line() {
        let stack = stack(
            StackKind::Python,
            vec![frame("/usr/lib/python3/dist-packages/x.py", 2, "f")],
        );
        assert_eq!(texts(&stack).0, "x.py:2 f");
    }

    #[test]
    fn a_thread_without_python_is_named_after_the_line_that_waits_for_it() {
        let waiting = StackKind::Waiting {
            thread: "pt_autograd_0".into(),
        };
        let stack = stack(waiting, vec![frame("train.py", 40, "step")]);
        assert_eq!(
            texts(&stack),
            (
                "backward of train.py:40 step".into(),
                "pt_autograd_0, backward() called at train.py:40 step".into()
            )
        );
    }

    #[test]
    fn a_backward_pass_is_named_after_the_users_line_in_both_groupings() {
        let waiting = StackKind::Waiting {
            thread: "pt_autograd_0".into(),
        };
        let torch = "/v/lib/python3.12/site-packages/torch/autograd/graph.py";
        let frames = vec![frame(torch, 824, "f"), frame("train.py", 40, "step")];
        let text = StackText::of(&stack(waiting, frames), Grouping::Innermost);
        assert_eq!(text.name, b"backward of train.py:40 step");
    }

    #[test]
    fn a_missing_stack_names_its_reason() {
        let kind = StackKind::Unknown {
            thread: "a\"b".into(),
            reason: NoStack::Lost,
        };
        let stack = stack(kind, vec![]);
        assert_eq!(
            texts(&stack),
            ("(a\\\"b: stack lost)".into(), "a\\\"b: stack lost".into())
        );
    }

    #[test]
    fn a_deep_stack_shows_its_inner_frames_and_counts_the_others() {
        let mut deep = stack(StackKind::Python, vec![frame("r.py", 1, "f"); 100]);
        assert!(texts(&deep).1.ends_with("r.py:1 f <- 76 more"));
        deep.truncated = true;
        assert!(texts(&deep).1.ends_with("r.py:1 f <- 76 and more"));
        deep.frames.truncate(1);
        assert_eq!(texts(&deep).1, "r.py:1 f <- …");
    }

    #[test]
    fn an_endless_function_name_is_cut() {
        let stack = stack(
            StackKind::Python,
            vec![frame("r.py", 1, &"é".repeat(100_000))],
        );
        assert_eq!(
            texts(&stack).0.chars().count(),
            "r.py:1 ".len() + SHOWN_COLUMNS
        );
    }
}
