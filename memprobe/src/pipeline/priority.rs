//! How soon memprobe's threads run where all processors are busy.
//!
//! A reader that waits for its turn among ranks that never rest loses what they tell meanwhile, however little time it
//! needs: of eight ranks on two processors half of the events were lost while the reader had used 6 % of one.

use rustix::process::{getpriority_process, setpriority_process};

/// Nice values (setpriority(2), of the calling thread alone): that of the reader has nine times the weight of the other
/// (`sched_prio_to_weight` in kernel/sched/core.c).
const FIRST: i32 = -10;
const ORDINARY: i32 = 0;

/// Has the calling thread run before those of ordinary priority. It takes no more time for that, only sooner. Where
/// somebody gave memprobe another priority it keeps that, and where the kernel refuses, what is lost is counted.
pub(super) fn come_first() {
    change(ORDINARY, FIRST);
}

/// Has the calling thread take turns with all others: what it does may take long, and is not lost.
pub(super) fn take_turns() {
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
