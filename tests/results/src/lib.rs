//! Results of memprobe in the types of its library: pages of `explain`, and the purposes of recorded blocks.
//!
//! Most programs of the suite know memprobe from outside alone, and are linked without its library: five sixths of each
//! program were its debug information.

pub mod pages;
pub mod purpose_runs;
pub mod purposes;
