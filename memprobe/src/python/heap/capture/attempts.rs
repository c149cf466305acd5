//! Pauses of a process, one after the other, until one finds it at a moment at which it can be read.

use std::thread;
use std::time::{Duration, Instant};

use super::{CaptureError, FIRST_WAIT, HeapScan, MAX_STOPS};
use crate::event::Tgid;
use crate::event::tensors::Consistency;
use crate::process::memory::{Cause, ProcessMemory};
use crate::process::pause::{Sleepers, while_paused};
use crate::process::run_state::RunState;
use crate::python::heap::collector::{self, Broken, TornLink};
use crate::python::heap::image::Image;
use crate::python::{DetectError, PythonProcess};

/// Most stops in a row that find the lists inconsistent at the same place. An object is linked within a few
/// instructions, and the waits between these stops add up to 62 ms, so the list is damaged.
const MAX_SAME_PLACE: u32 = 6;

/// Most stops that wait for the allocator; after that its state is accepted as it is.
const MAX_ALLOCATING: u32 = 10;

/// Most pauses that leave threads asleep in system calls that a stop would end, if these wake up; later ones catch
/// them outside of such calls.
const MAX_WOKEN: u32 = 5;

/// Longest time between two stops. A collection of a million objects takes half a second.
const MAX_WAIT: Duration = Duration::from_millis(50);

/// Longest wait for the end of a collection, and the polling interval.
pub(super) const MAX_COLLECTION: Duration = Duration::from_secs(1);
const GLANCE: Duration = Duration::from_micros(100);

#[derive(Debug, Default)]
pub(super) struct PauseAttempts {
    /// Stops that failed.
    pub(super) number: u32,
    last: Option<BrokenPlace>,
    /// Place at which the last look found a list inconsistent. While it stays so, a stop ends at once.
    torn: Option<TornLink>,
}

/// Place at which a list was inconsistent, with the number of stops in a row that found it so.
#[derive(Clone, Copy, Debug)]
struct BrokenPlace {
    address: u64,
    stops: u32,
}

impl PauseAttempts {
    /// Stops after a scan of the running process.
    pub(super) fn after(scan: &HeapScan) -> Self {
        Self {
            torn: scan.torn_link,
            ..Self::default()
        }
    }

    /// Result of the final stop, with the number of failed ones before it.
    pub(super) fn paused_for(&self, pause: Duration) -> Consistency {
        Consistency::Paused {
            pause,
            retries: self.number,
        }
    }

    /// Scans the paused process at the first suitable moment. `check` looks at the copy once the process runs again, and
    /// may find that the moment was not suitable. Also returns the duration of the pause.
    pub(super) fn look<T>(
        &mut self,
        python: &PythonProcess,
        image: &Image<ProcessMemory>,
        mut look: impl FnMut(&Image<ProcessMemory>) -> HeapScan,
        check: impl Fn(&Image<ProcessMemory>, &mut HeapScan) -> T,
    ) -> Result<((HeapScan, T), Duration), CaptureError> {
        let mut wait = FIRST_WAIT;
        let (mut allocating, mut woken) = (0, 0);
        loop {
            let stands = is_stopped(python.tgid);
            if !stands {
                wait_for_a_good_moment(python, MAX_COLLECTION);
            }
            let sleepers = if woken < MAX_WOKEN {
                Sleepers::Left
            } else {
                Sleepers::Caught
            };
            let paused = while_paused(python.tgid, sleepers, || {
                // At an unsuitable moment the pause lasts only as long as this check.
                let torn = || self.torn?.fault(&python.memory());
                at_work(python)
                    .or_else(torn)
                    .map_or_else(|| Ok(look(image)), Err)
            })?;
            let broken = match paused.result {
                Ok(_) if paused.has_run => Broken::Woken,
                Ok(mut moment) => {
                    self.torn = moment.torn_link;
                    let checked = check(image, &mut moment);
                    match moment.broken {
                        None | Some(Broken::TooMany | Broken::TooLarge) => {
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

/// Waits while a collection is in progress, for a limited time. A process that collects nearly all the time would hardly
/// ever be paused between two collections by chance.
pub(super) fn wait_for_a_good_moment(python: &PythonProcess, most: Duration) {
    let start = Instant::now();
    let is_passing = |broken: Broken| !is_of_the_end(broken);
    while at_work(python).is_some_and(is_passing) && start.elapsed() < most {
        thread::sleep(GLANCE);
    }
}

pub(super) fn is_stopped(tgid: Tgid) -> bool {
    RunState::of(tgid) == RunState::Stopped
}

/// True if the process has no objects to read any more.
pub(super) fn is_of_the_end(broken: Broken) -> bool {
    match broken {
        Broken::Finalizing => true,
        Broken::Unreadable(error) => error.cause == Cause::NoProcess,
        _ => false,
    }
}

/// Returns [`Broken::Collecting`] if any interpreter of the process is collecting garbage, [`Broken::Finalizing`] if
/// Python shuts down, or a read error.
pub(super) fn at_work(python: &PythonProcess) -> Option<Broken> {
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
