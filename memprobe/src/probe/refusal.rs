//! Refusals of the kernel in words: the system call's error, its meaning here, and the remedy.

use std::fmt;
use std::io;

use aya::programs::ProgramError;
use aya::{EbpfError, maps::MapError};

use super::machine::Machine;

/// Request that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelRequest {
    /// To make a map, by its name.
    Map(String),
    /// To load a program, by its name.
    Program(String),
    /// To attach a program to a function.
    Probe(String),
}

/// The kernel's refusal.
#[derive(Debug)]
pub struct Refusal {
    pub asked: KernelRequest,
    /// Its error; `None` where it was aya that gave up.
    pub errno: Option<i32>,
    /// Log of the verifier; empty if it was not involved. Not shown, but `doctor` can write it to a
    /// file.
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
            errno: error.and_then(io::Error::raw_os_error),
            log,
            other,
            release: machine.release,
            filtered: machine.seccomp != 0,
            locked_down: machine.lockdown.is_some_and(|mode| mode != "none"),
        }
    }

    /// Refusal to load the maps.
    pub fn of_maps(error: &EbpfError) -> Self {
        let (name, io_error) = match error {
            EbpfError::MapError(MapError::CreateError { name, io_error }) => {
                (name.clone(), Some(io_error))
            }
            _ => (String::new(), None),
        };
        Self::new(
            KernelRequest::Map(name),
            io_error,
            String::new(),
            chain(error),
        )
    }

    /// Refusal to load a program.
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

    /// Refusal to attach a probe to a function.
    pub fn of_probe(function: &str, error: &ProgramError) -> Self {
        let asked = KernelRequest::Probe(function.to_owned());
        Self::new(asked, errno_of(error), String::new(), chain(error))
    }

    /// True if the verifier gave up on a program before it had followed all of it.
    pub fn is_too_long(&self) -> bool {
        matches!(self.asked, KernelRequest::Program(_)) && self.errno == Some(libc::E2BIG)
    }

    /// Meaning of the errno for the request.
    fn meaning(&self) -> String {
        let Some(errno) = self.errno else {
            return self.other.clone();
        };
        let is_program = matches!(self.asked, KernelRequest::Program(_));
        let is_probe = matches!(self.asked, KernelRequest::Probe(_));
        match errno {
            libc::EPERM | libc::EACCES if is_program && !self.log.is_empty() => {
                "its verifier does not accept it".to_owned()
            }
            libc::EINVAL if is_program && !self.log.is_empty() => {
                "its verifier does not accept it".to_owned()
            }
            libc::E2BIG if is_program => "its verifier finds it too long".to_owned(),
            libc::EPERM | libc::EACCES => "it is not permitted".to_owned(),
            libc::ENOSYS => "this kernel has no such system call, or a filter hides it".to_owned(),
            libc::ENOMEM => "there is not enough memory".to_owned(),
            libc::EMFILE => "too many files are open".to_owned(),
            libc::ENOENT if is_probe => "this kernel offers no uprobes".to_owned(),
            libc::EINVAL | libc::E2BIG => "this kernel does not know it".to_owned(),
            _ => io::Error::from_raw_os_error(errno).to_string(),
        }
    }

    fn remedy(&self) -> String {
        match self.errno {
            _ if !self.log.is_empty() => {
                "Please report it with the file that `sudo memprobe doctor --verifier-log FILE` writes.".to_owned()
            }
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) if self.filtered => {
                "memprobe runs under a filter of system calls, as containers do: let bpf and perf_event_open through \
                 (docker run --privileged --pid=host, or --security-opt seccomp=FILE), or run memprobe on the host."
                    .to_owned()
            }
            Some(libc::EPERM | libc::EACCES) if self.locked_down => {
                "The kernel is locked down (see /sys/kernel/security/lockdown): start the machine with lockdown=none."
                    .to_owned()
            }
            Some(libc::EPERM | libc::EACCES) => {
                "Run memprobe with sudo; if it was, a security module (SELinux, AppArmor, BPF LSM) forbids it: see \
                 `sudo dmesg`."
                    .to_owned()
            }
            Some(libc::ENOMEM) => {
                "Give memprobe more memory, or a smaller ring buffer with --buffer-size.".to_owned()
            }
            Some(libc::EMFILE) => "Raise the limit: ulimit -n 65536.".to_owned(),
            Some(libc::ENOSYS | libc::EINVAL | libc::ENOENT) => format!(
                "Use a kernel of a large distribution, Linux {} or newer, with CONFIG_BPF_SYSCALL and \
                 CONFIG_UPROBE_EVENTS.",
                super::kernel::OLDEST
            ),
            _ => "Please report it with the output of `sudo memprobe doctor`.".to_owned(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linux {} ", self.release)?;
        match &self.asked {
            KernelRequest::Map(name) if name.is_empty() => {
                f.write_str("does not make memprobe's maps")?
            }
            KernelRequest::Map(name) => write!(f, "does not make memprobe's map {name}")?,
            KernelRequest::Program(name) => write!(f, "does not load memprobe's program {name}")?,
            KernelRequest::Probe(function) => write!(f, "does not attach a probe to {function}")?,
        }
        write!(f, ": {}", self.meaning())?;
        if let Some(name) = self.errno.and_then(errno_name) {
            write!(f, " ({name})")?;
        }
        write!(f, ".\n{}", self.remedy())
    }
}

