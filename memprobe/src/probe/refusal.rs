//! Refusals of the kernel in words: the system call's error, its meaning here, and the remedy.

use std::io;

use aya::programs::ProgramError;
use aya::{EbpfError, maps::MapError};

use rustix::io::Errno;

use super::machine::Machine;

#[derive(Clone, Debug, PartialEq, Eq, strum::Display)]
pub enum KernelRequest {
    #[strum(to_string = "make memprobe's maps")]
    Maps,
    #[strum(to_string = "make memprobe's map {0}")]
    Map(String),
    #[strum(to_string = "load memprobe's program {0}")]
    Program(String),
    #[strum(to_string = "attach a probe to {0}")]
    Probe(String),
}

#[derive(Debug, thiserror::Error)]
#[error("Linux {release} does not {asked}: {}{}.\n{}", self.meaning(), self.errno_text(), self.remedy())]
pub struct Refusal {
    pub asked: KernelRequest,
    /// Its error; `None` where it was aya that gave up.
    pub errno: Option<Errno>,
    /// Log of the verifier; empty if it was not involved. Not shown, but `doctor` can write it to a file.
    pub log: String,
    /// aya's words, for what has no errno.
    other: String,
    /// `uname -r`.
    release: String,
    /// True if memprobe runs under a filter of system calls (seccomp).
    filtered: bool,
    locked_down: bool,
}

impl Refusal {
    fn new(asked: KernelRequest, error: Option<&io::Error>, log: String, other: String) -> Self {
        let machine = Machine::read();
        Self {
            asked,
            errno: error.and_then(Errno::from_io_error),
            log,
            other,
            release: machine.release,
            filtered: machine.seccomp != 0,
            locked_down: machine.lockdown.is_some_and(|mode| mode != "none"),
        }
    }

    pub fn of_maps(error: &EbpfError) -> Self {
        let (asked, io_error) = match error {
            EbpfError::MapError(MapError::CreateError { name, io_error }) => {
                (KernelRequest::Map(name.clone()), Some(io_error))
            }
            _ => (KernelRequest::Maps, None),
        };
        Self::new(asked, io_error, String::new(), chain(error))
    }

    pub fn of_program(name: &str, error: &ProgramError) -> Self {
        let asked = KernelRequest::Program(name.to_owned());
        match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => {
                let log = verifier_log.to_string();
                Self::new(asked, Some(io_error), log, String::new())
            }
            other => Self::new(asked, errno_of(other), String::new(), chain(other)),
        }
    }

    pub fn of_probe(function: &str, error: &ProgramError) -> Self {
        let asked = KernelRequest::Probe(function.to_owned());
        Self::new(asked, errno_of(error), String::new(), chain(error))
    }

    pub fn of_link(library: &str, error: &io::Error) -> Self {
        let asked = KernelRequest::Probe(library.to_owned());
        Self::new(asked, Some(error), String::new(), error.to_string())
    }

    /// True if the verifier gave up on a program before it had followed all of it.
    pub fn is_too_long(&self) -> bool {
        matches!(self.asked, KernelRequest::Program(_)) && self.errno == Some(Errno::TOOBIG)
    }

    fn meaning(&self) -> String {
        let Some(errno) = self.errno else {
            return self.other.clone();
        };
        let is_program = matches!(self.asked, KernelRequest::Program(_));
        let is_probe = matches!(self.asked, KernelRequest::Probe(_));
        let meaning = match errno {
            Errno::PERM | Errno::ACCESS | Errno::INVAL if is_program && !self.log.is_empty() => {
                "its verifier does not accept it"
            }
            Errno::TOOBIG if is_program => "its verifier finds it too long",
            Errno::PERM | Errno::ACCESS => "it is not permitted",
            Errno::NOSYS => "this kernel has no such system call, or a filter hides it",
            Errno::NOMEM => "there is not enough memory",
            Errno::MFILE => "too many files are open",
            Errno::NOENT if is_probe => "this kernel offers no uprobes",
            Errno::INVAL | Errno::TOOBIG => "this kernel does not know it",
            _ => return errno.to_string(),
        };
        meaning.to_owned()
    }

    fn errno_text(&self) -> String {
        let name = self.errno.and_then(errno_name);
        name.map_or_else(String::new, |name| format!(" ({name})"))
    }

    fn remedy(&self) -> String {
        match self.errno {
            _ if !self.log.is_empty() => {
                "Please report it with the file that `sudo memprobe doctor --verifier-log FILE` writes.".to_owned()
            }
            Some(Errno::PERM | Errno::ACCESS | Errno::NOSYS) if self.filtered => {
                "memprobe runs under a filter of system calls, as containers do: let bpf and perf_event_open through \
                 (docker run --privileged --pid=host, or --security-opt seccomp=FILE), or run memprobe on the host."
                    .to_owned()
            }
            Some(Errno::PERM | Errno::ACCESS) if self.locked_down => {
                "The kernel is locked down (see /sys/kernel/security/lockdown): start the machine with lockdown=none."
                    .to_owned()
            }
            Some(Errno::PERM | Errno::ACCESS) => {
                "Run memprobe with sudo; if it was, a security module (SELinux, AppArmor, BPF LSM) forbids it: see \
                 `sudo dmesg`."
                    .to_owned()
            }
            Some(Errno::NOMEM) => {
                "Give memprobe more memory, or a smaller ring buffer with --buffer-size.".to_owned()
            }
            Some(Errno::MFILE) => "Raise the limit: ulimit -n 65536.".to_owned(),
            Some(Errno::NOSYS | Errno::INVAL | Errno::NOENT) => format!(
                "Use a kernel of a large distribution, Linux {} or newer, with CONFIG_BPF_SYSCALL and \
                 CONFIG_UPROBE_EVENTS.",
                super::kernel::OLDEST
            ),
            _ => "Please report it with the output of `sudo memprobe doctor`.".to_owned(),
        }
    }
}

