//! Shared pieces of the integration suite.

pub mod pytorch;
pub mod reference;
