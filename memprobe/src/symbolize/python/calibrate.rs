//! The proof, on every thread of a process, that memprobe reads it right: before a probe trusts the
//! offsets, what they lead to must agree with what is known otherwise.

use std::fmt;

use hashbrown::{HashMap, HashSet};

use super::layout::PythonLayout;
use super::threads::{self, ThreadState};
use crate::target::memory::{Cause, ReadMemory, Unreadable};

/// How often the stack of one thread is read anew where it changed meanwhile.
const STACK_ATTEMPTS: usize = 8;

/// Where glibc keeps the thread-specific values of `pthread_setspecific` (`struct pthread` in
/// `nptl/descr.h`; x86-64, where `pthread_self()` is fsbase). The same from 2.27 to 2.43; libc says
/// so itself in its data symbols `_thread_db_pthread_specific`, `_thread_db_sizeof_pthread_key_data`.
mod glibc {
    /// `specific_1stblock`: the first 32 keys, in the thread's own block.
    pub(super) const FIRST_BLOCK: u32 = 0x310;
    /// `specific`: pointers to the blocks of 32 keys each.
    pub(super) const BLOCKS: u32 = 0x510;
    /// `PTHREAD_KEY_2NDLEVEL_SIZE`.
    pub(super) const KEYS_PER_BLOCK: u32 = 32;
    /// `sizeof(struct pthread_key_data)`.
    pub(super) const ENTRY: u32 = 16;
    /// `pthread_key_data.data`.
    pub(super) const DATA: u32 = 8;
    /// `PTHREAD_KEYS_MAX`.
    pub(super) const MAX_KEYS: u32 = 1024;
}

/// Where a thread finds its own `PyThreadState`: the value of a pthread key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TssKey(u32);

/// How to get from fsbase to the value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TssPath {
    /// At this offset from fsbase.
    Direct(u32),
    /// Through a table whose pointer lies at an offset from fsbase.
    Table {
        /// Offset from fsbase of the pointer.
        pointer: u32,
        /// Offset of the value in the table.
        slot: u32,
    },
}

impl TssKey {
    /// The key of this number; `None` where the C library gives out no such key.
    pub fn new(number: u32) -> Option<Self> {
        (number < glibc::MAX_KEYS).then_some(Self(number))
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The way to its value.
    pub fn path(self) -> TssPath {
        let slot = |key| glibc::ENTRY * key + glibc::DATA;
        if self.0 < glibc::KEYS_PER_BLOCK {
            TssPath::Direct(glibc::FIRST_BLOCK + slot(self.0))
        } else {
            TssPath::Table {
                pointer: glibc::BLOCKS + 8 * (self.0 / glibc::KEYS_PER_BLOCK),
                slot: slot(self.0 % glibc::KEYS_PER_BLOCK),
            }
        }
    }

    /// The value that the thread with this `pthread_self()` has under the key; 0 where it has none.
    ///
    /// # Errors
    /// [`Unreadable`], as where the thread has ended.
    pub fn value(self, memory: &impl ReadMemory, thread_id: u64) -> Result<u64, Unreadable> {
        match self.path() {
            TssPath::Direct(offset) => memory.read_u64(thread_id.wrapping_add(offset.into())),
            TssPath::Table { pointer, slot } => {
                match memory.read_u64(thread_id.wrapping_add(pointer.into()))? {
                    0 => Ok(0),
                    table => memory.read_u64(table.wrapping_add(slot.into())),
                }
            }
        }
    }
}

/// Why a process does not look as its version should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The thread states cannot be followed.
    Threads(Unreadable),
    /// There are none.
    NoThreads,
    /// The number of the interpreter's key is not one that the C library gives out.
    NoSuchKey(u32),
    /// A thread finds another value than its own state under the interpreter's key.
    Key {
        /// The thread, as its own PID namespace numbers it.
        native_thread_id: u64,
        /// What it finds.
        value: u64,
    },
    /// What a frame should run is no code object.
    Stack {
        /// The thread, as its own PID namespace numbers it.
        native_thread_id: u64,
        /// What went wrong.
        cause: Unreadable,
    },
    /// A stack has no end.
    EndlessStack {
        /// The thread, as its own PID namespace numbers it.
        native_thread_id: u64,
    },
    /// Not one thread could be proved.
    NothingProved,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Threads(cause) => write!(f, "its list of threads: {cause}"),
            Self::NoThreads => f.write_str("it has no Python thread"),
            Self::NoSuchKey(number) => write!(f, "its thread-specific key is {number}"),
            Self::Key {
                native_thread_id,
                value,
            } => write!(
                f,
                "thread {native_thread_id} keeps {value:#x} where its thread state should be \
                 (another C library than glibc?)"
            ),
            Self::Stack {
                native_thread_id,
                cause,
            } => {
                write!(f, "the stack of thread {native_thread_id}: {cause}")
            }
            Self::EndlessStack { native_thread_id } => {
                write!(f, "the stack of thread {native_thread_id} has no end")
            }
            Self::NothingProved => f.write_str("none of its threads could be read"),
        }
    }
}

