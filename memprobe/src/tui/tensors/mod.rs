//! Screen of the tensors of one process. Reading pauses the process briefly, so it happens only on entry and
//! on request. The screen shows the length of the pause.

mod rows;
#[cfg(test)]
mod screens;

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use ratatui::text::Line;

use super::Command;
use super::bars::{StatusLine, Tab};
use super::context::ProcessContext;
use super::input::InputEvent;
use super::table_screen::{
    Content, DeviceTabs, Needs, Note, Query, Reaction, RowOf, ScreenContext, ScreenParts,
    ScreenRequest, SourcePlace, TableOf, TableScreen, TableSort, TableState, further,
};
use super::theme::Theme;
use crate::event::bytes::{human, signed};
use crate::event::tensors::TensorDevice;
use crate::event::{Address, Bytes};
use crate::tensors::{DeviceTable, Group, GroupBy, Order, RowKind, SnapshotRows, TensorTable};
use crate::view::table::{Cell, Column, Tone, columns};
use crate::view::{
    FileNames, TensorCells, TensorGroup, clean, consistency, counted, tensor_columns,
    tensor_size_columns, tensors_label,
};

/// Progress of [`super::Command::TakeTensors`].
#[derive(Clone, Debug, Default)]
pub enum Tensors {
    #[default]
    Unasked,
    /// The process is being read; says how far.
    Taking(Arc<str>),
    Taken(Arc<TensorTable>),
    /// The reading failed: reason and remedy.
    Failed(Arc<str>),
}

impl Tensors {
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unasked, Self::Unasked) => true,
            (Self::Taking(one), Self::Taking(other)) => one == other,
            (Self::Taken(one), Self::Taken(other)) => Arc::ptr_eq(one, other),
            (Self::Failed(one), Self::Failed(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// Kind, name, storage, and object; the object of unnamed rows only, several of which may share a storage.
type TensorKey = (RowKind, Option<Arc<str>>, Option<Address>, u64);

/// Groupings, in the order of the key that cycles through them.
const GROUPINGS: [(GroupBy, &str); 7] = [
    (GroupBy::Unnamed, "by tensor (i) "),
    (GroupBy::Shape, "by shape (i) "),
    (GroupBy::Kind, "by kind (i) "),
    (GroupBy::Module, "by module (i) "),
    (GroupBy::Site, "by line (i) "),
    (GroupBy::Retainer, "by retainer (i) "),
    (GroupBy::Nothing, "no fold (i) "),
];

/// Heads of the columns that the table can be sorted by.
const ORDERS: [(&str, Order); 5] = [
    ("ALLOCATED", Order::Holds),
    ("SIZE", Order::Size),
    ("KIND", Order::Kind),
    ("SHAPE", Order::Count),
    ("NAME", Order::Name),
];

const COLUMNS: [Column<TensorData>; 8] = {
    let [allocated, size] = tensor_size_columns();
    let [kind, shape, dtype, grad, name] = tensor_columns("NAME");
    let [site] = columns![|row: TensorData|
        label("ALLOCATED AT").screen(30, 140).order(None).tone(Tone::Faint) => row.site(),
    ];
    [allocated, size, kind, shape, dtype, grad, name, site]
};

struct ShownDevice {
    table: Arc<TensorTable>,
    at: usize,
    names: FileNames,
}

impl ShownDevice {
    fn device(&self) -> &DeviceTable {
        &self.table.devices[self.at]
    }

    fn rows(&self) -> SnapshotRows<'_> {
        self.device().rows()
    }
}

pub struct TensorData {
    device: Rc<ShownDevice>,
    by: GroupBy,
    group: Group,
    /// Boxed: half a million groups have none.
    large: OnceCell<Box<GroupTexts>>,
}

/// Rows of a group whose texts are kept. Of smaller groups they take less time than memory.
const LARGE: usize = 64;

/// Texts of a large group, made when it is drawn first: each goes through all rows of the group.
struct GroupTexts {
    kind: &'static str,
    shape: String,
    dtype: String,
    grad: &'static str,
    name: String,
    /// Name of the first row, and whether the others share storages.
    label: String,
    /// Line that allocated all rows.
    site: Option<String>,
}

impl TensorData {
    fn texts(&self) -> TensorGroup<'_> {
        TensorGroup {
            rows: self.device.rows(),
            group: &self.group.rows,
            names: &self.device.names,
        }
    }

    /// Texts of a large group; `None` for another.
    fn large_texts(&self) -> Option<&GroupTexts> {
        if self.group.rows.len() < LARGE {
            return None;
        }
        let texts = self.texts();
        Some(self.large.get_or_init(|| {
            Box::new(GroupTexts {
                kind: texts.kind(),
                shape: texts.shape(),
                dtype: texts.dtype(),
                grad: texts.grad(),
                name: texts.name(self.by),
                label: tensors_label(texts.rows, texts.group),
                site: texts.site(),
            })
        }))
    }

    /// Returns a text of a large group, or makes it.
    fn text<'a, T>(
        &'a self,
        known: impl FnOnce(&'a GroupTexts) -> T,
        make: impl FnOnce(TensorGroup<'a>) -> T,
    ) -> T {
        match self.large_texts() {
            Some(texts) => known(texts),
            None => make(self.texts()),
        }
    }

    fn label(&self) -> String {
        self.text(
            |texts| texts.label.clone(),
            |group| tensors_label(group.rows, group.group),
        )
    }

    fn site(&self) -> Option<String> {
        self.text(|texts| texts.site.clone(), TensorGroup::site)
    }
}

impl TensorCells for TensorData {
    fn allocated(&self) -> Cell<'_> {
        Cell::Bytes(self.group.holds.0.saturating_add(self.group.outside.0))
    }

    fn size(&self) -> Cell<'_> {
        self.group.size.into()
    }

    fn kind(&self) -> Cell<'_> {
        self.text(|texts| texts.kind, TensorGroup::kind).into()
    }

    fn shape(&self) -> Cell<'_> {
        self.text(|texts| texts.shape.clone(), TensorGroup::shape)
            .into()
    }

    fn dtype(&self) -> Cell<'_> {
        self.text(|texts| texts.dtype.clone(), TensorGroup::dtype)
            .into()
    }

    fn grad(&self) -> Cell<'_> {
        self.text(|texts| texts.grad, TensorGroup::grad).into()
    }

    fn name(&self) -> Cell<'_> {
        let name = self.text(|texts| texts.name.clone(), |group| group.name(self.by));
        match self.texts().first().outside {
            Some(_) => format!("{name} (not the allocator's)").into(),
            None => name.into(),
        }
    }
}

