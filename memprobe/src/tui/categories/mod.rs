//! Screen of categories of one process: over time, now, and in the latest iterations.

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
