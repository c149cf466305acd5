//! Budget of a session: measures what the probes cost, and says which detail can be afforded.
//!
//! All processes of a session share their probes, so the one that pays most decides.

mod controller;

use std::time::{Duration, Instant};

use anyhow::Result;
use hashbrown::{HashMap, HashSet};

use self::controller::BudgetController;
use crate::event::{CaptureChange, CaptureLevel, GraphTracking, Tgid, TimeShare};
use crate::probe::catalog::{Allocators, Detail};
use crate::probe::loader::{Loader, Modules, Wanted};
use crate::probe::overhead::ProbeMeter;

/// Interval of measuring.
const STEP: Duration = Duration::from_millis(20);

/// Interval of telling the estimate.
const REPORT: Duration = Duration::from_secs(1);

/// Part of the count of a process's records that remains from one step to the next.
const REMEMBERED: f64 = 0.95;

pub(super) struct OverheadBudget {
    controller: BudgetController,
    meter: ProbeMeter,
    /// The level that is in force.
    pub(super) level: CaptureLevel,
    measured: Instant,
    reported: Instant,
    /// Records of each process: those read so far, and the recent ones.
    records: HashMap<Tgid, (u64, f64)>,
    has_warned: bool,
}

/// Next task of the session.
pub(super) enum BudgetStep {
    /// The level has to change.
    Change,
    /// The estimate is to be told.
    Report,
}

impl OverheadBudget {
    /// Measures the trap; the probes are in place.
    pub(super) fn start(
        share: TimeShare,
        wanted: Wanted,
        loader: &mut Loader,
        now: Instant,
    ) -> Result<Self> {
        let levels = [
            (wanted.detail > Detail::Lines, CaptureLevel::WithoutShapes),
            (
                wanted.graph == GraphTracking::On,
                CaptureLevel::WithoutGraph,
            ),
            (
                loader.modules == Modules::Told,
                CaptureLevel::WithoutModules,
            ),
            // PyTorch's CPU allocator has no table from which to catch up.
            (wanted.allocators == Allocators::Cuda, CaptureLevel::Paused),
        ];
        let levels = levels.into_iter().filter(|(is_there, _)| *is_there);
        Ok(Self {
            controller: BudgetController::new(share, levels.map(|(_, level)| level)),
            meter: ProbeMeter::start(loader)?,
            level: CaptureLevel::Full,
            measured: now,
            reported: now,
            records: HashMap::new(),
            has_warned: false,
        })
    }

    /// True if it is time to measure.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.measured) >= STEP
    }

    /// Measures. `records` are the processes with the number of their records so far.
    pub(super) fn step(
        &mut self,
        loader: &Loader,
        stepped: &HashSet<&str>,
        records: impl Iterator<Item = (Tgid, u64)>,
        now: Instant,
    ) -> Option<BudgetStep> {
        let elapsed = now.duration_since(self.measured);
        self.measured = now;
        let cost = self.meter.take(loader, stepped);
        let part = self.highest_part(records);
        self.controller.step(elapsed, cost.part(part));
        if self.controller.level() != self.level {
            return Some(BudgetStep::Change);
        }
        if now.duration_since(self.reported) >= REPORT {
            self.reported = now;
            return Some(BudgetStep::Report);
        }
        None
    }

    /// Part of the cost that the process with most records pays; 1 without any records.
    fn highest_part(&mut self, records: impl Iterator<Item = (Tgid, u64)>) -> f64 {
        let before = std::mem::take(&mut self.records);
        let (mut all, mut most) = (0.0, 0.0f64);
        for (tgid, count) in records {
            let (last, recent) = before.get(&tgid).copied().unwrap_or_default();
            let recent = recent * REMEMBERED + count.saturating_sub(last) as f64;
            self.records.insert(tgid, (count, recent));
            all += recent;
            most = most.max(recent);
        }
        if all > 0.0 { most / all } else { 1.0 }
    }

    /// The level that can be afforded.
    pub(super) fn wanted_level(&self) -> CaptureLevel {
        self.controller.level()
    }

    /// The state of the budget as an event of a process.
    pub(super) fn change(&self, tgid: Tgid) -> CaptureChange {
        CaptureChange {
            time: super::now(),
            tgid,
            level: self.level,
            overhead: self.controller.overhead(),
            budget: self.controller.budget(),
        }
    }

    /// Leaves the probes on from now on, whatever they cost. Returns the level with the least detail.
    pub(super) fn forbid_pauses(&mut self) -> CaptureLevel {
        self.controller.forbid_pauses()
    }

    /// Ends a pause before it is paid for. Returns the level from now on.
    pub(super) fn end_pause(&mut self) -> CaptureLevel {
        self.controller.end_pause()
    }

    /// Sentence for people, once, if the budget cannot be kept.
    pub(super) fn warning(&mut self) -> Option<String> {
        if self.has_warned || !self.controller.is_exceeded() {
            return None;
        }
        self.has_warned = true;
        let (budget, overhead) = (self.controller.budget(), self.controller.overhead());
        Some(format!(
            "--max-overhead {budget} cannot be kept (now {overhead}): the blocks of an allocator without a table that \
             memprobe can read would be lost while the probes are off. To spare the process, end memprobe"
        ))
    }
}
