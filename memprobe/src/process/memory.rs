//! Memory of another process, read and never written.

mod refresh;

pub use refresh::{Digest, STALE_PAGES, StalePages};

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::LazyLock;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::event::Tgid;

/// Bytes of a page.
pub const PAGE: usize = 4 << 10;

pub trait ReadMemory {
    /// Fills `into` from `address` on. After an error the content of `into` is unspecified.
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()>;

    /// Like [`Self::read`], for memory whose absence from a copy does not make the copy incomplete. A copy does not keep
    /// memory for it.
    fn peek(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        self.read(address, into)
    }

    fn read_array<const N: usize>(&self, address: u64) -> ReadResult<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    fn read_u32(&self, address: u64) -> ReadResult<u32> {
        self.read_array(address).map(u32::from_le_bytes)
    }

    fn read_u64(&self, address: u64) -> ReadResult<u64> {
        self.read_array(address).map(u64::from_le_bytes)
    }

    /// Reads `len` bytes, a length that the target claims, but never more than `limit`.
    /// Fails with [`Cause::TooLong`] if `len` is above `limit`.
    fn read_bytes(&self, address: u64, len: u64, limit: usize) -> ReadResult<Vec<u8>> {
        let mut bytes = vec![0; bounded(address, len, limit)?];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Like [`Self::read_bytes`], but may return a known prefix of at least one byte ([`PartialMemory`]).
    fn read_prefix(&self, address: u64, len: u64, limit: usize) -> ReadResult<Vec<u8>> {
        self.read_bytes(address, len, limit)
    }

    /// Reads the bytes up to a zero byte.
    /// Fails with [`Cause::TooLong`] if none comes before `most` bytes, rounded up to the end of a piece.
    fn read_c_string(&self, address: u64, most: usize) -> ReadResult<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < most {
            // Pieces end at multiples of 32 bytes, so that no read goes beyond the page in which the text ends.
            let at = address.wrapping_add(bytes.len() as u64);
            let piece = self.read_bytes(at, 32 - at % 32, 32)?;
            let end = piece.iter().position(|&byte| byte == 0);
            bytes.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
            if end.is_some() {
                return Ok(bytes);
            }
        }
        Err(Cause::TooLong.at(address))
    }

    fn read_each(&self, pieces: &mut [Piece<'_>]) {
        for piece in pieces {
            piece.outcome = self.read(piece.address, piece.into);
        }
    }

    /// Announces what is read next. A copy reads now what it lacks of these ranges, with few calls.
    fn read_ahead(&self, _ranges: &mut dyn Iterator<Item = Range<u64>>) {}

    /// Reads memory again of which there is a copy, and finds the pages that have changed.
    fn refresh_each(&self, stale: &mut [StalePages<'_>]) {
        refresh::refresh(self, stale);
    }

    /// True if any byte of a range may differ from an earlier reading; of memory that is no copy, always.
    fn may_have_changed(&self, _address: u64, _len: u64) -> bool {
        true
    }
}

impl<M: ReadMemory + ?Sized> ReadMemory for &M {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        (**self).read(address, into)
    }

    fn peek(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        (**self).peek(address, into)
    }

    fn read_each(&self, pieces: &mut [Piece<'_>]) {
        (**self).read_each(pieces);
    }

    fn read_ahead(&self, ranges: &mut dyn Iterator<Item = Range<u64>>) {
        (**self).read_ahead(ranges);
    }

    fn refresh_each(&self, stale: &mut [StalePages<'_>]) {
        (**self).refresh_each(stale);
    }

    fn may_have_changed(&self, address: u64, len: u64) -> bool {
        (**self).may_have_changed(address, len)
    }
}

#[derive(Debug)]
pub struct Piece<'a> {
    pub address: u64,
    /// The destination, at least one byte long.
    pub into: &'a mut [u8],
    /// The result; after an error the content of `into` is unspecified.
    pub outcome: ReadResult<()>,
}

impl<'a> Piece<'a> {
    pub fn of(address: u64, into: &'a mut [u8]) -> Self {
        let outcome = Ok(());
        Self {
            address,
            into,
            outcome,
        }
    }
}

fn bounded(address: u64, len: u64, limit: usize) -> ReadResult<usize> {
    let len = usize::try_from(len).ok().filter(|&len| len <= limit);
    len.ok_or(Cause::TooLong.at(address))
}

pub type ReadResult<T> = Result<T, Unreadable>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("memory at {address:#x} cannot be read: {cause}")]
pub struct Unreadable {
    pub address: u64,
    pub cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    #[error("nothing is mapped there")]
    NotMapped,
    #[error("the process has ended")]
    NoProcess,
    /// memprobe may not read this process (`ptrace(2)`, PTRACE_MODE_ATTACH_REALCREDS).
    #[error("permission denied")]
    Denied,
    #[error("its length makes no sense")]
    TooLong,
    #[error("something else lies there by now")]
    NotAsExpected,
    /// The memory was not captured, or exceeds the part that memprobe keeps.
    #[error("it was not kept")]
    NotKept,
    /// Another error of the kernel, by its `errno`.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Os(i32),
}

impl Cause {
    pub const fn at(self, address: u64) -> Unreadable {
        Unreadable {
            address,
            cause: self,
        }
    }
}

/// The memory of a live process, read by `process_vm_readv(2)`. The process is not stopped, so a result may
/// mix states of different moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    tgid: Tgid,
}

