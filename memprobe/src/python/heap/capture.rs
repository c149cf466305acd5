//! Reads the heap of a process at one moment, while the process is paused or keeps running.
//!
//! In paused mode everything is scanned twice:
//!
//! 1. The first scan, while the process runs, only shows which pages are needed. Its results are discarded.
//! 2. The process is paused. Those pages are copied at once, and only new objects are scanned.
//! 3. The process resumes, and the second scan reads the copy.
//!
//! If the copy is incomplete, because contents of an old object were moved meanwhile, all steps are repeated.
//! As a last resort everything is scanned while the process is paused.

use std::thread;
use std::time::{Duration, Instant};

use super::Heap;
use super::class::Classes;
use super::collector::{self, Broken, WalkExtent};
use super::frames::{self, Variables};
use super::image::{Image, ImageExtent};
use super::modules::{self, ModuleObject};
use super::optimizers::{self, Optimizers};
use super::process_scan::{PreviousScan, ProcessScan};
use super::progress::{ReadProgress, ReadStage};
use crate::event::Tgid;
use crate::event::TimeNs;
use crate::event::tensors::Consistency;
use crate::process::memory::{Cause, ProcessMemory, ReadMemory, Unreadable};
use crate::process::pause::{PauseError, Sleepers, while_paused};
use crate::process::run_state::RunState;
use crate::python::{DetectError, PythonProcess};

/// Most bytes kept of a process's memory: enough for some twenty million objects.
const MAX_BYTES: usize = 2 << 30;

/// Most stops before the capture fails. Each found a collection in progress or inconsistent lists.
const MAX_STOPS: u32 = 100;

/// Most of these stops in a row that find the lists inconsistent at the same place. An object is linked within a few
/// instructions, and the waits between these stops add up to 62 ms, so the list is damaged.
const MAX_SAME_PLACE: u32 = 6;

/// Most of these stops that wait for the allocator; after that its state is accepted as it is.
const MAX_ALLOCATING: u32 = 10;

/// Most pauses that leave threads asleep in system calls that a stop would end, if these wake up; later ones catch
/// them outside of such calls.
const MAX_WOKEN: u32 = 5;

/// First and longest time between two stops. A collection of a million objects takes half a second.
const FIRST_WAIT: Duration = Duration::from_millis(2);
const MAX_WAIT: Duration = Duration::from_millis(50);

/// Longest wait for the end of a collection, and the polling interval.
const MAX_COLLECTION: Duration = Duration::from_secs(1);
const GLANCE: Duration = Duration::from_micros(100);

/// Most scans of a running process before the result is accepted.
const MAX_WALKS: u32 = 5;

/// Most incomplete copies before everything is scanned while the process is paused.
const MAX_COPIES: u32 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// Paused for the copy only; as much as possible is read before, to keep the pause short.
    #[default]
    Paused,
    /// Paused at once, several times longer, until everything is read. The process hardly advances before.
    AtOnce,
    Running,
}

#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("{0}")]
    Pause(#[from] PauseError),
    /// The process has shut down its Python, or has ended.
    #[error("{0}")]
    Ended(#[source] DetectError),
    /// No stop found the object lists consistent.
    #[error(
        "it was stopped {MAX_STOPS} times, and never at a moment at which it could be read: {0}.\nTry again, or read \
         it while it runs with --nonblocking"
    )]
    NeverWhole(#[source] Broken),
    /// The object lists were inconsistent at the same place at several stops.
    #[error(
        "it was stopped {stops} times, and each time the same place could not be read: {broken}.\nIts memory is \
         damaged there. Read what is intact with --nonblocking"
    )]
    Damaged { stops: u32, broken: Broken },
    /// A signal had stopped the process already, while its object lists were inconsistent.
    #[error(
        "a signal (SIGSTOP, Ctrl-Z) has stopped it at a moment at which it cannot be read: {0}.\nLet it run on (kill \
         -CONT) and try again, or read it as it stands with --nonblocking"
    )]
    StandsBroken(#[source] Broken),
}

#[derive(Debug, Default)]
pub struct HeapScan {
    pub at: TimeNs,
    pub mode: CaptureMode,
    pub objects: ProcessScan,
    pub classes: Classes,
    pub modules: Vec<ModuleObject>,
    pub optimizers: Optimizers,
    /// Tensors in caches of keys and values.
    pub cached: Vec<u64>,
    pub variables: Variables,
    /// Reason why objects are missing; `None` if the lists are complete.
    pub broken: Option<Broken>,
    /// True if the result contradicts itself, as can happen while the process runs.
    pub is_torn: bool,
    pub no_frames: Option<Unreadable>,
}

