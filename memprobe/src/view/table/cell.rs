//! Typed values of tables, and their form in each output.

use std::borrow::Cow;
use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use crate::bytes::{human, short, signed};
use crate::event::{Address, Bytes, DeviceIndex};
use crate::label::{clean, count, duration, percent, rate, shape};

/// Text of an unknown value.
const UNKNOWN: &str = "-";

/// One value.
#[derive(Clone, Debug, Default)]
pub enum Cell<'a> {
    #[default]
    Unknown,
    /// Not applicable.
    Blank,
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

impl Cell<'_> {
    pub const fn is_empty(&self) -> bool {
        matches!(self, Self::Unknown | Self::Blank)
    }

    /// Formats the value for people.
    pub fn text(&self, sizes: Sizes) -> String {
        match self {
            Self::Unknown => UNKNOWN.to_owned(),
            Self::Blank | Self::Object(_) | Self::Json(_) => String::new(),
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
            Self::Flag(_) | Self::Address(_) | Self::Number(_) | Self::Shape(_) => {
                self.csv().into_owned()
            }
        }
    }

    /// Formats the value for CSV.
    pub fn csv(&self) -> Cow<'_, str> {
        Cow::Owned(match self {
            Self::Unknown
            | Self::Blank
            | Self::Share(..)
            | Self::Device(DeviceIndex::UNKNOWN)
            | Self::Object(_)
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
            Self::Unknown | Self::Blank | Self::Share(..) | Self::Device(DeviceIndex::UNKNOWN) => {
                to.serialize_none()
            }
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
                let mut map = to.serialize_map(Some(fields.len()))?;
                for (key, cell) in fields {
                    map.serialize_entry(key, cell)?;
                }
                map.end()
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

impl From<DeviceIndex> for Cell<'_> {
    fn from(device: DeviceIndex) -> Self {
        Self::Device(device)
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
