//! Losses of all processes: records that the kernel's programs could not send, and limits that were reached.

use std::time::Instant;

use memprobe_common::{CudaRecord, counter};

use super::HostSession;
use crate::event::{Losses, Tgid};
use crate::session::HostItem;

impl HostSession {
    /// Puts the running totals of losses into the streams when they have grown.
    pub(super) fn emit_losses(&mut self) {
        let processes = self.processes_lost();
        let losses = Losses {
            events: self.counters.total(counter::EVENTS_LOST),
            // Without the record of a process's start or end its lines are unknown.
            stacks: self.counters.total(counter::STACKS_LOST) + processes,
            malformed: self.malformed,
            uses: self.without_stack_copy,
        };
        if losses != self.losses {
            self.losses = losses;
            for process in self.processes.values_mut() {
                let tgid = process.tgid;
                // Lost records of process starts and ends, and malformed records, have no known owner: they count
                // for every process.
                let own = Losses {
                    events: self.counters.of_process(tgid, counter::EVENTS_LOST),
                    stacks: self.counters.of_process(tgid, counter::STACKS_LOST) + processes,
                    uses: 0,
                    ..losses
                };
                if process.count_loss(own) && process.become_busy() {
                    self.busy.push(process.tgid);
                }
            }
        }
        self.handle_lost_processes();
    }

    pub(super) fn processes_lost(&self) -> u64 {
        self.counters.total(counter::PROCESSES_LOST)
    }

    /// Says how many failed calls were not recorded, whenever the number has doubled.
    fn report_unsent_failures(&mut self) {
        let unsent = self.counters.total(counter::FAILURES_NOT_SENT);
        if unsent == 0 || unsent < self.unsent_failures.saturating_mul(2) {
            return;
        }
        self.unsent_failures = unsent;
        let most = CudaRecord::MAX_FAILURES_PER_SECOND;
        let notice = format!(
            "{unsent} failed calls of CUDA are not recorded: at most {most} a second of a process are"
        );
        let index = counter::FAILURES_NOT_SENT;
        let count = |tgid: &&u32| self.counters.of_process(Tgid(**tgid), index);
        if let Some(worst) = self.processes.keys().max_by_key(count).copied() {
            self.emit(Tgid(worst), HostItem::Notice(notice));
        }
    }

    /// Polls all processes if a record of a start or end was lost.
    fn handle_lost_processes(&mut self) {
        let lost = self.processes_lost();
        if lost != self.handled_losses {
            self.handled_losses = lost;
            let now = Instant::now();
            for process in self.processes.values_mut() {
                process.doubt(now);
            }
        }
        self.report_unsent_failures();
        let processes = self.counters.total(counter::PROCESSES_REFUSED);
        let events = self.counters.total(counter::THREADS_REFUSED);
        if processes + events != self.refused_rooms {
            self.refused_rooms = processes + events;
            let notice = format!(
                "limits of memprobe exceeded: {processes} processes are not watched, and {events} events have no stack"
            );
            if let Some(first) = self.processes.keys().next() {
                self.emit(Tgid(*first), HostItem::Notice(notice));
            }
        }
    }
}
