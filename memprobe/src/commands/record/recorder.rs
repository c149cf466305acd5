//! Writing of a recording: one file, or a file for each process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use hashbrown::HashMap;

use super::super::source::SourceRecording;
use super::super::stdout;
use super::progress::{Progress, ProgressFigures};
use crate::attribution::AttributionLedger;
use crate::attribution::views::categories;
use crate::event::{Event, Losses, Rank, Target, Tgid};
use crate::ledger::AnalyzedLedger;
use crate::ledger::snapshot::Grouping;
use crate::output::{OutputFile, OutputPlan};
use crate::recording::write::WriteError;
use crate::recording::write::compact::{CompactOptions, CompactWriter, DroppedPart};
use crate::recording::write::directory::{
    Index, OutputDirectory, RecordedProcess, file_stem, is_directory,
};
use crate::recording::write::trace_event::TraceWriter;
use crate::recording::{EndReason, Header, RecordingFormat};
use crate::session::{HostEvent, HostItem, now};
use crate::view::{self, clean, counted};

pub(super) enum Destination {
    /// The first process that uses GPU memory goes to this file.
    File(PathBuf, Option<OutputPlan>),
    /// Each goes to a file of its own.
    Directory(OutputDirectory, Index),
}

impl Destination {
    pub(super) fn check(path: &Path, command: Option<String>) -> Result<Self> {
        if is_directory(path) {
            let directory = OutputDirectory::check(path)?;
            return Ok(Self::Directory(directory, Index::new(command)));
        }
        let plan = OutputPlan::check(path)?;
        if plan.is_stdout() && stdout::is_terminal() {
            bail!(
                "standard output is a terminal, and a recording is for programs: name a file, or send it to one \
                 (`memprobe record -o - ... | ssh HOST 'cat > trace.mprb'`)"
            );
        }
        Ok(Self::File(path.to_owned(), Some(plan)))
    }

    /// Checks that the oldest part of a recording can be dropped there.
    pub(super) fn check_max_size(&self, format: RecordingFormat) -> Result<()> {
        if format == RecordingFormat::Json {
            bail!(
                "--max-size needs a compact recording: name the file trace.mprb, or give --format mprb"
            );
        }
        match self {
            Self::File(path, Some(plan)) if !plan.is_named_file() => bail!(
                "--max-size drops the oldest part of a file, and {} is none: name a file",
                path.display()
            ),
            Self::File(..) | Self::Directory(..) => Ok(()),
        }
    }
}

pub(super) struct Recorder {
    destination: Destination,
    format: RecordingFormat,
    /// Most bytes of each file.
    max_size: Option<u64>,
    sources: SourceRecording,
    processes: HashMap<Tgid, Recorded>,
    /// Processes that had no room in the one file.
    left_out: BTreeSet<String>,
    written: Vec<Written>,
    finished: ProgressFigures,
    /// True if the probes of any process are or were in place.
    pub(super) has_attached: bool,
    has_opened: bool,
    index_is_stale: bool,
}

struct Written {
    path: Option<PathBuf>,
    reason: EndReason,
    /// Memory events that the file has no more.
    dropped: u64,
    exceeds_limit: bool,
}

struct Recorded {
    header: Header,
    rank: Option<u32>,
    entry: usize,
    /// Events before its first memory event.
    pending: Vec<Event>,
    output: Output,
}

enum Output {
    None,
    File(Box<Trace>),
    /// Nowhere: there is one file, and it is another's.
    LeftOut,
}

impl Recorder {
    pub(super) fn new(
        destination: Destination,
        format: RecordingFormat,
        (max_size, sources): (Option<u64>, SourceRecording),
    ) -> Self {
        Self {
            destination,
            format,
            max_size,
            sources,
            processes: HashMap::new(),
            left_out: BTreeSet::new(),
            written: Vec::new(),
            finished: ProgressFigures::default(),
            has_attached: false,
            has_opened: false,
            index_is_stale: false,
        }
    }

    /// The processes that have a file and go on.
    pub(super) fn written_to(&self) -> impl Iterator<Item = Tgid> {
        let is_written = |recorded: &Recorded| matches!(recorded.output, Output::File(_));
        let processes = self.processes.iter();
        processes.filter_map(move |(tgid, recorded)| is_written(recorded).then_some(*tgid))
    }

