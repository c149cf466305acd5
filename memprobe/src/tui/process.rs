//! The live screen of one process: what comes from the caller, and what goes to it.

use std::sync::Arc;

use anyhow::{Context, Result};
use crossterm::event::Event;
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::Receiver;

use super::input::{Wanted, wanted};
use super::state::State;
use super::terminal::{self, Stage, Step};
use super::theme::Theme;
use super::{Command, SourceText, view};
use crate::model::snapshot::Snapshot;

/// Shows snapshots until a person quits, `quit` becomes true or its sender is gone. Blocks: run
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
    commands: UnboundedSender<Command>,
    sources: Box<dyn SourceText + Send>,
    quit: Receiver<bool>,
) -> Result<()> {
    let mut stage = ProcessStage::new(snapshots, commands, sources, quit);
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
}

impl ProcessStage {
    fn new(
        snapshots: Receiver<Arc<Snapshot>>,
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
        }
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
        news
    }

    fn resize(&mut self, width: u16, height: u16) {
        self.state.handle(Wanted::Resize(width, height));
    }

    fn handle(&mut self, event: &Event) -> Result<Step> {
        let Some(wanted) = wanted(event, self.state.focus) else {
            return Ok(Step::Nothing);
        };
        match self.state.handle(wanted) {
            Some(Command::Quit) => return Ok(Step::Leave),
            Some(command) => self
                .commands
                .send(command)
                .context("the measurement has ended")?,
            None => {}
        }
        Ok(match wanted {
            Wanted::Resize(..) | Wanted::Redraw => Step::DrawAll,
            _ => Step::Draw,
        })
    }

    fn draw(&mut self, buffer: &mut Buffer, theme: &Theme) -> Option<Position> {
        view::draw(buffer, &self.state, self.sources.as_mut(), theme)
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

    const THEME: Theme = Theme {
        ink: Ink::Colour,
        glyphs: UNICODE,
    };

    /// The caller's side of the channels.
    struct Caller {
        snapshots: watch::Sender<Arc<Snapshot>>,
        commands: mpsc::UnboundedReceiver<Command>,
        quit: watch::Sender<bool>,
    }

    fn connect() -> (Caller, ProcessStage) {
        let (snapshots, snapshots_receiver) = watch::channel(Arc::new(samples::empty()));
        let (commands_sender, commands) = mpsc::unbounded_channel();
        let (quit, quit_receiver) = watch::channel(false);
        let stage = ProcessStage::new(
            snapshots_receiver,
            commands_sender,
            Box::new(Sources),
            quit_receiver,
        );
        let caller = Caller {
            snapshots,
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
