//! Screen of the tensors of one process. Reading pauses the process briefly, so it happens only on entry and
//! on request. The screen shows the length of the pause.

mod account;
mod columns;
mod detail;
mod input;
pub(super) mod layout;
#[cfg(test)]
mod screens;
mod state;
mod table;
mod view;

use std::sync::Arc;

pub(super) use input::wanted;
pub(super) use state::{TensorsRequest, TensorsState};
pub(super) use view::draw;

use crate::tensors::TensorTable;

/// Progress of [`super::Command::TakeTensors`].
#[derive(Clone, Debug, Default)]
pub enum Tensors {
    /// Not requested yet.
    #[default]
    Unasked,
    /// The process is being read.
    Taking,
    /// Result of the latest reading.
    Taken(Arc<TensorTable>),
    /// The reading failed: reason and remedy.
    Failed(Arc<str>),
}

impl Tensors {
    /// Returns true if both are the same answer.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unasked, Self::Unasked) | (Self::Taking, Self::Taking) => true,
            (Self::Taken(one), Self::Taken(other)) => Arc::ptr_eq(one, other),
            (Self::Failed(one), Self::Failed(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}
