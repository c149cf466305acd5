//! Table of module sizes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::{AllocationCounts, Amount, IntervalAllocations, Made};
use crate::attribution::AttributionLedger;
use crate::attribution::allocation_groups::{ModuleScope, place_of};
use crate::attribution::category::{Category, CategoryRule};
use crate::attribution::iterations::{Iteration, IterationKind};
use crate::attribution::modules::{Additive, ModuleRow, tree};
use crate::event::DeviceIndex;

#[derive(Clone, Debug)]
pub struct Sizes {
    /// Iteration shown: the one with most bytes allocated in forward passes.
    pub iteration: Iteration,
    pub of: u64,
    /// Step intervals whose allocations were dropped.
    pub forgotten: u64,
    /// True if parameters come from heap snapshots. Otherwise they are inferred and not split by module.
    pub named: bool,
    pub devices: BTreeMap<DeviceIndex, ModelSize>,
}

/// Model size on a device. Allocations in `modules` and `others` add up to those of the iteration.
#[derive(Clone, Debug, Default)]
pub struct ModelSize {
    /// Outermost modules, in order of their first allocation.
    pub modules: Vec<ModuleRow<ModuleSize>>,
    pub others: Vec<(ModuleScope, ModuleSize)>,
}

/// Size of a module: memory it holds, and its allocations in the iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleSize {
    /// Parameters held, each block once. If they are inferred, with buffers that were not told apart.
    pub parameters: Amount,
    pub buffers: Amount,
    /// Forward allocations not saved for a backward pass.
    pub unsaved: Amount,
    /// Forward allocations saved for the backward pass.
    pub saved: Amount,
    /// Recomputed forward allocations (checkpoints).
    pub recomputed: Amount,
    /// Backward allocations without gradients of parameters.
    pub backward: Amount,
    pub gradients: Amount,
    /// Other allocations: inputs, optimizer state, workspaces, temporaries of optimizer steps.
    pub other: Amount,
}

impl ModuleSize {
    /// Intermediate variables of forward passes.
    pub fn forward(&self) -> Amount {
        self.unsaved.and(self.saved)
    }

    /// Intermediate variables of forward and backward passes.
    pub fn both(&self) -> Amount {
        self.forward().and(self.recomputed).and(self.backward)
    }

    pub fn made(&self) -> Amount {
        self.both().and(self.gradients).and(self.other)
    }

    fn of(made: Made, amount: Amount) -> Self {
        let mut size = Self::default();
        let sum = match made {
            Made::Unsaved => &mut size.unsaved,
            Made::Saved => &mut size.saved,
            Made::Recomputed => &mut size.recomputed,
            Made::Backward => &mut size.backward,
            Made::Gradient => &mut size.gradients,
            Made::Other => &mut size.other,
        };
        *sum = amount;
        size
    }
}

impl ModelSize {
    /// True if any buffers are known as such.
    pub fn has_buffers(&self) -> bool {
        let modules = self.modules.iter().map(|module| &module.total);
        let mut all = modules.chain(self.others.iter().map(|(_, size)| size));
        all.any(|size| size.buffers.bytes > 0)
    }

    /// True if a module was being called in any allocation, with a known path or without.
    pub fn has_calls(&self) -> bool {
        let mut others = self.others.iter();
        !self.modules.is_empty() || others.any(|(place, _)| *place == ModuleScope::Unknown)
    }
}

impl Additive for ModuleSize {
    fn and(self, other: &Self) -> Self {
        Self {
            parameters: self.parameters.and(other.parameters),
            buffers: self.buffers.and(other.buffers),
            unsaved: self.unsaved.and(other.unsaved),
            saved: self.saved.and(other.saved),
            recomputed: self.recomputed.and(other.recomputed),
            backward: self.backward.and(other.backward),
            gradients: self.gradients.and(other.gradients),
            other: self.other.and(other.other),
        }
    }
}

impl AllocationCounts {
    /// Bytes allocated by forward passes in these step intervals; `None` if some were dropped.
    fn forward(&self, intervals: &RangeInclusive<u64>) -> Option<u64> {
        let oldest = self.intervals.front().map_or(0, |interval| interval.number);
        if self.forgotten > 0 && *intervals.start() < oldest {
            return None;
        }
        let sums = self.made(intervals);
        let forward = sums.filter(|((.., made), _)| matches!(made, Made::Unsaved | Made::Saved));
        Some(forward.fold(0, |sum, (_, amount)| sum.saturating_add(amount.bytes)))
    }

    fn selected(
        &self,
        intervals: &RangeInclusive<u64>,
    ) -> impl Iterator<Item = &IntervalAllocations> {
        let all = self.intervals.iter();
        all.filter(move |interval| intervals.contains(&interval.number))
    }

    fn made(
        &self,
        intervals: &RangeInclusive<u64>,
    ) -> impl Iterator<Item = ((DeviceIndex, u32, Made), Amount)> {
        let selected = self.selected(intervals);
        selected.flat_map(|interval| interval.made.iter().map(|(key, amount)| (*key, *amount)))
    }
}