/// What is to be proved.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The offsets.
    pub layout: &'static PythonLayout,
    /// Address of the interpreter.
    pub interpreter: u64,
    /// Address of `PyCode_Type`.
    pub code_type: u64,
    /// The key of the thread states.
    pub key: TssKey,
}

/// Proves a claim on every thread: each finds its own state under the key, whether it holds the GIL
/// or not, and each stack is a chain of frames with code objects that ends. Returns the threads.
///
/// `is_alive` says of a `native_thread_id` whether there is such a thread still: a state may outlive
/// its thread, and proves nothing then.
///
/// # Errors
/// The first [`Mismatch`]. The process runs on meanwhile: try again before believing it.
pub fn prove(
    memory: &impl ReadMemory,
    claim: &Claim,
    is_alive: impl Fn(u64) -> bool,
) -> Result<Vec<ThreadState>, Mismatch> {
    let states = threads::thread_states(memory, claim.layout, claim.interpreter)
        .map_err(Mismatch::Threads)?;
    if states.is_empty() {
        return Err(Mismatch::NoThreads);
    }
    // A thread may have several states in one interpreter (embedding programs do); its key names
    // the one that it began with.
    let mut of_thread: HashMap<u64, HashSet<u64>> = HashMap::new();
    for state in &states {
        of_thread
            .entry(state.thread_id)
            .or_default()
            .insert(state.address);
    }
    let mut known_codes = HashSet::new();
    let mut proved = 0;
    for state in states.iter().filter(|state| state.thread_id != 0) {
        let native_thread_id = state.native_thread_id;
        let found = claim.key.value(memory, state.thread_id);
        if !found.is_ok_and(|value| of_thread[&state.thread_id].contains(&value)) {
            if is_alive(native_thread_id) {
                let value = found.unwrap_or_default();
                return Err(Mismatch::Key {
                    native_thread_id,
                    value,
                });
            }
            continue;
        }
        prove_stack(memory, claim, state, &mut known_codes)?;
        proved += 1;
    }
    if proved == 0 {
        Err(Mismatch::NothingProved)
    } else {
        Ok(states)
    }
}

fn prove_stack(
    memory: &impl ReadMemory,
    claim: &Claim,
    state: &ThreadState,
    known_codes: &mut HashSet<u64>,
) -> Result<(), Mismatch> {
    let native_thread_id = state.native_thread_id;
    let mut result = Ok(());
    for _ in 0..STACK_ATTEMPTS {
        result = match threads::frames(memory, claim.layout, state.address) {
            Ok(chain) if chain.truncated => Err(Mismatch::EndlessStack { native_thread_id }),
            Ok(chain) => chain.frames.iter().try_for_each(|frame| {
                if known_codes.contains(&frame.code) {
                    return Ok(());
                }
                check_code(memory, claim, frame.code).map_err(|cause| Mismatch::Stack {
                    native_thread_id,
                    cause,
                })?;
                known_codes.insert(frame.code);
                Ok(())
            }),
            Err(cause) => Err(Mismatch::Stack {
                native_thread_id,
                cause,
            }),
        };
        if result.is_ok() {
            break;
        }
    }
    result
}

