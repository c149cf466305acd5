//! The arguments that tables of tensors have in common.

use std::io::IsTerminal as _;

use clap::{Args, ValueEnum};

use crate::model::tensors::{GroupBy, Order};
use crate::report::{Colour, TensorFormat, TensorNames, TensorOptions, Top};

/// Columns of a table that does not go to a terminal.
const PIPED_WIDTH: usize = 140;

/// Options for tables of tensors.
#[derive(Args)]
pub(super) struct Table {
    /// Output format [default: text]
    #[arg(short, long, value_enum)]
    pub(super) format: Option<Writing>,
    /// Rows to merge into one
    #[arg(short, long, alias = "by", value_enum, default_value_t = Grouping::Unnamed)]
    group: Grouping,
    /// The order of rows
    #[arg(short, long, value_enum, default_value_t = Sorting::Holds)]
    sort: Sorting,
    /// Show this many rows of each device
    #[arg(
        short,
        long,
        alias = "top",
        value_name = "N",
        default_value_t = 50,
        conflicts_with = "all"
    )]
    limit: usize,
    /// Show all rows
    #[arg(short, long)]
    all: bool,
    /// Show all names of each tensor, and the rules that inferred them
    #[arg(long)]
    all_names: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Writing {
    /// For people
    Text,
    /// One JSON document with all that is known
    Json,
    /// Comma-separated values
    Csv,
}

#[derive(Clone, Copy, ValueEnum)]
enum Grouping {
    /// Tensors without a name that are equal in all that is shown
    Unnamed,
    /// None: a row for each tensor
    None,
    /// Tensors of equal kind, shape and dtype, whatever their names: `3 * (256, 256, 3, 3)`
    Shape,
    /// All of a kind: parameters, gradients, optimizer state
    Kind,
    /// All of a module
    Module,
    /// Line that allocated it, if memprobe watched the allocation
    Site,
    /// All that one variable or container keeps alive, also through the graphs of its tensors
    Keeper,
}

#[derive(Clone, Copy, ValueEnum)]
enum Sorting {
    /// Most bytes of the allocator first
    #[value(alias = "bytes")]
    Holds,
    /// Most bytes of own elements first, shared or not
    Size,
    /// By name
    Name,
    /// By kind
    Kind,
    /// Most tensors first
    Count,
}

impl Table {
    /// For a table on standard output.
    pub(super) fn options(&self) -> TensorOptions {
        let terminal = std::io::stdout().is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let columns = size.map_or(0, |size| usize::from(size.ws_col));
        TensorOptions {
            format: self.format.unwrap_or(Writing::Text).into(),
            by: match self.group {
                Grouping::Unnamed => GroupBy::Unnamed,
                Grouping::None => GroupBy::Nothing,
                Grouping::Shape => GroupBy::Shape,
                Grouping::Kind => GroupBy::Kind,
                Grouping::Module => GroupBy::Module,
                Grouping::Site => GroupBy::Site,
                Grouping::Keeper => GroupBy::Retainer,
            },
            order: match self.sort {
                Sorting::Holds => Order::Holds,
                Sorting::Size => Order::Size,
                Sorting::Name => Order::Name,
                Sorting::Kind => Order::Kind,
                Sorting::Count => Order::Count,
            },
            top: if self.all {
                Top::All
            } else {
                Top::Rows(self.limit)
            },
            names: if self.all_names {
                TensorNames::All
            } else {
                TensorNames::Best
            },
            width: if columns > 0 { columns } else { PIPED_WIDTH },
            colour: if terminal && wanted {
                Colour::Ansi
            } else {
                Colour::Plain
            },
        }
    }
}

impl From<Writing> for TensorFormat {
    fn from(writing: Writing) -> Self {
        match writing {
            Writing::Text => Self::Text,
            Writing::Json => Self::Json,
            Writing::Csv => Self::Csv,
        }
    }
}
