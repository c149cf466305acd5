//! The screen of the host and that of the process that was opened from it, on one terminal.

use std::sync::Arc;

use anyhow::{Context, Result};
use crossterm::event::Event;
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::Receiver;

use super::super::input::{self, Wanted};
use super::super::state::State;
use super::super::terminal::{self, Stage, Step};
use super::super::theme::Theme;
use super::super::{Command, SourceText, view as process_view};
use super::input::{HostWanted, wanted};
use super::state::HostState;
use super::{HostCommand, HostView, SourcesOf, view};
use crate::event::Tgid;

/// What a screen of processes says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Title {
    /// The command that it is the screen of.
    pub name: String,
    /// What to do where there is no terminal.
    pub instead: &'static str,
}

/// Shows all processes, and each that a person opens, until they quit, `quit` becomes true or its
/// sender is gone. Blocks: run it on a thread of its own. Commands go to the caller as they are
/// given; [`HostCommand::Quit`] is the last.
///
/// The terminal is left as it was found when this returns, fails or panics, and when any other
/// thread panics meanwhile.
///
/// # Errors
///
/// When standard output is no terminal, the terminal fails, or another thread panicked.
pub fn run(
    views: Receiver<HostView>,
    commands: UnboundedSender<HostCommand>,
    sources: SourcesOf,
    quit: Receiver<bool>,
    title: Title,
) -> Result<()> {
    let mut stage = HostStage::new(views, commands, sources, quit, title.name);
    terminal::run(&mut stage, title.instead)?;
    // The caller may be gone already, and then needs no telling.
    let _ = stage.commands.send(HostCommand::Quit);
    Ok(())
}

/// The screens, and their caller.
struct HostStage {
    views: Receiver<HostView>,
    commands: UnboundedSender<HostCommand>,
    quit: Receiver<bool>,
    sources: SourcesOf,
    /// The last that was taken.
    taken: HostView,
    host: HostState,
    opened: Option<Opened>,
}

/// A process that was opened.
struct Opened {
    tgid: Tgid,
    /// `None` until the caller has sent its first snapshot.
    state: Option<State>,
    sources: Box<dyn SourceText + Send>,
}

impl HostStage {
    fn new(
        views: Receiver<HostView>,
        commands: UnboundedSender<HostCommand>,
        sources: SourcesOf,
        quit: Receiver<bool>,
        name: String,
    ) -> Self {
        let taken = views.borrow().clone();
        let host = HostState::new(Arc::clone(&taken.host), (0, 0), name);
        Self {
            views,
            commands,
            quit,
            sources,
            taken,
            host,
            opened: None,
        }
    }

    fn send(&self, command: HostCommand) -> Result<()> {
        self.commands
            .send(command)
            .context("the measurement has ended")
    }

    /// An event for the table of processes.
    fn on_host(&mut self, event: &Event) -> Result<Step> {
        let Some(wanted) = wanted(event, self.host.focus) else {
            return Ok(Step::Nothing);
        };
        match self.host.handle(wanted) {
            Some(HostCommand::Quit) => return Ok(Step::Leave),
            Some(HostCommand::Open(tgid)) => {
                self.opened = Some(Opened {
                    tgid,
                    state: None,
                    sources: (self.sources)(tgid),
                });
                self.send(HostCommand::Open(tgid))?;
            }
            Some(command) => self.send(command)?,
            None => {}
        }
        Ok(match wanted {
            HostWanted::Common(Wanted::Redraw) => Step::DrawAll,
            _ => Step::Draw,
        })
    }