#[derive(Clone, Copy, Debug)]
enum ScanScope<'a> {
    /// Everything. Reads into the image whatever later steps need.
    Whole(CaptureMode),
    /// New objects since an earlier scan, and its tensors, modules and so on. Also reads into the image.
    New(&'a PreviousScan),
    /// Everything, from an image that is already complete.
    Copy,
}

impl HeapScan {
    fn of(
        image: &Image<impl ReadMemory>,
        python: &PythonProcess,
        look: ScanScope<'_>,
        progress: &ReadProgress,
    ) -> Self {
        let mut moment = Self {
            at: now(),
            mode: match look {
                ScanScope::Whole(manner) => manner,
                ScanScope::New(_) | ScanScope::Copy => CaptureMode::Paused,
            },
            ..Self::default()
        };
        let mut listed = Vec::new();
        let layout = &python.layout;
        let reach = match look {
            ScanScope::New(known) => WalkExtent::Added(&known.endings),
            ScanScope::Whole(_) | ScanScope::Copy => WalkExtent::All,
        };
        let walked = collector::interpreters(image, layout, python.runtime);
        let walked = walked.and_then(|interpreters| {
            let collector = &layout.heap.collector;
            let mut interpreters = interpreters.into_iter();
            interpreters
                .try_for_each(|at| collector::walk(image, collector, at, reach, &mut listed))
        });
        moment.broken = walked.err();
        let heap = Heap::of(image, layout);
        moment.objects = ProcessScan::with_progress(&heap, &listed, progress);
        drop(listed);
        match look {
            ScanScope::Whole(_) => moment.objects.keep_contents_with(&heap, progress),
            ScanScope::New(known) => {
                moment.objects.keep_contents(&heap);
                moment.objects.add_known(&heap, known);
            }
            ScanScope::Copy => {}
        }
        moment.modules = modules::read(&heap, &moment.objects.modules);
        moment.optimizers = optimizers::read(&heap, &moment.objects.optimizers);
        moment.cached = optimizers::cached(&heap, &moment.objects.kv_caches);
        match frames::variables(&heap, python, &moment.objects) {
            Ok(variables) => moment.variables = variables,
            Err(error) => moment.no_frames = Some(error),
        }
        moment.classes = heap.into_classes();
        moment
    }
}

