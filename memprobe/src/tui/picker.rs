//! Choice of a process, where the command line names none.

use std::borrow::Cow;
use std::sync::Arc;

use anyhow::Result;
use crossterm::event::Event;
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::Receiver;

use super::bars::{StatusLine, Tab};
use super::input::{InputEvent, wanted};
use super::table_screen::{
    Content, DeviceTabs, KeyHint, Needs, Note, Query, Reaction, RowOf, ScreenContext, ScreenHandle,
    ScreenParts, ScreenRequest, ScreenTitle, TableOf, TableRow, TableScreen,
};
use super::terminal::{self, Stage, StageStep};
use super::theme::{Theme, ThemeChoice};
use crate::event::{Bytes, Tgid};
use crate::view::table::{Column, SortOrder, Tone, columns};
use crate::view::{clean, counted, short_command};

/// A process to choose. Its texts come from the process and may hold anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessChoice {
    pub tgid: Tgid,
    pub user: Option<String>,
    /// Memory on all devices, as the driver reports it; `None` if it does not.
    pub gpu_memory: Option<Bytes>,
    /// `CUDA` or `PyTorch`.
    pub library: &'static str,
    pub command: String,
}

/// Outcome of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picked {
    Process(Tgid),
    Nothing,
}

const CLIMBING: Option<SortOrder> = Some(SortOrder::Climbing);

const COLUMNS: [Column<ProcessChoice>; 5] = columns![|row: ProcessChoice|
    figure("PID").screen(8, 0).order(CLIMBING) => row.tgid.0,
    label("USER").screen(10, 60) => row.user.as_deref().map(clean),
    figure("GPU MEMORY").screen(11, 44).tone(Tone::Strong) => row.gpu_memory,
    label("HAS").screen(7, 72) => row.library,
    label("COMMAND").screen(0, 0) => clean(&short_command(&row.command)),
];

/// Shows the processes until the user chooses one or quits, or `quit` becomes true; blocks. `verb` names the command
/// that asks.
pub fn run(
    verb: &'static str,
    choices: Receiver<Arc<Vec<ProcessChoice>>>,
    picked: UnboundedSender<Picked>,
    quit: Receiver<bool>,
    theme: ThemeChoice,
) -> Result<()> {
    let mut stage = PickerStage::new(verb, choices, quit);
    terminal::run(&mut stage, theme, "a PID or a script's name")?;
    // The send fails if the caller has already ended.
    let _ = picked.send(stage.picked);
    Ok(())
}

struct PickerContext {
    verb: &'static str,
    shown: Arc<Vec<ProcessChoice>>,
}

impl ScreenContext for PickerContext {
    fn handle(&mut self, event: InputEvent) -> Option<Note> {
        match event {
            InputEvent::Redraw => None,
            _ => Some("choose a process first: Enter".into()),
        }
    }

    fn title(&self, _tab: Option<Tab>) -> ScreenTitle {
        ScreenTitle {
            name: format!("memprobe {}", self.verb),
            text: "choose a process".to_owned(),
            facts: vec![(0, counted(self.shown.len() as u64, "candidate"))],
        }
    }

    fn devices(&self) -> DeviceTabs {
        DeviceTabs::default()
    }

    fn status(&self, theme: &Theme) -> StatusLine {
        StatusLine {
            word: ("CHOOSE", theme.still()),
            text: Some(format!("Enter runs `memprobe {} PID`", self.verb)),
            ..StatusLine::default()
        }
    }

    fn needs(&self, height: u16) -> Needs {
        Needs {
            detail: u16::from(height >= 12),
            ..Needs::default()
        }
    }

    fn keys(&self) -> Vec<KeyHint> {
        Vec::new()
    }

    fn help(&self) -> Cow<'static, str> {
        "\
q Esc       choose nothing and quit
"
        .into()
    }

    fn number(&self) -> String {
        counted(self.shown.len() as u64, "process")
    }
}

struct Picker;

static PARTS: ScreenParts<ProcessChoice> = ScreenParts {
    tab: None,
    columns: &COLUMNS,
    searched: "PID, user and command",
    keys: &[("Enter", "choose", 1)],
    help: "\
Enter       choose the process; so does a second click on it
",
    terms: "\
GPU MEMORY  bytes on all GPUs as the driver counts them; - if it does not
HAS         the library that it has loaded: CUDA, or PyTorch without CUDA
",
};

impl Content for Picker {
    type Key = Tgid;
    type Data = ProcessChoice;
    type Context = PickerContext;

    const FIRST_SORT: &'static str = "GPU MEMORY";

    fn parts(&self) -> &'static ScreenParts<ProcessChoice> {
        &PARTS
    }

    fn build(&mut self, query: &mut Query<Tgid>, context: &PickerContext) -> TableOf<Self> {
        let rows = context.shown.iter();
        let rows = rows.map(|choice| (TableRow::leaf(choice.tgid, choice.clone()), ()));
        let bytes = |row: &RowOf<Self>| row.data.gpu_memory.map_or(0, |bytes| bytes.0.into());
        let searched = |row: &RowOf<Self>| {
            let user = row.data.user.as_deref().unwrap_or_default();
            clean(&format!("{} {user} {}", row.data.tgid.0, row.data.command))
        };
        query.table(self, rows.collect(), bytes, searched, |_, ()| Vec::new())
    }

    fn enter(&self, row: &RowOf<Self>) -> Reaction {
        Reaction::Request(ScreenRequest::Open(row.data.tgid))
    }

    fn nothing(screen: &TableScreen<Self>, _context: &PickerContext) -> Option<[Note; 2]> {
        match (screen.table.shown, screen.table.all) {
            (0, 0) => Some([
                "No process with CUDA is running.".into(),
                "The first that starts will appear here.".into(),
            ]),
            (0, _) => screen.no_match("process", "processes"),
            _ => None,
        }
    }

    fn sum(&self, table: &TableOf<Self>, filters: bool) -> Option<String> {
        Some(if filters {
            format!("{} of {} processes", table.shown, table.all)
        } else {
            counted(table.all as u64, "candidate")
        })
    }

    fn detail(&self, row: &RowOf<Self>, _wide: usize, _cut: &str) -> Vec<String> {
        vec![clean(&row.data.command)]
    }
}

