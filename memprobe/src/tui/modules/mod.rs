//! Screens of modules and layers of one process: module trees with live memory, or with memory in an
//! iteration.

mod columns;
mod rows;
#[cfg(test)]
mod screens;
mod state;
mod subject;
mod table;
mod view;

pub(super) use state::ModulesState;
pub(super) use view::draw;
