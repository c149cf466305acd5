//! Difference of two tensor tables.
//!
//! A tensor is the same in both if its object, its storage, its offset, its shape and its element
//! type are equal; a new name or kind is then a rename. Remaining rows are paired by kind, name,
//! type, shape and element type, whatever their addresses. A loop gives its tensors new addresses
//! in every iteration. Rows without a partner were added or removed.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use super::{DeviceTable, Row, RowKind, SnapshotRows, TensorTable};
use crate::event::Bytes;
use crate::event::tensors::TensorDevice;

#[derive(Clone, Debug, PartialEq, Default)]
pub struct TensorDiff {
    pub before: TensorTable,
    pub after: TensorTable,
    /// True if both are of one process, so that addresses are comparable.
    pub same_process: bool,
    /// By device, in the order of [`TensorTable::devices`].
    pub devices: Vec<DeviceDiff>,
}

/// Difference on one device. Rows are indices into the tables.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceDiff {
    pub device: TensorDevice,
    /// Added rows, by index into the later table.
    pub came: Vec<usize>,
    /// Removed rows, by index into the earlier table.
    pub went: Vec<usize>,
    /// Tensors with another number of allocator bytes: the earlier and the later row.
    pub resized: Vec<(usize, usize)>,
    /// Tensors with another best name or kind: the earlier and the later row.
    pub renamed: Vec<(usize, usize)>,
    pub moved: Moved,
}

/// Tensors that were reallocated or moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Moved {
    pub tensors: u64,
    pub holds: Bytes,
}

impl TensorDiff {
    pub fn before_on(&self, device: TensorDevice) -> Option<&DeviceTable> {
        self.before.device(device)
    }

    pub fn after_on(&self, device: TensorDevice) -> Option<&DeviceTable> {
        self.after.device(device)
    }
}

impl DeviceDiff {
    pub fn is_empty(&self) -> bool {
        self.came.is_empty()
            && self.went.is_empty()
            && self.resized.is_empty()
            && self.renamed.is_empty()
    }
}

pub fn diff(before: TensorTable, after: TensorTable) -> TensorDiff {
    let same_process =
        before.target.tgid == after.target.tgid && before.target.command == after.target.command;
    let tables = after.devices.iter().chain(&before.devices);
    let mut seen = HashSet::new();
    let devices: Vec<TensorDevice> = tables
        .map(|table| table.device)
        .filter(|device| seen.insert(*device))
        .collect();
    let devices = devices.into_iter().map(|device| {
        compare(
            device,
            rows_of(&before, device),
            rows_of(&after, device),
            same_process,
        )
    });
    let devices = devices.collect();
    TensorDiff {
        same_process,
        devices,
        before,
        after,
    }
}

fn rows_of(table: &TensorTable, device: TensorDevice) -> SnapshotRows<'_> {
    table
        .device(device)
        .map(DeviceTable::rows)
        .unwrap_or_default()
}

fn compare(
    device: TensorDevice,
    before: SnapshotRows<'_>,
    after: SnapshotRows<'_>,
    same_process: bool,
) -> DeviceDiff {
    let mut pairing = Pairing {
        before,
        after,
        left: (0..before.len()).collect(),
        new: (0..after.len()).collect(),
        pairs: Vec::new(),
    };
    if same_process {
        pairing.pair(identity);
    }
    let same = pairing.pairs.len();
    pairing.pair(likeness);
    let mut diff = DeviceDiff {
        device,
        came: pairing.new,
        went: pairing.left,
        resized: Vec::new(),
        renamed: Vec::new(),
        moved: Moved::default(),
    };
    for (at, &(was, is)) in pairing.pairs.iter().enumerate() {
        let (old, new) = (before.at(was), after.at(is));
        if old.holds != new.holds {
            diff.resized.push((was, is));
        }
        if at < same {
            if (old.kind, name(old)) != (new.kind, name(new)) {
                diff.renamed.push((was, is));
            }
        } else if old.storage != new.storage {
            diff.moved.tensors += 1;
            diff.moved.holds = Bytes(diff.moved.holds.0.saturating_add(new.holds.0));
        }
    }
    diff
}

struct Pairing<'a> {
    before: SnapshotRows<'a>,
    after: SnapshotRows<'a>,
    /// Rows without a partner so far, by index, ascending.
    left: Vec<usize>,
    new: Vec<usize>,
    pairs: Vec<(usize, usize)>,
}

