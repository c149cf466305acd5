//! Files that the live screen saves: a recording of the process from now on, with what is live already; and the tensors
//! that were read last.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::SystemTime;

use anyhow::Result;
use tokio::sync::watch;

use super::messages;
use super::record::recorder::{self, Trace};
use super::snapshot::write_file;
use crate::event::tensors::TensorSnapshot;
use crate::event::{Bytes, Event, Tgid, TimeNs};
use crate::ledger::{Analysis, Change, Ledger};
use crate::output::OutputPlan;
use crate::recording::{EndReason, Header, RecordingFormat};
use crate::report::{TensorFormat, TensorOptions};
use crate::tui::Saving;

/// Most live blocks that a recording begins with one by one. Writing them holds up the events for a moment.
const MAX_BLOCKS: usize = 100_000;

/// Most files of one process within a second.
const MAX_NAMES: u32 = 100;

/// Saves one process. Ends its recording when it is dropped.
pub(super) struct ProcessSaver {
    tgid: Tgid,
    shown: watch::Sender<Saving>,
    open: Option<OpenRecording>,
    /// Tensors that are being written.
    writing: Option<SnapshotWriting>,
    /// Recordings that are complete.
    recordings: Vec<String>,
    /// Snapshots of tensors.
    snapshots: Vec<String>,
}

struct OpenRecording {
    trace: Trace,
    path: PathBuf,
}

/// A thread that writes tensors: half a million take seconds, in which events must be taken.
struct SnapshotWriting {
    path: PathBuf,
    thread: JoinHandle<Result<()>>,
}

/// Files that were saved.
#[derive(Debug, Default)]
pub(super) struct SavedFiles {
    pub(super) recordings: Vec<String>,
    pub(super) snapshots: Vec<String>,
}

