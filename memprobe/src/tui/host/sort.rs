//! Sort order of processes.

use std::cmp::Ordering;

use super::super::list;
use super::super::sort::Order;
use crate::event::Bytes;
use crate::ledger::snapshot::host::{ProcessRow, Trend};
use crate::view::{FileNames, top_line};

/// Column of the table of processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Column {
    Pid,
    /// User name.
    User,
    /// Container or pod.
    Container,
    /// Rank in a distributed job.
    Rank,
    /// Devices.
    Devices,
    /// Bytes allocated by the caching allocator.
    #[default]
    Allocated,
    /// Bytes reserved by the caching allocator.
    Reserved,
    /// Bytes that the driver attributes to the process.
    Driver,
    /// Peak of the allocated bytes.
    Peak,
    /// Allocated bytes of the last minute. Sorts by their growth.
    Trend,
    /// Command line.
    Command,
    /// Line with the most live bytes.
    Top,
}

impl Column {
    /// All columns, from left to right.
    #[cfg(test)]
    pub const ALL: [Self; 12] = [
        Self::Pid,
        Self::User,
        Self::Container,
        Self::Rank,
        Self::Devices,
        Self::Allocated,
        Self::Reserved,
        Self::Driver,
        Self::Peak,
        Self::Trend,
        Self::Command,
        Self::Top,
    ];

    pub fn head(self) -> &'static str {
        match self {
            Self::Pid => "PID",
            Self::User => "USER",
            Self::Container => "CONTAINER",
            Self::Rank => "RANK",
            Self::Devices => "DEV",
            Self::Allocated => "ALLOC",
            Self::Reserved => "RESERVED",
            Self::Driver => "DRIVER",
            Self::Peak => "PEAK",
            Self::Trend => "TREND 1m",
            Self::Command => "COMMAND",
            Self::Top => "TOP LINE",
        }
    }

    /// Returns true if the column sorts largest first by default.
    fn is_amount(self) -> bool {
        matches!(
            self,
            Self::Allocated | Self::Reserved | Self::Driver | Self::Peak | Self::Trend
        )
    }
}

/// Sort order of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sort {
    pub column: Column,
    pub order: Order,
}

impl Sort {
    /// Sorts by `column` in its default direction, or reverses the order if it is already the sort column.
    pub fn by(self, column: Column) -> Self {
        if self.column == column {
            return self.reversed();
        }
        let order = if column.is_amount() {
            Order::Falling
        } else {
            Order::Climbing
        };
        Self { column, order }
    }

    /// Sorts by the column `by` places to the right in `columns`, wrapping around.
    pub fn step(self, by: isize, columns: &[Column]) -> Self {
        list::further(columns, self.column, by).map_or(self, |column| self.by(column))
    }

    /// Reverses the order.
    pub fn reversed(self) -> Self {
        let order = self.order.reversed();
        Self { order, ..self }
    }

    /// Compares two processes. Those without a value come last in either direction. Ties are broken by the
    /// driver's figure, then by PID.
    pub fn compare(self, a: &ProcessRow, b: &ProcessRow, names: &FileNames) -> Ordering {
        let ordered = match self.column {
            Column::Pid => self.known(Some(a.tgid), Some(b.tgid)),
            Column::User => self.known(a.facts.user.as_ref(), b.facts.user.as_ref()),
            Column::Container => {
                self.known(a.target.container.as_ref(), b.target.container.as_ref())
            }
            Column::Rank => self.known(
                a.facts.rank.map(|rank| rank.global),
                b.facts.rank.map(|rank| rank.global),
            ),
            Column::Devices => self.known(first_device(a), first_device(b)),
            Column::Allocated => self.known(allocated(a), allocated(b)),
            Column::Reserved => self.known(
                a.totals().map(|totals| totals.reserved),
                b.totals().map(|totals| totals.reserved),
            ),
            Column::Driver => self.known(a.driver_total(), b.driver_total()),
            Column::Peak => self.known(
                allocated(a).map(|_| a.peak.allocated),
                allocated(b).map(|_| b.peak.allocated),
            ),
            Column::Trend => self.known(growth(&a.trend), growth(&b.trend)),
            Column::Command => self.known(Some(&a.target.command), Some(&b.target.command)),
            Column::Top => self.known(top_line(a, names), top_line(b, names)),
        };
        ordered
            .then_with(|| b.driver_total().cmp(&a.driver_total()))
            .then(a.tgid.cmp(&b.tgid))
    }

    fn known<T: Ord>(self, a: Option<T>, b: Option<T>) -> Ordering {
        match (a, b) {
            (Some(a), Some(b)) => match self.order {
                Order::Falling => b.cmp(&a),
                Order::Climbing => a.cmp(&b),
            },
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        }
    }
}

fn allocated(row: &ProcessRow) -> Option<Bytes> {
    row.totals().map(|totals| totals.allocated)
}

fn first_device(row: &ProcessRow) -> Option<u32> {
    let own = row.devices.first().map(|device| u32::from(device.index.0));
    own.or_else(|| row.driver.first().map(|held| held.device))
}

/// Returns the growth of the allocated bytes over the trend.
fn growth(trend: &Trend) -> Option<i128> {
    let (first, last) = (trend.points.first()?, trend.points.last()?);
    Some(i128::from(last.0) - i128::from(first.0))
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn order(sort: Sort) -> Vec<u32> {
        let mut rows = samples::busy().processes;
        rows.sort_by(|a, b| sort.compare(a, b, &FileNames::default()));
        rows.iter().map(|row| row.tgid.0).collect()
    }

    #[test]
    fn what_has_no_figure_stands_last_whichever_end_comes_first() {
        let falling = Sort::default();
        let last = |order: Vec<u32>| order[order.len() - 3..].to_vec();
        // The driver reports memory for 5120, but not for the others.
        assert_eq!(last(order(falling)), [5120, 1240, 7001]);
        assert_eq!(last(order(falling.reversed())), [5120, 1240, 7001]);
    }

    #[test]
    fn amounts_begin_with_the_largest_and_names_with_the_first() {
        let sort = Sort::default();
        assert_eq!(sort.by(Column::Peak).order, Order::Falling);
        assert_eq!(sort.by(Column::User).order, Order::Climbing);
        assert_eq!(sort.by(Column::Allocated).order, Order::Climbing);
        assert_eq!(order(sort.by(Column::Pid))[0], 1234);
    }

    #[test]
    fn stepping_passes_over_the_columns_that_are_not_shown() {
        let shown = [Column::Pid, Column::Allocated, Column::Command];
        let sort = Sort::default();
        assert_eq!(sort.step(1, &shown).column, Column::Command);
        assert_eq!(sort.step(2, &shown).column, Column::Pid);
        assert_eq!(sort.step(-1, &shown).column, Column::Pid);
        assert_eq!(sort.by(Column::Rank).step(1, &shown).column, Column::Pid);
        assert_eq!(sort.step(1, &[]), sort);
    }
}
