//! Controller of the budget: from the cost of the probes to the detail that memprobe can afford. Pure.
//!
//! Time earns credit at the rate of the budget, and the probes spend it. While credit is left, nothing changes: a short
//! burst may cost more than its share. When credit is spent, the controller gives up detail in the order of
//! [`CaptureLevel`], as far as the measured cost of each part says that this is enough. If nothing else is enough, the
//! probes go off until the credit is whole again. Over any ten seconds the cost is therefore at most 1.3 times the
//! budget, and what the probes cost between two steps.
//!
//! They can cost more: they stay for a reading of blocks, and as long as memprobe gets no processor. Then they stay off
//! until they can cost as much again within 1.3 times the budget over ten seconds.

use std::collections::VecDeque;
use std::time::Duration;

use crate::event::{CaptureLevel, ProbeCost, TimeShare};

/// Credit at most: what the budget allows in this time.
const CREDIT: Duration = Duration::from_secs(3);

/// Debt at most, likewise. It bounds a pause, however much was spent.
const DEBT: Duration = Duration::from_secs(30);

/// Time over which the present share is estimated.
const LATELY: Duration = Duration::from_secs(1);

/// Time of observation at a level before the controller gives up more.
const OBSERVED: Duration = Duration::from_millis(200);

/// Time within the budget after which detail comes back, at first and at most. It doubles with each time that the
/// detail has to go again.
const CALM: Duration = Duration::from_secs(5);
const LONGEST_CALM: Duration = Duration::from_secs(80);

/// Part of the budget that the cost may be with the detail that comes back.
const MARGIN: f64 = 0.8;

/// Budgets that [`REPORTED`] may cost with the probes that come back after a pause. The rest of 1.5 is a reserve: they may
/// cost more than the times before.
const MOST: f64 = 1.3;

/// Part of an earlier time with probes that still counts after the next pause.
const REMEMBERED: f64 = 0.9;

/// Time over which the reported share is estimated, and its steps.
const REPORTED: Duration = Duration::from_secs(10);
const REPORT_STEP: Duration = Duration::from_millis(250);

/// Cost in a time.
#[derive(Clone, Copy, Debug, Default)]
struct Observed {
    elapsed: Duration,
    cost: ProbeCost,
}

impl Observed {
    fn add(&mut self, elapsed: Duration, cost: ProbeCost) {
        self.elapsed += elapsed;
        self.cost.add(cost);
    }

    /// Lets all count for a part of what it did.
    fn fade(&mut self, part: f64) {
        self.elapsed = self.elapsed.mul_f64(part);
        self.cost = self.cost.part(part);
    }

    /// Share of the time at a level.
    fn share_at(&self, level: CaptureLevel) -> f64 {
        ratio(self.cost.at(level), self.elapsed)
    }

    fn share(&self) -> f64 {
        ratio(self.cost.total(), self.elapsed)
    }
}

#[derive(Debug)]
pub(crate) struct BudgetController {
    budget: f64,
    /// Levels that change something for this run, mildest first.
    levels: Vec<CaptureLevel>,
    level: CaptureLevel,
    /// Seconds of the process that may still be taken; negative for debt.
    credit: f64,
    /// Since the last change of the level, at the fullest level since the last calm time.
    observed: Observed,
    /// Since the last change of the level, the last second above all.
    lately: Observed,
    since_change: Duration,
    /// Share of what was given up last, by the level that gave it up.
    saved: Vec<(CaptureLevel, f64)>,
    calm: Duration,
    /// Time since detail came back for the last time.
    since_return: Duration,
    /// Credit that the probes spent from one pause to the next: the most of the latest times.
    spent: f64,
    recent: VecDeque<(Duration, Duration)>,
}

impl BudgetController {
    /// `levels` lists the levels that change something; [`CaptureLevel::Full`] is always there.
    pub(crate) fn new(budget: TimeShare, levels: impl IntoIterator<Item = CaptureLevel>) -> Self {
        let budget = budget.ratio();
        let mut levels: Vec<_> = levels.into_iter().chain([CaptureLevel::Full]).collect();
        levels.sort_unstable();
        levels.dedup();
        Self {
            budget,
            levels,
            level: CaptureLevel::Full,
            credit: budget * CREDIT.as_secs_f64(),
            observed: Observed::default(),
            lately: Observed::default(),
            since_change: Duration::ZERO,
            saved: Vec::new(),
            calm: CALM,
            since_return: Duration::MAX,
            spent: 0.0,
            recent: VecDeque::new(),
        }
    }

    pub(crate) fn level(&self) -> CaptureLevel {
        self.level
    }

    pub(crate) fn budget(&self) -> TimeShare {
        TimeShare::from_ratio(self.budget)
    }

    /// Share of the process's time that the probes took in the last seconds, pauses included.
    pub(crate) fn overhead(&self) -> TimeShare {
        let (elapsed, cost) = self.recently();
        TimeShare::of(cost, elapsed)
    }

    /// The last seconds, and what they cost.
    fn recently(&self) -> (Duration, Duration) {
        let recent = self.recent.iter();
        recent.fold(Default::default(), |sum: (Duration, Duration), one| {
            (sum.0 + one.0, sum.1 + one.1)
        })
    }

    /// True if the cost is above the budget and nothing is left to give up.
    pub(crate) fn is_exceeded(&self) -> bool {
        let is_lowest = self.levels.last() == Some(&self.level);
        let is_paused = self.level == CaptureLevel::Paused;
        is_lowest && !is_paused && self.credit <= -self.budget * CREDIT.as_secs_f64()
    }

