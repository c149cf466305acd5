//! Terminal setup and restoration, and the event loop.

use std::io::{self, IsTerminal, Write, stdin, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crossterm::clipboard::CopyToClipboard;
use crossterm::cursor::Show;
use crossterm::event::{self, DisableMouseCapture, EnableMouseCapture, Event};
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::Terminal;
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::background::{AnswerFilter, FilteredInput, QUESTION};
use super::table_screen::{Errand, Note, SourcePlace};
use super::theme::{Theme, ThemeChoice};

/// Minimum interval between drawings of new snapshots; input is drawn at once.
pub(super) const BETWEEN_DRAWINGS: Duration = Duration::from_millis(100);
/// Longest wait for input before the channels are checked.
const PATIENCE: Duration = Duration::from_millis(50);
/// Time after the question for the background, in which nobody else gets the terminal: the answer would be input.
const ANSWER_DUE: Duration = Duration::from_millis(500);

/// True while memprobe owns the terminal. The code that clears it restores the terminal.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Screen independent of its terminal.
pub(super) trait Stage {
    fn is_over(&self) -> bool;

    fn take_news(&mut self) -> bool;

    fn resize(&mut self, width: u16, height: u16);

    /// Handles a terminal event. Fails if the caller needed for it has ended.
    fn handle(&mut self, event: &Event) -> Result<StageStep>;

    /// Draws the screen. Returns the position of the visible cursor, if any.
    fn draw(&mut self, buffer: &mut Buffer, theme: &Theme) -> Option<Position>;

    /// Returns work for the terminal that the last input asked for.
    fn take_errand(&mut self) -> Option<Errand> {
        None
    }

    /// Opens a line in the user's editor, and returns when it has ended. Returns the reason if that is impossible.
    fn edit(&mut self, _place: &SourcePlace) -> Result<(), String> {
        Ok(())
    }

    /// Shows a note until the next input.
    fn say(&mut self, _note: Note) {}
}

/// The terminal, as far as it is more than cells and input.
pub(super) trait TerminalDevice {
    /// Fails once the terminal is no longer memprobe's.
    fn check(&self) -> Result<()>;

    /// Copies a text to the user's clipboard.
    fn copy(&mut self, text: &str) -> io::Result<()>;

    /// Gives the terminal back for as long as `work` runs.
    fn lend(&mut self, work: &mut dyn FnMut()) -> io::Result<()>;

    /// Separates input of the user from answers of the terminal.
    fn receive(&mut self, event: Event) -> FilteredInput {
        FilteredInput {
            events: vec![event],
            background: None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StageStep {
    Nothing,
    Draw,
    /// Clear the terminal and redraw.
    DrawAll,
    /// Return to the screen that opened this one.
    Back,
    Leave,
}

/// Shows a stage until the user or the caller ends it. Without a terminal, suggests `instead`.
pub(super) fn run(stage: &mut impl Stage, theme: ThemeChoice, instead: &str) -> Result<()> {
    if !stdout().is_terminal() {
        bail!(
            "the live screen needs a terminal, but standard output is none: run it in a terminal, or use {instead}"
        );
    }
    let variable = |name: &str| std::env::var_os(name);
    let asks = stdin().is_terminal() && Theme::asks_for_background(theme, variable);
    let theme = Theme::of_environment(theme, variable);
    let mut screen = Screen::enter(stdout()).context("the terminal could not be prepared")?;
    if asks {
        screen.ask_for_background()?;
    }
    let mut terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
    let ended = show(&mut terminal, &theme, stage, next_event, &mut screen);
    drop(screen);
    ended
}

/// Draws and handles input until the stage ends. `input` waits for an event at most as long as its argument.
pub(super) fn show<B>(
    terminal: &mut Terminal<B>,
    theme: &Theme,
    stage: &mut impl Stage,
    mut input: impl FnMut(Duration) -> io::Result<Option<Event>>,
    device: &mut impl TerminalDevice,
) -> Result<()>
where
    B: Backend<Error: Send + Sync + 'static>,
{
    let mut theme = *theme;
    let size = terminal.size()?;
    stage.resize(size.width, size.height);
    stage.take_news();
    let mut drawn: Option<Instant> = None;
    let mut stale = true;
    loop {
        if stage.is_over() {
            return Ok(());
        }
        device.check()?;
        let due = drawn.is_none_or(|at| at.elapsed() >= BETWEEN_DRAWINGS);
        if due && stage.take_news() {
            stale = true;
            // Keys typed ahead may have asked for it.
            run_errand(terminal, stage, device)?;
        }
        if stale {
            terminal.draw(|frame| {
                if let Some(cursor) = stage.draw(frame.buffer_mut(), &theme) {
                    frame.set_cursor_position(cursor);
                }
            })?;
            (drawn, stale) = (Some(Instant::now()), false);
        }
        let mut patience = PATIENCE;
        while let Some(event) = input(patience)? {
            patience = Duration::ZERO;
            let received = device.receive(event);
            if let Some(background) = received.background {
                theme = theme.on(background);
                stale = true;
            }
            for event in received.events {
                match stage.handle(&event)? {
                    StageStep::Nothing => continue,
                    StageStep::Leave | StageStep::Back => return Ok(()),
                    StageStep::DrawAll => forget_screen(terminal)?,
                    StageStep::Draw => {}
                }
                stale = true;
                run_errand(terminal, stage, device)?;
            }
        }
    }
}

/// Does what the last input asked of the terminal.
fn run_errand<B>(
    terminal: &mut Terminal<B>,
    stage: &mut impl Stage,
    device: &mut impl TerminalDevice,
) -> Result<()>
where
    B: Backend<Error: Send + Sync + 'static>,
{
    match stage.take_errand() {
        Some(Errand::Copy(text)) => device.copy(&text)?,
        Some(Errand::Edit(place)) => {
            let mut edited = Ok(());
            device.lend(&mut || edited = stage.edit(&place))?;
            forget_screen(terminal)?;
            if let Err(reason) = edited {
                stage.say(reason.into());
            }
        }
        None => {}
    }
    Ok(())
}

/// Clears the terminal, so that the next drawing draws all of it. `Terminal::clear` would ask the terminal for its cursor,
/// and end the screen on a terminal that does not answer.
fn forget_screen<B: Backend>(terminal: &mut Terminal<B>) -> Result<(), B::Error> {
    let size = terminal.size()?;
    terminal.resize(Rect::from((Position::ORIGIN, size)))
}

/// Returns the next event within `patience`. Fails if the terminal has hung up: crossterm would read its end forever.
fn next_event(patience: Duration) -> io::Result<Option<Event>> {
    let input = stdin();
    let mut waited = [PollFd::new(&input, PollFlags::IN)];
    let timeout = Timespec::try_from(patience).ok();
    match poll(&mut waited, timeout.as_ref()) {
        Ok(_)
            if waited[0]
                .revents()
                .intersects(PollFlags::HUP | PollFlags::ERR) =>
        {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the terminal is gone",
            ));
        }
        // A signal such as SIGWINCH, which crossterm handles.
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    if event::poll(Duration::ZERO)? {
        event::read().map(Some)
    } else {
        Ok(None)
    }
}

/// Terminal in raw mode and alternate screen; restored on drop.
struct Screen<W: Write> {
    out: W,
    answers: AnswerFilter,
    /// Time of the question for the background.
    asked: Option<Instant>,
}

impl<W: Write> Screen<W> {
    fn enter(out: W) -> io::Result<Self> {
        restore_on_panic();
        enable_raw_mode()?;
        ENTERED.store(true, Ordering::SeqCst);
        // From here on the drop restores, even if setup fails halfway.
        let mut screen = Self {
            out,
            answers: AnswerFilter::default(),
            asked: None,
        };
        take(&mut screen.out)?;
        Ok(screen)
    }

    fn ask_for_background(&mut self) -> io::Result<()> {
        self.out.write_all(QUESTION.as_bytes())?;
        self.out.flush()?;
        self.answers.expect();
        self.asked = Some(Instant::now());
        Ok(())
    }

    /// Waits for an answer that is still due, before somebody else reads from the terminal. Drops the input before it.
    fn await_answer(&mut self) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        while self.answers.is_expecting() {
            let left = ANSWER_DUE.saturating_sub(asked.elapsed());
            let event = if left.is_zero() {
                None
            } else {
                next_event(left).ok()
            };
            match event {
                Some(event) => drop(event.map(|event| self.answers.filter(event))),
                // It is late, or the terminal is gone.
                None => return,
            }
        }
    }
}

impl<W: Write> TerminalDevice for Screen<W> {
    /// Fails if another thread panicked and the panic hook restored the terminal.
    fn check(&self) -> Result<()> {
        if ENTERED.load(Ordering::SeqCst) {
            return Ok(());
        }
        bail!("another thread of memprobe panicked (see above): please report it")
    }

    /// Copies by OSC 52 (xterm's ctlseqs), which reaches the user's clipboard through ssh, tmux and screen as well.
    fn copy(&mut self, text: &str) -> io::Result<()> {
        execute!(self.out, CopyToClipboard::to_clipboard_from(text))
    }

    fn receive(&mut self, event: Event) -> FilteredInput {
        self.answers.filter(event)
    }

    fn lend(&mut self, work: &mut dyn FnMut()) -> io::Result<()> {
        self.await_answer();
        if ENTERED.swap(false, Ordering::SeqCst) {
            give_back(&mut self.out)?;
            disable_raw_mode()?;
        }
        work();
        enable_raw_mode()?;
        ENTERED.store(true, Ordering::SeqCst);
        take(&mut self.out)
    }
}

impl<W: Write> Drop for Screen<W> {
    fn drop(&mut self) {
        if ENTERED.load(Ordering::SeqCst) {
            self.await_answer();
        }
        if ENTERED.swap(false, Ordering::SeqCst) {
            // Errors are ignored: if the terminal is gone, nobody can see them.
            let _ = give_back(&mut self.out);
            let _ = disable_raw_mode();
        }
    }
}

fn take(out: &mut impl Write) -> io::Result<()> {
    execute!(out, EnterAlternateScreen, EnableMouseCapture)
}

fn give_back(out: &mut impl Write) -> io::Result<()> {
    queue!(out, DisableMouseCapture, LeaveAlternateScreen, Show)?;
    out.flush()
}

/// Restores the terminal before a panic's message, which would vanish with the alternate screen.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if ENTERED.swap(false, Ordering::SeqCst) {
                let _ = give_back(&mut stdout());
                let _ = disable_raw_mode();
            }
            previous(panic);
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_taken_from_the_terminal_is_given_back() {
        let (mut taken, mut given) = (Vec::new(), Vec::new());
        take(&mut taken).unwrap();
        give_back(&mut given).unwrap();
        let (taken, given) = (
            String::from_utf8(taken).unwrap(),
            String::from_utf8(given).unwrap(),
        );
        let modes: Vec<&str> = taken
            .split("\x1b[?")
            .skip(1)
            .map(|mode| mode.trim_end_matches('h'))
            .collect();
        assert!(modes.contains(&"1049"), "{taken:?}");
        for mode in modes {
            assert!(
                given.contains(&format!("\x1b[?{mode}l")),
                "mode {mode} stays on: {given:?}"
            );
        }
        assert!(given.contains("\x1b[?25h"), "the cursor stays hidden");
    }
}
