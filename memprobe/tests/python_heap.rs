//! Reads the heaps of real Python interpreters from outside and compares the result with each
//! interpreter's own answer.

mod pythons;

use std::path::Path;
use std::process::{Child, Command};

use memprobe::event::Tgid;
use memprobe::event::tensors::Consistency;
use memprobe::process::memory::ProcessMemory;
use memprobe::python::PythonProcess;
use memprobe::python::heap::Heap;
use memprobe::python::heap::capture::{
    CaptureError, CaptureMode, Captured, HeapReader, HeapScan, capture,
};
use memprobe::python::heap::collector::Broken;
use memprobe::python::heap::image::Image;
use memprobe::python::heap::paths::Paths;
use memprobe::python::heap::progress::ReadProgress;
use pythons::{started, supported};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/heap.py");

/// A running fixture, ended on drop.
struct Target {
    child: Child,
    /// Number of objects that Python itself counts.
    objects: usize,
}

impl Target {
    fn start(python: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(python);
        let (child, line) = started(command.arg(FIXTURE).args(arguments));
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let objects = line["objects"].as_u64().unwrap().try_into().unwrap();
        Self { child, objects }
    }

    fn process(&self) -> PythonProcess {
        PythonProcess::detect(Tgid(self.child.id())).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Closing standard input ends the fixture.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Reader of the paths to the fixture's `Wanted` objects.
struct WantedPaths<'a>(&'a PythonProcess);

impl HeapReader for WantedPaths<'_> {
    type Tables = ();
    type Found = ();
    type Known = ();
    type Output = Vec<String>;

    fn tables(&self, _: &Image<ProcessMemory>) {}

    fn disagreement(&self, (): &()) -> Option<Broken> {
        None
    }

    fn read(&self, _: &Image<ProcessMemory>, _: &mut HeapScan, (): ()) {}

    fn known(&self, _: &Image<ProcessMemory>, (): ()) {}

    fn follow(&self, _: &Image<ProcessMemory>, _: &HeapScan, (): &()) {}

    fn conclude(
        &self,
        image: &Image<ProcessMemory>,
        moment: &mut HeapScan,
        (): &mut (),
    ) -> Vec<String> {
        paths_of(self.0, image, moment)
    }

    fn touch(&self, image: &Image<ProcessMemory>, moment: &mut HeapScan, (): &mut ()) {
        paths_of(self.0, image, moment);
    }
}

