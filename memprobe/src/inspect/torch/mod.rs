//! PyTorch's own objects in the target's memory: tensors, storages, and the graph that autograd keeps
//! for the backward pass.
//!
//! Whatever is read is proved by its class: a pointer that does not lead to an object of
//! the class that belongs there is not followed. Nothing here recurses on what the target says, and
//! everything has a bound.

pub mod graph;

mod autograd;
mod bytes;
mod calibrate;
mod class;
mod deleter;
mod era;
mod layouts;
mod node;
mod saved;
mod storage;
mod tensor;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::target::memory::Unreadable;

pub use layouts::{Layouts, Origin, Why};
pub use storage::RawStorage;
pub use tensor::{Class, Geometry, RawTensor};

/// Why there is no such object at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOne {
    /// It could not be read.
    Unreadable(Unreadable),
    /// An object of another class lies there, or none.
    Class,
    /// It is what stands for no tensor.
    Undefined,
    /// Its fields contradict one another.
    Fields,
}

impl From<Unreadable> for NotOne {
    fn from(why: Unreadable) -> Self {
        Self::Unreadable(why)
    }
}

impl fmt::Display for NotOne {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) => why.fmt(f),
            Self::Class => f.write_str("no object of this class lies there"),
            Self::Undefined => f.write_str("it stands for no tensor"),
            Self::Fields => f.write_str("its fields contradict one another"),
        }
    }
}

impl std::error::Error for NotOne {}
