//! Reads the heap of a process at one moment: while it stands still, or while it runs on.
//!
//! Everything is looked at twice. The first time the process runs on, and what is found then is thrown
//! away: it shows which pages matter. Then it stands still: these pages are copied at once, and only what is new
//! since is looked for. It runs on while the copy is looked at the second time. Where that does not have
//! all, because what an old object holds was moved meanwhile, all of it begins anew, and at last everything is looked
//! at while the process stands still.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use super::Heap;
use super::census::{Census, Known};
use super::class::Classes;
use super::collector::{self, Broken, Reach};
use super::frames::{self, Variables};
use super::image::{Extent, Image};
use super::modules::{self, Module};
use super::optimizers::{self, Optimizers};
use crate::event::TimeNs;
use crate::symbolize::python::PythonProcess;
use crate::target::memory::{ProcessMemory, ReadMemory};
use crate::target::pause::{PauseError, is_stopped, while_paused};
use crate::tensors::Consistency;

/// The most of a process's memory that is kept: that of some twenty million objects.
const MOST_BYTES: usize = 2 << 30;

/// How often a process is stopped before it is given up: each time it was in the middle of a
/// collection, or of a change to the lists of its objects.
const MOST_STOPS: u32 = 100;

/// How many of these times the allocator may be at work, before what it is at is taken as it is.
const MOST_ALLOCATING: u32 = 10;

/// How long it runs on in between, at first and at most. A collection of a million objects takes half
/// a second.
const FIRST_WAIT: Duration = Duration::from_millis(2);
const MOST_WAIT: Duration = Duration::from_millis(50);

/// How long the end of a collection is waited for, and how often it is looked for meanwhile.
const MOST_COLLECTION: Duration = Duration::from_secs(1);
const GLANCE: Duration = Duration::from_micros(100);

/// How often a process that runs on is looked at before what was found has to be enough.
const MOST_WALKS: u32 = 5;

/// How often it may turn out that a copy does not have all, before everything is looked at while the process stands still.
const MOST_COPIES: u32 = 2;

/// How a process is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// It stands still while it is read; what can be is read before that, for the shortest pause.
    #[default]
    Paused,
    /// It stands still at once, and until all is read: some times longer, but before it can do much more.
    AtOnce,
    /// It runs on.
    Running,
}

/// Why a heap could not be read.
#[derive(Debug)]
pub enum Why {
    /// The process could not be stopped.
    Pause(PauseError),
    /// It was never stopped at a moment at which its lists were whole.
    NeverWhole(Broken),
    /// Somebody has stopped it at a moment at which its lists are not whole.
    StandsBroken(Broken),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pause(error) => error.fmt(f),
            Self::NeverWhole(broken) => write!(
                f,
                "it was stopped {MOST_STOPS} times, and never at a moment at which it could be \
                 read: {broken}.\nTry again, or read it while it runs with --nonblocking"
            ),
            Self::StandsBroken(broken) => write!(
                f,
                "a signal (SIGSTOP, Ctrl-Z) has stopped it at a moment at which it cannot be read: \
                 {broken}.\nLet it run on (kill -CONT) and try again, or read it as it stands with \
                 --nonblocking"
            ),
        }
    }
}

impl std::error::Error for Why {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Pause(error) => Some(error),
            Self::NeverWhole(broken) | Self::StandsBroken(broken) => Some(broken),
        }
    }
}

impl From<PauseError> for Why {
    fn from(error: PauseError) -> Self {
        Self::Pause(error)
    }
}

/// What was found of a heap while it was read.
#[derive(Debug, Default)]
pub struct Moment {
    /// When, on the clock of the events.
    pub at: TimeNs,
    /// Whether the process stood still meanwhile.
    pub manner: Manner,
    /// The objects.
    pub census: Census,
    /// Their classes.
    pub classes: Classes,
    /// The modules of PyTorch.
    pub modules: Vec<Module>,
    /// The optimizers.
    pub optimizers: Optimizers,
    /// The variables of frames.
    pub variables: Variables,
    /// Why not all objects are there; `None` where they are.
    pub broken: Option<Broken>,
    /// Whether what was found contradicts itself, as it may where the process ran on meanwhile.
    pub is_torn: bool,
    /// Why there are no variables.
    pub no_frames: Option<crate::target::memory::Unreadable>,
}

/// What is looked at of a heap.
#[derive(Clone, Copy, Debug)]
enum Look<'a> {
    /// Everything; what is needed to go on from there is read into the image.
    Whole(Manner),
    /// What is new since this was known, and that itself; likewise.
    New(&'a Known),
    /// Everything, of an image that has it.
    Copy,
}

