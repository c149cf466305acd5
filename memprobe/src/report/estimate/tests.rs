//! What an estimate looks like.
