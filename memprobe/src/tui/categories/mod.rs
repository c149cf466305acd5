//! Screen of categories of one process: over time, now, and in the latest iterations.

mod panels;
#[cfg(test)]
mod screens;

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::text::Span;

use super::bars::Tab;
use super::context::ProcessContext;
use super::table_screen::{
    Content, Fold, Needs, Note, Query, RowOf, ScreenContext, ScreenLayout, ScreenParts, TableOf,
    TableRow, TableScreen,
};
use super::theme::Theme;
use crate::attribution::tables::{
    CategoryRow, CategoryRule, CoverageStart, DeviceCategories, Portion, PortionRow,
};
use crate::event::bytes::human;
use crate::view::table::{Cell, Column};
use crate::view::{CategoryCells, before, category_table_columns, peak, portion, span, sureness};

const COLUMNS: [Column<CategoryData>; 13] = category_table_columns();

/// Key of a row: a category, and a rule beneath it.
type CategoryKey = (Portion, Option<CategoryRule>);

/// Figures of a category, or of one of its rules.
#[derive(Clone, PartialEq, Debug)]
pub struct CategoryData {
    portion: Portion,
    since: CoverageStart,
    allocated: i128,
    live: i64,
    at_peak: i64,
    /// Maximum over the points of the graph.
    most: Option<i64>,
    blocks: Option<u64>,
    rule: Option<CategoryRule>,
    /// Rules that assigned the category, most bytes first.
    rules: Vec<CategoryRule>,
}

impl CategoryData {
    fn of_portion(row: &PortionRow, device: &DeviceCategories) -> Self {
        Self {
            portion: row.portion,
            since: device.since,
            allocated: device.totals.allocated.0.into(),
            live: row.live,
            at_peak: row.at_peak,
            most: Some(row.most),
            blocks: row.blocks,
            rule: None,
            rules: row.rules.iter().map(|rule| rule.rule).collect(),
        }
    }

    fn of_rule(&self, row: &CategoryRow) -> Self {
        let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        Self {
            live: signed(row.live),
            at_peak: signed(row.at_peak),
            most: None,
            blocks: Some(row.blocks),
            rule: Some(row.rule),
            rules: vec![row.rule],
            ..*self
        }
    }

    fn label(&self) -> &'static str {
        match (self.rule, self.portion) {
            (Some(rule), _) => rule.as_str(),
            (None, Portion::BeforeAttach) => before(self.since),
            (None, other) => portion(other),
        }
    }

    /// Returns the confidence of the category, and the rule that assigned it.
    fn decision(&self) -> (&'static str, String) {
        match (self.portion, &self.rules[..]) {
            (Portion::BeforeAttach, _) => {
                let rule = match self.since {
                    CoverageStart::Attach => "live when memprobe attached",
                    CoverageStart::Opening => "live when opened; t reads its category",
                };
                ("exact", rule.to_owned())
            }
            (Portion::Unaccounted, _) => ("exact", "events were lost".to_owned()),
            (Portion::Of(_), []) => ("-", String::new()),
            (Portion::Of(_), [only]) => (sureness(*only), only.as_str().to_owned()),
            (Portion::Of(_), [first, more @ ..]) => {
                let text = format!("{} (and {} more)", first.as_str(), more.len());
                (sureness(*first), text)
            }
        }
    }
}

impl CategoryCells for CategoryData {
    fn live(&self) -> Cell<'_> {
        i128::from(self.live).into()
    }

    fn at_peak(&self) -> Cell<'_> {
        i128::from(self.at_peak).into()
    }

    fn most(&self) -> Cell<'_> {
        self.most.map(i128::from).into()
    }

    fn share(&self) -> Cell<'_> {
        Cell::share(self.live, self.allocated)
    }

    fn blocks(&self) -> Option<u64> {
        self.blocks
    }

    fn name(&self) -> Cell<'_> {
        self.label().into()
    }

    fn rule(&self) -> Option<CategoryRule> {
        self.rule
    }

    fn decided(&self) -> (&'static str, String) {
        self.decision()
    }
}

pub struct Categories;

fn shown(context: &ProcessContext) -> Option<&DeviceCategories> {
    context.of_device(context.categories.as_ref(), |device| device.index)
}

static PARTS: ScreenParts<CategoryData> = ScreenParts {
    tab: Some(Tab::Categories),
    columns: &COLUMNS,
    searched: "names of categories and rules",
    keys: &[("Enter", "rules", 2), ("*", "all rules", 5)],
    help: "\
Enter       the rules that decided on a category; so does a click on it
*           the rules of all categories
",
    terms: "\
letters     the graph draws each category by the letter of its row
phase       what the program did at its last allocation
AT PEAK     bytes at the device's peak since attach or opening
MOST        largest value of the moments in the graph: for each step,
            the moment with most allocated bytes
exact       read from PyTorch or its objects, or a difference
inferred    from when it was allocated and freed, by the named rule
so far      inferred; later events may change it
before      attach: live at attach; opening: live when opened
activation  saved by a forward pass for the backward pass
KV cache    keys and values that modules keep for their next call
temporary   freed soon, by the part of the program that allocated it
workspace   not a tensor: scratch memory of a library
LIVE AT END allocated at the end of the iteration; if it grows: a leak
CACHED      reserved by PyTorch's allocator but not allocated
",
};

