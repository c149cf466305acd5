//! A process that somebody looks at: what feeds its screens, whether it is watched alone or among others.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use anyhow::{Context as _, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::before_attach::{BaselineLabeler, BaselineOutcome};
use super::saving::{ProcessSaver, SavedFiles};
use super::snapshot::{CaptureMode, read_line, taken};
use super::{Allocators, BaselineReading};
use crate::attribution::AttributionLedger;
use crate::attribution::PeakAnalysis;
use crate::attribution::breakdown::BreakdownLedgers;
use crate::attribution::iterations::Iterations;
use crate::attribution::modules::ModuleLedger;
use crate::attribution::segments::SegmentLedger;
use crate::attribution::views::{categories, layers, modules};
use crate::attribution::waterfall::waterfalls;
use crate::event::tensors::TensorSnapshot;
use crate::event::{CallPaths, Event, Tgid, TimeNs};
use crate::ledger::snapshot::{Grouping, Snapshot, TargetState};
use crate::ledger::{Analysis, Change, CopySize, Ledger};
use crate::tensors::{Sites, explain, named};
use crate::torch::tensors::ReadProgress;
use crate::tui::{AttributionQuery, AttributionTables, Command, News, Tensors};

/// Processes of a family or host whose attribution is kept, the last opened first. For the others only lines are kept.
const MOST: usize = 4;

pub(super) struct ProcessView {
    tgid: Tgid,
    /// Frames under which memory is counted.
    pub(super) grouping: Grouping,
    snapshots: watch::Sender<Arc<Snapshot>>,
    pub(super) tensors: TensorReader,
    pub(super) baseline: BaselineLabeler,
    pub(super) reasons: AttributionFeed,
    pub(super) saver: ProcessSaver,
    /// True if the reading in progress is to be saved.
    saves_next: bool,
}

impl ProcessView {
    pub(super) fn new(tgid: Tgid, ledger: &Ledger, now: TimeNs, reading: BaselineReading) -> Self {
        let first = ledger.snapshot(now, Grouping::default());
        Self {
            tgid,
            grouping: Grouping::default(),
            snapshots: watch::Sender::new(Arc::new(first)),
            tensors: TensorReader::new(tgid),
            baseline: BaselineLabeler::late(tgid, reading, ledger),
            reasons: AttributionFeed::new(ledger, now),
            saver: ProcessSaver::new(tgid),
            saves_next: false,
        }
    }

    pub(super) fn tgid(&self) -> Tgid {
        self.tgid
    }

    pub(super) fn news(&self) -> News {
        News {
            snapshots: self.snapshots.subscribe(),
            tensors: self.tensors.shown.subscribe(),
            reasons: self.reasons.shown.subscribe(),
            saving: self.saver.subscribe(),
        }
    }

    /// Does what a screen asks for. To end, and to change the ledger, is the caller's.
    pub(super) fn execute(&mut self, command: Command, ledger: &Ledger, now: TimeNs) {
        match command {
            Command::SaveRecording if ledger.health.state == TargetState::Exited => {
                self.saver
                    .say("the process has ended: nothing more can be recorded");
            }
            Command::SaveRecording => self.saver.toggle(ledger, now),
            Command::SaveTensors if self.tensors.is_reading() => {
                self.saves_next = true;
                self.saver.say("w: saved as soon as it is read");
            }
            Command::SaveTensors => self.save_tensors(),
            Command::SetGrouping(grouping) => self.grouping = grouping,
            Command::TakeTensors => self.tensors.begin(),
            Command::Explain(wanted) => self.reasons.shown.explain(wanted),
            Command::ResetPeaks | Command::Seek(_) | Command::Quit => {}
        }
    }

    fn save_tensors(&mut self) {
        match self.tensors.last.clone() {
            Some(snapshot) => self.saver.save_tensors(&snapshot),
            None => self.saver.say("nothing was read yet to save"),
        }
    }