impl AttributionLedger {
    /// Model sizes; `None` without counted allocations.
    pub fn sizes(&self) -> Option<Sizes> {
        let making = self.making.as_ref()?;
        let (iteration, of) = self.choose_iteration(making)?;
        let mut devices: BTreeMap<DeviceIndex, Vec<(ModuleScope, ModuleSize)>> = BTreeMap::new();
        let mut made: Vec<_> = making.made(&iteration.intervals).collect();
        // Stacks are numbered in order of first use, so modules keep the order of the model.
        made.sort_unstable_by_key(|(key, _)| *key);
        for ((device, origin, made), amount) in made {
            let stack = self.origins.get(origin as usize);
            let place = stack.map_or(ModuleScope::Unknown, |stack| place_of(stack).0);
            let parts = devices.entry(device).or_default();
            parts.push((place, ModuleSize::of(made, amount)));
        }
        match &making.module_sizes {
            Some(sizes) => {
                for ((device, module), sizes) in sizes {
                    let place = module.as_ref().map_or(ModuleScope::Unknown, |module| {
                        ModuleScope::Module(self.module_aliases.called(module))
                    });
                    let parts = devices.entry(*device).or_default();
                    parts.push((place, *sizes));
                }
            }
            None => {
                for device in self.devices() {
                    let parts = devices.entry(device).or_default();
                    parts.push((ModuleScope::Outside, self.inferred(device)));
                }
            }
        }
        let devices = devices.into_iter().map(|(device, parts)| {
            let (mut modules, others) = tree(parts);
            self.root_variables.name_roots(&mut modules);
            (device, ModelSize { modules, others })
        });
        Some(Sizes {
            of,
            forgotten: making.forgotten,
            named: making.module_sizes.is_some(),
            devices: devices.collect(),
            iteration,
        })
    }

    /// Numbers of the step intervals with blocks whose kind may still change.
    fn undecided_intervals(&self, making: &AllocationCounts) -> BTreeSet<u64> {
        let blocks = self.blocks.undecided_of_passes();
        let intervals = blocks.filter_map(|born| making.interval_of(born));
        intervals.map(|at| making.intervals[at].number).collect()
    }

    /// Chooses among the iterations whose blocks are each known as a tensor or a workspace, if there are any. In others
    /// a workspace may count as a tensor, and they would be the largest.
    fn choose_iteration(&self, making: &AllocationCounts) -> Option<(Iteration, u64)> {
        let mut rows = self.iterations().rows;
        let is_certain = |row: &Iteration| {
            let mut intervals = making.selected(&row.intervals);
            intervals.all(|interval| !interval.is_uncertain)
        };
        let is_shown = |row: &&Iteration| row.kind == IterationKind::Whole && is_certain(row);
        if self.coverage().tensors && rows.iter().any(|row| is_shown(&row)) {
            rows.retain(is_certain);
        }
        choose(&rows, making, &self.undecided_intervals(making))
    }

    /// Inferred parameters and buffers of a device: the larger of now and peak, because an ending program
    /// frees its model. The number of blocks at the peak is unknown.
    fn inferred(&self, device: DeviceIndex) -> ModuleSize {
        let rules = self.device(device).map(|view| view.categories());
        let rules = rules.into_iter().flatten();
        let parameters = rules.filter(|row| row.rule.category() == Category::Parameter);
        let [mut now, mut at_peak] = [ModuleSize::default(); 2];
        let amount = |bytes: u64, blocks: u64| Amount {
            blocks,
            bytes,
            rounded: bytes,
        };
        for row in parameters {
            let moments = [
                (&mut now, amount(row.live, row.blocks)),
                (&mut at_peak, amount(row.at_peak, 0)),
            ];
            for (size, amount) in moments {
                let sum = match row.rule {
                    CategoryRule::BuiltBuffer => &mut size.buffers,
                    _ => &mut size.parameters,
                };
                *sum = sum.and(amount);
            }
        }
        let bytes = |size: &ModuleSize| size.parameters.and(size.buffers).bytes;
        if bytes(&now) >= bytes(&at_peak) {
            now
        } else {
            at_peak
        }
    }
}

/// Chooses the iteration with most forward bytes, and counts the candidates. Of equal ones it is the latest without
/// `undecided` intervals: a recording may end between two optimizers' steps, and what is live then counts as saved.
/// Without whole iterations it falls back to unfinished ones, then to other rows.
fn choose(
    rows: &[Iteration],
    making: &AllocationCounts,
    undecided: &BTreeSet<u64>,
) -> Option<(Iteration, u64)> {
    let kinds: [&[IterationKind]; 3] = [
        &[IterationKind::Whole],
        &[IterationKind::Unfinished],
        &[IterationKind::Undivided, IterationKind::Before],
    ];
    kinds.iter().find_map(|kinds| {
        let rows = rows.iter().filter(|row| kinds.contains(&row.kind));
        let sized: Vec<(u64, &Iteration)> = rows
            .filter_map(|row| Some((making.forward(&row.intervals)?, row)))
            .collect();
        let of = sized.len() as u64;
        let is_decided = |row: &Iteration| undecided.range(row.intervals.clone()).next().is_none();
        let key = |(bytes, row): &(u64, &Iteration)| Reverse((*bytes, is_decided(row), row.number));
        let (_, iteration) = sized.into_iter().min_by_key(key)?;
        Some((iteration.clone(), of))
    })
}
