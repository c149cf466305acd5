//! Limit on the dumps of one process: errors that follow each other are counted.

use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(super) struct Cooldown {
    last: Option<Instant>,
    counted: u64,
}

impl Cooldown {
    /// Notes an out-of-memory error. Returns the errors that were only counted since the last dump, if this one is due a
    /// dump.
    pub(super) fn note(&mut self, now: Instant, cooldown: Duration) -> Option<u64> {
        let is_over = self
            .last
            .is_none_or(|last| now.duration_since(last) >= cooldown);
        if !is_over {
            self.counted += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.counted))
    }

    /// Errors without a dump since the last one.
    pub(super) fn counted(&self) -> u64 {
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_within_the_cooldown_are_counted_for_the_next_dump() {
        let (start, cooldown) = (Instant::now(), Duration::from_secs(60));
        let mut errors = Cooldown::default();
        assert_eq!(errors.note(start, cooldown), Some(0));
        for second in 1..60 {
            let now = start + Duration::from_secs(second);
            assert_eq!(errors.note(now, cooldown), None);
        }
        assert_eq!(errors.counted(), 59);
        assert_eq!(errors.note(start + cooldown, cooldown), Some(59));
        assert_eq!(errors.counted(), 0);
    }

    #[test]
    fn a_cooldown_of_zero_dumps_every_error() {
        let now = Instant::now();
        let mut errors = Cooldown::default();
        for _ in 0..3 {
            assert_eq!(errors.note(now, Duration::ZERO), Some(0));
        }
    }
}
