//! memprobe shows which line of Python holds the GPU memory of a PyTorch process that is
//! already running.
//!
//! One way through the rooms: `probe` delivers records, `decode` checks them, `symbolize` turns
//! them into [`event::Event`]s, `model` keeps the ledger, and the views (`tui`, `report`,
//! `export`) see only its [`model::snapshot::Snapshot`]s. See ARCHITECTURE.md.

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
