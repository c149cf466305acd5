//! Columns of categories, common to all tables that have them.

use super::grid::{Cell, Column};
use crate::attribution::category::Category;

const COUNT: usize = 9;

/// Categories without a heading count in the column `Rest`.
pub(super) const COLUMNS: [Column; COUNT] = [
    Column::all("activation", "ACTIVATIONS"),
    Column::all("parameter", "WEIGHTS"),
    Column::all("gradient", "GRADIENTS"),
    Column::part("intermediate_gradient", "INTERMED.", 2),
    Column::part("optimizer_state", "OPTIMIZER", 1),
    Column::part("input", "INPUTS", 3),
    Column::programs("temporary"),
    Column::programs("workspace"),
    Column::programs("unknown"),
];

/// Categories in the order of their columns; the first [`NAMED`] have headings.
const CATEGORIES: [Category; COUNT] = [
    Category::Activation,
    Category::Parameter,
    Category::Gradient,
    Category::IntermediateGradient,
    Category::OptimizerState,
    Category::Input,
    Category::Temporary,
    Category::Workspace,
    Category::Unknown,
];

/// Number of categories with a heading.
const NAMED: usize = 6;

pub(super) fn cells(of: impl Fn(Category) -> u64) -> [Cell; COUNT] {
    CATEGORIES.map(|category| Cell::Bytes(of(category)))
}

/// Bytes of categories with a heading.
pub(super) fn named(of: impl Fn(Category) -> u64) -> u64 {
    let named = CATEGORIES[..NAMED].iter();
    named.fold(0, |sum, category| sum.saturating_add(of(*category)))
}

/// Concatenates lists of columns.
///
/// # Panics
///
/// If `ALL` is not their number; at compile time in a constant.
pub(super) const fn joined<const ALL: usize>(kinds: &[&[Column]]) -> [Column; ALL] {
    let mut all = [COLUMNS[0]; ALL];
    let (mut kind, mut at) = (0, 0);
    while kind < kinds.len() {
        let mut next = 0;
        while next < kinds[kind].len() {
            all[at] = kinds[kind][next];
            (next, at) = (next + 1, at + 1);
        }
        kind += 1;
    }
    assert!(at == ALL);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_use_the_names_of_their_categories() {
        let keys = COLUMNS.map(|column| column.key);
        assert_eq!(keys, CATEGORIES.map(Category::key));
        let all: u64 = Category::ALL.map(|_| 1).iter().sum();
        assert_eq!((all, named(|_| 1)), (COUNT as u64, NAMED as u64));
    }
}
