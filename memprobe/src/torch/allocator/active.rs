//! Identifies the allocator behind `torch.cuda`.

use std::fmt;

use crate::event::Tgid;
use crate::process::elf::LoadedImage;
use crate::process::maps::Maps;
use crate::process::memory::{ReadMemory, Unreadable};

const LIBRARY: &str = "libc10_cuda.so";

/// `c10::cuda::CUDACachingAllocator::allocator`, the atomic pointer to the active allocator
/// (c10/cuda/CUDACachingAllocator.h@v2.0.0 to @v2.15.0), exported by every wheel.
const VARIABLE: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";

/// Mangled class names, as type information stores them (Itanium C++ ABI, 2.9.5).
const NATIVE: &str = "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";
const CUDA_MALLOC_ASYNC: &str =
    "N3c104cuda20CUDACachingAllocator15CudaMallocAsync24CudaMallocAsyncAllocatorE";
const PLUGGABLE: &str = "N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE";

/// Longest class name that is read, in bytes.
const LONGEST_NAME: usize = 256;

/// The allocator behind `torch.cuda` (`torch.cuda.memory.get_allocator_backend()`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    Native,
    /// `PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync`.
    CudaMallocAsync,
    /// `torch.cuda.memory.CUDAPluggableAllocator`.
    Pluggable,
    /// Another class, by its mangled name.
    Other(String),
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native => f.write_str("native"),
            Self::CudaMallocAsync => f.write_str("cudaMallocAsync"),
            Self::Pluggable => f.write_str("a CUDAPluggableAllocator"),
            Self::Other(name) => write!(f, "the class {name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveAllocator {
    pub backend: Backend,
    /// Address of the allocator object in the target.
    pub object: u64,
}

/// Address of the target's pointer to its allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorVariable(pub u64);

/// Reasons for failing to identify the active allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAllocator {
    /// The process cannot be inspected.
    Process(String),
    /// libc10_cuda.so cannot be read or lacks the symbol.
    Library(String),
    /// The process has loaded libc10_cuda.so more than once.
    Several,
    Unreadable(Unreadable),
    /// The pointer leads to no C++ object with a class name.
    NoObject,
}

impl fmt::Display for NoAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(error) => f.write_str(error),
            Self::Library(error) => write!(f, "{LIBRARY} cannot be read: {error}"),
            Self::Several => write!(f, "{LIBRARY} is loaded more than once"),
            Self::Unreadable(error) => error.fmt(f),
            Self::NoObject => f.write_str("the allocator is no object that memprobe knows"),
        }
    }
}

impl From<Unreadable> for NoAllocator {
    fn from(error: Unreadable) -> Self {
        Self::Unreadable(error)
    }
}

impl AllocatorVariable {
    /// Finds the pointer in a process. Returns `None` while libc10_cuda.so is not loaded.
    ///
    /// # Errors
    /// If the library cannot be read, lacks the symbol, or is loaded more than once.
    pub fn find(tgid: Tgid, maps: &Maps) -> Result<Option<Self>, NoAllocator> {
        let libraries = maps.libraries(LIBRARY);
        let library = match libraries.as_slice() {
            [] => return Ok(None),
            [library] => library,
            _ => return Err(NoAllocator::Several),
        };
        let unreadable = |error: &dyn fmt::Display| NoAllocator::Library(error.to_string());
        let loaded = LoadedImage::open(library, tgid).map_err(|error| unreadable(&error))?;
        let symbol = loaded.image.symbol(VARIABLE);
        let symbol = symbol.map_err(|error| unreadable(&error))?;
        let symbol = symbol.ok_or_else(|| NoAllocator::Library(format!("no {VARIABLE}")))?;
        Ok(Some(Self(loaded.address_of(symbol))))
    }
}

