//! Identifies the allocator behind `torch.cuda`.

use crate::event::Tgid;
use crate::process::elf::LoadedImage;
use crate::process::maps::Maps;
use crate::process::memory::{ReadMemory, Unreadable};
use crate::process::{class_name, cpp_class};

const LIBRARY: &str = "libc10_cuda.so";

/// `c10::cuda::CUDACachingAllocator::allocator`, the atomic pointer to the active allocator
/// (c10/cuda/CUDACachingAllocator.h@v2.0.0 to @v2.15.0), exported by every wheel.
const VARIABLE: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";

/// Mangled class names, as type information stores them (Itanium C++ ABI, 2.9.5).
const NATIVE: &str = "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";
const CUDA_MALLOC_ASYNC: &str =
    "N3c104cuda20CUDACachingAllocator15CudaMallocAsync24CudaMallocAsyncAllocatorE";
const PLUGGABLE: &str = "N5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE";
const LONGEST_NAME: usize = 256;

/// The allocator behind `torch.cuda` (`torch.cuda.memory.get_allocator_backend()`).
#[derive(Clone, Debug, PartialEq, Eq, strum::Display)]
pub enum Backend {
    #[strum(to_string = "native")]
    Native,
    /// `PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync`.
    #[strum(to_string = "cudaMallocAsync")]
    CudaMallocAsync,
    /// `torch.cuda.memory.CUDAPluggableAllocator`.
    #[strum(to_string = "a CUDAPluggableAllocator")]
    Pluggable,
    #[strum(to_string = "the class {0}")]
    Other(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveAllocator {
    pub backend: Backend,
    pub object: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorVariable(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAllocator {
    #[error("{0}")]
    Process(String),
    /// libc10_cuda.so cannot be read or lacks the symbol.
    #[error("{LIBRARY} cannot be read: {0}")]
    Library(String),
    #[error("{LIBRARY} is loaded more than once")]
    Several,
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("the allocator is no object that memprobe knows")]
    NoObject,
}

impl AllocatorVariable {
    /// Finds the pointer in a process. Returns `None` while libc10_cuda.so is not loaded.
    /// Fails if the library cannot be read, lacks the symbol, or is loaded more than once.
    pub fn find(tgid: Tgid, maps: &Maps) -> Result<Option<Self>, NoAllocator> {
        let libraries = maps.libraries(LIBRARY);
        let library = match libraries.as_slice() {
            [] => return Ok(None),
            [library] => library,
            _ => return Err(NoAllocator::Several),
        };
        let unreadable = |error: &dyn ToString| NoAllocator::Library(error.to_string());
        let loaded = LoadedImage::open(library, tgid).map_err(|error| unreadable(&error))?;
        let symbol = loaded.image.symbol(VARIABLE);
        let symbol = symbol.map_err(|error| unreadable(&error))?;
        let symbol = symbol.ok_or_else(|| NoAllocator::Library(format!("no {VARIABLE}")))?;
        Ok(Some(Self(loaded.address_of(symbol))))
    }
}

/// Reads the active allocator; `None` before the library has set it up and allocates.
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
    cpp_class::text(memory, name, LONGEST_NAME)
        .filter(|name| class_name::is_mangled(name))
        .ok_or(NoAllocator::NoObject)
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
        name.resize(name.len().next_multiple_of(32), 0xff);
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
