//! Reads Python's and PyTorch's own data structures from the target's memory, without writing to it.
//!
//! - [`tensors::take`] takes a snapshot of every tensor and its names. The process is paused or keeps
//!   running.
//! - [`allocator`] reads the blocks that the caching allocator had handed out before attach. The process
//!   keeps running, so [`allocator::read`] checks each entry and [`reconcile::Reconciler`] corrects the
//!   result by the events that arrived meanwhile. The result counts only if it adds up to the allocator's own
//!   total.
//! - [`modules`] names the modules that are being called.

pub mod active;
pub mod reconcile;

mod block;
mod calibrate;
mod counters;
mod hash_table;
mod layout;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod properties;
pub mod tables;
