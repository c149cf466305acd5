//! Why memory is there: what the program was doing when it asked for it, and what it is for.
//!
//! All of it is inferred from the stream of events, and every fact names the rule that it follows from.

pub mod growth;
pub mod modules;
pub mod parts;
pub mod peak;
pub mod phase;
