//! Events of a process in order, from its symbolizer to the items of the session.

use std::time::Instant;

use anyhow::Result;

use super::Process;
use crate::event::{Action, Event, MemoryEvent};
use crate::session::before_attach;
use crate::session::{HostEvent, HostItem};

impl Process {
    /// Passes on its next items.
    pub(in crate::session) fn pass_items(
        &mut self,
        sink: &mut impl FnMut(HostEvent) -> Result<()>,
    ) -> Result<()> {
        let tgid = self.tgid;
        while let Some(item) = self.next_item() {
            sink(HostEvent { tgid, item })?;
        }
        Ok(())
    }

    #[inline]
    pub(in crate::session) fn next_item(&mut self) -> Option<HostItem> {
        if let Some(event) = self.next_events.pop_front() {
            return Some(HostItem::Event(event));
        }
        let Some(event) = self.pop() else {
            return self.startup_check.take_notice().map(HostItem::Notice);
        };
        self.devices.note(&event);
        if let Some(live) = &mut self.live {
            live.apply(&event);
        }
        match before_attach::notice(&event) {
            Some(notice) => {
                self.next_events.push_back(event);
                Some(HostItem::Notice(notice))
            }
            None => Some(HostItem::Event(event)),
        }
    }

    /// Turns its records into events if none of them waits for later ones. Returns true if there are new events.
    pub(in crate::session) fn settle_known(&mut self) -> bool {
        if self.waits_for_reading() || !self.symbolizer.settle_known() {
            return false;
        }
        self.last_record = Instant::now();
        true
    }

    /// True while its records are no events: those of blocks from before attach, or of segments, come first.
    pub(super) fn waits_for_reading(&self) -> bool {
        self.before.is_some() || self.segments.is_reading()
    }

    /// Puts events behind the blocks from before attach, once those are known.
    pub(super) fn keep_back(&mut self) {
        let was_whole = self.startup_check.is_whole();
        while self.before.is_some() {
            let Some(event) = self.admitted() else {
                break;
            };
            if let Some(before) = &mut self.before {
                before.push(event);
            }
        }
        if let Some(before) = &mut self.before
            && !was_whole
            && self.startup_check.is_whole()
        {
            before.settle_with_nothing();
        }
    }

    /// The next event in order.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        let next = match self.before {
            None => self.admitted(),
            Some(_) => self.pop_behind_baseline(),
        };
        if let Some(event) = &next {
            self.segments.note(event);
            self.driver.note(event);
        }
        next
    }

    /// The next event while blocks from before attach are read. Cold, so that an event is not copied from function to
    /// function after that.
    #[cold]
    fn pop_behind_baseline(&mut self) -> Option<Event> {
        loop {
            let Some(before) = &mut self.before else {
                return self.admitted();
            };
            let Some(event) = before.pop() else {
                if before.is_over() && self.found.is_none() {
                    self.before = None;
                    continue;
                }
                return None;
            };
            if !self.was_paused || self.found.is_some() {
                return Some(event);
            }
            // A block whose free had begun when the tables were read after a pause.
            match event {
                Event::Memory(block) if block.action == Action::Held => {
                    let (stack, definition) = self.symbolizer.stack_without_probes();
                    self.next_events.extend(definition);
                    return Some(Event::Memory(MemoryEvent {
                        action: Action::Alloc,
                        stack,
                        ..block
                    }));
                }
                Event::AtAttach(_) => {}
                other => return Some(other),
            }
        }
    }

    /// The next event that the symbolizer has; those of memory that the process does not hold are left out.
    #[inline]
    fn admitted(&mut self) -> Option<Event> {
        loop {
            let event = self.symbolizer.pop()?;
            match &event {
                Event::Memory(memory) if !self.startup_check.admits(memory) => {}
                _ => return Some(event),
            }
        }
    }
}
