//! Whether the first events of a process are the first that it ever had.
//!
//! Of a process that is watched from its birth on the allocator must know nothing before its first
//! event. If it does, memprobe came too late, which is said; or the process is the child of a `fork`,
//! whose allocator still has the books of its parent. CUDA does not survive a fork ("Asynchronous
//! errors, fork" in the CUDA Programming Guide; torch/cuda/__init__.py, `_lazy_init`): what those
//! books hold is its parent's, and the child holds nothing.

use crate::bytes::human;
use crate::event::{Action, Bytes, DeviceIndex, MemoryEvent, Totals};

/// How much of a process's life was watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Birth {
    /// It was there before memprobe.
    Unseen,
    /// It was watched from its first instruction on.
    Seen,
    /// As [`Self::Seen`], and its allocator was there, and probed, before its parent forked.
    Forked,
}

/// What is known of the beginning of a process.
#[derive(Clone, Debug)]
pub(super) struct Beginning {
    birth: Birth,
    verdict: Verdict,
    is_whole: bool,
    untold: bool,
}

/// What the first event said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// There was none so far.
    Open,
    /// Nothing came before it.
    Complete,
    /// Something came before it that was not seen.
    Late(Bytes),
    /// The books are those of the parent.
    Inherited,
}

impl Beginning {
    /// Nothing happened yet.
    pub(super) fn new(birth: Birth) -> Self {
        Self {
            birth,
            verdict: match birth {
                Birth::Unseen => Verdict::Complete,
                Birth::Seen | Birth::Forked => Verdict::Open,
            },
            is_whole: false,
            untold: false,
        }
    }

    /// Something was lost: the first event that is seen need not be the first.
    pub(super) fn lost(&mut self) {
        if self.verdict == Verdict::Open {
            self.verdict = Verdict::Complete;
        }
    }

    /// Whether its first event was seen and nothing came before that.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether an event is about memory that the process holds.
    pub(super) fn admits(&mut self, event: &MemoryEvent) -> bool {
        // The totals of the CPU are memprobe's own, and a child has its parent's memory there.
        if event.device == Some(DeviceIndex::CPU) {
            return true;
        }
        if self.verdict == Verdict::Open
            && let Some(totals) = event.totals
        {
            self.verdict = self.judge(event, totals);
            self.is_whole = self.verdict == Verdict::Complete;
            self.untold = !self.is_whole;
        }
        self.verdict != Verdict::Inherited
    }

    fn judge(&self, event: &MemoryEvent, totals: Totals) -> Verdict {
        let size = i128::from(event.size.0);
        let allocated = i128::from(totals.allocated.0);
        let before = match event.action {
            Action::Alloc => allocated - size,
            Action::Free => allocated + size,
            _ => allocated,
        };
        match self.birth {
            Birth::Unseen => Verdict::Complete,
            Birth::Forked if before > 0 => Verdict::Inherited,
            Birth::Seen if before > 0 => {
                Verdict::Late(Bytes(u64::try_from(before).unwrap_or(u64::MAX)))
            }
            Birth::Seen | Birth::Forked => Verdict::Complete,
        }
    }

    /// What is to be said of it, once.
    pub(super) fn tell(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.untold) {
            return None;
        }
        match self.verdict {
            Verdict::Late(bytes) => Some(format!(
                "{} were allocated before the probes were in place: they are shown as \"before attach\"",
                human(bytes)
            )),
            Verdict::Inherited => Some(
                "forked from a process that used the GPU: it can use none itself (CUDA does not survive a fork), \
                 and holds none of its parent's memory"
                    .to_owned(),
            ),
            Verdict::Open | Verdict::Complete => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Address, ShapeId, StackId, Tgid, Tid, TimeNs};

    fn event(action: Action, size: u64, totals: Option<(u64, u64)>) -> MemoryEvent {
        MemoryEvent {
            time: TimeNs(1),
            tgid: Tgid(1),
            tid: Tid(1),
            action,
            addr: Address(0x1000),
            size: Bytes(size),
            device: Some(DeviceIndex(0)),
            totals: totals.map(|(allocated, reserved)| Totals {
                allocated: Bytes(allocated),
                reserved: Bytes(reserved),
            }),
            stack: StackId::NONE,
            shape: ShapeId::NONE,
            call: None,
        }
    }

    #[test]
    fn a_first_event_that_is_the_first_is_nothing_to_speak_of() {
        let mut beginning = Beginning::new(Birth::Seen);
        assert!(beginning.admits(&event(Action::SegmentAlloc, 2048, None)));
        assert!(!beginning.is_whole(), "no total is known yet");
        assert!(beginning.admits(&event(Action::Alloc, 512, Some((512, 2048)))));
        assert!(beginning.is_whole());
        assert_eq!(beginning.tell(), None);
    }

    #[test]
    fn what_came_before_the_probes_is_said_once() {
        let mut beginning = Beginning::new(Birth::Seen);
        assert!(beginning.admits(&event(Action::Alloc, 512, Some((1536, 2048)))));
        let said = beginning.tell().expect("it is said");
        assert!(said.starts_with("1.00 KiB were allocated before"), "{said}");
        assert_eq!(beginning.tell(), None);
    }

    #[test]
    fn a_process_that_was_there_before_is_expected_to_hold_something() {
        let mut beginning = Beginning::new(Birth::Unseen);
        assert!(beginning.admits(&event(Action::Alloc, 512, Some((1536, 2048)))));
        assert_eq!(beginning.tell(), None);
    }

    #[test]
    fn a_forked_child_does_not_hold_what_its_parents_books_say() {
        let mut beginning = Beginning::new(Birth::Forked);
        assert!(!beginning.admits(&event(Action::Free, 512, Some((0, 2048)))));
        assert!(!beginning.admits(&event(Action::Alloc, 512, Some((512, 2048)))));
        assert!(beginning.tell().is_some_and(|said| said.contains("fork")));
    }

    #[test]
    fn a_forked_child_whose_parent_never_used_the_gpu_has_its_own_books() {
        let mut beginning = Beginning::new(Birth::Forked);
        assert!(beginning.admits(&event(Action::SegmentAlloc, 2048, None)));
        assert!(beginning.admits(&event(Action::Alloc, 512, Some((512, 2048)))));
        assert_eq!(beginning.tell(), None);
    }

    #[test]
    fn after_a_loss_nothing_is_concluded() {
        let mut beginning = Beginning::new(Birth::Forked);
        beginning.lost();
        assert!(beginning.admits(&event(Action::Free, 512, Some((512, 2048)))));
        assert!(!beginning.is_whole());
        assert_eq!(beginning.tell(), None);
    }
}