struct PickerStage {
    choices: Receiver<Arc<Vec<ProcessChoice>>>,
    quit: Receiver<bool>,
    context: PickerContext,
    screen: TableScreen<Picker>,
    picked: Picked,
}

impl PickerStage {
    fn new(
        verb: &'static str,
        choices: Receiver<Arc<Vec<ProcessChoice>>>,
        quit: Receiver<bool>,
    ) -> Self {
        let shown = Arc::clone(&choices.borrow());
        let context = PickerContext { verb, shown };
        Self {
            choices,
            quit,
            screen: TableScreen::new(Picker, &context),
            context,
            picked: Picked::Nothing,
        }
    }
}

impl Stage for PickerStage {
    fn is_over(&self) -> bool {
        *self.quit.borrow() || self.quit.has_changed().is_err()
    }

    fn take_news(&mut self) -> bool {
        let latest = Arc::clone(&self.choices.borrow());
        let is_new = !Arc::ptr_eq(&latest, &self.context.shown);
        if is_new {
            // A list that changes must not move the selection to another process.
            self.screen.keep_selected();
            self.context.shown = latest;
            self.screen.rebuild(&self.context);
        }
        is_new
    }

    fn resize(&mut self, width: u16, height: u16) {
        self.screen.resize(width, height, &self.context);
    }

    fn handle(&mut self, event: &Event) -> Result<StageStep> {
        if let Event::Resize(width, height) = event {
            self.resize(*width, *height);
            return Ok(StageStep::DrawAll);
        }
        let Some(wanted) = wanted(event, self.screen.focus()) else {
            return Ok(StageStep::Nothing);
        };
        Ok(match self.screen.handle(wanted, &mut self.context) {
            Some(ScreenRequest::Open(tgid)) => {
                self.picked = Picked::Process(tgid);
                StageStep::Leave
            }
            Some(ScreenRequest::Quit | ScreenRequest::Leave) => StageStep::Leave,
            Some(ScreenRequest::Send(_)) | None if wanted == InputEvent::Redraw => {
                StageStep::DrawAll
            }
            Some(ScreenRequest::Send(_)) | None => StageStep::Draw,
        })
    }

    fn draw(&mut self, buffer: &mut Buffer, theme: &Theme) -> Option<Position> {
        self.screen.catch_up(&self.context);
        self.screen.draw(buffer, &self.context, theme)
    }
}

#[cfg(test)]
mod tests {
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use tokio::sync::watch;

    use super::super::test_support::{COLOUR, SMALL, Shown};
    use super::*;

    fn choices() -> Arc<Vec<ProcessChoice>> {
        let choice = |tgid, memory: Option<u64>, command: &str| ProcessChoice {
            tgid: Tgid(tgid),
            user: Some("ada".to_owned()),
            gpu_memory: memory.map(Bytes),
            library: "CUDA",
            command: command.to_owned(),
        };
        Arc::new(vec![
            choice(1234, Some(3 << 30), "python train.py --seconds 600"),
            choice(2002, Some(9 << 30), "python -m serve --port 8000"),
            choice(31, None, "python \x1b[31mred.py"),
        ])
    }

    fn context() -> PickerContext {
        PickerContext {
            verb: "attach",
            shown: choices(),
        }
    }

    #[test]
    fn the_process_with_most_gpu_memory_is_first() {
        let screen = Shown::new(Picker, context(), SMALL);
        insta::assert_snapshot!(screen.drawn(SMALL, &COLOUR));
    }

    #[test]
    fn enter_chooses_the_selected_process_and_escape_none() {
        let press = |codes: &[KeyCode]| {
            let (_choices, receiver) = watch::channel(choices());
            let (_quit, quit) = watch::channel(false);
            let mut stage = PickerStage::new("attach", receiver, quit);
            stage.resize(80, 24);
            let mut steps = codes.iter().map(|code| {
                let key = Event::Key(KeyEvent::new(*code, KeyModifiers::NONE));
                stage.handle(&key).unwrap()
            });
            assert_eq!(steps.next_back(), Some(StageStep::Leave));
            drop(steps);
            stage.picked
        };
        assert_eq!(press(&[KeyCode::Enter]), Picked::Process(Tgid(2002)));
        assert_eq!(press(&[KeyCode::Esc]), Picked::Nothing);
        assert_eq!(press(&[KeyCode::Char('q')]), Picked::Nothing);
    }

    #[test]
    fn a_new_list_leaves_the_selection_on_its_process() {
        let (sender, receiver) = watch::channel(choices());
        let (_quit, quit) = watch::channel(false);
        let mut stage = PickerStage::new("attach", receiver, quit);
        stage.resize(80, 24);
        let mut more = choices().to_vec();
        more[0].gpu_memory = Some(Bytes(20 << 30));
        sender.send_replace(Arc::new(more));
        assert!(stage.take_news());
        let enter = Event::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
        stage.handle(&enter).unwrap();
        assert_eq!(stage.picked, Picked::Process(Tgid(2002)));
    }
}
