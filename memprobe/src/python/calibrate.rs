//! Validates the layout on every thread of a process: before a probe relies on the offsets, the values they
//! lead to must agree with independent facts.

use hashbrown::HashSet;

use super::cache::is_shim;
use super::code::{CodePosition, CodeReader};
use super::layout::PythonLayout;
use super::slot::{self, StatePath};
use super::threads::{self, RawFrame, ThreadState};
use crate::process::memory::{Cause, ReadMemory, ReadResult, Unreadable};

const STACK_ATTEMPTS: usize = 8;

/// A contradiction between a process and the layout of its version. A thread is named by its ID in its own
/// PID namespace (`native_thread_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("its list of threads: {0}")]
    Threads(Unreadable),
    #[error("it has no Python thread")]
    NoThreads,
    #[error("thread {0} keeps {1:#x} where its thread state should be")]
    State(u64, u64),
    /// No location, or more than one, holds its own state in every thread.
    #[error("{0} places are found where every thread keeps its state")]
    NoWay(usize),
    /// The code of a frame is no code object, or does not contain the frame's instruction.
    #[error("the stack of thread {0}: {1}")]
    Stack(u64, Unreadable),
    #[error("the stack of thread {0} has no end")]
    EndlessStack(u64),
    #[error("none of its threads could be read")]
    NothingProved,
    /// No thread runs anything, and the offsets have no other confirmation.
    #[error("none of its threads runs any Python")]
    NoFrames,
}

#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub layout: &'a PythonLayout,
    pub interpreter: u64,
    pub code_type: u64,
    pub way: StatePath,
    pub layout_is: LayoutIs,
}

/// The prior confidence in offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutIs {
    /// Offsets of the official build, which were tested.
    Tested,
    /// Other offsets that the interpreter itself reports; a thread with frames must confirm them.
    OnlyTold,
}

/// Validates a claim on every thread and returns the threads. Each thread must find its own state, whether it
/// holds the GIL or not, and its stack must be a finite chain of frames with readable code objects.
///
/// A state may outlive its thread (`is_alive` takes a `native_thread_id`); then it is no evidence.
/// Fails with the first [`Mismatch`]. The process keeps running, so a caller should retry first.
pub fn validate(
    memory: &impl ReadMemory,
    claim: &Claim<'_>,
    is_alive: impl Fn(u64) -> bool,
) -> Result<Vec<ThreadState>, Mismatch> {
    let states = threads::thread_states(memory, claim.layout, claim.interpreter)
        .map_err(Mismatch::Threads)?;
    if states.is_empty() {
        return Err(Mismatch::NoThreads);
    }
    let of_thread = slot::by_thread(&states);
    let mut known_codes = HashSet::new();
    let mut proved = 0;
    for state in states.iter().filter(|state| state.thread_id != 0) {
        let native_thread_id = state.native_thread_id;
        let found = claim.way.value(memory, state.thread_id);
        if !found.is_ok_and(|value| of_thread[&state.thread_id].contains(&value)) {
            if is_alive(native_thread_id) {
                let value = found.unwrap_or_default();
                return Err(Mismatch::State(native_thread_id, value));
            }
            continue;
        }
        validate_stack(memory, claim, state, &mut known_codes)?;
        proved += 1;
    }
    if proved == 0 {
        Err(Mismatch::NothingProved)
    } else if known_codes.is_empty() && claim.layout_is == LayoutIs::OnlyTold {
        Err(Mismatch::NoFrames)
    } else {
        Ok(states)
    }
}

fn validate_stack(
    memory: &impl ReadMemory,
    claim: &Claim<'_>,
    state: &ThreadState,
    known_codes: &mut HashSet<u64>,
) -> Result<(), Mismatch> {
    let thread = state.native_thread_id;
    let mut result = Ok(());
    for _ in 0..STACK_ATTEMPTS {
        let chain = claim.layout.frames(memory, state.address);
        if chain.as_ref().is_ok_and(|chain| chain.truncated) {
            result = Err(Mismatch::EndlessStack(thread));
            continue;
        }
        let validated = chain.and_then(|chain| {
            let is_code = |frame: &&RawFrame| !is_shim(&claim.layout.frame, frame.owner);
            let mut frames = chain.frames.iter().filter(is_code);
            frames.try_for_each(|frame| validate_frame(memory, claim, frame, known_codes))
        });
        result = validated.map_err(|cause| Mismatch::Stack(thread, cause));
        if result.is_ok() {
            break;
        }
    }
    result
}

