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

#[derive(Debug)]
pub struct Captured<T, R> {
    pub moment: HeapScan,
    pub more: T,
    pub result: R,
    pub extent: ImageExtent,
    pub consistency: Consistency,
}

impl<T, R> Captured<T, R> {
    fn of(
        moment: HeapScan,
        more: T,
        result: R,
        image: &Image<ProcessMemory>,
        consistency: Consistency,
    ) -> Self {
        Self {
            moment,
            more,
            result,
            extent: image.extent(),
            consistency,
        }
    }
}

/// Captures the heap of a process. `more` reads further structures at the same moment, `conclude` evaluates the
/// result after the process has resumed. Both also run in the first scan, to show which pages they need.
pub fn capture<T: Send, R: Send>(
    python: &PythonProcess,
    manner: CaptureMode,
    progress: &ReadProgress,
    more: impl Fn(&Image<ProcessMemory>, &mut HeapScan) -> T + Sync,
    conclude: impl Fn(&Image<ProcessMemory>, &mut HeapScan, &T) -> R + Sync,
) -> Result<Captured<T, R>, CaptureError> {
    let look = |image: &Image<ProcessMemory>, what: ScanScope<'_>| {
        // A look at the paused process changes no counter: the pause has its own stage.
        let unseen = ReadProgress::default();
        let progress = match what {
            ScanScope::New(_) => &unseen,
            ScanScope::Whole(_) | ScanScope::Copy => progress,
        };
        let mut moment = HeapScan::of(image, python, what, progress);
        let more = more(image, &mut moment);
        (moment, more)
    };
    if manner == CaptureMode::AtOnce {
        return capture_at_once(python, &look, &conclude);
    }
    let (mut image, (mut moment, mut found)) = look_at_running(python, &look);
    // A running process is read at many moments anyway, and the result says so: missing memory is read on demand.
    let mut result = conclude(&image, &mut moment, &found);
    if manner == CaptureMode::Running {
        // Objects that were freed meanwhile are no table of an empty process.
        if at_work(python).is_some_and(is_of_the_end) {
            return Err(CaptureError::Ended(DetectError::of_end(python.tgid)));
        }
        let how = Consistency::Running;
        return Ok(Captured::of(moment, found, result, &image, how));
    }
    let mut stops = PauseAttempts::default();
    for _ in 0..MAX_COPIES {
        drop((found, result));
        let known = PreviousScan::of(moment.objects);
        let scan_paused = |image: &Image<ProcessMemory>| look(image, ScanScope::New(&known));
        progress.begin(ReadStage::Paused);
        let ((stood, _), pause) = stops.look(python, &mut image, &scan_paused)?;
        image.close();
        progress.begin(ReadStage::Copy);
        (moment, found) = look(&image, ScanScope::Copy);
        moment.at = stood.at;
        progress.begin(ReadStage::Naming);
        result = conclude(&image, &mut moment, &found);
        let extent = image.extent();
        let has_lists = moment.broken == stood.broken || moment.broken == Some(Broken::TooMany);
        if extent.full || has_lists && extent.missed == 0 {
            let how = stops.paused_for(pause);
            return Ok(Captured::of(moment, found, result, &image, how));
        }
        // Contents of an old object were moved, or the collector reordered its lists.
        stops.number += 1;
        progress.begin(ReadStage::Running);
        image.open();
        image.renew();
        drop((found, result));
        (moment, found) = look(&image, ScanScope::Whole(CaptureMode::Running));
        result = conclude(&image, &mut moment, &found);
    }
    drop((moment, found, result));
    progress.begin(ReadStage::Paused);
    let scan_paused =
        |image: &Image<ProcessMemory>| look(image, ScanScope::Whole(CaptureMode::Paused));
    let ((mut moment, more), pause) = stops.look(python, &mut image, &scan_paused)?;
    image.close();
    let result = conclude(&image, &mut moment, &more);
    let how = stops.paused_for(pause);
    Ok(Captured::of(moment, more, result, &image, how))
}

fn capture_at_once<T: Send, R: Send>(
    python: &PythonProcess,
    look: &(impl Fn(&Image<ProcessMemory>, ScanScope<'_>) -> (HeapScan, T) + Sync),
    conclude: &(impl Fn(&Image<ProcessMemory>, &mut HeapScan, &T) -> R + Sync),
) -> Result<Captured<T, R>, CaptureError> {
    let mut image = Image::of(python.memory(), MAX_BYTES);
    let mut stops = PauseAttempts::default();
    let all = |image: &Image<ProcessMemory>| {
        let (mut moment, more) = look(image, ScanScope::Whole(CaptureMode::AtOnce));
        let result = conclude(image, &mut moment, &more);
        (moment, (more, result))
    };
    let ((moment, (more, result)), pause) = stops.look(python, &mut image, &all)?;
    let how = stops.paused_for(pause);
    Ok(Captured::of(moment, more, result, &image, how))
}

/// Scans a running process until the result is consistent, at most [`MAX_WALKS`] times.
fn look_at_running<T>(
    python: &PythonProcess,
    look: &impl Fn(&Image<ProcessMemory>, ScanScope<'_>) -> (HeapScan, T),
) -> (Image<ProcessMemory>, (HeapScan, T)) {
    let mut walks = 0;
    loop {
        let stands = is_stopped(python.tgid);
        if !stands {
            wait_for_a_good_moment(python);
        }
        let image = Image::of(python.memory(), MAX_BYTES);
        let found = look(&image, ScanScope::Whole(CaptureMode::Running));
        walks += 1;
        let is_whole = found.0.broken.is_none() && !found.0.is_torn;
        if is_whole || stands || walks == MAX_WALKS {
            return (image, found);
        }
        thread::sleep(FIRST_WAIT);
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

    /// Scans the paused process at the first suitable moment. Also returns the duration of the pause.
    fn look<T: Send>(
        &mut self,
        python: &PythonProcess,
        image: &mut Image<ProcessMemory>,
        look: &(impl Fn(&Image<ProcessMemory>) -> (HeapScan, T) + Sync),
    ) -> Result<((HeapScan, T), Duration), CaptureError> {
        let mut wait = FIRST_WAIT;
        let (mut allocating, mut woken) = (0, 0);
        loop {
            let stands = is_stopped(python.tgid);
            if !stands {
                wait_for_a_good_moment(python);
            }
            let image = &mut *image;
            let sleepers = if woken < MAX_WOKEN {
                Sleepers::Left
            } else {
                Sleepers::Caught
            };
            let paused = while_paused(python.tgid, sleepers, move || {
                // At an unsuitable moment the pause lasts only as long as this check.
                if let Some(broken) = at_work(python) {
                    return Err(broken);
                }
                image.renew();
                Ok(look(image))
            })?;
            let broken = match paused.result {
                Ok(_) if paused.has_run => Broken::Woken,
                Ok(found) => match found.0.broken {
                    None | Some(Broken::TooMany) => return Ok((found, paused.duration)),
                    // The allocator's tables may never agree.
                    Some(Broken::Allocating) if stands || allocating == MAX_ALLOCATING => {
                        return Ok((found, paused.duration));
                    }
                    Some(broken) => broken,
                },
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