impl ProcessMemory {
    pub const fn new(tgid: Tgid) -> Self {
        Self { tgid }
    }

    pub const fn tgid(&self) -> Tgid {
        self.tgid
    }
}

/// The most vectors in one call of `process_vm_readv` (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

impl ProcessMemory {
    /// Reads vectors in order, up to the first unreadable byte, and returns the number of bytes read.
    fn readv(&self, local: &mut [IoSliceMut<'_>], remote: &[RemoteIoVec]) -> Result<usize, Cause> {
        let pid = self.tgid.0.try_into().map_err(|_| Cause::NoProcess)?;
        process_vm_readv(Pid::from_raw(pid), local, remote).map_err(|error| match error {
            Errno::EFAULT => Cause::NotMapped,
            Errno::ESRCH => Cause::NoProcess,
            Errno::EPERM => Cause::Denied,
            error => Cause::Os(error as i32),
        })
    }
}

const fn remote(address: u64, len: usize) -> RemoteIoVec {
    let base = address as usize;
    RemoteIoVec { base, len }
}

/// Appends a range, or extends the last one: the kernel then looks up the pages of both together.
fn extend(ranges: &mut Vec<RemoteIoVec>, range: RemoteIoVec) {
    if let Some(last) = ranges.last_mut()
        && last.base.checked_add(last.len) == Some(range.base)
    {
        last.len += range.len;
        return;
    }
    ranges.push(range);
}

impl ReadMemory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        if into.is_empty() {
            return Ok(());
        }
        let remote = remote(address, into.len());
        match self.readv(&mut [IoSliceMut::new(into)], &[remote]) {
            Ok(read) if read == remote.len => Ok(()),
            Ok(_) => Err(Cause::NotMapped.at(address)),
            Err(cause) => Err(cause.at(address)),
        }
    }

    /// Splits many bytes among several threads, because the copying alone takes the time.
    fn read_each(&self, pieces: &mut [Piece<'_>]) {
        let bytes = pieces.iter().map(|piece| piece.into.len()).sum();
        shared(pieces, bytes, |share| self.read_all(share));
    }

    fn refresh_each(&self, stale: &mut [StalePages<'_>]) {
        let bytes = stale.iter().map(StalePages::size).sum();
        shared(stale, bytes, |share| refresh::refresh(self, share));
    }
}

/// Does `work` on shares of the pieces, on as many threads as so many bytes are worth.
fn shared<P: Send>(pieces: &mut [P], bytes: usize, work: impl Fn(&mut [P]) + Sync) {
    let threads = threads_for(pieces.len(), bytes);
    if threads <= 1 {
        return work(pieces);
    }
    let share = pieces.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let work = &work;
        let mut shares = pieces.chunks_mut(share);
        let own = shares.next();
        for share in shares {
            scope.spawn(move || work(share));
        }
        own.map(work);
    });
}

/// Returns the number of threads that read so many bytes in so many pieces. Only a large copy is worth a thread: to start one takes as
/// long as to copy some hundred kilobytes, and small questions are asked thousands of times a second.
fn threads_for(pieces: usize, bytes: usize) -> usize {
    /// More do not copy faster.
    const MAX_THREADS: usize = 4;
    const BYTES_OF_A_THREAD: usize = 2 << 20;
    /// The standard library reads files of the control group for the answer each time.
    static PROCESSORS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    let threads = (bytes / BYTES_OF_A_THREAD).min(MAX_THREADS).min(pieces);
    if threads <= 1 {
        return 1;
    }
    threads.min(*PROCESSORS)
}

