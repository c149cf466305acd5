//! Columns of modules and of layers, on the live screens and in reports.

use super::categories::{ByCategory, category_columns, headed_bytes};
use super::names::BLOCKS;
use super::table::{Cell, Column, Cut, Summand, Tone, columns, joined};
use crate::attribution::tables::Category::{
    Activation, Gradient, Input, IntermediateGradient, KvCache, OptimizerState, Parameter,
    Temporary, Unknown, Workspace,
};
use crate::attribution::tables::Pass::{self, Backward, Forward, Recompute};
use crate::attribution::tables::{Category, Layer, Sums};
use crate::event::DeviceIndex;

/// Heading of a column that is shown only if memory was recomputed.
pub const RECOMPUTE: &str = "RECOMPUTE";

/// Figures of a module with its submodules, and of the module itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfModule<T> {
    pub total: T,
    pub own: T,
}

impl<T: Copy> OfModule<T> {
    /// Figures of memory outside modules, which has no parts.
    pub fn whole(total: T) -> Self {
        Self { total, own: total }
    }
}

/// Name and place of a row in a tree of modules.
pub trait ModuleTreeCells {
    fn device(&self) -> Option<DeviceIndex> {
        None
    }

    fn kind(&self) -> &'static str {
        ""
    }

    /// Path of a row that is a module.
    fn path(&self) -> Option<&str> {
        None
    }

    /// 0 for an outermost module.
    fn depth(&self) -> Option<u64> {
        None
    }

    fn name(&self) -> Cell<'_>;
}

/// Cells of a row in the table of modules. Each view defines the cells that it shows.
pub trait ModuleCells: ModuleTreeCells {
    /// `None` for a row beside the modules.
    fn sums(&self) -> Option<OfModule<&Sums>>;
    fn live(&self) -> Cell<'_>;
    fn at_peak(&self) -> Cell<'_>;
    fn live_blocks(&self) -> Cell<'_>;
    fn own_live(&self) -> Cell<'_>;
    fn own_at_peak(&self) -> Cell<'_>;
    fn own_live_blocks(&self) -> Cell<'_>;
    fn share(&self) -> Cell<'_>;

    /// Bytes without submodules: on the screen now, in a report at the peak.
    fn own(&self) -> Cell<'_>;

    /// Bytes of a pass, at the moment of [`Self::own`].
    fn pass(&self, pass: Pass) -> Cell<'_>;
}

/// Columns whose keys begin with `own` exclude a module's parts. They add up to the allocator's
/// total now (`own_live`) and at the peak (`own_at_peak`).
pub const fn module_columns<R: ModuleCells>() -> [Column<R>; 30] {
    columns![|row: R|
        data("device") => row.device(),
        data("kind") => row.kind(),
        data("path") => row.path(),
        data("depth") => row.depth(),
        number("live", "LIVE").short().screen(9, 0).tone(Tone::Strong) => row.live(),
        number("peak", "PEAK").short().screen(8, 44) => total(row, |it| it.all.peak),
        number("at_peak", "AT PEAK").short().screen(8, 96) => row.at_peak(),
        figure("SHARE").priority(1).screen(6, 78) => row.share(),
        figure("OWN").short().screen(8, 60) => row.own(),
        figure("FORWARD").short().screen(8, 70) => row.pass(Forward),
        figure(RECOMPUTE).short().screen(9, 88) => row.pass(Recompute),
        figure("BACKWARD").short().screen(8, 70) => row.pass(Backward),
        number("live_blocks", BLOCKS).not_in_text().screen(8, 110) => row.live_blocks(),
        number("allocs", "ALLOCS").short() => total(row, |it| it.all.allocs),
        label("MODULE").name(0).cut(Cut::Middle) => row.name(),
        data("at_peak_blocks") => total(row, |it| it.all.at_peak_blocks),
        data("forward_live") => total(row, |it| it.pass(Forward).live),
        data("forward_at_peak") => total(row, |it| it.pass(Forward).at_peak),
        data("forward_peak") => total(row, |it| it.pass(Forward).peak),
        data("recompute_live") => total(row, |it| it.pass(Recompute).live),
        data("recompute_at_peak") => total(row, |it| it.pass(Recompute).at_peak),
        data("recompute_peak") => total(row, |it| it.pass(Recompute).peak),
        data("backward_live") => total(row, |it| it.pass(Backward).live),
        data("backward_at_peak") => total(row, |it| it.pass(Backward).at_peak),
        data("backward_peak") => total(row, |it| it.pass(Backward).peak),
        data("own_live") => row.own_live(),
        data("own_at_peak") => row.own_at_peak(),
        data("own_peak") => own(row, |it| it.all.peak),
        data("own_live_blocks") => row.own_live_blocks(),
        data("own_allocs") => own(row, |it| it.all.allocs),
    ]
}

