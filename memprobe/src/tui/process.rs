//! Live screens of one process, and their channels to the caller.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use crossterm::event::{Event, MouseButton, MouseEventKind};
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::Receiver;

use super::bars::Tab;
use super::breakdown::BreakdownScreen;
use super::categories::Categories;
use super::context::{AttributionQuery, AttributionTables, ProcessContext};
use super::input::{Focus, InputEvent, wanted};
use super::lines::LineList;
use super::modules::ModuleList;
use super::outside::Outside;
use super::owners::OwnerList;
use super::replay::{self, PlaceAnswer, PlacePrompt, ReplayInput, ReplaySeek};
use super::saving::Saving;
use super::segments::SegmentList;
use super::table_screen::{Errand, Note, ScreenHandle, ScreenRequest, SourcePlace, TableScreen};
use super::tensors::{TensorList, Tensors};
use super::terminal::{self, Stage, StageStep};
use super::theme::{Theme, ThemeChoice};
use super::{Command, SourceText};
use crate::attribution::tables::Breakdown;
use crate::ledger::snapshot::Snapshot;
use crate::view::ReplayPlace;

/// Channels from the caller to the screens of one process.
#[derive(Clone, Debug)]
pub struct News {
    pub snapshots: Receiver<Arc<Snapshot>>,
    /// Answers to [`Command::TakeTensors`].
    pub tensors: Receiver<Tensors>,
    /// Answers to [`Command::Explain`].
    pub reasons: Receiver<AttributionTables>,
    pub saving: Receiver<Saving>,
}

/// Shows the screens until the user quits, `quit` becomes true or its sender is dropped. Blocks: run it on a
/// separate thread. Requests go to the caller in order; [`Command::Quit`] is the last. The terminal is restored if
/// this returns, fails or panics, and if any other thread panics meanwhile.
pub fn run(
    news: News,
    commands: UnboundedSender<Command>,
    sources: Box<dyn SourceText + Send>,
    quit: Receiver<bool>,
    theme: ThemeChoice,
) -> Result<()> {
    let asks = commands.clone();
    let ask = move |command| asks.send(command).context(ENDED);
    let mut stage = ProcessStage::new(news, Box::new(ask), sources, quit, StageStep::Draw);
    terminal::run(
        &mut stage,
        theme,
        "`memprobe record -o trace.json` and `memprobe report trace.json`",
    )?;
    // The send fails if the caller has already ended.
    let _ = commands.send(Command::Quit);
    Ok(())
}

/// Note on Esc where nothing is open that it could close.
pub(super) const NO_WAY_BACK: &str = "nothing to close: q quits memprobe";

/// Error if the caller no longer receives requests.
pub(super) const ENDED: &str = "the measurement has ended";

pub(super) type Ask = Box<dyn Fn(Command) -> Result<()> + Send>;

pub(super) struct ProcessStage {
    news: News,
    ask: Ask,
    quit: Receiver<bool>,
    context: ProcessContext,
    lines: TableScreen<LineList>,
    modules: TableScreen<ModuleList>,
    layers: TableScreen<ModuleList>,
    categories: TableScreen<Categories>,
    tensors: TableScreen<TensorList>,
    outside: TableScreen<Outside>,
    owners: TableScreen<OwnerList>,
    segments: TableScreen<SegmentList>,
    /// Screens in the order of [`Breakdown::ALL`].
    breakdowns: Vec<TableScreen<BreakdownScreen>>,
    size: (u16, u16),
    screen: Tab,
    /// Prompt for a place in a recording.
    place: Option<PlacePrompt>,
}

