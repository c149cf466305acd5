//! Recordings at any moment: a ledger with analyses that goes to the state after any event, forward and back.
//!
//! Opening reads the recording once, and keeps states on the way ([`Player`]). To go to a moment, the nearest state
//! before it is replayed up to there: at most one group of the recording. A ledger without analyses begins at keyframes
//! instead ([`Player::from_keyframes`]): the recording's curve has what is shown of all time.

mod checkpoints;
mod keyframes;
mod overview;
mod player;
#[cfg(test)]
mod tests;

pub use overview::{Overview, PeakMoment};
pub use player::{Player, ReplayProgress};