/// Choices that the rows of a table depend on.
#[derive(PartialEq)]
struct RowChoice {
    device: Option<TensorDevice>,
    by: GroupBy,
    sort: TableSort,
    pattern: String,
}

#[derive(Default)]
pub struct TensorList {
    table: Option<Arc<TensorTable>>,
    device: Option<TensorDevice>,
    by: GroupBy,
    shown: Option<Rc<ShownDevice>>,
    /// Choices for the rows that were made last.
    built: Option<RowChoice>,
}

impl TensorList {
    fn choice(&self, query: &Query<TensorKey>) -> RowChoice {
        RowChoice {
            device: self.device,
            by: self.by,
            sort: query.sort,
            pattern: query.filter.pattern().to_owned(),
        }
    }

    fn devices(&self) -> &[DeviceTable] {
        self.table.as_ref().map_or(&[], |table| &table.devices)
    }

    fn shown_device(&self) -> Option<&DeviceTable> {
        self.shown.as_deref().map(ShownDevice::device)
    }

    fn show(&mut self) {
        let mut devices = self.devices().iter();
        let at = devices.position(|table| Some(table.device) == self.device);
        let at = at.unwrap_or(0);
        let table = self.table.as_ref().filter(|table| at < table.devices.len());
        self.shown = table.map(|table| {
            let sites = table.devices[at].rows().iter();
            let sites = sites.filter_map(|row| row.site());
            Rc::new(ShownDevice {
                names: FileNames::of(sites.map(|site| &site.file)),
                table: Arc::clone(table),
                at,
            })
        });
    }

    fn go_device(&mut self, by: isize) -> Reaction {
        let devices = self.devices().iter();
        let all: Vec<TensorDevice> = devices.map(|table| table.device).collect();
        if all.len() < 2 {
            return Reaction::Note("tensors lie on one device only".into());
        }
        let shown = self.shown_device().map(|table| table.device);
        self.device = shown.and_then(|shown| further(&all, shown, by));
        Reaction::Done
    }
}

static PARTS: ScreenParts<TensorData> = ScreenParts {
    tab: Some(Tab::Tensors),
    columns: &COLUMNS,
    searched: "names, kind, shape, module and line",
    keys: &[
        ("Enter", "detail", 2),
        ("R", "read again", 1),
        ("i", "group", 4),
    ],
    help: "\
Enter       all names, storage, block, and who shares it
R or F5     read the process again; it is paused for a moment
w           save these tensors, for `memprobe snapshot` and `diff`
i           group: tensor, shape, kind, module, line, retainer, no fold
",
    terms: "\
ALLOCATED   bytes of the allocator, rounding included
SIZE        bytes of its elements; a view may be small
(->name)    it shares the storage whose bytes `name` has
3 * (8, 8)  three equal tensors in one row
saved       saved for the backward pass, by this operation
(no tensor) a block without a tensor: workspaces, NCCL
(inferred)  a name that does not follow from references alone
",
};

