//! The one privileged room: programs in the kernel, attached to the functions of a process.

pub mod attach;
pub mod attaching;
mod bpf_calls;
mod call_site;
pub mod catalog;
pub mod diagnostics;
pub mod files;
pub mod finding;
pub mod heap;
pub mod kernel;
mod kernel_types;
pub mod loader;
pub mod machine;
mod multi;
mod open_loops;
pub mod overhead;
pub mod patch;
mod positions;
pub mod preflight;
mod programs;
pub mod prologue;
pub mod refusal;
pub mod ring;
pub mod tracepoint;
pub mod watched;
