//! Real-time priority of the threads that make and use a pause: on a busy machine the process would stand still for as
//! long as other programs have the processors.

/// A thread with the lowest real-time priority (`SCHED_RR`, sched(7)), until this is dropped. Threads that it starts
/// meanwhile have it too. Without the right to (`CAP_SYS_NICE`) its priority stays as it is.
pub(super) struct Urgency {
    was_raised: bool,
    /// Makes the type `!Send`, because it is about this thread.
    _here: std::marker::PhantomData<*const ()>,
}

impl Urgency {
    pub(super) fn begin() -> Self {
        // SAFETY: takes and returns a number.
        let policy = unsafe { libc::sched_getscheduler(0) };
        // A priority that somebody else gave it stays.
        let was_raised = policy == libc::SCHED_OTHER && set(libc::SCHED_RR, 1);
        Self {
            was_raised,
            _here: std::marker::PhantomData,
        }
    }
}

impl Drop for Urgency {
    fn drop(&mut self) {
        if self.was_raised {
            set(libc::SCHED_OTHER, 0);
        }
    }
}

/// Sets the policy of this thread alone, and returns true if that succeeds.
fn set(policy: libc::c_int, priority: libc::c_int) -> bool {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the parameters live during the call.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_of_a_thread_is_as_before_in_the_end() {
        // SAFETY: takes and returns a number.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let urgency = Urgency::begin();
        if urgency.was_raised {
            assert_eq!(policy(), libc::SCHED_RR);
        }
        drop(urgency);
        assert_eq!(policy(), before);
    }
}
