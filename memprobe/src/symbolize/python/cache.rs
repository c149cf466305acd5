//! Code objects that were read, so that a frame costs a look-up.

use std::sync::Arc;

use hashbrown::HashMap;

use super::code::{Code, Fingerprint};
use super::detect::PythonProcess;
use super::layout::PythonLayout;
use super::threads::OWNER_C_STACK;
use crate::event::Frame;
use crate::target::memory::{ReadMemory, Stretches};

/// The most code objects that are kept; when there are more, all are forgotten.
const MOST: usize = 100_000;

/// What a frame of the interpreter is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// A line of Python.
    Frame(Frame),
    /// No line of Python: a boundary to C, or a frame that is still being set up.
    Skip,
    /// Its code object cannot be read.
    Unreadable,
}

/// Code objects that were read.
pub struct CodeCache {
    layout: &'static PythonLayout,
    code_type: u64,
    codes: HashMap<u64, (Fingerprint, Arc<Code>)>,
    /// File names, as many functions share one.
    files: HashMap<Arc<str>, ()>,
}

impl CodeCache {
    /// Nothing is read yet.
    pub fn new(python: &PythonProcess) -> Self {
        Self {
            layout: python.layout,
            code_type: python.code_type,
            codes: HashMap::new(),
            files: HashMap::new(),
        }
    }

    /// The line at which a frame stands. An address that was reused for another code object is
    /// noticed.
    pub fn resolve(
        &mut self,
        memory: &impl ReadMemory,
        code: u64,
        instruction: u64,
        owner: u8,
    ) -> Resolved {
        if owner >= OWNER_C_STACK {
            return Resolved::Skip;
        }
        let Some(code) = self.code(memory, code) else {
            return Resolved::Unreadable;
        };
        frame_of(&code, instruction, owner)
    }

    /// The line at which a frame stood whose code object was freed since, from what was kept of
    /// it.
    pub fn resolve_freed(
        &self,
        freed: &Stretches,
        code: u64,
        instruction: u64,
        owner: u8,
    ) -> Resolved {
        if owner >= OWNER_C_STACK {
            return Resolved::Skip;
        }
        match Code::read(freed, self.layout, self.code_type, code) {
            Ok(code) => frame_of(&code, instruction, owner),
            Err(_) => Resolved::Unreadable,
        }
    }

    /// Forgets a code object that was freed.
    pub fn forget(&mut self, code: u64) {
        self.codes.remove(&code);
    }

    /// The code object at an address, read now or before.
    fn code(&mut self, memory: &impl ReadMemory, address: u64) -> Option<Arc<Code>> {
        let fingerprint = Code::fingerprint(memory, self.layout, address).ok()?;
        if let Some((known, code)) = self.codes.get(&address)
            && *known == fingerprint
        {
            return Some(code.clone());
        }
        let mut code = Code::read(memory, self.layout, self.code_type, address).ok()?;
        if self.codes.len() >= MOST {
            self.codes.clear();
            self.files.clear();
        }
        match self.files.get_key_value(&code.file) {
            Some((file, ())) => code.file = file.clone(),
            None => drop(self.files.insert(code.file.clone(), ())),
        }
        let code = Arc::new(code);
        self.codes.insert(address, (fingerprint, code.clone()));
        Some(code)
    }
}

/// The line of a frame that runs `code`.
fn frame_of(code: &Code, instruction: u64, owner: u8) -> Resolved {
    const OWNER_GENERATOR: u8 = 1;
    if owner != OWNER_GENERATOR && code.is_incomplete_at(instruction) {
        return Resolved::Skip;
    }
    Resolved::Frame(Frame {
        file: code.file.clone(),
        line: code.line(instruction).unwrap_or(0),
        function: code.name.clone(),
    })
}
