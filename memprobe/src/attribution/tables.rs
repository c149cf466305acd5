//! Data that views get about modules, categories and iterations.

pub use crate::attribution::allocation_groups::{ModuleScope, Pass};
pub use crate::attribution::breakdown::{Breakdown, BreakdownKey, BreakdownRow, DeviceBreakdown};
pub use crate::attribution::category::{Category, CategoryRule, RuleStatus};
pub use crate::attribution::communicators::CommunicatorCall;
pub use crate::attribution::iterations::{IterationKind, Source};
pub use crate::attribution::layers::{DeviceLayers, Layer};
pub use crate::attribution::modules::{Additive, ModuleRow, ModuleTree, Sums, fold};
pub use crate::attribution::owner_rows::{AllocationTag, OwnerKind, OwnerRow, PoolOfStream};
pub use crate::attribution::peak::Holding;
pub use crate::attribution::phase::Phase;
pub use crate::attribution::segments::{SegmentBlock, SegmentBlockState, SegmentMap, SegmentRow};
pub use crate::attribution::view::{CategoryRow, CoverageStart};
pub use crate::attribution::waterfall::{Waterfall, totals_by_kind};
pub use crate::ledger::TotalsSample;

use crate::event::{Bytes, DeviceIndex, TimeNs, Totals};

/// Memory of a device by module. The sum of all rows of the tree, `before_attach` and `unaccounted`
/// is `totals.allocated`.
#[derive(Clone, Debug)]
pub struct DeviceModules {
    pub index: DeviceIndex,
    pub since: CoverageStart,
    pub totals: Totals,
    /// Bytes from before attach that no module holds, as far as the process's objects were read.
    pub before_attach: Bytes,
    pub unaccounted: i64,
    /// Modules, none of them folded.
    pub tree: ModuleTree,
}

/// Memory of a device by module, at the peak of an iteration.
#[derive(Clone, Debug)]
pub struct IterationLayers {
    pub index: DeviceIndex,
    pub since: CoverageStart,
    pub source: Source,
    /// Iteration; `None` before the first.
    pub iteration: Option<IterationRow>,
    /// First and last whole iteration with data; `None` without any.
    pub whole: Option<(u64, u64)>,
    /// Layers at that moment, none of them folded; `None` if no longer stored. The sum of all rows
    /// is the allocator's total then.
    pub layers: Option<DeviceLayers>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IterationChoice {
    /// The last whole one, or the current one if none is whole.
    #[default]
    Latest,
    /// The iteration with this number, if stored.
    Numbered(u64),
}

/// Share of a device's memory, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Portion {
    BeforeAttach,
    Of(Category),
    /// Allocator total minus all known bytes.
    Unaccounted,
}

impl Portion {
    /// All variants, longest-lived first.
    pub const ALL: [Self; 12] = [
        Self::BeforeAttach,
        Self::Of(Category::Parameter),
        Self::Of(Category::OptimizerState),
        Self::Of(Category::Gradient),
        Self::Of(Category::Activation),
        Self::Of(Category::Input),
        Self::Of(Category::KvCache),
        Self::Of(Category::IntermediateGradient),
        Self::Of(Category::Temporary),
        Self::Of(Category::Workspace),
        Self::Of(Category::Unknown),
        Self::Unaccounted,
    ];
}

/// Bytes of a moment by portion, in the order of [`Portion::ALL`].
pub type Portions = [i64; Portion::ALL.len()];

/// Memory of a device by category. The sum of all rows is `totals.allocated`; the sum of their
/// `at_peak` is `peak`.
#[derive(Clone, Debug)]
pub struct DeviceCategories {
    pub index: DeviceIndex,
    pub since: CoverageStart,
    pub totals: Totals,
    /// Highest allocated bytes since then.
    pub peak: Bytes,
    /// Nanoseconds since the process's objects were read, which makes categories exact; `None` if
    /// never.
    pub read_before: Option<u64>,
    /// Bytes of live blocks with a category from those objects.
    pub exact: Bytes,
    /// One row for each portion that ever held memory, in the order of [`Portion::ALL`].
    pub rows: Vec<PortionRow>,
    pub start: TimeNs,
    /// Nanoseconds between points.
    pub step: u64,
    /// Portions over time: of each step, at its moment of highest allocated bytes.
    pub points: Vec<Portions>,
    /// Recent iterations, latest first.
    pub iterations: Vec<IterationRow>,
    pub source: Source,
    pub phase: Phase,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PortionRow {
    pub portion: Portion,
    /// Bytes now; only unaccounted bytes may be negative.
    pub live: i64,
    pub blocks: Option<u64>,
    /// Bytes at the device's peak.
    pub at_peak: i64,
    /// Maximum over the moments in `points`.
    pub most: i64,
    /// Deciding rules, most bytes first; empty if the portion is no category.
    pub rules: Vec<CategoryRow>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct IterationRow {
    /// Number from 1. A row that is not an iteration has the number of iterations so far.
    pub number: u64,
    pub kind: IterationKind,
    /// Epoch at its start, if known.
    pub epoch: Option<u64>,
    /// Nanoseconds to its end, or to its last event.
    pub length: u64,
    pub peak: Bytes,
    pub end: Totals,
    pub allocs: u64,
}

#[cfg(test)]
pub(crate) mod samples;
