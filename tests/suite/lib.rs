//! Shared helpers of the integration suite.
//!
//! Every test takes a [`ground::Ground`]: root, a memprobe, one or more PyTorches, and a slot. The
//! slots limit the load, because results of an overloaded machine prove less; they hold across all
//! test programs.

pub mod agreement;
pub mod bpf;
pub mod confinement;
pub mod cuda_programs;
pub mod events;
pub mod excerpt;
pub mod ground;
pub mod holdings;
pub mod ledger;
pub mod memprobe;
pub mod process;
pub mod programs;
pub mod purposes;
pub mod pythons;
pub mod pytorch;
pub mod reference;
pub mod rehearsal;
pub mod snapshot;
pub mod standing;
pub mod tensor_agreement;
pub mod terminal;
pub mod workloads;
