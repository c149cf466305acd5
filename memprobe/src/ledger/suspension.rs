//! Suspended processes: infers from the driver's process lists that a process was taken off the GPU.
//!
//! The driver's own state of a process is not asked: with NCCL some drivers do not answer while another process of the
//! job is locked (cuda-checkpoint issue 30), and a screen must not wait for that.

use crate::event::bytes::human;
use crate::event::{Bytes, Tgid};

/// A process in the driver's lists at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverListing {
    Listed,
    /// The lists of all devices are known, and it is on none.
    Absent,
    /// The driver did not say, or not for all devices.
    Unknown,
}

/// Follows one process in the driver's lists.
///
/// It counts as suspended if the driver had listed it, lists it no more, and its allocator still has segments: a
/// process that gives its context up by itself loses them too.
#[derive(Clone, Debug, Default)]
pub struct SuspensionTracker {
    was_listed: bool,
    is_suspended: bool,
}

impl SuspensionTracker {
    pub fn update(&mut self, listing: DriverListing, reserved: Option<Bytes>) {
        match listing {
            DriverListing::Listed => {
                self.was_listed = true;
                self.is_suspended = false;
            }
            DriverListing::Absent => {
                let holds = reserved.is_some_and(|bytes| bytes > Bytes(0));
                self.is_suspended = self.was_listed && holds;
            }
            DriverListing::Unknown => {}
        }
    }

    /// Returns a sentence on a suspended process; `None` for others.
    pub fn reason(&self, tgid: Tgid, reserved: Option<Bytes>) -> Option<String> {
        let (pid, reserved) = (tgid.0, human(reserved.unwrap_or_default()));
        self.is_suspended.then(|| {
            format!(
                "PID {pid} is suspended (inferred: the driver lists it on no GPU any more, and its allocator has \
                 {reserved}): `memprobe resume {pid}`"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: Option<Bytes> = Some(Bytes(2 << 20));

    fn is_suspended(listings: &[DriverListing], reserved: Option<Bytes>) -> bool {
        let mut tracker = SuspensionTracker::default();
        for listing in listings {
            tracker.update(*listing, reserved);
        }
        tracker.reason(Tgid(7), reserved).is_some()
    }

    #[test]
    fn a_process_that_leaves_the_lists_with_its_segments_is_suspended_until_it_is_back() {
        use DriverListing::{Absent, Listed, Unknown};
        assert!(is_suspended(&[Listed, Absent], HELD));
        assert!(is_suspended(&[Listed, Absent, Unknown], HELD));
        assert!(!is_suspended(&[Listed, Absent, Listed], HELD));
        let mut tracker = SuspensionTracker::default();
        tracker.update(Listed, HELD);
        tracker.update(Absent, HELD);
        let reason = tracker.reason(Tgid(7), HELD).expect("it is suspended");
        assert!(reason.contains("2.00 MiB"), "{reason}");
        assert!(reason.contains("`memprobe resume 7`"), "{reason}");
    }

    #[test]
    fn without_evidence_nothing_is_inferred() {
        use DriverListing::{Absent, Listed, Unknown};
        // The driver never listed it, as in another PID namespace.
        assert!(!is_suspended(&[Absent, Absent], HELD));
        assert!(!is_suspended(&[Listed, Unknown], HELD));
        // It has given its memory back.
        assert!(!is_suspended(&[Listed, Absent], Some(Bytes(0))));
        assert!(!is_suspended(&[Listed, Absent], None));
    }
}
