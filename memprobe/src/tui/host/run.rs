//! The host screen and the screens of the process opened from it, on one terminal.

use std::sync::Arc;

use anyhow::{Context, Result};
use crossterm::event::Event;
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::Receiver;

use super::super::News;
use super::super::input::{Focus, InputEvent, wanted};
use super::super::process::{ENDED, NO_WAY_BACK, ProcessStage};
use super::super::table_screen::{
    Errand, Note, PromptKind, ScreenHandle, ScreenRequest, SourcePlace, TableScreen,
};
use super::super::terminal::{self, Stage, StageStep};
use super::super::theme::{Theme, ThemeChoice};
use super::processes::{HostContext, Processes};
use super::{HostCommand, HostView, SourcesOf};
use crate::event::Tgid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTitle {
    /// Command that shows the screen.
    pub name: String,
    /// Alternative to suggest if there is no terminal.
    pub instead: &'static str,
}

/// Shows all processes, and each that the user opens; blocks and ends as [`crate::tui::run`].
pub fn run(
    views: Receiver<HostView>,
    commands: UnboundedSender<HostCommand>,
    sources: SourcesOf,
    quit: Receiver<bool>,
    title: HostTitle,
    theme: ThemeChoice,
) -> Result<()> {
    let mut stage = HostStage::new(views, commands, sources, quit, title.name);
    terminal::run(&mut stage, theme, title.instead)?;
    // The send fails if the caller has already ended.
    let _ = stage.commands.send(HostCommand::Quit);
    Ok(())
}

struct HostStage {
    views: Receiver<HostView>,
    commands: UnboundedSender<HostCommand>,
    quit: Receiver<bool>,
    sources: SourcesOf,
    context: HostContext,
    host: TableScreen<Processes>,
    opened: Option<Opened>,
}

struct Opened {
    tgid: Tgid,
    /// `None` until the caller provides it.
    stage: Option<ProcessStage>,
    /// Input from before there was a stage, at most [`MAX_TYPED_AHEAD`] events.
    typed_ahead: Vec<Event>,
}

/// Input events that are kept while a process opens. Later ones are dropped.
const MAX_TYPED_AHEAD: usize = 64;

impl Opened {
    /// The receiver of the next key, once those typed ahead are handled.
    fn focus(&self) -> Focus {
        let typed = self.typed_ahead.iter();
        typed.fold(Focus::Table, |focus, event| {
            match (focus, wanted(event, focus)) {
                (Focus::Table, Some(InputEvent::Filter)) => Focus::Prompt(PromptKind::Filter),
                (Focus::Table, Some(InputEvent::Search)) => Focus::Prompt(PromptKind::Search),
                (Focus::Prompt(_), Some(InputEvent::Accept | InputEvent::Back)) => Focus::Table,
                (focus, _) => focus,
            }
        })
    }
}

impl HostStage {
    fn new(
        views: Receiver<HostView>,
        commands: UnboundedSender<HostCommand>,
        sources: SourcesOf,
        quit: Receiver<bool>,
        name: String,
    ) -> Self {
        let first = Arc::clone(&views.borrow().host);
        let context = HostContext::new(Arc::clone(&first), name);
        let host = TableScreen::new(Processes::new(first), &context);
        Self {
            views,
            commands,
            quit,
            sources,
            context,
            host,
            opened: None,
        }
    }

    fn process(&mut self) -> Option<&mut ProcessStage> {
        self.opened.as_mut()?.stage.as_mut()
    }

    fn send(&self, command: HostCommand) -> Result<()> {
        self.commands.send(command).context(ENDED)
    }

    fn on_host(&mut self, event: &Event) -> Result<StageStep> {
        let Some(wanted) = wanted(event, self.host.focus()) else {
            return Ok(StageStep::Nothing);
        };
        match self.host.handle(wanted, &mut self.context) {
            Some(ScreenRequest::Quit) => return Ok(StageStep::Leave),
            Some(ScreenRequest::Open(tgid)) => {
                self.opened = Some(Opened {
                    tgid,
                    stage: None,
                    typed_ahead: Vec::new(),
                });
                self.send(HostCommand::Open(tgid))?;
            }
            Some(ScreenRequest::Leave) => self.host.state.note = Some(NO_WAY_BACK.into()),
            Some(ScreenRequest::Send(_)) | None => {}
        }
        Ok(match wanted {
            InputEvent::Redraw => StageStep::DrawAll,
            _ => StageStep::Draw,
        })
    }

