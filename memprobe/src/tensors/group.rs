//! Grouping and order of tensor rows.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::sync::Arc;

use super::{Row, RowKind, SnapshotRows};
use crate::event::tensors::DType;
use crate::event::{Bytes, Frame};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GroupBy {
    /// Groups unnamed rows that look the same. Rows without bytes of their own may share different
    /// storages.
    #[default]
    Unnamed,
    Nothing,
    /// Groups rows of equal shape, kind and element type, whatever their names.
    Shape,
    Kind,
    Module,
    Site,
    /// By the variable or container that keeps the storage alive.
    Retainer,
    /// By request of a server: rows of its KV cache instead of tensors.
    Request,
}

impl GroupBy {
    /// Returns true if the rows of a group may come from different lines.
    pub fn is_apart_from_lines(self) -> bool {
        matches!(
            self,
            Self::Site | Self::Module | Self::Kind | Self::Retainer
        )
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Most allocator bytes first; a named row that shares them follows directly. Unnamed or
    /// grouped rows without bytes come last.
    #[default]
    Holds,
    Size,
    /// By name; unnamed ones last.
    Name,
    /// By kind, then as [`Self::Holds`].
    Kind,
    Count,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Indices of the table's rows; the first has most bytes.
    pub rows: Vec<usize>,
    pub holds: Bytes,
    pub outside: Bytes,
    /// Bytes of their own elements; `None` if one is unknown.
    pub size: Option<Bytes>,
}

#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Equal(Alike<'a>),
    Kind(RowKind),
    Module(Option<&'a Arc<str>>),
    Site(Option<&'a Frame>),
    Keeper(Option<(&'a str, Option<&'a str>)>),
}

/// Visible properties of a row, except its name and address.
#[derive(PartialEq, Eq, Hash)]
struct Alike<'a> {
    kind: RowKind,
    class: Option<&'a Arc<str>>,
    purpose: Option<&'a Arc<str>>,
    shape: Option<&'a [u64]>,
    size: Option<Bytes>,
    dtype: Option<DType>,
    shares: Shares,
    of: Option<Of<'a>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Of<'a> {
    grad_fn: Option<&'a Arc<str>>,
    saved_by: Option<&'a Arc<str>>,
    site: Option<&'a Frame>,
    requires_grad: bool,
}

#[derive(PartialEq, Eq, Hash)]
enum Shares {
    Nothing,
    With(usize),
    Something,
    Outside,
}

impl<'a> Key<'a> {
    /// `None` for a row that is in a group of its own.
    fn of(row: Row<'a>, by: GroupBy) -> Option<Self> {
        Some(match by {
            GroupBy::Nothing | GroupBy::Request => return None,
            GroupBy::Unnamed if row.name().is_some() => return None,
            GroupBy::Unnamed => Self::Equal(Alike::of(row, Likeness::Source)),
            GroupBy::Shape => Self::Equal(Alike::of(row, Likeness::Shape)),
            GroupBy::Kind => Self::Kind(row.kind),
            GroupBy::Module => Self::Module(row.module()),
            GroupBy::Site => Self::Site(row.site()),
            GroupBy::Retainer => {
                let retainer = row.retainer();
                Self::Keeper(retainer.map(|retainer| (&*retainer.by, retainer.class.as_deref())))
            }
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Likeness {
    Shape,
    Source,
}

impl<'a> Alike<'a> {
    fn of(row: Row<'a>, likeness: Likeness) -> Self {
        // For a row without bytes it does not matter which storage it shares.
        let holds = row.owner.is_none() || row.holds != Bytes(0);
        let shares = match (row.owner, row.outside, likeness) {
            (None, None, _) => Shares::Nothing,
            (None, Some(_), _) => Shares::Outside,
            (Some(owner), _, Likeness::Source) if holds => Shares::With(owner),
            (Some(_), ..) => Shares::Something,
        };
        let of = || Of {
            // A saved tensor is named after the operation that saved it.
            grad_fn: row.grad_fn().filter(|_| holds || row.saved_by().is_none()),
            saved_by: row.saved_by(),
            site: row.site().filter(|_| holds),
            requires_grad: row.requires_grad(),
        };
        Self {
            kind: row.kind,
            class: row.class(),
            purpose: row.purpose,
            shape: row.shape(),
            size: row.size,
            dtype: row.dtype(),
            shares,
            of: (likeness == Likeness::Source).then(of),
        }
    }
}

pub fn groups(rows: SnapshotRows<'_>, by: GroupBy, order: Order) -> Vec<Group> {
    groups_of(rows, 0..rows.len(), by, order)
}

/// Groups and sorts the rows with the indices `of`.
///
/// # Panics
/// If an index is out of range.
pub fn groups_of(
    rows: SnapshotRows<'_>,
    of: impl IntoIterator<Item = usize>,
    by: GroupBy,
    order: Order,
) -> Vec<Group> {
    let mut places: HashMap<Key, usize> = HashMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for at in of {
        let row = rows.at(at);
        let mut add_group = || {
            groups.push(Group {
                rows: Vec::new(),
                holds: Bytes(0),
                outside: Bytes(0),
                size: Some(Bytes(0)),
            });
            groups.len() - 1
        };
        let place = match Key::of(row, by) {
            Some(key) => *places.entry(key).or_insert_with(add_group),
            None => add_group(),
        };
        let group = &mut groups[place];
        group.rows.push(at);
        group.holds = sum(group.holds, row.holds);
        group.outside = sum(group.outside, row.outside.unwrap_or_default());
        group.size = group.size.zip(row.size).map(|(one, other)| sum(one, other));
    }
    for group in &mut groups {
        group.rows.sort_by_key(|&at| key(rows, at));
    }
    sort(&mut groups, rows, by, order);
    groups
}

impl Group {
    /// Returns true if the group is minor: it shares storages of others and has no bytes. It is
    /// also unnamed, or several tensors in one.
    pub fn is_minor(&self, rows: SnapshotRows<'_>, by: GroupBy) -> bool {
        let of_tensors = matches!(by, GroupBy::Unnamed | GroupBy::Shape);
        let shares = |at: &usize| rows.owner(*at).is_some();
        let is_named = self.rows.len() == 1 && rows.at(self.rows[0]).name().is_some();
        let is_nothing = self.holds == Bytes(0) && self.outside == Bytes(0);
        of_tensors && is_nothing && !is_named && self.rows.iter().any(shares)
    }
}

fn sum(one: Bytes, other: Bytes) -> Bytes {
    Bytes(one.0.saturating_add(other.0))
}

/// Row that gets the bytes of a row's storage. A storage within another leads on to that one.
fn answering(rows: SnapshotRows<'_>, at: usize) -> usize {
    let owner = |at: usize| rows.owner(at);
    let first = owner(at).unwrap_or(at);
    owner(first).unwrap_or(first)
}

/// Best name, for sorting in natural order: `layers.2` comes before `layers.10`.
fn counting(row: Row<'_>) -> Counting<'_> {
    Counting(row.name().map_or("", |name| &name.text))
}

#[derive(PartialEq, Eq)]
struct Counting<'a>(&'a str);

impl Ord for Counting<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let (mut one, mut other) = (self.0.as_bytes(), other.0.as_bytes());
        loop {
            let (Some(first), Some(second)) = (one.first(), other.first()) else {
                return one.len().cmp(&other.len());
            };
            let ordering = if first.is_ascii_digit() && second.is_ascii_digit() {
                take_number(&mut one).cmp(&take_number(&mut other))
            } else {
                (one, other) = (&one[1..], &other[1..]);
                first.cmp(second)
            };
            if ordering.is_ne() {
                return ordering;
            }
        }
    }
}

impl PartialOrd for Counting<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Splits off leading digits as a sort key that compares by value; equal values compare by their
/// leading zeros.
fn take_number<'a>(text: &mut &'a [u8]) -> (usize, &'a [u8], usize) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit());
    let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
    *text = rest;
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    let number = &digits[zeros..];
    (number.len(), number, zeros)
}

/// Sort key: largest first, and each row after the one that has its storage's bytes.
fn key(rows: SnapshotRows<'_>, at: usize) -> impl Ord + use<'_> {
    let answering = answering(rows, at);
    let holder = rows.at(answering);
    let row = rows.at(at);
    (
        Reverse((holder.holds, holder.outside)),
        counting(holder),
        answering,
        at != answering,
        row.offset(),
        Reverse(row.size),
        counting(row),
        at,
    )
}

fn sort(groups: &mut [Group], rows: SnapshotRows<'_>, by: GroupBy, order: Order) {
    let first = |group: &Group| rows.at(group.rows[0]);
    groups.sort_by(|one, other| {
        // A group without bytes stays next to the row that has its storage's bytes.
        let weight = |group: &Group| match (group.holds, group.outside) {
            (Bytes(0), Bytes(0)) if group.is_minor(rows, by) => {
                (group.size.unwrap_or_default(), Bytes(0))
            }
            (Bytes(0), Bytes(0)) => {
                let holder = rows.at(answering(rows, group.rows[0]));
                (holder.holds, holder.outside.unwrap_or_default())
            }
            own => own,
        };
        let by_holds = || {
            let key = |group: &Group| {
                let is_minor = group.is_minor(rows, by);
                (is_minor, Reverse(weight(group)), key(rows, group.rows[0]))
            };
            key(one).cmp(&key(other))
        };
        let ordering = match order {
            Order::Holds => Ordering::Equal,
            Order::Size => other.size.cmp(&one.size),
            Order::Name => {
                let name = |group| (first(group).name().is_none(), counting(first(group)));
                name(one).cmp(&name(other))
            }
            Order::Kind => first(one).kind.cmp(&first(other).kind),
            Order::Count => other.rows.len().cmp(&one.rows.len()),
        };
        ordering.then_with(by_holds)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_the_order_in_which_people_count() {
        let counted = [
            "",
            "layers.0",
            "layers.2.b",
            "layers.02",
            "layers.10",
            "layers.10.a",
            "layersx",
            "ä",
        ];
        for pair in counted.windows(2) {
            assert!(Counting(pair[0]) < Counting(pair[1]), "{pair:?}");
        }
        assert!(Counting("layers.10") == Counting("layers.10"));
    }
}
