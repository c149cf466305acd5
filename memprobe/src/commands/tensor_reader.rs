//! Reads the tensors of a process when the screen asks for them, while its events go on.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::snapshot::{CaptureMode, SnapshotExtent, taken};
use crate::event::tensors::TensorSnapshot;
use crate::event::{Event, Tgid};
use crate::ledger::{Analysis, Change, Ledger};
use crate::tensors::{Sites, explain, named};
use crate::tui::Tensors;

pub(super) struct TensorReader {
    tgid: Tgid,
    shown: watch::Sender<Tensors>,
    taking: Option<JoinHandle<Result<TensorSnapshot>>>,
    /// Heap snapshot, until the events before its moment have been applied.
    read: Option<Result<TensorSnapshot>>,
    sites: Sites,
}

impl TensorReader {
    /// Returns the view too.
    pub(super) fn new(tgid: Tgid) -> (Self, watch::Receiver<Tensors>) {
        let (shown, seen) = watch::channel(Tensors::default());
        let reader = Self {
            tgid,
            shown,
            taking: None,
            read: None,
            sites: Sites::default(),
        };
        (reader, seen)
    }

    pub(super) fn begin(&mut self) {
        if self.taking.is_some() || self.read.is_some() {
            return;
        }
        self.sites = Sites::default();
        self.shown.send_replace(Tensors::Taking);
        let tgid = self.tgid;
        self.taking = Some(tokio::task::spawn_blocking(move || {
            taken(tgid, CaptureMode::Paused, SnapshotExtent::DevicesAndHost)
        }));
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

    /// Publishes a finished heap snapshot and names its unchanged blocks. To be called after all events up to now.
    pub(super) fn show(&mut self, ledger: &Ledger) -> Option<Event> {
        let mut snapshot = match self.read.take()? {
            Ok(snapshot) => snapshot,
            Err(error) => {
                let reason = format!("{error:#}").into();
                self.shown.send_replace(Tensors::Failed(reason));
                return None;
            }
        };
        self.sites.sign(ledger, &mut snapshot);
        self.shown
            .send_replace(Tensors::Taken(Arc::new(explain(&snapshot))));
        let mut names = named(&snapshot, self.tgid);
        self.sites.keep_untouched(snapshot.consistency, &mut names);
        Some(Event::BlockLabels(Arc::new(names)))
    }
}

impl Analysis for TensorReader {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        if self.taking.is_some() || self.read.is_some() {
            self.sites.apply(event, change, ledger);
        }
    }
}
