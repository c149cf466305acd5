//! Formats of recordings that memprobe writes.

use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingFormat {
    /// Compressed frames ([`crate::recording::compact`]).
    Compact,
    /// Chrome trace events as JSON ([`crate::recording::write::trace_event`]).
    Json,
}

impl RecordingFormat {
    /// Returns the format for a file of this name: JSON if it ends so, and otherwise the compact one.
    pub fn of(path: &Path) -> Self {
        let ending = path.extension().unwrap_or_default();
        let is_json = ["json", "jsonl"]
            .iter()
            .any(|json| ending.eq_ignore_ascii_case(json));
        if is_json { Self::Json } else { Self::Compact }
    }

    /// Returns the usual ending of a file, without a dot.
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Compact => "mprb",
            Self::Json => "json",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_of_a_name_chooses_the_format() {
        for name in ["trace.json", "run/a.JSON", "a.mprb.json", "x.jsonl"] {
            assert_eq!(RecordingFormat::of(Path::new(name)), RecordingFormat::Json);
        }
        for name in [
            "trace.mprb",
            "trace",
            "-",
            "json",
            "/dev/stdout",
            "a.json.mprb",
        ] {
            assert_eq!(
                RecordingFormat::of(Path::new(name)),
                RecordingFormat::Compact
            );
        }
    }
}
