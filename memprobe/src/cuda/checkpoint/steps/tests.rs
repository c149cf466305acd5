//! Suspend and resume against a driver that follows a script.

use super::CheckpointState::{Checkpointed, Failed, Locked, Restoring, Running};
use super::CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
use super::*;

/// Misbehaviour of the driver in a step.
#[derive(Clone, Copy)]
enum Trouble {
    /// An error, without a change.
    Refuses(i32),
    /// An error, and the process in this state.
    Leaves(CheckpointState),
    /// No return in time.
    Hangs,
    /// Success, without a change.
    Pretends,
}

struct ScriptedDriver {
    state: CheckpointState,
    troubles: Vec<(CheckpointStep, Trouble)>,
    /// Call of this number on which Ctrl-C comes, before it begins.
    interrupted_at: Option<usize>,
    made: Vec<CheckpointStep>,
    is_stuck: bool,
}

impl ScriptedDriver {
    fn new(state: CheckpointState, troubles: &[(CheckpointStep, Trouble)]) -> Self {
        Self {
            state,
            troubles: troubles.to_vec(),
            interrupted_at: None,
            made: Vec::new(),
            is_stuck: false,
        }
    }
}

/// State from which a step is allowed, and the one that it leads to.
fn transition(step: CheckpointStep) -> (CheckpointState, CheckpointState) {
    match step {
        Lock => (Running, Locked),
        Checkpoint => (Locked, Checkpointed),
        Restore => (Checkpointed, Locked),
        Unlock => (Locked, Running),
    }
}

impl CheckpointCalls for ScriptedDriver {
    fn state(&mut self) -> Result<CheckpointState, CallFailure> {
        assert!(!self.is_stuck, "the driver is asked while it is at work");
        Ok(self.state)
    }

    fn make(&mut self, step: CheckpointStep) -> Result<(), CallFailure> {
        assert!(!self.is_stuck, "the driver is called while it is at work");
        self.made.push(step);
        let (from, to) = transition(step);
        if self.state != from {
            return Err(CallFailure::ILLEGAL_STATE);
        }
        let trouble = self.troubles.iter().find(|(at, _)| *at == step);
        match trouble.map(|(_, trouble)| *trouble) {
            None => self.state = to,
            Some(Trouble::Refuses(code)) => return Err(CallFailure::Refused(code)),
            Some(Trouble::Leaves(state)) => {
                self.state = state;
                return Err(CallFailure::Refused(999));
            }
            Some(Trouble::Hangs) => {
                self.is_stuck = true;
                return Err(CallFailure::Late);
            }
            Some(Trouble::Pretends) => {}
        }
        Ok(())
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted_at.is_some_and(|at| self.made.len() >= at)
    }
}

#[test]
fn a_process_is_suspended_and_resumed() {
    let mut driver = ScriptedDriver::new(Running, &[]);
    assert_eq!(suspend(&mut driver), Ok(Suspended::Done));
    assert_eq!(driver.state, Checkpointed);
    assert_eq!(suspend(&mut driver), Ok(Suspended::Already));
    assert_eq!(resume(&mut driver), Ok(Resumed::Restored));
    assert_eq!(resume(&mut driver), Ok(Resumed::WasRunning));
    assert_eq!(driver.made, [Lock, Checkpoint, Restore, Unlock]);
}

#[test]
fn a_lock_that_a_dead_memprobe_left_is_finished_or_opened() {
    let mut driver = ScriptedDriver::new(Locked, &[]);
    assert_eq!(suspend(&mut driver), Ok(Suspended::Done));
    assert_eq!(driver.made, [Checkpoint]);
    let mut driver = ScriptedDriver::new(Locked, &[]);
    assert_eq!(resume(&mut driver), Ok(Resumed::Unlocked));
    assert_eq!(driver.made, [Unlock]);
}

#[test]
fn a_refused_step_leaves_the_process_running() {
    for (step, made) in [
        (Lock, &[Lock][..]),
        (Checkpoint, &[Lock, Checkpoint, Unlock]),
    ] {
        for code in [1, 2, 304, 600, 800, 801, 999] {
            let mut driver = ScriptedDriver::new(Running, &[(step, Trouble::Refuses(code))]);
            let failure = suspend(&mut driver).expect_err("it is refused");
            assert_eq!(failure.step, Some(step));
            assert_eq!(failure.cause, CallFailure::Refused(code));
            assert_eq!(failure.undoing, None);
            assert_eq!(failure.after, StateAfter::Known(Running), "{step:?} {code}");
            assert_eq!(driver.made, made);
        }
    }
}

#[test]
fn a_lock_that_fails_and_holds_is_opened() {
    let mut driver = ScriptedDriver::new(Running, &[(Lock, Trouble::Leaves(Locked))]);
    let failure = suspend(&mut driver).expect_err("it is refused");
    assert_eq!(failure.after, StateAfter::Known(Running));
    assert_eq!(driver.made, [Lock, Unlock]);
}

