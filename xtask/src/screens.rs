//! `cargo xtask screens`: pictures of all screens with sample data, and screens in the documents, captured from memprobe
//! while it watches the training script of the demo.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::matrix;
use crate::process;
use crate::pytorch::{self, Gpus, Request};
use crate::repository::Repository;
use crate::requirements;

/// Program of the tests' package that prints a screen.
const PROGRAM: &str = "memprobe-screen";

/// Documents with a screen, and the verb that shows it.
const SCREENS: [(&str, &str); 2] = [("README.md", "attach"), ("docs/guide/src/top.md", "top")];

/// The repository's folder in a captured screen.
const SHORTENED: &str = "…/memprobe/";

/// Test that compares the pictures with the screens, and the variable with which it writes them.
const PICTURES: (&str, &str) = ("tui::pictures::", "MEMPROBE_TEST_WRITE_PICTURES");

/// Draws every screen with sample data, and writes the pictures to docs/guide/src/screens.
pub fn write_pictures(repository: &Repository) -> Result<()> {
    let (test, variable) = PICTURES;
    let status = Command::new("cargo")
        .args(["test", "--package", "memprobe", "--lib", "--", test])
        .current_dir(repository.root())
        .env(variable, "1")
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("the pictures could not be drawn ({status})");
    }
    println!("docs/guide/src/screens: look at what has changed before you commit it");
    Ok(())
}

/// Writes the pictures; captures every screen and writes it into its document.
pub fn run(repository: &Repository) -> Result<()> {
    if !process::is_root() {
        bail!(
            "memprobe attaches probes, which needs root: run this with sudo -E, or with --pictures"
        );
    }
    write_pictures(repository)?;
    let mut request = Request::new(requirements::installed_python(), pytorch::DEFAULT_TORCH);
    request.gpus = Gpus::Simulated;
    let environment = pytorch::set_up(&request)?;
    matrix::build(repository, PROGRAM)?;
    for (document, verb) in SCREENS {
        let output = Command::new(repository.target().join("debug").join(PROGRAM))
            .arg(verb)
            .stderr(Stdio::inherit())
            .env("MEMPROBE_BIN", repository.built_memprobe())
            .env("MEMPROBE_TEST_PYTHON", &environment.python)
            .output()
            .context("cannot start the program of the screens")?;
        if !output.status.success() {
            bail!(
                "the screen of {verb} could not be captured ({})",
                output.status
            );
        }
        let screen = String::from_utf8_lossy(&output.stdout);
        let root = repository.root().display().to_string();
        let screen = without_folder(screen.trim_end(), &root);
        let path = repository.root().join(document);
        let text = fs::read_to_string(&path)?;
        let text = with_screen(&text, verb, &screen)
            .with_context(|| format!("{document} has no place for the screen of {verb}"))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{document}: the screen of `memprobe {verb}`");
    }
    Ok(())
}

/// Shortens the repository's folder in paths, also where the screen has cut off its begin.
fn without_folder(screen: &str, root: &str) -> String {
    let mut text = screen.replace(&format!("{root}/"), SHORTENED);
    // The longest first: a shorter rest is an end of it.
    for (at, _) in root
        .char_indices()
        .skip(1)
        .filter(|(at, _)| at + 3 <= root.len())
    {
        text = text.replace(&format!("…{}/", &root[at..]), SHORTENED);
    }
    text
}

/// Returns the line before the block of a screen.
fn marker(verb: &str) -> String {
    format!("<!-- `cargo xtask screens` captured this: memprobe {verb} -->")
}

/// Replaces the block after the marker of a screen; `None` if there is none.
fn with_screen(document: &str, verb: &str, screen: &str) -> Option<String> {
    let marker = format!("{}\n```\n", marker(verb));
    let (before, after) = document.split_once(&marker)?;
    let (_, rest) = after.split_once("\n```\n")?;
    Some(format!("{before}{marker}{screen}\n```\n{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_replaces_the_block_behind_its_marker() {
        let document = format!("a\n```\nx\n```\n{}\n```\nold\n```\nb\n", marker("top"));
        let text = with_screen(&document, "top", "new\nlines").expect("a place");
        let expected = format!(
            "a\n```\nx\n```\n{}\n```\nnew\nlines\n```\nb\n",
            marker("top")
        );
        assert_eq!(text, expected);
        assert_eq!(with_screen(&document, "attach", "new"), None);
    }

    #[test]
    fn a_screen_names_no_folder_of_its_machine() {
        for (screen, shortened) in [
            (
                " /home/ada/src/tests/gpt.py:6  x\n /home/ada/src/a.py",
                " …/memprobe/tests/gpt.py:6  x\n …/memprobe/a.py",
            ),
            (" …da/src/tests/gpt.py:6", " …/memprobe/tests/gpt.py:6"),
            (" …/src/tests/gpt.py:6", " …/memprobe/tests/gpt.py:6"),
            (
                " …orkloads/gpt.py  /usr/lib/a.py",
                " …orkloads/gpt.py  /usr/lib/a.py",
            ),
        ] {
            assert_eq!(without_folder(screen, "/home/ada/src"), shortened);
        }
    }

    #[test]
    fn every_document_has_the_place_of_its_screen() {
        for (document, verb) in SCREENS {
            let path = Repository::here().root().join(document);
            let text = fs::read_to_string(path).expect("a document");
            assert!(with_screen(&text, verb, "new").is_some(), "{document}");
        }
    }
}