impl std::error::Error for Refusal {}

/// The names of the errors that the two system calls give.
fn errno_name(errno: i32) -> Option<&'static str> {
    Some(match errno {
        libc::EPERM => "EPERM",
        libc::EACCES => "EACCES",
        libc::ENOSYS => "ENOSYS",
        libc::ENOMEM => "ENOMEM",
        libc::EMFILE => "EMFILE",
        libc::ENOENT => "ENOENT",
        libc::EINVAL => "EINVAL",
        libc::E2BIG => "E2BIG",
        libc::EBUSY => "EBUSY",
        libc::ESRCH => "ESRCH",
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

/// An error with its causes, on one line.
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

    fn refusal(asked: KernelRequest, errno: i32) -> Refusal {
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
        let program = || KernelRequest::Program("report_memory_usage".to_owned());
        let probe = || KernelRequest::Probe("cudaMalloc".to_owned());
        let mut all = vec![
            refusal(map(), libc::ENOSYS),
            refusal(map(), libc::ENOMEM),
            refusal(map(), libc::EINVAL),
            refusal(program(), libc::E2BIG),
            refusal(program(), libc::EPERM),
            refusal(probe(), libc::EACCES),
            refusal(probe(), libc::ENOENT),
            refusal(probe(), libc::EMFILE),
            refusal(probe(), libc::EBUSY),
            refusal(KernelRequest::Map(String::new()), libc::EPERM),
        ];
        let of_verifier = Refusal {
            log: "0: R1=ctx\ninvalid mem access 'scalar'".to_owned(),
            ..refusal(program(), libc::EACCES)
        };
        let filtered = Refusal {
            filtered: true,
            ..refusal(map(), libc::EPERM)
        };
        let locked_down = Refusal {
            locked_down: true,
            ..refusal(program(), libc::EPERM)
        };
        all.extend([of_verifier, filtered, locked_down]);
        let texts: Vec<_> = all.iter().map(Refusal::to_string).collect();
        insta::assert_snapshot!(texts.join("\n\n"));
    }

    #[test]
    fn no_log_of_the_verifier_reaches_a_user() {
        let refusal = Refusal {
            log: "0: R1=ctx\ninvalid mem access 'scalar'".to_owned(),
            ..refusal(KernelRequest::Program("p".to_owned()), libc::EINVAL)
        };
        let text = refusal.to_string();
        assert!(!text.contains("R1=ctx") && text.contains("--verifier-log"));
    }

    #[test]
    fn the_error_of_the_system_call_is_found_within() {
        let inner = aya::sys::SyscallError {
            call: "perf_event_open",
            io_error: io::Error::from_raw_os_error(libc::EACCES),
        };
        let refusal = Refusal::of_probe("cudaMalloc", &ProgramError::SyscallError(inner));
        assert_eq!(refusal.errno, Some(libc::EACCES));
    }
}
