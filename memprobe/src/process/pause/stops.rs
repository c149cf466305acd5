//! Sum of all stops of processes by memprobe, and the longest that is allowed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest stop if nothing else was asked for, in nanoseconds.
const LONGEST: u64 = 1_000_000_000;

static ALLOWED: AtomicU64 = AtomicU64::new(LONGEST);
static NUMBER: AtomicU64 = AtomicU64::new(0);
static TOTAL: AtomicU64 = AtomicU64::new(0);
static LONGEST_SO_FAR: AtomicU64 = AtomicU64::new(0);

/// Stops of processes since memprobe started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    pub number: u64,
    pub total: Duration,
    pub longest: Duration,
}

/// Sets the longest stop.
pub fn allow_longest(longest: Duration) {
    ALLOWED.store(nanoseconds(longest), Ordering::Relaxed);
}

pub(super) fn longest() -> Duration {
    Duration::from_nanos(ALLOWED.load(Ordering::Relaxed))
}

pub(super) fn add(stop: Duration) {
    let stop = nanoseconds(stop);
    NUMBER.fetch_add(1, Ordering::Relaxed);
    TOTAL.fetch_add(stop, Ordering::Relaxed);
    LONGEST_SO_FAR.fetch_max(stop, Ordering::Relaxed);
}

pub fn stops() -> Stops {
    Stops {
        number: NUMBER.load(Ordering::Relaxed),
        total: Duration::from_nanos(TOTAL.load(Ordering::Relaxed)),
        longest: Duration::from_nanos(LONGEST_SO_FAR.load(Ordering::Relaxed)),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
