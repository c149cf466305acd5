//! Stops every thread of a process for a moment, and resumes it in every case.
//!
//! It uses `PTRACE_SEIZE` and `PTRACE_INTERRUPT`, which send no signal, so neither the process nor its parent notices.
//! It does not set `PTRACE_O_EXITKILL`: if the tracing thread ends for any reason, the kernel resumes every thread that
//! it traced (`exit_ptrace` in kernel/ptrace.c@v6.12; ptrace(2), "Attaching and detaching").
//!
//! A thread that sleeps in a system call which a stop would end is left asleep ([`Sleeper`]).

mod stops;
mod tracers;
mod urgency;
mod watchdog;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};

use self::tracers::once_untraced;
use self::urgency::Urgency;
use self::watchdog::Watchdog;
use super::run_state::{task_state as state, tracer};
use super::sleeper::Sleeper;
use crate::event::Tgid;

/// The longest wait for threads to stop. One takes less than 0.1 ms, unless the kernel is busy for it.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The wait after which the state of a running thread is read. A thread in uninterruptible sleep within the
/// kernel runs no user code, so it counts as stopped.
const LOOK_AFTER: Duration = Duration::from_millis(10);

/// The longest wait, at release, for threads that are still within the kernel.
const MAX_RELEASE: Duration = Duration::from_millis(100);

/// The longest wait for a sleeper to leave its system call, with [`Sleepers::Caught`].
const MAX_SLEEP: Duration = Duration::from_millis(20);

const MAX_THREADS: usize = 65_536;
const SPIN: Duration = Duration::from_micros(300);

/// Flags of `waitid` for threads of other processes (`__WALL`), without blocking.
const WAIT: WaitIdOptions =
    WaitIdOptions::NOHANG.union(WaitIdOptions::from_bits_retain(libc::__WALL as u32));

#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    #[error("it has ended.\nFind the right process with `pgrep -af python`")]
    Gone,
    #[error("it may not be stopped.\nRun memprobe with sudo")]
    Denied,
    #[error(
        "a debugger is attached to it (PID {0}), so it cannot be stopped.\nDetach the debugger, or read the process \
         while it runs with --nonblocking"
    )]
    Traced(u32),
    #[error(
        "its thread {0} did not stop within {most} ms.\nTry again, or read the process while it runs with --nonblocking",
        most = MAX_WAIT.as_millis()
    )]
    Slow(u32),
    /// The process creates threads faster than memprobe stops them, or has more than `MAX_THREADS`.
    #[error(
        "it has more threads than memprobe stops, or makes them too fast.\nTry again, or read the process while it \
         runs with --nonblocking"
    )]
    TooManyThreads,
    #[error(
        "memprobe was not ready when it had been stopped for almost {longest} s, and let it run on.\nTry again with a \
         longer --max-pause, or read the process while it runs with --nonblocking",
        longest = .0.as_secs_f64()
    )]
    TooLong(Duration),
    #[error(
        "it cannot be stopped: {0}.\nTry again, or read the process while it runs with --nonblocking"
    )]
    Os(#[source] io::Error),
}

impl From<io::Error> for PauseError {
    fn from(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::SRCH | Errno::NOENT) => Self::Gone,
            Some(Errno::PERM | Errno::ACCESS) => Self::Denied,
            _ => Self::Os(error),
        }
    }
}

pub use stops::{Stops, allow_longest, stops};

/// Treatment of threads that sleep in a system call which a stop would end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleepers {
    Left,
    /// Each is stopped once it leaves its system call, or left asleep if it does not within [`MAX_SLEEP`]. For threads
    /// that wake up so often that they rarely sleep through a pause.
    Caught,
}

/// The end of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paused<R> {
    pub result: R,
    pub duration: Duration,
    /// True if a thread that was left asleep has run meanwhile.
    pub has_run: bool,
}