fn total<R: ModuleCells, T: Into<Cell<'static>>>(row: &R, value: fn(&Sums) -> T) -> Cell<'static> {
    (row.sums()).map_or_else(Cell::default, |sums| value(sums.total).into())
}

fn own<R: ModuleCells, T: Into<Cell<'static>>>(row: &R, value: fn(&Sums) -> T) -> Cell<'static> {
    (row.sums()).map_or_else(Cell::default, |sums| value(sums.own).into())
}

/// Cells of a row in the table of layers: modules at a peak, by category.
pub trait LayerCells: ModuleTreeCells + ByCategory {
    /// `None` for a row without categories.
    fn layers(&self) -> Option<OfModule<&Layer>>;
    fn total(&self) -> Cell<'_>;
    fn own_total(&self) -> Cell<'_>;

    fn iteration(&self) -> Option<u64> {
        None
    }

    fn iteration_kind(&self) -> Option<&'static str> {
        None
    }

    fn epoch(&self) -> Option<u64> {
        None
    }

    fn share(&self) -> Cell<'_> {
        Cell::Unknown
    }
}

/// Columns whose keys begin with `own` exclude a module's parts.
pub const fn layer_columns<R: LayerCells>() -> [Column<R>; 33] {
    let first: [Column<R>; 19] = joined(
        columns![|row: R|
            data("device") => row.device(),
            data("iteration") => row.iteration(),
            data("iteration_kind") => row.iteration_kind(),
            data("epoch") => row.epoch(),
            data("kind") => row.kind(),
            data("path") => row.path(),
            data("depth") => row.depth(),
            number("total", "AT PEAK").screen(9, 0).brief().tone(Tone::Strong) => row.total(),
            figure("OWN").not_in_text().screen(8, 130).brief() => row.own_total(),
        ],
        category_columns(),
    );
    let rest = columns![|row: R|
        figure("OTHER").part(Summand::Rest).screen(8, 102).brief() => other(row),
        figure("SHARE").not_in_text().screen(6, 122) => row.share(),
        data("own_total") => row.own_total(),
        data("own_activation") => own_bytes(row, Activation),
        data("own_parameter") => own_bytes(row, Parameter),
        data("own_gradient") => own_bytes(row, Gradient),
        data("own_intermediate_gradient") => own_bytes(row, IntermediateGradient),
        data("own_optimizer_state") => own_bytes(row, OptimizerState),
        data("own_input") => own_bytes(row, Input),
        data("own_kv_cache") => own_bytes(row, KvCache),
        data("own_temporary") => own_bytes(row, Temporary),
        data("own_workspace") => own_bytes(row, Workspace),
        data("own_unknown") => own_bytes(row, Unknown),
        label("MODULE").name(0).cut(Cut::Middle) => row.name(),
    ];
    joined(first, rest)
}

/// Bytes of the categories without a heading.
fn other<R: LayerCells>(row: &R) -> Cell<'static> {
    let Some(layers) = row.layers() else {
        return row.bytes(Unknown);
    };
    let headed = headed_bytes(|category| layers.total.of(category));
    Cell::Bytes(layers.total.all().saturating_sub(headed))
}

fn own_bytes<R: LayerCells>(row: &R, category: Category) -> Cell<'static> {
    let layers = row.layers();
    layers.map_or(Cell::Blank, |layers| Cell::Bytes(layers.own.of(category)))
}
