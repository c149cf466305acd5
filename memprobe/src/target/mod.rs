//! Facts about a process, from `/proc` and its own memory. Everything read here is the target's
//! word: bounded and checked.

mod build_id;
pub mod census;
pub mod container;
pub mod elf;
pub mod facts;
pub mod maps;
pub mod memory;
pub mod namespace;
pub mod pause;
pub mod rank;
pub mod root;
pub mod status;
pub mod user;
