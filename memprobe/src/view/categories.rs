//! Columns of categories, on the live screen and in reports: a table with a row for each, and figures by category in
//! the tables of modules and iterations.

use super::names::BLOCKS;
use super::table::{Cell, Column, Summand, Tone, columns};
use crate::attribution::tables::Category::{
    self, Activation, Gradient, Input, IntermediateGradient, KvCache, OptimizerState, Parameter,
    Temporary, Unknown, Workspace,
};
use crate::attribution::tables::{CategoryRule, RuleStatus};
use crate::event::DeviceIndex;

/// Cells of a row in the table of categories. Each view defines the cells that it shows.
pub trait CategoryCells {
    fn device(&self) -> Option<DeviceIndex> {
        None
    }

    fn live(&self) -> Cell<'_>;
    fn at_peak(&self) -> Cell<'_>;

    /// Largest value of the moments in a graph.
    fn most(&self) -> Cell<'_> {
        Cell::Unknown
    }

    /// Share of the allocated bytes: in a report at the peak, on the screen now.
    fn share(&self) -> Cell<'_>;
    fn blocks(&self) -> Option<u64>;

    fn key(&self) -> &'static str {
        ""
    }

    fn name(&self) -> Cell<'_>;

    /// Rule of a row that has a single one.
    fn rule(&self) -> Option<CategoryRule>;

    /// Confidence of the category, and the rules that assigned it.
    fn decided(&self) -> (&'static str, String) {
        ("", String::new())
    }
}

pub const fn category_table_columns<R: CategoryCells>() -> [Column<R>; 13] {
    columns![|row: R|
        data("device") => row.device(),
        number("live", "LIVE").screen(9, 0).brief().tone(Tone::Strong) => row.live(),
        number("at_peak", "AT PEAK").screen(8, 50).brief() => row.at_peak(),
        figure("MOST").not_in_text().screen(8, 60).brief() => row.most(),
        figure("SHARE").screen(6, 94) => row.share(),
        number("live_blocks", BLOCKS).screen(8, 102) => row.blocks(),
        data("category") => row.key(),
        label("CATEGORY").name(29) => row.name(),
        data("provisional") => row.rule().map(is_provisional),
        data("exact") => row.rule().map(CategoryRule::is_exact),
        text("rule", "RULE") => row.rule().map_or(Cell::Blank, |rule| rule.as_str().into()),
        label("HOW").not_in_text().screen(8, 68).order(None).tone(Tone::Faint) => row.decided().0,
        label("WHAT DECIDED").not_in_text().screen(0, 84).order(None).tone(Tone::Faint) => row.decided().1,
    ]
}

pub fn is_provisional(rule: CategoryRule) -> bool {
    rule.status() == RuleStatus::Provisional
}

/// Row with a figure for each category.
pub trait ByCategory {
    fn bytes(&self, category: Category) -> Cell<'static>;
}

/// Categories without a heading count in the column [`Summand::Rest`].
pub const fn category_columns<R: ByCategory>() -> [Column<R>; 10] {
    columns![|row: R|
        number("activation", "ACTIVATIONS").screen(11, 40).brief() => row.bytes(Activation),
        number("parameter", "WEIGHTS").screen(8, 54).brief() => row.bytes(Parameter),
        number("gradient", "GRADIENTS").screen(9, 64).brief() => row.bytes(Gradient),
        number("intermediate_gradient", "INTERMED.").priority(2).part(Summand::Named).screen(9, 74).brief() =>
            row.bytes(IntermediateGradient),
        number("optimizer_state", "OPTIMIZER").priority(1).part(Summand::Named).screen(9, 92).brief() =>
            row.bytes(OptimizerState),
        number("input", "INPUTS").priority(3).part(Summand::Named).screen(8, 112).brief() => row.bytes(Input),
        data("kv_cache") => row.bytes(KvCache),
        data("temporary") => row.bytes(Temporary),
        data("workspace") => row.bytes(Workspace),
        data("unknown") => row.bytes(Unknown),
    ]
}

/// Bytes of categories with a heading.
pub fn headed_bytes(bytes: impl Fn(Category) -> u64) -> u64 {
    let headed = [
        Activation,
        Parameter,
        Gradient,
        IntermediateGradient,
        OptimizerState,
        Input,
    ];
    headed.into_iter().map(bytes).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Keys;

    impl ByCategory for Keys {
        fn bytes(&self, category: Category) -> Cell<'static> {
            category.key().into()
        }
    }

    #[test]
    fn columns_use_the_names_of_their_categories() {
        for column in category_columns::<Keys>() {
            assert_eq!((column.value)(&Keys).csv(), column.key);
        }
        let columns = category_columns::<Keys>();
        let with_heading = columns.iter().filter(|column| column.in_text).count();
        assert_eq!(headed_bytes(|_| 1), with_heading as u64);
        assert_eq!(Category::ALL.len(), columns.len());
    }
}
