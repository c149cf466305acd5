//! Options of tables of tensors, for `snapshot` and `diff`.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use super::options::{FoldOption, Format, FormatOption, LimitOption, StdoutStyle};
use crate::report::{RowLimit, TensorFormat, TensorNames, TensorOptions};
use crate::tensors::{GroupBy, Order};

/// Columns of a table that does not go to a terminal.
const PIPED_WIDTH: usize = 140;

/// Formats of these tables.
pub(super) const FORMATS: &[Format] = &[Format::Text, Format::Json, Format::Csv];

#[derive(Args)]
pub(super) struct TensorRows {
    /// Meaning of a row
    #[arg(short, long, value_enum, default_value_t = RowOf::Tensor)]
    by: RowOf,
    #[command(flatten)]
    pub(super) format: FormatOption,
    /// Order of rows
    #[arg(short, long, value_enum, default_value_t = Sorting::Allocated)]
    sort: Sorting,
    #[command(flatten)]
    limit: LimitOption,
    #[command(flatten)]
    fold: FoldOption,
    /// Show all names of each tensor, and the rules that inferred them
    #[arg(long)]
    all_names: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RowOf {
    /// A tensor; identical unnamed tensors are one row
    Tensor,
    /// Tensors of equal kind, shape and dtype, whatever their names: `3 * (256, 256, 3, 3)`
    Shape,
    /// A kind: parameters, gradients, optimizer state
    Kind,
    /// A module
    Module,
    /// The line that allocated it, if memprobe watched the allocation
    Line,
    /// The variable or container that keeps the memory alive, also through graphs of tensors
    Retainer,
}

#[derive(Clone, Copy, ValueEnum)]
enum Sorting {
    /// Most bytes of the allocator first
    Allocated,
    /// Most bytes of elements first, shared or not
    Size,
    /// By name
    Name,
    /// By kind
    Kind,
    /// Most tensors first
    Count,
}

impl TensorRows {
    /// For a table on standard output.
    pub(super) fn options(&self) -> Result<TensorOptions> {
        if self.fold.no_fold && self.by != RowOf::Tensor {
            bail!("--no-fold shows every tensor: leave out --by, or give --by tensor");
        }
        let style = StdoutStyle::detect();
        Ok(TensorOptions {
            format: match self.format.or_text() {
                Format::Json => TensorFormat::Json,
                Format::Csv => TensorFormat::Csv,
                Format::Text | Format::Jsonl => TensorFormat::Text,
            },
            by: match self.by {
                RowOf::Tensor if self.fold.no_fold => GroupBy::Nothing,
                RowOf::Tensor => GroupBy::Unnamed,
                RowOf::Shape => GroupBy::Shape,
                RowOf::Kind => GroupBy::Kind,
                RowOf::Module => GroupBy::Module,
                RowOf::Line => GroupBy::Site,
                RowOf::Retainer => GroupBy::Retainer,
            },
            order: match self.sort {
                Sorting::Allocated => Order::Holds,
                Sorting::Size => Order::Size,
                Sorting::Name => Order::Name,
                Sorting::Kind => Order::Kind,
                Sorting::Count => Order::Count,
            },
            top: self.limit.limit.unwrap_or(RowLimit::Rows(50)),
            names: if self.all_names {
                TensorNames::All
            } else {
                TensorNames::Best
            },
            width: style.columns.unwrap_or(PIPED_WIDTH),
            colour: style.colour,
        })
    }
}
