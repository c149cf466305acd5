//! Threads that sleep in a system call which a stop would end.
//!
//! The kernel continues most calls after a stop. Those listed here return `EINTR` instead, which the program would
//! not have seen otherwise (signal(7), "Interruption of system calls and library functions by stop signals").
//! So such a thread is left asleep, and checked afterwards: one that has not run has changed nothing.

use std::fs;

use super::status::Status;
use crate::event::Tgid;

/// `io_pgetevents`, which libc does not name.
const IO_PGETEVENTS: libc::c_long = 333;

/// Calls that return `EINTR` after a stop, by their number on x86-64. Calls on sockets do so if the socket has a
/// timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`), those of drivers (`ioctl`) if the driver wants it.
const NOT_CONTINUED: [libc::c_long; 25] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_ioctl,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_io_getevents,
    IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
];

/// A thread asleep in such a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sleeper {
    /// Times that it went to sleep.
    switches: u64,
}

impl Sleeper {
    /// Returns the sleeper if the thread is one now.
    pub(super) fn of(tgid: Tgid, tid: i32) -> Option<Self> {
        is_in_such_a_call(tgid, tid).then_some(())?;
        // After the call: if the thread has gone to sleep again meanwhile, that counts.
        let status = Status::read(format!("/proc/{}/task/{tid}/status", tgid.0)).ok()?;
        let switches = status.voluntary_switches?;
        Some(Self { switches })
    }

    /// Returns true if the thread has slept all the time.
    pub(super) fn still_sleeps(&self, tgid: Tgid, tid: i32) -> bool {
        Self::of(tgid, tid).as_ref() == Some(self)
    }
}

fn is_in_such_a_call(tgid: Tgid, tid: i32) -> bool {
    // The number of the call, its arguments, stack pointer and program counter; or `running` (proc_pid_syscall(5)).
    let text = fs::read_to_string(format!("/proc/{}/task/{tid}/syscall", tgid.0));
    let number = text
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok());
    number.is_some_and(|number| NOT_CONTINUED.contains(&number))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_reads_sleeps_until_it_is_written_to() {
        let (mut ours, mut its) = UnixStream::pair().unwrap();
        let (sender, receiver) = mpsc::channel();
        let reader = thread::spawn(move || {
            // SAFETY: returns a number.
            sender.send(unsafe { libc::gettid() }).unwrap();
            let mut byte = [0];
            while std::io::Read::read(&mut its, &mut byte).unwrap() == 1 {}
        });
        let (tgid, tid) = (Tgid(std::process::id()), receiver.recv().unwrap());
        let asleep = || {
            (0..200).find_map(|_| {
                thread::sleep(Duration::from_millis(5));
                Sleeper::of(tgid, tid)
            })
        };
        let sleeper = asleep().expect("it reads");
        assert!(sleeper.still_sleeps(tgid, tid));
        std::io::Write::write_all(&mut ours, &[1]).unwrap();
        let again = asleep().expect("it reads again");
        assert!(!sleeper.still_sleeps(tgid, tid));
        assert!(again.still_sleeps(tgid, tid));
        drop(ours);
        reader.join().unwrap();
        assert_eq!(Sleeper::of(tgid, tid), None);
    }
}
