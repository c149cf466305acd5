//! Distributions on which README.md says what to install.

use clap::ValueEnum;

use crate::python::{Archive, DEBIAN, UBUNTU};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum System {
    Debian12,
    Debian13,
    #[value(name = "ubuntu24.04")]
    Ubuntu2404,
}

/// A distribution, and what README.md says of it.
pub struct Description {
    /// Name of the system and of its folder.
    pub name: &'static str,
    pub archive: Archive,
    pub suite: &'static str,
    /// Further sources of packages: mirror and suite.
    pub updates: &'static [(&'static str, &'static str)],
    /// Commands that install what README.md names; README.md has them word by word.
    pub install: &'static str,
}

impl System {
    pub fn description(self) -> Description {
        match self {
            Self::Debian12 => Description {
                name: "Debian 12",
                archive: DEBIAN,
                suite: "bookworm",
                updates: &[
                    (DEBIAN.mirror, "bookworm-updates"),
                    (DEBIAN_SECURITY, "bookworm-security"),
                ],
                install: DEBIAN_12,
            },
            Self::Debian13 => Description {
                name: "Debian 13",
                archive: DEBIAN,
                suite: "trixie",
                updates: &[
                    (DEBIAN.mirror, "trixie-updates"),
                    (DEBIAN_SECURITY, "trixie-security"),
                ],
                install: WITH_RUSTUP,
            },
            Self::Ubuntu2404 => Description {
                name: "Ubuntu 24.04",
                archive: UBUNTU,
                suite: "noble",
                updates: &[
                    (UBUNTU.mirror, "noble-updates"),
                    (UBUNTU.mirror, "noble-security"),
                ],
                install: WITH_RUSTUP,
            },
        }
    }
}

const DEBIAN_SECURITY: &str = "http://deb.debian.org/debian-security";

const DEBIAN_12: &str = "apt-get install cargo-web rustfmt-web rust-web-clippy \
     g++ binutils e2fsprogs python3-venv";

const WITH_RUSTUP: &str = "apt-get install rustup g++ binutils e2fsprogs python3-venv && \
     rustup default stable";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::Repository;

    #[test]
    fn readme_says_what_is_installed() {
        let readme = Repository::here().root().join("README.md");
        let readme = std::fs::read_to_string(readme).expect("README.md");
        for system in System::value_variants() {
            let system = system.description();
            let line = readme.lines().find(|line| line.contains(system.install));
            let line = line.unwrap_or_else(|| panic!("nothing for {}", system.name));
            assert!(line.contains(system.name), "{line}");
        }
    }
}
