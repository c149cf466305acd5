//! Names of tensors, storages and blocks.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use super::names::{BEFORE_ATTACH, FileNames};
use super::number::{count, counted};
use super::table::{Cell, Column, Cut, Tone, columns};
use super::text::{CUT, clean};
use crate::event::bytes::human;
use crate::event::tensors::{Consistency, Name, Retainer, TensorKind};
use crate::tensors::{GroupBy, Row, RowKind, SnapshotRows};

/// Dimensions shown before a shape is cut.
const DIMENSIONS: usize = 12;

/// Formats a shape like a Python tuple: `(256, 3)`, `(64,)`, `()`.
pub fn shape(sizes: &[u64]) -> String {
    let mut text = String::from("(");
    for (at, size) in sizes.iter().take(DIMENSIONS).enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}{size}");
    }
    match sizes.len() {
        1 => text.push(','),
        0..=DIMENSIONS => {}
        _ => {
            text.push_str(", ");
            text.push_str(CUT);
        }
    }
    text.push(')');
    text
}

/// Returns the kind of a row in one short word.
pub const fn tensor_kind(kind: RowKind) -> &'static str {
    match kind {
        RowKind::Tensor(TensorKind::OptimizerState) => "optimizer",
        RowKind::Tensor(kind) => kind.as_str(),
        RowKind::Storage => "storage",
        RowKind::Block | RowKind::BlockUnread => "block",
    }
}

/// Returns the best name of a row, or else a description in parentheses.
pub fn tensor_name(row: Row<'_>) -> String {
    if let Some(name) = row.name() {
        return match name.inferred {
            None => clean(&name.text),
            Some(_) => format!("{} (inferred)", clean(&name.text)),
        };
    }
    if let Some(purpose) = row.purpose {
        return format!("({})", clean(purpose));
    }
    match (row.kind, row.saved_by(), row.grad_fn(), row.class()) {
        (RowKind::Block, ..) => "(no tensor)".to_owned(),
        (RowKind::BlockUnread, ..) => "(tensor not read, or none)".to_owned(),
        (RowKind::Storage, ..) => "(storage without a tensor)".to_owned(),
        (_, Some(operation), ..) => format!("(saved by {})", clean(operation)),
        (_, None, Some(operation), _) => format!("(result of {})", clean(operation)),
        (.., Some(class)) => format!("(unnamed {})", clean(class)),
        _ => "(unnamed)".to_owned(),
    }
}

/// Returns [`tensor_name`], followed by `(->other)` if the row at `at` shares another row's storage.
pub fn tensor_label(rows: SnapshotRows<'_>, at: usize) -> String {
    let Some(row) = rows.get(at) else {
        return String::new();
    };
    let name = tensor_name(row);
    match row.owner.and_then(|owner| rows.get(owner)) {
        Some(owner) => format!("{name} (->{})", tensor_name(owner)),
        None => name,
    }
}

/// Returns the label of rows shown as one, followed by `(->12 others)` if they share several other rows'
/// storages. Panics if `group` is empty or a row is out of range.
pub fn tensors_label(rows: SnapshotRows<'_>, group: &[usize]) -> String {
    let owners: BTreeSet<usize> = group.iter().filter_map(|&at| rows.at(at).owner).collect();
    match owners.len() {
        0 | 1 => tensor_label(rows, group[0]),
        others => format!(
            "{} (->{} others)",
            tensor_name(rows.at(group[0])),
            count(others as u64)
        ),
    }
}

/// Row in a table of tensors, on the live screen and in reports.
pub trait TensorCells {
    /// Bytes of the allocator, with those outside it.
    fn allocated(&self) -> Cell<'_>;
    fn size(&self) -> Cell<'_>;
    fn kind(&self) -> Cell<'_>;
    fn shape(&self) -> Cell<'_>;
    fn dtype(&self) -> Cell<'_>;
    fn grad(&self) -> Cell<'_>;
    fn name(&self) -> Cell<'_>;
}

/// Columns of bytes.
pub const fn tensor_size_columns<R: TensorCells>() -> [Column<R>; 2] {
    columns![|row: R|
        figure("ALLOCATED").screen(11, 0).tone(Tone::Strong) => row.allocated(),
        figure("SIZE").screen(11, 96) => row.size(),
    ]
}

/// Columns of properties; `name` heads the last one.
pub const fn tensor_columns<R: TensorCells>(name: &'static str) -> [Column<R>; 5] {
    columns![|row: R|
        label("KIND").screen(9, 56) => row.kind(),
        label("SHAPE").width(40, 40).screen(22, 64) => row.shape(),
        label("DTYPE").screen(8, 84).order(None) => row.dtype(),
        label("GRAD").screen(4, 116).order(None) => row.grad(),
        label(name).width(24, usize::MAX).cut(Cut::Middle).screen(0, 0) => row.name(),
    ]
}

/// Texts of a group of rows, which is not empty.
#[derive(Clone, Copy)]
pub struct TensorGroup<'a> {
    pub rows: SnapshotRows<'a>,
    pub group: &'a [usize],
    pub names: &'a FileNames,
}

