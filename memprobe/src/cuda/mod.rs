//! CUDA's calls as data, NVML, the driver's checkpoint calls, and the GPUs behind a process's ordinals.

pub mod calls;
pub mod checkpoint;
pub mod identity;
pub mod libraries;
pub mod nvml;
