//! `memprobe completions` and `memprobe man`: the files that packages install, from the command line itself.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;

use super::Arguments;
use crate::commands::stdout::{self, OutputContent};

/// Print the completions of a shell
///
/// They are made from the command line of this memprobe; write them again after an update.
#[derive(Args)]
#[command(after_help = "\
Examples:
  memprobe completions bash > ~/.local/share/bash-completion/completions/memprobe
  memprobe completions zsh > ~/.zfunc/_memprobe          with fpath+=~/.zfunc before compinit
  memprobe completions fish > ~/.config/fish/completions/memprobe.fish")]
pub struct Completions {
    /// Shell to complete in
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut command = Arguments::command();
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        print(&script)
    }
}

/// Print a manual page, for `man -l -`
#[derive(Args)]
#[command(after_help = "\
Examples:
  memprobe man | man -l -
  memprobe man record > memprobe-record.1")]
pub struct ManualPage {
    /// Verb of the page; without it, the page of memprobe
    #[arg(value_name = "VERB")]
    verb: Option<String>,
}

impl ManualPage {
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut page = Vec::new();
        clap_mangen::Man::new(command_of(self.verb.as_deref())?).render(&mut page)?;
        print(&page)
    }
}

/// Returns the command of a verb, named `memprobe-VERB` as its page.
fn command_of(verb: Option<&str>) -> Result<Command> {
    let mut whole = Arguments::command();
    whole.build();
    let Some(verb) = verb else {
        return Ok(whole);
    };
    let verbs = || {
        let shown = whole.get_subcommands().filter(|verb| !verb.is_hide_set());
        shown.map(Command::get_name).collect::<Vec<_>>().join(", ")
    };
    let found = whole.find_subcommand(verb).cloned();
    found.ok_or_else(|| anyhow!("there is no verb {verb}: give one of {}", verbs()))
}

/// Writes to standard output; a reader that closes it early is no error.
fn print(content: &[u8]) -> Result<ExitCode> {
    let mut out = stdout::open(OutputContent::Text);
    match out.write_all(content).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_and_is_completed() {
        let command = Arguments::command();
        let verbs = command.get_subcommands().map(Command::get_name);
        let mut script = Vec::new();
        clap_complete::generate(
            Shell::Bash,
            &mut Arguments::command(),
            "memprobe",
            &mut script,
        );
        let script = String::from_utf8(script).unwrap();
        for verb in verbs {
            let page = command_of(Some(verb)).unwrap();
            assert_eq!(page.get_display_name(), Some(&*format!("memprobe-{verb}")));
            assert!(script.contains(verb), "{verb}");
        }
        let error = command_of(Some("attahc")).unwrap_err().to_string();
        assert!(error.contains("attach, top, record"), "{error}");
    }
}
