//! CUDA's calls and the pools over them as data, NVML, the driver's checkpoint calls, and the GPUs behind a process's ordinals.

pub mod calls;
pub mod checkpoint;
pub mod identity;
pub mod libraries;
pub mod nvml;
pub mod pools;
