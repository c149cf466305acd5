//! Native callers of the allocator. Names come from symbols alone, which works in libraries of any size.

use super::{Library, NativeCode, REMEMBERED};
use crate::decode::StackCopy;
use crate::event::{Purpose, Tgid};
use crate::process::elf::FunctionNames;
use crate::symbolize::demangle;
use crate::torch::purpose::{Caller, Search};

/// The most memory for the function indexes of all libraries, in bytes; see [`NativeCode::purpose`].
const ALL_FUNCTIONS: usize = 128 << 20;

impl NativeCode {
    /// Infers the purpose of a block from the functions that requested it. The copy starts with the return
    /// address of the allocator's report.
    ///
    /// Names come from an index of each library's symbols, which is built on first use. For libtorch_cuda of
    /// PyTorch 2.15.0 (a file of 520 MB) that takes 6 to 13 ms and 1.9 MB, for libtorch_cpu 22 to 29 ms and
    /// 5.6 MB. The first block of a process took 32 ms, including the unwind tables. Later blocks took 0.3 µs
    /// if their functions were known, otherwise up to 0.2 ms a block and 2.5 ms a library (release build on
    /// two cores of a virtual machine, files in the page cache; the times of blocks with an earlier unwinder,
    /// framehop 0.16).
    pub fn purpose(&mut self, copy: &StackCopy) -> Option<Purpose> {
        const WORD: u64 = 8;
        let (first, above) = copy.bytes.split_first_chunk()?;
        let above = StackCopy {
            address: copy.address.checked_add(WORD)?,
            frame_pointer: copy.frame_pointer,
            bytes: above.to_vec(),
        };
        let mut search = Search::default();
        self.walk(u64::from_ne_bytes(*first), &above, |code, address| {
            search.goes_on_after(code.caller_at(address))
        });
        search.found()
    }

    /// Returns the memory that the function indexes of all libraries take, in bytes.
    pub(super) fn loaded(&self) -> usize {
        let loaded = self.libraries.iter().filter_map(Library::functions);
        loaded.map(FunctionNames::bytes).sum()
    }

    /// Returns the function of the call that returns to `return_address`; `None` if the address is in no file.
    fn caller_at(&mut self, return_address: u64) -> Option<Caller> {
        if let Some(known) = self.callers.get(&return_address) {
            return Some(known.clone());
        }
        let (place, offset) = self.place_of(return_address.wrapping_sub(1))?;
        let loaded = self.loaded();
        let library = &mut self.libraries[place.library];
        let function = library.function_at(self.tgid, offset, loaded);
        let caller = Caller {
            function: function.unwrap_or_else(|| format!("+{offset:#x}")).into(),
            library: library.path.rsplit('/').next().unwrap_or_default().into(),
        };
        if self.callers.len() >= REMEMBERED {
            self.callers.clear();
        }
        self.callers.insert(return_address, caller.clone());
        Some(caller)
    }
}

impl Library {
    /// Returns the function at a file offset. `loaded` is the memory that the indexes of all libraries take, in bytes.
    pub(super) fn function_at(&mut self, tgid: Tgid, offset: u64, loaded: usize) -> Option<String> {
        if self.functions.is_none() {
            let image = self.image(tgid);
            let names = image.and_then(|image| FunctionNames::of(image).ok());
            let names = names.filter(|names| loaded.saturating_add(names.bytes()) <= ALL_FUNCTIONS);
            self.functions = Some(names);
        }
        let symbol = self.functions()?.at(offset)?;
        Some(demangle::function(&symbol))
    }

    fn functions(&self) -> Option<&FunctionNames> {
        self.functions.as_ref()?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purpose(bytes: Vec<u8>) -> Option<Purpose> {
        let copy = StackCopy {
            address: 0x7000,
            frame_pointer: 0x7100,
            bytes,
        };
        NativeCode::of(Tgid(std::process::id())).purpose(&copy)
    }

    #[test]
    fn who_asked_is_known_where_the_stack_ends_with_its_return_address() {
        let test = who_asked_is_known_where_the_stack_ends_with_its_return_address as *const ();
        let found = purpose((test as u64 + 2).to_ne_bytes().to_vec()).expect("a caller");
        assert_eq!(found.what, None);
        assert!(found.function.contains("who_asked"), "{found}");
        let this = std::env::current_exe().expect("a test has a path");
        let name = this.file_name().expect("a name");
        assert_eq!(found.library.as_ref(), name.to_string_lossy());
    }

    #[test]
    fn a_stack_of_nonsense_names_nobody() {
        assert_eq!(purpose(Vec::new()), None);
        assert_eq!(purpose(vec![0x70; 7]), None, "no whole address");
        assert_eq!(purpose(vec![0x70; 8 << 10]), None, "an address in no file");
    }
}
