//! The `memprobe` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    memprobe::cli::run()
}
