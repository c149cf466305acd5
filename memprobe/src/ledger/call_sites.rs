//! Call sites of one device: stacks, and the lines that they are counted under.
//!
//! Both groupings are updated on every event, because the peak of a sum is not the sum of peaks.
//! This costs one more row per event, and switching the grouping is free.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::block_store::BlockStore;
use super::definitions::{Definitions, InternedStack, SiteRef, StackRef, lost_stack, slot};
use super::dense::{Dense as _, PerStack};
use super::growth::{Floor, GrowthRecorder};
use super::keyframe::{CallSiteKey, CallSiteKeyframe, CallSitesKeyframe, TallyKeyframe};
use super::rate::{Interval, MovingRate};
use super::snapshot::{Grouping, LineRow, Site, StackRow};
use crate::event::{Bytes, Stack, Tid, TimeNs};

/// Identifies a stack that has allocated on a device. Counts from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CallSiteId(NonZeroU32);

impl CallSiteId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// Place among the call sites of its device.
    pub(super) fn place(self) -> u32 {
        self.0.get() - 1
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) live: u64,
    pub(crate) peak: u64,
    pub(crate) blocks: u64,
    pub(crate) allocs: u64,
    pub(crate) alloc_bytes: u64,
}

impl Tally {
    /// Counts an allocation, and its block if it is tracked.
    pub(crate) fn count(&mut self, size: u64, is_tracked: bool) {
        self.allocs = self.allocs.saturating_add(1);
        self.alloc_bytes = self.alloc_bytes.saturating_add(size);
        if is_tracked {
            self.hold(size);
        }
    }

    /// Adds a live block without an allocation.
    pub(crate) fn hold(&mut self, size: u64) {
        self.live = self.live.saturating_add(size);
        self.peak = self.peak.max(self.live);
        self.blocks = self.blocks.saturating_add(1);
    }

    pub(crate) fn release(&mut self, size: u64) {
        self.live = self.live.saturating_sub(size);
        self.blocks = self.blocks.saturating_sub(1);
    }

    pub(super) fn keyframe(&self) -> TallyKeyframe {
        TallyKeyframe {
            peak: self.peak,
            allocs: self.allocs,
            alloc_bytes: self.alloc_bytes,
        }
    }

    /// Adds the counts of a keyframe, apart from the peak.
    pub(super) fn add_counts(&mut self, counts: &TallyKeyframe) {
        self.allocs = self.allocs.saturating_add(counts.allocs);
        self.alloc_bytes = self.alloc_bytes.saturating_add(counts.alloc_bytes);
    }

    /// Adds a live block of a keyframe, which has been counted as an allocation.
    pub(super) fn add_live(&mut self, size: u64) {
        self.live = self.live.saturating_add(size);
        self.blocks = self.blocks.saturating_add(1);
    }
}

#[derive(Clone, Debug)]
struct CallSite {
    stack: Arc<Stack>,
    /// Index of its line for each grouping, as in [`CallSites::tables`].
    lines: [u32; 2],
    tally: Tally,
}

/// Line as events change it. Rate and growth, which change at ticks, are kept apart: each event then touches less memory.
#[derive(Clone, Debug)]
struct Line {
    site: SiteRef,
    /// Number of its call sites.
    call_sites: u32,
    tally: Tally,
    floor: Floor,
}

#[derive(Clone, Debug, Default)]
struct Table {
    lines: Vec<Line>,
    /// Rate of allocations of each line.
    rates: Vec<MovingRate>,
    /// Growth of each line.
    growth: Vec<GrowthRecorder>,
    /// First end of an interval in `growth`; 0 if a line has no interval yet.
    growth_due: TimeNs,
    by_site: hashbrown::HashMap<SiteRef, u32>,
}

impl Table {
    /// Counts a new call site of a line, and returns the line's index.
    fn count_call_site(&mut self, site: SiteRef) -> u32 {
        let next = index(self.lines.len());
        let line = *self.by_site.entry(site).or_insert(next);
        if line == next {
            self.lines.push(Line {
                site,
                call_sites: 0,
                tally: Tally::default(),
                floor: Floor::default(),
            });
            self.rates.push(MovingRate::default());
            self.growth.push(GrowthRecorder::default());
            self.growth_due = TimeNs(0);
        }
        if let Some(line) = self.lines.get_mut(line as usize) {
            line.call_sites += 1;
        }
        line
    }

    fn tick_growth(&mut self, now: TimeNs) {
        if now < self.growth_due {
            return;
        }
        let lines = self.lines.iter_mut().zip(&mut self.growth);
        let ends = lines.map(|(line, growth)| growth.tick(now, line.tally.live, &mut line.floor));
        self.growth_due = ends.min().unwrap_or_default();
    }

    fn reset_peaks(&mut self) {
        for line in &mut self.lines {
            line.tally.peak = line.tally.live;
        }
        self.growth.fill(GrowthRecorder::default());
        self.growth_due = TimeNs(0);
    }
}

