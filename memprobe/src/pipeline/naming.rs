//! Reads what the objects of recorded processes hold, so that their blocks have names, and puts that into its place
//! among their events.
//!
//! Reading takes a good part of a second, for a fraction of which the process stands still. Its events are held
//! back meanwhile: those up to that moment go before the names, the others behind them.

use anyhow::Result;
use hashbrown::{HashMap, HashSet};
use tokio::sync::mpsc;

use super::session::{HostEvent, HostItem};
use super::snapshot::{Extent, Manner, taken};
use crate::event::{Beginning, Event, Mark, Names, Tgid, TimeNs};
use crate::label::{consistency, counted};
use crate::model::tensors::named;
use crate::tensors::Consistency;

/// Which step of an optimizer a process is read at first: by then its state has been made, and gradients are there.
const STEP: u64 = 2;

/// It is read again when it has made so many times as many: what grows is seen to be kept, and of a long run little is paused.
const AGAIN: u64 = 8;

/// The most events of a process that are held back; then its names are given up.
const MOST: usize = 1 << 20;

/// Whether processes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// They are not.
    Off,
    /// At the second step of an optimizer, the 16th, the 128th and so on, and when the recording ends before they do.
    NowAndThen,
}

/// Steps of optimizers.
struct Steps {
    /// How many a process has made.
    made: u64,
    /// The next at which it is read, or the first after it at which it is not being read.
    due: u64,
}

/// What becomes of an event.
pub(super) enum Passed {
    /// It goes on.
    On(HostEvent),
    /// It waits.
    Held,
    /// These go on, which waited.
    All(Vec<HostEvent>),
}

/// What came of reading a process.
pub(super) type Reading = (Tgid, Result<(Names, Consistency)>);

/// Reads the processes of a recording.
pub(super) struct NameReader {
    naming: Naming,
    steps: HashMap<Tgid, Steps>,
    /// The events of those that are being read.
    held: HashMap<Tgid, Vec<HostEvent>>,
    /// Those whose reading goes on though its events are not held any more.
    given_up: HashSet<Tgid>,
    send: mpsc::UnboundedSender<Reading>,
    read: mpsc::UnboundedReceiver<Reading>,
}

impl NameReader {
    /// Nothing is read yet.
    pub(super) fn new(naming: Naming) -> Self {
        let (send, read) = mpsc::unbounded_channel();
        Self {
            naming,
            steps: HashMap::new(),
            held: HashMap::new(),
            given_up: HashSet::new(),
            send,
            read,
        }
    }

    /// Takes the next of what a session tells; gives what is to be passed on now.
    pub(super) fn pass(&mut self, event: HostEvent) -> Passed {
        let tgid = event.tgid;
        match &event.item {
            HostItem::Event(Event::Mark(mark)) if self.is_due(mark) => {
                self.begin(tgid);
                return Passed::On(event);
            }
            HostItem::Event(_) => {}
            // What was read is of a memory that is no more.
            HostItem::Ended | HostItem::Executed(_) => {
                self.steps.remove(&tgid);
                let mut held = self.give_up(tgid);
                held.push(event);
                return Passed::All(held);
            }
            _ => return Passed::On(event),
        }
        let Some(held) = self.held.get_mut(&tgid) else {
            return Passed::On(event);
        };
        held.push(event);
        if held.len() < MOST {
            return Passed::Held;
        }
        Passed::All(self.give_up(tgid))
    }

    /// The events of a process that were held back: its names will not be taken.
    fn give_up(&mut self, tgid: Tgid) -> Vec<HostEvent> {
        let held = self.held.remove(&tgid);
        if held.is_some() {
            self.given_up.insert(tgid);
        }
        held.unwrap_or_default()
    }

    fn is_due(&mut self, mark: &Mark) -> bool {
        if self.naming == Naming::Off || mark.begins != Beginning::Step {
            return false;
        }
        let steps = self
            .steps
            .entry(mark.tgid)
            .or_insert(Steps { made: 0, due: STEP });
        steps.made += 1;
        if steps.made < steps.due || self.held.contains_key(&mark.tgid) {
            return false;
        }
        while steps.due <= steps.made {
            steps.due = steps.due.saturating_mul(AGAIN);
        }
        true
    }

    /// Begins to read a process, unless that is being done.
    fn begin(&mut self, tgid: Tgid) {
        if self.held.contains_key(&tgid) || self.given_up.contains(&tgid) {
            return;
        }
        self.held.insert(tgid, Vec::new());
        let send = self.send.clone();
        tokio::task::spawn_blocking(move || {
            let taken = taken(tgid, Manner::Paused, Extent::Devices);
            // Nobody listens where the recording has ended meanwhile.
            let read = taken.map(|snapshot| (named(&snapshot, tgid), snapshot.consistency));
            let _ = send.send((tgid, read));
        });
    }