impl Content for TensorList {
    type Key = TensorKey;
    type Data = TensorData;
    type Context = ProcessContext;

    fn parts(&self) -> &'static ScreenParts<TensorData> {
        &PARTS
    }

    fn head(&self, column: &Column<TensorData>) -> &'static str {
        match (column.head, self.by) {
            ("NAME", GroupBy::Module) => "MODULE",
            ("NAME", GroupBy::Site) => "ALLOCATED AT",
            ("NAME", GroupBy::Retainer) => "RETAINED BY",
            (head, _) => head,
        }
    }

    fn hint(&self) -> Option<String> {
        let mut groupings = GROUPINGS.iter();
        let grouping = groupings.find(|(by, _)| *by == self.by);
        let (_, text) = grouping.filter(|_| self.table.is_some())?;
        Some((*text).to_owned())
    }

    fn build(&mut self, query: &mut Query<TensorKey>, context: &ProcessContext) -> TableOf<Self> {
        self.table.clone_from(&context.tensor_table);
        self.show();
        self.built = Some(self.choice(query));
        let column = &COLUMNS[query.sort.column];
        let mut orders = ORDERS.iter();
        let order = orders.find(|(head, _)| *head == column.head);
        let order = order.map(|(_, order)| *order).unwrap_or_default();
        let first = column.screen.and_then(|screen| screen.order);
        let is_reversed = first != Some(query.sort.order);
        rows::table(self, order, is_reversed, query)
    }

    /// A cursor that moves changes no row: half a million tensors take seconds to group.
    fn has_changed(&self, query: &Query<TensorKey>, context: &ProcessContext) -> bool {
        let is_same_table = match (&self.table, &context.tensor_table) {
            (Some(built), Some(table)) => Arc::ptr_eq(built, table),
            (built, table) => built.is_none() && table.is_none(),
        };
        !is_same_table || self.built != Some(self.choice(query))
    }

    fn enter(&self, _row: &RowOf<Self>) -> Reaction {
        Reaction::Detail
    }

    fn place(&self, row: &RowOf<Self>) -> Option<SourcePlace> {
        SourcePlace::of(row.data.texts().first().site()?)
    }

    fn handle(
        &mut self,
        event: InputEvent,
        state: &mut TableState<TensorKey>,
        context: &ProcessContext,
    ) -> Reaction {
        match event {
            InputEvent::Refresh if matches!(context.tensors, Tensors::Taking(_)) => {
                return Reaction::Note("the process is being read already".into());
            }
            InputEvent::Refresh => {
                return Reaction::Request(ScreenRequest::Send(Command::TakeTensors));
            }
            InputEvent::Save => {
                return Reaction::Request(ScreenRequest::Send(Command::SaveTensors));
            }
            InputEvent::Regroup => {
                let groupings = GROUPINGS.map(|(by, _)| by);
                self.by = further(&groupings, self.by, 1).unwrap_or_default();
                (state.selection.key, state.overlay) = (None, None);
            }
            InputEvent::Device(by) => {
                (state.selection.key, state.overlay) = (None, None);
                return self.go_device(by);
            }
            InputEvent::Pause | InputEvent::Freeze => {
                return Reaction::Note("this screen is a snapshot: R reads again".into());
            }
            _ => return Reaction::Ignored,
        }
        Reaction::Done
    }

    fn needs(&self, _width: u16, height: u16, context: &ProcessContext) -> Needs {
        Needs {
            devices: u16::from(height >= 12 && self.table.is_some()),
            ..context.needs(height)
        }
    }

    fn devices(&self, _context: &ProcessContext) -> DeviceTabs {
        let shown = self.shown_device().map(|table| table.device);
        let tab = |table: &DeviceTable| {
            let held = table.account.totals.map(|totals| totals.allocated);
            let held = held.unwrap_or_else(|| table.account.held());
            format!("{} {}", table.device, human(held))
        };
        let mut devices = self.devices().iter();
        DeviceTabs {
            tabs: self.devices().iter().map(tab).collect(),
            shown: devices
                .position(|table| Some(table.device) == shown)
                .unwrap_or(0),
        }
    }

    fn status(&self, context: &ProcessContext, theme: &Theme) -> StatusLine {
        let word = match &context.tensors {
            Tensors::Taking(_) | Tensors::Unasked => ("READING", theme.still()),
            Tensors::Taken(_) => ("SNAPSHOT", theme.good()),
            Tensors::Failed(_) => ("FAILED", theme.bad()),
        };
        let text = match (&context.tensors, &self.table) {
            (Tensors::Failed(reason), Some(_)) => {
                format!("the last reading is shown: {}", clean(reason))
            }
            (Tensors::Failed(_), None) => "R tries again".to_owned(),
            (Tensors::Taking(line), _) => clean(line),
            (_, Some(table)) => facts(table),
            (_, None) => String::new(),
        };
        StatusLine {
            word,
            text: Some(text),
            ..StatusLine::default()
        }
    }

    fn account(&self, _context: &ProcessContext) -> Option<String> {
        let account = &self.shown_device()?.account;
        let mut facts = Vec::new();
        if let Some(totals) = account.totals {
            facts.push(format!("allocated {}", human(totals.allocated)));
        }
        facts.push(format!("tensors {}", human(account.tensors)));
        let add = |one: Bytes, other: Bytes| Bytes(one.0.saturating_add(other.0));
        let more = [
            ("no tensor", add(account.blocks, account.bare)),
            ("tensors not read, or none", account.unread),
            ("rounding", add(account.rounding, account.uncovered)),
            ("not the allocator's", account.outside),
        ];
        let more = more.iter().filter(|(_, bytes)| *bytes != Bytes(0));
        facts.extend(more.map(|(words, bytes)| format!("{words} {}", human(*bytes))));
        if let Some(rest) = account.remainder.filter(|rest| *rest != 0) {
            facts.push(format!("remainder {}", signed(rest)));
        }
        Some(format!("  {}", facts.join("   ")))
    }

    fn nothing(screen: &TableScreen<Self>, context: &ProcessContext) -> Option<[Note; 2]> {
        let filter = &screen.state.query.filter;
        let (first, second) = match (&context.tensors, &screen.content.table) {
            _ if !screen.table.rows.is_empty() => return None,
            (_, Some(_)) if filter.is_active() && screen.table.all > 0 => {
                return screen.no_match("tensor", "tensors");
            }
            (Tensors::Failed(reason), None) => {
                let reason = clean(reason);
                let (first, second) = reason
                    .split_once("\\n")
                    .unwrap_or((&reason, "R tries again."));
                return Some([first.to_owned().into(), second.to_owned().into()]);
            }
            (_, Some(_)) => ("No tensors on this device.", "Tab shows the next device."),
            (Tensors::Taking(line), None) => {
                let first = "Reading the tensors of the process.";
                return Some([first.into(), clean(line).into()]);
            }
            (_, None) => (
                "Reading the tensors of the process.",
                "The process is paused for a moment, then goes on.",
            ),
        };
        Some([first.into(), second.into()])
    }

    fn total(&self, _context: &ProcessContext) -> Option<(i128, &'static str)> {
        let account = &self.shown_device()?.account;
        Some((account.totals?.allocated.0.into(), "allocated"))
    }

    fn sum(&self, table: &TableOf<Self>, filters: bool) -> Option<String> {
        let account = &self.shown_device()?.account;
        let sum = human(Bytes(u64::try_from(table.all_bytes).unwrap_or(0)));
        let remainder = account.remainder.unwrap_or(0);
        match account.totals {
            _ if filters => None,
            None => Some(format!("sum {sum}, {}", counted(table.all as u64, "row"))),
            Some(_) if remainder == 0 => None,
            Some(_) => {
                let reason = account.reason.map_or("", |reason| reason.as_str());
                let off = signed(remainder);
                Some(format!("sum {sum}, {off} to what is allocated: {reason}"))
            }
        }
    }

    fn detail(&self, row: &RowOf<Self>, _wide: usize, _cut: &str) -> Vec<String> {
        vec![rows::summary(&row.data)]
    }

    fn full_detail(&self, row: &RowOf<Self>, theme: &Theme) -> (&'static str, Vec<Line<'static>>) {
        (" Tensor ", rows::detail(&row.data, theme))
    }
}

fn facts(table: &TensorTable) -> String {
    let taken = time_of_day(table.taken_ms);
    let mut facts = vec![format!("{taken}; {}", consistency(table.consistency))];
    facts.push(counted(table.objects, "object"));
    if let Some(unread) = table.unread.first() {
        let more = match table.unread.len() {
            1 => String::new(),
            all => format!(" (and {} more)", all - 1),
        };
        facts.push(format!("UNREAD: {}{more}", clean(unread)));
    }
    facts.join("   ")
}

/// Formats `16:00:05 UTC`.
fn time_of_day(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000 % 86_400;
    format!(
        "{:02}:{:02}:{:02} UTC",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}
