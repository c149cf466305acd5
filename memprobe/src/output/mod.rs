//! Files for users. memprobe often runs as root, and writes where others may write too: each output is created with
//! mode 0600 relative to an opened directory, never through a link, and given to the user who called sudo.

mod error;
mod file;
mod folder;
mod owners;
mod place;
mod plan;

pub use self::error::OutputError;
pub use self::file::{OutputFile, PartialFile};
pub use self::folder::{OutputFolder, StoredFile};
pub use self::plan::OutputPlan;
