//! Tables of texts that the columns of a page refer to by number: stacks, lines, modules, tensors, labels.

use std::collections::HashMap;
use std::hash::Hash;

use serde::Serialize;

use super::replay::PageReplay;
use super::{PagePaths, SourceOf};
use crate::attribution::allocation_groups::ModuleScope;
use crate::attribution::allocations::module_of;
use crate::event::{Frame, LabeledBlock, PurposeId, Stack, StackKind};
use crate::ledger::StackRef;
use crate::ledger::snapshot::{Grouping, Site};
use crate::report::purpose_name;
use crate::view::{BEFORE_ATTACH, FileNames, clean, no_module, retainer};

/// Frame above a stack whose outer frames were cut.
const CUT_FRAMES: &str = "(outer frames cut)";

/// Cap on lines of one source file, and on their bytes together.
const MAX_SOURCE_LINES: usize = 20_000;
const MAX_SOURCE_BYTES: usize = 4 << 20;

/// Number of the stack, line and module of blocks from before attach.
pub(super) const BEFORE: usize = 0;

#[derive(Debug, Serialize)]
pub(super) struct StackEntry {
    line: usize,
    module: usize,
    /// Numbers of frames, outermost first.
    frames: Vec<usize>,
}

#[derive(Debug, Serialize)]
pub(super) struct PageLine {
    name: String,
    /// Number of the file; `None` for a row without a line of Python.
    file: Option<usize>,
    line: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct LabelEntry {
    name: Option<String>,
    retainer: Option<usize>,
}

/// Retainer of blocks, as the process's objects showed it.
#[derive(Debug, Serialize)]
pub(super) struct RetainerEntry {
    name: String,
    is_exclusive: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct FileEntry {
    name: String,
    path: String,
    /// Text by line; `None` if it was not found, with the reason in `missing`.
    text: Option<Vec<String>>,
    missing: Option<String>,
}

/// Texts, each under the number of its first use.
#[derive(Debug)]
struct Interned<K> {
    numbers: HashMap<K, usize>,
}

impl<K: Hash + Eq> Interned<K> {
    fn number<T>(&mut self, key: K, table: &mut Vec<T>, entry: impl FnOnce() -> T) -> usize {
        *self.numbers.entry(key).or_insert_with(|| {
            table.push(entry());
            table.len() - 1
        })
    }
}

impl<K> Default for Interned<K> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
        }
    }
}

/// Tables of a page while its columns are written.
pub(super) struct TableBuilder<'a> {
    replay: &'a PageReplay,
    pub names: FileNames,
    paths: PagePaths,
    stack_numbers: Interned<StackRef>,
    line_numbers: Interned<Site>,
    module_numbers: Interned<String>,
    purpose_numbers: Interned<PurposeId>,
    frame_numbers: Interned<String>,
    file_numbers: Interned<String>,
    retainer_numbers: Interned<String>,
    label_numbers: Interned<(Option<String>, Option<usize>)>,
    pub tables: PageTables,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct PageTables {
    stacks: Vec<StackEntry>,
    lines: Vec<PageLine>,
    modules: Vec<String>,
    purposes: Vec<String>,
    frames: Vec<String>,
    files: Vec<FileEntry>,
    labels: Vec<LabelEntry>,
    retainers: Vec<RetainerEntry>,
}

impl<'a> TableBuilder<'a> {
    pub(super) fn new(replay: &'a PageReplay, paths: PagePaths) -> Self {
        let stacks = replay.ledger.stacks();
        let files = stacks.flat_map(|(_, stack)| stack.frames.iter().map(|frame| &frame.file));
        let mut builder = Self {
            replay,
            names: FileNames::of(files),
            paths,
            stack_numbers: Interned::default(),
            line_numbers: Interned::default(),
            module_numbers: Interned::default(),
            purpose_numbers: Interned::default(),
            frame_numbers: Interned::default(),
            file_numbers: Interned::default(),
            retainer_numbers: Interned::default(),
            label_numbers: Interned::default(),
            tables: PageTables::default(),
        };
        builder.push_before_attach();
        builder
    }

    fn push_before_attach(&mut self) {
        let tables = &mut self.tables;
        tables.lines.push(PageLine {
            name: BEFORE_ATTACH.to_owned(),
            file: None,
            line: 0,
        });
        let name = BEFORE_ATTACH.to_owned();
        let module = self
            .module_numbers
            .number(name.clone(), &mut tables.modules, || name.clone());
        let frame = self
            .frame_numbers
            .number(name.clone(), &mut tables.frames, || name);
        tables.stacks.push(StackEntry {
            line: BEFORE,
            module,
            frames: vec![frame],
        });
    }

