//! Order of the checkpoint calls, and the way back from a failure of each.
//!
//! lock, checkpoint; then restore, unlock. The driver's own state decides at every turn: a memprobe that died left no
//! other record. Pure: a script can stand in for the driver.

use super::{CallFailure, CheckpointState};

/// A call that changes the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointStep {
    /// Running to locked: new calls of CUDA wait, and running work ends.
    Lock,
    /// Locked to checkpointed: device memory goes to the host.
    Checkpoint,
    /// Checkpointed to locked: device memory comes back.
    Restore,
    /// Locked to running.
    Unlock,
}

impl CheckpointStep {
    /// Returns the verb for sentences.
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Checkpoint => "checkpoint",
            Self::Restore => "restore",
            Self::Unlock => "unlock",
        }
    }

    /// Returns what the driver does meanwhile.
    pub const fn progress(self) -> &'static str {
        match self {
            Self::Lock => "waiting for its running work to end",
            Self::Checkpoint => "moving its device memory to the host",
            Self::Restore => "moving its memory back to the GPU",
            Self::Unlock => "letting it go on",
        }
    }
}

/// The driver's calls for one process.
pub trait CheckpointCalls {
    fn state(&mut self) -> Result<CheckpointState, CallFailure>;

    fn make(&mut self, step: CheckpointStep) -> Result<(), CallFailure>;

    /// True if the user wants to stop: what was begun is undone.
    fn is_interrupted(&self) -> bool;
}

/// State of the process after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateAfter {
    Known(CheckpointState),
    /// The driver did not say.
    Unknown(CallFailure),
}

/// Failure of a step, and what became of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepFailure {
    /// The step, or `None` for the question for the state.
    pub step: Option<CheckpointStep>,
    pub cause: CallFailure,
    /// First failure on the way back, if there was one.
    pub undoing: Option<(CheckpointStep, CallFailure)>,
    pub after: StateAfter,
}

/// Outcome of [`suspend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspended {
    Done,
    /// Nothing was to be done: a suspended process.
    Already,
    /// The user stopped it, and the process runs on.
    Undone,
    /// The process is in a state from which it cannot be suspended.
    Impossible(CheckpointState),
}

/// Outcome of [`resume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    Restored,
    /// The process was only locked: its memory had never left the GPU.
    Unlocked,
    WasRunning,
    /// The process is in a state from which it cannot be resumed.
    Impossible(CheckpointState),
}

/// Suspends the process, or leaves it as it was.
pub fn suspend(calls: &mut impl CheckpointCalls) -> Result<Suspended, StepFailure> {
    match state(calls)? {
        CheckpointState::Running => make(calls, CheckpointStep::Lock)?,
        // A memprobe that was killed left it so.
        CheckpointState::Locked => {}
        CheckpointState::Checkpointed => return Ok(Suspended::Already),
        other => return Ok(Suspended::Impossible(other)),
    }
    if calls.is_interrupted() {
        return undone(calls, CheckpointStep::Lock);
    }
    make(calls, CheckpointStep::Checkpoint)?;
    // The driver's word for a success was not true in all versions: the state decides.
    match state(calls)? {
        CheckpointState::Checkpointed if calls.is_interrupted() => {
            undone(calls, CheckpointStep::Checkpoint)
        }
        CheckpointState::Checkpointed => Ok(Suspended::Done),
        _ => Err(failed(
            calls,
            CheckpointStep::Checkpoint,
            CallFailure::NoEffect,
        )),
    }
}

/// Brings the process from whatever state it is in back to running.
pub fn resume(calls: &mut impl CheckpointCalls) -> Result<Resumed, StepFailure> {
    let was = state(calls)?;
    match was {
        CheckpointState::Running => return Ok(Resumed::WasRunning),
        CheckpointState::Checkpointed => make(calls, CheckpointStep::Restore)?,
        CheckpointState::Locked => {}
        other => return Ok(Resumed::Impossible(other)),
    }
    make(calls, CheckpointStep::Unlock)?;
    Ok(if was == CheckpointState::Locked {
        Resumed::Unlocked
    } else {
        Resumed::Restored
    })
}

fn state(calls: &mut impl CheckpointCalls) -> Result<CheckpointState, StepFailure> {
    calls.state().map_err(|cause| StepFailure {
        step: None,
        cause,
        undoing: None,
        after: StateAfter::Unknown(cause),
    })
}

fn make(calls: &mut impl CheckpointCalls, step: CheckpointStep) -> Result<(), StepFailure> {
    let made = calls.make(step);
    made.map_err(|cause| failed(calls, step, cause))
}

/// Lets a process go that is locked after a failed step, and reads its state.
fn failed(
    calls: &mut impl CheckpointCalls,
    step: CheckpointStep,
    cause: CallFailure,
) -> StepFailure {
    let failure = |undoing, after| StepFailure {
        step: Some(step),
        cause,
        undoing,
        after,
    };
    // Another call while the driver is at work would wait for it, or meet a state that is about to change.
    if cause.may_go_on() {
        return failure(None, StateAfter::Unknown(cause));
    }
    // An illegal state for a lock means that another program has locked it: that lock is not ours to open.
    let is_foreign = step == CheckpointStep::Lock && cause == CallFailure::ILLEGAL_STATE;
    // A restore that failed is not tried again: with some drivers this fails for ever (cuda-checkpoint issue 44).
    let is_locked = !is_foreign && calls.state() == Ok(CheckpointState::Locked);
    let undoing = if is_locked {
        let unlocked = calls.make(CheckpointStep::Unlock);
        unlocked.err().map(|cause| (CheckpointStep::Unlock, cause))
    } else {
        None
    };
    let after = match undoing {
        Some((_, cause)) if cause.may_go_on() => StateAfter::Unknown(cause),
        _ => calls
            .state()
            .map_or_else(StateAfter::Unknown, StateAfter::Known),
    };
    failure(undoing, after)
}

fn undone(
    calls: &mut impl CheckpointCalls,
    step: CheckpointStep,
) -> Result<Suspended, StepFailure> {
    match resume(calls) {
        Ok(Resumed::Impossible(other)) => Ok(Suspended::Impossible(other)),
        Ok(_) => Ok(Suspended::Undone),
        Err(failure) => Err(StepFailure {
            step: Some(step),
            cause: CallFailure::Abandoned,
            undoing: failure.step.map(|step| (step, failure.cause)),
            after: failure.after,
        }),
    }
}

#[cfg(test)]
mod tests;