fn validate_frame(
    memory: &impl ReadMemory,
    claim: &Claim<'_>,
    frame: &RawFrame,
    known_codes: &mut HashSet<u64>,
) -> ReadResult<()> {
    if known_codes.contains(&frame.code) {
        return Ok(());
    }
    let (layout, code_type) = (claim.layout, claim.code_type);
    let reader = CodeReader {
        memory,
        layout,
        code_type,
    };
    let code = reader.read(frame.code)?;
    if code.place_of(frame.instr) == CodePosition::Elsewhere {
        return Err(Cause::NotAsExpected.at(frame.address));
    }
    known_codes.insert(frame.code);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::fake::{CODE_TYPE, FakeCode};
    use super::super::versions::LAYOUTS;
    use super::*;
    use crate::process::memory::fake::FakeMemory;

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

    fn claim(layout: &PythonLayout, key: u32) -> Claim<'_> {
        Claim {
            layout,
            interpreter: INTERPRETER,
            code_type: CODE_TYPE,
            way: StatePath::to_key(key).unwrap(),
            layout_is: LayoutIs::Tested,
        }
    }

    /// Creates one thread with one frame, whose state lies at the end of this path.
    fn one_thread(layout: &PythonLayout, way: StatePath) -> FakeMemory {
        let mut memory = FakeMemory::default();
        for (address, size) in [
            (INTERPRETER, 0x2000),
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
        point(INTERPRETER, layout.interpreter_threads.into(), STATE);
        point(STATE, thread.interpreter.into(), INTERPRETER);
        point(STATE, thread.thread_id.into(), THREAD);
        match thread.native_thread_id {
            Some(offset) => point(STATE, offset.into(), 4242),
            None => point(THREAD, 0x2d0, 4242),
        }
        match thread.cframe_current {
            Some(current) => {
                point(STATE, thread.frame.into(), CFRAME);
                point(CFRAME, current.into(), FRAME);
            }
            None => point(STATE, thread.frame.into(), FRAME),
        }
        // Tagged from 3.14 on.
        let mark = if layout.minor >= 14 { 1 } else { 0 };
        point(FRAME, layout.frame.code.into(), TRAIN.address | mark);
        point(FRAME, layout.frame.instr.into(), TRAIN.instr(layout, 2));
        match *way.steps() {
            [offset] => point(THREAD, offset as u32, STATE),
            [block, offset] => {
                point(THREAD, block as u32, TABLE);
                point(TABLE, offset as u32, STATE);
            }
            _ => unreachable!("keys have no other ways"),
        }
        memory
    }

    #[test]
    fn a_thread_that_finds_its_state_and_runs_code_proves_the_claim() {
        for layout in &LAYOUTS {
            for key in [0, 1, 31, 32, 700] {
                let claim = claim(layout, key);
                let memory = one_thread(layout, claim.way);
                let states = validate(&memory, &claim, |_| true).unwrap();
                assert_eq!(states.len(), 1);
                assert_eq!(states[0].native_thread_id, 4242);
            }
        }
    }

    #[test]
    fn a_living_thread_that_finds_something_else_disproves_it() {
        let layout = &LAYOUTS[0];
        let memory = one_thread(layout, StatePath::to_key(3).unwrap());
        let claim = claim(layout, 4);
        assert_eq!(
            validate(&memory, &claim, |_| true),
            Err(Mismatch::State(4242, 0))
        );
        assert_eq!(
            validate(&memory, &claim, |_| false),
            Err(Mismatch::NothingProved)
        );
    }

    #[test]
    fn a_frame_without_a_code_object_disproves_it() {
        for layout in &LAYOUTS {
            let claim = claim(layout, 0);
            let mut memory = one_thread(layout, claim.way);
            memory.write(FRAME + u64::from(layout.frame.code), &STATE.to_le_bytes());
            assert!(matches!(
                validate(&memory, &claim, |_| true),
                Err(Mismatch::Stack(4242, _))
            ));
        }
    }

    #[test]
    fn an_instruction_of_other_code_disproves_it() {
        for layout in &LAYOUTS {
            let claim = claim(layout, 0);
            let mut memory = one_thread(layout, claim.way);
            let beyond = TRAIN.instr(layout, 4);
            memory.write(FRAME + u64::from(layout.frame.instr), &beyond.to_le_bytes());
            assert!(matches!(
                validate(&memory, &claim, |_| true),
                Err(Mismatch::Stack(..))
            ));
        }
    }

    #[test]
    fn a_thread_that_runs_nothing_proves_only_offsets_that_were_tested() {
        for layout in LAYOUTS.iter().filter(|layout| layout.minor >= 13) {
            let tested = claim(layout, 0);
            let mut memory = one_thread(layout, tested.way);
            memory.write(STATE + u64::from(layout.thread.frame), &[0; 8]);
            assert!(validate(&memory, &tested, |_| true).is_ok());
            let untested = Claim {
                layout_is: LayoutIs::OnlyTold,
                ..tested
            };
            assert_eq!(
                validate(&memory, &untested, |_| true),
                Err(Mismatch::NoFrames)
            );
        }
    }

    #[test]
    fn the_lowest_frame_of_a_thread_that_runs_nothing_is_no_frame() {
        let layout = PythonLayout::of(15).unwrap();
        let claim = claim(layout, 0);
        let mut memory = one_thread(layout, claim.way);
        let base = STATE + u64::from(layout.thread.base_frame.unwrap());
        memory.write(base, &FRAME.to_le_bytes());
        let chain = layout.frames(&memory, STATE).unwrap();
        assert_eq!(chain.frames, []);
    }

    #[test]
    fn circles_of_frames_and_of_threads_are_left() {
        for layout in &LAYOUTS {
            let claim = claim(layout, 0);
            let mut memory = one_thread(layout, claim.way);
            memory.write(
                FRAME + u64::from(layout.frame.previous),
                &FRAME.to_le_bytes(),
            );
            assert_eq!(
                validate(&memory, &claim, |_| true),
                Err(Mismatch::EndlessStack(4242))
            );
            memory.write(STATE + u64::from(layout.thread.next), &STATE.to_le_bytes());
            assert!(matches!(
                validate(&memory, &claim, |_| true),
                Err(Mismatch::Threads(_))
            ));
        }
    }
}
