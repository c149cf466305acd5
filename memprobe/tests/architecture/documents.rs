//! Checks the documents: links, the guide's table of contents, paths of sources, the README's length.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{files_below, repository, rust_files, text};

/// Lines of the README that people read to the end.
const MAX_README_LINES: usize = 200;

/// Folders that begin the path of a source.
const SOURCES: [&str; 5] = [
    "memprobe",
    "memprobe-common",
    "memprobe-ebpf",
    "tests",
    "xtask",
];

const SUMMARY: &str = "docs/guide/src/SUMMARY.md";

/// Every document that people write, by its path from the repository's root.
fn documents() -> Vec<PathBuf> {
    let root = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(PathBuf::from);
    let pages = files_below("docs", "md");
    root.into_iter().chain(pages).collect()
}

/// Targets of the links in a document that lead to files, with their anchors.
fn links(document: &str) -> Vec<&str> {
    let after = document.split("](").skip(1);
    let targets = after.filter_map(|after| after.split_once(')'));
    let targets = targets.map(|(target, _)| target);
    targets.filter(|target| !target.contains("://")).collect()
}

/// Anchors of a document's headings, as GitHub and mdBook name them.
fn anchors(document: &str) -> BTreeSet<String> {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    let named = headings.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let in_anchor =
            |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
        title
            .chars()
            .filter(in_anchor)
            .collect::<String>()
            .replace(' ', "-")
    });
    named.collect()
}

/// True if a link of the document at `from` leads nowhere.
fn is_broken(from: &Path, link: &str) -> bool {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = from.parent().expect("a document lies in a folder");
    let target = match file {
        "" => repository().join(from),
        file => repository().join(folder).join(file),
    };
    !target.exists() || !anchor.is_empty() && !anchors(&text(&target)).contains(anchor)
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for document in documents() {
        let content = text(&document);
        let links = links(&content).into_iter();
        let links = links.filter(|link| is_broken(&document, link));
        broken.extend(links.map(|link| format!("{}: {link}", document.display())));
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn the_summary_names_every_page_of_the_guide() {
    let summary = text(Path::new(SUMMARY));
    let named: BTreeSet<_> = links(&summary).into_iter().map(str::to_owned).collect();
    let pages = files_below("docs/guide/src", "md").into_iter();
    let pages = pages.filter_map(|page| Some(page.file_name()?.to_str()?.to_owned()));
    let pages: BTreeSet<_> = pages.filter(|page| page != "SUMMARY.md").collect();
    assert_eq!(named, pages);
}

#[test]
fn sources_named_in_the_documents_exist() {
    let mut missing = Vec::new();
    for document in documents() {
        for (number, line) in text(&document).lines().enumerate() {
            let paths = line.split('`').skip(1).step_by(2);
            let paths = paths.filter(|path| !path.contains([' ', '*', '{']));
            let mut paths = paths.filter(|path| {
                path.split_once('/')
                    .is_some_and(|(first, _)| SOURCES.contains(&first))
            });
            if let Some(path) = paths.find(|path| !repository().join(path).exists()) {
                missing.push(format!("{}:{}: {path}", document.display(), number + 1));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "no such source:\n{}",
        missing.join("\n")
    );
}

/// Names of the tests in the tables of the threat model: all in backticks in the last column of a row with a test.
fn tests_of_attacks(page: &str) -> Vec<&str> {
    let mut is_of_tests = false;
    let mut names = Vec::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match (line.starts_with('|'), cells.last()) {
            (true, Some(&"test")) => is_of_tests = true,
            (true, Some(last)) if is_of_tests => names.extend(last.split('`').skip(1).step_by(2)),
            _ => is_of_tests = false,
        }
    }
    names
}

#[test]
fn each_attack_of_the_threat_model_has_tests_that_exist() {
    let page = text(Path::new("docs/guide/src/threat-model.md"));
    let named = tests_of_attacks(&page);
    let folders = ["memprobe", "tests", "fuzz/tests"];
    let files = folders.iter().flat_map(|folder| rust_files(folder));
    let sources: String = files.map(|file| text(&file)).collect();
    let is_missing = |name: &&&str| !sources.contains(&format!("fn {name}("));
    let missing: Vec<_> = named.iter().filter(is_missing).collect();
    assert!(named.len() > 20, "{named:?}");
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

#[test]
fn tests_of_attacks_stand_in_the_last_column() {
    let page = "| attack | promise | test |\n|---|---|---|\n| `a` | `b` | `c`, `d` |\n\n| x | needed |\n|---|---|\n| `e` | `f` |";
    assert_eq!(tests_of_attacks(page), ["c", "d"]);
}

#[test]
fn the_readme_is_short() {
    let lines = text(Path::new("README.md")).lines().count();
    assert!(lines <= MAX_README_LINES, "README.md has {lines} lines");
}

#[test]
fn a_link_is_broken_without_its_file_or_heading() {
    let page = Path::new("docs/guide/src/record.md");
    let content = "[a](report.md) [b](#names) [c](https://example.org/)";
    assert_eq!(links(content), ["report.md", "#names"]);
    for whole in [
        "report.md",
        "#names",
        "../../categories.md",
        "../../drivers.md",
    ] {
        assert!(!is_broken(page, whole), "{whole}");
    }
    for broken in ["none.md", "#none", "report.md#none"] {
        assert!(is_broken(page, broken), "{broken}");
    }
}
