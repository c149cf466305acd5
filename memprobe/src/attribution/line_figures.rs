//! Figures of each line of Python over a whole recording, for annotated source text.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use super::AttributionLedger;
use super::high_water_mark::{AtMark, HighWaterMarks, PeakAnalysis};
use crate::event::{Action, Bytes, DeviceIndex, Event};
use crate::ledger::snapshot::{Grouping, Site};
use crate::ledger::{BlockId, Change, Ledger, SiteRef, TotalsSample};

/// Memory of a line on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceLineFigures {
    /// Live bytes at the end.
    pub live: Bytes,
    /// Live bytes at the peak of the device.
    pub at_peak: Bytes,
    /// Live bytes at the last failed request; 0 if none failed.
    pub at_failure: Bytes,
    /// Most live bytes of the line itself.
    pub peak: Bytes,
    /// Sum of all its blocks.
    pub allocated: Bytes,
    pub allocs: u64,
    /// Most allocated bytes of the device just after the line allocated.
    pub active: Bytes,
    /// Most reserved bytes of the device just after the line allocated.
    pub reserved: Bytes,
}

#[derive(Debug, Default)]
struct LineState {
    figures: SourceLineFigures,
    at_peak: AtMark<u64>,
    at_failure: AtMark<u64>,
}

/// Figures of all lines, updated by each event.
#[derive(Debug, Default)]
pub struct LineFigureLedger {
    lines: HashMap<(DeviceIndex, usize), LineState>,
    /// A site of each line; several sites of one file and line are one line.
    sites: Vec<SiteRef>,
    numbers_of_sites: HashMap<SiteRef, usize>,
    numbers_of_places: HashMap<(Arc<str>, u32), usize>,
    peaks: HighWaterMarks,
    /// Failed requests so far.
    failures: u64,
    /// Totals of each device at the last failed request.
    at_failure: BTreeMap<DeviceIndex, TotalsSample>,
}

impl LineFigureLedger {
    /// Lines of a device that allocated, with their figures.
    pub fn lines<'a>(
        &'a self,
        device: DeviceIndex,
        ledger: &'a Ledger,
    ) -> impl Iterator<Item = (&'a Site, SourceLineFigures)> {
        let lines = self
            .lines
            .iter()
            .filter(move |((index, _), _)| *index == device);
        let peak = self.peaks.get(device).map_or(0, |mark| mark.number);
        lines.map(move |((_, number), line)| {
            let now = line.figures.live.0;
            let at_failure = match self.failures {
                0 => 0,
                number => line.at_failure.at(number, now),
            };
            let figures = SourceLineFigures {
                at_peak: Bytes(line.at_peak.at(peak, now)),
                at_failure: Bytes(at_failure),
                ..line.figures
            };
            (ledger.site_of(self.sites[*number], Grouping::User), figures)
        })
    }

    /// Totals of a device at its peak.
    pub fn peak(&self, device: DeviceIndex) -> Option<TotalsSample> {
        self.peaks.get(device).map(|mark| mark.moment)
    }

    /// Totals of a device at the last failed request.
    pub fn failure(&self, device: DeviceIndex) -> Option<TotalsSample> {
        self.at_failure.get(&device).copied()
    }

    /// Adds or takes the bytes of a block; `peak` is the number of its device's peak.
    fn follow(
        &mut self,
        peak: u64,
        change: &Change,
        ledger: &Ledger,
        totals: Option<TotalsSample>,
    ) {
        for ended in change.ended() {
            if let Some((line, size)) = self.line(*ended, peak, ledger) {
                line.figures.live = Bytes(line.figures.live.0.saturating_sub(size));
            }
        }
        let Change::Allocated {
            block,
            is_tracked: true,
            ..
        } = change
        else {
            return;
        };
        if let Some((line, size)) = self.line(*block, peak, ledger) {
            let figures = &mut line.figures;
            figures.live.0 = figures.live.0.saturating_add(size);
            figures.peak = figures.peak.max(figures.live);
            figures.allocated.0 = figures.allocated.0.saturating_add(size);
            figures.allocs += 1;
            if let Some(sample) = totals {
                figures.active = figures.active.max(sample.totals.allocated);
                figures.reserved = figures.reserved.max(sample.totals.reserved);
            }
        }
    }

    /// Number of the line of a site: that of its file and line, if it has some.
    fn number(&mut self, site: SiteRef, ledger: &Ledger) -> usize {
        if let Some(number) = self.numbers_of_sites.get(&site) {
            return *number;
        }
        let new = self.sites.len();
        let frame = ledger.site_of(site, Grouping::User).frame();
        let number = match frame {
            Some(frame) => {
                let place = (Arc::clone(&frame.file), frame.line);
                *self.numbers_of_places.entry(place).or_insert(new)
            }
            None => new,
        };
        if number == new {
            self.sites.push(site);
        }
        self.numbers_of_sites.insert(site, number);
        number
    }

    /// Line of a block, ready for a change, and the size of the block; `None` for one from before attach.
    fn line(
        &mut self,
        block: BlockId,
        peak: u64,
        ledger: &Ledger,
    ) -> Option<(&mut LineState, u64)> {
        let block = ledger.block(block);
        if block.is_baseline {
            return None;
        }
        let number = self.number(ledger.site_ref(block.stack, Grouping::User), ledger);
        let line = self.lines.entry((block.device, number)).or_default();
        let live = line.figures.live.0;
        line.at_peak.save(peak, live);
        line.at_failure.save(self.failures, live);
        Some((line, block.size.0))
    }
}

