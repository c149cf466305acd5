//! Facts that memprobe's own export adds to events: modules, tensors, nodes and threads, in `user_metadata`.

use std::sync::Arc;

use hashbrown::HashMap;

use super::machine::{DictId, Document, TextId, Value};
use crate::event::tensors::DType;
use crate::event::{
    BlockPurpose, BlockPurposes, Bytes, Event, Frame, Grad, Module, NoStack, Node, Purpose,
    PurposeId, PurposeIds, Stack, StackKind, TensorSpec, Tid,
};
use crate::recording::{MAX_CONTEXT, MAX_DIMENSIONS, MAX_PURPOSE};

/// Key of a snapshot that memprobe wrote, with its version. PyTorch has none of this name.
pub const WRITER_KEY: &str = "memprobe";

/// Module of an allocation in a module whose path is unknown.
pub const UNKNOWN_MODULE: &str = "(unknown)";

/// Purpose of a block without a tensor, of which nothing else is known.
pub const NO_TENSOR: &str = "no tensor";

/// Digits of the largest number.
const MAX_DIGITS: usize = 20;

/// End of the name of a thread whose stack is the call of `backward()`.
pub const CALLED_BACKWARD: &str = "; the stack called backward()";

/// Facts on the stack of an allocation, beside its frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct StackFacts {
    module: Option<TextId>,
    node: Option<TextId>,
    /// Line of the operation that made the node.
    operation: Option<TextId>,
    thread: Option<TextId>,
    grad: Option<TextId>,
}

/// Places and threads that metadata name, by their text. The stacks with one text share its parts.
#[derive(Debug, Default)]
pub(super) struct ParsedFacts {
    operations: HashMap<TextId, Option<Frame>>,
    threads: HashMap<TextId, ThreadFact>,
}

/// Thread of a stack that is not its own, or that is unknown.
#[derive(Clone, Debug)]
enum ThreadFact {
    /// The thread that called `backward()` waits there.
    Waiting(Arc<str>),
    Unknown(Arc<str>, NoStack),
    Unreadable,
}

impl ThreadFact {
    fn parse(text: &str) -> Self {
        if let Some(thread) = text.strip_suffix(CALLED_BACKWARD) {
            return Self::Waiting(thread.into());
        }
        let parts = text.rsplit_once(": ");
        let parts = parts.and_then(|(thread, reason)| Some((thread, reason.parse().ok()?)));
        parts.map_or(Self::Unreadable, |(thread, reason)| {
            Self::Unknown(thread.into(), reason)
        })
    }
}

impl ParsedFacts {
    fn operation(&mut self, document: &Document, text: TextId) -> Option<Frame> {
        let parsed = self.operations.entry(text);
        let parsed = parsed.or_insert_with(|| parse_frame(document.text(text)));
        parsed.clone()
    }

    fn thread(&mut self, document: &Document, text: TextId) -> &ThreadFact {
        let parsed = self.threads.entry(text);
        parsed.or_insert_with(|| ThreadFact::parse(document.text(text)))
    }
}

/// Reads the metadata of a snapshot that memprobe wrote; of others there is none.
#[derive(Debug, Default)]
pub(super) struct MetadataReader {
    /// True if memprobe wrote the snapshot.
    pub is_own: bool,
    ids: PurposeIds,
    by_text: HashMap<(TextId, u64), PurposeId>,
    /// Definitions of the purposes so far.
    pub definitions: Vec<Event>,
}

impl MetadataReader {
    pub fn of(document: &Document) -> Self {
        let is_own = match document.root {
            Value::Dict(root) => document.get(root, WRITER_KEY).is_some(),
            _ => false,
        };
        Self {
            is_own,
            ..Self::default()
        }
    }

    /// Facts on the stack of an event or block.
    pub fn stack_facts(&self, document: &Document, entry: DictId) -> StackFacts {
        let Some(metadata) = self.metadata(document, entry) else {
            return StackFacts::default();
        };
        let text = |key| text(document, metadata, key);
        StackFacts {
            module: text("module"),
            node: text("autograd node"),
            operation: text("operation at"),
            thread: text("thread"),
            grad: text("grad"),
        }
    }

    /// Thread of an event.
    pub fn thread(&self, document: &Document, entry: DictId) -> Tid {
        let tid = self.number(document, entry, "tid");
        tid.and_then(|tid| u32::try_from(tid).ok())
            .map_or(Tid::UNKNOWN, Tid)
    }

