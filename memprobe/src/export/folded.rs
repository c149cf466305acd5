//! Folded stacks: `cuda:0;train.py:40 main;model.py:88 forward 1024` a line, as flamegraph.pl and inferno read them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::profile::Profile;
use super::replay::ExportReplay;

/// Writes the live bytes of each stack, outermost frame first; the first frame is the device.
pub(super) fn write(
    replay: &ExportReplay,
    profile: &Profile,
    out: &mut impl Write,
) -> io::Result<()> {
    for device in &profile.devices {
        // Equal stacks of other modules or categories are one line.
        let mut lines: BTreeMap<String, u64> = BTreeMap::new();
        for row in device.rows.iter().filter(|row| row.live.bytes > 0) {
            let mut line = device.device.to_string();
            for frame in profile.frames(replay, row.origin).iter().rev() {
                line.push(';');
                line.push_str(&frame.name.replace(';', ":"));
            }
            let bytes = lines.entry(line).or_default();
            *bytes = bytes.saturating_add(row.live.bytes);
        }
        for (line, bytes) in lines {
            writeln!(out, "{line} {bytes}")?;
        }
    }
    Ok(())
}