/// The names of the errors that the two system calls give.
fn errno_name(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::PERM => "EPERM",
        Errno::ACCESS => "EACCES",
        Errno::NOSYS => "ENOSYS",
        Errno::NOMEM => "ENOMEM",
        Errno::MFILE => "EMFILE",
        Errno::NOENT => "ENOENT",
        Errno::INVAL => "EINVAL",
        Errno::TOOBIG => "E2BIG",
        Errno::BUSY => "EBUSY",
        Errno::SRCH => "ESRCH",
        _ => return None,
    })
}

/// The operating system's error within another.
fn errno_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    let mut inner = Some(error);
    while let Some(error) = inner {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return Some(found);
        }
        inner = error.source();
    }
    None
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(error) = inner {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        inner = error.source();
    }
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(asked: KernelRequest, errno: Errno) -> Refusal {
        Refusal {
            asked,
            errno: Some(errno),
            log: String::new(),
            other: String::new(),
            release: "6.1.0".to_owned(),
            filtered: false,
            locked_down: false,
        }
    }

    #[test]
    fn every_refusal_has_a_reason_and_advice() {
        let map = || KernelRequest::Map("RECORDS".to_owned());
        let program = || KernelRequest::Program("event_with_stack".to_owned());
        let probe = || KernelRequest::Probe("cudaMalloc".to_owned());
        let mut all = vec![
            refusal(map(), Errno::NOSYS),
            refusal(map(), Errno::NOMEM),
            refusal(map(), Errno::INVAL),
            refusal(program(), Errno::TOOBIG),
            refusal(program(), Errno::PERM),
            refusal(probe(), Errno::ACCESS),
            refusal(probe(), Errno::NOENT),
            refusal(probe(), Errno::MFILE),
            refusal(probe(), Errno::BUSY),
            refusal(KernelRequest::Maps, Errno::PERM),
        ];
        let of_verifier = Refusal {
            log: "0: R1=ctx\ninvalid mem access 'scalar'".to_owned(),
            ..refusal(program(), Errno::ACCESS)
        };
        let filtered = Refusal {
            filtered: true,
            ..refusal(map(), Errno::PERM)
        };
        let locked_down = Refusal {
            locked_down: true,
            ..refusal(program(), Errno::PERM)
        };
        all.extend([of_verifier, filtered, locked_down]);
        let texts: Vec<_> = all.iter().map(Refusal::to_string).collect();
        insta::assert_snapshot!(texts.join("\n\n"));
    }

    #[test]
    fn no_log_of_the_verifier_reaches_a_user() {
        let refusal = Refusal {
            log: "0: R1=ctx\ninvalid mem access 'scalar'".to_owned(),
            ..refusal(KernelRequest::Program("p".to_owned()), Errno::INVAL)
        };
        let text = refusal.to_string();
        assert!(!text.contains("R1=ctx") && text.contains("--verifier-log"));
    }

    #[test]
    fn the_error_of_the_system_call_is_found_within() {
        let inner = aya::sys::SyscallError {
            call: "perf_event_open",
            io_error: Errno::ACCESS.into(),
        };
        let refusal = Refusal::of_probe("cudaMalloc", &ProgramError::SyscallError(inner));
        assert_eq!(refusal.errno, Some(Errno::ACCESS));
    }
}
