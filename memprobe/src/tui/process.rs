//! Live screens of one process (lines, modules, layers, categories, tensors), and their channels to the
//! caller.

use std::sync::Arc;

use anyhow::{Context, Result};
use crossterm::event::Event;
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::Receiver;

use super::categories::{self, CategoriesState};
use super::input::{Focus, InputEvent, wanted};
use super::modules::{self, ModulesState};
use super::secondary_screens::{AttributionQuery, AttributionTables, ScreenRequest as AskedBeside};
use super::state::{Follow, Overlay, State, WayBack};
use super::tensors::{self, Tensors, TensorsRequest, TensorsState};
use super::terminal::{self, Stage, Step};
use super::theme::Theme;
use super::{Command, SourceText, view};
use crate::ledger::snapshot::Snapshot;

/// Channels from the caller to the screens of one process.
#[derive(Clone, Debug)]
pub struct News {
    pub snapshots: Receiver<Arc<Snapshot>>,
    /// Answers to [`Command::TakeTensors`].
    pub tensors: Receiver<Tensors>,
    /// Answers to [`Command::Explain`].
    pub reasons: Receiver<AttributionTables>,
}

/// Shows the screens until the user quits, `quit` becomes true or its sender is dropped. Blocks: run it on a
/// separate thread. Requests go to the caller in order; [`Command::Quit`] is the last.
///
/// The terminal is restored if this returns, fails or panics, and if any other thread panics meanwhile.
///
/// # Errors
///
/// If standard output is not a terminal, the terminal fails, or another thread panicked.
pub fn run(
    news: News,
    commands: UnboundedSender<Command>,
    sources: Box<dyn SourceText + Send>,
    quit: Receiver<bool>,
) -> Result<()> {
    let asks = commands.clone();
    let ask = move |command| asks.send(command).context(ENDED);
    let mut stage = ProcessStage::new(news, Box::new(ask), sources, quit);
    terminal::run(
        &mut stage,
        "`memprobe record -o trace.json` and `memprobe report trace.json`",
    )?;
    // The send fails if the caller has already ended.
    let _ = commands.send(Command::Quit);
    Ok(())
}

/// Error if the caller no longer receives requests.
pub(super) const ENDED: &str = "the measurement has ended";

/// Sends a request to the caller.
pub(super) type Ask = Box<dyn Fn(Command) -> Result<()> + Send>;

/// Screens of one process, and the channels to the caller.
pub(super) struct ProcessStage {
    news: News,
    ask: Ask,
    quit: Receiver<bool>,
    sources: Box<dyn SourceText + Send>,
    /// Last snapshot taken from `news`.
    taken: Arc<Snapshot>,
    state: State,
    /// Last tensors taken from `news`.
    taken_tensors: Tensors,
    tensors_state: TensorsState,
    /// Last attribution table taken from `news`.
    taken_reasons: AttributionTables,
    modules_state: ModulesState,
    layers_state: ModulesState,
    categories_state: CategoriesState,
    screen: Screen,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Screen {
    Lines,
    Tensors,
    Modules,
    Layers,
    Categories,
}

impl Screen {
    /// Returns the screen that a key opens; the same key returns from it.
    const fn of(wanted: InputEvent) -> Option<Self> {
        match wanted {
            InputEvent::Tensors => Some(Self::Tensors),
            InputEvent::Modules => Some(Self::Modules),
            InputEvent::Layers => Some(Self::Layers),
            InputEvent::Categories => Some(Self::Categories),
            _ => None,
        }
    }
}

impl ProcessStage {
    /// Creates the screens of a process that is watched alone.
    fn new(
        news: News,
        ask: Ask,
        sources: Box<dyn SourceText + Send>,
        quit: Receiver<bool>,
    ) -> Self {
        let first = news.snapshots.borrow().clone();
        Self {
            news,
            ask,
            quit,
            sources,
            taken: first.clone(),
            state: State::new(first, (0, 0)),
            taken_tensors: Tensors::default(),
            tensors_state: TensorsState::default(),
            taken_reasons: AttributionTables::default(),
            modules_state: ModulesState::default(),
            layers_state: ModulesState::of_iterations(),
            categories_state: CategoriesState::default(),
            screen: Screen::Lines,
        }
    }

    /// Creates the screens of a process opened from the host screen; Esc returns there.
    pub(super) fn opened(
        news: News,
        ask: Ask,
        sources: Box<dyn SourceText + Send>,
        quit: Receiver<bool>,
    ) -> Self {
        let mut stage = Self::new(news, ask, sources, quit);
        stage.state.way_back = WayBack::Host;
        stage
    }

    fn send(&self, command: Command) -> Result<()> {
        (self.ask)(command)
    }

    /// Returns the attribution table that the current screen needs.
    fn explains(&self) -> AttributionQuery {
        match self.screen {
            Screen::Lines | Screen::Tensors => AttributionQuery::Nothing,
            Screen::Modules => self.modules_state.explains(),
            Screen::Layers => self.layers_state.explains(),
            Screen::Categories => AttributionQuery::Categories,
        }
    }