    /// Handles an event while a process is open. Keys that leave its screens return to the table.
    fn on_process(&mut self, event: &Event) -> Result<StageStep> {
        let focus = self.opened.as_ref().map_or(Focus::Table, Opened::focus);
        let step = match (self.process(), wanted(event, focus)) {
            (Some(stage), _) => stage.handle(event)?,
            (None, Some(InputEvent::Quit)) => StageStep::Leave,
            (None, Some(InputEvent::Back)) if focus == Focus::Table => StageStep::Back,
            (None, _) => {
                self.keep_typed_ahead(event);
                StageStep::Nothing
            }
        };
        if step == StageStep::Back {
            self.opened = None;
            self.send(HostCommand::Close)?;
            return Ok(StageStep::Draw);
        }
        Ok(step)
    }

    fn keep_typed_ahead(&mut self, event: &Event) {
        let opened = self.opened.as_mut();
        if let Some(opened) = opened.filter(|opened| opened.typed_ahead.len() < MAX_TYPED_AHEAD) {
            opened.typed_ahead.push(event.clone());
        }
    }

    /// Shows the screens of the opened process, and handles what was typed ahead for them.
    fn begin_process(&mut self, tgid: Tgid, news: News) {
        let mut stage = self.screens(tgid, news);
        let typed_ahead = match &mut self.opened {
            Some(opened) => std::mem::take(&mut opened.typed_ahead),
            None => Vec::new(),
        };
        for event in typed_ahead {
            // Keys that leave are not kept. An error says that the caller has ended, and so does `is_over`.
            if stage.handle(&event).is_err() {
                break;
            }
        }
        if let Some(opened) = &mut self.opened {
            opened.stage = Some(stage);
        }
    }

    fn screens(&mut self, tgid: Tgid, news: News) -> ProcessStage {
        let commands = self.commands.clone();
        let ask = move |command| commands.send(HostCommand::Ask(command)).context(ENDED);
        let sources = (self.sources)(tgid);
        let quit = self.quit.clone();
        let mut stage = ProcessStage::new(news, Box::new(ask), sources, quit, StageStep::Back);
        let (width, height) = self.host.size();
        stage.resize(width, height);
        stage
    }
}

impl Stage for HostStage {
    fn is_over(&self) -> bool {
        *self.quit.borrow() || self.quit.has_changed().is_err()
    }

    fn take_news(&mut self) -> bool {
        let latest = self.views.borrow().clone();
        let is_new = self.context.feed.update(latest.host);
        if is_new {
            self.host.rebuild(&self.context);
        }
        let waits = |opened: &&mut Opened| opened.stage.is_none();
        let waits_for = self.opened.as_mut().filter(waits).map(|opened| opened.tgid);
        if let Some((tgid, news)) = latest.process.filter(|(tgid, _)| Some(*tgid) == waits_for) {
            self.begin_process(tgid, news);
            return true;
        }
        match self.process() {
            Some(stage) => stage.take_news(),
            None => is_new,
        }
    }

    fn resize(&mut self, width: u16, height: u16) {
        self.host.resize(width, height, &self.context);
        if let Some(stage) = self.process() {
            stage.resize(width, height);
        }
    }

    fn handle(&mut self, event: &Event) -> Result<StageStep> {
        if let Event::Resize(width, height) = event {
            self.resize(*width, *height);
            return Ok(StageStep::DrawAll);
        }
        match self.opened {
            Some(_) => self.on_process(event),
            None => self.on_host(event),
        }
    }

    fn draw(&mut self, buffer: &mut Buffer, theme: &Theme) -> Option<Position> {
        match self.process() {
            Some(stage) => stage.draw(buffer, theme),
            None => {
                self.host.catch_up(&self.context);
                self.host.draw(buffer, &self.context, theme)
            }
        }
    }

    fn take_errand(&mut self) -> Option<Errand> {
        match self.process() {
            Some(stage) => stage.take_errand(),
            None => self.host.take_errand(),
        }
    }

    fn edit(&mut self, place: &SourcePlace) -> Result<(), String> {
        match self.process() {
            Some(stage) => stage.edit(place),
            None => Err("the process is not open any more".to_owned()),
        }
    }

