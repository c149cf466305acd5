//! Run states of a process: running, stopped, or ending.

use std::fs;

use super::status::Status;
use crate::event::Tgid;

/// `PF_EXITING` of a task's flags: it runs no code any more (`include/linux/sched.h`@v6.12).
const EXITING: u64 = 0x4;

/// The most threads that are looked at for one that lives on.
const MAX_THREADS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    Running,
    /// A signal has stopped it (SIGSTOP, Ctrl-Z).
    Stopped,
    /// This process traces it, and has stopped it: a debugger, or memprobe while it reads.
    Traced(Tgid),
    /// The kernel is freeing its memory and files.
    Exiting,
    /// Ended; this parent has not collected its exit status.
    Zombie(Tgid),
    Gone,
}

impl RunState {
    pub fn of(tgid: Tgid) -> Self {
        let main = i32::try_from(tgid.0)
            .ok()
            .and_then(|tid| Task::read(tgid, tid));
        // A main thread may end before the others.
        let other = || living_thread(tgid);
        let living = main.filter(|task| !task.is_ending()).or_else(other);
        match (living, main) {
            (Some(task), _) => task.run_state(tgid),
            (None, Some(task)) if task.state == 'Z' => Self::Zombie(Tgid(task.parent)),
            (None, Some(_)) => Self::Exiting,
            (None, None) => Self::Gone,
        }
    }

    /// Returns a sentence on a process that runs nothing until somebody continues it, and how that is done.
    pub fn pause_reason(self, tgid: Tgid) -> Option<String> {
        let pid = tgid.0;
        match self {
            Self::Stopped => Some(format!(
                "a signal (SIGSTOP, Ctrl-Z) has stopped PID {pid}: nothing happens in it until `kill -CONT {pid}`"
            )),
            Self::Traced(Tgid(tracer)) => Some(format!(
                "a debugger (PID {tracer}) has stopped PID {pid}: nothing happens in it until it is continued there"
            )),
            Self::Running | Self::Exiting | Self::Zombie(_) | Self::Gone => None,
        }
    }
}

/// Fields of `/proc/PID/task/TID/stat` (`proc_pid_stat(5)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Task {
    tid: i32,
    state: char,
    parent: u32,
    flags: u64,
}

impl Task {
    fn read(tgid: Tgid, tid: i32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{}/task/{tid}/stat", tgid.0)).ok()?;
        Self::parse(tid, &stat)
    }

    fn parse(tid: i32, stat: &[u8]) -> Option<Self> {
        // The fields follow the name, which may contain anything.
        let name_end = stat.iter().rposition(|&byte| byte == b')')?;
        let fields = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
        let mut fields = fields.split_ascii_whitespace();
        Some(Self {
            tid,
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            // Process group, session, terminal and its group precede the flags.
            flags: fields.nth(4)?.parse().ok()?,
        })
    }

    fn is_ending(&self) -> bool {
        matches!(self.state, 'Z' | 'X') || self.flags & EXITING != 0
    }

    fn run_state(self, tgid: Tgid) -> RunState {
        match self.state {
            'T' => RunState::Stopped,
            't' => tracer(tgid, self.tid).map_or(RunState::Running, RunState::Traced),
            _ => RunState::Running,
        }
    }
}

fn living_thread(tgid: Tgid) -> Option<Task> {
    let tasks = fs::read_dir(format!("/proc/{}/task", tgid.0)).ok()?;
    let tids = tasks.take(MAX_THREADS).filter_map(|task| {
        let name = task.ok()?.file_name();
        name.to_str()?.parse().ok()
    });
    tids.filter_map(|tid| Task::read(tgid, tid))
        .find(|task| !task.is_ending())
}

/// Returns the letter of a thread's state (`proc_pid_stat(5)`).
pub(super) fn task_state(tgid: Tgid, tid: i32) -> Option<char> {
    Some(Task::read(tgid, tid)?.state)
}

/// Returns the process that traces a thread.
pub(super) fn tracer(tgid: Tgid, tid: i32) -> Option<Tgid> {
    let status = Status::read(format!("/proc/{}/task/{tid}/status", tgid.0)).ok()?;
    let thread = status.tracer?;
    let of_thread = Status::of(Tgid(thread)).ok().and_then(|status| status.tgid);
    Some(of_thread.unwrap_or(Tgid(thread)))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    fn becomes(child: &Child, wanted: RunState) {
        let start = Instant::now();
        let tgid = Tgid(child.id());
        while RunState::of(tgid) != wanted {
            assert!(start.elapsed() < Duration::from_secs(20), "{wanted:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn signal(child: &Child, signal: Signal) {
        let pid = Pid::from_raw(child.id().try_into().expect("a PID")).expect("a PID");
        kill_process(pid, signal).expect("it can be signalled");
    }

    #[test]
    fn distinguishes_a_stopped_a_running_and_a_dead_process() {
        let mut cat = Command::new("cat");
        let mut child = cat.stdin(Stdio::piped()).spawn().expect("cat starts");
        let tgid = Tgid(child.id());
        becomes(&child, RunState::Running);
        signal(&child, Signal::STOP);
        becomes(&child, RunState::Stopped);
        let reason = RunState::of(tgid).pause_reason(tgid).expect("a reason");
        assert!(
            reason.ends_with(&format!("`kill -CONT {}`", tgid.0)),
            "{reason}"
        );
        signal(&child, Signal::CONT);
        becomes(&child, RunState::Running);
        drop(child.stdin.take());
        becomes(&child, RunState::Zombie(Tgid(std::process::id())));
        assert_eq!(RunState::of(tgid).pause_reason(tgid), None);
        child.wait().expect("it ends");
        assert_eq!(RunState::of(tgid), RunState::Gone);
    }

    #[test]
    fn a_process_whose_main_thread_has_ended_still_runs() {
        let program = "import ctypes, threading, time\n\
                       threading.Thread(target=time.sleep, args=(60,)).start()\n\
                       ctypes.CDLL(None).pthread_exit(None)";
        let mut python = Command::new("python3");
        let mut child = python
            .args(["-c", program])
            .spawn()
            .expect("python3 starts");
        let tgid = Tgid(child.id());
        let start = Instant::now();
        while task_state(tgid, tgid.0 as i32).is_some_and(|state| state != 'Z') {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "the main thread ends"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(RunState::of(tgid), RunState::Running);
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }

    #[test]
    fn reads_the_fields_behind_a_name_that_looks_like_them() {
        let stat = b"7 (a) Z 1 2) S 3 7 7 0 -1 4194308 0 0";
        let task = Task::parse(7, stat).expect("it is whole");
        assert_eq!((task.state, task.parent, task.flags), ('S', 3, 0x40_0004));
        assert!(task.is_ending());
        assert_eq!(Task::parse(7, b"7 (a) S 3"), None);
        assert_eq!(Task::parse(7, b""), None);
    }
}