    pub(super) fn take(&mut self, event: HostEvent, progress: &mut Progress) -> Result<()> {
        let HostEvent { tgid, item } = event;
        match item {
            HostItem::Found { parent, target } => self.found(tgid, parent, *target),
            HostItem::Event(event) => return self.event(tgid, &event, progress),
            HostItem::Attached {
                target,
                probes,
                missing,
            } => {
                self.has_attached = true;
                if let Some(recorded) = self.processes.get_mut(&tgid) {
                    recorded.header.target = *target;
                    recorded.header.probes = probes;
                    if let Output::File(trace) = &mut recorded.output {
                        trace.describe(&recorded.header)?;
                    }
                }
                self.note_entry(tgid);
                for missing in missing {
                    progress.say_once(&missing);
                }
            }
            HostItem::Identified(target) => {
                if let Some(recorded) = self.processes.get_mut(&tgid) {
                    recorded.header.target.gpus = target.gpus;
                    recorded.header.target.allocator_conf = target.allocator_conf;
                    if let Output::File(trace) = &mut recorded.output {
                        trace.describe(&recorded.header)?;
                    }
                }
            }
            HostItem::Notice(notice) => {
                progress.say(&format!("PID {}: {notice}", tgid.0));
                self.notice(tgid, notice);
            }
            HostItem::Stopped(reason) => {
                progress.say(&reason);
                self.notice(tgid, reason);
            }
            HostItem::Continued => progress.say(&format!("PID {} runs on", tgid.0)),
            HostItem::Refused(error) => {
                let refusal = error.to_string();
                progress.say(&refusal);
                self.notice(tgid, refusal);
            }
            HostItem::Waiting(_) | HostItem::Placing(_) | HostItem::SnapshotPoint(_) => {}
            HostItem::Executed(target) => self.executed(tgid, *target)?,
            HostItem::Ended => self.end(tgid, EndReason::TargetExited)?,
        }
        Ok(())
    }

    fn found(&mut self, tgid: Tgid, parent: Option<Tgid>, target: Target) {
        let rank = Rank::of(tgid).map(|rank| rank.global);
        let entry = self.enter(tgid, parent, rank, &target);
        let recorded = Recorded {
            header: header(target),
            rank,
            entry,
            pending: Vec::new(),
            output: Output::None,
        };
        self.processes.insert(tgid, recorded);
    }

    /// Puts a process into the index; says where.
    fn enter(
        &mut self,
        tgid: Tgid,
        parent: Option<Tgid>,
        rank: Option<u32>,
        target: &Target,
    ) -> usize {
        let Destination::Directory(_, index) = &mut self.destination else {
            return 0;
        };
        self.index_is_stale = true;
        index.processes.push(RecordedProcess {
            pid: tgid.0,
            parent: parent.map(|parent| parent.0),
            rank,
            command: target.command.clone(),
            file: None,
            events: 0,
            end: None,
            notices: Vec::new(),
        });
        index.processes.len() - 1
    }

    fn notice(&mut self, tgid: Tgid, notice: String) {
        if let Some(entry) = self.entry(tgid) {
            entry.notices.push(notice);
        }
    }

    fn note_entry(&mut self, tgid: Tgid) {
        let Some(recorded) = self.processes.get(&tgid) else {
            return;
        };
        let command = recorded.header.target.command.clone();
        let rank = recorded.rank;
        let events = match &recorded.output {
            Output::File(trace) => trace.events(),
            Output::None | Output::LeftOut => 0,
        };
        if let Some(entry) = self.entry(tgid) {
            entry.events = events;
            entry.rank = rank;
            if !command.is_empty() {
                entry.command = command;
            }
        }
    }

    fn entry(&mut self, tgid: Tgid) -> Option<&mut RecordedProcess> {
        let at = self.processes.get(&tgid)?.entry;
        match &mut self.destination {
            Destination::Directory(_, index) => {
                self.index_is_stale = true;
                index.processes.get_mut(at)
            }
            Destination::File(..) => None,
        }
    }

