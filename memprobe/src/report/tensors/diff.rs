//! Difference of two tensor tables, as text.

use super::columns::{Align, Cells, push};
use super::text::{common_site, file_names, group_name, what};
use super::{TensorOptions, heading};
use crate::event::Bytes;
use crate::event::bytes::{human, signed};
use crate::event::tensors::Device;
use crate::report::Top;
use crate::report::table::{push_line, strong, warning, wrap};
use crate::tensors::{Account, DeviceDiff, DeviceTable, Group, Row, TensorDiff, groups_of};
use crate::view::{CUT, FileNames, counted, duration, fit, tensor_kind, tensor_label, tensor_name};

const HEAD: [(&str, Align); 6] = [
    ("", Align::Left),
    ("CHANGE", Align::Right),
    ("KIND", Align::Left),
    ("SHAPE", Align::Left),
    ("DTYPE", Align::Left),
    ("GRAD", Align::Left),
];

/// Returns the whole report.
pub(super) fn render(diff: &TensorDiff, options: &TensorOptions) -> String {
    let mut text = String::new();
    for line in heading::target(&diff.after.target) {
        push_line(&mut text, &fit(&line, options.width, CUT));
    }
    if !diff.same_process {
        let other = heading::target(&diff.before.target).join("  ");
        let note = format!(
            "note: the first snapshot is of another process ({other}): tensors are compared by name, kind, shape and \
             dtype only"
        );
        for line in wrap(&note, options.width) {
            push_line(&mut text, &warning(options.colour, &line));
        }
    }
    for line in wrap(&moments(diff), options.width) {
        push_line(&mut text, &line);
    }
    for note in heading::notes(&diff.after) {
        for line in wrap(&note, options.width) {
            push_line(&mut text, &warning(options.colour, &line));
        }
    }
    for change in &diff.devices {
        if change.device != Device::Meta {
            push_device(&mut text, diff, change, options);
        }
    }
    if diff.devices.is_empty() {
        push_line(&mut text, "");
        push_line(&mut text, "No tensors on a GPU in either.");
    }
    text
}

fn moments(diff: &TensorDiff) -> String {
    let (before, after) = (diff.before.taken_ms, diff.after.taken_ms);
    let length = std::time::Duration::from_millis(before.abs_diff(after));
    let order = if after < before { "earlier" } else { "later" };
    format!(
        "from {} to {} ({} {order})",
        heading::moment(before),
        heading::moment(after),
        duration(length)
    )
}

fn push_device(text: &mut String, diff: &TensorDiff, change: &DeviceDiff, options: &TensorOptions) {
    let (before, after) = (diff.before_on(change.device), diff.after_on(change.device));
    push_line(text, "");
    let title = title(change.device, before, after);
    push_line(
        text,
        &strong(options.colour, &fit(&title, options.width, CUT)),
    );
    let both = Both {
        before: before.map_or(&[], |table| &table.rows),
        after: after.map_or(&[], |table| &table.rows),
    };
    let mut cells = both.cells(change, options);
    cells.extend(remainder(before, after));
    if cells.is_empty() {
        push_line(text, "no change");
    } else {
        push(text, &HEAD, "NAME", &cells, options.width, options.colour);
    }
    let moved = change.moved;
    if moved.tensors > 0 {
        let words = format!(
            "at another address, because freed and allocated again or moved: {} of {}",
            counted(moved.tensors, "equal tensor"),
            human(moved.holds)
        );
        for line in wrap(&words, options.width) {
            push_line(text, &line);
        }
    }
}

/// Such as `cuda:0  allocated 4.12 GiB, was 4.00 GiB: +0.12 GiB`.
fn title(device: Device, before: Option<&DeviceTable>, after: Option<&DeviceTable>) -> String {
    let allocated = |table: Option<&DeviceTable>| {
        let account: &Account = &table?.account;
        account.totals.map(|totals| totals.allocated)
    };
    let held = |table: Option<&DeviceTable>| table.map_or(Bytes(0), |table| table.account.held());
    let (words, was, is) = match (allocated(before), allocated(after)) {
        (None, None) => ("in tensors", held(before), held(after)),
        (was, is) => ("allocated", was.unwrap_or_default(), is.unwrap_or_default()),
    };
    format!(
        "{device}  {words} {}, was {}: {}",
        human(is),
        human(was),
        signed(difference(is, was))
    )
}

