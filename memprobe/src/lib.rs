//! Library of memprobe, which attributes the GPU memory of a running PyTorch process to lines of
//! Python.
//!
//! Data flows one way. `probe` delivers records, `decode` checks them, `symbolize` turns them into
//! [`event::Event`]s, `ledger` keeps live blocks, and `attribution` explains them. The views (`tui`,
//! `report`) see snapshots and tables. See ARCHITECTURE.md.

pub mod attribution;
pub mod cli;
pub mod commands;
pub mod compare;
pub mod cuda;
pub mod decode;
pub mod estimate;
pub mod event;
pub mod export;
pub mod html;
pub mod ledger;
pub mod output;
pub mod probe;
pub mod process;
pub mod python;
pub mod recording;
pub mod replay;
pub mod report;
pub mod session;
pub mod symbolize;
pub mod tensors;
pub mod torch;
pub mod tui;
pub mod view;
