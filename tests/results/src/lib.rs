//! Results of memprobe in the types of its library: pages of `explain`, and the purposes of recorded blocks.
//!
//! Most programs of the suite know memprobe from outside alone. They are linked without its library, whose debug
//! information takes longer to link than all of them.

pub mod pages;
pub mod purpose_runs;
pub mod purposes;
