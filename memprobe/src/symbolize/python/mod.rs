//! CPython from outside: which one a process runs, its threads, its code objects and their lines.

mod cache;
mod code;
mod detect;
mod layout;
mod line_table;
mod threads;

pub use cache::{CodeCache, Resolved};
pub use detect::{DetectError, PythonProcess, Version};
pub use layout::PythonLayout;
