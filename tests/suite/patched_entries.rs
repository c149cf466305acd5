//! Programs that rewrite the entries of the driver's functions, as UCX does: their hooks hear every call,
//! no call fails, and memprobe says which functions it leaves alone.

use std::path::PathBuf;
use std::process::Command;

use memprobe_tests::cuda_programs::{Cuda, Cudart, Entries, live, start_command, truth};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::Event;
use memprobe_tests::memprobe::Recording;
use memprobe_tests::process::{Background, Finished};
use serde_json::Value;
use tempfile::TempDir;

/// The functions that the program rewrites.
const FUNCTIONS: [&str; 10] = [
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemMap",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemUnmap",
    "cuMemFreeAsync",
];

/// The program and its way to rewrite functions: `before` or `after` attach, the bytes of the jump, and
/// `careful` or `blind` (programs/patched_entries.c).
struct Patcher<'a> {
    environment: &'a TestEnvironment,
    program: PathBuf,
    folder: TempDir,
}

impl<'a> Patcher<'a> {
    fn new(environment: &'a TestEnvironment, cuda: &Cuda) -> Self {
        Self {
            environment,
            program: cuda.program("patched_entries", Cudart::Dynamic, &[]),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the program and a recording of it; both stop before the program's first call.
    fn start(
        &self,
        way: [&str; 3],
        call: Option<&str>,
        options: &[&str],
    ) -> (Background, Recording) {
        let _ = std::fs::remove_file(self.file("go"));
        let mut command = Command::new(&self.program);
        command.arg(self.file("go")).args(way);
        command.args(call.map(|name| self.file(name)));
        let program = start_command(command);
        let trace = self.file("trace.json");
        let recording = self.environment.record(program.pid(), &trace, options);
        (program, recording)
    }

    fn go(&self) {
        std::fs::write(self.file("go"), "").expect("the program can be told to go");
    }

    /// Records the program to its end, which is to be a good one.
    fn run(&self, way: [&str; 3], options: &[&str]) -> Outcome {
        let (program, recording) = self.start(way, None, options);
        self.go();
        let program = program.finish().succeeded();
        let memprobe = recording.finish();
        let trace = self.file("trace.json");
        Outcome {
            program,
            memprobe,
            events: self.environment.events(&trace),
            report: self.environment.report(&trace),
        }
    }
}

/// A recording that ended well, of a program that did.
struct Outcome {
    program: Finished,
    memprobe: Finished,
    events: Vec<Event>,
    report: Value,
}

impl Outcome {
    /// Every function was rewritten; the hook heard of every call, and each gave what it was to give.
    fn assert_hooks_hear_every_call(&self) {
        let lines = self.lines("rewritten");
        assert_eq!(lines.len(), FUNCTIONS.len(), "{}", self.program.stdout);
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            let [
                _,
                function,
                "called",
                called,
                "entered",
                entered,
                "worked",
                worked,
            ] = words[..]
            else {
                panic!("{line}");
            };
            assert!(FUNCTIONS.contains(&function) && called != "0", "{line}");
            assert_eq!((entered, worked), (called, called), "{line}");
        }
        assert_eq!(self.report["lost_events"], 0);
    }

    /// The program found instructions that it did not know, and rewrote nothing.
    fn assert_nothing_was_rewritten(&self) {
        assert_eq!(
            self.lines("refused").len(),
            FUNCTIONS.len(),
            "{}",
            self.program.stdout
        );
    }

    fn lines(&self, first: &str) -> Vec<&str> {
        let lines = self.program.stdout.lines();
        lines
            .filter(|line| line.split(' ').next() == Some(first))
            .collect()
    }

    /// memprobe saw every call.
    fn assert_memory_is_right(&self) {
        let truth = truth(&self.program);
        assert_eq!(live(&self.events, truth.keys()), truth);
        assert!(
            !self.memprobe.stderr.contains("rewritten"),
            "{}",
            self.memprobe.stderr
        );
    }

    /// memprobe saw no call of a function that was rewritten, and names each.
    fn assert_functions_are_left_alone(&self) {
        let said = &self.memprobe.stderr;
        let line = said.lines().find(|line| line.contains("rewritten"));
        let line = line.unwrap_or_else(|| panic!("no word on rewritten functions: {said}"));
        for name in FUNCTIONS {
            assert!(line.contains(name), "{name} is not named: {line}");
            assert!(!self.saw(name), "{name} is probed");
        }
        assert!(self.saw("cuMemHostAlloc") && self.saw("cuMemCreate"));
    }

    fn saw(&self, function: &str) -> bool {
        let mut functions = self
            .events
            .iter()
            .filter_map(|event| event.function.as_deref());
        functions.any(|seen| seen == function)
    }
}

#[test]
fn functions_rewritten_before_attach_are_left_alone() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for cuda in Cuda::build_each() {
        let patcher = Patcher::new(&environment, &cuda);
        for (bytes, care) in [("5", "careful"), ("13", "blind")] {
            let outcome = patcher.run(["before", bytes, care], &[]);
            outcome.assert_hooks_hear_every_call();
            match (cuda.entries(), bytes) {
                // The conditional jump is still there, and the hook's way to the original leads by it.
                (Entries::Trampolines, "5") => outcome.assert_memory_is_right(),
                _ => outcome.assert_functions_are_left_alone(),
            }
        }
    }
}

