//! Interval of reading the ring buffer. The kernel's programs wake the reader only for what cannot wait: a new stack,
//! whose code objects may be freed, and the start and end of a process.

use std::time::{Duration, Instant};

/// Interval while records may fill the ring buffer, or while the reader waits for one.
const SHORTEST: Duration = Duration::from_millis(5);
/// Interval if nothing is urgent. Each reading costs the same beside its records, about as much as 100 of them.
const LONGEST: Duration = Duration::from_millis(20);
/// Interval after [`QUIET`] without records.
const LONGEST_QUIET: Duration = Duration::from_millis(50);
const QUIET: Duration = Duration::from_secs(2);
/// Part of the ring buffer that may fill between two readings at the present rate.
const FILL_SHARE: u64 = 32;
/// Bytes a second that may come without notice: programs of many threads that do nothing but allocate.
const BURST: u64 = 400 << 20;

/// Needs of the reader beside the present rate of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadNeed {
    /// A process waits for a record, or for a reading of its memory.
    Waiting,
    None,
}

/// Rate of records, and the interval that follows from it.
#[derive(Debug)]
pub(super) struct ReadInterval {
    ring_bytes: u64,
    /// Bytes that were read by `since`.
    read: u64,
    since: Instant,
    /// Time of the last reading that found records.
    heard: Instant,
}

impl ReadInterval {
    pub(super) fn new(ring_bytes: u32, now: Instant) -> Self {
        Self {
            ring_bytes: u64::from(ring_bytes),
            read: 0,
            since: now,
            heard: now,
        }
    }

    /// Notes a reading that found records.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Time to the next reading. `read` are the bytes that were read so far.
    pub(super) fn next(&mut self, read: u64, need: ReadNeed, now: Instant) -> Duration {
        let bytes = read.saturating_sub(std::mem::replace(&mut self.read, read));
        let elapsed = now.duration_since(std::mem::replace(&mut self.since, now));
        if now.duration_since(self.heard) >= QUIET {
            return LONGEST_QUIET;
        }
        if need == ReadNeed::Waiting {
            return SHORTEST;
        }
        let longest = time_of(self.ring_bytes, BURST).clamp(SHORTEST, LONGEST);
        if bytes == 0 {
            return longest;
        }
        // The time in which as many bytes as may fill come, by the rate since the last call.
        let share = (self.ring_bytes / FILL_SHARE) as f64 / bytes as f64;
        let filled = Duration::try_from_secs_f64(elapsed.as_secs_f64() * share);
        filled.unwrap_or(longest).clamp(SHORTEST, longest)
    }
}

/// Time in which so many bytes come at a rate in bytes a second.
fn time_of(bytes: u64, rate: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: u32 = 8 << 20;

    /// Interval after 20 ms in which so many bytes came.
    fn after(bytes: u64, need: ReadNeed) -> Duration {
        let start = Instant::now();
        let mut interval = ReadInterval::new(RING, start);
        let now = start + Duration::from_millis(20);
        interval.heard(now);
        interval.next(bytes, need, now)
    }

    #[test]
    fn a_steady_program_is_read_every_20_ms() {
        assert_eq!(after(100_000, ReadNeed::None), LONGEST);
        assert_eq!(after(0, ReadNeed::None), LONGEST);
    }

    #[test]
    fn records_that_would_fill_the_ring_buffer_are_read_more_often() {
        // An eighth of the buffer in 20 ms: a thirty-second in 5.
        assert_eq!(after(1 << 20, ReadNeed::None), SHORTEST);
        let between = after(400_000, ReadNeed::None);
        assert!(SHORTEST < between && between < LONGEST, "{between:?}");
        assert_eq!(after(u64::MAX, ReadNeed::None), SHORTEST);
    }

    #[test]
    fn a_waiting_process_is_read_often() {
        assert_eq!(after(0, ReadNeed::Waiting), SHORTEST);
    }

    #[test]
    fn a_small_ring_buffer_is_read_as_often_as_a_burst_would_fill_it() {
        let start = Instant::now();
        let mut interval = ReadInterval::new(4 << 20, start);
        assert_eq!(
            interval.next(0, ReadNeed::None, start),
            Duration::from_millis(10)
        );
        let mut interval = ReadInterval::new(4096, start);
        assert_eq!(interval.next(0, ReadNeed::None, start), SHORTEST);
    }

    #[test]
    fn a_silent_program_is_read_seldom_even_while_something_waits() {
        let start = Instant::now();
        let mut interval = ReadInterval::new(RING, start);
        let next = interval.next(0, ReadNeed::Waiting, start + QUIET);
        assert_eq!(next, LONGEST_QUIET);
    }
}
