//! Startup check: tests that the first event of a process is the first that its allocator ever had.
//!
//! The allocator of a process watched from its start must be empty before its first event. If it is not, the probes
//! attached too late, and memprobe says so; or the process is the child of a `fork`, whose allocator has a copy of its
//! parent's tables. CUDA does not survive a fork ("Asynchronous errors, fork" in the CUDA Programming Guide;
//! torch/cuda/__init__.py, `_lazy_init`): the memory in those tables is the parent's, and the child holds nothing.

use crate::event::bytes::human;
use crate::event::{Action, Bytes, DeviceIndex, MemoryEvent, Totals};

/// Part of a process's life that was watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObservedFrom {
    /// Running before memprobe.
    Unseen,
    /// Watched from its first instruction.
    Seen,
    /// [`Self::Seen`], and its parent's allocator was probed before the fork.
    Forked,
}

#[derive(Clone, Debug)]
pub(super) struct StartupCheck {
    observed_from: ObservedFrom,
    verdict: Verdict,
    is_whole: bool,
    unreported: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Open,
    Complete,
    /// Something came before it that was not seen.
    Late(Bytes),
    /// The books are those of the parent.
    Inherited,
}

impl StartupCheck {
    pub(super) fn new(observed_from: ObservedFrom) -> Self {
        Self {
            observed_from,
            verdict: match observed_from {
                ObservedFrom::Unseen => Verdict::Complete,
                ObservedFrom::Seen | ObservedFrom::Forked => Verdict::Open,
            },
            is_whole: false,
            unreported: false,
        }
    }

    /// Something was lost: the first event that is seen need not be the first.
    pub(super) fn lost(&mut self) {
        if self.verdict == Verdict::Open {
            self.verdict = Verdict::Complete;
        }
    }

    /// True if its first event was seen and nothing came before it.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// True if an event is about memory of the process itself.
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
            self.unreported = !self.is_whole;
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
        match self.observed_from {
            ObservedFrom::Unseen => Verdict::Complete,
            ObservedFrom::Forked if before > 0 => Verdict::Inherited,
            ObservedFrom::Seen if before > 0 => {
                Verdict::Late(Bytes(u64::try_from(before).unwrap_or(u64::MAX)))
            }
            ObservedFrom::Seen | ObservedFrom::Forked => Verdict::Complete,
        }
    }

    /// Sentence for people, once.
    pub(super) fn take_notice(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.unreported) {
            return None;
        }
        match self.verdict {
            Verdict::Late(bytes) => Some(format!(
                "{} were allocated before the probes were in place: they are shown as \"before attach\"",
                human(bytes)
            )),
            Verdict::Inherited => Some(
                "forked from a process that used the GPU: it cannot use a GPU (CUDA does not survive a fork), and has \
                 none of its parent's memory"
                    .to_owned(),
            ),
            Verdict::Open | Verdict::Complete => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Address, PurposeId, StackId, Tgid, Tid, TimeNs};

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
            shape: PurposeId::NONE,
            call: None,
        }
    }

    #[test]
    fn a_first_event_that_is_the_first_is_nothing_to_speak_of() {
        let mut beginning = StartupCheck::new(ObservedFrom::Seen);
        assert!(beginning.admits(&event(Action::SegmentAlloc, 2048, None)));
        assert!(!beginning.is_whole(), "no total is known yet");
        assert!(beginning.admits(&event(Action::Alloc, 512, Some((512, 2048)))));
        assert!(beginning.is_whole());
        assert_eq!(beginning.take_notice(), None);
    }

    #[test]
    fn what_came_before_the_probes_is_said_once() {
        let mut beginning = StartupCheck::new(ObservedFrom::Seen);
        assert!(beginning.admits(&event(Action::Alloc, 512, Some((1536, 2048)))));
        let said = beginning.take_notice().expect("it is said");
        assert!(said.starts_with("1.00 KiB were allocated before"), "{said}");
        assert_eq!(beginning.take_notice(), None);
    }

    #[test]
    fn a_process_that_was_there_before_is_expected_to_hold_something() {
        let mut beginning = StartupCheck::new(ObservedFrom::Unseen);
        assert!(beginning.admits(&event(Action::Alloc, 512, Some((1536, 2048)))));
        assert_eq!(beginning.take_notice(), None);
    }

    #[test]
    fn a_forked_child_does_not_hold_what_its_parents_books_say() {
        let mut beginning = StartupCheck::new(ObservedFrom::Forked);
        assert!(!beginning.admits(&event(Action::Free, 512, Some((0, 2048)))));
        assert!(!beginning.admits(&event(Action::Alloc, 512, Some((512, 2048)))));
        assert!(
            beginning
                .take_notice()
                .is_some_and(|said| said.contains("fork"))
        );
    }

    #[test]
    fn a_forked_child_whose_parent_never_used_the_gpu_has_its_own_books() {
        let mut beginning = StartupCheck::new(ObservedFrom::Forked);
        assert!(beginning.admits(&event(Action::SegmentAlloc, 2048, None)));
        assert!(beginning.admits(&event(Action::Alloc, 512, Some((512, 2048)))));
        assert_eq!(beginning.take_notice(), None);
    }

    #[test]
    fn after_a_loss_nothing_is_concluded() {
        let mut beginning = StartupCheck::new(ObservedFrom::Forked);
        beginning.lost();
        assert!(beginning.admits(&event(Action::Free, 512, Some((512, 2048)))));
        assert!(!beginning.is_whole());
        assert_eq!(beginning.take_notice(), None);
    }
}
