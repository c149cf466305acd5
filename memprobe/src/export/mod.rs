//! Recordings and other files that outlive memprobe, for people and for other tools.

pub mod json;
pub mod output;
pub mod stack_text;
pub mod trace_event;
