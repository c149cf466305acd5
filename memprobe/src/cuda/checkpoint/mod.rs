//! The driver's checkpoint calls (driver 570 and newer): suspend the CUDA part of another process, and resume it.
//!
//! `library` calls libcuda, `steps` has the order of the calls and the way back from each failure, `failure` the words.

mod failure;
mod library;
mod steps;

pub use failure::CallFailure;
pub use library::{CheckpointLibrary, LibraryError};
pub use steps::{
    CheckpointCalls, CheckpointStep, Resumed, StateAfter, StepFailure, Suspended, resume, suspend,
};

/// State of a process as `cuCheckpointProcessGetState` gives it (`CUprocessState`, cuda.h 13.5.37).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointState {
    Running,
    /// Its calls of CUDA wait.
    Locked,
    /// Its device memory is in host memory, and it holds no GPU.
    Checkpointed,
    /// An error that the driver cannot correct.
    Failed,
    /// A driver is moving its memory to the host (only in newer headers: 13.4 on).
    Checkpointing,
    /// A driver is moving its memory back (13.4 on).
    Restoring,
    /// A state that no known header has.
    Other(u32),
}

impl CheckpointState {
    const fn of_number(number: u32) -> Self {
        match number {
            0 => Self::Running,
            1 => Self::Locked,
            2 => Self::Checkpointed,
            3 => Self::Failed,
            4 => Self::Checkpointing,
            5 => Self::Restoring,
            other => Self::Other(other),
        }
    }
}
