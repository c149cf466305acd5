//! The terminal: entered, left whatever happens, and the loop between.

use std::io::{self, IsTerminal, Write, stdin, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
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
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
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
    snapshots: Receiver<Arc<Snapshot>>,
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
    let mut channels = Channels {
        snapshots,
        commands,
        quit,
    };
    let screen = Screen::enter(stdout()).context("the terminal could not be prepared")?;
    let mut terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
    let ended = show(
        &mut terminal,
        &theme,
        &mut channels,
        sources.as_mut(),
        next_event,
        || screen.check(),
    );
    drop(screen);
    ended?;
    // The caller may be gone already, and then needs no telling.
    let _ = channels.commands.send(Command::Quit);
    Ok(())
}

/// What connects the screen to its caller.
struct Channels {
    snapshots: Receiver<Arc<Snapshot>>,
    commands: UnboundedSender<Command>,
    quit: Receiver<bool>,
}

/// Draws and takes input until it is over. `input` waits for an event no longer than it is told;
/// `check` says whether the terminal is still ours.
fn show<B>(
    terminal: &mut Terminal<B>,
    theme: &Theme,
    channels: &mut Channels,
    sources: &mut dyn SourceText,
    mut input: impl FnMut(Duration) -> io::Result<Option<Event>>,
    check: impl Fn() -> Result<()>,
) -> Result<()>
where
    B: Backend<Error: Send + Sync + 'static>,
{
    let size = terminal.size()?;
    let first = channels.snapshots.borrow_and_update().clone();
    let mut state = State::new(first, (size.width, size.height));
    let mut drawn: Option<Instant> = None;
    let mut stale = true;
    loop {
        if *channels.quit.borrow() || channels.quit.has_changed().is_err() {
            return Ok(());
        }
        check()?;
        let due = drawn.is_none_or(|at| at.elapsed() >= BETWEEN_DRAWINGS);
        // A sender that is gone leaves the last snapshot on the screen.
        if due && channels.snapshots.has_changed().unwrap_or(false) {
            state.update(channels.snapshots.borrow_and_update().clone());
            stale = true;
        }
        if stale {
            draw(terminal, &state, sources, theme)?;
            (drawn, stale) = (Some(Instant::now()), false);
        }
        let mut patience = PATIENCE;
        while let Some(event) = input(patience)? {
            patience = Duration::ZERO;
            let Some(wanted) = wanted(&event, state.focus) else {
                continue;
            };
            if let Wanted::Resize(..) | Wanted::Redraw = wanted {
                terminal.clear()?;
            }
            match state.handle(wanted) {
                Some(Command::Quit) => return Ok(()),
                Some(command) => channels
                    .commands
                    .send(command)
                    .context("the measurement has ended")?,
                None => {}
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
    state: &State,
    sources: &mut dyn SourceText,
    theme: &Theme,
) -> Result<(), B::Error> {
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
    use std::collections::VecDeque;

    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use ratatui::backend::TestBackend;
    use tokio::sync::{mpsc, watch};

    use super::super::samples::{self, Sources};
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

    fn connect() -> (Caller, Channels) {
        let (snapshots, snapshots_receiver) = watch::channel(Arc::new(samples::empty()));
        let (commands_sender, commands) = mpsc::unbounded_channel();
        let (quit, quit_receiver) = watch::channel(false);
        let channels = Channels {
            snapshots: snapshots_receiver,
            commands: commands_sender,
            quit: quit_receiver,
        };
        let caller = Caller {
            snapshots,
            commands,
            quit,
        };
        (caller, channels)
    }

    fn key(letter: char) -> Option<Event> {
        let key = KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE);
        Some(Event::Key(key))
    }

    /// Runs the loop with what a person does; says what was on the screen at the end.
    fn shown(
        channels: &mut Channels,
        input: impl FnMut(Duration) -> io::Result<Option<Event>>,
    ) -> Result<String> {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let check = || Ok(());
        let ended = show(&mut terminal, &THEME, channels, &mut Sources, input, check);
        ended.map(|()| terminal.backend().to_string())
    }

    #[test]
    fn keys_reach_the_caller_as_commands_and_q_ends() {
        let (mut caller, mut channels) = connect();
        let mut keys = VecDeque::from([key('i'), None, key('q')]);
        shown(&mut channels, |_| Ok(keys.pop_front().unwrap())).unwrap();
        let command = caller.commands.try_recv();
        assert_eq!(command, Ok(Command::SetGrouping(Grouping::Innermost)));
    }

    #[test]
    fn a_new_snapshot_is_drawn_without_input() {
        let (caller, mut channels) = connect();
        let mut waits = 0;
        let text = shown(&mut channels, |_| {
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
        let (caller, mut channels) = connect();
        caller.quit.send_replace(true);
        shown(&mut channels, |_| {
            unreachable!("no input is taken any more")
        })
        .unwrap();
    }

    #[test]
    fn a_caller_that_is_gone_ends_the_screen() {
        let (caller, mut channels) = connect();
        drop(caller);
        shown(&mut channels, |_| {
            unreachable!("no input is taken any more")
        })
        .unwrap();
    }

    #[test]
    fn a_measurement_that_has_ended_leaves_its_last_snapshot_on_the_screen() {
        let (caller, mut channels) = connect();
        caller.snapshots.send_replace(Arc::new(samples::gone()));
        drop(caller.snapshots);
        let mut keys = VecDeque::from([None, None, key('q')]);
        let text = shown(&mut channels, |_| Ok(keys.pop_front().unwrap())).unwrap();
        assert!(text.contains("TARGET GONE"), "{text}");
    }

    #[test]
    fn a_terminal_that_fails_ends_the_screen_with_its_error() {
        let (_caller, mut channels) = connect();
        let failed = shown(&mut channels, |_| Err(io::Error::other("hung up")));
        assert!(failed.unwrap_err().to_string().contains("hung up"));
    }

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