impl ProcessStage {
    /// Creates the screens of a process. With [`StageStep::Back`], Esc leads back to the host screen. Esc never leaves
    /// memprobe.
    pub(super) fn new(
        news: News,
        ask: Ask,
        sources: Box<dyn SourceText + Send>,
        quit: Receiver<bool>,
        way_back: StageStep,
    ) -> Self {
        let mut context = ProcessContext::new(news.snapshots.borrow().clone());
        context.way_back = way_back;
        let breakdowns = Breakdown::ALL.iter().map(|breakdown| {
            let screen = BreakdownScreen::new(*breakdown);
            TableScreen::new(screen, &context)
        });
        let breakdowns = breakdowns.collect();
        Self {
            news,
            ask,
            quit,
            lines: TableScreen::new(LineList::new(sources), &context),
            modules: TableScreen::new(ModuleList::default(), &context),
            layers: TableScreen::new(ModuleList::of_iterations(), &context),
            categories: TableScreen::new(Categories, &context),
            tensors: TableScreen::new(TensorList::default(), &context),
            outside: TableScreen::new(Outside::default(), &context),
            owners: TableScreen::new(OwnerList::default(), &context),
            segments: TableScreen::new(SegmentList::default(), &context),
            breakdowns,
            context,
            size: (0, 0),
            screen: Tab::Lines,
            place: None,
        }
    }

    fn parts(&mut self) -> (&mut dyn ScreenHandle<ProcessContext>, &mut ProcessContext) {
        let screen: &mut dyn ScreenHandle<ProcessContext> = match self.screen {
            Tab::Lines | Tab::Probes => &mut self.lines,
            Tab::Modules => &mut self.modules,
            Tab::Layers => &mut self.layers,
            Tab::Categories => &mut self.categories,
            Tab::Tensors => &mut self.tensors,
            Tab::Outside => &mut self.outside,
            Tab::Owners => &mut self.owners,
            Tab::Segments => &mut self.segments,
            Tab::Breakdown(breakdown) => &mut self.breakdowns[breakdown as usize],
        };
        (screen, &mut self.context)
    }

    fn explains(&self) -> AttributionQuery {
        match self.screen {
            Tab::Modules => self.modules.content.explains(),
            Tab::Layers => self.layers.content.explains(),
            Tab::Categories => AttributionQuery::Categories,
            Tab::Owners => AttributionQuery::Owners,
            Tab::Segments => AttributionQuery::Segments,
            Tab::Breakdown(breakdown) => AttributionQuery::Breakdown(breakdown),
            _ => AttributionQuery::Nothing,
        }
    }

    /// Handles input that only a replay has; `None` for other input.
    fn handle_replay(&mut self, event: &Event) -> Result<Option<StageStep>> {
        if replay::moment(&self.context.feed.shown).is_none() {
            return Ok(None);
        }
        if let Some(prompt) = &mut self.place {
            let note = match prompt.handle(event) {
                PlaceAnswer::Typing => Some(prompt.text()),
                PlaceAnswer::Wrong(error) => Some(error),
                PlaceAnswer::Cancelled => {
                    self.place = None;
                    Some(String::new())
                }
                PlaceAnswer::Place(place) => {
                    self.place = None;
                    (self.ask)(Command::Seek(ReplaySeek::To(place)))?;
                    Some(String::new())
                }
                PlaceAnswer::Foreign => None,
            };
            return Ok(note.map(|note| {
                self.show_note(note);
                StageStep::Draw
            }));
        }
        if let Some(place) = self.place_at(event) {
            (self.ask)(Command::Seek(ReplaySeek::To(place)))?;
            return Ok(Some(StageStep::Draw));
        }
        if self.parts().0.focus() != Focus::Table {
            return Ok(None);
        }
        let wanted = replay::wanted(event);
        if wanted.is_some() {
            self.show_note(String::new());
        }
        match wanted {
            Some(ReplayInput::Seek(seek)) => (self.ask)(Command::Seek(seek))?,
            Some(ReplayInput::Prompt) => {
                let prompt = self.place.insert(PlacePrompt::default());
                let text = prompt.text();
                self.show_note(text);
            }
            Some(ReplayInput::Refused(reason)) => self.show_note(reason.to_owned()),
            None => return Ok(None),
        }
        Ok(Some(StageStep::Draw))
    }

    /// Shows a note until the next input; removes the last one for an empty one.
    fn show_note(&mut self, note: String) {
        let screen = self.parts().0;
        match note.is_empty() {
            true => screen.clear_note(),
            false => screen.say(note.into()),
        }
    }