/// Captures the heap, with the paths to the fixture's `Wanted` objects.
fn captured(process: &PythonProcess, manner: CaptureMode) -> Captured<(), Vec<String>> {
    let reader = WantedPaths(process);
    let captured = capture(process, manner, &ReadProgress::default(), &reader);
    captured.unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the sorted paths to the fixture's `Wanted` objects.
fn paths_of(
    process: &PythonProcess,
    image: &impl memprobe::process::memory::ReadMemory,
    moment: &mut memprobe::python::heap::capture::HeapScan,
) -> Vec<String> {
    let classes = std::mem::take(&mut moment.classes);
    let heap = Heap::with_classes(image, &process.layout, classes);
    let paths = Paths::search(&heap, &moment.objects, &moment.variables.all);
    let mut found = Vec::new();
    for object in &moment.objects.objects {
        let class = heap.class_at(object.class()).unwrap();
        if class.short_name() == "Wanted" {
            let path = paths.to_object(object.address());
            found.push(path.map_or_else(|| "nowhere".into(), |path| path.text));
        }
    }
    found.sort();
    found
}

#[test]
fn every_object_that_python_counts_is_found() {
    for python in supported() {
        let target = Target::start(&python, &[]);
        let captured = captured(&target.process(), CaptureMode::Paused);
        let moment = &captured.moment;
        assert_eq!(moment.broken, None);
        println!(
            "{}: {} of {} objects, {:?}, {:?}",
            python.display(),
            moment.objects.objects.len(),
            target.objects,
            captured.consistency,
            captured.extent
        );
        assert_eq!(moment.objects.unknown, 0);
        assert_eq!(
            moment.objects.objects.len(),
            target.objects,
            "{}",
            python.display()
        );
    }
}

#[test]
fn objects_are_reached_by_the_paths_that_the_program_would_write() {
    for python in supported() {
        let target = Target::start(&python, &[]);
        let process = target.process();
        let captured = captured(&process, CaptureMode::Paused);
        assert_eq!(captured.extent.missed, 0);
        let mut found = captured.result;
        for path in &mut found {
            // Mask the line number, which changes with every edit of the fixture.
            if let Some((_, rest)) = path
                .strip_prefix("heap.py:")
                .and_then(|rest| rest.split_once(' '))
            {
                *path = format!("heap.py:* {rest}");
            }
        }
        found.sort();
        let mut expected = vec![
            "Holder.in_class".to_owned(),
            "big[-4999]".into(),
            "cache['kv'][0]".into(),
            "cache['kv'][1]".into(),
            "cache[3][0]".into(),
            "cache[…]".into(),
            "derived.attribute".into(),
            "derived['key']".into(),
            "function.__closure__[0].cell_contents".into(),
            "group{…}".into(),
            "holder.attribute".into(),
            "made.inside".into(),
            "defaults.__defaults__[1]".into(),
            "defaults.__kwdefaults__['only']".into(),
            "heap.py:* batches() -> in_generator (suspended generator)".into(),
            "heap.py:* batches() -> given (generator that has not begun)".into(),
            "heap.py:* batches() -> in_generator (suspended generator)".into(),
            "heap.py:* delegate() -> in_delegate[0] (suspended generator)".into(),
            "heap.py:* wait_for() -> in_coroutine (suspended coroutine)".into(),
            "heap.py:* stream() -> in_stream (suspended async generator)".into(),
            "heap.py:* fail() -> in_failed (frame of an ended call)".into(),
            "many.attribute".into(),
            "many.last".into(),
            "ordered['a']".into(),
            "part.args[0]".into(),
            "plain".into(),
            "slotted.other".into(),
            "heap.py:* wait() -> argument".into(),
            "heap.py:* wait() -> in_closure".into(),
            "heap.py:* wait() -> local".into(),
        ];
        expected.sort();
        assert_eq!(found, expected, "{}", python.display());
    }
}

#[test]
fn a_heap_that_changes_all_the_time_is_read_at_one_moment() {
    for python in supported() {
        let target = Target::start(&python, &["busy"]);
        let process = target.process();
        for _ in 0..5 {
            let captured = captured(&process, CaptureMode::Paused);
            assert_eq!(captured.moment.broken, None);
            assert_eq!(captured.moment.objects.unknown, 0);
            assert!(matches!(captured.consistency, Consistency::Paused { .. }));
            println!(
                "{}: {:?} {:?}",
                python.display(),
                captured.consistency,
                captured.extent
            );
        }
    }
}

#[test]
fn a_heap_is_read_while_the_process_runs_on() {
    for python in supported() {
        let target = Target::start(&python, &[]);
        let captured = captured(&target.process(), CaptureMode::Running);
        assert_eq!(captured.consistency, Consistency::Running);
        assert_eq!(captured.moment.objects.objects.len(), target.objects);
    }
}

#[test]
fn a_damaged_list_of_objects_stops_the_process_a_few_times_only() {
    for python in supported() {
        let target = Target::start(&python, &["damaged"]);
        let process = target.process();
        let error = capture(
            &process,
            CaptureMode::Paused,
            &ReadProgress::default(),
            &WantedPaths(&process),
        );
        let error = error.unwrap_err();
        println!("{}: {error}", python.display());
        let CaptureError::Damaged { stops, broken } = error else {
            panic!("{error}")
        };
        assert!(stops <= 10, "{stops}");
        assert!(matches!(broken, Broken::Link(_)), "{broken}");
        let running = captured(&process, CaptureMode::Running).moment;
        assert!(matches!(running.broken, Some(Broken::Link(_))));
        assert!(!running.objects.objects.is_empty());
    }
}