    /// Shows tensors that were read, and saves them if that was asked for meanwhile. To be called after all events up
    /// to now. `add_calls` adds the modules that were called so far. Returns the names of blocks.
    pub(super) fn show_tensors(
        &mut self,
        ledger: &Ledger,
        add_calls: impl FnOnce(&mut CallPaths),
    ) -> Option<Event> {
        let shown = self.tensors.show(ledger, add_calls)?;
        let saves = std::mem::take(&mut self.saves_next);
        match shown {
            Ok(names) => {
                if saves {
                    self.save_tensors();
                }
                Some(names)
            }
            Err(_) if saves => {
                self.saver.say("not saved: the reading failed");
                None
            }
            Err(_) => None,
        }
    }

    /// Begins a reading of memory from before attach where one is due, and ends one that is complete. To be called
    /// after events were applied.
    pub(super) fn label_baseline(
        &mut self,
        ledger: &Ledger,
        is_settled: bool,
        add_calls: impl FnOnce(&mut CallPaths),
    ) -> Option<BaselineOutcome> {
        self.baseline.begin_if_due(ledger);
        self.baseline.place(ledger, is_settled, add_calls)
    }

    /// Waits until the process was read for either purpose; for ever where it is not being read.
    pub(super) async fn taken(&mut self) {
        tokio::select! {
            () = self.tensors.taken() => {}
            () = self.baseline.taken() => {}
        }
    }

    /// Forgets what it knows of the program, which another one replaces.
    pub(super) fn begin_anew(&mut self) {
        self.reasons.begin_anew();
        self.baseline.begin_anew();
    }

    fn close(&mut self) {
        self.grouping = Grouping::default();
        self.reasons.shown.explain(AttributionQuery::Nothing);
    }

    pub(super) fn show(&mut self, mut snapshot: Snapshot, ledger: &Ledger) {
        for device in &mut snapshot.devices {
            device.before_attach.is_being_read = self.baseline.is_reading();
        }
        let snapshot = Arc::new(snapshot);
        self.saver.refresh();
        if self.tensors.taking.is_some() {
            self.tensors.show_progress();
        }
        let AttributionFeed { analyses, shown } = &mut self.reasons;
        shown.show(analyses, &snapshot, ledger, self.grouping);
        self.snapshots.send_replace(snapshot);
    }
}

impl Analysis for ProcessView {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.tensors.apply(event, change, ledger);
        self.baseline.apply(event);
        self.reasons.apply(event, change, ledger);
        self.saver.apply(event, change, ledger);
    }
}

/// The processes that were opened, the last one first.
#[derive(Default)]
pub(super) struct ViewCache {
    reading: BaselineReading,
    all: Vec<ProcessView>,
    /// The process whose screens are shown.
    pub(super) shown: Option<Tgid>,
}

impl ViewCache {
    pub(super) fn new(reading: BaselineReading) -> Self {
        Self {
            reading,
            ..Self::default()
        }
    }

    pub(super) fn open(&mut self, tgid: Tgid) {
        self.close();
        self.shown = Some(tgid);
    }

    pub(super) fn close(&mut self) {
        let shown = self.shown.take();
        if let Some(opened) = shown.and_then(|tgid| self.of(tgid)) {
            opened.close();
        }
    }

    pub(super) fn follow(&mut self, tgid: Tgid, ledger: &Ledger, now: TimeNs) -> &mut ProcessView {
        let followed = self.all.iter().position(|opened| opened.tgid == tgid);
        let opened = match followed {
            Some(at) => self.all.remove(at),
            None => ProcessView::new(tgid, ledger, now, self.reading),
        };
        self.all.truncate(MOST - 1);
        self.all.insert(0, opened);
        &mut self.all[0]
    }

    pub(super) fn of(&mut self, tgid: Tgid) -> Option<&mut ProcessView> {
        self.all.iter_mut().find(|opened| opened.tgid == tgid)
    }

    /// Lets go of those that are not there any more, but for the one that is shown.
    pub(super) fn keep(&mut self, is_there: impl Fn(Tgid) -> bool) {
        let shown = self.shown;
        self.all
            .retain(|opened| Some(opened.tgid) == shown || is_there(opened.tgid));
    }