/// Runs `work` while a process is paused. A separate thread holds it, because the kernel ties tracing to the tracing
/// thread: once it ends, no thread of the process stays stopped. It lets the process run on when the longest pause is
/// over, whether `work` has ended or not, and a [`Watchdog`] sees to it if memprobe itself is stopped. While another
/// program traces the process, it waits.
/// Fails with [`PauseError`]; the process then runs as before.
///
/// # Panics
/// If `work` panics, after the process was resumed.
pub fn while_paused<R>(
    tgid: Tgid,
    sleepers: Sleepers,
    work: impl FnOnce() -> R,
) -> Result<Paused<R>, PauseError> {
    let longest = stops::longest();
    let (begun, begins) = mpsc::channel();
    let (done, ends) = mpsc::channel::<()>();
    let hold_once = move || {
        // Before the fork, so that the watchdog gets a processor beside the threads that read.
        let _urgency = Urgency::begin();
        let watchdog = Watchdog::start(longest.mul_f64(WATCHED))?;
        let held = hold(tgid, sleepers, longest.mul_f64(HELD), &begun, &ends);
        drop(watchdog);
        held
    };
    let held = thread::scope(|scope| {
        let holder = scope.spawn(move || once_untraced(tgid, hold_once));
        let urgency = Urgency::begin();
        // If the process could not be stopped, nothing is sent.
        let result = begins.recv().ok().map(|()| work());
        drop(done);
        let held = holder.join();
        drop(urgency);
        let held = held.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        held.map(|held| (held, result))
    });
    let (held, result) = held?;
    match result.filter(|_| !held.is_cut) {
        Some(result) => Ok(Paused {
            result,
            duration: held.duration,
            has_run: held.has_run,
        }),
        None => Err(PauseError::TooLong(longest)),
    }
}

/// Parts of the longest pause after which the holding thread lets the process run on, and after which the watchdog
/// wakes a memprobe that was stopped.
const HELD: f64 = 0.9;
const WATCHED: f64 = 0.95;

struct Held {
    duration: Duration,
    has_run: bool,
    /// True if the work had not ended.
    is_cut: bool,
}

