//! Scheduling priority of memprobe's threads.
//!
//! On busy processors a reader at ordinary priority waits for its turn and loses events, however little time it needs:
//! with eight ranks on two processors half of the events were lost while the reader used 6 % of one.

use rustix::process::{getpriority_process, setpriority_process};

/// Nice values (setpriority(2), of the calling thread alone): that of the reader has nine times the weight of the other
/// (`sched_prio_to_weight` in kernel/sched/core.c).
const FIRST: i32 = -10;
const ORDINARY: i32 = 0;

/// Raises the calling thread above ordinary priority. It uses no more time, only sooner. A priority given to memprobe
/// by the user is kept; if the kernel refuses, losses are counted.
pub(crate) fn come_first() {
    change(ORDINARY, FIRST);
}

/// Has the calling thread take turns with all others: what it does may take long, and is not lost.
pub(crate) fn take_turns() {
    change(FIRST, ORDINARY);
}

fn change(from: i32, to: i32) {
    if getpriority_process(None) == Ok(from) {
        let _ = setpriority_process(None, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_comes_first_and_takes_turns_again_without_the_others() {
        let own = getpriority_process(None);
        std::thread::spawn(|| {
            setpriority_process(None, ORDINARY).ok();
            let before = getpriority_process(None);
            come_first();
            take_turns();
            assert_eq!(getpriority_process(None), before);
        })
        .join()
        .expect("it ends");
        assert_eq!(getpriority_process(None), own);
    }
}
