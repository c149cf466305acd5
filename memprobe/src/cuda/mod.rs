//! CUDA's calls as data, and NVML.

pub mod calls;
pub mod nvml;