impl ProcessSaver {
    pub(super) fn new(tgid: Tgid) -> Self {
        Self {
            tgid,
            shown: watch::Sender::default(),
            open: None,
            writing: None,
            recordings: Vec::new(),
            snapshots: Vec::new(),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Saving> {
        self.shown.subscribe()
    }

    /// Begins a recording, or ends the one in progress.
    pub(super) fn toggle(&mut self, ledger: &Ledger, now: TimeNs) {
        if self.open.is_some() {
            self.end(EndReason::Interrupted);
            return;
        }
        if let Err(error) = self.begin(ledger, now) {
            self.fail(&error);
        }
    }

    fn begin(&mut self, ledger: &Ledger, now: TimeNs) -> Result<()> {
        let path = self.path("", RecordingFormat::Compact.ending());
        let out = OutputPlan::check(&path)?.create()?;
        let header = Header {
            start: now,
            probes: ledger.health.probes.clone(),
            from_live_screen: true,
            history: None,
            ..recorder::header(ledger.target.clone())
        };
        let (place, format) = (path.display().to_string(), RecordingFormat::of(&path));
        let mut trace = Trace::begin(out, place, &header, format)?;
        let restated = ledger.restate(now, MAX_BLOCKS);
        for event in &restated.events {
            trace.event(event)?;
        }
        self.open = Some(OpenRecording { trace, path });
        self.flush();
        Ok(())
    }

    /// Shows what was written.
    pub(super) fn refresh(&mut self) {
        if matches!(&self.writing, Some(writing) if writing.thread.is_finished()) {
            self.end_writing();
        }
        self.flush();
    }

    /// Hands what was written to the operating system, and shows how much it is.
    fn flush(&mut self) {
        let Some(open) = &mut self.open else { return };
        let flushed = open.trace.flush();
        let saving = Saving::Recording {
            file: open.path.display().to_string().into(),
            bytes: Bytes(open.trace.bytes()),
        };
        match flushed {
            Ok(()) => drop(self.shown.send_replace(saving)),
            Err(error) => self.give_up(&error.into()),
        }
    }

    /// Ends the recording in progress, if there is one.
    pub(super) fn end(&mut self, reason: EndReason) {
        let Some(open) = self.open.take() else { return };
        let path = open.path.display().to_string();
        let ended = open.trace.finish(reason).map_err(anyhow::Error::from);
        match ended.and_then(|file| file.commit().map_err(Into::into)) {
            Ok(_) => {
                let note = format!("saved {path}: `memprobe report {path}` prints it");
                self.shown.send_replace(Saving::Done(note.into()));
                self.recordings.push(path);
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Begins to save a snapshot of tensors.
    pub(super) fn save_tensors(&mut self, snapshot: &Arc<TensorSnapshot>) {
        if self.writing.is_some() {
            self.say("not saved: the tensors that were read before are still being written");
            return;
        }
        let path = self.path("-tensors", "json");
        let thread = Builder::new().name("save".to_owned());
        let (snapshot, to) = (Arc::clone(snapshot), path.clone());
        match thread.spawn(move || write_snapshot(&snapshot, &to)) {
            Ok(thread) => {
                self.writing = Some(SnapshotWriting { path, thread });
                self.say("w: the tensors are being written");
            }
            Err(error) => self.fail(&error.into()),
        }
    }

    /// Waits until the tensors are written, if any are.
    fn end_writing(&mut self) {
        let Some(SnapshotWriting { path, thread }) = self.writing.take() else {
            return;
        };
        match thread.join().unwrap_or_else(|panic| resume_unwind(panic)) {
            Ok(()) => {
                let path = path.display().to_string();
                let note = format!("saved {path}: `memprobe diff {path} LATER.json` compares it");
                self.shown.send_replace(Saving::Done(note.into()));
                self.snapshots.push(path);
            }
            Err(error) => self.fail(&error),
        }
    }

    pub(super) fn say(&self, note: &'static str) {
        self.shown.send_replace(Saving::Failed(note.into()));
    }

    fn give_up(&mut self, error: &anyhow::Error) {
        // What was written so far can be read.
        self.open = None;
        self.fail(error);
    }

    fn fail(&self, error: &anyhow::Error) {
        let note = format!("not saved: {error:#}");
        self.shown.send_replace(Saving::Failed(note.into()));
    }

    /// Returns a name in the working directory that no file has.
    fn path(&self, kind: &str, ending: &str) -> PathBuf {
        let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let time = time.replace(['-', ':'], "");
        let stem = format!("memprobe-{}{kind}-{time}", self.tgid.0);
        let names = (2..MAX_NAMES).map(|number| PathBuf::from(format!("{stem}-{number}.{ending}")));
        let first = PathBuf::from(format!("{stem}.{ending}"));
        let mut names = std::iter::once(first.clone()).chain(names);
        names.find(|name| !name.exists()).unwrap_or(first)
    }

    /// Ends the recording in progress, and returns the files.
    pub(super) fn finish(&mut self) -> SavedFiles {
        self.end(EndReason::Interrupted);
        if let Some(SnapshotWriting { path, thread }) = &self.writing
            && !thread.is_finished()
        {
            messages::print(&format!("waiting until {} is written", path.display()));
        }
        self.end_writing();
        SavedFiles {
            recordings: std::mem::take(&mut self.recordings),
            snapshots: std::mem::take(&mut self.snapshots),
        }
    }
}

impl Drop for ProcessSaver {
    fn drop(&mut self) {
        self.end(EndReason::Interrupted);
        self.end_writing();
    }
}

impl SavedFiles {
    pub(super) fn without_recordings(self) -> Self {
        Self {
            recordings: Vec::new(),
            ..self
        }
    }

    /// Names the files on standard error.
    pub(super) fn print(&self) {
        for file in &self.recordings {
            messages::print(&format!("saved {file}: `memprobe report {file}` prints it"));
        }
        for file in &self.snapshots {
            messages::print(&format!(
                "saved {file}: `memprobe snapshot {file}` prints it, `memprobe diff {file} LATER.json` compares it"
            ));
        }
    }
}

impl Analysis for ProcessSaver {
    fn apply(&mut self, event: &Event, _change: &Change, _ledger: &Ledger) {
        let Some(open) = &mut self.open else { return };
        if let Err(error) = open.trace.event(event) {
            self.give_up(&error.into());
        }
    }
}

fn write_snapshot(snapshot: &Arc<TensorSnapshot>, path: &Path) -> Result<()> {
    let options = TensorOptions {
        format: TensorFormat::Json,
        ..TensorOptions::default()
    };
    write_file(OutputPlan::check(path)?, snapshot, &options)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::attribution::allocation_groups::samples::learning;
    use crate::event::Target;
    use crate::ledger::snapshot::Grouping;

    const NOW: TimeNs = TimeNs(9_000_000_000);

    /// Live bytes of each line, the allocator's total, and bytes that are unaccounted, of the first device.
    fn lines(ledger: &Ledger) -> (BTreeMap<String, u64>, u64, i64) {
        let snapshot = ledger.snapshot(NOW, Grouping::User);
        let device = &snapshot.devices[0];
        let lines = device.lines.iter().filter(|line| line.live.0 > 0);
        let lines = lines.map(|line| (format!("{:?}", line.site), line.live.0));
        (
            lines.collect(),
            device.totals.allocated.0,
            device.unaccounted,
        )
    }

    fn replayed(ledger: &Ledger, most: usize) -> (Ledger, u64) {
        let restated = ledger.restate(NOW, most);
        let mut copy = Ledger::new(Target::default(), NOW);
        for event in &restated.events {
            copy.apply(event);
        }
        (copy, restated.left_out)
    }

    #[test]
    fn a_recording_begins_with_what_is_live() {
        let mut most = 0;
        learning().play(|_, _, ledger| {
            let live = ledger.blocks().count();
            if live == 0 {
                return;
            }
            most = most.max(live);
            let (copy, left_out) = replayed(ledger, usize::MAX);
            assert_eq!(left_out, 0);
            assert_eq!(lines(&copy), lines(ledger));
            assert_eq!(copy.snapshot(NOW, Grouping::User).health.disagreements, 0);
        });
        assert!(most > 2, "the program has {most} blocks");
    }

    #[test]
    fn blocks_beyond_the_limit_count_as_memory_from_before() {
        learning().play(|_, _, ledger| {
            let live = ledger.blocks().count();
            if live <= 2 {
                return;
            }
            let (copy, left_out) = replayed(ledger, 2);
            assert_eq!(left_out as usize, live - 2);
            let (known, total, unaccounted) = lines(&copy);
            assert_eq!((total, unaccounted), (lines(ledger).1, 0));
            let device = &copy.snapshot(NOW, Grouping::User).devices[0];
            let before = device.before_attach.live.0;
            assert_eq!(known.values().sum::<u64>() + before, total);
        });
    }

    #[test]
    fn each_file_has_a_name_of_its_own() {
        let saver = ProcessSaver::new(Tgid(7));
        let path = saver.path("", "mprb");
        let name = path.to_str().unwrap();
        assert!(name.starts_with("memprobe-7-2") && name.ends_with("Z.mprb"));
    }
}
