//! Typed values of tables, and their form in each output.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::rc::Rc;
use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::value::RawValue;

use super::{Rows, SortOrder};
use crate::event::bytes::{human, short, signed};
use crate::event::{Address, Bytes, DeviceIndex};
use crate::ledger::snapshot::GrowthRate;
use crate::view::{clean, count, duration, percent, rate, shape};

const UNKNOWN: &str = "-";

#[derive(Clone, Default)]
pub enum Cell<'a> {
    #[default]
    Unknown,
    /// Not applicable.
    Blank,
    /// Left out of objects.
    Absent,
    Bytes(u64),
    /// A difference of bytes.
    Signed(i64),
    Count(u64),
    /// Part and whole; text only.
    Share(i128, i128),
    /// Part and whole, which the live screen draws as a bar.
    Bar(i128, i128),
    /// Points over time, which the live screen draws as so many steps; sorts by growth.
    Trend(&'a [Bytes], usize),
    /// Bytes in the time that the heading names, and whether they grow steadily, which the live screen marks.
    Growth(i64, bool),
    /// A count per unit of time.
    Rate(f64),
    Flag(bool),
    Nanoseconds(u64),
    Device(DeviceIndex),
    /// Hexadecimal except in JSON.
    Address(Address),
    /// A number that no other variant formats, such as the line of a file.
    Number(u64),
    Text(Cow<'a, str>),
    /// Text in place of a value.
    Note(Cow<'a, str>),
    /// Text that sorts by a number.
    Ranked(u64, Cow<'a, str>),
    Path(Direction, Vec<String>),
    Shape(Cow<'a, [u64]>),
    List(Vec<Cell<'a>>),
    Object(Vec<(&'static str, Cell<'a>)>),
    Rows(Rc<dyn Rows + 'a>),
    Json(&'a RawValue),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Outwards, to the callers of the line.
    Callers,
    /// Inwards, to the innermost Python frame.
    Callees,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Two decimals.
    Exact,
    /// Three figures, for tables with many columns.
    Short,
}

impl<'a> Cell<'a> {
    /// The value, or nothing in an object.
    pub fn if_known(value: Option<impl Into<Cell<'a>>>) -> Self {
        value.map_or(Self::Absent, Into::into)
    }

    pub fn list(cells: impl IntoIterator<Item = impl Into<Cell<'a>>>) -> Self {
        Self::List(cells.into_iter().map(Into::into).collect())
    }

    pub const fn is_empty(&self) -> bool {
        matches!(self, Self::Unknown | Self::Blank | Self::Absent)
    }

    pub fn share(part: impl Into<i128>, whole: impl Into<i128>) -> Self {
        Self::Share(part.into(), whole.into())
    }

    /// Compares values of one column; notes and unknown values come last in any order.
    pub fn compare(&self, other: &Self, order: SortOrder) -> Ordering {
        let is_last = |cell: &Self| cell.is_empty() || matches!(cell, Self::Note(_));
        if is_last(self) || is_last(other) {
            return is_last(self).cmp(&is_last(other));
        }
        let ordering = match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Rate(one), Self::Rate(other)) => one.total_cmp(other),
            _ => self.rank().cmp(&other.rank()),
        };
        match order {
            SortOrder::Falling => ordering.reverse(),
            SortOrder::Climbing => ordering,
        }
    }

    /// Number to sort by; 0 for values without one.
    pub fn rank(&self) -> i128 {
        match self {
            Self::Signed(number) | Self::Growth(number, _) => (*number).into(),
            Self::Share(part, _) | Self::Bar(part, _) => *part,
            Self::Bytes(number)
            | Self::Count(number)
            | Self::Number(number)
            | Self::Ranked(number, _) => (*number).into(),
            Self::Trend(points, _) => {
                let end = |point: Option<&Bytes>| point.map_or(0, |bytes| i128::from(bytes.0));
                end(points.last()) - end(points.first())
            }
            _ => 0,
        }
    }

    /// Formats the value for people.
    pub fn text(&self, precision: Precision) -> String {
        match self {
            Self::Unknown => UNKNOWN.to_owned(),
            Self::Bytes(bytes) => match precision {
                Precision::Exact => human(Bytes(*bytes)),
                Precision::Short => short(Bytes(*bytes)),
            },
            Self::Signed(bytes) => signed(*bytes),
            Self::Count(number) => count(*number),
            Self::Share(part, whole) => percent(*part, *whole),
            Self::Rate(number) => rate(*number),
            Self::Nanoseconds(time) => duration(Duration::from_nanos(*time)),
            Self::Device(device) => device.to_string(),
            Self::List(cells) if cells.is_empty() => UNKNOWN.to_owned(),
            Self::List(cells) => joined(cells, ", ", |cell| cell.text(precision)),
            Self::Text(text) | Self::Note(text) | Self::Ranked(_, text) => clean(text),
            _ => self.csv().into_owned(),
        }
    }

    pub fn csv(&self) -> Cow<'_, str> {
        Cow::Owned(match self {
            Self::Unknown
            | Self::Blank
            | Self::Absent
            | Self::Share(..)
            | Self::Bar(..)
            | Self::Trend(..)
            | Self::Device(DeviceIndex::UNKNOWN)
            | Self::Object(_)
            | Self::Rows(_)
            | Self::Json(_) => return Cow::Borrowed(""),
            Self::Bytes(number)
            | Self::Count(number)
            | Self::Nanoseconds(number)
            | Self::Number(number) => number.to_string(),
            Self::Signed(number) | Self::Growth(number, _) => number.to_string(),
            Self::Rate(number) => format!("{number:?}"),
            Self::Flag(flag) => flag.to_string(),
            Self::Device(DeviceIndex::CPU) => DeviceIndex::CPU.to_string(),
            Self::Device(device) => device.0.to_string(),
            Self::Address(address) => format!("{:#x}", address.0),
            Self::Text(text) | Self::Note(text) | Self::Ranked(_, text) => {
                return Cow::Borrowed(text);
            }
            Self::Path(_, steps) => steps.join(" "),
            Self::Shape(sizes) => shape(sizes),
            Self::List(cells) => joined(cells, " ", |cell| cell.csv().into_owned()),
        })
    }
}

fn joined<'a>(cells: &[Cell<'a>], between: &str, text: impl Fn(&Cell<'a>) -> String) -> String {
    cells.iter().map(text).collect::<Vec<_>>().join(between)
}

impl Serialize for Cell<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unknown
            | Self::Blank
            | Self::Absent
            | Self::Share(..)
            | Self::Bar(..)
            | Self::Trend(..)
            | Self::Device(DeviceIndex::UNKNOWN) => to.serialize_none(),
            Self::Bytes(number)
            | Self::Count(number)
            | Self::Nanoseconds(number)
            | Self::Number(number)
            | Self::Address(Address(number)) => to.serialize_u64(*number),
            Self::Signed(number) | Self::Growth(number, _) => to.serialize_i64(*number),
            Self::Rate(number) => to.serialize_f64(*number),
            Self::Flag(flag) => to.serialize_bool(*flag),
            Self::Device(device) => device.serialize(to),
            Self::Text(text) | Self::Note(text) | Self::Ranked(_, text) => to.serialize_str(text),
            Self::Path(_, steps) => steps.serialize(to),
            Self::Shape(sizes) => sizes.serialize(to),
            Self::List(cells) => cells.serialize(to),
            Self::Object(fields) => {
                let mut map = to.serialize_map(None)?;
                for (key, cell) in fields {
                    if !matches!(cell, Self::Absent) {
                        map.serialize_entry(key, cell)?;
                    }
                }
                map.end()
            }
            Self::Rows(rows) => {
                let mut list = to.serialize_seq(None)?;
                let mut written = Ok(());
                rows.each(&mut |row| {
                    if written.is_ok() {
                        written = list.serialize_element(&row);
                    }
                });
                written.and_then(|()| list.end())
            }
            Self::Json(json) => json.serialize(to),
        }
    }
}

