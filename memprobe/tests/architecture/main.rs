//! Checks the sources against ARCHITECTURE.md (paths each module may use, files with `unsafe`, length of
//! files, list of modules), and the documents against the sources.

mod documents;
mod modules;
mod names;
mod source;
mod variables;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use modules::{
    MAX_LINES, MODULES, Module, PURE_FILES, STDERR, STDERR_FILES, STDERR_MACROS, STDOUT,
    STDOUT_FILES, STDOUT_MACROS, UNFINISHED, UNSAFE_FILES, impurities,
};
use source::{Finding, Source, TEST_FILES};

fn repository() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package
        .parent()
        .expect("memprobe lies in a workspace")
        .to_path_buf()
}

/// Returns the Rust files below `folder`, as paths from the repository root.
fn rust_files(folder: &str) -> Vec<PathBuf> {
    files_below(folder, "rs")
}

/// Returns the files below `folder` with the extension `wanted`, as paths from the repository root.
fn files_below(folder: &str, wanted: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(repository().join(&folder)).expect("a folder of sources") {
            let entry = entry.expect("an entry");
            let path = folder.join(entry.file_name());
            if repository().join(&path).is_dir() {
                // Skip cargo's memprobe-ebpf/target.
                if !path.ends_with("target") {
                    folders.push(path);
                }
            } else if path
                .extension()
                .is_some_and(|extension| extension == wanted)
            {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn every_file() -> Vec<PathBuf> {
    [
        "memprobe",
        "memprobe-common",
        "memprobe-ebpf",
        "tests",
        "xtask",
    ]
    .into_iter()
    .flat_map(rust_files)
    .collect()
}

fn text(file: &Path) -> String {
    fs::read_to_string(repository().join(file)).expect("a readable source")
}

/// Returns a file as the first test that asked for it parsed it: several ask for every file.
fn parsed(file: &Path) -> &'static Source {
    static FILES: Mutex<BTreeMap<PathBuf, &OnceLock<Source>>> = Mutex::new(BTreeMap::new());
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let new = || -> &OnceLock<Source> { Box::leak(Box::default()) };
    let source = *files.entry(file.to_owned()).or_insert_with(new);
    drop(files);
    source.get_or_init(|| {
        // Outside memprobe/src a file counts as a module of its own.
        let name = file.file_name().expect("a file").as_ref();
        let within = file.strip_prefix("memprobe/src").unwrap_or(name);
        let source = Source::parse(within, &text(file));
        source.unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    })
}

/// Returns the modules on disk: the folders below `memprobe/src`, and files as a name with extension.
fn modules_on_disk() -> BTreeSet<String> {
    let entries = fs::read_dir(repository().join("memprobe/src")).expect("the sources");
    entries
        .map(|entry| {
            let entry = entry.expect("an entry");
            entry.file_name().to_string_lossy().into_owned()
        })
        .filter(|name| name != "lib.rs" && name != "main.rs")
        .collect()
}

/// Returns the first cells of the table under the heading "Modules of the library".
fn modules_of_the_map(map: &str) -> BTreeSet<String> {
    map.lines()
        .skip_while(|line| *line != "## Modules of the library")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("| `")?.split_once("/`"))
        .map(|(module, _)| module.to_owned())
        .collect()
}

fn shown(file: &Path, findings: &[Finding]) -> Vec<String> {
    findings
        .iter()
        .map(|finding| format!("{}:{}: {}", file.display(), finding.line, finding.name))
        .collect()
}

#[test]
fn a_module_uses_only_allowed_paths() {
    let mut violations = Vec::new();
    for file in rust_files("memprobe/src") {
        let within = file
            .strip_prefix("memprobe/src")
            .expect("below memprobe/src");
        if let Some(module) = MODULES.iter().find(|module| module.holds(within)) {
            violations.extend(shown(&file, &module.violations(parsed(&file))));
        }
    }
    assert!(
        violations.is_empty(),
        "names that their module must not touch:\n{}",
        violations.join("\n")
    );
}

#[test]
fn a_module_uses_only_modules_above_it() {
    for (at, module) in MODULES.iter().enumerate() {
        for path in module.uses {
            let module_used = path.split("::").next();
            let is_above = MODULES[..at]
                .iter()
                .any(|above| Some(above.name) == module_used);
            assert!(
                is_above,
                "{} may not use {path}, which is not above it",
                module.name
            );
        }
    }
}

#[test]
fn pure_files_use_no_system() {
    for file in PURE_FILES {
        let file = Path::new("memprobe/src").join(file);
        let found = shown(&file, &impurities(parsed(&file)));
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

#[test]
fn every_module_has_its_rules() {
    let ruled: BTreeSet<_> = MODULES
        .iter()
        .map(|module| module.name.to_owned())
        .collect();
    assert_eq!(ruled, modules_on_disk());
}

#[test]
fn no_two_public_types_have_the_same_name() {
    let is_test = |file: &PathBuf| {
        let stem = file.file_stem().and_then(|stem| stem.to_str());
        stem.is_some_and(|stem| TEST_FILES.contains(&stem))
    };
    let files = rust_files("memprobe/src").into_iter();
    let sources = files.filter(|file| !is_test(file)).map(|file| {
        let text = text(&file);
        (file, text)
    });
    let names = names::of_several_types(sources);
    assert!(names.is_empty(), "names of several types: {names:#?}");
}

#[test]
fn the_map_names_exactly_the_existing_modules() {
    let map = text(Path::new("ARCHITECTURE.md"));
    assert_eq!(modules_of_the_map(&map), modules_on_disk());
}

#[test]
fn the_shared_crates_of_the_kernel_side_need_no_std() {
    for file in rust_files("memprobe-common/src") {
        let used: Vec<_> = parsed(&file).names_matching(&["std", "alloc"]);
        assert!(used.is_empty(), "{}", shown(&file, &used).join("\n"));
    }
    for root in ["memprobe-common/src/lib.rs", "memprobe-ebpf/src/main.rs"] {
        assert!(
            text(Path::new(root)).contains("#![no_std]"),
            "{root} is not no_std"
        );
    }
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let mut found = Vec::new();
    for file in rust_files("memprobe/src")
        .into_iter()
        .chain(rust_files("xtask"))
    {
        let allowed = UNSAFE_FILES.iter().any(|allowed| file.ends_with(allowed));
        if !allowed {
            found.extend(shown(&file, &parsed(&file).unsafe_code()));
        }
    }
    assert!(
        found.is_empty(),
        "unsafe outside of its files:\n{}",
        found.join("\n")
    );
}

#[test]
fn no_file_allowed_unsafe_code_lacks_it() {
    for allowed in UNSAFE_FILES {
        let file = Path::new("memprobe/src").join(allowed);
        assert!(
            repository().join(&file).is_file() && !parsed(&file).unsafe_code().is_empty(),
            "{allowed} has no unsafe code: take it off the list"
        );
    }
}

#[test]
fn standard_streams_are_written_where_names_of_a_target_are_cleaned() {
    let mut found = Vec::new();
    for file in rust_files("memprobe/src") {
        for (files, names, macros) in [
            (STDERR_FILES, STDERR, STDERR_MACROS),
            (STDOUT_FILES, STDOUT, STDOUT_MACROS),
        ] {
            if !files.iter().any(|allowed| file.ends_with(allowed)) {
                let source = parsed(&file);
                found.extend(shown(&file, &source.names_matching(names)));
                found.extend(shown(&file, &source.macros_named(macros)));
            }
        }
    }
    assert!(
        found.is_empty(),
        "standard error or output without cleaning:\n{}",
        found.join("\n")
    );
}

#[test]
fn nothing_is_left_to_be_written() {
    let mut left = Vec::new();
    for file in every_file() {
        left.extend(shown(&file, &parsed(&file).macros_named(UNFINISHED)));
    }
    assert!(left.is_empty(), "unfinished code:\n{}", left.join("\n"));
}

#[test]
fn no_file_is_too_long_to_read() {
    let long: Vec<_> = every_file()
        .into_iter()
        .map(|file| (text(&file).lines().count(), file))
        .filter(|(lines, _)| *lines > MAX_LINES)
        .collect();
    assert!(long.is_empty(), "more than {MAX_LINES} lines: {long:?}");
}

#[test]
fn files_counted_as_tests_are_compiled_for_tests_alone() {
    for file in rust_files("memprobe/src") {
        let stem = file
            .file_stem()
            .and_then(|stem| stem.to_str())
            .expect("a name");
        if !TEST_FILES.contains(&stem) {
            continue;
        }
        let folder = file.parent().expect("a folder");
        let parents = [folder.join("mod.rs"), folder.with_extension("rs")];
        let parent = parents
            .iter()
            .find(|parent| repository().join(parent).is_file());
        let parent = text(parent.unwrap_or_else(|| panic!("{} has no parent", file.display())));
        let declared = parent
            .lines()
            .zip(parent.lines().skip(1))
            .any(|(attribute, module)| {
                attribute == "#[cfg(test)]" && module.ends_with(&format!("mod {stem};"))
            });
        assert!(
            declared,
            "{} is not declared under #[cfg(test)]",
            file.display()
        );
    }
}

#[test]
fn the_modules_are_read_from_the_table_of_the_map_alone() {
    let map = "# memprobe\n| `none/` | x |\n## Modules of the library\n| module |\n|---|\n| `ledger/` | `std` |\n\
               | `event/` | |\n## Invariants\n| `later/` | |\n";
    let modules: Vec<_> = modules_of_the_map(map).into_iter().collect();
    assert_eq!(modules, ["event", "ledger"]);
}

#[test]
fn a_module_covers_its_folder() {
    let folder = Module {
        name: "ledger",
        uses: &[],
        never: &[],
    };
    assert!(folder.holds(Path::new("ledger/blocks.rs")));
    assert!(!folder.holds(Path::new("ledgers/blocks.rs")));
}

#[test]
fn paths_that_a_module_may_not_use_are_found() {
    let module = Module {
        name: "tui",
        uses: &["ledger::snapshot"],
        never: &[&["std::fs"]],
    };
    let code =
        "use std::fs::File;\nuse crate::ledger::{snapshot::Snapshot, blocks};\nuse super::rows;\n";
    let source = Source::parse(Path::new("tui/view.rs"), code).unwrap();
    let names: Vec<_> = module
        .violations(&source)
        .into_iter()
        .map(|found| found.name)
        .collect();
    assert_eq!(names, ["crate::ledger::blocks", "std::fs::File"]);
}
