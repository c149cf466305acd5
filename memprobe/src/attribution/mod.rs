//! Attribution: the phase that allocated each block, and the category of the block.
//!
//! All of it is inferred from the event stream, and each result names the rule behind it. A heap snapshot of
//! the process overrides the inference, and [`named::InferenceCheck`] compares the two.

pub mod allocation_groups;
pub mod allocations;
pub mod asleep;
pub mod breakdown;
mod caches;
pub mod category;
pub mod chosen_moments;
mod communicators;
mod copy_size;
mod device;
mod epochs;
pub mod failures;
mod groups;
pub mod growth;
pub(crate) mod high_water_mark;
pub mod iterations;
mod layer_history;
pub mod layers;
mod ledger;
mod lifecycle;
pub mod line_figures;
mod line_visits;
mod module_aliases;
pub mod modules;
pub mod moments;
pub mod named;
mod owner_rows;
mod pass_tail;
pub mod peak;
pub mod phase;
mod phase_tracker;
pub mod segments;
mod shapes;
pub mod size;
mod step_interval;
pub mod tables;
pub mod view;
pub mod views;
pub mod waterfall;

pub use groups::BlockGroup;
pub use high_water_mark::{PeakAnalysis, WithCategories};
pub use ledger::AttributionLedger;
pub use module_aliases::RootVariables;
pub use shapes::ShapeLedger;
pub use step_interval::IntervalDevice;

#[cfg(test)]
mod tests;
