//! Call sites of one device: stacks, and the lines that they are counted under.
//!
//! Both groupings are updated on every event, because the peak of a sum is not the sum of peaks.
//! This costs one more row per event, and switching the grouping is free.

use std::collections::HashMap;
use std::sync::Arc;

use super::caps::Budget;
use super::grouping;
use super::names::Names;
use super::rate::{Interval, Rate};
use super::snapshot::{Grouping, LineRow, Site, StackRow};
use crate::event::{Bytes, Context, NoStack, Stack, StackId, StackKind, Tid};

/// Identifies a stack that has allocated on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct CallSiteId(u32);

/// Counters of a stack or a line.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    live: u64,
    peak: u64,
    blocks: u64,
    allocs: u64,
    alloc_bytes: u64,
}

impl Tally {
    fn count(&mut self, size: u64) {
        self.allocs = self.allocs.saturating_add(1);
        self.alloc_bytes = self.alloc_bytes.saturating_add(size);
    }

    fn hold(&mut self, size: u64) {
        self.live = self.live.saturating_add(size);
        self.peak = self.peak.max(self.live);
        self.blocks = self.blocks.saturating_add(1);
    }

    fn release(&mut self, size: u64) {
        self.live = self.live.saturating_sub(size);
        self.blocks = self.blocks.saturating_sub(1);
    }
}

/// A stack that has allocated.
#[derive(Debug)]
struct CallSite {
    id: StackId,
    stack: Arc<Stack>,
    /// Index of its line for each grouping, as in [`CallSites::tables`].
    lines: [u32; 2],
    tally: Tally,
}

/// A row of the table of lines.
#[derive(Debug)]
struct Line {
    site: Site,
    tally: Tally,
    rate: Rate,
}

/// The lines of one grouping.
#[derive(Debug, Default)]
struct Table {
    lines: Vec<Line>,
    by_site: HashMap<Site, u32>,
}

impl Table {
    fn line_of(&mut self, site: Site) -> u32 {
        if let Some(line) = self.by_site.get(&site) {
            return *line;
        }
        let line = index(self.lines.len());
        self.by_site.insert(site.clone(), line);
        self.lines.push(Line {
            site,
            tally: Tally::default(),
            rate: Rate::default(),
        });
        line
    }
}

/// Stacks that have allocated on a device, and their lines.
#[derive(Debug, Default)]
pub(super) struct CallSites {
    holders: Vec<CallSite>,
    by_stack: HashMap<StackId, CallSiteId>,
    /// Holders without a known stack, by thread name.
    by_thread: HashMap<Arc<str>, CallSiteId>,
    /// Holder for stacks beyond the limit.
    overflow: Option<CallSiteId>,
    /// Indexed by [`slot`] of the grouping.
    tables: [Table; 2],
}

/// Array index of a grouping.
fn slot(grouping: Grouping) -> usize {
    match grouping {
        Grouping::User => 0,
        Grouping::Innermost => 1,
    }
}

