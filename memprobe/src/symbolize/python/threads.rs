//! The threads of a running CPython, and what must hold for each if the layout is right.

use std::fmt;

use super::detect::PythonProcess;
use crate::target::memory::{ReadMemory, Unreadable};

/// glibc's `struct pthread` on x86-64, stable from 2.27 to 2.43: the first block of thread-specific
/// values begins here (nptl/descr.h, `specific_1stblock`).
const FIRST_BLOCK: u32 = 0x310;

/// The table of pointers to further blocks (`specific`).
const BLOCKS: u32 = 0x510;

/// Values in a block (`PTHREAD_KEY_2NDLEVEL_SIZE`).
const PER_BLOCK: u32 = 32;

/// Bytes of an entry (`struct pthread_key_data`); the value is its second word.
const ENTRY: u32 = 16;

/// Threads that are looked at.
const MOST_THREADS: usize = 4096;

/// Frames of a thread that are looked at.
const MOST_FRAMES: usize = 4096;

/// Owner of the frames that are not Python code (`FRAME_OWNED_BY_CSTACK`, 3.12).
pub(super) const OWNER_C_STACK: u8 = 3;

/// Where a thread-specific value lies, from the thread pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TssPlace {
    /// The value, where the key lies in the first block.
    pub(super) first: u32,
    /// 0, or the pointer to the block.
    pub(super) second: u32,
    /// The value, in that block.
    pub(super) in_second: u32,
}

/// Where the value of a key lies.
pub(super) fn tss_place(key: u32) -> TssPlace {
    let within = key % PER_BLOCK * ENTRY + 8;
    match key / PER_BLOCK {
        0 => TssPlace {
            first: FIRST_BLOCK + within,
            second: 0,
            in_second: 0,
        },
        block => TssPlace {
            first: 0,
            second: BLOCKS + block * 8,
            in_second: within,
        },
    }
}

/// What does not hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Broken {
    Memory(Unreadable),
    Key { thread: u64 },
    Code { code: u64 },
    Endless,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(unreadable) => unreadable.fmt(f),
            Self::Key { thread } => write!(f, "thread {thread:#x} keeps its state elsewhere"),
            Self::Code { code } => write!(f, "a frame's code at {code:#x} is no code object"),
            Self::Endless => f.write_str("a chain of threads or frames has no end"),
        }
    }
}

impl From<Unreadable> for Broken {
    fn from(unreadable: Unreadable) -> Self {
        Self::Memory(unreadable)
    }
}

/// Checks every thread and gives their number. A running process can disturb it.
pub(super) fn check(python: &PythonProcess, memory: &impl ReadMemory) -> Result<usize, Broken> {
    let layout = python.layout;
    let interpreter = memory.read_u64(python.runtime + u64::from(layout.runtime_interpreters))?;
    if interpreter == 0 {
        return Ok(0);
    }
    let mut thread =
        memory.read_u64(interpreter.wrapping_add(layout.interpreter_threads.into()))?;
    let mut count = 0;
    while thread != 0 {
        if count == MOST_THREADS {
            return Err(Broken::Endless);
        }
        check_thread(python, memory, thread)?;
        count += 1;
        thread = memory.read_u64(thread.wrapping_add(layout.ts_next.into()))?;
    }
    Ok(count)
}

/// Checks that a thread's own key leads to its state, and that its frames run code.
fn check_thread(
    python: &PythonProcess,
    memory: &impl ReadMemory,
    thread: u64,
) -> Result<(), Broken> {
    let layout = python.layout;
    let pointer = memory.read_u64(thread.wrapping_add(layout.ts_thread_id.into()))?;
    let place = tss_place(python.tss_key);
    let slot = match place.second {
        0 => pointer.wrapping_add(place.first.into()),
        second => memory
            .read_u64(pointer.wrapping_add(second.into()))?
            .wrapping_add(place.in_second.into()),
    };
    if memory.read_u64(slot)? != thread {
        return Err(Broken::Key { thread });
    }
    let cframe = memory.read_u64(thread.wrapping_add(layout.ts_cframe.into()))?;
    let mut frame = memory.read_u64(cframe.wrapping_add(layout.cframe_current.into()))?;
    for _ in 0..MOST_FRAMES {
        if frame == 0 {
            return Ok(());
        }
        let code = memory.read_u64(frame.wrapping_add(layout.f_code.into()))?;
        let [owner] = memory.read_array(frame.wrapping_add(layout.f_owner.into()))?;
        let is_code = memory.read_u64(code.wrapping_add(8))? == python.code_type;
        if owner < OWNER_C_STACK && !is_code {
            return Err(Broken::Code { code });
        }
        frame = memory.read_u64(frame.wrapping_add(layout.f_previous.into()))?;
    }
    // Deep recursion; what was seen is enough.
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_first_block_lie_in_the_thread_itself() {
        assert_eq!(
            tss_place(0),
            TssPlace {
                first: 0x318,
                second: 0,
                in_second: 0
            }
        );
        assert_eq!(
            tss_place(31),
            TssPlace {
                first: 0x310 + 31 * 16 + 8,
                second: 0,
                in_second: 0
            }
        );
    }

    #[test]
    fn later_keys_lie_behind_a_pointer() {
        assert_eq!(
            tss_place(33),
            TssPlace {
                first: 0,
                second: 0x518,
                in_second: 24
            }
        );
    }
}
