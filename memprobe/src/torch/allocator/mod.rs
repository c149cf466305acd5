//! Reads the blocks that the caching allocator had handed out before attach. The process keeps running, so
//! [`tables::read`] checks each entry, and [`reconcile::Reconciler`] corrects the result by the events that arrived
//! meanwhile. It counts only if it adds up to the allocator's own total.

pub mod active;
pub mod reconcile;
pub mod segments;
pub mod tables;

mod block;
mod calibrate;
mod counters;
mod free_lists;
mod hash_table;
mod layout;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod properties;