#[test]
fn the_lock_of_another_program_stays() {
    struct Raced(ScriptedDriver);
    impl CheckpointCalls for Raced {
        fn state(&mut self) -> Result<CheckpointState, CallFailure> {
            self.0.state()
        }
        fn make(&mut self, step: CheckpointStep) -> Result<(), CallFailure> {
            self.0.state = Locked;
            self.0.make(step)
        }
        fn is_interrupted(&self) -> bool {
            false
        }
    }
    let mut driver = Raced(ScriptedDriver::new(Running, &[]));
    let failure = suspend(&mut driver).expect_err("another program was faster");
    assert_eq!(failure.cause, CallFailure::ILLEGAL_STATE);
    assert_eq!(failure.after, StateAfter::Known(Locked));
    assert_eq!(driver.0.made, [Lock]);
}

#[test]
fn a_step_that_hangs_is_followed_by_no_other_call() {
    for (step, state) in [
        (Lock, Running),
        (Checkpoint, Running),
        (Restore, Checkpointed),
        (Unlock, Checkpointed),
    ] {
        // The scripted driver panics if it is called while it is stuck.
        let mut driver = ScriptedDriver::new(state, &[(step, Trouble::Hangs)]);
        let failure = if state == Running {
            suspend(&mut driver).expect_err("it hangs")
        } else {
            resume(&mut driver).expect_err("it hangs")
        };
        assert_eq!(failure.step, Some(step));
        assert_eq!(failure.after, StateAfter::Unknown(CallFailure::Late));
    }
}

#[test]
fn a_way_back_that_fails_is_said_with_the_state() {
    let troubles = [
        (Checkpoint, Trouble::Refuses(801)),
        (Unlock, Trouble::Refuses(999)),
    ];
    let mut driver = ScriptedDriver::new(Running, &troubles);
    let failure = suspend(&mut driver).expect_err("it is refused");
    assert_eq!(failure.cause, CallFailure::Refused(801));
    assert_eq!(failure.undoing, Some((Unlock, CallFailure::Refused(999))));
    assert_eq!(failure.after, StateAfter::Known(Locked));
    let troubles = [
        (Checkpoint, Trouble::Refuses(801)),
        (Unlock, Trouble::Hangs),
    ];
    let mut driver = ScriptedDriver::new(Running, &troubles);
    let failure = suspend(&mut driver).expect_err("it is refused");
    assert_eq!(failure.after, StateAfter::Unknown(CallFailure::Late));
}

#[test]
fn a_restore_that_fails_is_not_tried_again() {
    for (trouble, after, made) in [
        (Trouble::Refuses(2), Checkpointed, &[Restore][..]),
        (Trouble::Leaves(Failed), Failed, &[Restore]),
        // The driver brought it back, and reports an error: the process may go on.
        (Trouble::Leaves(Locked), Running, &[Restore, Unlock]),
    ] {
        let mut driver = ScriptedDriver::new(Checkpointed, &[(Restore, trouble)]);
        let failure = resume(&mut driver).expect_err("it fails");
        assert_eq!(failure.step, Some(Restore));
        assert_eq!(failure.after, StateAfter::Known(after));
        assert_eq!(driver.made, made);
    }
}

#[test]
fn a_checkpoint_that_breaks_the_process_is_said() {
    let mut driver = ScriptedDriver::new(Running, &[(Checkpoint, Trouble::Leaves(Failed))]);
    let failure = suspend(&mut driver).expect_err("it fails");
    assert_eq!(failure.after, StateAfter::Known(Failed));
    assert_eq!(driver.made, [Lock, Checkpoint]);
}

#[test]
fn a_success_that_is_none_is_noticed() {
    let mut driver = ScriptedDriver::new(Running, &[(Checkpoint, Trouble::Pretends)]);
    let failure = suspend(&mut driver).expect_err("nothing has changed");
    assert_eq!(failure.cause, CallFailure::NoEffect);
    assert_eq!(failure.after, StateAfter::Known(Running));
}

#[test]
fn an_interrupt_undoes_what_was_done() {
    for (at, made) in [
        (0, &[Lock, Unlock][..]),
        (1, &[Lock, Unlock]),
        (2, &[Lock, Checkpoint, Restore, Unlock]),
    ] {
        let mut driver = ScriptedDriver::new(Running, &[]);
        driver.interrupted_at = Some(at);
        assert_eq!(suspend(&mut driver), Ok(Suspended::Undone));
        assert_eq!(driver.state, Running);
        assert_eq!(driver.made, made);
    }
    let mut driver = ScriptedDriver::new(Running, &[(Restore, Trouble::Refuses(2))]);
    driver.interrupted_at = Some(2);
    let failure = suspend(&mut driver).expect_err("it cannot be undone");
    assert_eq!(failure.undoing, Some((Restore, CallFailure::Refused(2))));
    assert_eq!(failure.after, StateAfter::Known(Checkpointed));
}

#[test]
fn a_process_in_the_hands_of_another_program_is_left_alone() {
    for state in [Failed, Restoring, CheckpointState::Other(9)] {
        let mut driver = ScriptedDriver::new(state, &[]);
        assert_eq!(suspend(&mut driver), Ok(Suspended::Impossible(state)));
        assert_eq!(resume(&mut driver), Ok(Resumed::Impossible(state)));
        assert_eq!(driver.made, []);
    }
}