/// Converts a length to an index. The caps keep every store far below 2^32 entries.
fn index(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl CallSites {
    /// Returns the holder for an allocation by `tid` with stack `id`, adding it if it is new.
    pub(super) fn holder_of(
        &mut self,
        id: StackId,
        tid: Tid,
        names: &Names,
        budget: &mut Budget,
    ) -> CallSiteId {
        if let Some(holder) = self.by_stack.get(&id) {
            return *holder;
        }
        match names.stack(id) {
            Some(_) if !budget.take_holder() => self.overflow(),
            Some(stack) => {
                let holder = self.add(id, Arc::clone(stack), None);
                self.by_stack.insert(id, holder);
                holder
            }
            None if names.stacks_refused() => self.overflow(),
            None => self.holder_of_thread(names.thread(tid), budget),
        }
    }

    fn holder_of_thread(&mut self, thread: Arc<str>, budget: &mut Budget) -> CallSiteId {
        if let Some(holder) = self.by_thread.get(&thread) {
            return *holder;
        }
        if !budget.take_holder() {
            return self.overflow();
        }
        let holder = self.add(StackId::NONE, lost_stack(Arc::clone(&thread)), None);
        self.by_thread.insert(thread, holder);
        holder
    }

    fn overflow(&mut self) -> CallSiteId {
        if let Some(holder) = self.overflow {
            return holder;
        }
        let site = Site::NoLine {
            thread: "".into(),
            reason: "too many stacks",
        };
        let holder = self.add(StackId::NONE, lost_stack("".into()), Some(site));
        self.overflow = Some(holder);
        holder
    }

    fn add(&mut self, id: StackId, stack: Arc<Stack>, site: Option<Site>) -> CallSiteId {
        let [user, innermost] = [Grouping::User, Grouping::Innermost].map(|grouping| {
            let site = site
                .clone()
                .unwrap_or_else(|| grouping::site(&stack, grouping));
            self.tables[slot(grouping)].line_of(site)
        });
        let holder = CallSiteId(index(self.holders.len()));
        let lines = [user, innermost];
        self.holders.push(CallSite {
            id,
            stack,
            lines,
            tally: Tally::default(),
        });
        holder
    }

    /// Handles a redefinition: `id` now identifies another stack. Earlier blocks stay with the old
    /// one.
    pub(super) fn forget(&mut self, id: StackId) {
        self.by_stack.remove(&id);
    }

    /// Id of a holder's stack; [`StackId::NONE`] if it has none.
    pub(super) fn stack_of(&self, holder: CallSiteId) -> StackId {
        self.holders
            .get(holder.0 as usize)
            .map_or(StackId::NONE, |holder| holder.id)
    }

    /// A holder's stack, as of its first allocation; `None` if it has none.
    pub(super) fn stack(&self, holder: CallSiteId) -> Option<&Arc<Stack>> {
        let holder = self.holders.get(holder.0 as usize)?;
        (holder.id != StackId::NONE).then_some(&holder.stack)
    }

    /// The line that counts a holder.
    pub(super) fn site_of(&self, holder: CallSiteId, grouping: Grouping) -> Option<&Site> {
        let line = self.holders.get(holder.0 as usize)?.lines[slot(grouping)];
        let lines = &self.tables[slot(grouping)].lines;
        lines.get(line as usize).map(|line| &line.site)
    }

    /// Counts an allocation of `size` bytes.
    pub(super) fn count(&mut self, holder: CallSiteId, size: Bytes) {
        self.each_tally(holder, |tally| tally.count(size.0));
    }

    /// Adds a live block of `size` bytes.
    pub(super) fn hold(&mut self, holder: CallSiteId, size: Bytes) {
        self.each_tally(holder, |tally| tally.hold(size.0));
    }

    /// Removes a live block of `size` bytes.
    pub(super) fn release(&mut self, holder: CallSiteId, size: Bytes) {
        self.each_tally(holder, |tally| tally.release(size.0));
    }

    fn each_tally(&mut self, holder: CallSiteId, change: impl Fn(&mut Tally)) {
        let Some(holder) = self.holders.get_mut(holder.0 as usize) else {
            return;
        };
        change(&mut holder.tally);
        for (table, line) in self.tables.iter_mut().zip(holder.lines) {
            if let Some(line) = table.lines.get_mut(line as usize) {
                change(&mut line.tally);
            }
        }
    }

    /// Updates the rates.
    pub(super) fn tick(&mut self, interval: Interval) {
        for line in self.tables.iter_mut().flat_map(|table| &mut table.lines) {
            line.rate.tick(line.tally.allocs, interval);
        }
    }

    /// Starts measuring rates; earlier allocations do not count.
    pub(super) fn start_rates(&mut self) {
        for line in self.tables.iter_mut().flat_map(|table| &mut table.lines) {
            line.rate.start(line.tally.allocs);
        }
    }

    /// The line that holds most, and its bytes; `None` if nothing is live.
    pub(super) fn top(&self, grouping: Grouping) -> Option<(&Site, Bytes)> {
        let lines = self.tables[slot(grouping)].lines.iter();
        let top = lines.max_by_key(|line| line.tally.live)?;
        (top.tally.live > 0).then_some((&top.site, Bytes(top.tally.live)))
    }

    pub(super) fn rows(&self, grouping: Grouping) -> Vec<LineRow> {
        let slot = slot(grouping);
        let mut rows: Vec<_> = self.tables[slot].lines.iter().map(line_row).collect();
        for holder in &self.holders {
            if let Some(row) = rows.get_mut(holder.lines[slot] as usize) {
                row.stacks.push(stack_row(holder));
            }
        }
        for row in &mut rows {
            row.stacks
                .sort_by_key(|stack| std::cmp::Reverse((stack.live, stack.peak)));
        }
        rows
    }
}

/// Placeholder for a stack that never arrived.
fn lost_stack(thread: Arc<str>) -> Arc<Stack> {
    let kind = StackKind::Unknown {
        thread,
        reason: NoStack::Lost,
    };
    Arc::new(Stack {
        kind,
        frames: Vec::new(),
        truncated: false,
        context: Context::default(),
    })
}

fn line_row(line: &Line) -> LineRow {
    LineRow {
        site: line.site.clone(),
        live: Bytes(line.tally.live),
        peak: Bytes(line.tally.peak),
        live_blocks: line.tally.blocks,
        allocs: line.tally.allocs,
        alloc_bytes: Bytes(line.tally.alloc_bytes),
        allocs_per_second: line.rate.per_second(),
        stacks: Vec::new(),
    }
}

fn stack_row(holder: &CallSite) -> StackRow {
    StackRow {
        stack: Arc::clone(&holder.stack),
        live: Bytes(holder.tally.live),
        peak: Bytes(holder.tally.peak),
        live_blocks: holder.tally.blocks,
        allocs: holder.tally.allocs,
    }
}
