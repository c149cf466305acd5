//! What views see of why memory is there.

pub use crate::model::why::category::{Category, CategoryRule, Standing};
pub use crate::model::why::iterations::{IterationKind, Source};
pub use crate::model::why::layers::{DeviceLayers, Layer};
pub use crate::model::why::modules::{ModuleRow, ModuleTree, Sums, Together, fold};
pub use crate::model::why::parts::{Pass, Place};
pub use crate::model::why::peak::{Holding, Moment};
pub use crate::model::why::phase::Phase;
pub use crate::model::why::view::{CategoryRow, Since};

use crate::event::{Bytes, DeviceIndex, TimeNs, Totals};

/// What the modules of a device hold. The sum of all rows of the tree, of `before_attach` and of `unaccounted` is
/// `totals.allocated`.
#[derive(Clone, Debug)]
pub struct DeviceModules {
    /// The device.
    pub index: DeviceIndex,
    /// Since when all this is counted.
    pub since: Since,
    /// The allocator's own totals.
    pub totals: Totals,
    /// Bytes from before attach.
    pub before_attach: Bytes,
    /// The allocator's total less all that is known; 0 unless events were lost.
    pub unaccounted: i64,
    /// The modules, none of them folded.
    pub tree: ModuleTree,
}

/// What the modules of a device held when it held most in an iteration.
#[derive(Clone, Debug)]
pub struct IterationLayers {
    /// The device.
    pub index: DeviceIndex,
    /// Since when all this is counted.
    pub since: Since,
    /// What iterations are told apart by.
    pub source: Source,
    /// The iteration; `None` where none was seen yet.
    pub iteration: Option<IterationRow>,
    /// The first and the last whole iteration that can be looked at; `None` where none can.
    pub whole: Option<(u64, u64)>,
    /// What was held then, none of it folded; `None` where that is kept no more. The sum of all rows is the allocator's total at
    /// that moment.
    pub layers: Option<DeviceLayers>,
}

/// Which iteration is to be told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The last whole one, or the one that runs where none is whole.
    #[default]
    Latest,
    /// That of this number, where it is kept.
    Numbered(u64),
}

/// A part of what a device holds, by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Portion {
    /// Live when memprobe came.
    BeforeAttach,
    /// Of a category.
    Of(Category),
    /// The allocator's total less all that is known.
    Unaccounted,
}

impl Portion {
    /// All of them, what stays longest first.
    pub const ALL: [Self; 11] = [
        Self::BeforeAttach,
        Self::Of(Category::Parameter),
        Self::Of(Category::OptimizerState),
        Self::Of(Category::Gradient),
        Self::Of(Category::Activation),
        Self::Of(Category::Input),
        Self::Of(Category::IntermediateGradient),
        Self::Of(Category::Temporary),
        Self::Of(Category::Workspace),
        Self::Of(Category::Unknown),
        Self::Unaccounted,
    ];
}

/// How the bytes of a moment divide, in the order of [`Portion::ALL`].
pub type Portions = [i64; Portion::ALL.len()];

/// How the memory of a device divides. The sum of all rows is `totals.allocated`, and that of their `at_peak` is `peak`.
#[derive(Clone, Debug)]
pub struct DeviceCategories {
    /// The device.
    pub index: DeviceIndex,
    /// Since when all this is counted.
    pub since: Since,
    /// The allocator's own totals.
    pub totals: Totals,
    /// The most that was allocated since then.
    pub peak: Bytes,
    /// Nanoseconds since the process's objects were read, which made categories exact; `None` where they were not.
    pub read_before: Option<u64>,
    /// Bytes of live blocks whose category they told.
    pub exact: Bytes,
    /// One for each portion that ever held anything, in the order of [`Portion::ALL`].
    pub rows: Vec<PortionRow>,
    /// When the first point begins.
    pub start: TimeNs,
    /// Nanoseconds from point to point.
    pub step: u64,
    /// How it divided over time: of each step, at the moment when most was allocated.
    pub points: Vec<Portions>,
    /// The last iterations, the latest first.
    pub iterations: Vec<IterationRow>,
    /// What iterations are told apart by.
    pub source: Source,
    /// What the program was doing when it last asked for memory.
    pub phase: Phase,
}

/// What a portion holds.
#[derive(Clone, Debug, PartialEq)]
pub struct PortionRow {
    /// Which.
    pub portion: Portion,
    /// Bytes now; negative only of what is unaccounted.
    pub live: i64,
    /// Blocks now, where they are counted.
    pub blocks: Option<u64>,
    /// Bytes when most was allocated on the device.
    pub at_peak: i64,
    /// The most of the moments that `points` keeps.
    pub most: i64,
    /// What decided, most bytes first; empty of what is no category.
    pub rules: Vec<CategoryRow>,
}

/// An iteration, as one device saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct IterationRow {
    /// Counts iterations from 1; the number of those so far, for what is none.
    pub number: u64,
    /// What it is.
    pub kind: IterationKind,
    /// The epoch that it began in, where that can be told.
    pub epoch: Option<u64>,
    /// Nanoseconds from its beginning to its end, or to the last event in it.
    pub length: u64,
    /// The most that was allocated in it.
    pub peak: Bytes,
    /// The allocator's own totals at its end.
    pub end: Totals,
    /// Blocks that were allocated in it.
    pub allocs: u64,
}

#[cfg(test)]
pub(crate) mod samples;
