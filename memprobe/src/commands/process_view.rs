//! A process that somebody looks at: what feeds its screens, whether it is watched alone or among others.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::watch;

use super::attribution_feed::AttributionFeed;
use super::tensor_reader::TensorReader;
use crate::event::{Event, Tgid, TimeNs};
use crate::ledger::snapshot::{Grouping, Snapshot};
use crate::ledger::{Analysis, Change, Ledger};
use crate::tui::{AttributionQuery, Command, News};

/// Processes of a family or host whose attribution is kept, the last opened first. For the others only lines are kept.
const MOST: usize = 4;

pub(super) struct ProcessView {
    tgid: Tgid,
    /// Frames under which memory is counted.
    pub(super) grouping: Grouping,
    snapshots: watch::Sender<Arc<Snapshot>>,
    pub(super) tensors: TensorReader,
    pub(super) reasons: AttributionFeed,
    pub(super) news: News,
}

impl ProcessView {
    pub(super) fn new(tgid: Tgid, ledger: &Ledger, now: TimeNs) -> Self {
        let first = ledger.snapshot(now, Grouping::default());
        let (snapshots, shown) = watch::channel(Arc::new(first));
        let (tensors, shown_tensors) = TensorReader::new(tgid);
        let (reasons, shown_reasons) = AttributionFeed::new(ledger, now);
        let news = News {
            snapshots: shown,
            tensors: shown_tensors,
            reasons: shown_reasons,
        };
        Self {
            tgid,
            grouping: Grouping::default(),
            snapshots,
            tensors,
            reasons,
            news,
        }
    }

    /// Does what a screen asks for. To end is the caller's.
    pub(super) fn execute(&mut self, command: Command) {
        match command {
            Command::SetGrouping(grouping) => self.grouping = grouping,
            Command::TakeTensors => self.tensors.begin(),
            Command::Explain(wanted) => self.reasons.explain(wanted),
            Command::Quit => {}
        }
    }

    /// Its screens are closed. What is kept for them is kept.
    fn close(&mut self) {
        self.grouping = Grouping::default();
        self.reasons.explain(AttributionQuery::Nothing);
    }

    pub(super) fn show(&mut self, snapshot: Snapshot) {
        let snapshot = Arc::new(snapshot);
        self.reasons.show(&snapshot);
        self.snapshots.send_replace(snapshot);
    }
}

impl Analysis for ProcessView {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.tensors.apply(event, change, ledger);
        self.reasons.apply(event, change, ledger);
    }
}

/// The processes that were opened, the last one first.
#[derive(Default)]
pub(super) struct ViewCache {
    all: Vec<ProcessView>,
    /// The process whose screens are shown.
    pub(super) shown: Option<Tgid>,
}

impl ViewCache {
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

    /// Follows a process from now on, if that is not done yet.
    pub(super) fn follow(&mut self, tgid: Tgid, ledger: &Ledger, now: TimeNs) -> &mut ProcessView {
        let followed = self.all.iter().position(|opened| opened.tgid == tgid);
        let opened = match followed {
            Some(at) => self.all.remove(at),
            None => ProcessView::new(tgid, ledger, now),
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

    /// Waits until the tensors of any of them were read; for ever where that is not being done.
    pub(super) async fn taken(&mut self) {
        std::future::poll_fn(|context| {
            let taken =
                |opened: &mut ProcessView| pin!(opened.tensors.taken()).poll(context).is_ready();
            if self.all.iter_mut().any(taken) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
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
        let mut opened = ProcessView::new(Tgid(7), &model, now);
        opened.execute(Command::Explain(AttributionQuery::Categories));
        opened.show(model.snapshot(now, opened.grouping));
        let reasons = opened.news.reasons.borrow().clone();
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
