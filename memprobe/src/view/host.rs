//! Text for processes on the host screen: state, top line, command, rank and device list.

use super::names::{BEFORE_ATTACH, FileNames};
use super::number::{counted, percent};
use super::text::clean;
use crate::ledger::snapshot::host::{
    DriverDevice, DriverSnapshot, Holder, ProcessRow, ProcessState, Rank,
};

/// Returns the reason why a process has no figures, or that it has ended; `None` for a probed process.
pub fn process_state(row: &ProcessRow) -> Option<String> {
    match &row.state {
        ProcessState::Waiting(what) => Some(format!("waiting for {}", clean(what))),
        ProcessState::Refused(reason) => Some(format!("not probed: {}", clean(reason))),
        ProcessState::Ended => Some("ended".to_owned()),
        ProcessState::Probed => None,
    }
}

/// Returns the source line with the most live bytes, preceded by its share of the process's allocated bytes.
pub fn top_line(row: &ProcessRow, names: &FileNames) -> Option<String> {
    let top = row.top.as_ref()?;
    let name = match &top.holder {
        Holder::Site(site) => names.site(site),
        Holder::BeforeAttach => BEFORE_ATTACH.to_owned(),
    };
    let whole = row.totals().unwrap_or_default().allocated;
    let share = percent(top.live.0.into(), whole.0.into());
    Some(format!("{share:>6} {name}"))
}

/// Returns the command line with the program's path cut to its file name: `python train.py`.
pub fn short_command(command: &str) -> String {
    let (program, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let name = program.rsplit('/').next().filter(|name| !name.is_empty());
    clean(format!("{} {arguments}", name.unwrap_or(program)).trim_end())
}

/// Returns the global rank: `3/8`, or `3` if the world size is unknown.
pub fn rank(rank: Rank) -> String {
    match rank.world {
        Some(world) => format!("{}/{world}", rank.global),
        None => rank.global.to_string(),
    }
}

/// Returns the devices by the ordinals of the process, such as `0-3` or `0,2`. Falls back to the driver's
/// numbering (`gpu5`) if only the driver reports any.
pub fn device_list(row: &ProcessRow) -> Option<String> {
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

/// Reason why the driver's bytes of a process are unknown as a sum over all devices; `None` where they
/// are known, and where the driver names the process on no device.
pub fn driver_gap(row: &ProcessRow, driver: &DriverSnapshot) -> Option<String> {
    let silent = row.driver.iter().filter(|held| held.bytes.is_none());
    let silent = ranges(silent.map(|held| held.device));
    if !silent.is_empty() {
        return Some(format!(
            "the driver reports no bytes on GPU {silent} ([N/A])"
        ));
    }
    let unlisted = driver.unlisted().next().filter(|_| row.driver_is_partial)?;
    let reason = unlisted.processes.as_ref().err()?;
    let index = unlisted.index;
    Some(format!(
        "processes of GPU {index} are unknown: {}",
        clean(reason)
    ))
}

/// Reasons why something about a device is unknown, and what its memory is the sum of.
pub fn device_gaps(device: &DriverDevice) -> Vec<String> {
    let mut gaps = Vec::new();
    if let Some(number) = device.mig_devices {
        gaps.push(format!("sum of {}", counted(number.into(), "MIG device")));
    }
    match (&device.memory, &device.processes) {
        (Err(reason), Err(same)) if reason == same => {
            gaps.push(format!("memory and processes unknown: {}", clean(reason)));
        }
        (memory, processes) => {
            let unknown =
                |what: &str, reason: &String| format!("{what} unknown: {}", clean(reason));
            gaps.extend(
                memory
                    .as_ref()
                    .err()
                    .map(|reason| unknown("memory", reason)),
            );
            gaps.extend(
                processes
                    .as_ref()
                    .err()
                    .map(|reason| unknown("processes", reason)),
            );
        }
    }
    gaps
}

/// Formats ascending numbers as ranges.
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
            short_command("/opt/venv/bin/python3.12 /srv/train.py --lr 1"),
            "python3.12 /srv/train.py --lr 1"
        );
        assert_eq!(short_command("python"), "python");
        assert_eq!(short_command(""), "");
        assert_eq!(short_command("/"), "/");
    }
}