    /// Returns the moment of a click into the graph, or of a drag in it.
    fn place_at(&self, event: &Event) -> Option<ReplayPlace> {
        let Event::Mouse(mouse) = event else {
            return None;
        };
        let is_left = matches!(
            mouse.kind,
            MouseEventKind::Down(MouseButton::Left) | MouseEventKind::Drag(MouseButton::Left)
        );
        if !is_left || !matches!(self.screen, Tab::Lines) {
            return None;
        }
        let position = Position::new(mouse.column, mouse.row);
        let since = self.lines.time_at(&self.context, position)?;
        Some(ReplayPlace::Time(Duration::from_nanos(since)))
    }

    /// Takes what became of a file that is saved; returns true if it is new.
    fn take_saving(&mut self) -> bool {
        let saving = self.news.saving.borrow().clone();
        let before = std::mem::replace(&mut self.context.saving, saving);
        let saving = &self.context.saving;
        let is_new = !saving.is(&before);
        let is_over = is_new && matches!(saving, Saving::Nothing);
        if let Some(note) = saving.note(&before) {
            self.parts().0.say(note.into());
        } else if is_over {
            self.parts().0.clear_note();
        }
        is_new
    }

    /// Opens a screen, and requests its data. Tensors are read only if they were not read before.
    fn open(&mut self, screen: Tab) -> Result<()> {
        let before = self.explains();
        self.screen = screen;
        if self.explains() != before {
            (self.ask)(Command::Explain(self.explains()))?;
        }
        if screen == Tab::Tensors && self.context.lacks_tensors() {
            (self.ask)(Command::TakeTensors)?;
        }
        let (width, height) = self.size;
        let (screen, context) = self.parts();
        screen.resize(width, height, context);
        Ok(())
    }
}

impl Stage for ProcessStage {
    fn is_over(&self) -> bool {
        *self.quit.borrow() || self.quit.has_changed().is_err()
    }

    fn take_news(&mut self) -> bool {
        let snapshot = self.news.snapshots.borrow().clone();
        let tensors = self.news.tensors.borrow().clone();
        let attribution = self.news.reasons.borrow().clone();
        let mut is_new = self.context.feed.update(snapshot);
        is_new |= self.context.take_attribution(attribution);
        is_new |= self.take_saving();
        let has_tensors = self.context.take_tensors(tensors);
        // Tensors are grouped anew after a reading only.
        if has_tensors || (is_new && self.screen != Tab::Tensors) {
            let (screen, context) = self.parts();
            screen.rebuild(context);
        }
        is_new || has_tensors
    }

    fn resize(&mut self, width: u16, height: u16) {
        self.size = (width, height);
        let (screen, context) = self.parts();
        screen.resize(width, height, context);
    }

    fn handle(&mut self, event: &Event) -> Result<StageStep> {
        if let Event::Resize(width, height) = event {
            self.resize(*width, *height);
            return Ok(StageStep::DrawAll);
        }
        if let Some(step) = self.handle_replay(event)? {
            return Ok(step);
        }
        let (screen, context) = self.parts();
        let Some(wanted) = wanted(event, screen.focus()) else {
            return Ok(StageStep::Nothing);
        };
        if let InputEvent::Screen(asked) = wanted {
            let is_shown = asked == self.screen;
            self.open(if is_shown { Tab::Lines } else { asked })?;
            return Ok(StageStep::Draw);
        }
        match screen.handle(wanted, context) {
            Some(ScreenRequest::Quit) => return Ok(StageStep::Leave),
            Some(ScreenRequest::Leave) if self.screen != Tab::Lines => {
                self.open(Tab::Lines)?;
            }
            Some(ScreenRequest::Leave) if self.context.way_back == StageStep::Back => {
                return Ok(StageStep::Back);
            }
            Some(ScreenRequest::Leave) => self.lines.state.note = Some(NO_WAY_BACK.into()),
            Some(ScreenRequest::Send(command)) => (self.ask)(command)?,
            Some(ScreenRequest::Open(_)) | None => {}
        }
        Ok(match wanted {
            InputEvent::Redraw => StageStep::DrawAll,
            _ => StageStep::Draw,
        })
    }

