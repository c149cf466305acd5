//! Memory of recordings compared: what each key (line, tensor, module, category) has at several moments.

pub mod lines;
pub mod ranks;

use std::collections::HashMap;

use crate::attribution::allocation_groups::{ModuleScope, Pass};
use crate::attribution::category::Category;
use crate::attribution::chosen_moments::MemoryAt;
use crate::event::DeviceIndex;
use crate::ledger::snapshot::{PurposeInfo, Site};

/// Key that memory is compared by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ComparedKey {
    Line(Site),
    Tensor(PurposeInfo),
    Module { place: ModuleScope, pass: Pass },
    Category(Category),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompareBy {
    Line,
    /// Tensors of one shape and element type.
    Tensor,
    Module,
    Category,
}

/// Bytes and blocks of one key. The blocks of a category are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyMemory {
    pub bytes: u64,
    pub blocks: Option<u64>,
}

/// Memory of one device by key. Rows, `before_attach` and `unaccounted` add up to `allocated`.
#[derive(Clone, Debug, Default)]
pub struct MemoryByKey {
    pub allocated: u64,
    pub before_attach: u64,
    pub unaccounted: i64,
    pub rows: HashMap<ComparedKey, KeyMemory>,
}

/// One key, before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedRow {
    pub key: ComparedKey,
    /// Key before, if that is another and the match is inferred.
    pub inferred_from: Option<ComparedKey>,
    pub before: Option<KeyMemory>,
    pub after: Option<KeyMemory>,
}

impl ComparedRow {
    pub fn change(&self) -> i64 {
        let bytes = |memory: Option<KeyMemory>| memory.unwrap_or_default().bytes;
        difference(bytes(self.before), bytes(self.after))
    }
}

/// Change of a number of bytes; no device has more than fits.
pub fn difference(before: u64, after: u64) -> i64 {
    after.cast_signed().wrapping_sub(before.cast_signed())
}

impl MemoryByKey {
    /// Sums the memory of a moment. `module` is the key of a module, which may stand for several.
    pub fn of(
        memory: &MemoryAt,
        by: CompareBy,
        module: impl Fn(&ModuleScope) -> ModuleScope,
    ) -> Self {
        let moment = &memory.found.moment;
        let mut sums = Self {
            allocated: moment.totals.allocated.0,
            before_attach: memory.before_attach.0,
            unaccounted: memory.unaccounted,
            rows: HashMap::new(),
        };
        if by == CompareBy::Category {
            let composition = &moment.composition;
            (sums.before_attach, sums.unaccounted) =
                (composition.before_attach, composition.unaccounted);
            let all = Category::ALL.iter();
            let held = all.map(|category| (*category, composition.of(*category)));
            let rows = held
                .filter(|(_, bytes)| *bytes > 0)
                .map(|(category, bytes)| {
                    let blocks = None;
                    (ComparedKey::Category(category), KeyMemory { bytes, blocks })
                });
            sums.rows = rows.collect();
            return sums;
        }
        for part in &memory.parts {
            let origin = &part.group.origin;
            let key = match by {
                CompareBy::Line => ComparedKey::Line(origin.site.clone()),
                CompareBy::Tensor => ComparedKey::Tensor(part.group.what.clone()),
                CompareBy::Module | CompareBy::Category => ComparedKey::Module {
                    place: module(&origin.place),
                    pass: origin.pass,
                },
            };
            sums.add(key, part.bytes, part.blocks);
        }
        sums
    }

    fn add(&mut self, key: ComparedKey, bytes: u64, blocks: u64) {
        let row = self.rows.entry(key).or_default();
        row.bytes = row.bytes.saturating_add(bytes);
        row.blocks = Some(row.blocks.unwrap_or(0).saturating_add(blocks));
    }
}

/// Rows of two moments, those with the largest change first. `later` returns the key after of a key before; `None` if
/// it is gone.
pub fn compared(
    before: &MemoryByKey,
    after: &MemoryByKey,
    later: impl Fn(&ComparedKey) -> Option<ComparedKey>,
) -> Vec<ComparedRow> {
    let row = |key: &ComparedKey| ComparedRow {
        key: key.clone(),
        inferred_from: None,
        before: None,
        after: None,
    };
    let mut rows: HashMap<ComparedKey, ComparedRow> = HashMap::new();
    let mut gone = Vec::new();
    for (key, memory) in &before.rows {
        let before = Some(*memory);
        match later(key) {
            Some(found) => {
                let inferred_from = (found != *key).then(|| key.clone());
                let found_row = ComparedRow {
                    inferred_from,
                    before,
                    ..row(&found)
                };
                rows.insert(found, found_row);
            }
            None => gone.push(ComparedRow { before, ..row(key) }),
        }
    }
    for (key, memory) in &after.rows {
        let row = rows.entry(key.clone()).or_insert_with(|| row(key));
        row.after = Some(*memory);
    }
    let mut rows: Vec<ComparedRow> = rows.into_values().chain(gone).collect();
    let bytes = |row: &ComparedRow| row.after.or(row.before).unwrap_or_default().bytes;
    rows.sort_by_cached_key(|row| {
        let size = std::cmp::Reverse((row.change().unsigned_abs(), bytes(row)));
        (size, name(&row.key))
    });
    rows
}

/// Order of keys of equal size.
fn name(key: &ComparedKey) -> String {
    format!("{key:?}")
}

/// Devices to compare. Devices of one number belong together; so do the only ones of two processes, as ranks have them.
pub fn paired_devices(
    before: &[DeviceIndex],
    after: &[DeviceIndex],
) -> Vec<(Option<DeviceIndex>, Option<DeviceIndex>)> {
    let gpus = |devices: &[DeviceIndex]| -> Vec<DeviceIndex> {
        let gpus = devices.iter().filter(|device| **device != DeviceIndex::CPU);
        gpus.copied().collect()
    };
    let mut pairs: Vec<(Option<DeviceIndex>, Option<DeviceIndex>)> = Vec::new();
    let (mut one, mut other) = (before.to_vec(), after.to_vec());
    if let ([first], [second]) = (&gpus(before)[..], &gpus(after)[..]) {
        pairs.push((Some(*first), Some(*second)));
        one.retain(|device| device != first);
        other.retain(|device| device != second);
    }
    for device in &one {
        let partner = other.iter().find(|found| *found == device);
        pairs.push((Some(*device), partner.copied()));
    }
    let rest = other.iter().filter(|device| !one.contains(device));
    pairs.extend(rest.map(|device| (None, Some(*device))));
    pairs.sort_by_key(|(before, after)| after.or(*before));
    pairs
}

#[cfg(test)]
mod tests;
