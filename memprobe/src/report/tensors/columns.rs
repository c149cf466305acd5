//! Columns of the tables of tensors, and of their changes.

use super::text::common_site;
use crate::event::{Bytes, Frame};
use crate::tensors::{DeviceTable, Group, Row};
use crate::view::table::{Cell, Column, Cut};
use crate::view::{shape, tensors_label};

/// A group of tensors, or bytes that no tensor explains. In CSV, `allocated` of all rows of a
/// device adds up to the allocator's total, or to its change.
#[derive(Default)]
pub(super) struct GroupRow<'a> {
    /// `+`, `-` or `~`; in differences only.
    pub(super) sign: &'static str,
    pub(super) rows: &'a [Row],
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

/// Cells for text.
#[derive(Default)]
pub(super) struct GroupText {
    /// Bytes with those outside the allocator, or their change.
    pub(super) bytes: Cell<'static>,
    pub(super) size: Cell<'static>,
    /// Kind, shape, element type and `requires_grad`.
    pub(super) what: [String; 4],
    pub(super) name: String,
    /// Line that allocated the group.
    pub(super) site: Option<String>,
}

impl<'a> GroupRow<'a> {
    pub(super) fn new(rows: &'a [Row], group: &Group) -> Self {
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

    fn first(&self) -> Option<&'a Row> {
        Some(&self.rows[*self.group.first()?])
    }

    /// The row of a group of one.
    fn only(&self) -> Option<&'a Row> {
        self.first().filter(|_| self.group.len() == 1)
    }

    /// Value that all rows of the group have.
    fn common<T: PartialEq>(&self, value: impl Fn(&'a Row) -> Option<T>) -> Option<T> {
        let first = value(self.first()?)?;
        let mut rows = self.group.iter().map(|&at| &self.rows[at]);
        rows.all(|row| value(row).as_ref() == Some(&first))
            .then_some(first)
    }

    fn site(&self) -> Option<&'a Frame> {
        self.first()?;
        common_site(self.rows, &self.group)?.site.as_ref()
    }

    fn device(&self) -> Option<String> {
        match &self.remainder {
            Some((device, _)) => Some(device.clone()),
            None => self.first().map(|first| first.device.to_string()),
        }
    }

    fn names(&self) -> Option<String> {
        let names = self.only()?.names.iter().map(|name| &*name.text);
        Some(names.collect::<Vec<_>>().join("; "))
    }
}

/// Bytes as a signed number, for columns that may be negative.
pub(super) fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}

type TensorColumn<'a> = Column<GroupRow<'a>>;

/// Columns of a table of tensors; `name` heads the last one.
pub(super) fn columns<'a>(name: &'static str) -> Vec<TensorColumn<'a>> {
    let mut columns: Vec<TensorColumn<'a>> = vec![
        Column::figure("ALLOCATED", |row| row.text.bytes.clone()),
        Column::figure("SIZE", |row| row.text.size.clone()),
    ];
    columns.extend(text_columns(name));
    columns.extend(data_columns());
    columns
}

/// Columns of a table of changes.
pub(super) fn change_columns<'a>() -> Vec<TensorColumn<'a>> {
    let mut columns: Vec<TensorColumn<'a>> = vec![
        Column::text("change", "", |row| row.sign.into()),
        Column::figure("CHANGE", |row| row.text.bytes.clone()),
    ];
    columns.extend(text_columns("NAME"));
    columns.extend(data_columns());
    columns
}

fn text_columns<'a>(name: &'static str) -> Vec<TensorColumn<'a>> {
    vec![
        Column::label("KIND", |row| (&*row.text.what[0]).into()),
        TensorColumn::label("SHAPE", |row| (&*row.text.what[1]).into()).width(40, 40),
        Column::label("DTYPE", |row| (&*row.text.what[2]).into()),
        Column::label("GRAD", |row| (&*row.text.what[3]).into()),
        TensorColumn::label(name, |row| (&*row.text.name).into())
            .width(24, usize::MAX)
            .cut(Cut::Middle),
        Column::trail(|row| {
            let site = row.text.site.iter();
            Cell::List(site.map(|site| format!("at {site}").into()).collect())
        }),
    ]
}

fn data_columns<'a>() -> Vec<TensorColumn<'a>> {
    vec![
        Column::data("device", |row| row.device().into()),
        Column::data("kind", |row| match row.remainder {
            Some(_) => "remainder".into(),
            None => row.common(|row| Some(row.kind.as_str())).into(),
        }),
        Column::data("count", |row| Cell::Count(row.group.len() as u64)),
        Column::data("name", |row| match row.remainder {
            Some((_, reason)) => reason.into(),
            None => tensors_label(row.rows, &row.group).into(),
        }),
        Column::data("names", |row| row.names().into()),
        Column::data("shape", |row| {
            row.common(|row| row.shape.as_deref().map(shape)).into()
        }),
        Column::data("dtype", |row| {
            row.common(|row| row.dtype)
                .map(|dtype| dtype.to_string())
                .into()
        }),
        Column::data("bytes", |row| row.size.into()),
        Column::data("allocated", |row| Cell::Signed(row.allocated)),
        Column::data("outside", |row| {
            Some(row.outside).filter(|bytes| bytes.0 > 0).into()
        }),
        Column::data("storage", |row| {
            row.only()
                .and_then(|row| row.storage)
                .map(|storage| storage.to_string())
                .into()
        }),
        Column::data("storage_bytes", |row| {
            row.only().and_then(|row| row.storage_bytes).into()
        }),
        Column::data("requires_grad", |row| {
            let tensor = row.first().filter(|first| first.shape.is_some());
            tensor.map(|tensor| tensor.requires_grad).into()
        }),
        Column::data("grad_fn", |row| {
            row.common(|row| row.grad_fn.as_deref()).into()
        }),
        Column::data("saved_by", |row| {
            row.common(|row| row.saved_by.as_deref()).into()
        }),
        Column::data("module", |row| {
            row.common(|row| row.module.as_deref()).into()
        }),
        Column::data("file", |row| row.site().map(|site| &*site.file).into()),
        Column::data("line", |row| {
            row.site()
                .map(|site| site.line)
                .filter(|line| *line > 0)
                .into()
        }),
        Column::data("function", |row| {
            row.site().map(|site| &*site.function).into()
        }),
    ]
}
