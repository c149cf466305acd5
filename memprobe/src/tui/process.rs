//! The live screens of one process, its lines and its tensors: what comes from the caller, and what
//! goes to it.

use std::sync::Arc;

use anyhow::{Context, Result};
use crossterm::event::Event;
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::Receiver;

use super::input::{Wanted, wanted};
use super::state::State;
use super::tensors::{self, Asked, Tensors, TensorsState};
use super::terminal::{self, Stage, Step};
use super::theme::Theme;
use super::{Command, SourceText, view};
use crate::model::snapshot::Snapshot;

/// Shows snapshots, and in `tensors` what comes of [`Command::TakeTensors`], until a person quits, `quit` becomes true or its sender is gone. Blocks: run
/// it on a thread of its own. Commands go to the caller as they are given; [`Command::Quit`] is
/// the last.
///
/// The terminal is left as it was found when this returns, fails or panics, and when any other
/// thread panics meanwhile.
///
/// # Errors
///
/// When standard output is no terminal, the terminal fails, or another thread panicked.
pub fn run(
    snapshots: Receiver<Arc<Snapshot>>,
    tensors: Receiver<Tensors>,
    commands: UnboundedSender<Command>,
    sources: Box<dyn SourceText + Send>,
    quit: Receiver<bool>,
) -> Result<()> {
    let mut stage = ProcessStage::new(snapshots, tensors, commands, sources, quit);
    terminal::run(
        &mut stage,
        "`memprobe record -o trace.json` and `memprobe report trace.json`",
    )?;
    // The caller may be gone already, and then needs no telling.
    let _ = stage.commands.send(Command::Quit);
    Ok(())
}

/// The screen of one process, and its caller.
struct ProcessStage {
    snapshots: Receiver<Arc<Snapshot>>,
    commands: UnboundedSender<Command>,
    quit: Receiver<bool>,
    sources: Box<dyn SourceText + Send>,
    /// The last that was taken.
    taken: Arc<Snapshot>,
    state: State,
    tensors: Receiver<Tensors>,
    /// Likewise.
    taken_tensors: Tensors,
    tensors_state: TensorsState,
    screen: Screen,
}

/// Which screen is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Screen {
    Lines,
    Tensors,
}

impl ProcessStage {
    fn new(
        snapshots: Receiver<Arc<Snapshot>>,
        tensors: Receiver<Tensors>,
        commands: UnboundedSender<Command>,
        sources: Box<dyn SourceText + Send>,
        quit: Receiver<bool>,
    ) -> Self {
        let first = snapshots.borrow().clone();
        Self {
            snapshots,
            commands,
            quit,
            sources,
            taken: first.clone(),
            state: State::new(first, (0, 0)),
            tensors,
            taken_tensors: Tensors::default(),
            tensors_state: TensorsState::default(),
            screen: Screen::Lines,
        }
    }

    fn send(&self, command: Command) -> Result<()> {
        self.commands
            .send(command)
            .context("the measurement has ended")
    }

    /// Shows the tensors; reads them where that was not done yet.
    fn open_tensors(&mut self) -> Result<()> {
        self.screen = Screen::Tensors;
        if self.tensors_state.is_unread() {
            self.send(Command::TakeTensors)?;
        }
        Ok(())
    }

    fn on_tensors(&mut self, event: &Event) -> Result<Step> {
        let Some(wanted) = tensors::wanted(event, self.tensors_state.focus()) else {
            return Ok(Step::Nothing);
        };
        match self.tensors_state.handle(wanted) {
            Some(Asked::Quit) => return Ok(Step::Leave),
            Some(Asked::Leave) => self.screen = Screen::Lines,
            Some(Asked::Take) => self.send(Command::TakeTensors)?,
            None => {}
        }
        Ok(Step::Draw)
    }
}

impl Stage for ProcessStage {
    fn is_over(&self) -> bool {
        *self.quit.borrow() || self.quit.has_changed().is_err()
    }

    fn take_news(&mut self) -> bool {
        // Not asked whether it has changed: of a sender that is gone, the last is still to be shown.
        let latest = self.snapshots.borrow().clone();
        let news = !Arc::ptr_eq(&latest, &self.taken);
        if news {
            self.taken = Arc::clone(&latest);
            self.state.update(latest);
        }
        let tensors = self.tensors.borrow().clone();
        let news_of_tensors = !tensors.is(&self.taken_tensors);
        if news_of_tensors {
            self.taken_tensors = tensors.clone();
            self.tensors_state.update(tensors);
        }
        match self.screen {
            Screen::Lines => news,
            Screen::Tensors => news_of_tensors,
        }
    }

    fn resize(&mut self, width: u16, height: u16) {
        self.state.handle(Wanted::Resize(width, height));
        self.tensors_state.resize(width, height);
    }

    fn handle(&mut self, event: &Event) -> Result<Step> {
        if let Event::Resize(width, height) = event {
            self.resize(*width, *height);
            return Ok(Step::DrawAll);
        }
        if self.screen == Screen::Tensors {
            return self.on_tensors(event);
        }
        let Some(wanted) = wanted(event, self.state.focus) else {
            return Ok(Step::Nothing);
        };
        if wanted == Wanted::Tensors {
            self.open_tensors()?;
            return Ok(Step::Draw);
        }
        match self.state.handle(wanted) {
            Some(Command::Quit) => return Ok(Step::Leave),
            Some(command) => self.send(command)?,
            None => {}
        }
        Ok(match wanted {
            Wanted::Redraw => Step::DrawAll,
            _ => Step::Draw,
        })
    }

