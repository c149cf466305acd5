//! The live screens of one process, its lines, modules, categories and tensors: what comes from the caller, and what
//! goes to it.

use std::sync::Arc;

use anyhow::{Context, Result};
use crossterm::event::Event;
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::Receiver;

use super::beside::{Asked as AskedBeside, Explain, Reasons};
use super::categories::{self, CategoriesState};
use super::input::{Focus, Wanted, wanted};
use super::modules::{self, ModulesState};
use super::state::{Follow, State, WayBack};
use super::tensors::{self, Asked, Tensors, TensorsState};
use super::terminal::{self, Stage, Step};
use super::theme::Theme;
use super::{Command, SourceText, view};
use crate::model::snapshot::Snapshot;

/// What the caller gives the screens of one process to show.
#[derive(Clone, Debug)]
pub struct News {
    /// Snapshots of the process.
    pub snapshots: Receiver<Arc<Snapshot>>,
    /// What comes of [`Command::TakeTensors`].
    pub tensors: Receiver<Tensors>,
    /// What comes of [`Command::Explain`].
    pub reasons: Receiver<Reasons>,
}

/// Shows what comes until a person quits, `quit` becomes true or its sender is gone. Blocks: run
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
    // The caller may be gone already, and then needs no telling.
    let _ = commands.send(Command::Quit);
    Ok(())
}

/// Where nobody takes commands any more.
pub(super) const ENDED: &str = "the measurement has ended";

/// Brings a command to the caller.
pub(super) type Ask = Box<dyn Fn(Command) -> Result<()> + Send>;

/// The screens of one process, and their caller.
pub(super) struct ProcessStage {
    news: News,
    ask: Ask,
    quit: Receiver<bool>,
    sources: Box<dyn SourceText + Send>,
    /// The last that was taken.
    taken: Arc<Snapshot>,
    state: State,
    /// Likewise.
    taken_tensors: Tensors,
    tensors_state: TensorsState,
    /// Likewise.
    taken_reasons: Reasons,
    modules_state: ModulesState,
    layers_state: ModulesState,
    categories_state: CategoriesState,
    screen: Screen,
}

/// Which screen is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Screen {
    Lines,
    Tensors,
    Modules,
    Layers,
    Categories,
}

impl Screen {
    /// The screen that a key leads to; it leads back from there.
    const fn of(wanted: Wanted) -> Option<Self> {
        match wanted {
            Wanted::Tensors => Some(Self::Tensors),
            Wanted::Modules => Some(Self::Modules),
            Wanted::Layers => Some(Self::Layers),
            Wanted::Categories => Some(Self::Categories),
            _ => None,
        }
    }
}

impl ProcessStage {
    /// The screens of a process that is watched alone.
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
            taken_reasons: Reasons::default(),
            modules_state: ModulesState::default(),
            layers_state: ModulesState::of_iterations(),
            categories_state: CategoriesState::default(),
            screen: Screen::Lines,
        }
    }

    /// Those of one that was opened from the screen of the host, which Esc leads back to.
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

    /// What has to be told for the screen that is shown.
    fn explains(&self) -> Explain {
        match self.screen {
            Screen::Lines | Screen::Tensors => Explain::Nothing,
            Screen::Modules => self.modules_state.explains(),
            Screen::Layers => self.layers_state.explains(),
            Screen::Categories => Explain::Categories,
        }
    }

    /// Shows another screen, and has the caller tell what that needs. Tensors are read where that was not done yet.
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

    /// Where the screen of lines is left for.
    fn way_out(&self, wanted: Wanted) -> Step {
        match (wanted, self.state.way_back) {
            (Wanted::Back, WayBack::Host) => Step::Back,
            _ => Step::Leave,
        }
    }

    /// The device is one for all screens.
    fn show_device(&mut self) {
        let device = self.state.device().map(|device| device.index);
        self.modules_state.show(device);
        self.layers_state.show(device);
        self.categories_state.show(device);
    }

    /// Where keys go.
    fn focus(&self) -> Focus {
        match self.screen {
            Screen::Lines => self.state.focus,
            Screen::Tensors => self.tensors_state.focus(),
            Screen::Modules => self.modules_state.focus(),
            Screen::Layers => self.layers_state.focus(),
            Screen::Categories => Focus::Table,
        }
    }

    fn on_beside(&mut self, event: &Event) -> Result<Step> {
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
            // What the last key on the screen of lines was told is of no concern any more.
            None => self.state.note = None,
        }
        Ok(match wanted {
            Wanted::Redraw => Step::DrawAll,
            _ => Step::Draw,
        })
    }

    /// Takes what was told of why memory is there, but for a screen that stands still.
    fn take_reasons(&mut self) -> bool {
        let reasons = self.news.reasons.borrow().clone();
        if self.state.follow == Follow::Paused || reasons.is(&self.taken_reasons) {
            return false;
        }
        self.show_device();
        match &reasons {
            Reasons::Nothing => {}
            Reasons::Modules(news) => self.modules_state.update(Arc::clone(news)),
            Reasons::Layers(news) => self.layers_state.update_then(Arc::clone(news)),
            Reasons::Categories(news) => self.categories_state.update(Arc::clone(news)),
        }
        self.taken_reasons = reasons;
        true
    }

    fn on_tensors(&mut self, event: &Event) -> Result<Step> {
        let Some(wanted) = tensors::wanted(event, self.tensors_state.focus()) else {
            return Ok(Step::Nothing);
        };
        match self.tensors_state.handle(wanted) {
            Some(Asked::Quit) => return Ok(Step::Leave),
            Some(Asked::Leave) => self.open(Screen::Lines)?,
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
        self.state.handle(Wanted::Resize(width, height));
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
        match self.screen {
            Screen::Tensors => return self.on_tensors(event),
            Screen::Modules | Screen::Layers | Screen::Categories => return self.on_beside(event),
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
    use super::super::trial::COLOUR;
    use super::*;
    use crate::model::snapshot::Grouping;
    use crate::model::snapshot::why::samples::module;
    use crate::model::tensors::explain;
    use crate::model::tensors::samples::training;

    /// The caller's side of the channels.
    struct Caller {
        snapshots: watch::Sender<Arc<Snapshot>>,
        tensors: watch::Sender<Tensors>,
        reasons: watch::Sender<Reasons>,
        commands: mpsc::UnboundedReceiver<Command>,
        quit: watch::Sender<bool>,
    }

    fn connect() -> (Caller, ProcessStage) {
        let (snapshots, snapshots_receiver) = watch::channel(Arc::new(samples::empty()));
        let (tensors, tensors_receiver) = watch::channel(Tensors::default());
        let (reasons, reasons_receiver) = watch::channel(Reasons::default());
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

    /// Runs the loop with what a person does; says what was on the screen at the end.
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
        let (modules, nothing) = (explain(Explain::Modules), explain(Explain::Nothing));
        let categories = explain(Explain::Categories);
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
        let modules = |name| Reasons::Modules(module(name));
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
