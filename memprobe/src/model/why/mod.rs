//! Why memory is there: what the program was doing when it asked for it, and what it is for.
//!
//! All of it is inferred from the stream of events, and every fact names the rule that it follows from. Where the process's
//! own objects say what a block is for, that decides, and what was inferred is held against it.

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