impl PeakAnalysis for LineFigureLedger {
    fn apply(
        &mut self,
        event: &Event,
        change: &Change,
        ledger: &Ledger,
        categories: &AttributionLedger,
    ) {
        let mut number = 0;
        let totals = ledger.moment(event).map(|(_, sample)| sample);
        let mut peaks = std::mem::take(&mut self.peaks);
        peaks.pass(event, ledger, categories, |before| number = before);
        self.follow(number, change, ledger, totals);
        self.peaks = peaks;
        if let Event::Memory(event) = event
            && event.action == Action::OutOfMemory
        {
            self.failures += 1;
            self.at_failure = ledger.moments(event.time).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::WithCategories;
    use super::super::allocation_groups::samples::{DEVICE, learning};
    use super::super::allocations::{Allocation, AllocationHistory, EventNumber};
    use super::*;

    #[test]
    fn figures_are_those_of_the_allocations() {
        let table = (LineFigureLedger::default(), AllocationHistory::default());
        let played = learning().analyzed(WithCategories::new(table));
        let (figures, history) = &played.analyses.table;
        let peak = history.peaks()[&DEVICE].event;
        let mut lines = 0;
        for (site, figures) in figures.lines(DEVICE, &played.ledger) {
            let all = history.allocations().iter();
            let place = |site: &Site| site.frame().map(|it| (it.file.clone(), it.line));
            let is_own = |it: &&Allocation| {
                place(played.ledger.site(it.stack, Grouping::User)) == place(site)
            };
            let own = all.filter(|it| !it.is_baseline).filter(is_own);
            let live = |event: EventNumber| {
                let live = own.clone().filter(|it| it.is_live_at(event));
                Bytes(live.map(|it| it.size.0).sum())
            };
            assert_eq!(figures.live, live(EventNumber::END), "{site:?}");
            assert_eq!(figures.at_peak, live(peak), "{site:?}");
            let sum = own.clone().map(|it| it.size.0).sum();
            assert_eq!(figures.allocated, Bytes(sum), "{site:?}");
            assert!(figures.peak >= figures.at_peak && figures.active >= figures.peak);
            lines += 1;
        }
        assert!(lines > 2);
    }
}
