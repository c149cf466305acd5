//! Reads PyTorch's own objects from the target's memory: tensors, storages, and the autograd graph.
//!
//! Every object is verified by its C++ class: a pointer is followed only if it leads to an object of the
//! expected class. Nothing here recurses on the target's data, and everything is bounded.

pub mod graph;

mod autograd;
mod bytes;
mod calibrate;
mod class;
mod deleter;
mod layout_versions;
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

use crate::process::memory::Unreadable;

pub use layouts::{LayoutError, Layouts, Origin};
pub use storage::RawStorage;
pub use tensor::{Class, Geometry, RawTensor};

/// Reasons why no valid object lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOne {
    Unreadable(Unreadable),
    /// No object of the expected class lies there.
    Class,
    /// An `UndefinedTensorImpl`, which stands for no tensor.
    Undefined,
    /// Its fields contradict one another.
    Fields,
}

impl From<Unreadable> for NotOne {
    fn from(error: Unreadable) -> Self {
        Self::Unreadable(error)
    }
}

impl fmt::Display for NotOne {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::Class => f.write_str("no object of this class lies there"),
            Self::Undefined => f.write_str("it stands for no tensor"),
            Self::Fields => f.write_str("its fields contradict one another"),
        }
    }
}

impl std::error::Error for NotOne {}
