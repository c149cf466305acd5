//! Code objects freed before memprobe can read them, whose addresses are then reused for others.

use std::fs;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::Event;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use memprobe_tests::reference::TraceFrame;

/// Number of cells that `recycled_code.py` runs.
const CELLS: usize = 300;

#[test]
fn lines_of_code_that_is_dropped_at_once_are_exact() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let (events, addresses) = record_cells(&environment, pytorch);
        assert!(
            addresses < CELLS,
            "{addresses} addresses: no code object took another one's place"
        );
        let allocated: Vec<&Event> = events
            .iter()
            .filter(|event| event.action == "alloc")
            .collect();
        assert_eq!(allocated.len(), CELLS);
        let wrong: Vec<_> = allocated
            .iter()
            .enumerate()
            .filter(|(cell, event)| !is_of_cell(*cell, event))
            .collect();
        assert!(
            wrong.is_empty(),
            "{} of {CELLS} cells are wrong, the first as {:?}",
            wrong.len(),
            wrong[0]
        );
        println!(
            "recycled_code.py  {}  {CELLS} cells at {addresses} addresses",
            pytorch.python().display()
        );
    }
}

/// Records the workload from its first cell to its end. Also returns the number of addresses of the
/// cells' code objects.
fn record_cells(environment: &TestEnvironment, pytorch: &PyTorch) -> (Vec<Event>, usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let (go, file) = (folder.path().join("go"), folder.path().join("trace.json"));
    let mut command = pytorch.command();
    command.arg("recycled_code.py").arg("--go").arg(&go);
    command.args(["--cells", &CELLS.to_string()]);
    let mut target = Background::start(&mut command);
    target.wait_for("PID ");
    let recording = environment.record(target.pid(), &file, &[]);
    fs::write(&go, "").expect("written");
    let printed = recording.finish();
    assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
    (
        environment.events(&file),
        addresses(&target.finish().stdout),
    )
}

/// Returns the number of addresses in `300 cells at 12 addresses`.
fn addresses(stdout: &str) -> usize {
    let number = stdout
        .lines()
        .find_map(|line| line.split_once(" cells at ")?.1.split_once(' '));
    let (number, _) = number.unwrap_or_else(|| panic!("no addresses: {stdout}"));
    number.parse().expect("a number")
}

/// True if an allocation has the size and every frame of this cell, as `recycled_code.py` defines
/// them.
fn is_of_cell(cell: usize, event: &Event) -> bool {
    let frame = |line: usize, function: String| TraceFrame {
        file: format!("<cell {cell}>"),
        line: u32::try_from(line).expect("few lines"),
        function,
    };
    let blank = cell % 37;
    let own = [
        frame(blank + 2, format!("f{cell}")),
        frame(blank + 3, "<module>".to_owned()),
    ];
    let outer: Vec<&str> = event
        .stack
        .iter()
        .skip(own.len())
        .filter(|frame| frame.file.ends_with("/recycled_code.py"))
        .map(|frame| frame.function.as_str())
        .collect();
    event.size == u64::try_from(512 * (cell + 1)).ok()
        && event.stack.starts_with(&own)
        && event.stack.len() == own.len() + outer.len()
        && outer == ["run_cells", "main", "<module>"]
}
