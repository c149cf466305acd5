//! What PyTorch's own structures in the target's memory say, read-only: the blocks that its caching
//! allocator had handed out before memprobe attached.
//!
//! The process runs on while its tables are read. What is read is checked entry by entry
//! ([`allocator::read`]), set straight by the events that came meanwhile, and believed only where it
//! adds up to the allocator's own total ([`reconcile::Reconciler`]).

pub mod active;
pub mod allocator;
pub mod heap;
pub mod reconcile;
pub mod tensors;
pub mod torch;

mod block;
mod calibrate;
mod counters;
mod hash_table;
mod layout;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod properties;
