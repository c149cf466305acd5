//! What the table says of each process, and which processes it shows.

use super::super::filter::Filter;
use super::sort::Sort;
use crate::event::{Bytes, Totals};
use crate::label::{BEFORE_ATTACH, FileNames, clean, named_site, percent, whole_frame};
use crate::model::snapshot::host::{Holder, ProcessRow, ProcessState, Rank};

/// What the rows add up to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// How many there are.
    pub rows: usize,
    /// What their allocators say.
    pub totals: Totals,
    /// What the driver says; `None` where it says nothing of any of them.
    pub driver: Option<Bytes>,
}

impl Sums {
    /// Of these rows.
    pub fn of<'a>(rows: impl Iterator<Item = &'a ProcessRow>) -> Self {
        let mut sums = Self::default();
        for row in rows {
            sums.rows += 1;
            let totals = row.totals().unwrap_or_default();
            let add = |sum: &mut Bytes, bytes: Bytes| sum.0 = sum.0.saturating_add(bytes.0);
            add(&mut sums.totals.allocated, totals.allocated);
            add(&mut sums.totals.reserved, totals.reserved);
            if let Some(bytes) = row.driver_total() {
                add(sums.driver.get_or_insert_default(), bytes);
            }
        }
        sums
    }
}

/// The processes to show, by their place in the snapshot, in order.
pub fn order(
    processes: &[ProcessRow],
    sort: Sort,
    filter: &Filter,
    names: &FileNames,
) -> Vec<usize> {
    let mut places: Vec<usize> = (0..processes.len())
        .filter(|place| !filter.is_active() || filter.shows(&searched(&processes[*place])))
        .collect();
    places.sort_by(|a, b| sort.compare(&processes[*a], &processes[*b], names));
    places
}

/// Names for the files of the lines that hold most.
pub fn names(processes: &[ProcessRow]) -> FileNames {
    let frames = processes.iter().filter_map(|row| match &row.top {
        Some(top) => match &top.holder {
            Holder::Site(site) => site.frame(),
            Holder::BeforeAttach => None,
        },
        None => None,
    });
    FileNames::of(frames.map(|frame| &frame.file))
}

/// What the filter looks at.
fn searched(row: &ProcessRow) -> String {
    let facts = &row.facts;
    let top = row.top.as_ref().map(|top| match &top.holder {
        Holder::Site(site) => named_site(site, whole_frame),
        Holder::BeforeAttach => BEFORE_ATTACH.to_owned(),
    });
    let parts = [
        Some(row.tgid.0.to_string()),
        facts.user.as_deref().map(clean),
        facts.container.as_deref().map(clean),
        facts.rank.map(|rank| format!("rank {}", rank.global)),
        Some(clean(&row.target.command)),
        top,
        state_text(row),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Why a process has no figures, or what has become of it.
pub fn state_text(row: &ProcessRow) -> Option<String> {
    match &row.state {
        ProcessState::Waiting(what) => Some(format!("waiting for {}", clean(what))),
        ProcessState::Refused(why) => Some(format!("not probed: {}", clean(why))),
        ProcessState::Ended => Some("ended".to_owned()),
        ProcessState::Probed => None,
    }
}

/// The line that holds most, with its part of the process's memory.
pub fn top_text(row: &ProcessRow, names: &FileNames) -> Option<String> {
    let top = row.top.as_ref()?;
    let name = match &top.holder {
        Holder::Site(site) => names.site(site),
        Holder::BeforeAttach => BEFORE_ATTACH.to_owned(),
    };
    let whole = row.totals().unwrap_or_default().allocated;
    let share = percent(top.live.0.into(), whole.0.into());
    Some(format!("{share:>6} {name}"))
}

/// The command with its program's name in place of the path: `python train.py`.
pub fn command_text(command: &str) -> String {
    let (program, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let name = program.rsplit('/').next().filter(|name| !name.is_empty());
    clean(format!("{} {arguments}", name.unwrap_or(program)).trim_end())
}

/// `3/8`, or `3` where it is not known of how many.
pub fn rank_text(rank: Rank) -> String {
    match rank.world {
        Some(world) => format!("{}/{world}", rank.global),
        None => rank.global.to_string(),
    }
}

/// The devices as the process numbers them, such as `0-3` or `0,2`; as the driver does, such as
/// `gpu5`, where only the driver knows of them.
pub fn devices_text(row: &ProcessRow) -> Option<String> {
    if !row.devices.is_empty() {
        let own = row.devices.iter().map(|device| u32::from(device.index.0));
        return Some(ranges(own));
    }
    if row.driver.is_empty() {
        return None;
    }
    let drivers = row.driver.iter().map(|held| held.device);
    Some(format!("gpu{}", ranges(drivers)))
}

/// Climbing numbers as ranges.
fn ranges(numbers: impl Iterator<Item = u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn devices_are_named_in_ranges() {
        assert_eq!(ranges([0].into_iter()), "0");
        assert_eq!(ranges([0, 1].into_iter()), "0,1");
        assert_eq!(ranges([0, 1, 2, 3, 5].into_iter()), "0-3,5");
    }

    #[test]
    fn a_program_is_called_by_its_name_and_its_arguments_stay() {
        assert_eq!(
            command_text("/opt/venv/bin/python3.12 /srv/train.py --lr 1"),
            "python3.12 /srv/train.py --lr 1"
        );
        assert_eq!(command_text("python"), "python");
        assert_eq!(command_text(""), "");
        assert_eq!(command_text("/"), "/");
    }

    #[test]
    fn sums_are_those_of_the_rows() {
        let host = samples::busy();
        let sums = Sums::of(host.processes.iter());
        let all = host.processes.iter().filter_map(ProcessRow::totals);
        let allocated: u64 = all.map(|totals| totals.allocated.0).sum();
        assert_eq!(sums.totals.allocated.0, allocated);
        assert_eq!(Sums::of(std::iter::empty()).driver, None);
    }

    #[test]
    fn a_process_is_found_by_whatever_a_person_knows_of_it() {
        let host = samples::busy();
        let names = FileNames::default();
        let found = |pattern: &str| -> Vec<u32> {
            let places = order(
                &host.processes,
                Sort::default(),
                &Filter::new(pattern),
                &names,
            );
            places.iter().map(|at| host.processes[*at].tgid.0).collect()
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
