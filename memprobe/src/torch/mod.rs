//! PyTorch seen from another process: allocator tables, tensors, autograd.

pub mod allocator;
pub mod node_name;
pub mod objects;
pub mod tensors;
mod versions;