impl Content for Categories {
    type Key = CategoryKey;
    type Data = CategoryData;
    type Context = ProcessContext;

    /// Largest values do not swing within an iteration, so rows stay in their places.
    const FIRST_SORT: &'static str = "MOST";

    fn parts(&self) -> &'static ScreenParts<CategoryData> {
        &PARTS
    }

    fn build(&mut self, query: &mut Query<CategoryKey>, context: &ProcessContext) -> TableOf<Self> {
        let Some(device) = shown(context) else {
            return TableOf::<Self>::default();
        };
        let entries = device.rows.iter().map(|row| {
            let (key, data) = ((row.portion, None), CategoryData::of_portion(row, device));
            let fold = query.fold(!row.rules.is_empty(), &key);
            (TableRow::leaf(key, data).at(0, fold), row)
        });
        let entries: Vec<(RowOf<Self>, &PortionRow)> = entries.collect();
        let searched = |row: &RowOf<Self>| {
            let rules = row.data.rules.iter().map(|rule| rule.as_str());
            let names: Vec<&str> = std::iter::once(row.data.label()).chain(rules).collect();
            names.join(" ")
        };
        let live = |row: &RowOf<Self>| row.data.live.into();
        query.table(self, entries, live, searched, |row, portion| {
            let rules = portion.rules.iter().filter(|_| row.fold == Fold::Open);
            let beneath = |rule: &CategoryRow| {
                let key = (portion.portion, Some(rule.rule));
                TableRow::leaf(key, row.data.of_rule(rule)).at(1, Fold::Leaf)
            };
            rules.map(beneath).collect()
        })
    }

    fn keys_beneath(&self, _row: &RowOf<Self>, _context: &ProcessContext) -> Vec<CategoryKey> {
        Portion::ALL.map(|portion| (portion, None)).into()
    }

    fn needs(&self, _width: u16, height: u16, context: &ProcessContext) -> Needs {
        let spare = height.saturating_sub(30);
        let when = |enough: bool, rows: u16| if enough { rows } else { 0 };
        Needs {
            graph: when(height >= 18, height / 5 + 1 + spare / 3),
            second: when(height >= 22, height / 6 + spare / 5),
            ..context.needs(height)
        }
    }

    fn account(&self, context: &ProcessContext) -> Option<String> {
        shown(context).map(account)
    }

    fn draw_around(
        _screen: &TableScreen<Self>,
        buffer: &mut Buffer,
        layout: &ScreenLayout,
        context: &ProcessContext,
        theme: &Theme,
    ) {
        if let Some(device) = shown(context) {
            panels::draw_graph(buffer, layout.graph, device, theme);
            panels::draw_iterations(buffer, layout.second, device, theme);
        }
    }

    fn nothing(screen: &TableScreen<Self>, context: &ProcessContext) -> Option<[Note; 2]> {
        let (first, second) = match (shown(context), &context.categories) {
            (Some(_), _) if screen.table.shown > 0 => return None,
            (Some(_), _) => return screen.no_match("category", "categories"),
            (None, None) => ("Waiting for the first table of categories.", ""),
            (None, Some(_)) => (
                "No categories on this device.",
                "They exist for PyTorch's allocators, not for calls into CUDA.",
            ),
        };
        Some([first.into(), second.into()])
    }

    fn badge(&self, row: &RowOf<Self>, theme: &Theme) -> Option<Span<'static>> {
        let portion = row.data.portion;
        let letter = Span::styled(panels::letter(portion), panels::style(portion, theme));
        row.data.rule.is_none().then_some(letter)
    }

    fn total(&self, context: &ProcessContext) -> Option<(i128, &'static str)> {
        let device = shown(context)?;
        Some((device.totals.allocated.0.into(), "allocated"))
    }

    fn detail(&self, row: &RowOf<Self>, _wide: usize, _cut: &str) -> Vec<String> {
        let (how, rule) = row.data.decision();
        let name = CategoryData {
            rule: None,
            ..row.data.clone()
        };
        vec![format!("{}: {how}   {rule}", name.label())]
    }
}

fn account(device: &DeviceCategories) -> String {
    let read = device.read_before.map_or_else(
        || "inferred (t: read)".to_owned(),
        |ago| {
            let (exact, ago) = (human(device.exact), span(Duration::from_nanos(ago)));
            format!("read {ago} ago: {exact} exact")
        },
    );
    format!(
        "  allocated {}   {} {}   phase: {}   {read}",
        human(device.totals.allocated),
        peak(device.since),
        human(device.peak),
        device.phase.as_str()
    )
}
