//! Categories and iteration of a device's peak.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Group, without_numbers};
use crate::attribution::category::Category;
use crate::attribution::iterations::{IterationKind, Iterations};
use crate::attribution::view::DeviceView;
use crate::event::bytes::human;
use crate::event::{Bytes, Module, TimeNs};
use crate::ledger::snapshot::Grouping;
use crate::view::clean;

pub(super) const INFERRED: &str =
    "Categories are inferred from when memory was allocated and freed.";

const MAX_NAMED: usize = 3;

pub(super) struct Purposed {
    pub(super) category: Category,
    /// For memory saved for backward: bytes by module, largest first.
    pub(super) saved: Vec<(String, u64)>,
}

impl Purposed {
    /// Name of the category, with the modules that saved most.
    pub(super) fn name(&self) -> String {
        let category = match self.category {
            Category::Activation => "activation, saved for backward",
            other => other.as_str(),
        };
        let named = self.saved.iter().take(MAX_NAMED);
        let named: Vec<String> = named
            .map(|(module, bytes)| format!("{module} {}", human(Bytes(*bytes))))
            .collect();
        match named.is_empty() {
            true => category.to_owned(),
            false => format!("{category}: {}", named.join(", ")),
        }
    }
}

pub(super) fn purposes(device: DeviceView<'_>) -> Vec<Group<Purposed>> {
    let composition = &device.peak().composition;
    let of = |category: &Category| Group {
        who: Purposed {
            category: *category,
            saved: match category {
                Category::Activation => saved(device),
                _ => Vec::new(),
            },
        },
        bytes: composition.of(*category),
        blocks: None,
    };
    let mut rows: Vec<_> = Category::ALL.iter().map(of).collect();
    rows.retain(|row| row.bytes > 0);
    rows.sort_by_key(|row| Reverse(row.bytes));
    rows
}

/// Bytes saved for backward by module, largest first.
fn saved(device: DeviceView<'_>) -> Vec<(String, u64)> {
    let mut of_module: BTreeMap<String, u64> = BTreeMap::new();
    let (mut outside, mut unknown) = (0_u64, 0_u64);
    for row in device.saved(Grouping::User) {
        let bytes = row.holding.at_peak.0;
        let sum = match &row.module {
            Module::Called(path) => of_module.entry(without_numbers(path)).or_default(),
            Module::Outside => &mut outside,
            Module::Unknown => &mut unknown,
        };
        *sum = sum.saturating_add(bytes);
    }
    of_module.retain(|_, bytes| *bytes > 0);
    let mut sums = where_they_part(&of_module);
    sums.push(("(outside modules)".to_owned(), outside));
    sums.push(("(module unknown)".to_owned(), unknown));
    sums.retain(|(_, bytes)| *bytes > 0);
    sums.sort_by_key(|(_, bytes)| Reverse(*bytes));
    sums
}

/// Sums by module, up to the level at which paths differ: if all begin with `GPT`, then
/// `GPT.layers` and `GPT.head`.
fn where_they_part(of_module: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let paths: Vec<Vec<&str>> = of_module
        .keys()
        .map(|path| path.split('.').collect())
        .collect();
    let Some(first) = paths.first() else {
        return Vec::new();
    };
    let is_common = |level: &usize| {
        let name = first.get(*level);
        name.is_some() && paths.iter().all(|path| path.get(*level) == name)
    };
    let common = (0..first.len()).take_while(is_common).count();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (path, bytes) in paths.iter().zip(of_module.values()) {
        let path = &path[..path.len().min(common + 1)];
        let sum = sums.entry(clean(&path.join("."))).or_default();
        *sum = sum.saturating_add(*bytes);
    }
    sums.into_iter().collect()
}

/// Iteration at a time, as text; `None` if iterations are unknown.
pub(super) fn iteration_at(iterations: &Iterations, time: TimeNs) -> Option<String> {
    let any = |row: &crate::attribution::iterations::Iteration| {
        !matches!(row.kind, IterationKind::Before | IterationKind::Undivided)
    };
    if !iterations.rows.iter().any(any) {
        return None;
    }
    let row = iterations.at(time)?;
    Some(match row.kind {
        IterationKind::Undivided => return None,
        IterationKind::Before => "before the first iteration".to_owned(),
        IterationKind::Whole | IterationKind::Unfinished => format!("in iteration {}", row.number),
        IterationKind::Evaluation => format!("in an evaluation after iteration {}", row.number),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_named_where_their_paths_part() {
        let sums = |paths: &[(&str, u64)]| {
            let of: BTreeMap<String, u64> = paths
                .iter()
                .map(|(path, of)| ((*path).into(), *of))
                .collect();
            where_they_part(&of)
        };
        let named = |path: &str, bytes| (path.to_owned(), bytes);
        assert_eq!(
            sums(&[
                ("GPT.layers.*.mlp", 3),
                ("GPT.layers.*.attn", 4),
                ("GPT.head", 5)
            ]),
            [named("GPT.head", 5), named("GPT.layers", 7)]
        );
        assert_eq!(
            sums(&[("GPT.layers.*.mlp", 3), ("GPT.layers.*.attn", 4)]),
            [named("GPT.layers.*.attn", 4), named("GPT.layers.*.mlp", 3)]
        );
        assert_eq!(
            sums(&[("Net", 1), ("Net.a", 2)]),
            [named("Net", 1), named("Net.a", 2)]
        );
        assert_eq!(sums(&[("Net.a.b", 2)]), [named("Net.a.b", 2)]);
        assert_eq!(sums(&[]), []);
    }
}