    /// An event while a process is open. The keys that leave its screen lead back here; only those
    /// that quit everywhere quit.
    fn on_process(&mut self, event: &Event) -> Result<Step> {
        let state = self
            .opened
            .as_mut()
            .and_then(|opened| opened.state.as_mut());
        let focus = state
            .as_ref()
            .map_or(input::Focus::Table, |state| state.focus);
        let Some(wanted) = input::wanted(event, focus) else {
            return Ok(Step::Nothing);
        };
        let command = match (state, wanted) {
            (_, Wanted::Quit) => return Ok(Step::Leave),
            (Some(state), wanted) => state.handle(wanted),
            (None, Wanted::Back) => Some(Command::Quit),
            (None, _) => None,
        };
        match command {
            Some(Command::Quit) => {
                self.opened = None;
                self.send(HostCommand::Close)?;
            }
            Some(Command::SetGrouping(grouping)) => {
                self.send(HostCommand::SetGrouping(grouping))?;
            }
            // The screen of lines does not ask for these.
            Some(Command::TakeTensors | Command::Explain(_)) | None => {}
        }
        Ok(match wanted {
            Wanted::Redraw => Step::DrawAll,
            _ => Step::Draw,
        })
    }
}

impl Stage for HostStage {
    fn is_over(&self) -> bool {
        *self.quit.borrow() || self.quit.has_changed().is_err()
    }

    fn take_news(&mut self) -> bool {
        let latest = self.views.borrow().clone();
        let same_process = match (&latest.process, &self.taken.process) {
            (Some(new), Some(old)) => Arc::ptr_eq(new, old),
            (None, None) => true,
            _ => false,
        };
        let same_host = Arc::ptr_eq(&latest.host, &self.taken.host);
        if same_host && same_process {
            return false;
        }
        if !same_host {
            self.host.update(Arc::clone(&latest.host));
        }
        if let (Some(opened), Some(snapshot)) = (&mut self.opened, &latest.process)
            && snapshot.target.tgid == Some(opened.tgid)
        {
            match &mut opened.state {
                Some(state) => state.update(Arc::clone(snapshot)),
                None => opened.state = Some(State::opened(Arc::clone(snapshot), self.host.size())),
            }
        }
        self.taken = latest;
        true
    }

    fn resize(&mut self, width: u16, height: u16) {
        let wanted = Wanted::Resize(width, height);
        self.host.handle(HostWanted::Common(wanted));
        if let Some(state) = self
            .opened
            .as_mut()
            .and_then(|opened| opened.state.as_mut())
        {
            state.handle(wanted);
        }
    }

    fn handle(&mut self, event: &Event) -> Result<Step> {
        if let Event::Resize(width, height) = event {
            self.resize(*width, *height);
            return Ok(Step::DrawAll);
        }
        match self.opened {
            Some(_) => self.on_process(event),
            None => self.on_host(event),
        }
    }

