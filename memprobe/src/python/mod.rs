//! CPython seen from another process: detection, threads, code objects and their lines.

pub mod cache;
pub mod calibrate;
pub mod code;
pub mod debug_offsets;
pub mod detect;
pub mod error;
#[cfg(test)]
pub(crate) mod fake;
pub mod heap;
pub mod interpreter;
pub mod layout;
pub mod line_table;
pub mod lnotab;
pub mod slot;
pub mod text;
pub mod threads;
pub mod versions;

pub use cache::{CodeCache, FoundCode, Resolved};
pub use detect::PythonProcess;
pub use error::DetectError;
