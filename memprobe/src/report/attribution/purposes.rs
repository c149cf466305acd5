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
    [
        Column::number("activation", "ACTIVATIONS", |row| row.bytes(Activation)),
        Column::number("parameter", "WEIGHTS", |row| row.bytes(Parameter)),
        Column::number("gradient", "GRADIENTS", |row| row.bytes(Gradient)),
        part(2, "intermediate_gradient", "INTERMED.", |row| {
            row.bytes(IntermediateGradient)
        }),
        part(1, "optimizer_state", "OPTIMIZER", |row| {
            row.bytes(OptimizerState)
        }),
        part(3, "input", "INPUTS", |row| row.bytes(Input)),
        Column::data("temporary", |row| row.bytes(Temporary)),
        Column::data("workspace", |row| row.bytes(Workspace)),
        Column::data("unknown", |row| row.bytes(Unknown)),
    ]
}

fn part<R>(
    priority: u8,
    key: &'static str,
    head: &'static str,
    value: fn(&R) -> Cell<'_>,
) -> Column<R> {
    Column::wide(priority, key, head, value).part(Part::Summand)
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
