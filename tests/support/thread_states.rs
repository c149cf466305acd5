//! State of the processes of a test that waited in vain: whether they run, wait or are stopped.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Last lines of a process's standard error that are shown.
const LINES: usize = 8;

/// A background process of a test.
struct Started {
    pid: u32,
    command: String,
    /// File with its standard error.
    stderr: PathBuf,
}

thread_local! {
    /// Background processes that this thread has started and not ended.
    static STARTED: RefCell<Vec<Started>> = const { RefCell::new(Vec::new()) };
}

/// Notes a background process of this thread's test.
pub fn note(pid: u32, command: &str, stderr: &Path) {
    let (command, stderr) = (command.to_owned(), stderr.to_owned());
    let started = Started {
        pid,
        command,
        stderr,
    };
    STARTED.with_borrow_mut(|all| all.push(started));
}

/// Forgets a background process. One that another thread has started stays noted there.
pub fn forget(pid: u32) {
    STARTED.with_borrow_mut(|all| all.retain(|started| started.pid != pid));
}

/// Describes each noted process: its last words on standard error, and each thread's state.
pub fn describe() -> String {
    STARTED.with_borrow(|all| all.iter().map(Started::describe).collect())
}

impl Started {
    fn describe(&self) -> String {
        let mut text = format!("\nprocess {}: {}\n", self.pid, self.command);
        let printed = fs::read(&self.stderr).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed);
        let lines: Vec<&str> = printed.lines().collect();
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            let _ = writeln!(text, "  | {line}");
        }
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap_or_default();
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        let mut any = false;
        for thread in threads.into_iter().flatten().flatten() {
            any = true;
            let _ = writeln!(text, "  {}", describe_thread(&thread.path(), &maps));
        }
        if !any {
            text += "  it has ended\n";
        }
        text
    }
}

/// Returns a thread's number, name, state and tracer, the kernel function in which it waits, and its system call with
/// the arguments and the place of the call (proc_pid_syscall(5)).
fn describe_thread(folder: &Path, maps: &str) -> String {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let status = read("status");
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or("?").trim().to_owned()
    };
    let number = folder.file_name().unwrap_or_default().display();
    let (name, state) = (field("Name:"), field("State:"));
    let tracer = match field("TracerPid:").as_str() {
        "0" => String::new(),
        tracer => format!(", traced by {tracer}"),
    };
    let (wchan, call) = (read("wchan"), read("syscall"));
    let call = call.trim();
    let pc = call.rsplit(' ').next().and_then(|pc| place(maps, pc));
    let pc = pc.map_or(String::new(), |pc| format!(" at {pc}"));
    format!("thread {number} {name}: {state}{tracer}, in {wchan}, call {call}{pc}")
}

/// Returns the file and the offset of an address as `/proc/PID/syscall` shows it.
fn place(maps: &str, address: &str) -> Option<String> {
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let address = hexadecimal(address.strip_prefix("0x")?)?;
    maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let (begin, end) = (hexadecimal(begin)?, hexadecimal(end)?);
        let offset = hexadecimal(words.nth(1)?)?;
        let file = words.nth(2)?;
        let is_in = (begin..end).contains(&address);
        is_in.then(|| format!("{file}+{:#x}", address - begin + offset))
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::{Background, wait_until};

    #[test]
    fn a_process_that_sleeps_is_described_until_it_is_dropped() {
        let sleeper = Background::start(Command::new("sleep").arg("1000"));
        let described = wait_until("the program sleeps", || {
            let described = describe();
            described.contains("nanosleep").then_some(described)
        });
        assert!(described.contains(&format!("process {}: \"sleep\" \"1000\"", sleeper.pid())));
        assert!(
            described.contains("sleep: S (sleeping), in "),
            "{described}"
        );
        drop(sleeper);
        assert_eq!(describe(), "");
    }

    #[test]
    fn an_address_is_shown_as_an_offset_of_its_file() {
        let maps =
            "1000-3000 r-xp 00002000 fe:00 7    /lib/libc.so.6\n3000-4000 rw-p 00000000 00:00 0 \n";
        let place = |address| place(maps, address);
        assert_eq!(place("0x1010").unwrap(), "/lib/libc.so.6+0x2010");
        assert_eq!(place("0x3010"), None);
        assert_eq!(place("running"), None);
    }
}
