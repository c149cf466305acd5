//! Suggestions for arguments in the wrong place: a PID where a verb or a file belongs.

use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::subject::pid_of;

/// Returns what the user may have meant by an argument that clap refused; `None` without an idea.
pub(super) fn suggestion(error: &clap::Error) -> Option<String> {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => return None,
    };
    let Some(ContextValue::String(text)) = error.get(kind) else {
        return None;
    };
    let is_verb = kind == ContextKind::InvalidSubcommand;
    if let Some(suggestion) = process_instead(Path::new(text)) {
        return Some(suggestion);
    }
    match Path::new(text).extension()?.to_str()? {
        "py" if is_verb => Some(format!(
            "to watch the process that runs {text}: `memprobe attach {text}`; to start it: `memprobe record -o \
             trace.mprb -- python {text}`"
        )),
        "json" | "mprb" if is_verb => {
            Some(format!("to print a recording: `memprobe report {text}`"))
        }
        "py" => Some(format!(
            "a command to start comes after --, as in `memprobe record -o trace.mprb -- python {text}`"
        )),
        _ => None,
    }
}

/// Suggests verbs for an argument that is a number, and no file of this name.
pub(super) fn process_instead(path: &Path) -> Option<String> {
    let pid = pid_of(path.as_os_str()).filter(|_| !path.exists())?.0;
    Some(format!(
        "{pid} looks like a process: `memprobe attach {pid}` watches it, `memprobe snapshot {pid}` prints its tensors, \
         and `memprobe record -o trace.mprb {pid}` records it"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::Arguments;
    use super::*;
    use clap::Parser as _;

    fn suggested(words: &str) -> Option<String> {
        let words = ["memprobe"].into_iter().chain(words.split(' '));
        suggestion(&Arguments::try_parse_from(words).err().expect("an error"))
    }

    #[test]
    fn a_process_without_a_verb_suggests_verbs() {
        let suggestion = suggested("1234").expect("a suggestion");
        assert!(
            suggestion.contains("`memprobe attach 1234`"),
            "{suggestion}"
        );
        let suggestion = suggested("train.py").expect("a suggestion");
        assert!(suggestion.contains("attach train.py"), "{suggestion}");
        let suggestion = suggested("trace.mprb").expect("a suggestion");
        assert!(suggestion.contains("report trace.mprb"), "{suggestion}");
        assert_eq!(suggested("attahc"), None);
    }

    #[test]
    fn a_process_for_a_verb_without_processes_suggests_others() {
        let suggestion = suggested("top 1234").expect("a suggestion");
        assert!(suggestion.contains("attach 1234"), "{suggestion}");
        assert_eq!(suggested("top --everything"), None);
    }

    #[test]
    fn a_command_without_dashes_says_where_they_go() {
        let suggestion = suggested("record -o t.json python train.py").expect("a suggestion");
        assert!(suggestion.contains("-- python train.py"), "{suggestion}");
    }

    #[test]
    fn a_number_in_place_of_a_file_suggests_verbs() {
        assert!(process_instead(Path::new("1234")).is_some());
        assert_eq!(process_instead(Path::new("trace.mprb")), None);
    }
}