    /// Begins to read those of these processes that are not being read.
    pub(super) fn begin_all(&mut self, processes: impl Iterator<Item = Tgid>) {
        if self.naming == Naming::Off {
            return;
        }
        for tgid in processes {
            self.begin(tgid);
        }
    }

    /// Whether a process is being read.
    pub(super) fn is_reading(&self) -> bool {
        !self.held.is_empty()
    }

    /// Waits until a process was read; for ever where none is.
    pub(super) async fn next(&mut self) -> Reading {
        match self.read.recv().await {
            Some(reading) => reading,
            // It has a sender of its own.
            None => std::future::pending().await,
        }
    }

    /// Puts what was read into its place; gives what is to be passed on now, and says in words how it went. All
    /// events up to the moment must have been taken.
    pub(super) fn place(&mut self, (tgid, read): Reading) -> (Vec<HostEvent>, String) {
        let said = |how: String| format!("PID {}: {how}", tgid.0);
        let is_given_up = self.given_up.remove(&tgid);
        let Some(held) = self.held.remove(&tgid).filter(|_| !is_given_up) else {
            let why = "its tensors have no names: it ended, or too much happened meanwhile";
            return (Vec::new(), said(why.to_owned()));
        };
        let (names, how) = match read {
            Ok(read) => read,
            Err(error) => return (held, said(format!("its tensors have no names: {error:#}"))),
        };
        let blocks = counted(names.blocks.len() as u64, "block");
        let how = said(format!("{blocks} named; {}", consistency(how)));
        let is_later = |event: &HostEvent| time_of(event).is_some_and(|time| time > names.time);
        let place = held.iter().position(is_later).unwrap_or(held.len());
        let mut all = held;
        let event = HostEvent {
            tgid,
            item: HostItem::Event(Event::Names(names.into())),
        };
        all.insert(place, event);
        (all, how)
    }
}

/// When it happened, where that is said.
fn time_of(event: &HostEvent) -> Option<TimeNs> {
    match &event.item {
        HostItem::Event(Event::Memory(event)) => Some(event.time),
        HostItem::Event(Event::Mark(mark)) => Some(mark.time),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{StackId, Tid};

    const TGID: Tgid = Tgid(7);

    fn step(time: u64) -> HostEvent {
        let mark = Mark {
            time: TimeNs(time),
            tgid: TGID,
            tid: Tid(7),
            begins: Beginning::Step,
            class: "Adam".into(),
            stack: StackId::NONE,
        };
        HostEvent {
            tgid: TGID,
            item: HostItem::Event(Event::Mark(mark)),
        }
    }

    fn read_at(time: u64) -> Reading {
        let names = Names {
            time: TimeNs(time),
            tgid: TGID,
            blocks: Vec::new(),
        };
        (TGID, Ok((names, Consistency::Running)))
    }

    /// Times of marks, and 0 for names.
    fn told(events: &[HostEvent]) -> Vec<u64> {
        let time = |event: &HostEvent| time_of(event).map_or(0, |time| time.0);
        events.iter().map(time).collect()
    }

    #[test]
    fn names_stand_between_what_was_before_and_what_was_after_their_moment() {
        let mut reader = NameReader::new(Naming::Off);
        reader.held.insert(TGID, Vec::new());
        for time in [10, 20, 30] {
            assert!(matches!(reader.pass(step(time)), Passed::Held));
        }
        let (events, said) = reader.place(read_at(20));
        assert!(said.starts_with("PID 7: 0 blocks named"), "{said}");
        assert_eq!(told(&events), [10, 20, 0, 30]);
        assert!(matches!(reader.pass(step(40)), Passed::On(_)));
    }

    #[test]
    fn what_was_read_of_a_process_that_has_ended_is_left_out() {
        let mut reader = NameReader::new(Naming::NowAndThen);
        reader.held.insert(TGID, Vec::new());
        reader.pass(step(10));
        let ended = HostEvent {
            tgid: TGID,
            item: HostItem::Ended,
        };
        let passed = reader.pass(ended);
        assert!(matches!(passed, Passed::All(events) if events.len() == 2));
        let (events, said) = reader.place(read_at(20));
        assert!(events.is_empty() && said.contains("no names"));
    }

    #[test]
    fn a_process_is_read_at_the_second_step_and_ever_more_seldom_after_it() {
        let mut reader = NameReader::new(Naming::NowAndThen);
        let due = (1..=1100).filter(|number| match &step(*number).item {
            HostItem::Event(Event::Mark(mark)) => reader.is_due(mark),
            _ => false,
        });
        assert_eq!(due.collect::<Vec<_>>(), [2, 16, 128, 1024]);
    }

    #[test]
    fn without_being_asked_nothing_is_read() {
        let mut reader = NameReader::new(Naming::Off);
        for time in 0..9 {
            assert!(matches!(reader.pass(step(time)), Passed::On(_)));
        }
        reader.begin_all([TGID].into_iter());
        assert!(!reader.is_reading());
    }
}
