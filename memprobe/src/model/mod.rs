//! The ledger: what is live, where it was allocated, and whether that agrees with the allocator.
//!
//! Pure: no clock, no I/O. Time comes with the events.

pub mod snapshot;