    pub(super) fn each(&mut self) -> impl Iterator<Item = (Tgid, &mut ProcessView)> {
        self.all.iter_mut().map(|opened| (opened.tgid, opened))
    }

    /// Ends the recordings in progress, and returns all files that were saved.
    pub(super) fn finish_saving(&mut self) -> Vec<SavedFiles> {
        let all = self.all.iter_mut();
        all.map(|opened| opened.saver.finish()).collect()
    }

    /// Waits until any of them was read; for ever where that is not being done.
    pub(super) async fn taken(&mut self) {
        std::future::poll_fn(|context| {
            let taken = |opened: &mut ProcessView| pin!(opened.taken()).poll(context).is_ready();
            if self.all.iter_mut().any(taken) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

/// Iterations in a table of categories.
const LATEST: usize = 100;
/// Snapshots for which the table of iterations serves. It goes through all that are kept.
const SERVES: u32 = 5;

/// Analyses for the screens.
#[derive(Clone, Debug)]
pub(super) struct ScreenAnalyses {
    modules: ModuleLedger,
    pub(super) categories: AttributionLedger,
    breakdowns: BreakdownLedgers,
    segments: SegmentLedger,
}

impl Default for ScreenAnalyses {
    /// Begins before the first event.
    fn default() -> Self {
        Self {
            modules: ModuleLedger::default(),
            categories: AttributionLedger::new(None).with_latest_layers(),
            breakdowns: BreakdownLedgers::default(),
            segments: SegmentLedger::default(),
        }
    }
}

impl ScreenAnalyses {
    /// Begins with the state of the process's ledger.
    fn late(ledger: &Ledger, now: TimeNs) -> Self {
        let categories = AttributionLedger::new(None).with_latest_layers();
        Self {
            modules: ModuleLedger::late(ledger, now),
            categories: categories.with_known(ledger, now),
            breakdowns: BreakdownLedgers::late(ledger, now),
            segments: SegmentLedger::late(ledger),
        }
    }
}

impl CopySize for ScreenAnalyses {
    fn copy_bytes(&self) -> u64 {
        let Self {
            modules,
            categories,
            breakdowns,
            segments,
        } = self;
        let sizes = [modules.copy_bytes(), categories.copy_bytes()];
        let others = [breakdowns.copy_bytes(), segments.copy_bytes()];
        sizes.into_iter().chain(others).sum()
    }
}

impl Analysis for ScreenAnalyses {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        let Self {
            modules,
            categories,
            breakdowns,
            segments,
        } = self;
        categories.apply(event, change, ledger);
        modules.apply(event, change, ledger, categories);
        breakdowns.apply(event, change, ledger, categories);
        segments.apply(event, change, ledger);
    }
}

/// Attribution for the screens, as far as it is shown.
pub(super) struct AttributionFeed {
    analyses: ScreenAnalyses,
    shown: AttributionShown,
}

/// Attribution table that a screen shows.
#[derive(Default)]
pub(super) struct AttributionShown {
    wanted: AttributionQuery,
    shown: watch::Sender<AttributionTables>,
    /// The last iterations, and for how many snapshots more they serve.
    iterations: Option<(Iterations, u32)>,
}

impl AttributionFeed {
    fn new(ledger: &Ledger, now: TimeNs) -> Self {
        Self {
            analyses: ScreenAnalyses::late(ledger, now),
            shown: AttributionShown::default(),
        }
    }

    pub(super) fn begin_anew(&mut self) {
        self.analyses = ScreenAnalyses::default();
        self.shown.forget();
    }
}

impl AttributionShown {
    pub(super) fn subscribe(&self) -> watch::Receiver<AttributionTables> {
        self.shown.subscribe()
    }

    pub(super) fn explain(&mut self, wanted: AttributionQuery) {
        self.wanted = wanted;
        self.iterations = None;
        if wanted == AttributionQuery::Nothing {
            // Whoever asks next is not to see what was so then.
            self.shown.send_replace(AttributionTables::default());
        }
    }

    /// Forgets the iterations: another moment is shown.
    pub(super) fn forget(&mut self) {
        self.iterations = None;
    }

    /// Shows what is wanted, at the moment of a snapshot. What nobody looks at costs nothing.
    pub(super) fn show(
        &mut self,
        analyses: &ScreenAnalyses,
        snapshot: &Snapshot,
        ledger: &Ledger,
        grouping: Grouping,
    ) {
        let reasons = match self.wanted {
            AttributionQuery::Nothing => return,
            AttributionQuery::Modules => {
                AttributionTables::Modules(Arc::new(modules(&analyses.modules, snapshot)))
            }
            AttributionQuery::Breakdown(breakdown) => {
                let table = analyses.breakdowns.devices(breakdown, snapshot);
                AttributionTables::Breakdown(breakdown, Arc::new(table))
            }
            AttributionQuery::Segments => {
                AttributionTables::Segments(Arc::new(analyses.segments.maps(ledger, snapshot)))
            }
            AttributionQuery::Owners => {
                let maps = analyses.segments.maps(ledger, snapshot);
                let owners = waterfalls(ledger, snapshot, &maps, grouping);
                AttributionTables::Owners(Arc::new(owners))
            }
            AttributionQuery::Categories => {
                let (iterations, serves) = self.latest(analyses);
                let table = categories(&analyses.categories, &iterations, snapshot.now);
                self.iterations = Some((iterations, serves - 1));
                AttributionTables::Categories(Arc::new(table))
            }
            AttributionQuery::Layers(which) => {
                let (iterations, serves) = self.latest(analyses);
                // Finished iterations do not change, so a table that is still valid is reused.
                let table =
                    (serves == SERVES).then(|| layers(&analyses.categories, &iterations, which));
                self.iterations = Some((iterations, serves - 1));
                let Some(table) = table else { return };
                AttributionTables::Layers(Arc::new(table))
            }
        };
        self.shown.send_replace(reasons);
    }

    /// The last iterations, and for how many snapshots they serve, with this one.
    fn latest(&mut self, analyses: &ScreenAnalyses) -> (Iterations, u32) {
        let known = self.iterations.take().filter(|(_, serves)| *serves > 0);
        known.unwrap_or_else(|| (analyses.categories.latest_iterations(LATEST), SERVES))
    }
}

impl Analysis for AttributionFeed {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.analyses.apply(event, change, ledger);
    }
}

/// Reads the tensors of a process when the screen asks for them, while its events go on.
pub(super) struct TensorReader {
    tgid: Tgid,
    shown: watch::Sender<Tensors>,
    taking: Option<JoinHandle<Result<TensorSnapshot>>>,
    /// Heap snapshot, until the events before its moment have been applied.
    read: Option<Result<TensorSnapshot>>,
    /// The last heap snapshot, with the lines of its blocks.
    pub(super) last: Option<Arc<TensorSnapshot>>,
    sites: Sites,
    progress: Arc<ReadProgress>,
}

/// A reading failed; the screen has the reason.
struct FailedReading;

impl TensorReader {
    fn new(tgid: Tgid) -> Self {
        Self {
            tgid,
            shown: watch::Sender::default(),
            taking: None,
            read: None,
            last: None,
            sites: Sites::default(),
            progress: Arc::default(),
        }
    }

    fn begin(&mut self) {
        if self.is_reading() {
            return;
        }
        self.sites = Sites::default();
        let progress = Arc::new(ReadProgress::default());
        self.progress = Arc::clone(&progress);
        self.show_progress();
        let tgid = self.tgid;
        self.taking = Some(tokio::task::spawn_blocking(move || {
            let (mode, extent) = (CaptureMode::Paused, Allocators::CudaAndCpu);
            taken(tgid, mode, extent, &progress)
        }));
    }

    fn is_reading(&self) -> bool {
        self.taking.is_some() || self.read.is_some()
    }

    fn show_progress(&self) {
        let line = read_line(&self.progress);
        self.shown.send_replace(Tensors::Taking(line.into()));
    }

    /// Waits until the process was read; for ever where that is not being done.
    pub(super) async fn taken(&mut self) {
        let Some(taking) = &mut self.taking else {
            return std::future::pending().await;
        };
        let outcome = taking.await.context("reading the process");
        self.taking = None;
        self.read = Some(outcome.and_then(|outcome| outcome));
    }

    /// Publishes a finished reading: a heap snapshot, whose unchanged blocks it names, or a failure.
    fn show(
        &mut self,
        ledger: &Ledger,
        add_calls: impl FnOnce(&mut CallPaths),
    ) -> Option<Result<Event, FailedReading>> {
        let mut snapshot = match self.read.take()? {
            Ok(snapshot) => snapshot,
            Err(error) => {
                let reason = format!("{error:#}").into();
                self.shown.send_replace(Tensors::Failed(reason));
                return Some(Err(FailedReading));
            }
        };
        self.sites.sign(ledger, &mut snapshot);
        let snapshot = Arc::new(snapshot);
        let table = explain(Arc::clone(&snapshot));
        self.shown.send_replace(Tensors::Taken(Arc::new(table)));
        let mut names = named(&snapshot, self.tgid);
        let mut calls = CallPaths::default();
        add_calls(&mut calls);
        names.resolve_calls(&calls);
        self.sites.keep_untouched(snapshot.consistency, &mut names);
        self.last = Some(snapshot);
        Some(Ok(Event::BlockLabels(Arc::new(names))))
    }
}

impl Analysis for TensorReader {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        if self.is_reading() {
            self.sites.apply(event, change, ledger);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::allocation_groups::samples::learning;
    use crate::event::Bytes;
    use crate::event::Target;
    use crate::tui::AttributionTables;

    fn followed(cache: &ViewCache) -> Vec<u32> {
        cache.all.iter().map(|opened| opened.tgid.0).collect()
    }

    fn open(cache: &mut ViewCache, tgid: u32) {
        let ledger = Ledger::new(Target::default(), TimeNs(0));
        cache.open(Tgid(tgid));
        cache.follow(Tgid(tgid), &ledger, TimeNs(0));
    }

    #[test]
    fn those_that_were_opened_last_are_followed_and_no_more() {
        let mut cache = ViewCache::default();
        (1..=5).for_each(|tgid| open(&mut cache, tgid));
        assert_eq!(followed(&cache), [5, 4, 3, 2]);
        open(&mut cache, 3);
        assert_eq!(followed(&cache), [3, 5, 4, 2]);
        assert!(cache.of(Tgid(1)).is_none());
    }

    #[test]
    fn an_ended_process_stays_while_it_is_shown() {
        let mut cache = ViewCache::default();
        (1..=2).for_each(|tgid| open(&mut cache, tgid));
        cache.keep(|_| false);
        assert_eq!((followed(&cache), cache.shown), (vec![2], Some(Tgid(2))));
        cache.close();
        cache.keep(|_| false);
        assert!(followed(&cache).is_empty() && cache.shown.is_none());
    }

    #[test]
    fn views_of_a_process_opened_late_add_up() {
        let model = learning().play(|_, _, _| {});
        let now = TimeNs(9_000_000_000);
        let mut opened = ProcessView::new(Tgid(7), &model, now, BaselineReading::Off);
        opened.execute(Command::Explain(AttributionQuery::Categories), &model, now);
        opened.show(model.snapshot(now, opened.grouping), &model);
        let reasons = opened.news().reasons.borrow().clone();
        let AttributionTables::Categories(devices) = reasons else {
            unreachable!("categories were asked for")
        };
        let live: i64 = devices[0].rows.iter().map(|row| row.live).sum();
        assert_eq!(
            Some(Bytes(live as u64)),
            model.totals().map(|it| it.allocated)
        );
        opened.close();
        assert_eq!(opened.grouping, Grouping::default());
    }
}