fn check_code(memory: &impl ReadMemory, claim: &Claim, code: u64) -> Result<(), Unreadable> {
    let kind = memory.read_u64(code.wrapping_add(claim.layout.object.kind.into()))?;
    if kind == claim.code_type {
        Ok(())
    } else {
        Err(Unreadable {
            address: code,
            cause: Cause::NotAsExpected,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{CODE_TYPE, FakeCode};
    use super::super::layout::LAYOUTS;
    use super::*;
    use crate::target::memory::fake::FakeMemory;

    const INTERPRETER: u64 = 0x1000;
    const STATE: u64 = 0x2_0000;
    const THREAD: u64 = 0x7_0000;
    const CFRAME: u64 = 0x9_0000;
    const FRAME: u64 = 0xa_0000;
    const TABLE: u64 = 0xb_0000;
    const TRAIN: FakeCode = FakeCode {
        address: 0x100_0000,
        file: "train.py",
        name: "step",
        first_line: 1,
        version: 1,
        units_of_lines: &[4],
    };

    fn claim(layout: &'static PythonLayout, key: u32) -> Claim {
        let key = TssKey::new(key).unwrap();
        Claim {
            layout,
            interpreter: INTERPRETER,
            code_type: CODE_TYPE,
            key,
        }
    }

    /// One thread that runs one frame and keeps its state under a key.
    fn one_thread(layout: &PythonLayout, key: TssKey) -> FakeMemory {
        let mut memory = FakeMemory::default();
        for (address, size) in [
            (INTERPRETER, 0x1000),
            (STATE, 0x400),
            (THREAD, 0x1000),
            (CFRAME, 0x40),
            (FRAME, 0x80),
            (TABLE, 0x400),
        ] {
            memory.map(address, vec![0; size]);
        }
        TRAIN.map(&mut memory, layout);
        let thread = &layout.thread;
        let mut point = |from: u64, offset: u32, to: u64| {
            memory.write(from + u64::from(offset), &to.to_le_bytes());
        };
        point(INTERPRETER, layout.interpreter.threads.into(), STATE);
        point(STATE, thread.interpreter.into(), INTERPRETER);
        point(STATE, thread.thread_id.into(), THREAD);
        point(STATE, thread.native_thread_id.into(), 4242);
        point(STATE, thread.frame.into(), CFRAME);
        point(CFRAME, thread.cframe_current.unwrap().into(), FRAME);
        point(FRAME, layout.frame.code.into(), TRAIN.address);
        match key.path() {
            TssPath::Direct(offset) => point(THREAD, offset, STATE),
            TssPath::Table { pointer, slot } => {
                point(THREAD, pointer, TABLE);
                point(TABLE, slot, STATE);
            }
        }
        memory
    }

    #[test]
    fn the_way_to_a_key_is_that_of_glibc() {
        let path = |number| TssKey::new(number).unwrap().path();
        assert_eq!(path(0), TssPath::Direct(0x318));
        assert_eq!(path(31), TssPath::Direct(0x508));
        assert_eq!(
            path(32),
            TssPath::Table {
                pointer: 0x518,
                slot: 8
            }
        );
        assert_eq!(
            path(1023),
            TssPath::Table {
                pointer: 0x608,
                slot: 504
            }
        );
        assert_eq!(TssKey::new(1024), None);
    }

    #[test]
    fn a_thread_that_finds_its_state_and_runs_code_proves_the_claim() {
        for layout in &LAYOUTS {
            for key in [0, 1, 31, 32, 700] {
                let claim = claim(layout, key);
                let memory = one_thread(layout, claim.key);
                let states = prove(&memory, &claim, |_| true).unwrap();
                assert_eq!(states.len(), 1);
                assert_eq!(states[0].native_thread_id, 4242);
            }
        }
    }

    #[test]
    fn a_living_thread_that_finds_something_else_disproves_it() {
        let layout = &LAYOUTS[0];
        let memory = one_thread(layout, TssKey::new(3).unwrap());
        let claim = claim(layout, 4);
        assert_eq!(
            prove(&memory, &claim, |_| true),
            Err(Mismatch::Key {
                native_thread_id: 4242,
                value: 0
            })
        );
        assert_eq!(
            prove(&memory, &claim, |_| false),
            Err(Mismatch::NothingProved)
        );
    }

    #[test]
    fn a_frame_without_a_code_object_disproves_it() {
        for layout in &LAYOUTS {
            let claim = claim(layout, 0);
            let mut memory = one_thread(layout, claim.key);
            memory.write(FRAME + u64::from(layout.frame.code), &STATE.to_le_bytes());
            assert!(matches!(
                prove(&memory, &claim, |_| true),
                Err(Mismatch::Stack {
                    native_thread_id: 4242,
                    ..
                })
            ));
        }
    }

    #[test]
    fn circles_of_frames_and_of_threads_are_left() {
        for layout in &LAYOUTS {
            let claim = claim(layout, 0);
            let mut memory = one_thread(layout, claim.key);
            memory.write(
                FRAME + u64::from(layout.frame.previous),
                &FRAME.to_le_bytes(),
            );
            assert_eq!(
                prove(&memory, &claim, |_| true),
                Err(Mismatch::EndlessStack {
                    native_thread_id: 4242
                })
            );
            memory.write(STATE + u64::from(layout.thread.next), &STATE.to_le_bytes());
            assert!(matches!(
                prove(&memory, &claim, |_| true),
                Err(Mismatch::Threads(_))
            ));
        }
    }
}