    /// Bytes of the block of an event, if they are not those of the request, rounded up.
    pub fn block_bytes(&self, document: &Document, entry: DictId) -> Option<u64> {
        self.number(document, entry, "block bytes")
    }

    fn number(&self, document: &Document, entry: DictId, key: &str) -> Option<u64> {
        let written = text(document, self.metadata(document, entry)?, key)?;
        let digits = document.text(written);
        (digits.len() <= MAX_DIGITS).then(|| digits.parse().ok())?
    }

    /// Purpose of a block of so many requested bytes.
    pub fn purpose(&mut self, document: &Document, entry: DictId, requested: u64) -> PurposeId {
        let Some(metadata) = self.metadata(document, entry) else {
            return PurposeId::NONE;
        };
        let tensor = text(document, metadata, "tensor");
        let Some(written) = tensor.or_else(|| text(document, metadata, "purpose")) else {
            return PurposeId::NONE;
        };
        if &**document.text(written) == NO_TENSOR {
            return PurposeId::NO_TENSOR;
        }
        if let Some(known) = self.by_text.get(&(written, requested)) {
            return *known;
        }
        // All definitions come first: the ledger would forget the first ones of more.
        if self.definitions.len() >= BlockPurposes::MOST {
            return PurposeId::NONE;
        }
        let words = document.text(written);
        let purpose = match tensor {
            _ if words.len() > MAX_PURPOSE => None,
            Some(_) => parse_tensor(words, requested).map(BlockPurpose::Tensor),
            None => parse_purpose(words).map(BlockPurpose::Other),
        };
        let Some(purpose) = purpose else {
            return PurposeId::NONE;
        };
        let (id, definition) = self.ids.intern(purpose);
        let definition = definition.map(|purpose| Event::BlockPurpose(id, purpose));
        self.definitions.extend(definition);
        self.by_text.insert((written, requested), id);
        id
    }

    fn metadata(&self, document: &Document, entry: DictId) -> Option<DictId> {
        match document
            .get(entry, "user_metadata")
            .filter(|_| self.is_own)?
        {
            Value::Dict(metadata) => Some(metadata),
            _ => None,
        }
    }
}

impl StackFacts {
    /// Counts the bytes of its texts.
    pub fn text_bytes(self, document: &Document) -> usize {
        let texts = [self.module, self.node, self.operation, self.thread];
        let texts = texts.into_iter().flatten();
        texts.map(|text| document.text(text).len()).sum()
    }

    /// Adds the facts to a stack.
    pub fn add_to(self, document: &Document, parsed: &mut ParsedFacts, stack: &mut Stack) {
        let module = match self.module.map(|module| document.text(module)) {
            None => Module::Outside,
            Some(module) if &**module == UNKNOWN_MODULE => Module::Unknown,
            Some(module) => Module::Called(Arc::clone(module)),
        };
        stack.context.module = module.clone();
        let grad = self.grad.map(|grad| document.text(grad));
        let grad = grad.and_then(|grad| grad.parse::<Grad>().ok());
        stack.context.grad = grad.unwrap_or_default();
        if let Some(node) = self.node {
            let operation = self.operation;
            let operation = operation.and_then(|text| parsed.operation(document, text));
            // The memory of a node counts under the module of its operation.
            let is_known = operation.is_some() || module != Module::Unknown;
            let mut forward = Stack::new(StackKind::Python, operation.into_iter().collect(), false);
            forward.context.module = module;
            stack.context.node = Some(Arc::new(Node {
                name: Arc::clone(document.text(node)),
                forward: is_known.then(|| Arc::new(forward)),
            }));
        }
        let thread = self.thread.map(|text| parsed.thread(document, text));
        match (&stack.kind, thread.cloned()) {
            (StackKind::Python, Some(ThreadFact::Waiting(thread))) => {
                stack.kind = StackKind::Waiting { thread };
            }
            (StackKind::Unknown { .. }, Some(ThreadFact::Unknown(thread, reason))) => {
                stack.kind = StackKind::Unknown { thread, reason };
            }
            _ => {}
        }
    }
}

/// Returns a text that is no longer than a recording's.
fn text(document: &Document, of: DictId, key: &str) -> Option<TextId> {
    match document.get(of, key) {
        Some(Value::Text(text)) if document.text(text).len() <= MAX_CONTEXT => Some(text),
        _ => None,
    }
}

