//! Files that a package of memprobe installs beside the program: manual pages, completions, and a unit for systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process;
use crate::repository::Repository;

/// Completions below the prefix, by shell: where bash-completion, zsh and fish search in packages.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/memprobe"),
    ("zsh", "share/zsh/site-functions/_memprobe"),
    ("fish", "share/fish/vendor_completions.d/memprobe.fish"),
];

const PAGES: &str = "share/man/man1";

/// Unit of systemd below the prefix, for `memprobe watch`.
const UNIT: &str = "lib/systemd/system/memprobe-watch.service";

/// Prefix of the program in [`UNIT_TEXT`].
const UNIT_PREFIX: &str = "@PREFIX@";

const UNIT_TEXT: &str = include_str!("package_files/memprobe-watch.service");

/// Builds memprobe, and writes its files below `prefix`.
pub fn write(repository: &Repository, prefix: &Path) -> Result<()> {
    let memprobe = built(repository)?;
    let print = |words: &[&str]| process::answer(Command::new(&memprobe).args(words));
    for (shell, path) in COMPLETIONS {
        save(&prefix.join(path), &print(&["completions", shell])?)?;
    }
    let page = print(&["man"])?;
    let verbs = verbs(&page);
    ensure!(!verbs.is_empty(), "the page of memprobe names no verbs");
    for verb in &verbs {
        let page = print(&["man", verb])?;
        save(
            &prefix.join(PAGES).join(format!("memprobe-{verb}.1")),
            &page,
        )?;
    }
    save(&prefix.join(PAGES).join("memprobe.1"), &page)?;
    save(&prefix.join(UNIT), &unit(prefix))
}

/// Returns the unit, with the absolute path of the program.
fn unit(prefix: &Path) -> String {
    let absolute = std::path::absolute(prefix).unwrap_or_else(|_| prefix.to_owned());
    UNIT_TEXT.replace(UNIT_PREFIX, &absolute.display().to_string())
}

fn built(repository: &Repository) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(repository.root());
    process::run(build.args(["build", "--quiet", "--package", "memprobe"]))?;
    Ok(repository.target().join("debug/memprobe"))
}

/// Returns the verbs that the page of memprobe refers to, as `memprobe\\-attach(1)`.
fn verbs(page: &str) -> Vec<String> {
    let named = page.lines().filter_map(|line| {
        let verb = line.strip_prefix("memprobe\\-")?.strip_suffix("(1)")?;
        Some(verb.replace('\\', ""))
    });
    named.filter(|verb| verb != "help").collect()
}

fn save(path: &Path, content: &str) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    let write = || {
        fs::create_dir_all(folder)?;
        fs::write(path, format!("{}\n", content.trim_end()))
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_starts_the_program_of_its_prefix() {
        let unit = unit(Path::new("/opt/memprobe"));
        assert!(unit.contains("\nExecStart=/opt/memprobe/bin/memprobe watch --all "));
        assert!(!unit.contains('@'), "{unit}");
    }

    #[test]
    fn verbs_are_those_that_the_page_refers_to() {
        let page =
            ".SH SUBCOMMANDS\n.TP\nmemprobe\\-attach(1)\nOpen\n.TP\nmemprobe\\-help(1)\nPrint\n";
        assert_eq!(verbs(page), ["attach"]);
    }
}