/// Stops a process until the sender of `ends` is dropped, or for `longest`.
fn hold(
    tgid: Tgid,
    sleepers: Sleepers,
    longest: Duration,
    begun: &Sender<()>,
    ends: &Receiver<()>,
) -> Result<Held, PauseError> {
    let mut pause = Pause::of(tgid, sleepers)?;
    // If nobody waits for it, the pause ends at once.
    let _ = begun.send(());
    let left = longest.saturating_sub(pause.since.elapsed());
    let is_cut = ends.recv_timeout(left) == Err(RecvTimeoutError::Timeout);
    let has_run = pause.has_run();
    pause.resume();
    Ok(Held {
        duration: pause.since.elapsed(),
        has_run,
        is_cut,
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Thread {
    Asked,
    /// The thread sleeps in a system call which a stop would end. It was not asked to stop.
    Asleep(Sleeper),
    /// The thread is in uninterruptible sleep and stops before it runs user code again.
    InKernel,
    /// The thread is stopped; the field is the signal to be delivered on resume (0: none).
    Stopped(i32),
    Gone,
}

struct Pause {
    tgid: Tgid,
    threads: BTreeMap<i32, Thread>,
    since: Instant,
    /// Makes the type `!Send`, because ptrace requests of any thread but the tracer fail (ptrace(2)).
    _here: std::marker::PhantomData<*const ()>,
}

impl Pause {
    fn of(tgid: Tgid, sleepers: Sleepers) -> Result<Self, PauseError> {
        let mut pause = Self {
            tgid,
            threads: BTreeMap::new(),
            since: Instant::now(),
            _here: std::marker::PhantomData,
        };
        let deadline = pause.since + MAX_WAIT;
        // A thread that still runs may create others meanwhile.
        while pause.ask_new(sleepers)? {
            pause.wait(deadline)?;
        }
        if pause.threads.values().all(|thread| *thread == Thread::Gone) {
            Err(PauseError::Gone)
        } else {
            Ok(pause)
        }
    }

    fn ask_new(&mut self, sleepers: Sleepers) -> Result<bool, PauseError> {
        let tgid = self.tgid;
        let mut any = false;
        for entry in fs::read_dir(format!("/proc/{}/task", tgid.0))? {
            let name = entry?.file_name();
            let tid = name.to_str().and_then(|name| name.parse().ok());
            let Some(tid) = tid.filter(|tid| !self.threads.contains_key(tid)) else {
                continue;
            };
            if self.threads.len() == MAX_THREADS {
                return Err(PauseError::TooManyThreads);
            }
            any = true;
            let thread = match asleep(tgid, tid, sleepers) {
                Some(sleeper) => Thread::Asleep(sleeper),
                None => match ask(tid) {
                    Ok(()) => Thread::Asked,
                    Err(error) => not_asked(tgid, tid, error)?,
                },
            };
            self.threads.insert(tid, thread);
        }
        Ok(any)
    }

    fn wait(&mut self, deadline: Instant) -> Result<(), PauseError> {
        let start = Instant::now();
        loop {
            let Some(waiting) = self.look(start.elapsed() > LOOK_AFTER)? else {
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

    fn look(&mut self, also_in_kernel: bool) -> Result<Option<i32>, PauseError> {
        let tgid = self.tgid;
        let mut waiting = None;
        for (&tid, thread) in &mut self.threads {
            if *thread != Thread::Asked {
                continue;
            }
            match stopped(tgid, tid)? {
                Some(now) => *thread = now,
                None if also_in_kernel && state(tgid, tid) == Some('D') => {
                    *thread = Thread::InKernel;
                }
                None => waiting = Some(tid),
            }
        }
        Ok(waiting)
    }

    /// Returns true if a thread that was left asleep has run since.
    fn has_run(&self) -> bool {
        let mut threads = self.threads.iter();
        threads.any(|(&tid, thread)| match thread {
            Thread::Asleep(sleeper) => !sleeper.still_sleeps(self.tgid, tid),
            _ => false,
        })
    }

    fn resume(&mut self) {
        let held = |thread: &Thread| !matches!(thread, Thread::Gone | Thread::Asleep(_));
        let deadline = Instant::now() + MAX_RELEASE;
        loop {
            for (&tid, thread) in &mut self.threads {
                if let Thread::Stopped(signal) = *thread {
                    detach(tid, signal);
                    *thread = Thread::Gone;
                }
            }
            // A thread within the kernel can be detached only once it stops, at the latest when this one ends.
            if !self.threads.values().any(held) || Instant::now() > deadline {
                return;
            }
            for (&tid, thread) in &mut self.threads {
                if held(thread)
                    && let Ok(Some(now)) = stopped(self.tgid, tid)
                {
                    *thread = now;
                }
            }
            thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.resume();
        stops::add(self.since.elapsed());
    }
}

/// Returns the sleeper if a thread is to be left asleep.
fn asleep(tgid: Tgid, tid: i32, sleepers: Sleepers) -> Option<Sleeper> {
    let start = Instant::now();
    loop {
        let sleeper = Sleeper::of(tgid, tid)?;
        if sleepers == Sleepers::Left || start.elapsed() > MAX_SLEEP {
            return Some(sleeper);
        }
        thread::yield_now();
    }
}

fn not_asked(tgid: Tgid, tid: i32, error: io::Error) -> Result<Thread, PauseError> {
    if Errno::from_io_error(&error) == Some(Errno::SRCH) {
        return Ok(Thread::Gone);
    }
    // A zombie cannot be traced (`ptrace_attach`).
    if matches!(state(tgid, tid), None | Some('Z' | 'X')) {
        return Ok(Thread::Gone);
    }
    let traced = || tracer(tgid, tid).map(|tracer| PauseError::Traced(tracer.0));
    if let Some(traced) = traced() {
        return Err(traced);
    }
    // Its tracer may have gone since.
    match ask(tid) {
        Ok(()) => Ok(Thread::Asked),
        Err(_) => Err(traced().unwrap_or_else(|| error.into())),
    }
}

fn ask(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0)?;
    request(libc::PTRACE_INTERRUPT, tid, 0)
}

/// Resumes a stopped thread and delivers its signal. A thread that was killed meanwhile is no error.
fn detach(tid: i32, signal: i32) {
    let _ = request(libc::PTRACE_DETACH, tid, signal);
}

/// Sends a ptrace(2) request without an address.
fn request(request: libc::c_uint, tid: i32, data: i32) -> io::Result<()> {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    let data = libc::c_long::from(data);
    // SAFETY: these requests (seize, interrupt, detach) take only numbers and touch no memory of this process.
    match unsafe { libc::ptrace(request, tid, nothing, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Polls a thread that was asked to stop; `None` while it runs.
///
/// The exit status of the process itself stays: its parent asks for it, which memprobe is for a command that it started.
/// Another parent gets it when the tracing thread ends (`exit_ptrace`, kernel/ptrace.c@v6.12).
fn stopped(tgid: Tgid, tid: i32) -> io::Result<Option<Thread>> {
    let is_leader = u32::try_from(tid) == Ok(tgid.0);
    let taken = match is_leader {
        true => WaitIdOptions::STOPPED,
        false => WaitIdOptions::STOPPED | WaitIdOptions::EXITED,
    };
    let mut change = wait_for(tid, taken);
    if is_leader && matches!(change, Ok(None)) {
        // Not taken: it may have stopped since, and is asked again then.
        let ended = wait_for(tid, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        change = ended.map(|how| how.filter(|how| !how.trapped()));
    }
    let change = match change {
        Ok(None) => return Ok(None),
        Ok(Some(change)) => change,
        Err(Errno::CHILD) => return Ok(Some(Thread::Gone)),
        Err(error) => return Err(error.into()),
    };
    // The signal, and above it the event (`wait_task_stopped`, kernel/exit.c@v6.12).
    Ok(Some(match change.trapping_signal() {
        None => Thread::Gone,
        // Stopped by the request or together with its group: there is no signal to deliver.
        Some(code) if code >> 8 == libc::PTRACE_EVENT_STOP => Thread::Stopped(0),
        Some(code) => Thread::Stopped(code & 0xff),
    }))
}

fn wait_for(tid: i32, changes: WaitIdOptions) -> Result<Option<WaitIdStatus>, Errno> {
    let tid = Pid::from_raw(tid).ok_or(Errno::CHILD)?;
    waitid(WaitId::Pid(tid), WAIT | changes)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that sleeps until it is dropped.
    struct Sleeping(Child);

    impl Sleeping {
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

    impl Drop for Sleeping {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn paused<R>(sleeper: &Sleeping, work: impl FnOnce() -> R) -> Paused<R> {
        while_paused(sleeper.tgid(), Sleepers::Left, work).unwrap()
    }

    #[test]
    fn a_process_stands_still_while_work_is_done_and_runs_on_afterwards() {
        let sleeper = Sleeping::start();
        let Paused {
            result: during,
            duration: pause,
            ..
        } = paused(&sleeper, || sleeper.state());
        assert_eq!(during, Some('t'));
        assert!(pause < MAX_WAIT);
        assert!(sleeper.settles_at('S'));
        assert_eq!(tracer(sleeper.tgid(), sleeper.0.id() as i32), None);
    }

    #[test]
    fn a_panic_while_it_stands_still_lets_it_go_on() {
        let sleeper = Sleeping::start();
        let panicked = std::panic::catch_unwind(|| paused(&sleeper, || panic!("in the middle")));
        assert!(panicked.is_err());
        assert!(sleeper.settles_at('S'));
    }

    #[test]
    fn a_process_that_was_stopped_by_a_signal_stays_so() {
        let sleeper = Sleeping::start();
        let pid = rustix::process::Pid::from_child(&sleeper.0);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        assert!(sleeper.settles_at('T'));
        paused(&sleeper, || ());
        assert!(sleeper.settles_at('T'));
    }

    #[test]
    fn a_signal_that_comes_while_it_stands_still_is_not_lost() {
        let mut sleeper = Sleeping::start();
        let pid = rustix::process::Pid::from_child(&sleeper.0);
        let kill = || rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        paused(&sleeper, kill).result.unwrap();
        assert!(!sleeper.0.wait().unwrap().success());
    }

    /// Kills a traced process, and returns what the tracing thread takes its end for.
    fn ends_while_traced(tgid: Tgid) -> Option<Thread> {
        let tid = tgid.0.try_into().unwrap();
        request(libc::PTRACE_SEIZE, tid, 0).unwrap();
        let pid = Pid::from_raw(tid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        while state(tgid, tid) != Some('Z') {
            thread::yield_now();
        }
        stopped(tgid, tid).unwrap()
    }

    #[test]
    fn the_end_of_a_process_that_memprobe_started_is_left_to_who_waits_for_it() {
        let mut sleeper = Sleeping::start();
        assert_eq!(ends_while_traced(sleeper.tgid()), Some(Thread::Gone));
        assert_eq!(sleeper.0.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn the_end_of_another_process_reaches_its_parent() {
        let mut parent = Command::new("sh");
        parent.args(["-c", "sleep 1000 & echo $!; wait $!"]);
        let mut parent = parent.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(parent.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let tgid = Tgid(line.trim().parse().unwrap());
        let ends = thread::spawn(move || ends_while_traced(tgid));
        assert_eq!(ends.join().unwrap(), Some(Thread::Gone));
        assert_eq!(parent.wait().unwrap().code(), Some(128 + libc::SIGKILL));
    }

    #[test]
    fn a_process_that_another_program_keeps_traced_says_by_whom() {
        let sleeper = Sleeping::start();
        let error = while_traced(&sleeper, |_release| {
            while_paused(sleeper.tgid(), Sleepers::Left, || ()).unwrap_err()
        });
        assert!(matches!(error, PauseError::Traced(by) if by == std::process::id()));
        assert!(error.to_string().contains("a debugger is attached to it"));
        assert!(sleeper.settles_at('S'));
    }

    #[test]
    fn a_process_that_another_program_traces_for_a_moment_is_stopped_after_it() {
        let sleeper = Sleeping::start();
        let state = while_traced(&sleeper, |release| {
            let releases = thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                drop(release);
            });
            let state = paused(&sleeper, || sleeper.state()).result;
            releases.join().unwrap();
            state
        });
        assert_eq!(state, Some('t'));
        assert!(sleeper.settles_at('S'));
    }

    /// Does `work` while a thread traces the process: until `work` has ended or has dropped the sender.
    fn while_traced<R>(sleeper: &Sleeping, work: impl FnOnce(Sender<()>) -> R) -> R {
        let (release, released) = mpsc::channel::<()>();
        let tid = sleeper.0.id().try_into().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                ask(tid).unwrap();
                let _ = released.recv();
            });
            assert!(sleeper.settles_at('t'));
            work(release)
        })
    }

    #[test]
    fn work_that_takes_too_long_does_not_keep_the_process_stopped() {
        let sleeper = Sleeping::start();
        let before = stops();
        let start = Instant::now();
        let mut released = None;
        let work = || {
            thread::sleep(Duration::from_millis(800));
            assert_eq!(sleeper.state(), Some('t'));
            assert!(sleeper.settles_at('S'));
            released = Some(start.elapsed());
        };
        let error = while_paused(sleeper.tgid(), Sleepers::Left, work).unwrap_err();
        assert!(matches!(error, PauseError::TooLong(_)), "{error:?}");
        assert!(error.to_string().contains("--max-pause"), "{error}");
        assert!(released.unwrap() < Duration::from_secs(2), "{released:?}");
        let sum = stops().total - before.total;
        assert!(sum >= Duration::from_millis(800), "{sum:?}");
    }

    #[test]
    fn a_process_that_is_gone_is_said_to_be_gone() {
        let error = while_paused(Tgid(u32::MAX), Sleepers::Left, || ()).unwrap_err();
        assert!(matches!(error, PauseError::Gone), "{error:?}");
    }
}
