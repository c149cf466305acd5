//! PyTorch seen from another process: allocator tables, tensors, autograd.

pub mod allocator;
pub mod module_calls;
pub mod module_trees;
pub mod names;
pub mod node_name;
pub mod objects;
pub(crate) mod purpose;
pub mod tensors;
mod versions;