/// Reads the active allocator. Returns `None` before the library has set it up; nothing is allocated until
/// then.
///
/// # Errors
/// [`NoAllocator`].
pub fn active_allocator(
    memory: &impl ReadMemory,
    variable: AllocatorVariable,
) -> Result<Option<ActiveAllocator>, NoAllocator> {
    let object = memory.read_u64(variable.0)?;
    if object == 0 {
        return Ok(None);
    }
    let class = class_of(memory, object)?;
    let backend = match class.as_str() {
        NATIVE => Backend::Native,
        CUDA_MALLOC_ASYNC => Backend::CudaMallocAsync,
        PLUGGABLE => Backend::Pluggable,
        _ => Backend::Other(class),
    };
    Ok(Some(ActiveAllocator { backend, object }))
}

/// Reads the mangled name of an object's class. The word before the virtual table's functions points to the
/// type information. Its second word points to the name (Itanium C++ ABI, 2.5.2 and 2.9.4).
fn class_of(memory: &impl ReadMemory, object: u64) -> Result<String, NoAllocator> {
    let table = memory.read_u64(object)?;
    let information = memory.read_u64(table.wrapping_sub(8))?;
    let name = memory.read_u64(information.wrapping_add(8))?;
    let mut bytes = Vec::new();
    while bytes.len() < LONGEST_NAME {
        // Reads end at multiples of 16, so none crosses into the page after the name's last.
        let at = name.wrapping_add(bytes.len() as u64);
        let piece = memory.read_bytes(at, 16 - at % 16, 16)?;
        let end = piece.iter().position(|byte| *byte == 0);
        bytes.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
        if end.is_some() {
            return plain(bytes).ok_or(NoAllocator::NoObject);
        }
    }
    Err(NoAllocator::NoObject)
}

/// Accepts mangled names only: letters, digits and underscores.
fn plain(bytes: Vec<u8>) -> Option<String> {
    let is_name = !bytes.is_empty()
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    String::from_utf8(bytes).ok().filter(|_| is_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::memory::fake::FakeMemory;

    const VARIABLE_AT: AllocatorVariable = AllocatorVariable(0x1000);

    /// A process whose allocator has this class.
    fn process(class: &[u8]) -> FakeMemory {
        let mut memory = FakeMemory::default();
        let word = |word: u64| word.to_le_bytes().to_vec();
        memory.map(0x1000, word(0x2000));
        memory.map(0x2000, word(0x3008));
        memory.map(0x3000, [word(0x4000), word(0xdead)].concat());
        memory.map(0x4000, [word(0xdead), word(0x5004)].concat());
        let mut name = vec![0; 4];
        name.extend_from_slice(class);
        name.push(0);
        name.resize(name.len().next_multiple_of(16), 0xff);
        memory.map(0x5000, name);
        memory
    }

    #[test]
    fn the_class_of_the_allocator_names_the_backend() {
        for (class, backend) in [
            (NATIVE, Backend::Native),
            (CUDA_MALLOC_ASYNC, Backend::CudaMallocAsync),
            (PLUGGABLE, Backend::Pluggable),
            ("4Mine", Backend::Other("4Mine".to_owned())),
        ] {
            let active = active_allocator(&process(class.as_bytes()), VARIABLE_AT);
            let expected = ActiveAllocator {
                backend,
                object: 0x2000,
            };
            assert_eq!(active, Ok(Some(expected)));
        }
    }

    #[test]
    fn an_allocator_that_is_not_set_up_has_handed_out_nothing() {
        let mut memory = process(NATIVE.as_bytes());
        memory.write(0x1000, &[0; 8]);
        assert_eq!(active_allocator(&memory, VARIABLE_AT), Ok(None));
    }

    #[test]
    fn what_is_no_object_with_a_name_is_refused() {
        for class in [&b"\x1b[31m"[..], b"", &[b'x'; 400]] {
            let active = active_allocator(&process(class), VARIABLE_AT);
            assert_eq!(active, Err(NoAllocator::NoObject), "{class:?}");
        }
        let mut memory = process(NATIVE.as_bytes());
        memory.write(0x2000, &u64::MAX.to_le_bytes());
        let active = active_allocator(&memory, VARIABLE_AT);
        assert!(matches!(active, Err(NoAllocator::Unreadable(_))));
    }
}
