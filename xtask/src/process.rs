//! Child processes: prints commands before they run, and turns failures into readable errors.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Formats `command` as typed in a shell.
pub fn shown(command: &Command) -> String {
    let mut line = String::new();
    for word in std::iter::once(command.get_program()).chain(command.get_args()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&quoted(word));
    }
    line
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Prints the command and runs it with inherited input and output.
///
/// # Errors
///
/// If it cannot be started or does not exit successfully.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("  $ {}", shown(command));
    run_unseen(command)
}

/// Like [`run`], without printing the command.
pub fn run_unseen(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

/// Returns the standard output of a command with a short answer.
pub fn answer(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !output.status.success() {
        bail!(
            "`{}` failed ({}): {}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the date (UTC), such as `2026-11-24`.
pub fn today() -> Result<String> {
    answer(Command::new("date").args(["-u", "+%Y-%m-%d"]))
}

/// Returns the CPU time of all children that were waited for (`cutime` and `cstime`; proc_pid_stat(5)).
pub fn cpu_of_children() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("/proc/self/stat")?;
    let ticks = fields
        .split_whitespace()
        .skip(13)
        .take(2)
        .map(str::parse::<u64>)
        .sum::<Result<u64, _>>()?;
    let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    Ok(Duration::from_secs_f64(seconds))
}

/// True if the effective user is root.
pub fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| effective_uid(&status) == Some(0))
}

/// Returns the effective user in the text of `/proc/PID/status` (`Uid:` real, effective, saved,
/// filesystem; proc_pid_status(5)).
fn effective_uid(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the first file called `name` in the folders of `PATH`.
pub fn on_path(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_command_can_be_pasted_into_a_shell() {
        let mut command = Command::new("cargo");
        command.args(["test", "a b", "it's", ""]);
        assert_eq!(shown(&command), r"cargo test 'a b' 'it'\''s' ''");
    }

    #[test]
    fn a_failing_command_is_named_in_its_error() {
        let error = run(&mut Command::new("false")).unwrap_err().to_string();
        assert!(error.contains("`false` failed"), "{error}");
        let error = answer(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(error.to_string().contains("cannot start"), "{error}");
    }

    #[test]
    fn the_effective_user_is_the_second_of_the_line() {
        assert_eq!(effective_uid("Name:\tx\nUid:\t1000\t0\t0\t0\n"), Some(0));
        assert_eq!(effective_uid("Name:\tx\n"), None);
    }
}
