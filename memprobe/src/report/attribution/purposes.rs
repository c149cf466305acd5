//! Columns of categories, common to all tables that have them.

use crate::attribution::category::Category::{
    self, Activation, Gradient, Input, IntermediateGradient, KvCache, OptimizerState, Parameter,
    Temporary, Unknown, Workspace,
};
use crate::view::table::{Cell, Column, Summand, columns};

pub(super) trait ByCategory {
    fn bytes(&self, category: Category) -> Cell<'static>;
}

/// Categories without a heading count in the column [`Summand::Rest`].
pub(super) fn columns<R: ByCategory>() -> [Column<R>; 10] {
    columns![|row: R|
        number("activation", "ACTIVATIONS") => row.bytes(Activation),
        number("parameter", "WEIGHTS") => row.bytes(Parameter),
        number("gradient", "GRADIENTS") => row.bytes(Gradient),
        number("intermediate_gradient", "INTERMED.").priority(2).part(Summand::Named) => row.bytes(IntermediateGradient),
        number("optimizer_state", "OPTIMIZER").priority(1).part(Summand::Named) => row.bytes(OptimizerState),
        number("input", "INPUTS").priority(3).part(Summand::Named) => row.bytes(Input),
        data("kv_cache") => row.bytes(KvCache),
        data("temporary") => row.bytes(Temporary),
        data("workspace") => row.bytes(Workspace),
        data("unknown") => row.bytes(Unknown),
    ]
}

/// Bytes of categories with a heading.
pub(super) fn named(of: impl Fn(Category) -> u64) -> u64 {
    let named = [
        Activation,
        Parameter,
        Gradient,
        IntermediateGradient,
        OptimizerState,
        Input,
    ];
    named.into_iter().map(of).fold(0, u64::saturating_add)
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
        for column in columns::<Keys>() {
            assert_eq!((column.value)(&Keys).csv(), column.key);
        }
        let with_heading = columns::<Keys>().iter().filter(|it| it.in_text).count();
        assert_eq!(named(|_| 1), with_heading as u64);
        assert_eq!(Category::ALL.len(), columns::<Keys>().len());
    }
}
