//! Pseudo-terminal for a full-screen program, and its contents.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::process::{is_soon, wait_until};

/// Columns and rows.
const SIZE: (u16, u16) = (120, 40);

/// A program on its own pseudo-terminal.
pub struct Terminal {
    child: Child,
    keyboard: File,
    /// Held open, so that the terminal outlives the program and stays readable.
    line: File,
    before: Termios,
    shown: Arc<Mutex<Shown>>,
    closed: Arc<AtomicBool>,
}

/// Contents of a terminal, and the bytes that made them.
struct Shown {
    parser: vt100::Parser,
    received: Vec<u8>,
}

impl Terminal {
    /// Starts a command on a new terminal.
    ///
    /// # Panics
    ///
    /// If there is no terminal, or the command does not start.
    pub fn start(command: &mut Command) -> Self {
        Self::start_sized(command, SIZE)
    }

    /// Like [`Self::start`], with so many columns and rows.
    ///
    /// # Panics
    ///
    /// If there is no terminal, or the command does not start.
    pub fn start_sized(command: &mut Command, (columns, rows): (u16, u16)) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a pseudo-terminal");
        grantpt(&master).expect("it is granted");
        unlockpt(&master).expect("it is unlocked");
        let name = ptsname(&master, Vec::new()).expect("it has a name");
        let name = name.to_str().expect("UTF-8");
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).expect("it has a size");
        let open = || {
            File::options()
                .read(true)
                .write(true)
                .open(name)
                .expect("its line")
        };
        let line = open();
        let before = tcgetattr(&line).expect("it has modes");
        let child = command
            .env("TERM", "xterm-256color")
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let shown = Arc::new(Mutex::new(Shown {
            parser: vt100::Parser::new(rows, columns, 0),
            received: Vec::new(),
        }));
        let closed = Arc::new(AtomicBool::new(false));
        watch(
            master.try_clone().expect("another handle"),
            Arc::clone(&shown),
            Arc::clone(&closed),
        );
        Self {
            child,
            keyboard: File::from(master),
            line,
            before,
            shown,
            closed,
        }
    }

    /// Closes the terminal under the running program and waits for its end.
    ///
    /// # Panics
    ///
    /// If the program does not end.
    pub fn close(mut self) -> ExitStatus {
        let nothing = || File::open("/dev/null").expect("it is always there");
        self.closed.store(true, Ordering::SeqCst);
        (self.keyboard, self.line) = (nothing(), nothing());
        wait_until("the end of a program whose terminal is gone", || {
            self.child.try_wait().expect("a child can be asked")
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the text on the terminal.
    pub fn text(&self) -> String {
        self.screen(vt100::Screen::contents)
    }

    /// True if a cell has this colour of the 256-colour palette.
    pub fn has_colour(&self, index: u8) -> bool {
        let wanted = vt100::Color::Idx(index);
        self.screen(|screen| {
            let (rows, columns) = screen.size();
            let mut places = (0..rows).flat_map(|row| (0..columns).map(move |at| (row, at)));
            places.any(|(row, at)| {
                let cell = screen.cell(row, at);
                cell.is_some_and(|cell| [cell.fgcolor(), cell.bgcolor()].contains(&wanted))
            })
        })
    }

    /// Waits until the program has written these bytes, which may be none of the text.
    ///
    /// # Panics
    ///
    /// If it does not write them.
    pub fn wait_for_bytes(&self, bytes: &str) {
        wait_until(&format!("{bytes:?} from the program"), || {
            let shown = self.shown.lock().expect("nobody panics with it");
            let text = String::from_utf8_lossy(&shown.received).into_owned();
            text.contains(bytes).then_some(())
        });
    }

    /// Returns everything that the program wrote until it ended.
    ///
    /// # Panics
    ///
    /// If it does not end, or does not write `last`.
    pub fn output_until(mut self, last: &str) -> String {
        wait_until("the end of the program on the terminal", || {
            self.child.try_wait().expect("a child can be asked")
        });
        wait_until("its last words", || {
            let shown = self.shown.lock().expect("nobody panics with it");
            let text = String::from_utf8_lossy(&shown.received).into_owned();
            text.contains(last).then_some(text)
        })
    }

    /// Waits for a text.
    ///
    /// # Panics
    ///
    /// If it does not appear in time.
    pub fn wait_for(&self, text: &str) -> String {
        self.wait_until(&format!("{text:?}"), |shown| shown.contains(text))
    }

    /// Waits for text with a property, which `what` names.
    ///
    /// # Panics
    ///
    /// If it does not appear in time.
    pub fn wait_until(&self, what: &str, is_wanted: impl Fn(&str) -> bool) -> String {
        let mut shown = String::new();
        let is_shown = is_soon(|| {
            shown = self.text();
            is_wanted(&shown)
        });
        assert!(is_shown, "waited in vain: {what} on the screen:\n{shown}");
        shown
    }

    pub fn press(&mut self, keys: &str) {
        self.keyboard
            .write_all(keys.as_bytes())
            .expect("the terminal is there");
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// True if the program uses the alternate screen and has switched off line mode.
    pub fn is_taken(&self) -> bool {
        let modes = tcgetattr(&self.line).expect("it has modes").local_modes;
        self.screen(vt100::Screen::alternate_screen) && !modes.contains(LocalModes::ICANON)
    }

    /// Waits for the program's end and checks that it restored the terminal.
    ///
    /// # Panics
    ///
    /// If the terminal is not restored.
    pub fn finish_restored(self) -> ExitStatus {
        self.finish_showing("").0
    }

    /// Like [`Self::finish_restored`], with a text that must be left on the terminal. Returns all text that is left.
    ///
    /// # Panics
    ///
    /// If the terminal is not restored, or lacks the text.
    pub fn finish_showing(mut self, text: &str) -> (ExitStatus, String) {
        let status = wait_until("the end of the program on the terminal", || {
            self.child.try_wait().expect("a child can be asked")
        });
        wait_until("the terminal's own screen", || {
            self.screen(|screen| {
                let restored = !screen.alternate_screen()
                    && !screen.hide_cursor()
                    && !screen.bracketed_paste()
                    && screen.mouse_protocol_mode() == vt100::MouseProtocolMode::None;
                restored.then_some(())
            })
        });
        let after = tcgetattr(&self.line).expect("it has modes");
        assert_eq!(after.local_modes, self.before.local_modes, "echo and lines");
        assert_eq!(after.input_modes, self.before.input_modes);
        assert_eq!(after.output_modes, self.before.output_modes);
        (status, self.wait_for(text))
    }

    fn screen<T>(&self, look: impl Fn(&vt100::Screen) -> T) -> T {
        let shown = self.shown.lock().expect("nobody panics with it");
        look(shown.parser.screen())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Feeds the parser until the terminal is gone or closed.
fn watch(master: OwnedFd, shown: Arc<Mutex<Shown>>, closed: Arc<AtomicBool>) {
    let mut output = File::from(master);
    std::thread::spawn(move || {
        let mut bytes = [0; 8192];
        while let Ok(read) = output.read(&mut bytes) {
            if read == 0 || closed.load(Ordering::SeqCst) {
                break;
            }
            let mut shown = shown.lock().expect("nobody panics with it");
            shown.parser.process(&bytes[..read]);
            shown.received.extend_from_slice(&bytes[..read]);
        }
    });
}
