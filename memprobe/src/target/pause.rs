//! Stops every thread of a process for a moment, and lets it go on whatever happens.
//!
//! By `PTRACE_SEIZE` and `PTRACE_INTERRUPT`: no signal is sent, so neither the process nor its parent
//! notices. `PTRACE_O_EXITKILL` is not asked for: when the thread that traces ends, for whatever
//! reason, the kernel lets every thread that it traced run on (`exit_ptrace` in
//! kernel/ptrace.c@v6.12; ptrace(2), "Attaching and detaching").

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::event::Tgid;

/// How long the threads of a process may take to stop. Each does within a tenth of a millisecond,
/// unless the kernel is in the middle of something for it.
const MOST_WAIT: Duration = Duration::from_millis(500);

/// A thread that has not stopped by then is looked at: one that waits within the kernel, where no
/// signal reaches it, runs nothing of the program.
const LOOK_AFTER: Duration = Duration::from_millis(10);

/// How long the release waits for threads that are still within the kernel.
const MOST_RELEASE: Duration = Duration::from_millis(100);

/// The most threads that are stopped.
const MOST_THREADS: usize = 65_536;

/// Waits shorter than this are spent looking.
const SPIN: Duration = Duration::from_micros(300);

/// Of `waitpid` for threads of other processes (`__WALL`), without waiting.
const WAIT: i32 = libc::WNOHANG | libc::__WALL;

/// Why a process cannot be stopped. Each ends with what to do.
#[derive(Debug)]
pub enum PauseError {
    /// It has ended.
    Gone,
    /// It may not be traced.
    Denied,
    /// This process traces it already: a debugger.
    Traced(u32),
    /// This thread did not stop in time.
    Slow(u32),
    /// It makes threads faster than memprobe stops them, or has more than memprobe stops.
    TooManyThreads,
    /// Another error of the kernel.
    Os(io::Error),
}

impl fmt::Display for PauseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => {
                f.write_str("it has ended.\nFind the right process with `pgrep -af python`")
            }
            Self::Denied => f.write_str("it may not be stopped.\nRun memprobe with sudo"),
            Self::Traced(tracer) => write!(
                f,
                "a debugger is attached to it (PID {tracer}), so it cannot be stopped.\nDetach the \
                 debugger, or read the process while it runs with --nonblocking"
            ),
            Self::Slow(thread) => write!(
                f,
                "its thread {thread} did not stop within {} ms.\nTry again, or read the process \
                 while it runs with --nonblocking",
                MOST_WAIT.as_millis()
            ),
            Self::TooManyThreads => f.write_str(
                "it has more threads than memprobe stops, or makes them too fast.\nTry again, or \
                 read the process while it runs with --nonblocking",
            ),
            Self::Os(error) => write!(
                f,
                "it cannot be stopped: {error}.\nTry again, or read the process while it runs with \
                 --nonblocking"
            ),
        }
    }
}

impl std::error::Error for PauseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Os(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for PauseError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => Self::Gone,
            Some(libc::EPERM | libc::EACCES) => Self::Denied,
            _ => Self::Os(error),
        }
    }
}

