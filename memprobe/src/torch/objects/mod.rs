//! Reads PyTorch's own objects from the target's memory: tensors, storages, and the autograd graph. A pointer is
//! followed only to an object of the expected C++ class, nothing here recurses, and everything is bounded.

pub mod graph;

mod autograd;
mod calibrate;
mod class;
mod deleter;
mod layout_versions;
mod layouts;
mod node;
mod saved;
mod tensor;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use crate::process::memory::Unreadable;

pub use layouts::{LayoutError, LayoutOrigin, Layouts, ObjectReader, PartSizes};
pub use tensor::{Geometry, RawTensor, TensorImplClass, TensorReferences};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOne {
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("no object of this class lies there")]
    Class,
    #[error("it stands for no tensor")]
    Undefined,
    #[error("its fields contradict one another")]
    Fields,
}
