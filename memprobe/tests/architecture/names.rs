//! Names of public types, each unique in memprobe.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Returns the names of several types, each with its files.
pub fn of_several_types(
    sources: impl Iterator<Item = (PathBuf, String)>,
) -> BTreeMap<String, Vec<PathBuf>> {
    let mut files: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (file, text) in sources {
        let production = text.split("#[cfg(test)]\nmod tests {").next();
        for line in production.unwrap_or_default().lines() {
            if let Some(name) = public_type(line) {
                files.entry(name.to_owned()).or_default().push(file.clone());
            }
        }
    }
    files.retain(|_, files| files.len() > 1);
    files
}

/// Returns the name of the type that a line declares for other modules.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')')?.1,
        None => rest,
    };
    let (kind, name) = rest.strip_prefix(' ')?.split_once(' ')?;
    let is_type = matches!(kind, "struct" | "enum" | "trait" | "type" | "union");
    let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    is_type.then(|| &name[..end.unwrap_or(name.len())])
}

#[test]
fn types_of_other_modules_are_found() {
    let types = [
        ("pub struct Row<K> {", Some("Row")),
        ("    pub(super) type Key = u64;", Some("Key")),
        ("pub(in crate::report) enum By {", Some("By")),
        ("struct Row {", None),
        ("pub fn row() {", None),
        ("    type Key = u64;", None),
    ];
    for (line, name) in types {
        assert_eq!(public_type(line), name, "{line}");
    }
    let source = |name: &str, text: &str| (Path::new(name).to_owned(), text.to_owned());
    let sources = [
        source("a.rs", "pub struct One;\npub struct Two;\n"),
        source(
            "b.rs",
            "pub enum Two {}\n#[cfg(test)]\nmod tests {\n    pub struct One;\n}\n",
        ),
    ];
    let names: Vec<_> = of_several_types(sources.into_iter()).into_keys().collect();
    assert_eq!(names, ["Two"]);
}
