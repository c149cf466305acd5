//! Facts about a process from `/proc` and its memory. The target controls them: each read is bounded and checked.

pub mod boot;
mod build_id;
pub mod caller;
pub mod capabilities;
pub(crate) mod class_name;
pub mod container;
pub mod cpp_class;
pub mod elf;
pub mod environment;
pub mod facts;
pub mod host_memory;
pub mod launch;
pub mod maps;
pub mod memory;
pub mod namespace;
pub mod pause;
pub mod process_scan;
pub mod process_search;
pub mod rank;
pub mod root;
pub mod run_state;
mod sleeper;
pub mod status;
pub mod user;