/// Parses `/home/me/train.py:31 step`, as the export writes it.
fn parse_frame(text: &str) -> Option<Frame> {
    let (place, function) = text.rsplit_once(' ')?;
    let (file, line) = place.rsplit_once(':')?;
    Some(Frame {
        file: file.into(),
        line: line.parse().ok()?,
        function: function.into(),
        library: None,
    })
}

/// Parses `(32, 1024) float32`, as the export writes it.
fn parse_tensor(text: &str, requested: u64) -> Option<TensorSpec> {
    let (sizes, dtype) = text.strip_prefix('(')?.split_once(") ")?;
    let mut words: Vec<&str> = sizes
        .trim_end_matches(',')
        .split(", ")
        .filter(|word| !word.is_empty())
        .collect();
    let more = u32::from(words.last() == Some(&"…"));
    words.truncate(words.len() - more as usize);
    if words.len() > MAX_DIMENSIONS {
        return None;
    }
    let sizes = words.into_iter().map(|word| word.parse().ok());
    Some(TensorSpec {
        sizes: sizes.collect::<Option<_>>()?,
        more,
        dtype: DType::parse(dtype)?,
        requested: (more == 0).then_some(Bytes(requested)),
    })
}

/// Parses `cuBLAS workspace (cublasCreate, libcublas.so)` or `requested by f (libf.so)`, as the export writes it.
fn parse_purpose(text: &str) -> Option<Purpose> {
    if text.len() > MAX_PURPOSE {
        return None;
    }
    let text = text.strip_suffix(')')?;
    if let Some(text) = text.strip_prefix("requested by ") {
        let (function, library) = text.rsplit_once(" (")?;
        return Some(Purpose {
            what: None,
            function: function.into(),
            library: library.into(),
        });
    }
    let (text, library) = text.rsplit_once(", ")?;
    let (what, function) = text.split_once(" (")?;
    Some(Purpose {
        what: Some(what.into()),
        function: function.into(),
        library: library.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_purposes_of_the_export_are_read_back() {
        for (what, function) in [
            (
                Some("cuBLAS workspace"),
                "at::cuda::getCurrentCUDABlasHandle",
            ),
            (None, "at::native::(anonymous namespace)::nonzero_out"),
            (None, "0x1234"),
        ] {
            let purpose = Purpose {
                what: what.map(Into::into),
                function: function.into(),
                library: "libtorch_cuda.so".into(),
            };
            assert_eq!(parse_purpose(&purpose.to_string()), Some(purpose));
        }
        for text in ["", ")", "no tensor", "what (function", "requested by f (x"] {
            assert_eq!(parse_purpose(text), None, "{text}");
        }
    }

    #[test]
    fn the_tensors_of_the_export_are_read_back() {
        for (sizes, more) in [
            (vec![], 0),
            (vec![7], 0),
            (vec![32, 1024], 0),
            (vec![2, 2, 2], 1),
        ] {
            let spec = TensorSpec {
                sizes,
                more,
                dtype: DType::FLOAT32,
                requested: (more == 0).then_some(Bytes(77)),
            };
            let text = format!("{spec} {}", spec.dtype);
            assert_eq!(parse_tensor(&text, 77), Some(spec), "{text}");
        }
    }

    #[test]
    fn a_line_is_read_back() {
        let frame = parse_frame("/home/my models/a:b.py:31 <lambda>").expect("a line");
        assert_eq!((&*frame.file, frame.line), ("/home/my models/a:b.py", 31));
        assert_eq!(&*frame.function, "<lambda>");
        for text in [
            "",
            "train.py",
            "train.py:x step",
            "train.py:? step",
            "main (libtrain.so)",
        ] {
            assert_eq!(parse_frame(text), None, "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_tensors() {
        for text in [
            "",
            "(",
            "() ",
            "(1 float32",
            "(1,) nothing",
            "(-1,) float32",
            "(99999999999999999999999,) float32",
            "a workspace (cublasCreate, libcublas.so)",
        ] {
            assert_eq!(parse_tensor(text, 1), None, "{text}");
        }
        let many = format!("({}) float32", vec!["1"; 5000].join(", "));
        assert_eq!(parse_tensor(&many, 1), None);
    }
}
