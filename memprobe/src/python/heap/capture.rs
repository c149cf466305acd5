//! Reads the heap of a process at one moment, while the process is paused or keeps running.
//!
//! In paused mode everything is scanned twice:
//!
//! 1. The first scan, while the process runs, only shows which pages are needed.
//! 2. The process is paused. Those pages are read at once and compared with the first scan. New objects are scanned, and
//!    tensors and blocks on pages that have changed.
//! 3. The process resumes, and the second scan reads the copy. It begins with the allocator's tables: if the process was
//!    stopped within an operation of the allocator, it is paused again.
//!
//! If the copy is incomplete, because contents of an old object were moved meanwhile, it is scanned with the missing
//! parts from the running process, and the second and third step are repeated.
//! As a last resort everything is scanned and evaluated while the process is paused.

mod attempts;

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use self::attempts::{
    MAX_COLLECTION, PauseAttempts, at_work, is_of_the_end, is_stopped, wait_for_a_good_moment,
};
use super::Heap;
use super::class::Classes;
use super::collector::{self, Broken, ListWalk, LiveLists, TornLink, WalkExtent};
use super::frames::{self, Variables};
use super::image::{Image, ImageExtent};
use super::modules::{self, ModuleObject};
use super::optimizers::{self, Optimizers};
use super::process_scan::{PreviousScan, ProcessScan};
use super::progress::{ReadProgress, ReadStage};
use crate::event::TimeNs;
use crate::event::tensors::Consistency;
use crate::process::memory::{ProcessMemory, ReadMemory, ReadResult, Unreadable};
use crate::process::pause::PauseError;
use crate::python::{DetectError, PythonProcess};

/// Most bytes kept of a process's memory: enough for some four million tensors, or forty million objects.
/// [`Broken::TooLarge`] names it.
const MAX_BYTES: usize = 4 << 30;

/// Part of them that is left to Python's objects where the allocator's tables would take more.
const OBJECT_BYTES: usize = MAX_BYTES / 4;

/// Most stops before the capture fails. Each found a collection in progress or inconsistent lists.
const MAX_STOPS: u32 = 100;

/// First time between two stops.
const FIRST_WAIT: Duration = Duration::from_millis(2);

/// Most scans of a running process before the result is accepted.
const MAX_WALKS: u32 = 5;

/// Most scans of a running process before a copy. A copy that is incomplete still has the lists of one moment.
const MAX_WALKS_FOR_PAGES: u32 = 3;

/// Time in which scans for a result are repeated whatever their number if their tensors could not be read: there would be
/// no result.
const TORN_SCANS: Duration = Duration::from_secs(10);

/// Time after which scans are not repeated because the allocator was at work: its tables are so large that they change
/// during every scan.
const LONG_SCAN: Duration = Duration::from_millis(500);

/// Most incomplete copies before everything is scanned while the process is paused, several times longer than for a copy.
const MAX_COPIES: u32 = 3;

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
    /// Place at which a list was inconsistent.
    torn_link: Option<TornLink>,
    /// True if the result contradicts itself, as can happen while the process runs.
    pub is_torn: bool,
    pub no_frames: Option<Unreadable>,
}

#[derive(Clone, Copy, Debug)]
enum ScanScope<'a> {
    /// Everything. Reads into the image whatever later steps need.
    Whole(CaptureMode),
    /// Everything of a process that runs, to know which pages a pause has to copy. Also reads into the image.
    Pages,
    /// New objects since an earlier scan, and its modules and so on if these may have changed. Also reads into the
    /// image.
    New(&'a PreviousScan),
    /// Everything, from an image that is already complete.
    Copy,
}

impl HeapScan {
    /// Reads Python's objects, and marks their memory: names need it to the end.
    fn of(
        image: &Image<impl ReadMemory>,
        python: &PythonProcess,
        look: ScanScope<'_>,
        progress: &ReadProgress,
    ) -> Self {
        image.marking(|| Self::read(image, python, look, progress))
    }

