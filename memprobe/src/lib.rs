//! memprobe shows which line of Python holds the GPU memory of a PyTorch process that is
//! already running.
//!
//! One way through the rooms: `probe` delivers records, `decode` checks them, `symbolize` turns
//! them into [`event::Event`]s, `model` keeps the ledger, and the views (`tui`, `report`,
//! `export`) see only its [`model::snapshot::Snapshot`]s. See ARCHITECTURE.md.

pub mod bytes;
pub mod event;
pub mod model;
pub mod tui;