    /// Number of a stack of allocations.
    pub(super) fn stack(&mut self, stack: StackRef) -> usize {
        if let Some(number) = self.stack_numbers.numbers.get(&stack) {
            return *number;
        }
        let replay = self.replay;
        let line = self.line(replay.ledger.site(stack, Grouping::User));
        let whole = replay.ledger.stack(stack);
        let module = match module_of(whole, &replay.categories) {
            ModuleScope::Module(path) => clean(&path),
            other => no_module(&other).to_owned(),
        };
        let tables = &mut self.tables;
        let module = self
            .module_numbers
            .number(module.clone(), &mut tables.modules, || module);
        let frames = self.frames(whole);
        let entry = StackEntry {
            line,
            module,
            frames,
        };
        self.stack_numbers
            .number(stack, &mut self.tables.stacks, || entry)
    }

    /// Number of a row of the table of lines.
    pub(super) fn line(&mut self, site: &Site) -> usize {
        if let Some(number) = self.line_numbers.numbers.get(site) {
            return *number;
        }
        let file = site.frame().filter(|frame| frame.library.is_none());
        let entry = PageLine {
            name: self.names.site(site),
            line: file.map_or(0, |frame| frame.line),
            file: file.map(|frame| self.file(frame)),
        };
        self.line_numbers
            .number(site.clone(), &mut self.tables.lines, || entry)
    }

    fn file(&mut self, frame: &Frame) -> usize {
        let name = self.names.short(&frame.file);
        let path = match self.paths {
            PagePaths::Whole => frame.file.to_string(),
            PagePaths::Short => name.clone(),
        };
        let files = &mut self.tables.files;
        self.file_numbers
            .number(frame.file.to_string(), files, || FileEntry {
                name,
                path: clean(&path),
                text: None,
                missing: None,
            })
    }

    /// Frames of a stack, outermost first; the operation of a backward pass is innermost.
    fn frames(&mut self, stack: &Stack) -> Vec<usize> {
        let mut names: Vec<String> = Vec::with_capacity(stack.frames.len() + 2);
        let node = stack.context.node.iter();
        names.extend(node.map(|node| clean(&node.name)));
        names.extend(stack.frames.iter().map(|frame| self.names.frame(frame)));
        match &stack.kind {
            StackKind::Unknown { thread, reason } if thread.is_empty() => {
                names.push(format!("({})", reason.as_str()));
            }
            StackKind::Unknown { thread, reason } => {
                names.push(format!("({}: {})", clean(thread), reason.as_str()));
            }
            _ if stack.truncated => names.push(CUT_FRAMES.to_owned()),
            _ => {}
        }
        let frames = &mut self.tables.frames;
        let numbers = names.into_iter().rev().map(|name| {
            self.frame_numbers
                .number(name.clone(), frames, || name.clone())
        });
        numbers.collect()
    }

    /// Number of the purpose of a block: its tensor, if it is one.
    pub(super) fn purpose(&mut self, purpose: PurposeId) -> usize {
        let replay = self.replay;
        let purposes = &mut self.tables.purposes;
        self.purpose_numbers.number(purpose, purposes, || {
            purpose_name(&replay.ledger.purpose_info(purpose))
        })
    }

    /// Number of a label.
    pub(super) fn label(&mut self, label: &LabeledBlock) -> usize {
        let name = label.name.as_ref().map(|name| clean(&name.text));
        let by = label.retainer.as_deref();
        let by = by.map(|it| {
            let entry = RetainerEntry {
                name: retainer(Some(it)),
                is_exclusive: it.exclusive,
            };
            let key = format!("{} {}", entry.is_exclusive, entry.name);
            let retainers = &mut self.tables.retainers;
            self.retainer_numbers.number(key, retainers, || entry)
        });
        let labels = &mut self.tables.labels;
        self.label_numbers
            .number((name.clone(), by), labels, || LabelEntry {
                name,
                retainer: by,
            })
    }

    /// Adds the text of the files that rows name.
    pub(super) fn add_sources(&mut self, source_of: SourceOf<'_>) {
        let numbers: Vec<(String, usize)> = self
            .file_numbers
            .numbers
            .iter()
            .map(|(path, number)| (path.clone(), *number))
            .collect();
        let mut left = MAX_SOURCE_BYTES;
        for (path, number) in numbers {
            let Some(file) = self.tables.files.get_mut(number) else {
                continue;
            };
            match source_of(&path) {
                Ok(text) if text.len() <= left => {
                    left -= text.len();
                    let lines = text.lines().take(MAX_SOURCE_LINES);
                    file.text = Some(
                        lines
                            .map(|line| clean(&line.replace('\t', "    ")))
                            .collect(),
                    );
                }
                Ok(_) => file.missing = Some("the sources together are too long".to_owned()),
                Err(reason) => file.missing = Some(clean(&reason)),
            }
        }
    }
}
