//! Files that the screen saves, as the status line shows them.

use std::sync::Arc;

use crate::event::Bytes;
use crate::event::bytes::human;
use crate::view::clean;

/// Answer to [`super::Command::SaveRecording`] and [`super::Command::SaveTensors`].
#[derive(Clone, Debug, Default)]
pub enum Saving {
    /// Nothing to say, also of an earlier answer.
    #[default]
    Nothing,
    /// A recording goes on.
    Recording { file: Arc<str>, bytes: Bytes },
    /// A file is complete; its name, and what can be done with it.
    Done(Arc<str>),
    /// The reason why nothing was saved.
    Failed(Arc<str>),
}

impl Saving {
    /// Returns what the status line says all the time.
    pub(super) fn fact(&self) -> Option<String> {
        match self {
            Self::Recording { file, bytes } => {
                let (file, bytes) = (clean(file), human(*bytes));
                Some(format!("saving to {file}, {bytes} (w ends)"))
            }
            Self::Nothing | Self::Done(_) | Self::Failed(_) => None,
        }
    }

    /// Returns what the status line says once, after an earlier state.
    pub(super) fn note(&self, before: &Self) -> Option<String> {
        match self {
            Self::Done(note) | Self::Failed(note) if !self.is(before) => Some(clean(note)),
            _ => None,
        }
    }

    /// True for the same answer. The same words may be another answer, to another key.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) => true,
            (Self::Done(one), Self::Done(other)) | (Self::Failed(one), Self::Failed(other)) => {
                Arc::ptr_eq(one, other)
            }
            (
                Self::Recording { file, bytes },
                Self::Recording {
                    file: other,
                    bytes: more,
                },
            ) => file == other && bytes == more,
            _ => false,
        }
    }
}