    fn read(
        image: &Image<impl ReadMemory>,
        python: &PythonProcess,
        look: ScanScope<'_>,
        progress: &ReadProgress,
    ) -> Self {
        let mut moment = Self {
            at: now(),
            mode: match look {
                ScanScope::Whole(manner) => manner,
                ScanScope::Pages => CaptureMode::Running,
                ScanScope::New(_) | ScanScope::Copy => CaptureMode::Paused,
            },
            ..Self::default()
        };
        let layout = &python.layout;
        let live = RunningLists::of(python);
        let reach = match look {
            ScanScope::New(known) => WalkExtent::Added(&known.endings),
            ScanScope::Pages => WalkExtent::Running(&live),
            ScanScope::Whole(_) | ScanScope::Copy => WalkExtent::All,
        };
        let heap = Heap::of(image, layout);
        let objects = &mut moment.objects;
        let add = |listed| objects.add(&heap, listed);
        let mut walk = ListWalk::new(image, &layout.heap.collector, reach, add);
        let interpreters = collector::interpreters(image, layout, python.runtime);
        let walked = interpreters.and_then(|interpreters| {
            let mut interpreters = interpreters.into_iter();
            interpreters.try_for_each(|interpreter| walk.interpreter(interpreter))
        });
        moment.torn_link = walk.torn;
        moment.broken = walked.err();
        if image.extent().full && moment.broken.is_some() {
            moment.broken = Some(Broken::of_full_copy(moment.broken));
        }
        moment.objects.add_context_variables(&heap);
        match look {
            ScanScope::Whole(_) | ScanScope::Pages => {
                moment.objects.keep_contents_with(&heap, progress);
            }
            ScanScope::New(known) => {
                moment.objects.keep_contents(&heap);
                known.keep_moved_contents(&heap);
                moment.objects.add_known(&heap, known);
                if image.has_followed_changed() {
                    moment.objects.add_known_holders(&heap, known);
                }
            }
            ScanScope::Copy => {}
        }
        image.following(|| {
            moment.modules = modules::read(&heap, &moment.objects.modules);
            moment.optimizers = optimizers::read(&heap, &moment.objects.optimizers);
            moment.cached = optimizers::cached(&heap, &moment.objects.kv_caches);
        });
        match frames::variables(&heap, python, &moment.objects) {
            Ok(variables) => moment.variables = variables,
            Err(error) => moment.no_frames = Some(error),
        }
        moment.classes = heap.into_classes();
        moment
    }
}

/// The lists of a process, read past the image.
struct RunningLists<'a> {
    python: &'a PythonProcess,
    /// Time that is left for waits.
    left: Cell<Duration>,
}

impl<'a> RunningLists<'a> {
    fn of(python: &'a PythonProcess) -> Self {
        let left = Cell::new(MAX_COLLECTION);
        Self { python, left }
    }
}

impl LiveLists for RunningLists<'_> {
    fn words(&self, node: u64) -> ReadResult<[u64; 4]> {
        collector::words(&self.python.memory(), node)
    }

    fn wait_for_collection(&self) {
        // A process that stands does not end it.
        let left = self.left.get();
        if left.is_zero() || is_stopped(self.python.tgid) {
            return;
        }
        let start = Instant::now();
        wait_for_a_good_moment(self.python, left);
        self.left.set(left.saturating_sub(start.elapsed()));
    }
}

