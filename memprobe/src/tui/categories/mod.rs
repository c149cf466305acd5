//! The screen of what the memory of one process is for: over time, now, and in the last iterations.

mod graph;
mod iterations;
mod layout;
mod rows;
#[cfg(test)]
mod screens;
mod state;
mod table;
mod view;

pub(super) use state::CategoriesState;
pub(super) use view::draw;
