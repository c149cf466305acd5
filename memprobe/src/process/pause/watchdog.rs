//! Process that ends a pause if memprobe cannot: a stopped memprobe (SIGSTOP, Ctrl-Z) would keep its target stopped.
//!
//! When the time is over, it wakes memprobe (SIGCONT), which then lets the target run on, and stops it again. If that
//! does not help, it kills memprobe: the kernel resumes every thread that a killed tracer held.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, getpid, getppid, kill_process, setsid, waitpid};

/// Time for a woken memprobe to end the pause. A busy machine may not run it for seconds.
const GRACE: Duration = Duration::from_secs(5);

/// A watchdog, which goes away when this is dropped.
pub(super) struct Watchdog {
    released: OwnedFd,
    process: Pid,
}

impl Watchdog {
    /// Starts a watchdog for a pause that must end after `longest`.
    pub(super) fn start(longest: Duration) -> io::Result<Self> {
        let (ends, released) = pipe_with(PipeFlags::CLOEXEC)?;
        let memprobe = getpid();
        let stat = CString::new(format!("/proc/{}/stat", memprobe.as_raw_pid()))?;
        let deadline = Instant::now() + longest;
        // SAFETY: the child makes system calls alone until `_exit`: it allocates nothing and takes no lock, which
        // another thread may have held at the fork.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // Ctrl-Z of the terminal stops the group of memprobe.
                let _ = setsid();
                close_all_but(ends.as_fd());
                watch(ends.as_fd(), memprobe, &stat, deadline);
                // SAFETY: ends this process without running anything of the parent's.
                unsafe { libc::_exit(0) }
            }
            child => Ok(Self {
                released,
                process: Pid::from_raw(child).ok_or(io::ErrorKind::InvalidData)?,
            }),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // The watchdog of another pause may have a copy of this end: closing it would not be noticed.
        let _ = rustix::io::write(&self.released, &[0]);
        let wait = || waitpid(Some(self.process), WaitOptions::empty());
        while wait().is_err_and(|error| error == rustix::io::Errno::INTR) {}
    }
}

/// Closes all other descriptors: memprobe and its pipes must be able to end meanwhile.
fn close_all_but(open: BorrowedFd<'_>) {
    let number = open.as_raw_fd().unsigned_abs();
    for (first, last) in [(0, number.saturating_sub(1)), (number + 1, u32::MAX)] {
        // SAFETY: close_range(2) takes numbers alone; this process uses no other descriptor until its end.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

fn watch(ends: BorrowedFd<'_>, memprobe: Pid, stat: &CStr, deadline: Instant) {
    let is_there = || getppid() == Some(memprobe);
    if has_ended(ends, deadline) || !is_there() {
        return;
    }
    let was_stopped = is_stopped(stat);
    let _ = kill_process(memprobe, Signal::CONT);
    let ended = has_ended(ends, Instant::now() + GRACE);
    if !is_there() {
        return;
    }
    let _ = match (ended, was_stopped) {
        (false, _) => kill_process(memprobe, Signal::KILL),
        (true, true) => kill_process(memprobe, Signal::STOP),
        (true, false) => Ok(()),
    };
}

/// Waits until the pause or memprobe has ended; false at the deadline.
fn has_ended(ends: BorrowedFd<'_>, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut descriptors = [PollFd::new(&ends, PollFlags::IN)];
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(0) => return false,
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return true,
        }
    }
}

/// True if a signal has stopped the process of this `/proc/PID/stat`.
fn is_stopped(stat: &CStr) -> bool {
    let mut text = [0; 512];
    let Ok(file) = rustix::fs::open(stat, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let length = rustix::io::read(&file, &mut text).unwrap_or(0);
    // The state follows the name, which is in brackets and may hold any character.
    let name_ends = text[..length].iter().rposition(|&byte| byte == b')');
    name_ends.and_then(|end| text.get(end + 2)) == Some(&b'T')
}
