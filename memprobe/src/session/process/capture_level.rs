//! Level of detail of a process (`--max-overhead`), and the pauses of its probes.

use super::Process;
use crate::event::{CaptureChange, CaptureLevel, Event, TimeNs};
use crate::probe::attach::AttachError;
use crate::probe::loader::Loader;
use crate::session::before_attach::BaselineReader;
use crate::session::live_blocks::{Correction, FoundBlocks};

impl Process {
    /// Follows the live blocks from now on, so that the probes can be off for a while.
    pub(in crate::session) fn keep_blocks(&mut self, level: CaptureLevel) {
        self.live.get_or_insert_default();
        self.level = level;
        self.attaching.begin_at(level);
    }

    /// True if the blocks can be read after a pause; without a budget, or a table of blocks, they cannot.
    pub(in crate::session) fn can_pause(&self) -> bool {
        let before = self.before.as_ref();
        let is_unread = before.is_some_and(BaselineReader::has_given_up);
        !self.is_attached() || self.attaching.has_allocator() && !is_unread
    }

    /// True while blocks are being read: the probes must stay for it.
    pub(in crate::session) fn is_reading_blocks(&self) -> bool {
        self.before.as_ref().is_some_and(BaselineReader::is_reading)
    }

    /// Changes the detail that is recorded. The probes of the level are in place, those of others are being taken away.
    pub(in crate::session) fn set_level(
        &mut self,
        loader: &mut Loader,
        change: CaptureChange,
    ) -> Result<(), AttachError> {
        if self.segments.is_reading() {
            // The change comes after the events that waited for it.
            self.segments.give_up_reading();
            self.symbolizer.settle();
        }
        let before = std::mem::replace(&mut self.level, change.level);
        let result = self
            .attaching
            .set_level(loader, change.level, crate::session::now());
        let had = |level| before < level;
        let has = |level| change.level < level;
        match (
            had(CaptureLevel::WithoutShapes),
            has(CaptureLevel::WithoutShapes),
        ) {
            (true, false) => self.symbolizer.watch_no_tensors(crate::session::now()),
            (false, true) if self.attaching.has_tensors() => {
                self.symbolizer.watch_tensors_since(crate::session::now());
            }
            _ => {}
        }
        if !had(CaptureLevel::WithoutGraph) && has(CaptureLevel::WithoutGraph) {
            self.symbolizer.forget_nodes();
        }
        if change.level == CaptureLevel::Paused {
            // What comes first after the pause is not its first event.
            self.startup_check.lost();
        }
        if before == CaptureLevel::Paused {
            self.resume();
        }
        self.note_capture(change);
        result
    }

    pub(in crate::session) fn note_capture(&mut self, change: CaptureChange) {
        self.symbolizer.push_event(Event::Capture(change));
    }

    /// Reads the allocator's blocks, as at attach. Events from now on wait for the corrections.
    fn resume(&mut self) {
        if !self.is_attached() {
            return;
        }
        self.symbolizer.settle_all();
        self.symbolizer.forget_waiting();
        self.keep_back();
        while let Some(event) = self.pop() {
            if let Some(live) = &mut self.live {
                live.apply(&event);
            }
            self.next_events.push_back(event);
        }
        let mut before = BaselineReader::of(self.tgid);
        before.begin(self.torch.clone());
        self.before = Some(before);
        self.found = Some(FoundBlocks::default());
        self.was_paused = true;
    }

    /// Dates the corrections after the next pause.
    pub(in crate::session) fn correct_as_of(&mut self, time: TimeNs) {
        self.corrected_at = Some(time);
    }

    /// True until the corrections after a pause are known.
    pub(in crate::session) fn is_catching_up(&self) -> bool {
        self.found.is_some()
    }

    /// Emits the corrections once the blocks after a pause are known.
    pub(super) fn correct_blocks(&mut self) {
        let is_settled = self.before.as_ref().is_some_and(BaselineReader::is_settled);
        let Some(mut found) = self.found.take_if(|_| is_settled) else {
            return;
        };
        let mut first = None;
        while let Some(event) = self.before.as_mut().and_then(BaselineReader::pop) {
            first = found.push(event);
            if first.is_some() {
                break;
            }
        }
        let (stack, definition) = self.symbolizer.stack_without_probes();
        let by = Correction {
            time: self.corrected_at.take().unwrap_or_else(crate::session::now),
            tgid: self.tgid,
            stack,
        };
        let live = self.live.get_or_insert_default();
        let corrections = live.correct(&found, by);
        self.next_events.extend(definition);
        self.next_events.extend(corrections);
        if let Some(first) = first {
            live.apply(&first);
            self.next_events.push_back(first);
        }
        if let Some(reason) = found.unread() {
            log::debug!(
                "process {}: blocks after a pause are unknown: {reason}",
                self.tgid.0
            );
        }
    }
}