/// Conversions of plain values into the variants for them.
macro_rules! from {
    ($($value:ident: $Type:ty => $cell:expr),* $(,)?) => {
        $(impl<'a> From<$Type> for Cell<'a> {
            fn from($value: $Type) -> Self {
                $cell
            }
        })*
    };
}

from! {
    bytes: Bytes => Self::Bytes(bytes.0),
    bytes: i64 => Self::Signed(bytes),
    growth: GrowthRate => Self::Growth(growth.per_minute, growth.is_steady),
    number: u64 => Self::Count(number),
    number: u32 => Self::Number(number.into()),
    number: f64 => Self::Rate(number),
    flag: bool => Self::Flag(flag),
    device: DeviceIndex => Self::Device(device),
    address: Address => Self::Address(address),
    text: &'a str => Self::Text(text.into()),
    text: &'a String => Self::Text(text.into()),
    text: String => Self::Text(text.into()),
    // Bytes that are negative only if the ledger has more than the allocator.
    bytes: i128 => match u64::try_from(bytes) {
        Ok(bytes) => Self::Bytes(bytes),
        Err(_) => Self::Signed(bytes.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
    },
}

impl<'a, T: Into<Cell<'a>>> From<Option<T>> for Cell<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Unknown, Into::into)
    }
}
