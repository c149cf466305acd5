//! Recordings in a directory that `record` wrote.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::write::directory::INDEX;

/// Lists the `.mprb` and `.json` files of a directory except the index, in natural order: rank 2 before rank 10.
pub fn recordings_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let ending = path.extension().unwrap_or_default();
        let is_recording = ending == "mprb" || ending == "json";
        let is_index = path.file_name().is_some_and(|name| name == INDEX);
        if is_recording && !is_index && path.is_file() {
            files.push(path);
        }
    }
    files.sort_by_cached_key(|path| {
        let name = path.file_name().unwrap_or_default();
        counting_key(&name.to_string_lossy())
    });
    Ok(files)
}

/// Splits a name into alternating text and numbers as a sort key. Each number keeps its digits, so that
/// leading zeros break ties.
fn counting_key(name: &str) -> Vec<(u128, String)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text_ends = rest.find(|c: char| c.is_ascii_digit());
        let (text, tail) = rest.split_at(text_ends.unwrap_or(rest.len()));
        let number_ends = tail.find(|c: char| !c.is_ascii_digit());
        let (number, tail) = tail.split_at(number_ends.unwrap_or(tail.len()));
        key.push((0, text.to_owned()));
        key.push((number.parse().unwrap_or(0), number.to_owned()));
        rest = tail;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_come_in_the_order_in_which_people_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = [
            "rank10-7-x.json",
            "index.json",
            "rank2-9-x.mprb",
            "notes.txt",
            "12-x.json",
            "9-x.json",
        ];
        for name in names {
            fs::write(folder.path().join(name), "").expect("written");
        }
        fs::create_dir(folder.path().join("more.json")).expect("made");
        let found = recordings_in(folder.path()).expect("read");
        let found: Vec<_> = found
            .iter()
            .filter_map(|path| path.file_name()?.to_str())
            .collect();
        assert_eq!(
            found,
            ["9-x.json", "12-x.json", "rank2-9-x.mprb", "rank10-7-x.json"]
        );
    }
}