    /// Opens a screen, and requests its data. Tensors are read only if they were not read before.
    fn open(&mut self, screen: Screen) -> Result<()> {
        let before = self.explains();
        self.screen = screen;
        if self.explains() != before {
            self.send(Command::Explain(self.explains()))?;
        }
        if screen == Screen::Tensors && self.tensors_state.is_unread() {
            self.send(Command::TakeTensors)?;
        }
        self.show_device();
        Ok(())
    }

    /// Returns the step on leaving the screen of lines: back to the host screen, or out.
    fn way_out(&self, wanted: InputEvent) -> Step {
        match (wanted, self.state.way_back) {
            (InputEvent::Back, WayBack::Host) => Step::Back,
            _ => Step::Leave,
        }
    }

    /// Applies the selected device to all screens.
    fn show_device(&mut self) {
        let device = self.state.device().map(|device| device.index);
        self.modules_state.show(device);
        self.layers_state.show(device);
        self.categories_state.show(device);
    }

    /// Returns the receiver of key events.
    fn focus(&self) -> Focus {
        match self.screen {
            Screen::Lines => self.state.focus,
            Screen::Tensors => self.tensors_state.focus(),
            Screen::Modules => self.modules_state.focus(),
            Screen::Layers => self.layers_state.focus(),
            Screen::Categories => Focus::Table,
        }
    }

    fn on_secondary_screen(&mut self, event: &Event) -> Result<Step> {
        let Some(wanted) = wanted(event, self.focus()) else {
            return Ok(Step::Nothing);
        };
        let asked = match self.screen {
            Screen::Modules => self.modules_state.handle(wanted),
            Screen::Layers => self.layers_state.handle(wanted),
            _ => self.categories_state.handle(wanted),
        };
        match asked {
            Some(AskedBeside::Quit) => return Ok(Step::Leave),
            Some(AskedBeside::Leave) => self.open(Screen::Lines)?,
            Some(AskedBeside::AsOnLines(wanted)) => {
                if let Some(command) = self.state.handle(wanted) {
                    self.send(command)?;
                }
                self.show_device();
                self.take_reasons();
            }
            Some(AskedBeside::Explain(wanted)) => self.send(Command::Explain(wanted))?,
            // The last note of the screen of lines no longer applies.
            None => self.state.note = None,
        }
        Ok(match wanted {
            InputEvent::Redraw => Step::DrawAll,
            _ => Step::Draw,
        })
    }

    /// Takes new attribution tables, unless paused.
    fn take_reasons(&mut self) -> bool {
        let reasons = self.news.reasons.borrow().clone();
        if self.state.follow == Follow::Paused || reasons.is(&self.taken_reasons) {
            return false;
        }
        self.show_device();
        match &reasons {
            AttributionTables::Nothing => {}
            AttributionTables::Modules(news) => self.modules_state.update(Arc::clone(news)),
            AttributionTables::Layers(news) => self.layers_state.update_then(Arc::clone(news)),
            AttributionTables::Categories(news) => self.categories_state.update(Arc::clone(news)),
        }
        self.taken_reasons = reasons;
        true
    }