/// Drops memory that names do not need, once PyTorch's objects in it were read. Returns the extent before.
fn keep_for_names(image: &Image<ProcessMemory>) -> ImageExtent {
    let extent = image.extent();
    image.keep_marked();
    log::debug!(
        "{} of {} MiB kept for names",
        image.extent().bytes >> 20,
        extent.bytes >> 20
    );
    extent
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
    /// Results of the first scan for the look at the paused process.
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
    /// Evaluates everything, after the process has resumed. May take parts of `found` for the result.
    fn conclude(
        &self,
        image: &Image<ProcessMemory>,
        moment: &mut HeapScan,
        found: &mut Self::Found,
    ) -> Self::Output;
    /// Reads all memory that [`Self::conclude`] needs. Leaves the objects and their classes.
    fn touch(&self, image: &Image<ProcessMemory>, moment: &mut HeapScan, found: &mut Self::Found);
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
        let tables = image.reserving(OBJECT_BYTES, || self.reader.tables(image));
        self.look_with(image, scope, tables)
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
        if image.extent().full {
            moment.broken = Some(Broken::of_full_copy(moment.broken));
        }
        (moment, found)
    }

    /// A running process is read at many moments anyway, and the result says so: missing memory is read on demand.
    fn running(&self) -> CaptureResult<H> {
        let (image, (mut moment, mut found)) = self.look_at_running(ScanUse::Result);
        let extent = keep_for_names(&image);
        let result = self.reader.conclude(&image, &mut moment, &mut found);
        // Objects that were freed meanwhile are no table of an empty process.
        if at_work(self.python).is_some_and(is_of_the_end) {
            return Err(CaptureError::Ended(DetectError::of_end(self.python.tgid)));
        }
        Ok(Captured {
            moment,
            more: found,
            result,
            extent: ImageExtent {
                missed: image.extent().missed,
                ..extent
            },
            consistency: Consistency::Running,
        })
    }

    fn paused(&self) -> CaptureResult<H> {
        let (image, (mut moment, mut found)) = self.look_at_running(ScanUse::Pages);
        let mut stops = PauseAttempts::after(&moment);
        for _ in 0..MAX_COPIES {
            let start = Instant::now();
            image.marking(|| self.reader.touch(&image, &mut moment, &mut found));
            let extent = image.extent();
            log::debug!(
                "{} MiB to copy, {:?} for names",
                extent.bytes >> 20,
                start.elapsed()
            );
            let known = self.reader.known(&image, found);
            let scan = PreviousScan::of(moment.objects, &moment.classes);
            image.prepare_to_renew();
            self.progress.begin(ReadStage::Paused);
            let (stood, tables, pause) = self.copy(&mut stops, &image, &scan, &known)?;
            drop((known, scan));
            self.progress.begin(ReadStage::Copy);
            let consistency = stops.paused_for(pause);
            if let Some(captured) = self.evaluate(&image, &stood, tables, consistency) {
                return Ok(captured);
            }
            stops.number += 1;
            self.progress.begin(ReadStage::Running);
            (moment, found) = self.complete(&image);
        }
        drop((moment, found));
        self.progress.begin(ReadStage::Paused);
        self.at_once(image, CaptureMode::Paused, &mut stops)
    }

    /// Scans and evaluates a copy. `None` if it lacks memory: contents of an old object were moved, or the collector
    /// reordered its lists.
    fn evaluate(
        &self,
        image: &Image<ProcessMemory>,
        stood: &HeapScan,
        tables: H::Tables,
        consistency: Consistency,
    ) -> Option<Captured<H::Found, H::Output>> {
        let (mut moment, mut more) = self.look_with(image, ScanScope::Copy, tables);
        moment.at = stood.at;
        let broken = moment.broken;
        let has_lists = broken == stood.broken || broken.is_some_and(Broken::is_limit);
        let is_complete = || {
            let ImageExtent { missed, full, .. } = image.extent();
            let is_complete = full || has_lists && missed == 0;
            if !is_complete {
                log::debug!("the copy lacks {missed} pieces: {broken:?}");
            }
            is_complete
        };
        if !is_complete() {
            return None;
        }
        let extent = keep_for_names(image);
        self.progress.begin(ReadStage::Naming);
        let result = self.reader.conclude(image, &mut moment, &mut more);
        is_complete().then(|| Captured {
            moment,
            more,
            result,
            extent: ImageExtent {
                missed: image.extent().missed,
                ..extent
            },
            consistency,
        })
    }

    /// Scans an incomplete copy with the missing parts from the running process, to know the pages for another copy.
    fn complete(&self, image: &Image<ProcessMemory>) -> (HeapScan, H::Found) {
        image.open();
        image.forget_use();
        let completed = self.look(image, ScanScope::Whole(CaptureMode::Running));
        if ScanUse::Pages.accepts(&completed.0, Duration::ZERO) {
            return completed;
        }
        log::debug!("the copy has no lists: {:?}", completed.0.broken);
        drop(completed);
        self.look_until_whole(ScanUse::Pages, || {
            image.renew();
            image.forget_use();
            self.look(image, ScanScope::Pages)
        })
    }

    /// Stops the process and copies what was looked at and what is new. Also returns the tables, read from the copy, and
    /// the duration of the pause.
    fn copy(
        &self,
        stops: &mut PauseAttempts,
        image: &Image<ProcessMemory>,
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

    /// Reads and evaluates everything while the process is paused: only the evaluation shows which memory it needs.
    fn at_once(
        &self,
        image: Image<ProcessMemory>,
        manner: CaptureMode,
        stops: &mut PauseAttempts,
    ) -> CaptureResult<H> {
        // Another stop begins with what the one before it has read.
        let mut read = None;
        let look = |image: &Image<ProcessMemory>| {
            image.renew();
            let (mut moment, mut found) = self.look(image, ScanScope::Whole(manner));
            // Such a moment is followed by another stop.
            let is_broken = moment
                .broken
                .is_some_and(|broken| !broken.is_limit() && broken != Broken::Allocating);
            read = (!is_broken).then(|| {
                let result = self.reader.conclude(image, &mut moment, &mut found);
                (found, result)
            });
            moment
        };
        let ((moment, ()), pause) = stops.look(self.python, &image, look, |_, _| ())?;
        image.close();
        // A pause that has ended has read everything.
        let (found, result) = read.ok_or(PauseError::Gone)?;
        Ok(Captured {
            moment,
            more: found,
            result,
            extent: image.extent(),
            consistency: stops.paused_for(pause),
        })
    }

    fn look_at_running(&self, purpose: ScanUse) -> (Image<ProcessMemory>, (HeapScan, H::Found)) {
        let mut image = Image::of(self.python.memory(), MAX_BYTES);
        let found = self.look_until_whole(purpose, || {
            image = Image::of(self.python.memory(), MAX_BYTES);
            let scope = match purpose {
                ScanUse::Pages => ScanScope::Pages,
                ScanUse::Result => ScanScope::Whole(CaptureMode::Running),
            };
            self.look(&image, scope)
        });
        (image, found)
    }

    /// Scans a running process until the result is good enough for its use, a limited number of times.
    fn look_until_whole(
        &self,
        purpose: ScanUse,
        mut look: impl FnMut() -> (HeapScan, H::Found),
    ) -> (HeapScan, H::Found) {
        let start = Instant::now();
        let mut walks = 0;
        loop {
            let stands = is_stopped(self.python.tgid);
            if !stands {
                wait_for_a_good_moment(self.python, MAX_COLLECTION);
            }
            let found = look();
            walks += 1;
            let (moment, elapsed) = (&found.0, start.elapsed());
            log::debug!("scan {walks}: {elapsed:?}, {:?}", moment.broken);
            if stands
                || purpose.accepts(moment, elapsed)
                || purpose.gives_up(walks, moment, elapsed)
            {
                return found;
            }
            drop(found);
            thread::sleep(FIRST_WAIT);
        }
    }
}

