//! The screens of the modules of one process: a tree by the components of their paths, and what each holds, or held in an iteration.

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
