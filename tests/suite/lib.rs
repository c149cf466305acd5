//! Shared pieces of the integration suite.