/// Does something while a process stands still; says for how long it stood.
///
/// A thread of memprobe's own does it, because the kernel ties what is traced to the thread that
/// traces: as it ends, nothing stays stopped.
///
/// # Errors
/// [`PauseError`]; then the process runs as before.
///
/// # Panics
/// As `work` does, after the process was let go.
pub fn while_paused<R: Send>(
    tgid: Tgid,
    work: impl FnOnce() -> R + Send,
) -> Result<(R, Duration), PauseError> {
    let traced = || {
        let pause = Pause::of(tgid)?;
        let result = work();
        Ok((result, pause.release()))
    };
    let ended = thread::scope(|scope| scope.spawn(traced).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Whether a process stands still already, because of a signal, and so will not move on by itself.
pub fn is_stopped(tgid: Tgid) -> bool {
    i32::try_from(tgid.0).is_ok_and(|main| state(tgid, main) == Some('T'))
}

/// A thread of the process, on its way to stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    /// It was asked to stop.
    Asked,
    /// It waits within the kernel and stops before it runs anything of the program.
    InKernel,
    /// It stands still, with a signal that it was about to get (0: none).
    Stopped(i32),
    /// It has ended.
    Gone,
}

/// A process whose threads stand still.
struct Pause {
    threads: BTreeMap<i32, Thread>,
    since: Instant,
    /// Keeps it in the thread that traces: the requests of another one fail (ptrace(2)).
    _here: std::marker::PhantomData<*const ()>,
}

impl Pause {
    fn of(tgid: Tgid) -> Result<Self, PauseError> {
        let mut pause = Self {
            threads: BTreeMap::new(),
            since: Instant::now(),
            _here: std::marker::PhantomData,
        };
        let deadline = pause.since + MOST_WAIT;
        // A thread that still runs may make others meanwhile.
        while pause.ask_new(tgid)? {
            pause.wait(tgid, deadline)?;
        }
        let standing = |thread| matches!(thread, &Thread::Stopped(_) | &Thread::InKernel);
        if pause.threads.values().any(standing) {
            Ok(pause)
        } else {
            Err(PauseError::Gone)
        }
    }

    /// Asks every thread to stop that was not asked yet; says whether there was any.
    fn ask_new(&mut self, tgid: Tgid) -> Result<bool, PauseError> {
        let mut any = false;
        for entry in fs::read_dir(format!("/proc/{}/task", tgid.0))? {
            let name = entry?.file_name();
            let Some(tid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if self.threads.contains_key(&tid) {
                continue;
            }
            if self.threads.len() == MOST_THREADS {
                return Err(PauseError::TooManyThreads);
            }
            any = true;
            let thread = match ask(tid) {
                Ok(()) => Thread::Asked,
                Err(error) => not_asked(tgid, tid, error)?,
            };
            self.threads.insert(tid, thread);
        }
        Ok(any)
    }

    /// Waits until every thread that was asked stands still.
    fn wait(&mut self, tgid: Tgid, deadline: Instant) -> Result<(), PauseError> {
        let start = Instant::now();
        loop {
            let waiting = self.look(start.elapsed() > LOOK_AFTER, tgid)?;
            let Some(waiting) = waiting else {
                return Ok(());
            };
            if Instant::now() > deadline {
                return Err(PauseError::Slow(waiting.unsigned_abs()));
            }
            if start.elapsed() < SPIN {
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Asks the kernel which threads have stopped; says which one has not.
    fn look(&mut self, also_in_kernel: bool, tgid: Tgid) -> Result<Option<i32>, PauseError> {
        let mut waiting = None;
        for (&tid, thread) in &mut self.threads {
            if *thread != Thread::Asked {
                continue;
            }
            match stopped(tid)? {
                Some(now) => *thread = now,
                None if also_in_kernel && state(tgid, tid) == Some('D') => {
                    *thread = Thread::InKernel;
                }
                None => waiting = Some(tid),
            }
        }
        Ok(waiting)
    }

    /// Lets it go on; says for how long it stood.
    fn release(mut self) -> Duration {
        self.let_go();
        self.since.elapsed()
    }

    fn let_go(&mut self) {
        let held = |thread: &Thread| !matches!(thread, Thread::Gone);
        let deadline = Instant::now() + MOST_RELEASE;
        loop {
            for (&tid, thread) in &mut self.threads {
                if let Thread::Stopped(signal) = *thread {
                    detach(tid, signal);
                    *thread = Thread::Gone;
                }
            }
            // What is still within the kernel can be let go only once it stops. The kernel does that
            // itself when this thread ends.
            if !self.threads.values().any(held) || Instant::now() > deadline {
                return;
            }
            for (&tid, thread) in &mut self.threads {
                if held(thread) {
                    *thread = stopped(tid).ok().flatten().unwrap_or(*thread);
                }
            }
            thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// What it means that a thread could not be asked to stop.
fn not_asked(tgid: Tgid, tid: i32, error: io::Error) -> Result<Thread, PauseError> {
    if error.raw_os_error() == Some(libc::ESRCH) {
        return Ok(Thread::Gone);
    }
    // One that has ended, but was not yet waited for, cannot be traced (`ptrace_attach`).
    match state(tgid, tid) {
        None | Some('Z' | 'X') => return Ok(Thread::Gone),
        Some(_) => {}
    }
    match tracer(tgid, tid) {
        Some(tracer) => Err(PauseError::Traced(tracer)),
        None => Err(error.into()),
    }
}

/// The state of a thread by its letter (`proc_pid_stat(5)`).
fn state(tgid: Tgid, tid: i32) -> Option<char> {
    let stat = fs::read(format!("/proc/{}/task/{tid}/stat", tgid.0)).ok()?;
    // Behind the name, which may hold anything.
    let after = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(after + 2).copied().map(char::from)
}

/// Which process traces a thread.
fn tracer(tgid: Tgid, tid: i32) -> Option<u32> {
    let number = |path: String, field| {
        let status = fs::read_to_string(path).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        line.trim().parse().ok().filter(|&number| number != 0)
    };
    let thread: u32 = number(format!("/proc/{}/task/{tid}/status", tgid.0), "TracerPid:")?;
    Some(number(format!("/proc/{thread}/status"), "Tgid:").unwrap_or(thread))
}

/// Asks a thread to stop.
fn ask(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0)?;
    request(libc::PTRACE_INTERRUPT, tid, 0)
}

/// Lets a thread that stands still go on, with the signal that it was about to get. One that was
/// killed meanwhile needs no more.
fn detach(tid: i32, signal: i32) {
    let _ = request(libc::PTRACE_DETACH, tid, signal);
}

/// A request of ptrace(2) without an address.
fn request(request: libc::c_uint, tid: i32, data: i32) -> io::Result<()> {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    let data = libc::c_long::from(data);
    // SAFETY: these requests (seize, interrupt, detach) take numbers alone and touch no memory of
    // this process.
    match unsafe { libc::ptrace(request, tid, nothing, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// What has become of a thread that was asked to stop; `None` while it runs on.
fn stopped(tid: i32) -> io::Result<Option<Thread>> {
    let mut status = 0;
    // SAFETY: `status` is a place for an int, of this function alone.
    match unsafe { libc::waitpid(tid, &mut status, WAIT) } {
        0 => Ok(None),
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => Ok(Some(Thread::Gone)),
            error => Err(error),
        },
        _ if !libc::WIFSTOPPED(status) => Ok(Some(Thread::Gone)),
        // By the request, or together with its group (PTRACE_EVENT_STOP): nothing was to be
        // delivered.
        _ if status >> 16 == libc::PTRACE_EVENT_STOP => Ok(Some(Thread::Stopped(0))),
        _ => Ok(Some(Thread::Stopped(libc::WSTOPSIG(status)))),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that does nothing until it is dropped.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            let mut command = Command::new("sleep");
            Self(command.arg("1000").stdin(Stdio::null()).spawn().unwrap())
        }

        fn tgid(&self) -> Tgid {
            Tgid(self.0.id())
        }

        fn state(&self) -> Option<char> {
            state(self.tgid(), self.0.id().try_into().unwrap())
        }

        fn settles_at(&self, wanted: char) -> bool {
            (0..200).any(|_| {
                thread::sleep(Duration::from_millis(5));
                self.state() == Some(wanted)
            })
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_stands_still_while_work_is_done_and_runs_on_afterwards() {
        let sleeper = Sleeper::start();
        let (during, pause) = while_paused(sleeper.tgid(), || sleeper.state()).unwrap();
        assert_eq!(during, Some('t'));
        assert!(pause < MOST_WAIT);
        assert!(sleeper.settles_at('S'));
        assert_eq!(tracer(sleeper.tgid(), sleeper.0.id() as i32), None);
    }

    #[test]
    fn a_panic_while_it_stands_still_lets_it_go_on() {
        let sleeper = Sleeper::start();
        let panicked =
            std::panic::catch_unwind(|| while_paused(sleeper.tgid(), || panic!("in the middle")));
        assert!(panicked.is_err());
        assert!(sleeper.settles_at('S'));
    }

    #[test]
    fn a_process_that_was_stopped_by_a_signal_stays_so() {
        let sleeper = Sleeper::start();
        let pid = rustix::process::Pid::from_child(&sleeper.0);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        assert!(sleeper.settles_at('T'));
        while_paused(sleeper.tgid(), || ()).unwrap();
        assert!(sleeper.settles_at('T'));
    }

    #[test]
    fn a_signal_that_comes_while_it_stands_still_is_not_lost() {
        let mut sleeper = Sleeper::start();
        let pid = rustix::process::Pid::from_child(&sleeper.0);
        let kill = || rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        while_paused(sleeper.tgid(), kill).unwrap().0.unwrap();
        assert!(!sleeper.0.wait().unwrap().success());
    }

    #[test]
    fn a_process_that_is_traced_already_says_by_whom() {
        let sleeper = Sleeper::start();
        let inner = || while_paused(sleeper.tgid(), || ());
        let (inner, _) = while_paused(sleeper.tgid(), inner).unwrap();
        let error = inner.unwrap_err();
        assert!(matches!(error, PauseError::Traced(by) if by == std::process::id()));
        assert!(error.to_string().contains("a debugger is attached to it"));
        assert!(sleeper.settles_at('S'));
    }

    #[test]
    fn a_process_that_is_gone_is_said_to_be_gone() {
        let error = while_paused(Tgid(u32::MAX), || ()).unwrap_err();
        assert!(matches!(error, PauseError::Gone), "{error:?}");
    }
}
