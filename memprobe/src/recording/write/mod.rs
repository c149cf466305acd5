//! Recordings and other files for people and for other tools.

pub mod compact;
pub mod directory;
mod error;
mod fields;
pub mod json;
mod json_list;
mod slices;
pub mod sources;
mod stack_text;
pub mod tensors;
pub mod trace_event;

pub use error::WriteError;
