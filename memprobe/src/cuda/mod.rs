//! CUDA's calls as data, NVML, and the GPUs behind a process's ordinals.

pub mod calls;
pub mod identity;
pub mod nvml;
