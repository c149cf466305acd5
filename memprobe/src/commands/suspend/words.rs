//! Sentences about a process that could not be suspended or resumed.

use crate::cuda::checkpoint::{
    CallFailure, CheckpointState, CheckpointStep, StateAfter, StepFailure,
};

/// Returns a sentence on a process whose state the driver does not tell.
pub(super) fn no_state(pid: u32, cause: CallFailure) -> String {
    let reason = match cause {
        CallFailure::Late => {
            "the driver has not answered within the limit (--timeout): it may be suspending or resuming another process \
             of the same job; nothing was changed"
                .to_owned()
        }
        // A refusal of the first call has the same reasons as one of a lock.
        other => other.reason(CheckpointStep::Lock),
    };
    format!("PID {pid}: the driver does not give its state: {reason}")
}

/// Returns a sentence on a state from which nothing can be done.
pub(super) fn impossible(pid: u32, done: &str, state: CheckpointState) -> String {
    let reason = match state {
        CheckpointState::Failed => format!(
            "the driver has failed to suspend or resume it, and cannot correct that. Its calls of CUDA fail or wait: end \
             it (`kill {pid}`)"
        ),
        CheckpointState::Checkpointing | CheckpointState::Restoring => format!(
            "another program is suspending or resuming it: try again in a while, or see who does it (`pgrep -af \
             'memprobe|cuda-checkpoint'`; PID {pid})"
        ),
        other => format!("it is in a state that memprobe does not expect ({other:?})"),
    };
    format!("PID {pid} cannot be {done}: {reason}")
}

/// Returns sentences on a failed step: its reason, and the state of the process.
pub(super) fn failure(pid: u32, done: &str, failure: StepFailure) -> String {
    let Some(step) = failure.step else {
        return no_state(pid, failure.cause);
    };
    let (verb, reason) = (step.verb(), failure.cause.reason(step));
    let undoing = failure.undoing.map(|(step, cause)| {
        let (verb, reason) = (step.verb(), cause.reason(step));
        format!(" Undoing that failed at {verb}: {reason}.")
    });
    let undoing = undoing.unwrap_or_default();
    let after = after(pid, failure.after);
    format!("PID {pid} was not {done}: {verb} failed: {reason}.{undoing} {after}")
}

/// Returns a sentence on the state of the process after a failure, and what to do.
fn after(pid: u32, after: StateAfter) -> String {
    match after {
        StateAfter::Known(CheckpointState::Running) => {
            format!("PID {pid} runs on, with its memory on the GPU")
        }
        StateAfter::Known(CheckpointState::Locked) => format!(
            "PID {pid} is locked: its calls of CUDA wait. `memprobe resume {pid}` lets it go on"
        ),
        StateAfter::Known(CheckpointState::Checkpointed) => {
            format!("PID {pid} is suspended. `memprobe resume {pid}` tries again")
        }
        StateAfter::Known(CheckpointState::Failed) => {
            format!("The driver cannot correct the state of PID {pid}: end it (`kill {pid}`)")
        }
        StateAfter::Known(other) => {
            format!("PID {pid} is in the state {other:?}: `memprobe resume {pid}` in a while")
        }
        StateAfter::Unknown(_) => format!(
            "The state of PID {pid} is unknown: `memprobe resume {pid}` finds out, and lets it go on"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(cause: CallFailure, after: StateAfter) -> String {
        failure(
            7,
            "suspended",
            StepFailure {
                step: Some(CheckpointStep::Checkpoint),
                cause,
                undoing: None,
                after,
            },
        )
    }

    #[test]
    fn each_end_says_how_the_process_is_and_what_to_do() {
        let known = |state| words(CallFailure::Refused(801), StateAfter::Known(state));
        let texts = [
            known(CheckpointState::Running),
            known(CheckpointState::Locked),
            known(CheckpointState::Checkpointed),
            known(CheckpointState::Failed),
            known(CheckpointState::Restoring),
            words(CallFailure::Late, StateAfter::Unknown(CallFailure::Late)),
            no_state(7, CallFailure::Refused(800)),
            no_state(7, CallFailure::Late),
            impossible(7, "resumed", CheckpointState::Failed),
            impossible(7, "suspended", CheckpointState::Restoring),
            impossible(7, "suspended", CheckpointState::Other(9)),
        ];
        insta::assert_snapshot!("suspension_failures", texts.join("\n"));
    }

    #[test]
    fn a_way_back_that_fails_is_part_of_the_error() {
        let text = failure(
            7,
            "suspended",
            StepFailure {
                step: Some(CheckpointStep::Checkpoint),
                cause: CallFailure::Refused(801),
                undoing: Some((CheckpointStep::Unlock, CallFailure::Refused(999))),
                after: StateAfter::Known(CheckpointState::Locked),
            },
        );
        assert!(
            text.contains("Undoing that failed at unlock: CUDA error 999"),
            "{text}"
        );
        assert!(text.contains("`memprobe resume 7` lets it go on"), "{text}");
    }
}