/// Stacks that have allocated on a device, and their lines.
#[derive(Clone, Debug, Default)]
pub(super) struct CallSites {
    call_sites: Vec<CallSite>,
    by_stack: PerStack<CallSiteId>,
    by_thread: HashMap<Arc<str>, CallSiteId>,
    overflow: Option<CallSiteId>,
    /// Indexed by [`slot`] of the grouping.
    tables: [Table; 2],
}

/// Converts a length to an index. The caps keep every store far below 2^32 entries.
fn index(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl CallSites {
    /// Bytes of a copy.
    pub(super) fn copy_bytes(&self) -> u64 {
        let line = size_of::<Line>() + size_of::<MovingRate>() + size_of::<GrowthRecorder>();
        let tables = self.tables.iter();
        let lines: usize = tables.map(|table| table.lines.len() * line).sum();
        let call_sites = self.call_sites.len() * size_of::<CallSite>();
        lines as u64 + call_sites as u64 + self.by_stack.bytes()
    }

    /// Returns the call site of an allocation by `tid`, adding it if it is new.
    pub(super) fn of(&mut self, stack: StackRef, tid: Tid, store: &mut BlockStore) -> CallSiteId {
        if let Some(call_site) = self.by_stack.get(stack) {
            return *call_site;
        }
        let definitions = &mut store.definitions;
        if stack != StackRef::UNKNOWN {
            if !store.budget.take_call_site() {
                return self.overflow(definitions);
            }
            let call_site = self.add(definitions.stack(stack).clone());
            self.by_stack.insert(stack, call_site);
            return call_site;
        }
        if definitions.stacks_refused {
            return self.overflow(definitions);
        }
        let thread = definitions.thread(tid);
        self.of_thread(&thread, store)
    }

    /// Returns the call site of allocations without a stack by a thread, adding it if it is new.
    fn of_thread(&mut self, thread: &Arc<str>, store: &mut BlockStore) -> CallSiteId {
        if let Some(call_site) = self.by_thread.get(thread) {
            return *call_site;
        }
        let definitions = &mut store.definitions;
        if !store.budget.take_call_site() {
            return self.overflow(definitions);
        }
        let call_site = self.add(definitions.with_sites(lost_stack(Arc::clone(thread))));
        self.by_thread.insert(Arc::clone(thread), call_site);
        call_site
    }

    pub(super) fn keyframe(&self) -> CallSitesKeyframe {
        let mut keys = vec![CallSiteKey::Overflow; self.call_sites.len()];
        for (stack, call_site) in self.by_stack.iter() {
            keys[call_site.index()] = CallSiteKey::Stack(stack.index() as u32);
        }
        for (thread, call_site) in &self.by_thread {
            keys[call_site.index()] = CallSiteKey::Thread(Arc::clone(thread));
        }
        let call_sites = keys.into_iter().zip(&self.call_sites);
        let peaks = |table: &Table| table.lines.iter().map(|line| line.tally.peak).collect();
        CallSitesKeyframe {
            call_sites: call_sites
                .map(|(key, call_site)| CallSiteKeyframe {
                    key,
                    counts: call_site.tally.keyframe(),
                })
                .collect(),
            line_peaks: self.tables.each_ref().map(peaks),
        }
    }

    /// Begins with the call sites of a keyframe, without live blocks.
    pub(super) fn of_keyframe(
        state: &CallSitesKeyframe,
        store: &mut BlockStore,
    ) -> Result<Self, &'static str> {
        const TWICE: &str = "a call site stands twice in a keyframe";
        let mut all = Self::default();
        for CallSiteKeyframe { key, counts } in &state.call_sites {
            let before = all.call_sites.len();
            let id = match key {
                CallSiteKey::Stack(number) => {
                    let stack = store.definitions.numbered(*number)?;
                    if stack == StackRef::UNKNOWN {
                        return Err("a call site of no stack");
                    }
                    all.of(stack, Tid::UNKNOWN, store)
                }
                CallSiteKey::Thread(thread) => all.of_thread(thread, store),
                CallSiteKey::Overflow => all.overflow(&mut store.definitions),
            };
            if all.call_sites.len() == before {
                return Err(TWICE);
            }
            all.restore_counts(id, counts);
        }
        for (table, peaks) in all.tables.iter_mut().zip(&state.line_peaks) {
            if table.lines.len() != peaks.len() {
                return Err("a keyframe whose lines do not match its stacks");
            }
            for (line, peak) in table.lines.iter_mut().zip(peaks) {
                line.tally.peak = *peak;
            }
        }
        Ok(all)
    }

    fn restore_counts(&mut self, id: CallSiteId, counts: &TallyKeyframe) {
        self.change(id, |tally, _| tally.add_counts(counts));
        if let Some(call_site) = self.call_sites.get_mut(id.index()) {
            call_site.tally.peak = counts.peak;
        }
    }

    /// Returns the call site at a place in a keyframe.
    pub(super) fn at(&self, place: u32) -> Result<CallSiteId, &'static str> {
        let is_there = (place as usize) < self.call_sites.len();
        let id = is_there.then(|| CallSiteId(NonZeroU32::MIN.saturating_add(place)));
        id.ok_or("a block of no call site")
    }

    /// Adds a live block of a keyframe.
    pub(super) fn restore_block(&mut self, call_site: CallSiteId, size: Bytes) {
        self.change(call_site, |tally, _| tally.add_live(size.0));
    }

    fn overflow(&mut self, definitions: &mut Definitions) -> CallSiteId {
        if let Some(call_site) = self.overflow {
            return call_site;
        }
        let call_site = self.add(InternedStack {
            stack: lost_stack("".into()),
            sites: definitions.intern_sites(|_| Site::NoLine {
                thread: "".into(),
                reason: "too many stacks",
            }),
        });
        self.overflow = Some(call_site);
        call_site
    }

    fn add(&mut self, InternedStack { stack, sites }: InternedStack) -> CallSiteId {
        let [user, innermost] = &mut self.tables;
        let lines = [
            user.count_call_site(sites[0]),
            innermost.count_call_site(sites[1]),
        ];
        self.call_sites.push(CallSite {
            stack,
            lines,
            tally: Tally::default(),
        });
        CallSiteId(NonZeroU32::MIN.saturating_add(index(self.call_sites.len() - 1)))
    }

    /// Counts an allocation of `size` bytes, and its block if it is tracked.
    pub(super) fn count(&mut self, call_site: CallSiteId, size: Bytes, is_tracked: bool) {
        self.change(call_site, |tally, _| tally.count(size.0, is_tracked));
    }

    pub(super) fn release(&mut self, call_site: CallSiteId, size: Bytes) {
        self.change(call_site, |tally, floor| {
            tally.release(size.0);
            floor.lower_to(tally.live);
        });
    }

    /// Changes the tallies of a call site and of its lines.
    fn change(&mut self, call_site: CallSiteId, change: impl Fn(&mut Tally, &mut Floor)) {
        let Some(call_site) = self.call_sites.get_mut(call_site.index()) else {
            return;
        };
        // Growth is shown for lines alone.
        change(&mut call_site.tally, &mut Floor::default());
        for (table, line) in self.tables.iter_mut().zip(call_site.lines) {
            if let Some(line) = table.lines.get_mut(line as usize) {
                change(&mut line.tally, &mut line.floor);
            }
        }
    }

    pub(super) fn tick(&mut self, interval: Interval) {
        for table in &mut self.tables {
            for (line, rate) in table.lines.iter().zip(&mut table.rates) {
                rate.tick(line.tally.allocs, interval);
            }
        }
    }

    pub(super) fn tick_growth(&mut self, now: TimeNs) {
        self.tables
            .iter_mut()
            .for_each(|table| table.tick_growth(now));
    }

    /// Forgets peaks and growth.
    pub(super) fn reset_peaks(&mut self) {
        self.tables.iter_mut().for_each(Table::reset_peaks);
        for call_site in &mut self.call_sites {
            call_site.tally.peak = call_site.tally.live;
        }
    }

    /// Starts measuring rates; earlier allocations do not count.
    pub(super) fn start_rates(&mut self) {
        for table in &mut self.tables {
            for (line, rate) in table.lines.iter().zip(&mut table.rates) {
                rate.start(line.tally.allocs);
            }
        }
    }

    /// The line that holds most, and its bytes; `None` if nothing is live.
    pub(super) fn top(&self, grouping: Grouping) -> Option<(SiteRef, Bytes)> {
        let lines = self.tables[slot(grouping)].lines.iter();
        let top = lines.max_by_key(|line| line.tally.live)?;
        (top.tally.live > 0).then_some((top.site, Bytes(top.tally.live)))
    }

    pub(super) fn rows(&self, grouping: Grouping, definitions: &Definitions) -> Vec<LineRow> {
        let slot = slot(grouping);
        let table = &self.tables[slot];
        let lines = table.lines.iter().zip(&table.rates).zip(&table.growth);
        let mut rows: Vec<_> = lines
            .map(|((line, rate), growth)| LineRow {
                site: definitions.site(line.site, grouping).clone(),
                live: Bytes(line.tally.live),
                peak: Bytes(line.tally.peak),
                live_blocks: line.tally.blocks,
                allocs: line.tally.allocs,
                alloc_bytes: Bytes(line.tally.alloc_bytes),
                allocs_per_second: rate.per_second(),
                growth: growth.growth(),
                stacks: Vec::with_capacity(line.call_sites as usize),
            })
            .collect();
        for call_site in &self.call_sites {
            if let Some(row) = rows.get_mut(call_site.lines[slot] as usize) {
                row.stacks.push(stack_row(call_site));
            }
        }
        for row in &mut rows {
            row.stacks
                .sort_by_key(|stack| std::cmp::Reverse((stack.live, stack.peak)));
        }
        rows
    }
}

fn stack_row(call_site: &CallSite) -> StackRow {
    StackRow {
        stack: Arc::clone(&call_site.stack),
        live: Bytes(call_site.tally.live),
        peak: Bytes(call_site.tally.peak),
        live_blocks: call_site.tally.blocks,
        allocs: call_site.tally.allocs,
    }
}