impl<'a> TensorGroup<'a> {
    pub fn first(self) -> Row<'a> {
        self.rows.at(self.group[0])
    }

    fn agrees<T: PartialEq>(self, property: impl Fn(Row<'a>) -> T) -> bool {
        let first = property(self.first());
        let mut rows = self.group.iter().map(|&at| self.rows.at(at));
        rows.all(|row| property(row) == first)
    }

    /// Returns the kind of all rows; `-` if they differ, as in the other columns.
    pub fn kind(self) -> &'static str {
        if self.agrees(|row| row.kind) {
            tensor_kind(self.first().kind)
        } else {
            "-"
        }
    }

    /// Returns the number of rows, and their shape or else size.
    pub fn shape(self) -> String {
        let number = self.group.len() as u64;
        if !self.agrees(|row| (row.shape(), row.size)) {
            return counted(number, "row");
        }
        let text = match (self.first().shape(), self.first().size) {
            (Some(sizes), _) => shape(sizes),
            (None, size) => size.map_or_else(|| "-".to_owned(), human),
        };
        match number {
            1 => text,
            more => format!("{more} * {text}"),
        }
    }

    pub fn dtype(self) -> String {
        let dtype = self
            .first()
            .dtype()
            .filter(|_| self.agrees(|row| row.dtype()));
        dtype.map_or_else(|| "-".to_owned(), |dtype| dtype.to_string())
    }

    pub fn grad(self) -> &'static str {
        match self.first().kind {
            RowKind::Storage | RowKind::Block | RowKind::BlockUnread => "-",
            _ if !self.agrees(|row| row.requires_grad()) => "some",
            _ if self.first().requires_grad() => "yes",
            _ => "no",
        }
    }

    /// Returns the line that allocated all rows, empty if it is unknown; `None` if lines differ.
    pub fn site(self) -> Option<String> {
        let row = self.first();
        self.agrees(|row| row.site())
            .then(|| match (row.site(), row.kind) {
                (Some(frame), _) => self.names.frame(frame),
                (None, RowKind::Block | RowKind::BlockUnread) => BEFORE_ATTACH.to_owned(),
                (None, _) => String::new(),
            })
    }

    pub fn name(self, by: GroupBy) -> String {
        let row = self.first();
        let is_named = || {
            self.group
                .iter()
                .any(|&at| self.rows.at(at).name().is_some())
        };
        match (by, self.group) {
            (GroupBy::Module, _) => match row.module() {
                Some(module) => clean(module),
                None => "(no module)".to_owned(),
            },
            (GroupBy::Site, _) => match self.site() {
                Some(site) if !site.is_empty() => site,
                _ => "(not seen)".to_owned(),
            },
            (GroupBy::Retainer, _) => retainer(row.retainer().map(|retainer| &**retainer)),
            (GroupBy::Kind, group) => counted(group.len() as u64, "row"),
            (_, [first, more @ ..]) if !more.is_empty() && is_named() => {
                let first = tensor_label(self.rows, *first);
                format!("{first} and {} more", more.len())
            }
            _ => tensors_label(self.rows, self.group),
        }
    }
}

/// Returns the root that keeps memory alive: a variable, or a container with its class.
pub fn retainer(retained_by: Option<&Retainer>) -> String {
    let Some(retained_by) = retained_by else {
        return "(no named retainer)".to_owned();
    };
    match &retained_by.class {
        Some(class) => format!("{} ({})", clean(&retained_by.by), clean(class)),
        None => clean(&retained_by.by),
    }
}

/// Returns [`retainer`] with the reference path and whether it is the only root found.
pub fn full_retainer(retained_by: &Retainer) -> String {
    let mut words = retainer(Some(retained_by));
    if let Some(slot) = retained_by
        .slot
        .as_ref()
        .filter(|slot| **slot != retained_by.by)
    {
        words.push_str(&format!(", by {}", clean(slot)));
    }
    if let Some(through) = &retained_by.through {
        words.push_str(&format!(" through {}", clean(through)));
    }
    words.push_str(if retained_by.exclusive {
        "; no other retainer found"
    } else {
        "; with other retainers"
    });
    words
}

/// Returns a name with the rule that inferred it, if one did.
pub fn whole_tensor_name(name: &Name) -> String {
    match name.inferred {
        None => clean(&name.text),
        Some(rule) => format!("{} (inferred: {})", clean(&name.text), clean(rule)),
    }
}

/// Describes whether a snapshot is of a single moment, and how long it paused the process.
pub fn consistency(consistency: Consistency) -> String {
    match consistency {
        Consistency::Running => {
            "the process ran while it was read: rows may be of different moments".to_owned()
        }
        Consistency::Paused { pause, retries } => {
            let paused = format!("the process was paused for {}", milliseconds(pause));
            match retries {
                0 => paused,
                _ => format!(
                    "{paused}, after {}",
                    counted(retries.into(), "failed attempt")
                ),
            }
        }
    }
}

/// Formats `12.3 ms`; whole milliseconds from 100 on.
pub fn milliseconds(length: Duration) -> String {
    let milliseconds = length.as_secs_f64() * 1e3;
    if milliseconds < 99.95 {
        format!("{milliseconds:.1} ms")
    } else {
        format!("{} ms", count(milliseconds.round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_written_as_python_writes_them_and_end() {
        assert_eq!(shape(&[]), "()");
        assert_eq!(shape(&[64]), "(64,)");
        assert_eq!(shape(&[256, 3]), "(256, 3)");
        assert_eq!(shape(&[1; 100]), "(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, …)");
    }

    #[test]
    fn a_pause_is_shown_with_its_duration() {
        let paused = |micros, retries| {
            let pause = Duration::from_micros(micros);
            consistency(Consistency::Paused { pause, retries })
        };
        assert_eq!(paused(12_345, 0), "the process was paused for 12.3 ms");
        assert_eq!(
            paused(1_234_567, 2),
            "the process was paused for 1,235 ms, after 2 failed attempts"
        );
    }
}
