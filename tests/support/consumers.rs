//! Programs that open exports: the viewers and libraries that the formats belong to.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::process::Background;
use crate::pytorch::PyTorch;

/// Environment variable with the folder of the programs. `cargo xtask test --all` sets it.
pub const CONSUMERS: &str = "MEMPROBE_TEST_CONSUMERS";

/// Path of a part of the folder of programs; prints why the test is skipped if it is missing.
pub fn consumer(part: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(CONSUMERS).filter(|folder| !folder.is_empty());
    let Some(folder) = folder.map(PathBuf::from) else {
        println!(
            "skipped: {CONSUMERS} names no programs that open exports; run `cargo xtask test --all`"
        );
        return None;
    };
    let path = folder.join(part);
    if !path.exists() {
        println!("skipped: {part} could not be installed for the tests");
        return None;
    }
    Some(path)
}

/// Runs a program to its end; returns the JSON of its last line.
///
/// # Panics
///
/// If it fails.
pub fn json_of(command: &mut Command) -> Value {
    let finished = Background::start(command).finish().succeeded();
    let last = finished.stdout.lines().last().expect("a line");
    serde_json::from_str(last).expect("JSON")
}

/// Folder of the scripts that call these programs.
pub fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("consumers")
}

/// A web server of a folder, on this machine alone. It ends when dropped.
pub struct WebServer {
    _server: Background,
    pub address: String,
}

impl WebServer {
    /// Serves a folder by Python's own server.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(pytorch: &PyTorch, folder: &Path) -> Self {
        let mut command = pytorch.command();
        command
            .args([
                "-u",
                "-m",
                "http.server",
                "0",
                "--bind",
                "127.0.0.1",
                "--directory",
            ])
            .arg(folder);
        let mut server = Background::start(&mut command);
        let line = server.wait_for("Serving HTTP on");
        let port = line
            .split_whitespace()
            .skip_while(|word| *word != "port")
            .nth(1);
        let address = format!("http://127.0.0.1:{}", port.expect("a port"));
        Self {
            _server: server,
            address,
        }
    }
}
