//! Library of memprobe, which attributes the GPU memory of a running PyTorch process to lines of
//! Python.
//!
//! Data flows one way. `probe` delivers records, `decode` checks them, `symbolize` turns them into
//! [`event::Event`]s, and `model` keeps the ledger. The views (`tui`, `report`, `export`) only see
//! its [`model::snapshot::Snapshot`]s. See ARCHITECTURE.md.

pub mod bytes;
pub mod cli;
pub mod cuda;
pub mod decode;
pub mod driver;
pub mod event;
pub mod export;
pub mod inspect;
pub mod label;
pub mod model;
pub mod pipeline;
pub mod probe;
pub mod recording;
pub mod report;
pub mod symbolize;
pub mod target;
pub mod tensors;
pub mod tui;
pub mod view;
