//! The one privileged room: programs in the kernel, attached to the functions of a process.

pub mod attach;
pub mod attaching;
pub mod catalog;
mod descriptor;
pub mod files;
pub mod function;
pub mod heap;
pub mod kernel;
pub mod loader;
pub mod prologue;
pub mod ring;
pub mod watched;