#[test]
fn short_jumps_written_over_trampolines_after_attach_hear_every_call_and_so_does_memprobe() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let cuda = Cuda::build(Entries::Trampolines);
    let patcher = Patcher::new(&environment, &cuda);
    let outcome = patcher.run(["after", "5", "careful"], &[]);
    outcome.assert_hooks_hear_every_call();
    outcome.assert_memory_is_right();
    // Without a way by the conditional jump memprobe hears nothing; the hook does.
    let outcome = patcher.run(["after", "5", "blind"], &[]);
    outcome.assert_hooks_hear_every_call();
}

#[test]
fn careful_patchers_refuse_entries_with_a_probe_and_nothing_breaks() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for cuda in Cuda::build_each() {
        let patcher = Patcher::new(&environment, &cuda);
        let bytes = match cuda.entries() {
            Entries::Trampolines => "12",
            Entries::Push => "5",
        };
        let outcome = patcher.run(["after", bytes, "careful"], &[]);
        outcome.assert_nothing_was_rewritten();
        outcome.assert_memory_is_right();
    }
}

#[test]
fn a_driver_that_is_left_alone_can_be_rewritten_at_any_time() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for cuda in Cuda::build_each() {
        let patcher = Patcher::new(&environment, &cuda);
        for (order, bytes) in [("before", "5"), ("after", "13")] {
            let outcome = patcher.run([order, bytes, "blind"], &["--no-driver"]);
            outcome.assert_hooks_hear_every_call();
            assert!(!outcome.saw("cuMemHostAlloc"), "libcuda is probed");
        }
    }
}

/// Once two pages side by side have been rewritten, the kernel puts the probes back, into the new code:
/// calls would crash. This is why `--no-driver` exists.
#[test]
fn jumps_written_over_probes_are_reported() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for cuda in Cuda::build_each() {
        let patcher = Patcher::new(&environment, &cuda);
        let (mut program, mut recording) =
            patcher.start(["after", "13", "blind"], Some("never"), &[]);
        patcher.go();
        program.wait_for("rewriting is done");
        // Others are on pages where no probe came back: a line of their own says that they are left alone.
        let line = recording.memprobe.wait_for("--no-driver");
        let named = FUNCTIONS
            .iter()
            .filter(|name| line.contains(**name))
            .count();
        assert!(named > 1 && line.contains("rewritten"), "{line}");
        // It is killed before it calls any of them.
        drop(program);
        recording.finish();
    }
}

/// Prints again and again how many bytes of libcuda's code in memory are not those of the file.
const WATCHES_LIBCUDA: &str = "
import sys, time, torch
kept = [torch.zeros(1 << 20, device='cuda'), torch.zeros(1 << 20)]
def changed():
    count = 0
    for line in open('/proc/self/maps'):
        words = line.split()
        if 'libcuda.so' not in line or 'x' not in words[1]:
            continue
        first, last = (int(word, 16) for word in words[0].split('-'))
        with open('/proc/self/mem', 'rb') as memory, open(words[5], 'rb') as file:
            memory.seek(first)
            file.seek(int(words[2], 16))
            now, before = memory.read(last - first), file.read(last - first)
        count += sum(one != other for one, other in zip(now, before))
    return count
for _ in range(int(sys.argv[1])):
    print('probed' if changed() else 'untouched', flush=True)
    time.sleep(0.1)
print('over', flush=True)
";

#[test]
#[ignore = "long: cargo xtask test --all"]
fn snapshots_and_estimates_without_driver_probes_leave_its_code_as_it_is() {
    // Alone: another test's probes of a family of processes lie in every process that maps libcuda.
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let script = |times: &str| {
        let mut command = environment.pytorch().command();
        command.args(["-c", WATCHES_LIBCUDA, times]);
        command
    };
    for options in [&[][..], &["--no-driver"]] {
        let mut program = Background::start(&mut script("600"));
        let pid = program.pid().to_string();
        program.wait_for("untouched");
        let watch = ["snapshot", "--watch", "200ms", "--pid", &pid];
        let mut watch = Background::start(environment.memprobe().args(watch).args(options));
        // The first table comes after the probes.
        watch.wait_for("ALLOCATED");
        std::thread::sleep(std::time::Duration::from_secs(2));
        let expected = if options.is_empty() {
            "probed"
        } else {
            "untouched"
        };
        let latest = program.stdout().lines().last().map(str::to_owned);
        drop(watch);
        assert_eq!(latest.as_deref(), Some(expected), "snapshot {options:?}");

        let command = script("5");
        let mut estimate = environment.memprobe();
        estimate.arg("estimate").args(options).arg("--");
        estimate.arg(command.get_program()).args(command.get_args());
        let printed = Background::start(&mut estimate).finish();
        let is_probed = printed.stdout.contains("probed\n");
        assert_eq!(is_probed, options.is_empty(), "{printed:?}");
        assert!(printed.stdout.contains("over\n"), "{printed:?}");
    }
}
