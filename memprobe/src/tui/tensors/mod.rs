//! The screen of the tensors of one process. Each taking of them pauses the process for a moment, so
//! it is done on entering and when asked for, and what it cost is said.

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
pub(super) use state::{Asked, TensorsState};
pub(super) use view::draw;

use crate::model::tensors::TensorTable;

/// How far the caller has come with [`super::Command::TakeTensors`].
#[derive(Clone, Debug, Default)]
pub enum Tensors {
    /// Nobody has asked.
    #[default]
    Unasked,
    /// The process is being read.
    Taking,
    /// It was read.
    Taken(Arc<TensorTable>),
    /// It could not be read: why, and what to do.
    Failed(Arc<str>),
}

impl Tensors {
    /// Whether nothing has come since `other`.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unasked, Self::Unasked) | (Self::Taking, Self::Taking) => true,
            (Self::Taken(one), Self::Taken(other)) => Arc::ptr_eq(one, other),
            (Self::Failed(one), Self::Failed(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}