    /// Gives up pauses: the blocks of a process could not be read after one. Returns the level from now on.
    pub(crate) fn forbid_pauses(&mut self) -> CaptureLevel {
        self.levels.retain(|level| *level != CaptureLevel::Paused);
        self.end_pause()
    }

    /// Ends a pause. Returns the level from now on.
    pub(crate) fn end_pause(&mut self) -> CaptureLevel {
        if self.level == CaptureLevel::Paused {
            self.change(self.deepest());
        }
        self.level
    }

    /// Takes in the cost of the time since the last step. Returns the level from now on.
    pub(crate) fn step(&mut self, elapsed: Duration, cost: ProbeCost) -> CaptureLevel {
        self.note(elapsed, cost.total());
        let earned = self.budget * elapsed.as_secs_f64() - cost.total().as_secs_f64();
        let whole = self.budget * CREDIT.as_secs_f64();
        let most_debt = self.budget * DEBT.as_secs_f64();
        self.credit = (self.credit + earned).clamp(-most_debt, whole);
        self.spent = self.spent.max(whole - self.credit);
        self.observed.add(elapsed, cost);
        let fading = (-elapsed.as_secs_f64() / LATELY.as_secs_f64()).exp();
        self.lately.fade(fading);
        self.lately.add(elapsed, cost);
        self.since_change += elapsed;
        self.since_return = self.since_return.saturating_add(elapsed);
        if self.level == CaptureLevel::Paused {
            if self.credit >= whole && self.can_spend_as_much_again() {
                self.spent *= REMEMBERED;
                self.change(self.deepest());
            }
        } else if self.credit < 0.0 {
            self.give_up();
        } else {
            self.take_back();
        }
        self.level
    }

    /// True if the last seconds leave room for what the probes spend between two pauses, or are all of this pause.
    fn can_spend_as_much_again(&self) -> bool {
        let (_, cost) = self.recently();
        let most = MOST * self.budget * REPORTED.as_secs_f64();
        cost.as_secs_f64() + self.spent <= most || self.since_change >= REPORTED
    }

    fn note(&mut self, elapsed: Duration, cost: Duration) {
        match self.recent.back_mut().filter(|last| last.0 < REPORT_STEP) {
            Some(last) => *last = (last.0 + elapsed, last.1 + cost),
            None => self.recent.push_back((elapsed, cost)),
        }
        while self.recent.len() > 1
            && self
                .recent
                .iter()
                .skip(1)
                .map(|one| one.0)
                .sum::<Duration>()
                >= REPORTED
        {
            self.recent.pop_front();
        }
    }

    /// The level with the least detail at which the probes are on.
    fn deepest(&self) -> CaptureLevel {
        let mut levels = self.levels.iter().rev();
        let is_on = |level: &&CaptureLevel| **level != CaptureLevel::Paused;
        levels.find(is_on).copied().unwrap_or_default()
    }

    /// Gives up the least that brings the cost below the budget, by what was measured since the last change.
    fn give_up(&mut self) {
        let share = self.lately.share();
        let is_new = self.since_change < OBSERVED;
        // A new level gets its time, unless it costs many times the budget.
        if share <= self.budget || is_new && share < 4.0 * self.budget {
            return;
        }
        let lower = self.levels.iter().copied();
        let mut lower = lower.filter(|level| *level > self.level);
        let lowest = self.levels.last().filter(|level| **level > self.level);
        let next = lower.find(|level| {
            let share = self.lately.share_at(*level);
            match level {
                // The only way to know what modules cost is to try.
                CaptureLevel::WithoutModules => share <= 1.25 * self.budget,
                _ => share <= self.budget,
            }
        });
        let Some(next) = next.or(lowest.copied()) else {
            return;
        };
        let saved = share - self.lately.share_at(next);
        self.saved.push((next, saved));
        if self.since_return < 2 * self.calm {
            self.calm = (2 * self.calm).min(LONGEST_CALM);
        }
        self.change(next);
    }

    /// Goes back to the next level with more detail, after a calm time in which the budget had room for it.
    fn take_back(&mut self) {
        if self.observed.elapsed < self.calm {
            return;
        }
        let higher = self.levels.iter().copied();
        let Some(next) = higher.rev().find(|level| *level < self.level) else {
            self.observed = Observed::default();
            if self.since_return >= 2 * self.calm {
                self.calm = CALM;
            }
            return;
        };
        let saved = self.saved.iter().rfind(|(level, _)| *level == self.level);
        let saved = saved.map_or(0.0, |(_, saved)| *saved);
        // What the detail costs changes with the program: it is tried again after the longest time anyway.
        let fits = self.observed.share() + saved <= MARGIN * self.budget;
        let is_late = self.observed.elapsed >= LONGEST_CALM;
        if fits || is_late && self.observed.share() <= MARGIN * self.budget {
            self.saved.retain(|(level, _)| *level != self.level);
            self.since_return = Duration::ZERO;
            self.change(next);
        }
    }

    fn change(&mut self, level: CaptureLevel) {
        self.level = level;
        self.observed = Observed::default();
        self.lately = Observed::default();
        self.since_change = Duration::ZERO;
    }
}

fn ratio(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() {
        0.0
    } else {
        part.as_secs_f64() / whole.as_secs_f64()
    }
}

#[cfg(test)]
mod tests;
