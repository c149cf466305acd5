//! What Python's and PyTorch's own structures in the target's memory say, read-only.
//!
//! [`tensors::take`] takes a snapshot of every tensor with its names, while the process stands still or
//! while it runs on. The rest is about the blocks that the caching allocator had handed out before
//! memprobe attached: the process runs on while its tables are read. What is read is checked entry by entry
//! ([`allocator::read`]), set straight by the events that came meanwhile, and believed only where it
//! adds up to the allocator's own total ([`reconcile::Reconciler`]). And [`modules`] names the modules that are called.

pub mod active;
pub mod allocator;
pub mod heap;
pub mod modules;
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
