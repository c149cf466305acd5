//! Shared helpers of the integration suite.
//!
//! Every test takes an [`environment::TestEnvironment`]: root, a memprobe, one or more PyTorches,
//! and a slot. The slots limit the load, because results of an overloaded machine prove less; they
//! hold across all test programs.

pub mod agreement;
pub mod bpf;
pub mod browser;
pub mod confinement;
pub mod consumers;
pub mod cuda_programs;
pub mod environment;
pub mod events;
pub mod fork_server;
pub mod frameworks;
pub mod gated_workload;
pub mod ledger;
pub mod memprobe;
pub mod module_agreement;
pub mod partial_recordings;
pub mod paused_workload;
pub mod process;
pub mod programs;
pub mod protobuf;
pub mod pythons;
pub mod pytorch;
pub mod queryable_target;
pub mod recorded_training;
pub mod reference;
pub mod snapshot;
pub mod tensor_agreement;
pub mod terminal;
pub mod thread_states;
pub mod workloads;