    fn say(&mut self, note: Note) {
        match self.process() {
            Some(stage) => stage.say(note),
            None => self.host.say(note),
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
    use ratatui::layout::Rect;
    use tokio::sync::{mpsc, watch};

    use super::super::super::samples::{self as process_samples, Sources};
    use super::super::super::terminal::{BETWEEN_DRAWINGS, show};
    use super::super::super::test_support::{COLOUR, TestDevice};
    use super::super::samples;
    use super::*;
    use crate::attribution::tables::IterationChoice;
    use crate::attribution::tables::samples::module;
    use crate::ledger::snapshot::{Grouping, Snapshot};
    use crate::tui::{AttributionQuery, AttributionTables, Command, Saving, Tensors};

    /// Caller's end of the channels of the host screen.
    struct Caller {
        views: watch::Sender<HostView>,
        opened: Option<Sides>,
        commands: mpsc::UnboundedReceiver<HostCommand>,
        said: Vec<HostCommand>,
        _quit: watch::Sender<bool>,
    }

    /// Caller's end of the channels of a process's screens.
    struct Sides {
        _snapshots: watch::Sender<Arc<Snapshot>>,
        _tensors: watch::Sender<Tensors>,
        _saving: watch::Sender<Saving>,
        reasons: watch::Sender<AttributionTables>,
    }

    fn process(tgid: Tgid) -> (Sides, News) {
        let mut snapshot = process_samples::normal();
        snapshot.target.tgid = Some(tgid);
        let (_snapshots, snapshots) = watch::channel(Arc::new(snapshot));
        let (_tensors, tensors) = watch::channel(Tensors::default());
        let (reasons, shown) = watch::channel(AttributionTables::default());
        let (_saving, saving) = watch::channel(Saving::default());
        let news = News {
            snapshots,
            tensors,
            reasons: shown,
            saving,
        };
        let sides = Sides {
            _snapshots,
            _tensors,
            _saving,
            reasons,
        };
        (sides, news)
    }

    impl Caller {
        fn answer(&mut self) {
            while let Ok(command) = self.commands.try_recv() {
                self.said.push(command);
                match command {
                    HostCommand::Open(tgid) => {
                        let (sides, news) = process(tgid);
                        self.opened = Some(sides);
                        let process = Some((tgid, news));
                        self.views.send_modify(|view| view.process = process);
                    }
                    HostCommand::Close => self.views.send_modify(|view| view.process = None),
                    HostCommand::Ask(Command::Explain(AttributionQuery::Modules)) => {
                        let reasons = AttributionTables::Modules(module("Transformer"));
                        self.opened.as_ref().unwrap().reasons.send_replace(reasons);
                    }
                    HostCommand::Ask(_) | HostCommand::Quit => {}
                }
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
            opened: None,
            commands,
            said: Vec::new(),
            _quit: quit,
        };
        (caller, stage)
    }

    fn key(code: KeyCode) -> Event {
        Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    /// Runs the loop with these keys; the caller answers after each. Returns the screen before the last key.
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
        let mut device = TestDevice::default();
        show(&mut terminal, &COLOUR, stage, input, &mut device).unwrap();
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
            HostCommand::Ask(Command::SetGrouping(Grouping::Innermost)),
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
    fn an_opened_process_has_the_screens_of_one_that_is_watched_alone() {
        let (mut caller, mut stage) = connect();
        let keys = ['m', 'L', 'c', 't', 'm', 'q'].map(KeyCode::Char);
        let keys = [&[KeyCode::Enter][..], &keys].concat();
        let text = shown(&mut caller, &mut stage, &keys);
        assert!(
            text.contains("memprobe modules") && text.contains("Transformer"),
            "{text}"
        );
        let asked = [
            Command::Explain(AttributionQuery::Modules),
            Command::Explain(AttributionQuery::Layers(IterationChoice::Latest)),
            Command::Explain(AttributionQuery::Categories),
            Command::Explain(AttributionQuery::Nothing),
            Command::TakeTensors,
            Command::Explain(AttributionQuery::Modules),
        ];
        let asked = asked.map(HostCommand::Ask);
        assert_eq!(
            caller.said,
            [&[HostCommand::Open(Tgid(1234))][..], &asked].concat()
        );
    }

    #[test]
    fn keys_typed_while_a_process_opens_are_handled_once_it_is_open() {
        let (mut caller, mut stage) = connect();
        for typed in [KeyCode::Enter, KeyCode::Char('i'), KeyCode::Char('m')] {
            stage.handle(&key(typed)).unwrap();
        }
        assert!(!stage.take_news(), "it is not open yet");
        let text = shown(&mut caller, &mut stage, &[KeyCode::Char('q')]);
        assert!(text.contains("memprobe modules"), "{text}");
        let asked = [
            Command::SetGrouping(Grouping::Innermost),
            Command::Explain(AttributionQuery::Modules),
        ];
        let asked = asked.map(HostCommand::Ask);
        let opened = HostCommand::Open(Tgid(1234));
        assert_eq!(caller.said, [&[opened][..], &asked].concat());
    }

    #[test]
    fn letters_typed_ahead_into_a_filter_are_no_commands() {
        let (mut caller, mut stage) = connect();
        let filter = ['/', 'q', 'x'].map(KeyCode::Char);
        for typed in [&[KeyCode::Enter][..], &filter].concat() {
            assert_ne!(stage.handle(&key(typed)).unwrap(), StageStep::Leave);
        }
        let text = shown(
            &mut caller,
            &mut stage,
            &[KeyCode::Enter, KeyCode::Char('q')],
        );
        assert!(
            text.contains("qx") && !text.contains("model.py:88"),
            "{text}"
        );
        assert_eq!(caller.said, [HostCommand::Open(Tgid(1234))]);
    }

    #[test]
    fn escape_typed_ahead_closes_the_filter_first() {
        let (_caller, mut stage) = connect();
        let keys = [KeyCode::Enter, KeyCode::Char('/'), KeyCode::Esc];
        for typed in keys {
            stage.handle(&key(typed)).unwrap();
        }
        assert!(stage.opened.is_some());
        let left = stage.handle(&key(KeyCode::Char('q'))).unwrap();
        assert_eq!(left, StageStep::Leave);
    }

    #[test]
    fn keys_typed_ahead_are_gone_with_the_process_that_was_left() {
        let (mut caller, mut stage) = connect();
        for typed in [KeyCode::Enter, KeyCode::Char('m'), KeyCode::Esc] {
            stage.handle(&key(typed)).unwrap();
        }
        stage.handle(&key(KeyCode::Enter)).unwrap();
        let text = shown(&mut caller, &mut stage, &[KeyCode::Char('q')]);
        assert!(text.contains("model.py:88 forward"), "{text}");
    }

    #[test]
    fn escape_leads_from_modules_to_lines_and_from_there_to_the_processes() {
        let (mut caller, mut stage) = connect();
        let keys = [KeyCode::Enter, KeyCode::Char('m'), KeyCode::Esc];
        let quit = [KeyCode::Char('q')];
        let text = shown(&mut caller, &mut stage, &[&keys[..], &quit].concat());
        assert!(
            text.contains("model.py:88 forward") && text.contains("Esc back"),
            "{text}"
        );
        let (mut caller, mut stage) = connect();
        let text = shown(
            &mut caller,
            &mut stage,
            &[&keys[..], &[KeyCode::Esc], &quit].concat(),
        );
        assert!(text.contains("memprobe top"), "{text}");
        assert_eq!(caller.said.last(), Some(&HostCommand::Close));
    }

    #[test]
    fn letters_of_a_filter_are_taken_together_at_the_next_drawing_or_key() {
        let (_caller, mut stage) = connect();
        stage.resize(61, 17);
        let all = stage.host.table.rows.len();
        for letter in ['/', '#', '#'] {
            stage.handle(&key(KeyCode::Char(letter))).unwrap();
        }
        assert_eq!(stage.host.table.rows.len(), all);
        stage.draw(&mut Buffer::empty(Rect::new(0, 0, 61, 17)), &COLOUR);
        assert!(stage.host.table.rows.is_empty());
        for typed in [KeyCode::Backspace, KeyCode::Backspace] {
            stage.handle(&key(typed)).unwrap();
            assert!(stage.host.table.rows.is_empty());
        }
        stage.handle(&key(KeyCode::Down)).unwrap();
        assert_eq!(stage.host.table.rows.len(), all);
        assert_eq!(stage.host.state.selection.cursor, 1);
    }

    #[test]
    fn a_process_opens_where_the_window_was_resized_before() {
        let (_caller, mut stage) = connect();
        stage.resize(61, 17);
        stage.handle(&key(KeyCode::Enter)).unwrap();
        let (sides, news) = process(Tgid(1234));
        let view = HostView {
            host: Arc::clone(&stage.context.feed.shown),
            process: Some((Tgid(1234), news)),
        };
        let (sender, receiver) = watch::channel(view);
        stage.views = receiver;
        assert!(stage.take_news() && !stage.take_news());
        let mut buffer = Buffer::empty(Rect::new(0, 0, 61, 17));
        stage.draw(&mut buffer, &COLOUR);
        let text: String = buffer
            .content
            .iter()
            .map(ratatui::buffer::Cell::symbol)
            .collect();
        assert!(text.contains("model.py:88"), "{text}");
        drop((sender, sides));
    }
}
