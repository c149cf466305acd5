//! Processes whose end the kernel has recorded. They stay in `/proc` while they free their memory.

use std::time::{Duration, Instant};

use crate::event::Tgid;
use crate::probe::watched::Watched;

/// Time limit from the kernel's record of a process's exit to its end, while it frees its memory.
const ENDING: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct EndedProcess {
    tgid: Tgid,
    since: Instant,
    /// Held since before its end; `None` if it could not be held.
    watched: Option<Watched>,
}

/// Ended processes whose numbers may still be theirs.
#[derive(Debug, Default)]
pub(super) struct EndedProcesses(Vec<EndedProcess>);

impl EndedProcesses {
    pub(super) fn push(&mut self, tgid: Tgid, watched: Option<Watched>, now: Instant) {
        self.0.push(EndedProcess {
            tgid,
            since: now,
            watched,
        });
    }

    /// True if the process of this number is one of these: a search of processes can name it after the record of its
    /// exit. A process that has got the number since is another one.
    pub(super) fn includes(&self, found: &Watched) -> bool {
        let is_it = |ended: &EndedProcess| match &ended.watched {
            Some(watched) => !watched.has_ended() || found.has_ended(),
            None => found.has_ended(),
        };
        let mut same_number = self.0.iter().filter(|ended| ended.tgid == found.tgid);
        same_number.any(is_it)
    }

    /// Removes the processes that are over, or whose number is another's; calls `over` with each of the former.
    pub(super) fn sweep(
        &mut self,
        now: Instant,
        is_another: impl Fn(Tgid) -> bool,
        mut over: impl FnMut(Tgid),
    ) {
        self.0.retain(|ended| {
            let tgid = ended.tgid;
            if is_another(tgid) {
                return false;
            }
            let is_over = Watched::if_there(tgid).is_none_or(|watched| watched.has_ended());
            if is_over {
                over(tgid);
            }
            // If it is not, it still ends, or the number is another's by now.
            !is_over && now.duration_since(ended.since) < ENDING
        });
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn started() -> (Child, Watched) {
        let mut command = Command::new("cat");
        let child = command.stdin(Stdio::piped()).spawn().expect("cat starts");
        let watched = Watched::open(Tgid(child.id())).expect("it runs");
        (child, watched)
    }

    #[test]
    fn a_process_is_not_found_again_between_the_record_of_its_exit_and_its_end() {
        let (mut child, watched) = started();
        let (mut other, another) = started();
        let tgid = watched.tgid;
        let mut ended = EndedProcesses::default();
        let found = Watched::if_there(tgid).expect("it runs");
        assert!(!ended.includes(&found));
        ended.push(tgid, Some(watched), Instant::now());
        assert!(ended.includes(&found));
        assert!(!ended.includes(&another));
        child.kill().expect("killed");
        child.wait().expect("it ends");
        assert!(ended.includes(&found), "its number is nobody else's");
        let mut over = Vec::new();
        ended.sweep(Instant::now(), |_| false, |tgid| over.push(tgid));
        assert_eq!(over, [tgid]);
        assert!(!ended.includes(&found));
        other.kill().expect("killed");
        other.wait().expect("it ends");
    }

    #[test]
    fn a_process_that_has_the_number_of_an_ended_one_is_another_one() {
        let (mut child, old) = started();
        let (mut other, new) = started();
        child.kill().expect("killed");
        child.wait().expect("it ends");
        let mut ended = EndedProcesses::default();
        // As if the number had gone to the other.
        ended.push(new.tgid, Some(old), Instant::now());
        assert!(!ended.includes(&new));
        let mut over = Vec::new();
        ended.sweep(Instant::now(), |_| true, |tgid| over.push(tgid));
        assert_eq!(over, []);
        other.kill().expect("killed");
        other.wait().expect("it ends");
    }
}
