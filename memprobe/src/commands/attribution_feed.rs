//! Attribution for the screen: the analyses of modules, categories and threads.

use std::sync::Arc;

use tokio::sync::watch;

use crate::attribution::AttributionLedger;
use crate::attribution::iterations::Iterations;
use crate::attribution::modules::ModuleLedger;
use crate::attribution::threads::ThreadLedger;
use crate::attribution::views::{categories, layers, modules, threads};
use crate::event::{Event, TimeNs};
use crate::ledger::snapshot::Snapshot;
use crate::ledger::{Analysis, Change, Ledger};
use crate::tui::{AttributionQuery, AttributionTables};

const LATEST: usize = 100;

/// Snapshots for which the table of iterations serves. It goes through all that are kept.
const SERVES: u32 = 5;

pub(super) struct AttributionFeed {
    modules: ModuleLedger,
    categories: AttributionLedger,
    threads: ThreadLedger,
    wanted: AttributionQuery,
    shown: watch::Sender<AttributionTables>,
    /// The last iterations, and for how many snapshots more they serve.
    iterations: Option<(Iterations, u32)>,
}

impl AttributionFeed {
    /// Starts with the state of the process's ledger; returns the views too.
    pub(super) fn new(ledger: &Ledger, now: TimeNs) -> (Self, watch::Receiver<AttributionTables>) {
        let (shown, seen) = watch::channel(AttributionTables::default());
        let categories = AttributionLedger::new(None).with_latest_layers();
        let reasoner = Self {
            modules: ModuleLedger::late(ledger, now),
            categories: categories.with_known(ledger, now),
            threads: ThreadLedger::late(ledger, now),
            wanted: AttributionQuery::default(),
            shown,
            iterations: None,
        };
        (reasoner, seen)
    }

    pub(super) fn begin_anew(&mut self) {
        self.modules = ModuleLedger::default();
        self.categories = AttributionLedger::new(None).with_latest_layers();
        self.threads = ThreadLedger::default();
        self.iterations = None;
    }

    pub(super) fn explain(&mut self, wanted: AttributionQuery) {
        self.wanted = wanted;
        self.iterations = None;
        if wanted == AttributionQuery::Nothing {
            // Whoever asks next is not to see what was so then.
            self.shown.send_replace(AttributionTables::default());
        }
    }

    /// Shows what is wanted, at the moment of a snapshot. What nobody looks at costs nothing.
    pub(super) fn show(&mut self, snapshot: &Snapshot) {
        let reasons = match self.wanted {
            AttributionQuery::Nothing => return,
            AttributionQuery::Modules => {
                AttributionTables::Modules(Arc::new(modules(&self.modules, snapshot)))
            }
            AttributionQuery::Threads => {
                AttributionTables::Threads(Arc::new(threads(&self.threads, snapshot)))
            }
            AttributionQuery::Categories => {
                let (iterations, serves) = self.latest();
                let table = categories(&self.categories, &iterations, snapshot.now);
                self.iterations = Some((iterations, serves - 1));
                AttributionTables::Categories(Arc::new(table))
            }
            AttributionQuery::Layers(which) => {
                let (iterations, serves) = self.latest();
                // Finished iterations do not change, so a table that is still valid is reused.
                let table =
                    (serves == SERVES).then(|| layers(&self.categories, &iterations, which));
                self.iterations = Some((iterations, serves - 1));
                let Some(table) = table else { return };
                AttributionTables::Layers(Arc::new(table))
            }
        };
        self.shown.send_replace(reasons);
    }

    /// The last iterations, and for how many snapshots they serve, with this one.
    fn latest(&mut self) -> (Iterations, u32) {
        let known = self.iterations.take().filter(|(_, serves)| *serves > 0);
        known.unwrap_or_else(|| (self.categories.latest_iterations(LATEST), SERVES))
    }
}

impl Analysis for AttributionFeed {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.modules.apply(event, change, ledger);
        self.categories.apply(event, change, ledger);
        self.threads.apply(event, change, ledger);
    }
}
