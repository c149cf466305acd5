//! PyTorch seen from another process: allocator tables, tensors, autograd.

pub mod allocator;
pub mod device_properties;
pub mod module_calls;
pub mod module_trees;
pub mod names;
pub mod node_name;
pub mod objects;
pub mod process_groups;
pub(crate) mod purpose;
pub mod serving;
pub mod tensors;
pub(crate) mod versions;

/// The first item of an iterator, or `None` if there is not exactly one.
fn only<T>(mut things: impl Iterator<Item = T>) -> Option<T> {
    let first = things.next()?;
    things.next().is_none().then_some(first)
}
