//! Rows of the table of processes: sums, visibility and search text.

use std::fmt;

use crate::event::bytes::short;
use crate::event::{Bytes, Totals};
use crate::ledger::snapshot::host::{Holder, ProcessRow};
use crate::view::{BEFORE_ATTACH, clean, named_site, process_state, whole_frame};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProcessSums {
    pub rows: usize,
    /// Sum of the allocators' totals.
    pub totals: Totals,
    /// Sum of the driver's figures; `None` if the driver reports none.
    pub driver: Option<Bytes>,
    /// The driver says only a part: of some row or device it gives no bytes.
    pub driver_is_partial: bool,
}

impl ProcessSums {
    pub fn of<'a>(rows: impl Iterator<Item = &'a ProcessRow>) -> Self {
        let mut sums = Self::default();
        for row in rows {
            sums.rows += 1;
            let totals = row.totals().unwrap_or_default();
            let add = |sum: &mut Bytes, bytes: Bytes| sum.0 = sum.0.saturating_add(bytes.0);
            add(&mut sums.totals.allocated, totals.allocated);
            add(&mut sums.totals.reserved, totals.reserved);
            if let Some(bytes) = row.driver_at_least() {
                add(sums.driver.get_or_insert_default(), bytes);
            }
            let has_gap = row.driver.iter().any(|held| held.bytes.is_none());
            sums.driver_is_partial |= has_gap || row.driver_is_partial;
        }
        sums
    }
}

impl fmt::Display for ProcessSums {
    /// Writes `allocated 4.00 GiB, reserved 5.00 GiB, driver 7.00 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals {
            allocated,
            reserved,
        } = self.totals;
        write!(
            f,
            "allocated {}, reserved {}",
            short(allocated),
            short(reserved)
        )?;
        if let Some(driver) = self.driver {
            let more = if self.driver_is_partial { "+" } else { "" };
            write!(f, ", driver {}{more}", short(driver))?;
        }
        Ok(())
    }
}

/// Returns the text that the filter matches.
pub fn searched(row: &ProcessRow) -> String {
    let facts = &row.facts;
    let top = row.top.as_ref().map(|top| match &top.holder {
        Holder::Site(site) => named_site(site, whole_frame),
        Holder::BeforeAttach => BEFORE_ATTACH.to_owned(),
    });
    let parts = [
        Some(row.tgid.0.to_string()),
        facts.user.as_deref().map(clean),
        row.target.container.as_deref().map(clean),
        facts.rank.map(|rank| format!("rank {}", rank.global)),
        Some(clean(&row.target.command)),
        top,
        process_state(row),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::super::filter::Filter;
    use super::super::samples;
    use super::*;

    #[test]
    fn sums_are_those_of_the_rows() {
        let host = samples::busy();
        let sums = ProcessSums::of(host.processes.iter());
        let all = host.processes.iter().filter_map(ProcessRow::totals);
        let allocated: u64 = all.map(|totals| totals.allocated.0).sum();
        assert_eq!(sums.totals.allocated.0, allocated);
        assert_eq!(ProcessSums::of(std::iter::empty()).driver, None);
    }

    #[test]
    fn a_process_is_found_by_whatever_a_person_knows_of_it() {
        let host = samples::busy();
        let found = |pattern: &str| -> Vec<u32> {
            let filter = Filter::new(pattern);
            let rows = host.processes.iter();
            let found = rows.filter(|row| filter.shows(&searched(row)));
            found.map(|row| row.tgid.0).collect()
        };
        assert_eq!(found("1234"), [1234]);
        assert_eq!(found("grace"), [5120]);
        assert_eq!(found("rank 1"), [2002]);
        assert_eq!(found("gpt/model.py"), [1234]);
        assert_eq!(found("llm-serving"), [6001]);
        assert_eq!(found("not supported"), [5120]);
        assert_eq!(found("[").len(), host.processes.len());
    }
}
