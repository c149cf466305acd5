//! A line on the terminal while the user waits.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::messages;

/// Time without a line, which short waits do not need.
const FIRST: Duration = Duration::from_millis(300);
const EVERY: Duration = Duration::from_millis(200);

/// Does `work` on this thread. Meanwhile another one shows a line on standard error, if that is a terminal.
pub(super) fn show_while<T>(line: impl Fn() -> String + Send, work: impl FnOnce() -> T) -> T {
    if !messages::go_to_a_terminal() {
        return work();
    }
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        scope.spawn(move || {
            let mut patience = FIRST;
            // The sender is dropped when the work is done, also by a panic.
            while is_done.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                patience = EVERY;
                messages::replace_line(&line());
            }
            if patience == EVERY {
                messages::replace_line("");
            }
        });
        let outcome = work();
        drop(done);
        outcome
    })
}

/// Drops the owner of probes, and says so if it takes time: the kernel waits for the processes that run them.
pub(super) fn remove_probes<T>(owner: T) {
    show_while(|| "removing the probes".to_owned(), || drop(owner));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_of_the_work_is_returned() {
        assert_eq!(show_while(|| "waiting".to_owned(), || 7), 7);
    }
}
