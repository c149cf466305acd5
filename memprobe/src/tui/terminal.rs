//! The terminal: entered, left whatever happens, and the loop between.

use std::io::{self, IsTerminal, Stdout, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crossterm::cursor::Show;
use crossterm::event::{self, DisableMouseCapture, EnableMouseCapture};
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch::Receiver;

use super::input::{Wanted, wanted};
use super::state::State;
use super::theme::Theme;
use super::{Command, SourceText, view};
use crate::model::snapshot::Snapshot;

/// New snapshots are drawn at most so often; input at once.
const BETWEEN_DRAWINGS: Duration = Duration::from_millis(100);
/// How long input is waited for before the channels are looked at.
const PATIENCE: Duration = Duration::from_millis(50);

/// Whether the screen is ours. Whoever takes it back restores the terminal.
static ENTERED: AtomicBool = AtomicBool::new(false);

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
    mut snapshots: Receiver<Arc<Snapshot>>,
    commands: UnboundedSender<Command>,
    mut sources: Box<dyn SourceText + Send>,
    quit: Receiver<bool>,
) -> Result<()> {
    if !stdout().is_terminal() {
        bail!(
            "the live screen needs a terminal, and standard output is none: run it in a terminal, \
             or use `memprobe record -o trace.json` and `memprobe report trace.json`"
        );
    }
    let theme = Theme::of_environment(|name| std::env::var_os(name));
    let screen = Screen::enter(stdout()).context("the terminal could not be prepared")?;
    let ended = show(
        &screen,
        &theme,
        &mut snapshots,
        &commands,
        sources.as_mut(),
        &quit,
    );
    drop(screen);
    ended?;
    // The caller may be gone already, and then needs no telling.
    let _ = commands.send(Command::Quit);
    Ok(())
}

fn show(
    screen: &Screen<Stdout>,
    theme: &Theme,
    snapshots: &mut Receiver<Arc<Snapshot>>,
    commands: &UnboundedSender<Command>,
    sources: &mut dyn SourceText,
    quit: &Receiver<bool>,
) -> Result<()> {
    let mut terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
    let size = terminal.size()?;
    let first = snapshots.borrow_and_update().clone();
    let mut state = State::new(first, (size.width, size.height));
    let mut drawn: Option<Instant> = None;
    let mut stale = true;
    loop {
        if *quit.borrow() || quit.has_changed().is_err() {
            return Ok(());
        }
        screen.check()?;
        let due = drawn.is_none_or(|at| at.elapsed() >= BETWEEN_DRAWINGS);
        // A sender that is gone leaves the last snapshot on the screen.
        if due && snapshots.has_changed().unwrap_or(false) {
            state.update(snapshots.borrow_and_update().clone());
            stale = true;
        }
        if stale {
            draw(&mut terminal, &state, sources, theme)?;
            (drawn, stale) = (Some(Instant::now()), false);
        }
        let mut patience = PATIENCE;
        while event::poll(patience)? {
            patience = Duration::ZERO;
            let Some(wanted) = wanted(&event::read()?, state.focus) else {
                continue;
            };
            if let Wanted::Resize(..) | Wanted::Redraw = wanted {
                terminal.clear()?;
            }
            match state.handle(wanted) {
                Some(Command::Quit) => return Ok(()),
                Some(command) => commands
                    .send(command)
                    .context("the measurement has ended")?,
                None => {}
            }
            stale = true;
        }
    }
}

fn draw(
    terminal: &mut Terminal<CrosstermBackend<Stdout>>,
    state: &State,
    sources: &mut dyn SourceText,
    theme: &Theme,
) -> io::Result<()> {
    terminal.draw(|frame| {
        if let Some(cursor) = view::draw(frame.buffer_mut(), state, sources, theme) {
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