impl ProcessMemory {
    fn read_all(&self, pieces: &mut [Piece<'_>]) {
        for pieces in pieces.chunks_mut(MAX_PIECES) {
            let mut next = 0;
            while next < pieces.len() {
                next += self.read_some(&mut pieces[next..]);
            }
        }
    }

    /// Reads as many of the first pieces as one call can, at least one, and returns how many are done.
    fn read_some(&self, pieces: &mut [Piece<'_>]) -> usize {
        let mut ranges = Vec::new();
        for piece in pieces.iter() {
            extend(&mut ranges, remote(piece.address, piece.into.len()));
        }
        let local = pieces.iter_mut();
        let mut local: Vec<_> = local.map(|piece| IoSliceMut::new(piece.into)).collect();
        let mut left = self.readv(&mut local, &ranges).unwrap_or(0);
        let mut done = 0;
        for piece in pieces.iter_mut() {
            if left < piece.into.len() {
                break;
            }
            left -= piece.into.len();
            piece.outcome = Ok(());
            done += 1;
        }
        // The piece that stopped the call is read alone, for its own error.
        if let Some(piece) = pieces.get_mut(done) {
            piece.outcome = self.read(piece.address, piece.into);
            done += 1;
        }
        done
    }
}

/// Memory of which only some stretches are known; they do not touch one another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartialMemory(BTreeMap<u64, Vec<u8>>);

impl FromIterator<(u64, Vec<u8>)> for PartialMemory {
    fn from_iter<I: IntoIterator<Item = (u64, Vec<u8>)>>(stretches: I) -> Self {
        Self(stretches.into_iter().collect())
    }
}

impl PartialMemory {
    /// Returns the known bytes from an address on, at least one.
    fn known_from(&self, address: u64) -> ReadResult<&[u8]> {
        let stretch = self.0.range(..=address).next_back();
        stretch
            .and_then(|(start, bytes)| bytes.get(usize::try_from(address - start).ok()?..))
            .filter(|known| !known.is_empty())
            .ok_or(Cause::NotMapped.at(address))
    }
}

impl ReadMemory for PartialMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        if into.is_empty() {
            return Ok(());
        }
        let known = self.known_from(address)?.get(..into.len());
        into.copy_from_slice(known.ok_or(Cause::NotMapped.at(address))?);
        Ok(())
    }

    fn read_prefix(&self, address: u64, len: u64, limit: usize) -> ReadResult<Vec<u8>> {
        let len = bounded(address, len, limit)?;
        if len == 0 {
            return Ok(Vec::new());
        }
        let known = self.known_from(address)?;
        Ok(known[..len.min(known.len())].to_vec())
    }
}

/// Test memory: a few regions at chosen addresses.
#[cfg(test)]
pub(crate) mod fake {
    use std::cell::RefCell;

    use super::{Cause, PartialMemory, ReadMemory, ReadResult};

    /// The memory of a process that lives until [`Self::end`].
    #[derive(Clone, Debug, Default)]
    pub(crate) struct FakeMemory {
        regions: PartialMemory,
        ended: bool,
    }

    impl FakeMemory {
        pub(crate) fn map(&mut self, address: u64, bytes: Vec<u8>) {
            self.regions.0.insert(address, bytes);
        }

        pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
            let (start, region) = self.regions.0.range_mut(..=address).next_back().unwrap();
            let offset = usize::try_from(address - start).unwrap();
            region[offset..offset + bytes.len()].copy_from_slice(bytes);
        }

        pub(crate) fn end(&mut self) {
            self.ended = true;
        }