/// Current time on the clock of the events (`bpf_ktime_get_ns` is `CLOCK_MONOTONIC`).
fn now() -> TimeNs {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    TimeNs(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Further structures that are read together with the heap, and the evaluation of all of them.
///
/// [`Self::tables`] and [`Self::read`] also run in the first scan, to show which pages they need.
pub trait HeapReader {
    /// Structures of which a part shows whether the process was stopped at a suitable moment.
    type Tables;
    /// Everything else.
    type Found;
    /// What a look at the paused process needs of the first scan.
    type Known;
    type Output;

    fn tables(&self, image: &Image<ProcessMemory>) -> Self::Tables;
    /// Reason for which the tables contradict themselves; `None` if they agree.
    fn disagreement(&self, tables: &Self::Tables) -> Option<Broken>;
    fn read(
        &self,
        image: &Image<ProcessMemory>,
        moment: &mut HeapScan,
        tables: Self::Tables,
    ) -> Self::Found;
    fn known(&self, image: &Image<ProcessMemory>, found: Self::Found) -> Self::Known;
    /// Reads from the paused process what [`Self::read`] will need and what is new since the first scan.
    fn follow(&self, image: &Image<ProcessMemory>, moment: &HeapScan, known: &Self::Known);
    /// Evaluates everything, after the process has resumed.
    fn conclude(
        &self,
        image: &Image<ProcessMemory>,
        moment: &mut HeapScan,
        found: &Self::Found,
    ) -> Self::Output;
    /// Reads all memory that [`Self::conclude`] needs.
    fn touch(&self, image: &Image<ProcessMemory>, moment: &mut HeapScan, found: &Self::Found);
}

#[derive(Debug)]
pub struct Captured<T, R> {
    pub moment: HeapScan,
    pub more: T,
    pub result: R,
    pub extent: ImageExtent,
    pub consistency: Consistency,
}

/// Captures the heap of a process.
pub fn capture<H: HeapReader>(
    python: &PythonProcess,
    manner: CaptureMode,
    progress: &ReadProgress,
    reader: &H,
) -> Result<Captured<H::Found, H::Output>, CaptureError> {
    let capture = Capture {
        python,
        progress,
        reader,
    };
    match manner {
        CaptureMode::AtOnce => {
            let image = Image::of(python.memory(), MAX_BYTES);
            capture.at_once(image, CaptureMode::AtOnce, &mut PauseAttempts::default())
        }
        CaptureMode::Running => capture.running(),
        CaptureMode::Paused => capture.paused(),
    }
}

struct Capture<'a, H> {
    python: &'a PythonProcess,
    progress: &'a ReadProgress,
    reader: &'a H,
}

type CaptureResult<H> =
    Result<Captured<<H as HeapReader>::Found, <H as HeapReader>::Output>, CaptureError>;

impl<H: HeapReader> Capture<'_, H> {
    /// Reads everything, tables first.
    fn look(&self, image: &Image<ProcessMemory>, scope: ScanScope<'_>) -> (HeapScan, H::Found) {
        self.look_with(image, scope, self.reader.tables(image))
    }

    fn look_with(
        &self,
        image: &Image<ProcessMemory>,
        scope: ScanScope<'_>,
        tables: H::Tables,
    ) -> (HeapScan, H::Found) {
        let mut moment = HeapScan::of(image, self.python, scope, self.progress);
        if moment.broken.is_none() {
            moment.broken = self.reader.disagreement(&tables);
        }
        let found = self.reader.read(image, &mut moment, tables);
        (moment, found)
    }

    /// A running process is read at many moments anyway, and the result says so: missing memory is read on demand.
    fn running(&self) -> CaptureResult<H> {
        let (image, (mut moment, found)) = self.look_at_running();
        let result = self.reader.conclude(&image, &mut moment, &found);
        // Objects that were freed meanwhile are no table of an empty process.
        if at_work(self.python).is_some_and(is_of_the_end) {
            return Err(CaptureError::Ended(DetectError::of_end(self.python.tgid)));
        }
        Ok(Captured {
            moment,
            more: found,
            result,
            extent: image.extent(),
            consistency: Consistency::Running,
        })
    }

    fn paused(&self) -> CaptureResult<H> {
        let (mut image, (mut moment, mut found)) = self.look_at_running();
        let mut stops = PauseAttempts::default();
        for _ in 0..MAX_COPIES {
            let start = Instant::now();
            self.reader.touch(&image, &mut moment, &found);
            let extent = image.extent();
            log::debug!(
                "{} MiB to copy, {:?} for names",
                extent.bytes >> 20,
                start.elapsed()
            );
            let known = self.reader.known(&image, found);
            let scan = PreviousScan::of(moment.objects);
            self.progress.begin(ReadStage::Paused);
            let (stood, tables, pause) = self.copy(&mut stops, &mut image, &scan, &known)?;
            drop((known, scan));
            self.progress.begin(ReadStage::Copy);
            let (mut moment_of_copy, copied) = self.look_with(&image, ScanScope::Copy, tables);
            moment_of_copy.at = stood.at;
            self.progress.begin(ReadStage::Naming);
            let result = self.reader.conclude(&image, &mut moment_of_copy, &copied);
            let extent = image.extent();
            let broken = moment_of_copy.broken;
            let has_lists = broken == stood.broken || broken == Some(Broken::TooMany);
            if extent.full || has_lists && extent.missed == 0 {
                return Ok(Captured {
                    moment: moment_of_copy,
                    more: copied,
                    result,
                    extent,
                    consistency: stops.paused_for(pause),
                });
            }
            // Contents of an old object were moved, or the collector reordered its lists.
            stops.number += 1;
            self.progress.begin(ReadStage::Running);
            drop((moment_of_copy, copied, result));
            image.open();
            image.renew();
            image.forget_use();
            (moment, found) = self.look(&image, ScanScope::Whole(CaptureMode::Running));
        }
        drop((moment, found));
        self.progress.begin(ReadStage::Paused);
        self.at_once(image, CaptureMode::Paused, &mut stops)
    }

    /// Stops the process and copies what was looked at and what is new. Also returns the tables, read from the copy, and
    /// the duration of the pause.
    fn copy(
        &self,
        stops: &mut PauseAttempts,
        image: &mut Image<ProcessMemory>,
        scan: &PreviousScan,
        known: &H::Known,
    ) -> Result<(HeapScan, H::Tables, Duration), CaptureError> {
        // A look at the paused process changes no counter: the pause has its own stage.
        let unseen = ReadProgress::default();
        let look = |image: &Image<ProcessMemory>| {
            let start = Instant::now();
            image.open();
            image.renew();
            let copied = start.elapsed();
            let moment = HeapScan::of(image, self.python, ScanScope::New(scan), &unseen);
            let scanned = start.elapsed() - copied;
            self.reader.follow(image, &moment, known);
            log::debug!(
                "paused: {copied:?} to copy, {scanned:?} for {} new objects, {:?} for tensors",
                moment.objects.objects.len(),
                start.elapsed() - copied - scanned
            );
            moment
        };
        let check = |image: &Image<ProcessMemory>, moment: &mut HeapScan| {
            image.close();
            let tables = self.reader.tables(image);
            // Tables of an incomplete copy say nothing.
            if moment.broken.is_none() && image.extent().missed == 0 {
                moment.broken = self.reader.disagreement(&tables);
            }
            tables
        };
        let ((moment, tables), pause) = stops.look(self.python, image, look, check)?;
        Ok((moment, tables, pause))
    }

    /// Reads everything while the process is paused.
    fn at_once(
        &self,
        mut image: Image<ProcessMemory>,
        manner: CaptureMode,
        stops: &mut PauseAttempts,
    ) -> CaptureResult<H> {
        // Another stop begins with what the one before it has read.
        let mut read = None;
        let look = |image: &Image<ProcessMemory>| {
            image.renew();
            let (mut moment, found) = self.look(image, ScanScope::Whole(manner));
            let result = (manner == CaptureMode::AtOnce)
                .then(|| self.reader.conclude(image, &mut moment, &found));
            read = Some((found, result));
            moment
        };
        let ((mut moment, ()), pause) = stops.look(self.python, &mut image, look, |_, _| ())?;
        image.close();
        // A pause that has ended has read everything.
        let (found, result) = read.ok_or(PauseError::Gone)?;
        let conclude = || self.reader.conclude(&image, &mut moment, &found);
        let result = result.unwrap_or_else(conclude);
        Ok(Captured {
            moment,
            more: found,
            result,
            extent: image.extent(),
            consistency: stops.paused_for(pause),
        })
    }

    /// Scans a running process until the result is consistent, at most [`MAX_WALKS`] times.
    fn look_at_running(&self) -> (Image<ProcessMemory>, (HeapScan, H::Found)) {
        let mut walks = 0;
        loop {
            let stands = is_stopped(self.python.tgid);
            if !stands {
                wait_for_a_good_moment(self.python);
            }
            let image = Image::of(self.python.memory(), MAX_BYTES);
            let found = self.look(&image, ScanScope::Whole(CaptureMode::Running));
            walks += 1;
            let is_whole = found.0.broken.is_none() && !found.0.is_torn;
            if is_whole || stands || walks == MAX_WALKS {
                return (image, found);
            }
            thread::sleep(FIRST_WAIT);
        }
    }
}