    fn on_tensors(&mut self, event: &Event) -> Result<Step> {
        let Some(wanted) = tensors::wanted(event, self.tensors_state.focus()) else {
            return Ok(Step::Nothing);
        };
        match self.tensors_state.handle(wanted) {
            Some(TensorsRequest::Quit) => return Ok(Step::Leave),
            Some(TensorsRequest::Leave) => self.open(Screen::Lines)?,
            Some(TensorsRequest::Take) => self.send(Command::TakeTensors)?,
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
        // Compared by pointer: `has_changed` fails once the sender is dropped, and the last snapshot must
        // still be shown.
        let latest = self.news.snapshots.borrow().clone();
        let news = !Arc::ptr_eq(&latest, &self.taken);
        if news {
            self.taken = Arc::clone(&latest);
            self.state.update(latest);
        }
        let tensors = self.news.tensors.borrow().clone();
        let news_of_tensors = !tensors.is(&self.taken_tensors);
        if news_of_tensors {
            self.taken_tensors = tensors.clone();
            self.tensors_state.update(tensors);
        }
        let news_of_reasons = self.take_reasons();
        match self.screen {
            Screen::Lines => news,
            Screen::Tensors => news_of_tensors,
            Screen::Modules | Screen::Layers | Screen::Categories => news || news_of_reasons,
        }
    }

    fn resize(&mut self, width: u16, height: u16) {
        self.state.handle(InputEvent::Resize(width, height));
        self.tensors_state.resize(width, height);
        self.modules_state.resize(width, height);
        self.layers_state.resize(width, height);
        self.categories_state.resize(width, height);
    }

    fn handle(&mut self, event: &Event) -> Result<Step> {
        if let Event::Resize(width, height) = event {
            self.resize(*width, *height);
            return Ok(Step::DrawAll);
        }
        if let Some(asked) = wanted(event, self.focus()).and_then(Screen::of) {
            let screen = if asked == self.screen {
                Screen::Lines
            } else {
                asked
            };
            self.open(screen)?;
            return Ok(Step::Draw);
        }
        // Both are lists over the lines.
        if let Some(wanted @ (InputEvent::Outside | InputEvent::Probes)) =
            wanted(event, self.focus())
            && self.screen != Screen::Lines
        {
            self.open(Screen::Lines)?;
            self.state.overlay = Overlay::None;
            self.state.handle(wanted);
            return Ok(Step::Draw);
        }
        match self.screen {
            Screen::Tensors => return self.on_tensors(event),
            Screen::Modules | Screen::Layers | Screen::Categories => {
                return self.on_secondary_screen(event);
            }
            Screen::Lines => {}
        }
        let Some(wanted) = wanted(event, self.state.focus) else {
            return Ok(Step::Nothing);
        };
        match self.state.handle(wanted) {
            Some(Command::Quit) => return Ok(self.way_out(wanted)),
            Some(command) => self.send(command)?,
            None => {}
        }
        Ok(match wanted {
            InputEvent::Redraw => Step::DrawAll,
            _ => Step::Draw,
        })
    }

    fn draw(&mut self, buffer: &mut Buffer, theme: &Theme) -> Option<Position> {
        match self.screen {
            Screen::Lines => view::draw(buffer, &self.state, self.sources.as_mut(), theme),
            Screen::Tensors => {
                tensors::draw(buffer, &self.tensors_state, &self.taken.target, theme)
            }
            Screen::Modules => modules::draw(buffer, &self.modules_state, &self.state, theme),
            Screen::Layers => modules::draw(buffer, &self.layers_state, &self.state, theme),
            Screen::Categories => {
                categories::draw(buffer, &self.categories_state, &self.state, theme);
                None
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
    use super::super::test_support::COLOUR;
    use super::*;
    use crate::attribution::tables::samples::module;
    use crate::ledger::snapshot::Grouping;
    use crate::tensors::explain;
    use crate::tensors::samples::training;

    /// Caller's end of the channels.
    struct Caller {
        snapshots: watch::Sender<Arc<Snapshot>>,
        tensors: watch::Sender<Tensors>,
        reasons: watch::Sender<AttributionTables>,
        commands: mpsc::UnboundedReceiver<Command>,
        quit: watch::Sender<bool>,
    }

    fn connect() -> (Caller, ProcessStage) {
        let (snapshots, snapshots_receiver) = watch::channel(Arc::new(samples::empty()));
        let (tensors, tensors_receiver) = watch::channel(Tensors::default());
        let (reasons, reasons_receiver) = watch::channel(AttributionTables::default());
        let (commands_sender, commands) = mpsc::unbounded_channel();
        let (quit, quit_receiver) = watch::channel(false);
        let news = News {
            snapshots: snapshots_receiver,
            tensors: tensors_receiver,
            reasons: reasons_receiver,
        };
        let ask = move |command| commands_sender.send(command).context(ENDED);
        let stage = ProcessStage::new(news, Box::new(ask), Box::new(Sources), quit_receiver);
        let caller = Caller {
            snapshots,
            tensors,
            reasons,
            commands,
            quit,
        };
        (caller, stage)
    }

    fn key(letter: char) -> Option<Event> {
        let key = KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE);
        Some(Event::Key(key))
    }

    /// Runs the loop with these inputs. Returns the final screen.
    fn shown(
        stage: &mut ProcessStage,
        input: impl FnMut(Duration) -> io::Result<Option<Event>>,
    ) -> Result<String> {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let check = || Ok(());
        let ended = show(&mut terminal, &COLOUR, stage, input, check);
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
    fn only_what_is_shown_is_asked_for() {
        let (mut caller, mut stage) = connect();
        let mut keys = VecDeque::from(['m', 'c', 't', 'm', 'm', 'q'].map(key));
        shown(&mut stage, |_| Ok(keys.pop_front().unwrap())).unwrap();
        let mut asked = Vec::new();
        while let Ok(command) = caller.commands.try_recv() {
            asked.push(command);
        }
        let explain = Command::Explain;
        let (modules, nothing) = (
            explain(AttributionQuery::Modules),
            explain(AttributionQuery::Nothing),
        );
        let categories = explain(AttributionQuery::Categories);
        assert_eq!(
            asked,
            [
                modules,
                categories,
                nothing,
                Command::TakeTensors,
                modules,
                nothing
            ]
        );
    }

    #[test]
    fn a_pause_holds_the_modules_too() {
        let (caller, mut stage) = connect();
        let modules = |name| AttributionTables::Modules(module(name));
        caller.snapshots.send_replace(Arc::new(samples::normal()));
        caller.reasons.send_replace(modules("First"));
        let mut keys = VecDeque::from([None, key('m'), key(' '), None, None, key('q')]);
        let text = shown(&mut stage, |_| {
            if keys.len() == 3 {
                caller.reasons.send_replace(modules("Second"));
            }
            std::thread::sleep(BETWEEN_DRAWINGS);
            Ok(keys.pop_front().unwrap())
        });
        let text = text.unwrap();
        assert!(text.contains("First") && text.contains("PAUSED"), "{text}");
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
