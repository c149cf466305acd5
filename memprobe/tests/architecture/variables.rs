//! Environment variables of the tests: the tasks set what the tests read. A variable that nobody sets
//! leaves out its tests in silence.

use std::collections::BTreeSet;

use super::{rust_files, text};

/// Beginnings of the variables' names.
const PREFIXES: [&str; 2] = ["MEMPROBE_TEST_", "MEMPROBE_BIN"];

/// Returns the variables that stand in a source as whole strings.
fn variables(source: &str) -> BTreeSet<String> {
    let begin = |rest: &&str| PREFIXES.iter().any(|prefix| rest.starts_with(prefix));
    let quoted = source.split_inclusive('"').skip(1).filter(begin);
    quoted
        .filter_map(|text| text.strip_suffix('"'))
        .filter(|text| text.bytes().all(|it| it.is_ascii_uppercase() || it == b'_'))
        .map(str::to_owned)
        .collect()
}

/// Returns the variables in the sources of folders, without those of unit tests.
fn variables_below(folders: &[&str]) -> BTreeSet<String> {
    let files = folders.iter().flat_map(|folder| rust_files(folder));
    files
        .filter(|file| !file.starts_with("memprobe/tests/architecture"))
        .flat_map(|file| {
            let text = text(&file);
            let production = text.split("#[cfg(test)]\nmod tests {").next();
            variables(production.unwrap_or_default())
        })
        .collect()
}

#[test]
fn each_variable_that_tests_read_is_set_by_a_task() {
    let read = variables_below(&["tests", "memprobe/tests", "memprobe/src"]);
    let set = variables_below(&["xtask/src"]);
    assert!(read.len() >= 4, "{read:?}");
    let unset: Vec<_> = read.difference(&set).collect();
    assert!(
        unset.is_empty(),
        "tests read them, no task sets them: {unset:?}"
    );
    let unread: Vec<_> = set.difference(&read).collect();
    assert!(
        unread.is_empty(),
        "tasks set them, no test reads them: {unread:?}"
    );
}

#[test]
fn variables_are_whole_strings() {
    let source = "const A: &str = \"MEMPROBE_TEST_A\";\n// \"x\"\nprint(\"MEMPROBE_TEST_B names none\");\n\
                  env(\"MEMPROBE_BIN\", \"MEMPROBE_OTHER\")";
    let found: Vec<_> = variables(source).into_iter().collect();
    assert_eq!(found, ["MEMPROBE_BIN", "MEMPROBE_TEST_A"]);
}