#[derive(Debug, Default)]
struct PauseAttempts {
    number: u32,
    last: Option<BrokenPlace>,
}

/// Place at which a list was inconsistent, with the number of stops in a row that found it so.
#[derive(Clone, Copy, Debug)]
struct BrokenPlace {
    address: u64,
    stops: u32,
}

impl PauseAttempts {
    /// Result of the final stop, with the number of failed ones before it.
    fn paused_for(&self, pause: Duration) -> Consistency {
        Consistency::Paused {
            pause,
            retries: self.number,
        }
    }

    /// Scans the paused process at the first suitable moment. `check` looks at the copy once the process runs again, and
    /// may find that the moment was not suitable. Also returns the duration of the pause.
    fn look<T>(
        &mut self,
        python: &PythonProcess,
        image: &mut Image<ProcessMemory>,
        mut look: impl FnMut(&Image<ProcessMemory>) -> HeapScan,
        check: impl Fn(&Image<ProcessMemory>, &mut HeapScan) -> T,
    ) -> Result<((HeapScan, T), Duration), CaptureError> {
        let mut wait = FIRST_WAIT;
        let (mut allocating, mut woken) = (0, 0);
        loop {
            let stands = is_stopped(python.tgid);
            if !stands {
                wait_for_a_good_moment(python);
            }
            let sleepers = if woken < MAX_WOKEN {
                Sleepers::Left
            } else {
                Sleepers::Caught
            };
            let image = &*image;
            let paused = while_paused(python.tgid, sleepers, || {
                // At an unsuitable moment the pause lasts only as long as this check.
                at_work(python).map_or_else(|| Ok(look(image)), Err)
            })?;
            let broken = match paused.result {
                Ok(_) if paused.has_run => Broken::Woken,
                Ok(mut moment) => {
                    let checked = check(image, &mut moment);
                    match moment.broken {
                        None | Some(Broken::TooMany) => {
                            return Ok(((moment, checked), paused.duration));
                        }
                        // The allocator's tables may never agree.
                        Some(Broken::Allocating) if stands || allocating == MAX_ALLOCATING => {
                            return Ok(((moment, checked), paused.duration));
                        }
                        Some(broken) => broken,
                    }
                }
                Err(broken) => broken,
            };
            if is_of_the_end(broken) {
                return Err(CaptureError::Ended(DetectError::of_end(python.tgid)));
            }
            // Somebody may have resumed it meanwhile.
            if stands && is_stopped(python.tgid) {
                return Err(CaptureError::StandsBroken(broken));
            }
            allocating += u32::from(broken == Broken::Allocating);
            woken += u32::from(broken == Broken::Woken);
            self.count(broken)?;
            thread::sleep(wait);
            wait = (wait * 2).min(MAX_WAIT);
        }
    }
}

