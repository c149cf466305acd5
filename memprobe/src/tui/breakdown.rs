//! Screen of a breakdown: memory of a device by a key of the block.

use super::bars::Tab;
use super::context::ProcessContext;
use super::table_screen::{
    Content, Note, Query, RowOf, ScreenParts, TableOf, TableRow, TableScreen,
};
use crate::attribution::tables::{Breakdown, BreakdownKey, DeviceBreakdown};
use crate::event::bytes::human;
use crate::view::table::{Cell, Precision};
use crate::view::{BreakdownEntry, BreakdownView, counted};

/// Key of a row, or the name of bytes without one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum BreakdownRowKey {
    Row(BreakdownKey),
    Rest(String),
}

pub struct BreakdownScreen {
    breakdown: Breakdown,
    view: &'static BreakdownView,
    parts: ScreenParts<BreakdownEntry>,
}

impl BreakdownScreen {
    pub fn new(breakdown: Breakdown) -> Self {
        let view = BreakdownView::of(breakdown);
        let parts = ScreenParts {
            tab: Some(Tab::Breakdown(breakdown)),
            columns: view.columns,
            searched: view.noun,
            keys: &[],
            help: "",
            terms: view.terms,
        };
        Self {
            breakdown,
            view,
            parts,
        }
    }

    fn shown<'a>(&self, context: &'a ProcessContext) -> Option<&'a DeviceBreakdown> {
        let devices = context.breakdowns.get(&self.breakdown);
        context.of_device(devices, |device| device.index)
    }

    fn rows(&self, device: &DeviceBreakdown) -> impl Iterator<Item = RowOf<Self>> {
        device.rows.iter().map(|row| {
            let entry = BreakdownEntry::new(self.view, row);
            TableRow::leaf(BreakdownRowKey::Row(row.key), entry)
        })
    }
}

impl Content for BreakdownScreen {
    type Key = BreakdownRowKey;
    type Data = BreakdownEntry;
    type Context = ProcessContext;

    /// Peaks do not swing within an iteration, so rows stay in their places.
    const FIRST_SORT: &'static str = "PEAK";

    fn parts(&self) -> &ScreenParts<BreakdownEntry> {
        &self.parts
    }

    fn build(
        &mut self,
        query: &mut Query<BreakdownRowKey>,
        context: &ProcessContext,
    ) -> TableOf<Self> {
        let Some(device) = self.shown(context) else {
            return TableOf::<Self>::default();
        };
        let rows = self.rows(device).chain(rest(device));
        let entries: Vec<(RowOf<Self>, ())> = rows.map(|row| (row, ())).collect();
        let live = |row: &RowOf<Self>| row.data.bytes[0].rank();
        let searched = |row: &RowOf<Self>| row.data.name.clone();
        query.table(self, entries, live, searched, |_, ()| Vec::new())
    }

    fn nothing(screen: &TableScreen<Self>, _context: &ProcessContext) -> Option<[Note; 2]> {
        let BreakdownView { noun, plural, .. } = screen.content.view;
        Some(match screen.table.all {
            _ if screen.table.shown > 0 => return None,
            0 => ["No memory was allocated yet.".into(), "".into()],
            _ => [
                format!("No {noun} matches the filter.").into(),
                format!("Esc shows all {plural}.").into(),
            ],
        })
    }

    fn total(&self, context: &ProcessContext) -> Option<(i128, &'static str)> {
        let device = self.shown(context)?;
        Some((device.totals.allocated.0.into(), "allocated"))
    }

    fn detail(&self, row: &RowOf<Self>, _wide: usize, _cut: &str) -> Vec<String> {
        let data = &row.data;
        let blocks = data.counts.map(|[blocks, _]| counted(blocks, "block"));
        let blocks = blocks.map(|blocks| format!(" in {blocks}"));
        let peak = data.peak.map(|peak| format!(", at most {}", human(peak)));
        vec![format!(
            "{}{}: {}{}{}",
            data.name,
            data.key.map(self.view.number).unwrap_or_default(),
            data.bytes[0].text(Precision::Exact),
            blocks.unwrap_or_default(),
            peak.unwrap_or_default(),
        )]
    }
}

/// Rows that complete the sum to the allocator's total.
fn rest(device: &DeviceBreakdown) -> impl Iterator<Item = RowOf<BreakdownScreen>> {
    BreakdownEntry::remainders(device).map(|mut entry| {
        let key = BreakdownRowKey::Rest(entry.name.clone());
        entry.bytes = entry.bytes.map(|bytes| Cell::from(bytes.rank()));
        TableRow::leaf(key, entry)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::input::InputEvent;
    use super::super::samples;
    use super::super::test_support::{COLOUR, SMALL, Shown};
    use super::*;

    fn screen(breakdown: Breakdown, wanted: &[InputEvent]) -> Shown<BreakdownScreen> {
        let mut context = ProcessContext::new(Arc::new(samples::normal()));
        context
            .breakdowns
            .insert(breakdown, samples::breakdown(breakdown));
        Shown::new(BreakdownScreen::new(breakdown), context, SMALL).with(wanted)
    }

    #[test]
    fn threads_have_what_they_allocated() {
        insta::assert_snapshot!(screen(Breakdown::Thread, &[]).drawn(SMALL, &COLOUR));
    }

    #[test]
    fn the_rows_of_every_breakdown_add_up_to_the_allocator() {
        for breakdown in Breakdown::ALL {
            let screen = screen(*breakdown, &[]);
            let rows = screen.table.rows.iter();
            let live: i128 = rows.map(|row| row.data.bytes[0].rank()).sum();
            let total = screen.content.total(&screen.context);
            assert_eq!(Some((live, "allocated")), total, "{breakdown:?}");
            assert!(live > 0, "{breakdown:?}");
        }
    }

    #[test]
    fn help_names_the_terms_of_threads() {
        let screen = screen(Breakdown::Thread, &[InputEvent::Help, InputEvent::Page(1)]);
        let help = screen.drawn(SMALL, &COLOUR);
        assert!(
            help.to_string().contains("wherever they are freed"),
            "{help}"
        );
    }
}
