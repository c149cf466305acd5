//! The terminal: entered, left whatever happens, and the loop between.

use std::io::{self, IsTerminal, Write, stdin, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crossterm::cursor::Show;
use crossterm::event::{self, DisableMouseCapture, EnableMouseCapture, Event};
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::Terminal;
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::layout::Position;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::theme::Theme;

/// New snapshots are drawn at most so often; input at once.
pub(super) const BETWEEN_DRAWINGS: Duration = Duration::from_millis(100);
/// How long input is waited for before the channels are looked at.
const PATIENCE: Duration = Duration::from_millis(50);

/// Whether the screen is ours. Whoever takes it back restores the terminal.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// What a screen shows and how it answers, apart from the terminal that it is on.
pub(super) trait Stage {
    /// Whether the caller wants the screen to end.
    fn is_over(&self) -> bool;

    /// Takes what came from the caller since; says whether there is something new to draw.
    fn take_news(&mut self) -> bool;

    /// The terminal has so many columns and rows.
    fn resize(&mut self, width: u16, height: u16);

    /// Does what an event of the terminal asks for.
    ///
    /// # Errors
    ///
    /// When the caller is gone that would have to do it.
    fn handle(&mut self, event: &Event) -> Result<Step>;

    /// Draws everything. Says where the cursor of the terminal belongs, if it is to be seen.
    fn draw(&mut self, buffer: &mut Buffer, theme: &Theme) -> Option<Position>;
}

/// What an event of the terminal leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing.
    Nothing,
    /// A new drawing.
    Draw,
    /// A new drawing on an empty screen.
    DrawAll,
    /// Back to the screen that this one was opened from.
    Back,
    /// The end.
    Leave,
}

/// Shows a stage until a person or the caller ends it. `instead` says what to do where there is
/// no terminal.
///
/// # Errors
///
/// When standard output is no terminal, the terminal fails, or another thread panicked.
pub(super) fn run(stage: &mut impl Stage, instead: &str) -> Result<()> {
    if !stdout().is_terminal() {
        bail!(
            "the live screen needs a terminal, and standard output is none: run it in a terminal, \
             or use {instead}"
        );
    }
    let theme = Theme::of_environment(|name| std::env::var_os(name));
    let screen = Screen::enter(stdout()).context("the terminal could not be prepared")?;
    let mut terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
    let ended = show(&mut terminal, &theme, stage, next_event, || screen.check());
    drop(screen);
    ended
}

/// Draws and takes input until it is over. `input` waits for an event no longer than it is told;
/// `check` says whether the terminal is still ours.
pub(super) fn show<B>(
    terminal: &mut Terminal<B>,
    theme: &Theme,
    stage: &mut impl Stage,
    mut input: impl FnMut(Duration) -> io::Result<Option<Event>>,
    check: impl Fn() -> Result<()>,
) -> Result<()>
where
    B: Backend<Error: Send + Sync + 'static>,
{
    let size = terminal.size()?;
    stage.resize(size.width, size.height);
    stage.take_news();
    let mut drawn: Option<Instant> = None;
    let mut stale = true;
    loop {
        if stage.is_over() {
            return Ok(());
        }
        check()?;
        let due = drawn.is_none_or(|at| at.elapsed() >= BETWEEN_DRAWINGS);
        if due && stage.take_news() {
            stale = true;
        }
        if stale {
            draw(terminal, stage, theme)?;
            (drawn, stale) = (Some(Instant::now()), false);
        }
        let mut patience = PATIENCE;
        while let Some(event) = input(patience)? {
            patience = Duration::ZERO;
            match stage.handle(&event)? {
                Step::Nothing => continue,
                Step::Leave | Step::Back => return Ok(()),
                Step::DrawAll => terminal.clear()?,
                Step::Draw => {}
            }
            stale = true;
        }
    }
}

/// The next event of the terminal, if one comes in time. Fails when the terminal is gone: crossterm
/// would then read its end for ever.
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
        // A signal, such as that of a new size, which crossterm knows of.
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    if event::poll(Duration::ZERO)? {
        event::read().map(Some)
    } else {
        Ok(None)
    }
}

fn draw<B: Backend>(
    terminal: &mut Terminal<B>,
    stage: &mut impl Stage,
    theme: &Theme,
) -> Result<(), B::Error> {
    terminal.draw(|frame| {
        if let Some(cursor) = stage.draw(frame.buffer_mut(), theme) {
            frame.set_cursor_position(cursor);
        }
    })?;
    Ok(())
}

/// The terminal while it is ours; dropped, it is as before.
struct Screen<W: Write> {
    out: W,
}

impl<W: Write> Screen<W> {
    /// Takes the terminal: raw input, its other screen, the mouse.
    fn enter(out: W) -> io::Result<Self> {
        restore_on_panic();
        enable_raw_mode()?;
        ENTERED.store(true, Ordering::SeqCst);
        // From here on the drop restores, even if what follows fails halfway.
        let mut screen = Self { out };
        take(&mut screen.out)?;
        Ok(screen)
    }

    /// Fails if another thread panicked and the terminal was given back for its message.
    fn check(&self) -> Result<()> {
        if ENTERED.load(Ordering::SeqCst) {
            return Ok(());
        }
        bail!("another thread of memprobe panicked (see above): please report it")
    }
}

impl<W: Write> Drop for Screen<W> {
    fn drop(&mut self) {
        if ENTERED.swap(false, Ordering::SeqCst) {
            // There is nobody left to tell if the terminal is gone.
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

/// The message of a panic must not go to the other screen, where it would vanish.
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