    fn draw(&mut self, buffer: &mut Buffer, theme: &Theme) -> Option<Position> {
        match self.screen {
            Screen::Lines => view::draw(buffer, &self.state, self.sources.as_mut(), theme),
            Screen::Tensors => {
                tensors::draw(buffer, &self.tensors_state, &self.taken.target, theme)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::time::Duration;

    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tokio::sync::{mpsc, watch};

    use super::super::samples::{self, Sources};
    use super::super::terminal::{BETWEEN_DRAWINGS, show};
    use super::super::theme::{Ink, UNICODE};
    use super::*;
    use crate::model::snapshot::Grouping;
    use crate::model::tensors::explain;
    use crate::model::tensors::samples::training;

    const THEME: Theme = Theme {
        ink: Ink::Colour,
        glyphs: UNICODE,
    };

    /// The caller's side of the channels.
    struct Caller {
        snapshots: watch::Sender<Arc<Snapshot>>,
        tensors: watch::Sender<Tensors>,
        commands: mpsc::UnboundedReceiver<Command>,
        quit: watch::Sender<bool>,
    }

    fn connect() -> (Caller, ProcessStage) {
        let (snapshots, snapshots_receiver) = watch::channel(Arc::new(samples::empty()));
        let (tensors, tensors_receiver) = watch::channel(Tensors::default());
        let (commands_sender, commands) = mpsc::unbounded_channel();
        let (quit, quit_receiver) = watch::channel(false);
        let stage = ProcessStage::new(
            snapshots_receiver,
            tensors_receiver,
            commands_sender,
            Box::new(Sources),
            quit_receiver,
        );
        let caller = Caller {
            snapshots,
            tensors,
            commands,
            quit,
        };
        (caller, stage)
    }

    fn key(letter: char) -> Option<Event> {
        let key = KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE);
        Some(Event::Key(key))
    }

    /// Runs the loop with what a person does; says what was on the screen at the end.
    fn shown(
        stage: &mut ProcessStage,
        input: impl FnMut(Duration) -> io::Result<Option<Event>>,
    ) -> Result<String> {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let check = || Ok(());
        let ended = show(&mut terminal, &THEME, stage, input, check);
        ended.map(|()| terminal.backend().to_string())
    }

    #[test]
    fn keys_reach_the_caller_as_commands_and_q_ends() {
        let (mut caller, mut stage) = connect();
        let mut keys = VecDeque::from([key('i'), None, key('q')]);
        shown(&mut stage, |_| Ok(keys.pop_front().unwrap())).unwrap();
        let command = caller.commands.try_recv();
        assert_eq!(command, Ok(Command::SetGrouping(Grouping::Innermost)));
    }

    #[test]
    fn t_reads_the_tensors_once_and_shows_them_and_t_leads_back() {
        let (mut caller, mut stage) = connect();
        let table = Arc::new(explain(&training()));
        let mut keys = VecDeque::from([key('t'), None, key('t'), key('t'), None, key('q')]);
        let text = shown(&mut stage, |_| {
            if caller.commands.try_recv() == Ok(Command::TakeTensors) {
                caller
                    .tensors
                    .send_replace(Tensors::Taken(Arc::clone(&table)));
            }
            std::thread::sleep(BETWEEN_DRAWINGS);
            Ok(keys.pop_front().unwrap())
        });
        let text = text.unwrap();
        assert!(text.contains("memprobe tensors"), "{text}");
        assert!(text.contains("paused for 12.3 ms"), "{text}");
        assert!(caller.commands.try_recv().is_err(), "it was read again");
    }

    #[test]
    fn a_capital_r_reads_the_tensors_again() {
        let (mut caller, mut stage) = connect();
        let mut keys = VecDeque::from([key('t'), key('R'), None, key('q')]);
        shown(&mut stage, |_| Ok(keys.pop_front().unwrap())).unwrap();
        for _ in 0..2 {
            assert_eq!(caller.commands.try_recv(), Ok(Command::TakeTensors));
        }
    }

    #[test]
    fn a_new_snapshot_is_drawn_without_input() {
        let (caller, mut stage) = connect();
        let mut waits = 0;
        let text = shown(&mut stage, |_| {
            waits += 1;
            match waits {
                1 => drop(caller.snapshots.send_replace(Arc::new(samples::normal()))),
                2 => {}
                _ => drop(caller.quit.send_replace(true)),
            }
            std::thread::sleep(BETWEEN_DRAWINGS);
            Ok(None)
        });
        assert!(text.unwrap().contains("model.py:88 forward"));
    }

    #[test]
    fn the_caller_can_end_the_screen() {
        let (caller, mut stage) = connect();
        caller.quit.send_replace(true);
        shown(&mut stage, |_| unreachable!("no input is taken any more")).unwrap();
    }

    #[test]
    fn a_caller_that_is_gone_ends_the_screen() {
        let (caller, mut stage) = connect();
        drop(caller);
        shown(&mut stage, |_| unreachable!("no input is taken any more")).unwrap();
    }

    #[test]
    fn a_measurement_that_has_ended_leaves_its_last_snapshot_on_the_screen() {
        let (caller, mut stage) = connect();
        caller.snapshots.send_replace(Arc::new(samples::gone()));
        drop(caller.snapshots);
        let mut keys = VecDeque::from([None, None, key('q')]);
        let text = shown(&mut stage, |_| Ok(keys.pop_front().unwrap())).unwrap();
        assert!(text.contains("TARGET GONE"), "{text}");
    }

    #[test]
    fn a_terminal_that_fails_ends_the_screen_with_its_error() {
        let (_caller, mut stage) = connect();
        let failed = shown(&mut stage, |_| Err(io::Error::other("hung up")));
        assert!(failed.unwrap_err().to_string().contains("hung up"));
    }
}