fn difference(is: Bytes, was: Bytes) -> i64 {
    let difference = i128::from(is.0) - i128::from(was.0);
    let difference = difference.clamp(i64::MIN.into(), i64::MAX.into());
    i64::try_from(difference).unwrap_or(0)
}

/// Row for a changed remainder, so that the rows add up to the total's change.
fn remainder(before: Option<&DeviceTable>, after: Option<&DeviceTable>) -> Option<Cells> {
    let rest = |table: Option<&DeviceTable>| table.and_then(|table| table.account.remainder);
    let (was, is) = (rest(before).unwrap_or(0), rest(after).unwrap_or(0));
    let reason = |table: Option<&DeviceTable>| table.and_then(|table| table.account.reason);
    let reason = reason(after).or(reason(before));
    let change = is.saturating_sub(was);
    (change != 0).then(|| {
        let reason = reason.map_or("not explained", |reason| reason.as_str());
        line(
            SAME,
            change,
            Default::default(),
            format!("(remainder: {reason})"),
        )
    })
}

const CAME: &str = "+";
const WENT: &str = "-";
const SAME: &str = "~";

/// Rows of a device before and after.
struct Both<'a> {
    before: &'a [Row],
    after: &'a [Row],
}

impl Both<'_> {
    fn cells(&self, change: &DeviceDiff, options: &TensorOptions) -> Vec<Cells> {
        let mut cells = Vec::new();
        let came = groups_of(
            self.after,
            change.came.iter().copied(),
            options.by,
            options.order,
        );
        self.push_groups(&mut cells, self.after, came, CAME, options);
        let went = groups_of(
            self.before,
            change.went.iter().copied(),
            options.by,
            options.order,
        );
        self.push_groups(&mut cells, self.before, went, WENT, options);
        for &(was, is) in &change.resized {
            let (old, new) = (&self.before[was], &self.after[is]);
            let words = match (old.holds.0, new.holds.0) {
                (0, _) => "now has the bytes of its storage",
                (_, 0) if new.owner.is_some() => "another row now has the bytes of its storage",
                (_, 0) => "its storage is now outside every live block",
                _ => "its storage now has another size",
            };
            let name = format!("{} ({words})", tensor_label(self.after, is));
            let change = difference(new.holds, old.holds);
            cells.push(line(SAME, change, what(self.after, &[is]), name));
        }
        for &(was, is) in &change.renamed {
            let (old, new) = (&self.before[was], &self.after[is]);
            let mut before = tensor_name(old);
            if old.kind != new.kind {
                before = format!("{} {before}", tensor_kind(old.kind));
            }
            let name = format!("{} (was {before})", tensor_label(self.after, is));
            cells.push(line(SAME, 0, what(self.after, &[is]), name));
        }
        if let Top::Rows(most) = options.top
            && cells.len() > most
        {
            let hidden = cells.len() - most;
            cells.truncate(most);
            let words = format!("({}: --limit all)", counted(hidden as u64, "other change"));
            let mut rest = line("", 0, Default::default(), words);
            rest.cells[1].clear();
            cells.push(rest);
        }
        cells
    }

    fn push_groups(
        &self,
        cells: &mut Vec<Cells>,
        rows: &[Row],
        groups: Vec<Group>,
        sign: &'static str,
        options: &TensorOptions,
    ) {
        let names: FileNames = file_names(rows);
        for group in groups {
            let bytes = difference(group.holds, Bytes(0))
                .saturating_add(difference(group.outside, Bytes(0)));
            let change = if sign == WENT { -bytes } else { bytes };
            let mut what = what(rows, &group.rows);
            if group.rows.len() == 1 {
                what[1] = format!("1 * {}", what[1]);
            }
            let name = group_name(rows, &group.rows, options.by, &names);
            let mut line = line(sign, change, what, name);
            if !options.by.is_apart_from_lines() {
                line.site = common_site(rows, &group.rows)
                    .and_then(|row| row.site.as_ref())
                    .map(|frame| names.frame(frame))
                    .unwrap_or_default();
            }
            cells.push(line);
        }
    }
}

fn line(sign: &str, change: i64, what: [String; 4], name: String) -> Cells {
    let mut cells = vec![sign.to_owned(), signed(change)];
    cells.extend(what);
    Cells {
        cells,
        name,
        ..Cells::default()
    }
}