        /// Returns copies of some stretches, as the kernel programs take them; each is an address and the most bytes.
        pub(crate) fn copies_of(&self, stretches: &[(u64, usize)]) -> PartialMemory {
            let copies = stretches.iter().map(|&(address, most)| {
                let known = self.regions.known_from(address).unwrap();
                (address, known[..most.min(known.len())].to_vec())
            });
            copies.collect()
        }
    }

    /// Memory that changes while others read it.
    pub(crate) struct SharedMemory<'a>(pub(crate) &'a RefCell<FakeMemory>);

    impl ReadMemory for SharedMemory<'_> {
        fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
            self.0.borrow().read(address, into)
        }
    }

    impl ReadMemory for FakeMemory {
        fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
            if self.ended {
                return Err(Cause::NoProcess.at(address));
            }
            self.regions.read(address, into)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::FakeMemory;
    use super::*;

    #[test]
    fn memory_of_this_process_is_read_as_it_is() {
        let bytes: Vec<u8> = (0..=255).collect();
        let memory = ProcessMemory::new(Tgid(std::process::id()));
        let address = bytes.as_ptr().addr() as u64;
        assert_eq!(memory.read_bytes(address, 256, 4096).unwrap(), bytes);
        assert_eq!(memory.read_u64(address).unwrap(), 0x0706_0504_0302_0100);
        assert_eq!(memory.read_u32(address + 4).unwrap(), 0x0706_0504);
    }

    #[test]
    fn unreadable_memory_names_the_cause() {
        let memory = ProcessMemory::new(Tgid(std::process::id()));
        assert_eq!(memory.read_u64(8).unwrap_err().cause, Cause::NotMapped);
        assert_eq!(
            memory.read_u64(u64::MAX).unwrap_err().cause,
            Cause::NotMapped
        );
        let nobody = ProcessMemory::new(Tgid(u32::MAX));
        assert_eq!(nobody.read_u64(8).unwrap_err().cause, Cause::NoProcess);
    }

    #[test]
    fn of_several_stretches_each_says_how_it_went() {
        let bytes: Vec<u8> = (0..=255).collect();
        let memory = ProcessMemory::new(Tgid(std::process::id()));
        let at = bytes.as_ptr().addr() as u64;
        let mut rooms = vec![[0_u8; 4]; 2_500];
        let mut pieces: Vec<_> = (0..)
            .zip(&mut rooms)
            .map(|(index, into)| Piece {
                address: if index % 700 == 3 {
                    8
                } else {
                    at + index % 250
                },
                into,
                outcome: Ok(()),
            })
            .collect();
        memory.read_each(&mut pieces);
        for (index, piece) in (0..).zip(&pieces) {
            let first = (index % 250) as u8;
            if index % 700 == 3 {
                assert_eq!(piece.outcome.unwrap_err().cause, Cause::NotMapped);
            } else {
                assert_eq!(piece.outcome, Ok(()));
                assert_eq!(piece.into, [first, first + 1, first + 2, first + 3]);
            }
        }
    }

    #[test]
    fn small_questions_start_no_thread() {
        let threads = |number: usize, bytes: usize| threads_for(number, number * bytes);
        assert_eq!(threads(20_000, 48), 1);
        assert_eq!(threads(1, 32 << 20), 1);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(threads(4096, 4096), processors.min(4));
    }

    #[test]
    fn stretches_that_touch_are_read_up_to_the_one_that_cannot_be() {
        // The last piece begins behind the second page, where another mapping may lie but for a third.
        // SAFETY: a new mapping of three pages that nothing else refers to.
        let at = unsafe {
            let nowhere = std::ptr::null_mut();
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(nowhere, 3 * 4096, libc::PROT_READ, flags, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: the second and third page of that mapping.
        let closed = unsafe { libc::mprotect(at.byte_add(4096), 2 * 4096, libc::PROT_NONE) };
        assert_eq!(closed, 0);
        let mut rooms = vec![[1_u8; 1024]; 9];
        let pieces = (0..).zip(&mut rooms);
        let mut pieces: Vec<_> = pieces
            .map(|(index, into)| Piece {
                address: at.addr() as u64 + 1024 * index,
                into,
                outcome: Ok(()),
            })
            .collect();
        ProcessMemory::new(Tgid(std::process::id())).read_each(&mut pieces);
        let read: Vec<_> = pieces.iter().map(|piece| piece.outcome.is_ok()).collect();
        assert_eq!(
            read,
            [true, true, true, true, false, false, false, false, false]
        );
        assert_eq!(rooms[3], [0; 1024]);
    }

    #[test]
    fn only_what_lies_within_a_stretch_can_be_read() {
        let memory: PartialMemory = [(0x1000, vec![1, 2, 3, 4])].into_iter().collect();
        assert_eq!(memory.read_bytes(0x1001, 3, 8), Ok(vec![2, 3, 4]));
        assert!(memory.read_bytes(0x1001, 4, 8).is_err());
        assert!(memory.read_bytes(0xfff, 1, 8).is_err());
        assert!(memory.read_bytes(u64::MAX, 1, 8).is_err());
    }

    #[test]
    fn the_beginning_of_a_stretch_is_taken_for_want_of_more() {
        let memory: PartialMemory = [(0x1000, vec![1, 2, 3, 4])].into_iter().collect();
        assert_eq!(memory.read_prefix(0x1002, 6, 8), Ok(vec![3, 4]));
        assert_eq!(memory.read_prefix(0x1000, 2, 8), Ok(vec![1, 2]));
        assert_eq!(memory.read_prefix(0x2000, 0, 8), Ok(vec![]));
        assert!(memory.read_prefix(0x1004, 1, 8).is_err());
        assert_eq!(
            memory.read_prefix(0x1000, 9, 8).unwrap_err().cause,
            Cause::TooLong
        );
    }

    #[test]
    fn a_length_that_makes_no_sense_is_not_allocated() {
        let mut memory = FakeMemory::default();
        memory.map(0x1000, vec![7; 64]);
        assert_eq!(memory.read_bytes(0x1000, 64, 64).unwrap().len(), 64);
        assert_eq!(
            memory.read_bytes(0x1000, u64::MAX, 64).unwrap_err(),
            Cause::TooLong.at(0x1000)
        );
        assert_eq!(
            memory.read_bytes(0x1001, 64, 64).unwrap_err().cause,
            Cause::NotMapped
        );
    }
}
