//! CPython from outside: which one a process runs, its threads, its code objects and their lines.

pub mod cache;
pub mod calibrate;
pub mod code;
pub mod detect;
#[cfg(test)]
mod fake;
pub mod layout;
pub mod line_table;
pub mod text;
pub mod threads;

pub use cache::{CodeCache, Resolved};
pub use detect::{DetectError, PythonProcess};
