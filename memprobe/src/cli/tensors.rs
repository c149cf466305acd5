//! Options of tables of tensors, for `snapshot` and `diff`.

use anyhow::{Result, bail};
use clap::Args;

use super::options::{
    Choice, FoldOption, Format, FormatOption, LimitOption, StdoutStyle, choice, choices,
};
use crate::report::{RowLimit, TensorFormat, TensorNames, TensorOptions};
use crate::tensors::{GroupBy, Order};

/// Columns of a table that does not go to a terminal.
const PIPED_WIDTH: usize = 140;

/// Formats of these tables.
pub(super) const FORMATS: &[Format] = &[Format::Text, Format::Json, Format::Csv];

#[derive(Args)]
pub(super) struct TensorRows {
    /// Meaning of a row
    #[arg(short, long, default_value = "tensor", value_parser = choice(ROWS))]
    by: GroupBy,
    #[command(flatten)]
    pub(super) format: FormatOption,
    /// Order of rows
    #[arg(short, long, default_value = "allocated", value_parser = choice(ORDERS))]
    sort: Order,
    #[command(flatten)]
    limit: LimitOption,
    #[command(flatten)]
    fold: FoldOption,
    /// Show all names of each tensor, and the rules that inferred them
    #[arg(long)]
    all_names: bool,
}

const ROWS: &[Choice<GroupBy>] = choices! {
    "tensor" => GroupBy::Unnamed, "A tensor; identical unnamed tensors are one row";
    "shape" => GroupBy::Shape, "Tensors of equal kind, shape and dtype, whatever their names: `3 * (256, 256, 3, 3)`";
    "kind" => GroupBy::Kind, "A kind: parameters, gradients, optimizer state";
    "module" => GroupBy::Module, "A module";
    "line" => GroupBy::Site, "The line that allocated it, if memprobe watched the allocation";
    "retainer" => GroupBy::Retainer, "The variable or container that keeps the memory alive, also through graphs of \
        tensors";
};

const ORDERS: &[Choice<Order>] = choices! {
    "allocated" => Order::Holds, "Most bytes of the allocator first";
    "size" => Order::Size, "Most bytes of elements first, shared or not";
    "name" => Order::Name, "By name";
    "kind" => Order::Kind, "By kind";
    "count" => Order::Count, "Most tensors first";
};

impl TensorRows {
    /// For a table on standard output.
    pub(super) fn options(&self) -> Result<TensorOptions> {
        if self.fold.no_fold && self.by != GroupBy::Unnamed {
            bail!("--no-fold shows every tensor: leave out --by, or give --by tensor");
        }
        let style = StdoutStyle::detect();
        Ok(TensorOptions {
            format: match self.format.or_text() {
                Format::Json => TensorFormat::Json,
                Format::Csv => TensorFormat::Csv,
                Format::Text | Format::Jsonl => TensorFormat::Text,
            },
            by: if self.fold.no_fold {
                GroupBy::Nothing
            } else {
                self.by
            },
            order: self.sort,
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
