//! Columns of the tables of tensors, and of their changes.

use crate::event::{Bytes, Frame};
use crate::tensors::{DeviceTable, Group, Row, SnapshotRows};
use crate::view::cells::known_line;
use crate::view::table::{Cell, Column, columns};
use crate::view::{TensorCells, shape, tensor_columns, tensor_size_columns, tensors_label};

/// A group of tensors, or bytes that no tensor explains. In CSV, `allocated` of all rows of a
/// device adds up to the allocator's total, or to its change.
#[derive(Default)]
pub(super) struct GroupRow<'a> {
    /// `+`, `-` or `~`; in differences only.
    pub(super) sign: &'static str,
    pub(super) rows: SnapshotRows<'a>,
    /// Indices of the rows; empty for bytes without a tensor.
    pub(super) group: Vec<usize>,
    /// Bytes of the allocator, or their change.
    pub(super) allocated: i64,
    pub(super) outside: Bytes,
    pub(super) size: Option<Bytes>,
    /// Device with bytes that no row explains, and the reason.
    pub(super) remainder: Option<(String, &'static str)>,
    pub(super) text: GroupText,
}

#[derive(Default)]
pub(super) struct GroupText {
    /// Bytes with those outside the allocator, or their change.
    pub(super) bytes: Cell<'static>,
    pub(super) size: Cell<'static>,
    /// Kind, shape, element type and `requires_grad`.
    pub(super) what: [String; 4],
    pub(super) name: String,
    pub(super) site: Option<String>,
}

impl<'a> GroupRow<'a> {
    pub(super) fn new(rows: SnapshotRows<'a>, group: &Group) -> Self {
        Self {
            rows,
            group: group.rows.clone(),
            allocated: signed(group.holds),
            outside: group.outside,
            size: group.size,
            ..Self::default()
        }
    }

    /// Bytes of the allocator that no other row explains.
    pub(super) fn remainder(device: &DeviceTable) -> Option<Self> {
        let account = &device.account;
        let reason = account.reason.map_or("", |reason| reason.as_str());
        Some(Self {
            allocated: account.remainder.filter(|rest| *rest != 0)?,
            remainder: Some((device.device.to_string(), reason)),
            ..Self::default()
        })
    }

    fn first(&self) -> Option<Row<'a>> {
        self.rows.get(*self.group.first()?)
    }

    fn only(&self) -> Option<Row<'a>> {
        self.first().filter(|_| self.group.len() == 1)
    }

    /// Value that all rows of the group have.
    fn common<T: PartialEq>(&self, value: impl Fn(Row<'a>) -> Option<T>) -> Option<T> {
        let first = value(self.first()?)?;
        let mut rows = self.group.iter().map(|&at| self.rows.at(at));
        rows.all(|row| value(row).as_ref() == Some(&first))
            .then_some(first)
    }

    fn site(&self) -> Option<&'a Frame> {
        self.common(|row| row.site())
    }

    fn device(&self) -> Option<String> {
        match &self.remainder {
            Some((device, _)) => Some(device.clone()),
            None => self.first().map(|first| first.device.to_string()),
        }
    }

    fn names(&self) -> Option<String> {
        let names = self.only()?.names().iter().map(|name| &*name.text);
        Some(names.collect::<Vec<_>>().join("; "))
    }
}

impl TensorCells for GroupRow<'_> {
    fn allocated(&self) -> Cell<'_> {
        self.text.bytes.clone()
    }

    fn size(&self) -> Cell<'_> {
        self.text.size.clone()
    }

    fn kind(&self) -> Cell<'_> {
        (&self.text.what[0]).into()
    }

    fn shape(&self) -> Cell<'_> {
        (&self.text.what[1]).into()
    }

    fn dtype(&self) -> Cell<'_> {
        (&self.text.what[2]).into()
    }

    fn grad(&self) -> Cell<'_> {
        (&self.text.what[3]).into()
    }

    fn name(&self) -> Cell<'_> {
        (&self.text.name).into()
    }
}

/// Bytes as a signed number, for columns that may be negative.
pub(super) fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}

/// Columns of a table of tensors; `name` heads the last one.
pub(super) fn columns<'a>(name: &'static str) -> Vec<Column<GroupRow<'a>>> {
    with_common(name, tensor_size_columns())
}

pub(super) fn change_columns<'a>() -> Vec<Column<GroupRow<'a>>> {
    with_common(
        "NAME",
        columns![|row: GroupRow<'a>|
            text("change", "") => row.sign,
            figure("CHANGE") => row.text.bytes.clone(),
        ],
    )
}

fn with_common<'a>(
    name: &'static str,
    first: [Column<GroupRow<'a>>; 2],
) -> Vec<Column<GroupRow<'a>>> {
    let mut all = Vec::from(first);
    all.extend(tensor_columns(name));
    all.extend(columns![|row: GroupRow<'a>|
        trail() => Cell::list(row.text.site.iter().map(|site| format!("at {site}"))),
        data("device") => row.device(),
        data("kind") => match row.remainder {
            Some(_) => Some("remainder"),
            None => row.common(|row| Some(row.kind.as_str())),
        },
        data("count") => Cell::Count(row.group.len() as u64),
        data("name") => match row.remainder {
            Some((_, reason)) => reason.to_owned(),
            None => tensors_label(row.rows, &row.group),
        },
        data("names") => row.names(),
        data("shape") => row.common(|row| row.shape().map(shape)),
        data("dtype") => row.common(|row| row.dtype()).map(|dtype| dtype.to_string()),
        data("bytes") => row.size,
        data("allocated") => Cell::Signed(row.allocated),
        data("outside") => Some(row.outside).filter(|bytes| bytes.0 > 0),
        data("storage") => row.only().and_then(|row| row.storage).map(|storage| storage.to_string()),
        data("storage_bytes") => row.only().and_then(|row| row.storage_bytes),
        data("requires_grad") => row.first().filter(|row| row.shape().is_some()).map(|row| row.requires_grad()),
        data("grad_fn") => row.common(|row| row.grad_fn().map(|name| &**name)),
        data("saved_by") => row.common(|row| row.saved_by().map(|name| &**name)),
        data("module") => row.common(|row| row.module().map(|path| &**path)),
        data("file") => row.site().map(|site| &*site.file),
        data("line") => row.site().and_then(known_line),
        data("function") => row.site().map(|site| &*site.function),
    ]);
    all
}