    fn draw(&mut self, buffer: &mut Buffer, theme: &Theme) -> Option<Position> {
        let (screen, context) = self.parts();
        screen.catch_up(context);
        screen.draw(buffer, context, theme)
    }

    fn take_errand(&mut self) -> Option<Errand> {
        self.parts().0.take_errand()
    }

    fn edit(&mut self, place: &SourcePlace) -> Result<(), String> {
        self.lines.content.edit(place)
    }

    fn say(&mut self, note: Note) {
        self.parts().0.say(note);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::time::Duration;

    use crossterm::event::{
        KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
    };
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tokio::sync::{mpsc, watch};

    use super::super::samples::{self, Sources};
    use super::super::terminal::{BETWEEN_DRAWINGS, show};
    use super::super::test_support::{COLOUR, Dice, TestDevice, blank};
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
        saving: watch::Sender<Saving>,
        commands: mpsc::UnboundedReceiver<Command>,
        quit: watch::Sender<bool>,
    }

    fn connect() -> (Caller, ProcessStage) {
        let (snapshots, snapshots_receiver) = watch::channel(Arc::new(samples::empty()));
        let (tensors, tensors_receiver) = watch::channel(Tensors::default());
        let (reasons, reasons_receiver) = watch::channel(AttributionTables::default());
        let (commands_sender, commands) = mpsc::unbounded_channel();
        let (quit, quit_receiver) = watch::channel(false);
        let (saving, saving_receiver) = watch::channel(Saving::default());
        let news = News {
            snapshots: snapshots_receiver,
            tensors: tensors_receiver,
            reasons: reasons_receiver,
            saving: saving_receiver,
        };
        let ask = move |command| commands_sender.send(command).context(ENDED);
        let stage = ProcessStage::new(
            news,
            Box::new(ask),
            Box::new(Sources),
            quit_receiver,
            StageStep::Draw,
        );
        let caller = Caller {
            snapshots,
            tensors,
            reasons,
            saving,
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
        let mut device = TestDevice::default();
        let ended = show(&mut terminal, &COLOUR, stage, input, &mut device);
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
    fn escape_never_quits() {
        let (_caller, mut stage) = connect();
        let escape = Some(Event::Key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE)));
        let mut keys = VecDeque::from([escape.clone(), escape.clone(), escape, None, key('q')]);
        let mut left = keys.len();
        let text = shown(&mut stage, |_| {
            left = keys.len();
            std::thread::sleep(BETWEEN_DRAWINGS);
            Ok(keys.pop_front().unwrap())
        });
        assert_eq!(left, 1, "it ended before q");
        let text = text.unwrap();
        assert!(text.contains(NO_WAY_BACK), "{text}");
    }

