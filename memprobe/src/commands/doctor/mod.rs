//! `doctor`: whether memprobe can work here, and where each probe would sit. It tries for itself what
//! can be tried: the programs are loaded, and one is attached to memprobe's own.

mod process;
mod text;
mod trial;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::event::Tgid;
use crate::probe::finding::{Finding, Level};
use crate::probe::machine::Machine;
use crate::report::Colour;

use process::ExaminedProcess;

/// Exit status where something stands in the way.
const UNFIT: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoctorFormat {
    Text(Colour),
    Json,
}

pub struct Doctor {
    pub tgid: Option<Tgid>,
    pub format: DoctorFormat,
    /// File for the verifier's log of a program that the kernel refuses.
    pub verifier_log: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Examination {
    memprobe: &'static str,
    /// True if nothing keeps memprobe from working.
    fit: bool,
    machine: Vec<Finding>,
    process: Option<ExaminedProcess>,
}

impl Doctor {
    /// Examines the machine and the process, and prints the findings. The target is only read.
    pub fn run(self) -> Result<ExitCode> {
        let examination = self.examine()?;
        let text = match self.format {
            DoctorFormat::Text(colour) => text::render(&examination, colour),
            DoctorFormat::Json => serde_json::to_string_pretty(&examination)? + "\n",
        };
        // A reader that has seen enough (`| head`) is no error.
        let _ = io::stdout().write_all(text.as_bytes());
        Ok(if examination.fit {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(UNFIT)
        })
    }

    fn examine(&self) -> Result<Examination> {
        let mut machine = Machine::read().findings();
        let trial = trial::of_the_kernel();
        if let Some(path) = &self.verifier_log {
            let log = trial.log.as_deref();
            let nothing = "the kernel accepts every program of memprobe: there is no log\n";
            std::fs::write(path, log.unwrap_or(nothing))
                .with_context(|| format!("writing the verifier's log to {}", path.display()))?;
        }
        // What was tried cannot go better than what stands in the way of it.
        let follows = machine.iter().any(|finding| finding.level == Level::Fail);
        for finding in trial.findings {
            let explained = follows && finding.level == Level::Fail;
            let first = explained.then(|| "Do what is said above first.".to_owned());
            machine.push(Finding {
                remedy: first.or(finding.remedy),
                ..finding
            });
        }
        let process = self.tgid.map(ExaminedProcess::examine);
        let fit = (machine.iter())
            .chain(process.iter().flat_map(ExaminedProcess::findings))
            .all(|finding| finding.level < Level::Fail);
        Ok(Examination {
            memprobe: env!("CARGO_PKG_VERSION"),
            fit,
            machine,
            process,
        })
    }
}

#[cfg(test)]
mod tests;