impl PauseAttempts {
    /// Counts a failed stop. Fails if another stop is useless.
    fn count(&mut self, broken: Broken) -> Result<(), CaptureError> {
        self.number += 1;
        self.last = broken.place().map(|address| {
            let last = self.last.filter(|last| last.address == address);
            let stops = last.map_or(0, |last| last.stops) + 1;
            BrokenPlace { address, stops }
        });
        let stops = self.last.map_or(0, |last| last.stops);
        if stops >= MAX_SAME_PLACE {
            return Err(CaptureError::Damaged { stops, broken });
        }
        if self.number >= MAX_STOPS {
            return Err(CaptureError::NeverWhole(broken));
        }
        Ok(())
    }
}

/// Waits while a collection is in progress. A process that collects nearly all the time would hardly ever be
/// paused between two collections by chance.
fn wait_for_a_good_moment(python: &PythonProcess) {
    let start = Instant::now();
    let is_passing = |broken: Broken| !is_of_the_end(broken);
    while at_work(python).is_some_and(is_passing) && start.elapsed() < MAX_COLLECTION {
        thread::sleep(GLANCE);
    }
}

fn is_stopped(tgid: Tgid) -> bool {
    RunState::of(tgid) == RunState::Stopped
}

/// True if the process has no objects to read any more.
fn is_of_the_end(broken: Broken) -> bool {
    match broken {
        Broken::Finalizing => true,
        Broken::Unreadable(error) => error.cause == Cause::NoProcess,
        _ => false,
    }
}

/// Returns [`Broken::Collecting`] if any interpreter of the process is collecting garbage, [`Broken::Finalizing`] if
/// Python shuts down, or a read error.
fn at_work(python: &PythonProcess) -> Option<Broken> {
    let memory = python.memory();
    match python.is_finalizing() {
        Ok(false) => {}
        Ok(true) => return Some(Broken::Finalizing),
        Err(error) => return Some(error.into()),
    }
    let layout = &python.layout;
    let interpreters = match collector::interpreters(&memory, layout, python.runtime) {
        Ok(interpreters) => interpreters,
        Err(broken) => return Some(broken),
    };
    interpreters.into_iter().find_map(|interpreter| {
        match collector::is_collecting(&memory, &layout.heap.collector, interpreter) {
            Ok(false) => None,
            Ok(true) => Some(Broken::Collecting),
            Err(error) => Some(error.into()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of stops until one error ends them.
    fn stops(broken: impl Fn(u32) -> Broken) -> (u32, CaptureError) {
        let mut stops = PauseAttempts::default();
        for number in 1.. {
            if let Err(error) = stops.count(broken(number)) {
                return (number, error);
            }
        }
        unreachable!("the number of stops is limited")
    }

    #[test]
    fn a_list_that_is_inconsistent_at_one_place_is_given_up_early() {
        for damage in [
            Broken::Link(0x7000),
            Broken::Unreadable(Cause::NotMapped.at(0x7000)),
        ] {
            let (number, error) = stops(|_| damage);
            assert_eq!(number, MAX_SAME_PLACE);
            assert!(matches!(error, CaptureError::Damaged { stops, .. } if stops == number));
        }
    }

    #[test]
    fn a_list_that_changes_is_read_up_to_the_limit_of_stops() {
        let changing = [
            |number: u32| Broken::Link(u64::from(number)),
            // Every other stop finds a collection.
            |number: u32| match number % 2 {
                0 => Broken::Collecting,
                _ => Broken::Link(0x7000),
            },
            |_: u32| Broken::Collecting,
        ];
        for broken in changing {
            let (number, error) = stops(broken);
            assert_eq!(number, MAX_STOPS);
            assert!(matches!(error, CaptureError::NeverWhole(_)));
        }
    }
}
