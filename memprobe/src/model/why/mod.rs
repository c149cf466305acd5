//! Attribution: the phase that allocated each block, and the category of the block.
//!
//! All of it is inferred from the event stream, and each result names the rule behind it. A heap snapshot of
//! the process overrides the inference, and [`named::Check`] compares the two.

pub mod category;
mod course;
mod device;
mod epochs;
mod fate;
pub mod growth;
pub mod iterations;
mod laps;
pub mod layers;
mod ledger;
pub mod modules;
pub mod moments;
pub mod named;
pub mod parts;
pub mod peak;
pub mod phase;
mod roots;
pub mod rows;
pub mod size;
mod strata;
pub mod told;
pub mod view;

pub use laps::LapDevice;
pub use ledger::WhyLedger;

#[cfg(test)]
mod tests;
