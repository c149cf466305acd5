//! The user's editor on a line of the target's source.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};

use crate::event::Tgid;
use crate::process::caller::SudoCaller;
use crate::process::launch::become_as;
use crate::process::root::ProcessRoot;

/// Hidden verb by which memprobe starts the editor. memprobe itself has given up the rights to become another user; a
/// new program of root has them.
pub const VERB: &str = "run-as-caller";

/// Editors to try without `VISUAL` and `EDITOR`: Debian's choice of the machine, then the usual ones.
const USUAL: [&str; 4] = ["editor", "vi", "vim", "nano"];
/// Editors that take the line as `+LINE`, by the beginning of their names.
const PLUS_LINE: [&str; 9] = [
    "vi", "nvim", "nano", "emacs", "ed", "joe", "jed", "kak", "micro",
];
/// Editors that take `FILE:LINE`.
const COLON_LINE: [&str; 4] = ["hx", "helix", "subl", "zed"];

/// True while an editor has the terminal: Ctrl-C in it is not meant for memprobe.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

pub(super) fn is_open() -> bool {
    IS_OPEN.load(Ordering::SeqCst)
}

/// Opens a line in the editor, and waits for its end. Returns the reason if that is impossible.
pub(super) fn open(tgid: Tgid, file: &str, line: u32) -> Result<(), String> {
    check_file(tgid, Path::new(file))?;
    let words = words(|name| std::env::var_os(name), is_there, file, line)?;
    let name = words[0].to_string_lossy().into_owned();
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).arg("--").args(&words);
    IS_OPEN.store(true, Ordering::SeqCst);
    let status = command.status();
    IS_OPEN.store(false, Ordering::SeqCst);
    let status = status.map_err(|error| format!("{name}: {error}"))?;
    failure(status).map_or(Ok(()), |failure| Err(format!("{name} {failure}")))
}

fn failure(status: ExitStatus) -> Option<String> {
    if let Some(signal) = status.signal() {
        return Some(format!("was ended by signal {signal}"));
    }
    let code = status.code().filter(|code| *code != 0)?;
    Some(format!(
        "ended with status {code}: set EDITOR, and keep it through sudo with --preserve-env=EDITOR"
    ))
}

/// Checks that a file of the target is the one of this name here, and a file that an editor can open.
fn check_file(tgid: Tgid, path: &Path) -> Result<(), String> {
    if !path.is_absolute() {
        let shown = path.display();
        return Err(format!("{shown} is no file"));
    }
    let root = ProcessRoot::of(tgid).map_err(|error| error.to_string())?;
    let own = root.open(path).and_then(|file| file.metadata());
    let own = own.map_err(|error| format!("{}: {error}", path.display()))?;
    let here = std::fs::metadata(path);
    let is_same = here.is_ok_and(|here| (here.dev(), here.ino()) == (own.dev(), own.ino()));
    if !own.is_file() {
        return Err(format!("{} is no ordinary file", path.display()));
    }
    if !is_same {
        let shown = path.display();
        return Err(format!(
            "{shown} is another file outside of the container of the process: open it there"
        ));
    }
    Ok(())
}

/// True if a program of this name is in a directory of `PATH`.
fn is_there(name: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(name).is_file())
}

/// Returns the words that start the editor: those of `VISUAL` or `EDITOR`, and the file with its line as this editor takes
/// it.
fn words(
    variable: impl Fn(&str) -> Option<OsString>,
    is_there: impl Fn(&str) -> bool,
    file: &str,
    line: u32,
) -> Result<Vec<OsString>, String> {
    let named = ["VISUAL", "EDITOR"].iter().find_map(|name| variable(name));
    let named = named.map(|words| words.to_string_lossy().into_owned());
    let named = named.filter(|words| !words.trim().is_empty());
    let usual = || USUAL.iter().find(|name| is_there(name));
    let Some(editor) = named.or_else(|| usual().map(|name| (*name).to_owned())) else {
        return Err("no editor: set EDITOR, and keep it through sudo with \
             --preserve-env=EDITOR"
            .to_owned());
    };
    let mut words: Vec<OsString> = editor.split_whitespace().map(OsString::from).collect();
    let program = Path::new(&words[0]).file_name().unwrap_or_default();
    let program = program.to_string_lossy().into_owned();
    let is_vs_code = program.starts_with("code") || program == "codium";
    if is_vs_code {
        words.push("--goto".into());
    }
    if is_vs_code || COLON_LINE.contains(&program.as_str()) {
        words.push(format!("{file}:{line}").into());
    } else {
        if PLUS_LINE.iter().any(|name| program.starts_with(name)) {
            words.push(format!("+{line}").into());
        }
        words.push(file.into());
    }
    Ok(words)
}

/// Becomes a command as the user who called sudo; returns only if that fails.
pub fn run_as_caller(words: &[OsString]) -> Result<ExitCode> {
    let (program, arguments) = words.split_first().context("no command was given")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let error = become_as(&mut command, SudoCaller::of_sudo()?.as_ref());
    Err(error).with_context(|| format!("starting {}", program.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(editor: Option<&str>, there: &[&str]) -> Result<String, String> {
        let variable = |name: &str| editor.filter(|_| name == "EDITOR").map(OsString::from);
        let words = words(variable, |name| there.contains(&name), "/a/train.py", 12)?;
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        Ok(words.join(" "))
    }

    #[test]
    fn each_editor_gets_the_line_as_it_takes_it() {
        for (editor, words) in [
            ("vim", "vim +12 /a/train.py"),
            ("/usr/bin/nano -l", "/usr/bin/nano -l +12 /a/train.py"),
            ("code --wait", "code --wait --goto /a/train.py:12"),
            ("hx", "hx /a/train.py:12"),
            ("gedit", "gedit /a/train.py"),
        ] {
            assert_eq!(started(Some(editor), &[]).as_deref(), Ok(words));
        }
    }

    #[test]
    fn without_a_variable_the_usual_editor_of_the_machine_opens() {
        assert_eq!(
            started(None, &["nano", "vi"]).as_deref(),
            Ok("vi +12 /a/train.py")
        );
        assert_eq!(
            started(Some(" "), &["nano"]).as_deref(),
            Ok("nano +12 /a/train.py")
        );
        let error = started(None, &[]).unwrap_err();
        assert!(error.contains("set EDITOR"), "{error}");
    }

    #[test]
    fn only_files_that_are_the_same_here_are_opened() {
        let own = Tgid(std::process::id());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.py");
        std::fs::write(&path, "import torch\n").unwrap();
        assert_eq!(check_file(own, &path), Ok(()));
        for wrong in [Path::new("<string>"), Path::new("-c"), folder.path()] {
            assert!(check_file(own, wrong).is_err(), "{}", wrong.display());
        }
    }
}
