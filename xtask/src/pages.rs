//! Pages of figures in `docs`, written from the JSON beside them. Figures of another eBPF object than
//! the committed one are marked as stale.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::ebpf::sha256;
use crate::repository::Repository;
use crate::{bench, categories, drivers, fuzz, kernels, matrix};

/// Marks a stale figure.
pub const STALE: &str = " †";

/// Digits of a hash that name a program or an object.
const DIGITS: usize = 12;

/// The committed eBPF object, to which figures are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedObject(String);

impl CommittedObject {
    /// Reads the object of a checkout.
    pub fn of(repository: &Repository) -> Result<Self> {
        digits(&repository.ebpf_object()).map(Self)
    }

    #[cfg(test)]
    pub fn named(digits: &str) -> Self {
        Self(digits.to_owned())
    }

    /// Returns the digits that name it.
    pub fn digits(&self) -> &str {
        &self.0
    }

    /// Returns [`STALE`] for a figure of another object, or of an object that was not noted.
    pub fn mark(&self, object: Option<&str>) -> &'static str {
        if object == Some(&self.0) { "" } else { STALE }
    }

    /// Returns a sentence about the objects of a page's rows.
    pub fn note<'a>(&self, objects: impl Iterator<Item = Option<&'a str>>) -> String {
        let (mut all, mut fresh) = (0, 0);
        for object in objects {
            all += 1;
            fresh += usize::from(self.mark(object).is_empty());
        }
        let digits = &self.0;
        if fresh == all {
            return format!("Committed eBPF object: {digits}, that of all {all}.");
        }
        format!(
            "Committed eBPF object: {digits}, that of {fresh} of {all}. †: another object, or none was noted."
        )
    }
}

/// Returns the first digits of a file's SHA-256.
pub fn digits(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(sha256(&bytes)[..DIGITS].to_owned())
}

/// Writes every page again.
pub fn write(repository: &Repository) -> Result<()> {
    let committed = CommittedObject::of(repository)?;
    let docs = repository.root().join("docs");
    for (name, page) in [
        ("matrix.md", matrix::page_of(&docs, &committed)?),
        (
            "frameworks.md",
            matrix::frameworks::page_of(&docs, &committed)?,
        ),
        ("kernels.md", kernels::page_of(&docs, &committed)?),
        ("categories.md", categories::page_of(&docs, &committed)?),
        ("drivers.md", drivers::page_of(&docs, &committed)?),
    ] {
        let path = docs.join(name);
        fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    write_fuzzing(&docs)?;
    bench::write_documents(repository)
}

/// Writes the page of the fuzzer's runs again.
pub fn write_fuzzing(docs: &Path) -> Result<()> {
    let path = docs.join("fuzzing.md");
    fs::write(&path, fuzz::page_of(docs)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_of_another_object_is_stale() {
        let committed = CommittedObject::named("abc");
        assert_eq!(committed.mark(Some("abc")), "");
        assert_eq!(committed.mark(Some("abd")), STALE);
        assert_eq!(committed.mark(None), STALE);
        let objects = [Some("abc"), None, Some("old")];
        assert_eq!(
            committed.note(objects.into_iter()),
            "Committed eBPF object: abc, that of 1 of 3. †: another object, or none was noted."
        );
        assert_eq!(
            committed.note([Some("abc")].into_iter()),
            "Committed eBPF object: abc, that of all 1."
        );
    }

    #[test]
    fn the_committed_pages_are_written_from_the_committed_figures() {
        let repository = Repository::here();
        let committed = CommittedObject::of(&repository).unwrap();
        let docs = repository.root().join("docs");
        for (name, page) in [
            ("matrix.md", matrix::page_of(&docs, &committed)),
            (
                "frameworks.md",
                matrix::frameworks::page_of(&docs, &committed),
            ),
            ("kernels.md", kernels::page_of(&docs, &committed)),
            ("categories.md", categories::page_of(&docs, &committed)),
            ("drivers.md", drivers::page_of(&docs, &committed)),
            ("fuzzing.md", fuzz::page_of(&docs)),
        ] {
            let text = fs::read_to_string(docs.join(name)).unwrap();
            assert_eq!(text, page.unwrap(), "{name}: run `cargo xtask pages`");
        }
        for (path, text) in bench::documents(&repository).unwrap() {
            let found = fs::read_to_string(&path).unwrap();
            let name = path.display();
            assert_eq!(found, text, "{name}: run `cargo xtask pages`");
        }
    }
}
