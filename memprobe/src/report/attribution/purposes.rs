//! Columns of categories, common to all tables that have them.

use crate::attribution::category::Category::{
    self, Activation, Gradient, Input, IntermediateGradient, OptimizerState, Parameter, Temporary,
    Unknown, Workspace,
};
use crate::view::table::{Cell, Column, Part};

/// A row with bytes by category.
pub(super) trait ByCategory {
    fn bytes(&self, category: Category) -> Cell<'static>;
}

/// Categories without a heading count in the column [`Part::Rest`].
pub(super) fn columns<R: ByCategory>() -> [Column<R>; 9] {
    let part = Part::Summand;
    [
        Column::number("activation", "ACTIVATIONS", |row: &R| row.bytes(Activation)),
        Column::number("parameter", "WEIGHTS", |row: &R| row.bytes(Parameter)),
        Column::number("gradient", "GRADIENTS", |row: &R| row.bytes(Gradient)),
        Column::number("intermediate_gradient", "INTERMED.", |row: &R| {
            row.bytes(IntermediateGradient)
        })
        .priority(2)
        .part(part),
        Column::number("optimizer_state", "OPTIMIZER", |row: &R| {
            row.bytes(OptimizerState)
        })
        .priority(1)
        .part(part),
        Column::number("input", "INPUTS", |row: &R| row.bytes(Input))
            .priority(3)
            .part(part),
        Column::data("temporary", |row: &R| row.bytes(Temporary)),
        Column::data("workspace", |row: &R| row.bytes(Workspace)),
        Column::data("unknown", |row: &R| row.bytes(Unknown)),
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
        let with_heading = columns::<Keys>()
            .iter()
            .filter(|it| it.head.is_some())
            .count();
        assert_eq!(named(|_| 1), with_heading as u64);
        assert_eq!(Category::ALL.len(), columns::<Keys>().len());
    }
}
