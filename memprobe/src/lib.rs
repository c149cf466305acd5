//! Library of memprobe, which attributes the GPU memory of a running PyTorch process to lines of
//! Python.
//!
//! Data flows one way. `probe` delivers records, `decode` checks them, `symbolize` turns them into
//! [`event::Event`]s, and `model` keeps the ledger. The views (`tui`, `report`, `export`) only see
//! its [`model::snapshot::Snapshot`]s. See ARCHITECTURE.md.

pub mod attribution;
pub mod cli;
pub mod commands;
pub mod cuda;
pub mod decode;
pub mod estimate;
pub mod event;
pub mod ledger;
pub mod probe;
pub mod process;
pub mod python;
pub mod recording;
pub mod report;
pub mod session;
pub mod symbolize;
pub mod tensors;
pub mod torch;
pub mod tui;
pub mod view;
