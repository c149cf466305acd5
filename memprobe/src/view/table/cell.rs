//! Typed values of tables, and their form in each output.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::value::RawValue;

use super::Rows;
use crate::event::bytes::{human, short, signed};
use crate::event::{Address, Bytes, DeviceIndex};
use crate::view::{clean, count, duration, percent, rate, shape};

/// Text of an unknown value.
const UNKNOWN: &str = "-";

/// One value.
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
    Share(u64, u64),
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
    /// Elements in each dimension of a tensor.
    Shape(Cow<'a, [u64]>),
    List(Vec<Cell<'a>>),
    Object(Vec<(&'static str, Cell<'a>)>),
    /// The rows of a table as objects.
    Rows(Rc<dyn Rows + 'a>),
    /// Prepared JSON.
    Json(&'a RawValue),
}

/// Precision of sizes in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
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

    pub const fn is_empty(&self) -> bool {
        matches!(self, Self::Unknown | Self::Blank | Self::Absent)
    }

    /// Formats the value for people.
    pub fn text(&self, sizes: Sizes) -> String {
        match self {
            Self::Unknown => UNKNOWN.to_owned(),
            Self::Bytes(bytes) => match sizes {
                Sizes::Exact => human(Bytes(*bytes)),
                Sizes::Short => short(Bytes(*bytes)),
            },
            Self::Signed(bytes) => signed(*bytes),
            Self::Count(number) => count(*number),
            Self::Share(part, whole) => percent((*part).into(), (*whole).into()),
            Self::Rate(number) => rate(*number),
            Self::Nanoseconds(time) => duration(Duration::from_nanos(*time)),
            Self::Device(device) => device.to_string(),
            Self::List(cells) if cells.is_empty() => UNKNOWN.to_owned(),
            Self::List(cells) => joined(cells, ", ", |cell| cell.text(sizes)),
            Self::Text(text) => clean(text),
            _ => self.csv().into_owned(),
        }
    }

    /// Formats the value for CSV.
    pub fn csv(&self) -> Cow<'_, str> {
        Cow::Owned(match self {
            Self::Unknown
            | Self::Blank
            | Self::Absent
            | Self::Share(..)
            | Self::Device(DeviceIndex::UNKNOWN)
            | Self::Object(_)
            | Self::Rows(_)
            | Self::Json(_) => return Cow::Borrowed(""),
            Self::Bytes(number)
            | Self::Count(number)
            | Self::Nanoseconds(number)
            | Self::Number(number) => number.to_string(),
            Self::Signed(number) => number.to_string(),
            Self::Rate(number) => format!("{number:?}"),
            Self::Flag(flag) => flag.to_string(),
            Self::Device(DeviceIndex::CPU) => DeviceIndex::CPU.to_string(),
            Self::Device(device) => device.0.to_string(),
            Self::Address(address) => format!("{:#x}", address.0),
            Self::Text(text) => return Cow::Borrowed(text),
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
            Self::Unknown | Self::Blank | Self::Absent | Self::Share(..) => to.serialize_none(),
            Self::Device(DeviceIndex::UNKNOWN) => to.serialize_none(),
            Self::Bytes(number)
            | Self::Count(number)
            | Self::Nanoseconds(number)
            | Self::Number(number)
            | Self::Address(Address(number)) => to.serialize_u64(*number),
            Self::Signed(number) => to.serialize_i64(*number),
            Self::Rate(number) => to.serialize_f64(*number),
            Self::Flag(flag) => to.serialize_bool(*flag),
            Self::Device(device) => device.serialize(to),
            Self::Text(text) => to.serialize_str(text),
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

impl From<Bytes> for Cell<'_> {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes.0)
    }
}

impl From<u64> for Cell<'_> {
    fn from(number: u64) -> Self {
        Self::Count(number)
    }
}

impl From<u32> for Cell<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<f64> for Cell<'_> {
    fn from(number: f64) -> Self {
        Self::Rate(number)
    }
}

impl From<DeviceIndex> for Cell<'_> {
    fn from(device: DeviceIndex) -> Self {
        Self::Device(device)
    }
}

impl From<i64> for Cell<'_> {
    fn from(bytes: i64) -> Self {
        Self::Signed(bytes)
    }
}

impl From<bool> for Cell<'_> {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Cell<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl<'a, T: Into<Cell<'a>>> From<Option<T>> for Cell<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Unknown, Into::into)
    }
}