    pub(super) fn event(
        &mut self,
        tgid: Tgid,
        event: &Event,
        progress: &mut Progress,
    ) -> Result<()> {
        let Some(recorded) = self.processes.get_mut(&tgid) else {
            return Ok(());
        };
        match &mut recorded.output {
            Output::File(trace) => trace.event(event)?,
            Output::LeftOut => {}
            Output::None => {
                let first = match event {
                    Event::Memory(memory) => Some(memory.time),
                    Event::AtAttach(before) if before.totals.reserved.0 > 0 => Some(before.time),
                    _ => None,
                };
                recorded.pending.push(event.clone());
                if let Some(first) = first {
                    recorded.header.start = recorded.header.start.min(first);
                    self.open(tgid, progress)?;
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, tgid: Tgid, progress: &mut Progress) -> Result<()> {
        let Some(recorded) = self.processes.get_mut(&tgid) else {
            return Ok(());
        };
        let header = &recorded.header;
        let (plan, shown) = match &mut self.destination {
            Destination::File(path, plan) => match plan.take() {
                Some(plan) => (plan, path.display().to_string()),
                None => {
                    recorded.output = Output::LeftOut;
                    recorded.pending = Vec::new();
                    let name = named(tgid, &recorded.header.target);
                    progress.say(&format!(
                        "{name} uses GPU memory too and is not recorded: {} is for one process. To record all, give a \
                         directory, such as -o run/",
                        path.display()
                    ));
                    self.left_out.insert(name);
                    return Ok(());
                }
            },
            Destination::Directory(directory, index) => {
                let rank = recorded.rank;
                let stem = file_stem(tgid.0, rank, &header.target.command);
                let (name, plan) = directory.plan(&stem, self.format.ending())?;
                let shown = directory.path().join(&name).display().to_string();
                if let Some(entry) = index.processes.get_mut(recorded.entry) {
                    entry.file = Some(name);
                }
                self.index_is_stale = true;
                (plan, shown)
            }
        };
        let out = plan.create()?;
        let mut trace = match self.format {
            RecordingFormat::Compact => {
                let options = CompactOptions {
                    max_size: self.max_size,
                    sources: self.sources.reader(tgid),
                };
                Trace::with_options(out, shown.clone(), header, options)?
            }
            RecordingFormat::Json => Trace::begin(out, shown.clone(), header, self.format)?,
        };
        for event in std::mem::take(&mut recorded.pending) {
            trace.event(&event)?;
        }
        recorded.output = Output::File(Box::new(trace));
        let is_first = !std::mem::replace(&mut self.has_opened, true);
        let end = if is_first {
            "; press Ctrl-C to end"
        } else {
            ""
        };
        let name = view::process(&recorded.header.target).unwrap_or_default();
        progress.say(&format!("recording {name} to {shown}{end}"));
        Ok(())
    }

    /// Begins the one file with a process that has not used GPU memory yet: it is the one that was asked for.
    pub(super) fn open_early(&mut self, tgid: Tgid, progress: &mut Progress) -> Result<()> {
        let is_one = matches!(self.destination, Destination::File(_, Some(_)));
        let is_new = |recorded: &Recorded| matches!(recorded.output, Output::None);
        if is_one && self.processes.get(&tgid).is_some_and(is_new) {
            self.open(tgid, progress)?;
        }
        Ok(())
    }

    fn executed(&mut self, tgid: Tgid, target: Target) -> Result<()> {
        let Some(recorded) = self.processes.get_mut(&tgid) else {
            return Ok(());
        };
        if matches!(recorded.output, Output::None) {
            recorded.pending.clear();
            recorded.header = header(target);
            // A launcher sets it for the program that it starts.
            recorded.rank = Rank::of(tgid).map(|rank| rank.global);
            self.note_entry(tgid);
            return Ok(());
        }
        // What it held is gone with its memory, as if it had ended.
        self.end(tgid, EndReason::TargetExited)?;
        self.found(tgid, None, target);
        Ok(())
    }

    fn end(&mut self, tgid: Tgid, reason: EndReason) -> Result<()> {
        self.note_entry(tgid);
        if let Some(entry) = self.entry(tgid) {
            entry.end = Some(reason.as_str());
        }
        let Some(recorded) = self.processes.remove(&tgid) else {
            return Ok(());
        };
        if let Output::File(trace) = recorded.output {
            self.finished.add(&trace);
            let dropped = trace.dropped();
            let path = trace.finish(reason)?.commit()?;
            // The thread that writes drops parts up to the end.
            let dropped = dropped.as_ref();
            self.written.push(Written {
                path,
                reason,
                dropped: dropped.map_or(0, DroppedPart::events),
                exceeds_limit: dropped.is_some_and(DroppedPart::exceeds_limit),
            });
        }
        Ok(())
    }

    /// Hands what was written to the operating system. Call it about once a second.
    pub(super) fn flush(&mut self) -> Result<()> {
        let mut stale = BTreeMap::new();
        for recorded in self.processes.values_mut() {
            if let Output::File(trace) = &mut recorded.output {
                trace.flush()?;
                stale.insert(recorded.entry, trace.events());
            }
        }
        if self.index_is_stale {
            if let Destination::Directory(_, index) = &mut self.destination {
                for (at, events) in stale {
                    if let Some(entry) = index.processes.get_mut(at) {
                        entry.events = events;
                    }
                }
            }
            self.write_index()?;
        }
        Ok(())
    }

    /// Writes the index, unless no process was probed.
    fn write_index(&mut self) -> Result<()> {
        if let Destination::Directory(directory, index) = &mut self.destination
            && self.has_attached
        {
            directory.write_index(index)?;
            self.index_is_stale = false;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, reason: EndReason) -> Result<()> {
        let left: Vec<_> = self.processes.keys().copied().collect();
        for tgid in left {
            self.end(tgid, reason)?;
        }
        if let Destination::Directory(_, index) = &mut self.destination {
            index.finished = true;
        }
        self.write_index()
    }

    pub(super) fn figures(&self, losses: Losses) -> ProgressFigures {
        let mut sum = self.finished;
        for recorded in self.processes.values() {
            if let Output::File(trace) = &recorded.output {
                sum.add(trace);
            }
        }
        ProgressFigures { losses, ..sum }
    }

    pub(super) fn say_end(
        &self,
        figures: ProgressFigures,
        reason: EndReason,
        progress: &mut Progress,
    ) {
        progress.clear();
        let reason = match self.written.as_slice() {
            [one] => one.reason,
            _ => reason,
        };
        progress.say(&format!("{} ({})", progress.line(figures), reason.as_str()));
        if !self.left_out.is_empty() {
            let names: Vec<_> = self.left_out.iter().map(String::as_str).collect();
            progress.say(&format!("not recorded: {}", names.join(", ")));
        }
        self.say_dropped(progress);
        match &self.destination {
            Destination::Directory(directory, _) => {
                let path = directory.path().display();
                let recordings = counted(self.written.len() as u64, "recording");
                progress.say(&format!(
                    "{recordings}: print them with `memprobe report {path}`"
                ));
            }
            Destination::File(..) => {
                for path in self.written.iter().flat_map(|written| &written.path) {
                    let viewer = match self.format {
                        RecordingFormat::Compact => ", or convert it with `memprobe export`",
                        RecordingFormat::Json => ", or open it in ui.perfetto.dev",
                    };
                    let file = path.display();
                    progress.say(&format!("print it with `memprobe report {file}`{viewer}"));
                }
            }
        }
    }
}

impl Recorder {
    fn say_dropped(&self, progress: &mut Progress) {
        let dropped: u64 = self.written.iter().map(|written| written.dropped).sum();
        if dropped > 0 {
            let events = counted(dropped, "older event");
            progress.say(&format!(
                "--max-size: {events} dropped; the newest part is whole"
            ));
        }
        if self.written.iter().any(|written| written.exceeds_limit) {
            progress.say(
                "--max-size: the live blocks alone took so much that a file is larger; give a larger size next time",
            );
        }
    }
}

impl ProgressFigures {
    fn add(&mut self, trace: &Trace) {
        self.events += trace.events();
        self.bytes += trace.bytes();
    }
}

fn named(tgid: Tgid, target: &Target) -> String {
    let command = clean(&target.command);
    let short: String = command.chars().take(60).collect();
    format!("PID {} ({short})", tgid.0)
}

/// Header of a recording that begins now.
pub(in crate::commands) fn header(target: Target) -> Header {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    Header {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        start: crate::session::now(),
        wall_start_ms: since_1970.and_then(|time| u64::try_from(time.as_millis()).ok()),
        boot_id: crate::process::boot::boot_id(),
        target,
        probes: Vec::new(),
        from_live_screen: false,
        dump: None,
        history: None,
        dropped: None,
    }
}

/// Recording of one process that is being written.
pub(in crate::commands) enum Trace {
    Compact(Box<CompactWriter<OutputFile>>),
    Json(Box<JsonTrace>),
}

/// Recording as Chrome trace events. Its end has the memory by category over time, for viewers.
pub(in crate::commands) struct JsonTrace {
    writer: TraceWriter<OutputFile>,
    ledgers: AnalyzedLedger<AttributionLedger>,
}

impl Trace {
    /// Begins a recording; `place` names it in errors.
    pub(in crate::commands) fn begin(
        out: OutputFile,
        place: String,
        header: &Header,
        format: RecordingFormat,
    ) -> Result<Self, WriteError> {
        if format == RecordingFormat::Compact {
            let writer = CompactWriter::new(out, place, header)?;
            return Ok(Self::Compact(Box::new(writer)));
        }
        let (target, analysis) = (header.target.clone(), AttributionLedger::new(None));
        Ok(Self::Json(Box::new(JsonTrace {
            writer: TraceWriter::new(out, place, header, Grouping::default())?,
            ledgers: AnalyzedLedger::new(target, header.start, analysis),
        })))
    }

    /// Begins a compact recording.
    fn with_options(
        out: OutputFile,
        place: String,
        header: &Header,
        options: CompactOptions,
    ) -> Result<Self, WriteError> {
        let writer = CompactWriter::with_options(out, place, header, options)?;
        Ok(Self::Compact(Box::new(writer)))
    }

    /// Part that the file has no more; `None` for a format without a limit.
    fn dropped(&self) -> Option<DroppedPart> {
        match self {
            Self::Compact(writer) => Some(writer.dropped()),
            Self::Json(_) => None,
        }
    }

    pub(in crate::commands) fn event(&mut self, event: &Event) -> Result<(), WriteError> {
        match self {
            Self::Compact(writer) => writer.event(event),
            Self::Json(trace) => {
                trace.writer.event(event)?;
                trace.ledgers.apply(event);
                Ok(())
            }
        }
    }

    fn describe(&mut self, header: &Header) -> Result<(), WriteError> {
        match self {
            Self::Compact(writer) => writer.describe(header),
            Self::Json(trace) => trace.writer.describe(header),
        }
    }

    /// Hands what was written to the operating system.
    pub(in crate::commands) fn flush(&mut self) -> Result<(), WriteError> {
        match self {
            Self::Compact(writer) => writer.flush_when_due(Instant::now()),
            Self::Json(trace) => trace.writer.flush(),
        }
    }

    fn events(&self) -> u64 {
        match self {
            Self::Compact(writer) => writer.events(),
            Self::Json(trace) => trace.writer.events(),
        }
    }

    pub(in crate::commands) fn bytes(&self) -> u64 {
        match self {
            Self::Compact(writer) => writer.bytes(),
            Self::Json(trace) => trace.writer.bytes(),
        }
    }

    pub(in crate::commands) fn finish(self, reason: EndReason) -> Result<OutputFile, WriteError> {
        match self {
            Self::Compact(writer) => writer.finish_at(reason, Some(now())),
            Self::Json(trace) => trace.finish(reason),
        }
    }
}

impl JsonTrace {
    fn finish(mut self, reason: EndReason) -> Result<OutputFile, WriteError> {
        let ledger = &self.ledgers.analyses;
        let divided = categories(ledger, &ledger.latest_iterations(0), now());
        self.writer.categories(&divided)?;
        self.writer.finish_at(reason, Some(now()))
    }
}
