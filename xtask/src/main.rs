//! Tasks of this repository: set-up, eBPF build, demo, tests, benchmarks.
fn main() {}
