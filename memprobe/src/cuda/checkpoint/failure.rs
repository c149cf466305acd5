//! Failures of a checkpoint call, in words.

use std::fmt;

use super::steps::CheckpointStep;

/// Failure of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// The driver returned this error (`CUresult`).
    Refused(i32),
    /// The driver has not returned within the limit. The call may still end.
    Late,
    /// The user did not wait for the driver.
    Abandoned,
    /// The driver reported success, and the process is in another state than it should be.
    NoEffect,
}

impl CallFailure {
    /// `CUDA_ERROR_ILLEGAL_STATE`.
    pub const ILLEGAL_STATE: Self = Self::Refused(401);

    /// True if the driver may still be at work on the process.
    pub const fn may_go_on(self) -> bool {
        matches!(self, Self::Late | Self::Abandoned)
    }

    /// Returns a sentence on a failed step, and what to do.
    pub fn reason(self, step: CheckpointStep) -> String {
        use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
        let code = match self {
            Self::Refused(code) => code,
            Self::Late | Self::Abandoned | Self::NoEffect => return self.to_string(),
        };
        let because = match (code, step) {
            (600, Lock) => {
                "its running work did not end within --lock-timeout: give more time, or try when it is idle"
            }
            (600, _) => "its work has not ended",
            (801, _) => {
                "the driver does not support it for this process: managed memory (cudaMallocManaged), memory shared \
                 with other processes (CUDA IPC, before driver 610), or a GPU or processor without checkpoints"
            }
            (800, _) => {
                "the driver does not permit it: run memprobe as root (or with CAP_SYS_PTRACE), in the PID namespace of \
                 the process or above it"
            }
            (304, Restore) => {
                "the operating system refused it. After a restore that ran out of memory some drivers always answer \
                 this: then only ending the process helps"
            }
            (304, _) => {
                "the operating system refused it: run memprobe as root, and see that persistence mode is on \
                 (`nvidia-smi -pm 1`)"
            }
            (401, _) => {
                "the process is in another state by now: another program may suspend or resume it, too"
            }
            (2, Checkpoint) => "there is not enough host memory",
            (2, Restore) => "the GPU has not enough free memory: end or suspend what took it",
            (2, Lock | Unlock) => "there is not enough memory",
            (1 | 3, _) => {
                "the driver knows no CUDA in this process: it has ended, or has not begun to use a GPU"
            }
            (100 | 101, _) => "the GPU of the process is gone, or hidden from memprobe",
            _ => "see `dmesg | grep NVRM` for the driver's own messages",
        };
        format!("CUDA error {code}{}: {because}", name(code))
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(code) => write!(out, "CUDA error {code}{}", name(*code)),
            Self::Late => out.write_str("the driver has not answered within the limit (--timeout)"),
            Self::Abandoned => out.write_str("interrupted while the driver was at work"),
            Self::NoEffect => out.write_str("the driver reported success, and nothing has changed"),
        }
    }
}

/// Returns the name of an error (cuda.h 13.5.37) in parentheses; empty for others.
fn name(code: i32) -> &'static str {
    match code {
        1 => " (invalid value)",
        2 => " (out of memory)",
        3 => " (not initialized)",
        100 => " (no device)",
        101 => " (invalid device)",
        304 => " (operating system)",
        401 => " (illegal state)",
        600 => " (not ready)",
        800 => " (not permitted)",
        801 => " (not supported)",
        909 => " (timeout)",
        999 => " (unknown)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_known_refusal_says_what_to_do() {
        use CheckpointStep::{Checkpoint, Lock, Restore};
        for (code, step, words) in [
            (600, Lock, "--lock-timeout"),
            (801, Checkpoint, "managed memory"),
            (800, Lock, "as root"),
            (304, Lock, "persistence mode"),
            (304, Restore, "only ending"),
            (2, Checkpoint, "host memory"),
            (2, Restore, "suspend what took it"),
            (401, Lock, "another program"),
            (12345, Lock, "dmesg"),
        ] {
            let text = CallFailure::Refused(code).reason(step);
            assert!(text.starts_with(&format!("CUDA error {code}")), "{text}");
            assert!(text.contains(words), "{text}");
        }
        let late = CallFailure::Late.reason(Lock);
        assert!(late.contains("--timeout"), "{late}");
    }
}
