//! The `memprobe` command.
fn main() {}
