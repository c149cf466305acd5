//! Answers of the driver: the GPUs of the processes, and their memory.

use std::time::{Duration, Instant};

use super::HostSession;
use crate::event::Tgid;
use crate::session::HostItem;
use crate::session::driver::DriverReader;
use crate::session::gpus::{PATIENCE, TimedSample};

impl HostSession {
    /// Asks the driver about all processes whose memory changed, at once.
    pub(super) fn ask_driver(&mut self, now: Instant) {
        if self.note_question(now, |driver| driver.is_due(now)) {
            self.gpus.ask();
        }
    }

    /// Notes a question for the processes that want one. Returns true if any does.
    fn note_question(&mut self, now: Instant, wants: impl Fn(&DriverReader) -> bool) -> bool {
        let mut is_wanted = false;
        for process in self.processes.values_mut() {
            if wants(&process.driver) {
                process.driver.ask(now);
                is_wanted = true;
            }
        }
        is_wanted
    }

    /// Asks the driver once more, at the end of a recording.
    pub(super) fn ask_driver_last(&mut self) {
        let now = Instant::now();
        if !self.note_question(now, DriverReader::has_devices) {
            return;
        }
        self.gpus.ask();
        // The first answer may be one to an earlier question.
        for _ in 0..2 {
            let Some(sample) = self.gpus.answer(PATIENCE) else {
                return;
            };
            if self.take_driver(&sample) {
                return;
            }
            self.gpus.ask();
        }
    }

    /// Passes an answer of the driver on. Returns true if a process was waiting for it.
    fn take_driver(&mut self, sample: &TimedSample) -> bool {
        let mut was_awaited = false;
        for process in self.processes.values_mut() {
            if process.take_driver(sample) {
                was_awaited = true;
                if process.become_busy() {
                    self.busy.push(process.tgid);
                }
            }
        }
        was_awaited
    }

    /// Reads the processes whose devices are due, and takes what the driver said of others.
    pub(super) fn identify_gpus(&mut self, now: Instant) {
        for process in self.processes.values_mut() {
            if process.devices.is_due(now) {
                process.devices.look(process.tgid, now);
                self.gpus.ask();
            }
        }
        if let Some(sample) = self.gpus.answer(Duration::ZERO) {
            let waiting = self.processes.values();
            let waiting = waiting.filter(|process| process.devices.is_waiting());
            for tgid in waiting.map(|process| process.tgid).collect::<Vec<_>>() {
                if !self.identify(tgid, &sample) {
                    self.gpus.ask();
                }
            }
            self.take_driver(&sample);
        }
    }

    /// Joins what is known of a process with the driver's answer. Returns false if the answer is too old.
    pub(super) fn identify(&mut self, tgid: Tgid, sample: &TimedSample) -> bool {
        let Some(process) = self.processes.get_mut(&tgid.0) else {
            return true;
        };
        if process.devices.identify(tgid, sample) {
            process.read_torch();
            let target = process.target();
            self.emit(tgid, HostItem::Identified(Box::new(target)));
        }
        let process = self.processes.get(&tgid.0);
        process.is_none_or(|process| !process.devices.is_waiting())
    }

    /// Identifies the devices of a process that ends, as far as it could be read.
    pub(super) fn identify_last(&mut self, tgid: Tgid) {
        let Some(process) = self.processes.get_mut(&tgid.0) else {
            return;
        };
        let now = Instant::now();
        if process.devices.identities.is_empty() && process.devices.is_due(now) {
            process.devices.look(tgid, now);
        }
        // The first answer may be one to an earlier question.
        for _ in 0..2 {
            let process = self.processes.get(&tgid.0);
            if !process.is_some_and(|process| process.devices.is_waiting()) {
                return;
            }
            self.gpus.ask();
            let Some(sample) = self.gpus.answer(PATIENCE) else {
                return;
            };
            self.identify(tgid, &sample);
        }
    }
}