/// Use of a scan of the running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanUse {
    /// Shows the pages that a pause has to copy.
    Pages,
    /// Is the result.
    Result,
}

impl ScanUse {
    /// True if no more scans follow this many. A torn scan would be no result, but shows pages.
    fn gives_up(self, walks: u32, scan: &HeapScan, elapsed: Duration) -> bool {
        match self {
            Self::Pages => walks >= MAX_WALKS_FOR_PAGES,
            Self::Result => walks >= MAX_WALKS && (!scan.is_torn || elapsed >= TORN_SCANS),
        }
    }

    /// True if another scan would serve this use no better. The pages of tables that change are read again in the pause.
    fn accepts(self, scan: &HeapScan, elapsed: Duration) -> bool {
        if scan.is_torn {
            return false;
        }
        match (scan.broken, self) {
            (None, _) | (Some(Broken::Allocating), Self::Pages) => true,
            (Some(Broken::Allocating), Self::Result) => elapsed >= LONG_SCAN,
            (Some(broken), _) => broken.is_limit(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_the_copy_is_said_in_gib() {
        let limit = format!("the {} GiB that", MAX_BYTES >> 30);
        let said = Broken::TooLarge.to_string();
        assert!(said.contains(&limit), "{said}");
    }

    #[test]
    fn an_allocator_at_work_repeats_short_scans_for_a_result_and_the_limit_repeats_none() {
        let scan = |broken| HeapScan {
            broken,
            ..HeapScan::default()
        };
        let allocating = scan(Some(Broken::Allocating));
        assert!(ScanUse::Pages.accepts(&allocating, Duration::ZERO));
        assert!(!ScanUse::Result.accepts(&allocating, Duration::ZERO));
        assert!(ScanUse::Result.accepts(&allocating, LONG_SCAN));
        let changed = scan(Some(Broken::Link(0x7000)));
        let torn = HeapScan {
            is_torn: true,
            ..HeapScan::default()
        };
        for purpose in [ScanUse::Pages, ScanUse::Result] {
            assert!(purpose.accepts(&scan(None), Duration::ZERO));
            for limit in [Broken::TooMany, Broken::TooLarge] {
                assert!(purpose.accepts(&scan(Some(limit)), Duration::ZERO));
            }
            assert!(!purpose.accepts(&changed, LONG_SCAN));
            assert!(!purpose.accepts(&torn, LONG_SCAN));
        }
    }

    #[test]
    fn scans_whose_tensors_could_not_be_read_are_repeated_for_a_while_if_there_would_be_no_result()
    {
        let broken = HeapScan {
            broken: Some(Broken::Link(0x7000)),
            ..HeapScan::default()
        };
        let torn = HeapScan {
            is_torn: true,
            ..HeapScan::default()
        };
        let gives_up = |purpose: ScanUse, walks, scan| purpose.gives_up(walks, scan, LONG_SCAN);
        assert!(!gives_up(ScanUse::Result, MAX_WALKS - 1, &broken));
        assert!(gives_up(ScanUse::Result, MAX_WALKS, &broken));
        assert!(!gives_up(ScanUse::Result, MAX_WALKS, &torn));
        assert!(ScanUse::Result.gives_up(MAX_WALKS, &torn, TORN_SCANS));
        assert!(gives_up(ScanUse::Pages, MAX_WALKS_FOR_PAGES, &torn));
    }
}