impl Moment {
    /// Finds what there is in a heap.
    fn of(image: &Image<impl ReadMemory>, python: &PythonProcess, look: Look<'_>) -> Self {
        let mut moment = Self {
            at: now(),
            manner: match look {
                Look::Whole(manner) => manner,
                Look::New(_) | Look::Copy => Manner::Paused,
            },
            ..Self::default()
        };
        let mut listed = Vec::new();
        let layout = &python.layout;
        let reach = match look {
            Look::New(known) => Reach::Added(&known.endings),
            Look::Whole(_) | Look::Copy => Reach::All,
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
        let classes = &mut moment.classes;
        moment.census = Census::of(&heap, classes, &listed);
        drop(listed);
        match look {
            Look::Whole(_) => moment.census.keep_contents(&heap, classes),
            Look::New(known) => {
                moment.census.keep_contents(&heap, classes);
                moment.census.add_known(&heap, classes, known);
            }
            Look::Copy => {}
        }
        moment.modules = modules::read(&heap, classes, &moment.census.modules);
        moment.optimizers = optimizers::read(&heap, classes, &moment.census.optimizers);
        match frames::variables(&heap, classes, python, &moment.census) {
            Ok(variables) => moment.variables = variables,
            Err(why) => moment.no_frames = Some(why),
        }
        moment
    }
}

/// Now, on the clock of the events (`bpf_ktime_get_ns` is `CLOCK_MONOTONIC`).
fn now() -> TimeNs {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    TimeNs(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// A heap as it was read.
#[derive(Debug)]
pub struct Captured<T, R> {
    /// What was found.
    pub moment: Moment,
    /// What was found beside it.
    pub more: T,
    /// What followed from that.
    pub result: R,
    /// What was read came to this.
    pub extent: Extent,
    /// How far it belongs to one moment.
    pub consistency: Consistency,
}

impl<T, R> Captured<T, R> {
    /// What was found in an image.
    fn of(
        moment: Moment,
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

/// Reads the heap of a process. `more` reads further things at the same moment; `conclude` finds out
/// what follows when the process runs on again. Both are called before, to show which pages they need.
///
/// # Errors
/// [`Why`].
pub fn capture<T: Send, R: Send>(
    python: &PythonProcess,
    manner: Manner,
    more: impl Fn(&Image<ProcessMemory>, &mut Moment) -> T + Sync,
    conclude: impl Fn(&Image<ProcessMemory>, &mut Moment, &T) -> R + Sync,
) -> Result<Captured<T, R>, Why> {
    let look = |image: &Image<ProcessMemory>, what: Look<'_>| {
        let mut moment = Moment::of(image, python, what);
        let more = more(image, &mut moment);
        (moment, more)
    };
    if manner == Manner::AtOnce {
        return capture_at_once(python, &look, &conclude);
    }
    let (mut image, (mut moment, mut found)) = look_at_running(python, &look);
    // Of a process that runs on, what is missing is read later like the rest: it is of many moments
    // anyway, and said to be.
    let mut result = conclude(&image, &mut moment, &found);
    if manner == Manner::Running {
        let how = Consistency::Running;
        return Ok(Captured::of(moment, found, result, &image, how));
    }
    let mut stops = Stops::default();
    for _ in 0..MOST_COPIES {
        drop((found, result));
        let known = Known::of(moment.census);
        let standing = |image: &Image<ProcessMemory>| look(image, Look::New(&known));
        let ((stood, _), pause) = stops.look(python, &mut image, &standing)?;
        image.close();
        (moment, found) = look(&image, Look::Copy);
        moment.at = stood.at;
        result = conclude(&image, &mut moment, &found);
        let extent = image.extent();
        let has_lists = moment.broken == stood.broken || moment.broken == Some(Broken::TooMany);
        if extent.full || has_lists && extent.missed == 0 {
            let how = stops.paused_for(pause);
            return Ok(Captured::of(moment, found, result, &image, how));
        }
        // What an old object holds was moved meanwhile, or the lists were put into another order.
        stops.number += 1;
        image.open();
        image.renew();
        drop((found, result));
        (moment, found) = look(&image, Look::Whole(Manner::Running));
        result = conclude(&image, &mut moment, &found);
    }
    drop((moment, found, result));
    let standing = |image: &Image<ProcessMemory>| look(image, Look::Whole(Manner::Paused));
    let ((mut moment, more), pause) = stops.look(python, &mut image, &standing)?;
    image.close();
    let result = conclude(&image, &mut moment, &more);
    let how = stops.paused_for(pause);
    Ok(Captured::of(moment, more, result, &image, how))
}

/// Reads all of a heap while the process stands still.
fn capture_at_once<T: Send, R: Send>(
    python: &PythonProcess,
    look: &(impl Fn(&Image<ProcessMemory>, Look<'_>) -> (Moment, T) + Sync),
    conclude: &(impl Fn(&Image<ProcessMemory>, &mut Moment, &T) -> R + Sync),
) -> Result<Captured<T, R>, Why> {
    let mut image = Image::of(python.memory(), MOST_BYTES);
    let mut stops = Stops::default();
    let all = |image: &Image<ProcessMemory>| {
        let (mut moment, more) = look(image, Look::Whole(Manner::AtOnce));
        let result = conclude(image, &mut moment, &more);
        (moment, (more, result))
    };
    let ((moment, (more, result)), pause) = stops.look(python, &mut image, &all)?;
    let how = stops.paused_for(pause);
    Ok(Captured::of(moment, more, result, &image, how))
}

/// Looks at a process that runs on: until all that is found fits together, or as often as makes sense.
fn look_at_running<T>(
    python: &PythonProcess,
    look: &impl Fn(&Image<ProcessMemory>, Look<'_>) -> (Moment, T),
) -> (Image<ProcessMemory>, (Moment, T)) {
    let mut walks = 0;
    loop {
        let stands = is_stopped(python.tgid);
        if !stands {
            wait_for_a_good_moment(python);
        }
        let image = Image::of(python.memory(), MOST_BYTES);
        let found = look(&image, Look::Whole(Manner::Running));
        walks += 1;
        let is_whole = found.0.broken.is_none() && !found.0.is_torn;
        if is_whole || stands || walks == MOST_WALKS {
            return (image, found);
        }
        thread::sleep(FIRST_WAIT);
    }
}

/// How often a process was stopped in vain.
#[derive(Debug, Default)]
struct Stops {
    number: u32,
}

impl Stops {
    /// What the last stop cost the process, after those.
    fn paused_for(&self, pause: Duration) -> Consistency {
        Consistency::Paused {
            pause,
            retries: self.number,
        }
    }

    /// Looks at a process that stands still: at the first good moment. Says for how long it stood.
    fn look<T: Send>(
        &mut self,
        python: &PythonProcess,
        image: &mut Image<ProcessMemory>,
        look: &(impl Fn(&Image<ProcessMemory>) -> (Moment, T) + Sync),
    ) -> Result<((Moment, T), Duration), Why> {
        let mut wait = FIRST_WAIT;
        let mut allocating = 0;
        loop {
            let stands = is_stopped(python.tgid);
            if !stands {
                wait_for_a_good_moment(python);
            }
            let image = &mut *image;
            let (found, pause) = while_paused(python.tgid, move || {
                // At a wrong moment it stands still no longer than it takes to see that.
                if let Some(broken) = at_work(python) {
                    return Err(broken);
                }
                image.renew();
                Ok(look(image))
            })?;
            let broken = match found {
                Ok(found) => match found.0.broken {
                    None | Some(Broken::TooMany) => return Ok((found, pause)),
                    // It may be that these tables never agree.
                    Some(Broken::Allocating) if stands || allocating == MOST_ALLOCATING => {
                        return Ok((found, pause));
                    }
                    Some(broken) => broken,
                },
                Err(broken) => broken,
            };
            // It may have been let run on meanwhile.
            if stands && is_stopped(python.tgid) {
                return Err(Why::StandsBroken(broken));
            }
            allocating += u32::from(broken == Broken::Allocating);
            self.number += 1;
            if self.number >= MOST_STOPS {
                return Err(Why::NeverWhole(broken));
            }
            thread::sleep(wait);
            wait = (wait * 2).min(MOST_WAIT);
        }
    }
}

/// Waits, while the process runs on, until no collector is at work: one that collects nearly all the
/// time would hardly ever be stopped between two collections by chance.
fn wait_for_a_good_moment(python: &PythonProcess) {
    let start = Instant::now();
    while at_work(python).is_some() && start.elapsed() < MOST_COLLECTION {
        thread::sleep(GLANCE);
    }
}

/// Whether a collector of the process is at work right now.
fn at_work(python: &PythonProcess) -> Option<Broken> {
    let memory = python.memory();
    let layout = &python.layout;
    let interpreters = match collector::interpreters(&memory, layout, python.runtime) {
        Ok(interpreters) => interpreters,
        Err(broken) => return Some(broken),
    };
    interpreters.into_iter().find_map(|interpreter| {
        match collector::is_collecting(&memory, &layout.heap.collector, interpreter) {
            Ok(false) => None,
            Ok(true) => Some(Broken::Collecting),
            Err(why) => Some(why.into()),
        }
    })
}