impl<'a> Pairing<'a> {
    /// Pairs rows with equal keys, those with most bytes first. Rows without a key stay unpaired.
    fn pair<K: Eq + Hash>(&mut self, key: impl Fn(Row<'a>) -> Option<K>) {
        let mut partners: HashMap<K, Vec<usize>> = HashMap::new();
        for &at in &self.left {
            if let Some(key) = key(self.before.at(at)) {
                partners.entry(key).or_default().push(at);
            }
        }
        for waiting in partners.values_mut() {
            // The next partner is the last.
            waiting.sort_by_key(|&at| (self.before.at(at).holds, Reverse(at)));
        }
        let mut paired = HashSet::new();
        let mut candidates = std::mem::take(&mut self.new);
        candidates.sort_by_key(|&at| (Reverse(self.after.at(at).holds), at));
        for at in candidates {
            let waiting = key(self.after.at(at)).and_then(|key| partners.get_mut(&key));
            match waiting.and_then(Vec::pop) {
                Some(partner) => {
                    paired.insert(partner);
                    self.pairs.push((partner, at));
                }
                None => self.new.push(at),
            }
        }
        self.new.sort_unstable();
        self.left.retain(|at| !paired.contains(at));
    }
}

/// Identity of a tensor within one process; `None` without a storage.
fn identity(row: Row<'_>) -> Option<impl Eq + Hash + use<'_>> {
    let tensor = matches!(row.kind, RowKind::Tensor(_));
    let what = row.shape().zip(row.dtype());
    Some((
        tensor,
        row.object(),
        row.storage?,
        row.offset(),
        what,
        row.size,
    ))
}

/// Similarity key of tensors, independent of addresses.
fn likeness(row: Row<'_>) -> Option<impl Eq + Hash + use<'_>> {
    let what = row.shape().zip(row.dtype());
    Some((row.kind, name(row), row.class(), what, row.size))
}

/// Best name without its current line. A variable's name contains the line that its function is at
/// (`train.py:31 train() -> x`), which differs between snapshots.
fn name(row: Row<'_>) -> Option<(&str, &str)> {
    let text = &*row.name()?.text;
    let split = text.find(") -> ").and_then(|end| {
        let place = text[..end].rfind(' ')?;
        let line = text[..place].rfind(':')?;
        let digits = &text[line + 1..place];
        let is_line = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_line.then(|| (&text[..line], &text[place..]))
    });
    Some(split.unwrap_or((text, "")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tensors::{Tensor, TensorSnapshot};
    use crate::tensors::explain;
    use crate::tensors::samples::{Building, plain, unnamed};

    /// A tensor of this name, on a block after `before` others.
    fn with(name: &str, before: usize) -> TensorSnapshot {
        let mut made = Building::new();
        for _ in 0..before {
            made.alone(&[128], unnamed(), None);
        }
        made.alone(&[256], plain(name), None);
        made.finish()
    }

    fn compared(before: &TensorSnapshot, after: &TensorSnapshot) -> DeviceDiff {
        let mut diff = diff(explain(before.clone()), explain(after.clone()));
        diff.devices.remove(0)
    }

    #[test]
    fn a_variable_is_the_same_at_whatever_line_its_function_has_come_to() {
        let (before, after) = (
            with("t.py:22 main() -> x", 0),
            with("t.py:28 main() -> x", 0),
        );
        assert!(compared(&before, &after).is_empty());
        let other_line = compared(&before, &with("t.py:28 main() -> x", 1));
        assert_eq!((other_line.came.len(), other_line.went.len()), (1, 0));
        assert_eq!(other_line.moved.tensors, 1);
        let other = compared(&before, &with("t.py:22 main() -> y", 0));
        assert_eq!(other.renamed.len(), 1);
    }

    #[test]
    fn names_that_only_look_like_variables_are_taken_as_they_are() {
        for text in ["a -> b", ") -> ", "f() -> x", "x: f() -> y", "x:y f() -> z"] {
            let table = explain(with(text, 0));
            let row = table.devices[0].rows().at(0);
            assert_eq!(name(row), Some((text, "")));
        }
    }

    #[test]
    fn addresses_of_another_process_mean_nothing() {
        let mut other = with("y", 0);
        other.target.tgid = None;
        let diff = compared(&with("x", 0), &other);
        assert_eq!(
            (diff.came.len(), diff.went.len(), diff.renamed.len()),
            (1, 1, 0)
        );
    }

    #[test]
    fn a_view_that_outlives_its_base_holds_the_storage_then() {
        let mut before = with("base", 0);
        before.tensors.push(Tensor {
            object: 1,
            shape: Some([2].into()),
            storage: Some(0),
            device: before.tensors[0].device,
            ..plain("view")
        });
        let mut after = before.clone();
        after.tensors.remove(0);
        let diff = compared(&before, &after);
        assert_eq!((diff.went.len(), diff.resized.len()), (1, 1));
    }
}
