//! Reading the memory of another process.

use std::collections::BTreeMap;
use std::fmt;

use crate::event::Tgid;

/// Memory that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Where.
    pub address: u64,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory at {:#x} cannot be read", self.address)
    }
}

impl std::error::Error for Unreadable {}

/// Somebody's memory.
pub trait ReadMemory {
    /// Fills `into` with what lies at `address`.
    ///
    /// # Errors
    /// When not all of it can be read.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable>;

    /// The bytes at `address`.
    ///
    /// # Errors
    /// When not all of them can be read.
    fn read_array<const N: usize>(&self, address: u64) -> Result<[u8; N], Unreadable> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// The 8-byte word at `address`.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read_u64(&self, address: u64) -> Result<u64, Unreadable> {
        self.read_array(address).map(u64::from_le_bytes)
    }

    /// The 4-byte word at `address`.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read_u32(&self, address: u64) -> Result<u32, Unreadable> {
        self.read_array(address).map(u32::from_le_bytes)
    }

    /// `length` bytes, which the caller has bounded.
    ///
    /// # Errors
    /// When not all of them can be read.
    fn read_bytes(&self, address: u64, length: usize) -> Result<Vec<u8>, Unreadable> {
        let mut bytes = vec![0; length];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Up to `length` bytes, where no more than a beginning of them may be known.
    ///
    /// # Errors
    /// When not even the first can be read.
    fn read_prefix(&self, address: u64, length: usize) -> Result<Vec<u8>, Unreadable> {
        self.read_bytes(address, length)
    }
}

/// The memory of a process, read with `process_vm_readv(2)`: the process does not notice.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMemory {
    pid: libc::pid_t,
}

impl ProcessMemory {
    /// The memory of a process.
    pub fn new(tgid: Tgid) -> Self {
        Self {
            pid: libc::pid_t::try_from(tgid.0).unwrap_or(-1),
        }
    }
}

impl ReadMemory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let unreadable = Unreadable { address };
        let start = usize::try_from(address).map_err(|_| unreadable)?;
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        let remote = libc::iovec {
            iov_base: start as *mut libc::c_void,
            iov_len: into.len(),
        };
        // SAFETY: `local` is exactly `into`; `remote` is another process's, which the kernel checks.
        let read = unsafe {
            libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0)
        };
        if usize::try_from(read) == Ok(into.len()) {
            Ok(())
        } else {
            Err(unreadable)
        }
    }
}

/// Memory of which only some stretches are known.
#[derive(Clone, Debug, Default)]
pub struct Stretches(BTreeMap<u64, Vec<u8>>);

impl FromIterator<(u64, Vec<u8>)> for Stretches {
    fn from_iter<I: IntoIterator<Item = (u64, Vec<u8>)>>(stretches: I) -> Self {
        Self(stretches.into_iter().collect())
    }
}

impl Stretches {
    /// What is known from an address on.
    fn from(&self, address: u64) -> Result<&[u8], Unreadable> {
        let unreadable = Unreadable { address };
        let (start, bytes) = self.0.range(..=address).next_back().ok_or(unreadable)?;
        let at = usize::try_from(address - start).map_err(|_| unreadable)?;
        bytes.get(at..).ok_or(unreadable)
    }
}

impl ReadMemory for Stretches {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let known = self.from(address)?.get(..into.len());
        into.copy_from_slice(known.ok_or(Unreadable { address })?);
        Ok(())
    }

    fn read_prefix(&self, address: u64, length: usize) -> Result<Vec<u8>, Unreadable> {
        let known = self.from(address)?;
        Ok(known[..length.min(known.len())].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_read_its_own_memory() {
        let word = 0x1122_3344_5566_7788u64;
        let memory = ProcessMemory::new(Tgid(std::process::id()));
        assert_eq!(memory.read_u64((&raw const word) as u64), Ok(word));
    }

    #[test]
    fn an_address_that_is_not_mapped_is_an_error() {
        let memory = ProcessMemory::new(Tgid(std::process::id()));
        assert_eq!(memory.read_u64(8), Err(Unreadable { address: 8 }));
        assert_eq!(
            memory.read_u64(u64::MAX - 3),
            Err(Unreadable {
                address: u64::MAX - 3
            })
        );
    }

    #[test]
    fn only_what_lies_within_a_stretch_can_be_read() {
        let memory: Stretches = [(0x1000, vec![1, 2, 3, 4])].into_iter().collect();
        assert_eq!(memory.read_bytes(0x1001, 3), Ok(vec![2, 3, 4]));
        assert!(memory.read_bytes(0x1001, 4).is_err());
        assert!(memory.read_bytes(0xfff, 1).is_err());
        assert!(memory.read_bytes(u64::MAX, 1).is_err());
    }

    #[test]
    fn a_process_that_does_not_exist_has_no_memory() {
        assert!(ProcessMemory::new(Tgid(u32::MAX)).read_u64(0x1000).is_err());
    }
}