    fn draw(&mut self, buffer: &mut Buffer, theme: &Theme) -> Option<Position> {
        match &mut self.opened {
            Some(Opened {
                state: Some(state),
                sources,
                ..
            }) => process_view::draw(buffer, state, sources.as_mut(), theme),
            _ => view::draw(buffer, &self.host, theme),
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

    use super::super::super::samples::{self as process_samples, Sources};
    use super::super::super::terminal::{BETWEEN_DRAWINGS, show};
    use super::super::super::trial::COLOUR;
    use super::super::samples;
    use super::*;
    use crate::model::snapshot::Grouping;

    /// The caller's side: it answers as the measurement does.
    struct Caller {
        views: watch::Sender<HostView>,
        commands: mpsc::UnboundedReceiver<HostCommand>,
        said: Vec<HostCommand>,
        _quit: watch::Sender<bool>,
    }

    impl Caller {
        fn answer(&mut self) {
            while let Ok(command) = self.commands.try_recv() {
                self.said.push(command);
                let process = match command {
                    HostCommand::Open(tgid) => {
                        let mut snapshot = process_samples::normal();
                        snapshot.target.tgid = Some(tgid);
                        Some(Arc::new(snapshot))
                    }
                    HostCommand::Close => None,
                    _ => continue,
                };
                self.views.send_modify(|view| view.process = process);
            }
        }
    }

    fn connect() -> (Caller, HostStage) {
        let view = HostView {
            host: Arc::new(samples::busy()),
            process: None,
        };
        let (views, views_receiver) = watch::channel(view);
        let (commands_sender, commands) = mpsc::unbounded_channel();
        let (quit, quit_receiver) = watch::channel(false);
        let sources: SourcesOf = Box::new(|_| Box::new(Sources));
        let name = "memprobe top".to_owned();
        let stage = HostStage::new(
            views_receiver,
            commands_sender,
            sources,
            quit_receiver,
            name,
        );
        let caller = Caller {
            views,
            commands,
            said: Vec::new(),
            _quit: quit,
        };
        (caller, stage)
    }

    fn key(code: KeyCode) -> Event {
        Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    /// Runs the loop with these keys, the caller answering after each; says what was on the screen
    /// before the last.
    fn shown(caller: &mut Caller, stage: &mut HostStage, keys: &[KeyCode]) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 24)).unwrap();
        let mut keys: VecDeque<KeyCode> = keys.iter().copied().collect();
        let mut waited = false;
        let input = |_: Duration| -> io::Result<Option<Event>> {
            caller.answer();
            waited = !waited;
            if waited {
                std::thread::sleep(BETWEEN_DRAWINGS);
                return Ok(None);
            }
            Ok(keys.pop_front().map(key))
        };
        show(&mut terminal, &COLOUR, stage, input, || Ok(())).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn enter_opens_the_selected_process_and_q_ends_there_too() {
        let (mut caller, mut stage) = connect();
        let keys = [KeyCode::Enter, KeyCode::Char('q')];
        let text = shown(&mut caller, &mut stage, &keys);
        assert!(
            text.contains("model.py:88 forward") && text.contains("Esc back"),
            "{text}"
        );
        assert!(text.contains("PID 1234"), "{text}");
        assert_eq!(caller.said, [HostCommand::Open(Tgid(1234))]);
    }

    #[test]
    fn escape_leads_back_to_the_same_row_and_then_nowhere() {
        let (mut caller, mut stage) = connect();
        let keys = [
            KeyCode::Down,
            KeyCode::Enter,
            KeyCode::Char('i'),
            KeyCode::Esc,
            KeyCode::Esc,
            KeyCode::Char('q'),
        ];
        let text = shown(&mut caller, &mut stage, &keys);
        assert!(
            text.contains("memprobe top") && text.contains("q quits"),
            "{text}"
        );
        assert!(text.contains(">    6001"), "{text}");
        let said = [
            HostCommand::Open(Tgid(6001)),
            HostCommand::SetGrouping(Grouping::Innermost),
            HostCommand::Close,
        ];
        assert_eq!(caller.said, said);
    }

    #[test]
    fn escape_in_a_process_first_closes_what_is_open_there() {
        let (mut caller, mut stage) = connect();
        let keys = [
            KeyCode::Enter,
            KeyCode::Char('s'),
            KeyCode::Esc,
            KeyCode::Char('q'),
        ];
        let text = shown(&mut caller, &mut stage, &keys);
        assert!(text.contains("Esc back"), "{text}");
    }

    #[test]
    fn a_process_opens_where_the_window_was_resized_before() {
        let (_caller, mut stage) = connect();
        stage.resize(61, 17);
        stage.handle(&key(KeyCode::Enter)).unwrap();
        let mut snapshot = process_samples::normal();
        snapshot.target.tgid = Some(Tgid(1234));
        stage.taken.process = None;
        let view = HostView {
            host: Arc::clone(&stage.taken.host),
            process: Some(Arc::new(snapshot)),
        };
        let (sender, receiver) = watch::channel(view);
        stage.views = receiver;
        assert!(stage.take_news() && !stage.take_news());
        let area = ratatui::layout::Rect::new(0, 0, 61, 17);
        let mut buffer = Buffer::empty(area);
        stage.draw(&mut buffer, &COLOUR);
        let text: String = buffer
            .content
            .iter()
            .map(ratatui::buffer::Cell::symbol)
            .collect();
        assert!(text.contains("model.py:88"), "{text}");
        drop(sender);
    }
}
