//! What a process says of itself.

use std::fs;
use std::io::Read as _;

use super::maps::Maps;
use super::root::Root;
use crate::event::Tgid;

/// The most that is read of a command line or of a version file.
const MOST: u64 = 64 << 10;

/// The command line, joined by spaces; empty where it cannot be read.
pub fn command_line(tgid: Tgid) -> String {
    let words =
        fs::File::open(format!("/proc/{}/cmdline", tgid.0)).map_or_else(|_| Vec::new(), read);
    let words: Vec<_> = words
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .collect();
    words.join(" ").trim_end().to_owned()
}

/// PyTorch's version, such as `2.15.0+cu132`, from the `version.py` beside its libraries. Where these
/// were deleted or replaced since they were loaded, what lies there now may speak of another.
pub fn torch_version(tgid: Tgid) -> Option<String> {
    let maps = Maps::of(tgid).ok()?;
    let library = maps.library("libc10.so").filter(|file| !file.deleted)?;
    let package = library.path.parent()?.parent()?;
    let root = Root::of(tgid).ok()?;
    let file = root.open_shown(&package.join("version.py")).ok()?;
    parse_version(&String::from_utf8_lossy(&read(file)))
}

/// The value of `__version__ = '…'`.
fn parse_version(text: &str) -> Option<String> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("__version__"))?;
    let value = line
        .trim_start()
        .strip_prefix('=')?
        .trim()
        .trim_matches(['\'', '"']);
    let plausible = value.len() < 64
        && value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._+-".contains(c));
    (plausible && !value.is_empty()).then(|| value.to_owned())
}

/// Up to [`MOST`] bytes of a file.
fn read(file: fs::File) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What was read before an error is good enough for a description.
    let _ = file.take(MOST).read_to_end(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_torch_is_read_from_its_own_file() {
        let text = "from typing import Optional\n\n__all__ = ['__version__']\n__version__ = '2.15.0+cu132'\ndebug = False\n";
        assert_eq!(parse_version(text).as_deref(), Some("2.15.0+cu132"));
    }

    #[test]
    fn a_version_that_is_no_version_is_refused() {
        assert_eq!(parse_version("__version__ = '\x1b[31m'"), None);
        assert_eq!(parse_version("__version__ = ''"), None);
        assert_eq!(parse_version("nothing"), None);
    }

    #[test]
    fn this_process_tells_its_command_line() {
        assert!(command_line(Tgid(std::process::id())).contains("memprobe"));
        assert_eq!(command_line(Tgid(0)), "");
    }
}