    #[test]
    fn t_reads_the_tensors_once_and_shows_them_and_t_leads_back() {
        let (mut caller, mut stage) = connect();
        let table = Arc::new(explain(training()));
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
    fn w_asks_for_a_recording_and_shows_what_becomes_of_it() {
        let (mut caller, mut stage) = connect();
        let states = [
            Saving::Recording {
                file: "memprobe-7.json".into(),
                bytes: crate::event::Bytes(3 << 20),
            },
            Saving::Done("saved memprobe-7.json".into()),
        ];
        let mut texts = Vec::new();
        stage.resize(120, 30);
        for state in states {
            stage.handle(&key('w').unwrap()).unwrap();
            let command = caller.commands.try_recv();
            assert_eq!(command, Ok(Command::SaveRecording));
            caller.saving.send_replace(state);
            assert!(stage.take_news());
            let mut buffer = blank((120, 30));
            stage.draw(&mut buffer, &COLOUR);
            let cells = buffer.content().iter().map(|cell| cell.symbol());
            texts.push(cells.collect::<String>());
        }
        assert!(
            texts[0].contains("saving to memprobe-7.json, 3.00 MiB (w ends)"),
            "{}",
            texts[0]
        );
        assert!(texts[1].contains("saved memprobe-7.json"), "{}", texts[1]);
        caller.saving.send_replace(Saving::Nothing);
        assert!(stage.take_news());
        let mut buffer = blank((120, 30));
        stage.draw(&mut buffer, &COLOUR);
        let cells = buffer.content().iter().map(|cell| cell.symbol());
        let over = cells.collect::<String>();
        assert!(!over.contains("saved memprobe-7.json"), "{over}");
    }

    #[test]
    fn keys_and_the_mouse_move_a_replay() {
        let (mut caller, mut stage) = connect();
        caller.snapshots.send_replace(Arc::new(samples::replay()));
        stage.resize(120, 30);
        stage.take_news();
        let press = |code| Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
        let mut asked = |stage: &mut ProcessStage, event: Event| {
            stage.handle(&event).unwrap();
            caller.commands.try_recv().ok()
        };
        let seek = |seek| Some(Command::Seek(seek));
        let to = |place| seek(ReplaySeek::To(place));
        let code = KeyCode::Right;
        assert_eq!(asked(&mut stage, press(code)), seek(ReplaySeek::Step(1)));
        assert_eq!(
            asked(&mut stage, press(KeyCode::Home)),
            to(ReplayPlace::Start)
        );
        let drag = |column, row| {
            Event::Mouse(MouseEvent {
                kind: MouseEventKind::Drag(MouseButton::Left),
                column,
                row,
                modifiers: KeyModifiers::NONE,
            })
        };
        let Some(Command::Seek(ReplaySeek::To(ReplayPlace::Time(early)))) =
            asked(&mut stage, drag(20, 5))
        else {
            panic!("a drag in the graph goes to a moment");
        };
        let Some(Command::Seek(ReplaySeek::To(ReplayPlace::Time(late)))) =
            asked(&mut stage, drag(100, 5))
        else {
            panic!("a drag in the graph goes to a moment");
        };
        assert!(early < late && late < Duration::from_secs(751), "{late:?}");
        assert_eq!(asked(&mut stage, drag(20, 20)), None);
        for letter in ":peak".chars() {
            assert_eq!(asked(&mut stage, press(KeyCode::Char(letter))), None);
        }
        let entered = asked(&mut stage, press(KeyCode::Enter));
        assert_eq!(entered, to(ReplayPlace::Peak));
        assert_eq!(asked(&mut stage, press(KeyCode::Char('z'))), None);
        let mut buffer = blank((120, 30));
        stage.draw(&mut buffer, &COLOUR);
        let cells = buffer.content().iter().map(|cell| cell.symbol());
        let text = cells.collect::<String>();
        assert!(text.contains("peaks of a replay count"), "{text}");
    }

    #[test]
    fn a_place_is_copied_and_an_editor_gets_the_terminal() {
        let (caller, mut stage) = connect();
        caller.snapshots.send_replace(Arc::new(samples::normal()));
        let mut keys = VecDeque::from([None, key('C'), key('e'), None, key('q')]);
        let mut terminal = Terminal::new(TestBackend::new(100, 24)).unwrap();
        let mut device = TestDevice::default();
        let input = |_: Duration| {
            std::thread::sleep(BETWEEN_DRAWINGS);
            Ok(keys.pop_front().unwrap())
        };
        show(&mut terminal, &COLOUR, &mut stage, input, &mut device).unwrap();
        let [copied] = &device.copied[..] else {
            panic!("{:?}", device.copied)
        };
        assert!(copied.contains(".py:"), "{copied}");
        assert_eq!(device.lent, 1);
        let text = terminal.backend().to_string();
        assert!(text.contains("cannot be opened here"), "{text}");
    }

    #[test]
    fn only_what_is_shown_is_asked_for() {
        let (mut caller, mut stage) = connect();
        let mut keys = VecDeque::from(['m', 'c', 't', 'm', 'T', 'T', 'q'].map(key));
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
        let threads = explain(AttributionQuery::Breakdown(Breakdown::Thread));
        assert_eq!(
            asked,
            [
                modules,
                categories,
                nothing,
                Command::TakeTensors,
                modules,
                threads,
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

    /// Returns a random event of a terminal: keys, the mouse, sizes, text that was pasted.
    fn random_event(dice: &mut Dice) -> Event {
        let letters: Vec<char> = ('!'..='~')
            .chain(['\0', '\u{1b}', '\u{202e}', '模'])
            .collect();
        let codes = [
            KeyCode::Esc,
            KeyCode::Enter,
            KeyCode::Tab,
            KeyCode::BackTab,
            KeyCode::Backspace,
            KeyCode::Up,
            KeyCode::Down,
            KeyCode::Left,
            KeyCode::Right,
            KeyCode::PageUp,
            KeyCode::PageDown,
            KeyCode::Home,
            KeyCode::End,
            KeyCode::F(1),
            KeyCode::F(6),
            KeyCode::Null,
        ];
        let modifiers = [
            KeyModifiers::NONE,
            KeyModifiers::NONE,
            KeyModifiers::SHIFT,
            KeyModifiers::CONTROL,
            KeyModifiers::ALT,
        ];
        let modifiers = modifiers[dice.roll(5) as usize];
        match dice.roll(20) {
            0 => Event::Resize(dice.roll(210) as u16, dice.roll(62) as u16),
            1 => Event::Paste("\u{1b}[31m(".to_owned()),
            2 | 3 => Event::Mouse(MouseEvent {
                kind: match dice.roll(4) {
                    0 => MouseEventKind::ScrollUp,
                    1 => MouseEventKind::ScrollDown,
                    2 => MouseEventKind::Moved,
                    _ => MouseEventKind::Down(MouseButton::Left),
                },
                column: dice.roll(210) as u16,
                row: dice.roll(62) as u16,
                modifiers,
            }),
            4..8 => {
                let code = codes[dice.roll(codes.len() as u64) as usize];
                Event::Key(KeyEvent::new(code, modifiers))
            }
            _ => {
                let letter = letters[dice.roll(letters.len() as u64) as usize];
                Event::Key(KeyEvent::new(KeyCode::Char(letter), modifiers))
            }
        }
    }

    #[test]
    fn ten_thousand_random_actions_break_nothing() {
        let (mut caller, mut stage) = connect();
        let snapshots = [
            samples::empty(),
            samples::normal(),
            samples::lossy(),
            samples::several_devices(),
            samples::hostile(),
            samples::replay(),
            samples::gone(),
        ];
        let snapshots = snapshots.map(Arc::new);
        let table = Arc::new(explain(training()));
        let mut dice = Dice::new();
        let mut size = (80, 24);
        stage.resize(size.0, size.1);
        let mut quits = 0;
        for action in 0..10_000 {
            let event = random_event(&mut dice);
            if let Event::Resize(width, height) = event {
                size = (width, height);
            }
            let step = stage.handle(&event).unwrap();
            if step == StageStep::Leave {
                let is_quit = matches!(
                    event,
                    Event::Key(KeyEvent {
                        code: KeyCode::Char('q' | 'Q' | 'c'),
                        ..
                    })
                );
                assert!(is_quit, "action {action}: {event:?} ended memprobe");
                quits += 1;
            }
            while let Ok(command) = caller.commands.try_recv() {
                if command == Command::TakeTensors {
                    let taken = Tensors::Taken(Arc::clone(&table));
                    caller.tensors.send_replace(taken);
                }
            }
            if dice.roll(5) == 0 {
                let at = dice.roll(snapshots.len() as u64) as usize;
                caller.snapshots.send_replace(Arc::clone(&snapshots[at]));
                stage.take_news();
            }
            if action % 4 == 0 {
                stage.draw(&mut blank(size), &COLOUR);
            }
        }
        assert!(quits > 0, "q was never pressed");
    }

    #[test]
    fn a_terminal_that_fails_ends_the_screen_with_its_error() {
        let (_caller, mut stage) = connect();
        let failed = shown(&mut stage, |_| Err(io::Error::other("hung up")));
        assert!(failed.unwrap_err().to_string().contains("hung up"));
    }
}
