//! A module and all its descendants, read while the process keeps running.

use std::sync::Arc;

use hashbrown::HashMap;

use super::fingerprint::ObjectFingerprint;
use crate::process::memory::{Cause, ReadMemory, ReadResult};
use crate::python::heap::Heap;
use crate::python::heap::class::{Class, TorchKind};
use crate::python::heap::contents::MODULES;
use crate::python::heap::dict::DictEntry;
use crate::python::heap::image::Image;
use crate::python::heap::modules::joined;
use crate::python::layout::PythonLayout;

pub(super) const MAX_MODULES: usize = 1 << 16;
const MAX_CHILDREN: usize = 1 << 16;
const MAX_BYTES: usize = 256 << 20;
const ATTEMPTS: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedModules {
    pub(super) class: Arc<str>,
    pub(super) members: HashMap<u64, TreeMember>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeMember {
    /// First path from the root, as `named_modules()` gives it. Empty for the root.
    pub(super) path: Arc<str>,
    pub(super) sign: ObjectFingerprint,
    /// The parent module; 0 for the root.
    pub(super) above: u64,
}

impl NamedModules {
    /// Reads the tree below the module at `top`.
    /// Fails with [`Unreadable`] if no module lies there, or if its tree cannot be read completely.
    pub fn read(memory: &impl ReadMemory, layout: &PythonLayout, top: u64) -> ReadResult<Self> {
        let mut attempt = 1;
        loop {
            // Use a new image each time: it must not keep a dict that was read while it changed.
            let image = Image::of(memory, MAX_BYTES);
            match Walk::of(&Heap::of(&image, layout)).from(top) {
                Err(error) if attempt < ATTEMPTS && error.cause != Cause::NoProcess => attempt += 1,
                read => return read,
            }
        }
    }

    pub fn class_of(&self, module: u64) -> Option<u64> {
        self.members.get(&module).map(|member| member.sign.class)
    }
}

/// Walks a tree in the order of `named_modules()`: each module before its children, and these in order.
struct Walk<'a, 'b, M> {
    heap: &'a Heap<'b, M>,
    members: HashMap<u64, TreeMember>,
    left: Vec<Next>,
}

struct Next {
    object: u64,
    path: Arc<str>,
    above: u64,
    slot: u64,
}

impl<'a, 'b, M: ReadMemory> Walk<'a, 'b, M> {
    fn of(heap: &'a Heap<'b, M>) -> Self {
        Self {
            heap,
            members: HashMap::new(),
            left: Vec::new(),
        }
    }

    fn from(mut self, top: u64) -> ReadResult<NamedModules> {
        let class = self.class(top)?.ok_or(Cause::NotAsExpected.at(top))?;
        self.left.push(Next {
            object: top,
            path: "".into(),
            above: 0,
            slot: 0,
        });
        while let Some(next) = self.left.pop() {
            self.meet(next)?;
        }
        Ok(NamedModules {
            class: class.short_name().into(),
            members: self.members,
        })
    }

    /// Class of a module. Returns `None` for other objects, such as a child that is `None`.
    fn class(&self, object: u64) -> ReadResult<Option<Arc<Class>>> {
        let index = self.heap.class_index(self.heap.type_of(object)?);
        let class = index.and_then(|index| self.heap.class_at(index));
        let class = class.ok_or(Cause::NotAsExpected.at(object))?;
        Ok(Some(class).filter(|class| class.role == TorchKind::Module))
    }

    fn meet(&mut self, next: Next) -> ReadResult<()> {
        let object = next.object;
        if self.members.contains_key(&object) {
            return Ok(());
        }
        let Some(class) = self.class(object)? else {
            return Ok(());
        };
        if self.members.len() == MAX_MODULES {
            return Err(Cause::TooLong.at(object));
        }
        let sign = ObjectFingerprint::read(self.heap.memory, self.heap.layout, object)?;
        let children = self.children(&class, object)?;
        for (name, child) in children.into_iter().rev() {
            self.left.push(Next {
                object: child.value,
                path: joined(&next.path, &name),
                above: object,
                slot: child.at,
            });
        }
        let member = TreeMember {
            path: next.path,
            sign: sign.in_slot(next.slot),
            above: next.above,
        };
        self.members.insert(object, member);
        Ok(())
    }

    fn children(&self, class: &Class, object: u64) -> ReadResult<Vec<(Arc<str>, DictEntry)>> {
        let ([dict], read) = self.heap.attributes_of(class, object, [MODULES]);
        read?;
        // `Module.__init__` sets `_modules` first, so a module that can be called has it.
        let dict = dict.ok_or(Cause::NotAsExpected.at(object))?;
        let mut children = Vec::new();
        let mut is_whole = true;
        self.heap
            .entries(dict, |entry| match self.heap.text(entry.key) {
                Some(name) if children.len() < MAX_CHILDREN => children.push((name, entry)),
                _ => is_whole = false,
            })?;
        is_whole
            .then_some(children)
            .ok_or(Cause::NotAsExpected.at(object))
    }
}
