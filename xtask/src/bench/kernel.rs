//! Kernel run time of the allocator's eBPF program, by depth of the Python stack.

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::profiler::{Programs, RunTime, TimedProbes};
use super::statistics::Measured;
use super::table::Table;
use super::target::Target;

/// Depths of the Python stack. The last one exceeds the frames that memprobe unwinds.
const DEPTHS: [u32; 5] = [10, 20, 40, 100, 200];

/// Blocks allocated and then freed at each depth.
const BLOCKS: u32 = 10_000;

/// Number of turns.
const ROUNDS: usize = 7;

/// Measures allocations and frees separately, in turns.
pub fn measure(target: &mut Target, programs: &Programs) -> Result<Table> {
    eprintln!("== run time of the allocator's program in the kernel");
    target.check_clean()?;
    let mut probes = TimedProbes::attach(programs, target.pid())?;
    let mut allocations = vec![Vec::new(); DEPTHS.len()];
    let mut frees = vec![Vec::new(); DEPTHS.len()];
    for _ in 0..ROUNDS {
        for (which, depth) in DEPTHS.into_iter().enumerate() {
            let start = probes.run_time()?;
            let allocated = target.hold(depth, BLOCKS)?;
            let held = probes.run_time()?;
            let freed = target.release()?;
            let released = probes.run_time()?;
            allocations[which].push(nanoseconds(start, held, allocated)?);
            frees[which].push(nanoseconds(held, released, freed)?);
        }
    }
    probes.detach()?;
    table(allocations, frees)
}

/// Returns nanoseconds per run between two readings, for `events` allocator events.
fn nanoseconds(before: RunTime, after: RunTime, events: u64) -> Result<f64> {
    let runs = after.runs - before.runs;
    if runs != events || runs == 0 {
        bail!("the allocator's program ran {runs} times for {events} events");
    }
    Ok((after.nanoseconds - before.nanoseconds) as f64 / runs as f64)
}

fn table(allocations: Vec<Vec<f64>>, frees: Vec<Vec<f64>>) -> Result<Table> {
    let mut table = Table::new(
        "Run time of the allocator's program in the kernel",
        &["Python frames", "ns/allocation", "middle half", "ns/free"],
    );
    for ((depth, allocations), frees) in DEPTHS.into_iter().zip(allocations).zip(frees) {
        table.samples([json!({
            "frames": depth,
            "ns_by_allocation": allocations,
            "ns_by_free": frees,
        })]);
        let allocations = Measured::of(allocations).context("nothing was measured")?;
        let frees = Measured::of(frees).context("nothing was measured")?;
        let (low, high) = allocations.quartiles();
        table.row([
            depth.to_string(),
            format!("{:.0}", allocations.median()),
            format!("{low:.0} … {high:.0}"),
            format!("{:.0}", frees.median()),
        ]);
    }
    table.note(
        "By the kernel's own count (BPF_ENABLE_STATS), which adds the time of reading the clock twice; \
         without the trap that leads to the program.",
    );
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_takes_the_time_between_two_moments() {
        let before = RunTime {
            runs: 5,
            nanoseconds: 1000,
        };
        let after = RunTime {
            runs: 15,
            nanoseconds: 4000,
        };
        assert_eq!(nanoseconds(before, after, 10).unwrap(), 300.0);
    }

    #[test]
    fn a_program_that_did_not_run_for_every_event_is_an_error() {
        let before = RunTime {
            runs: 5,
            nanoseconds: 1000,
        };
        let after = RunTime {
            runs: 14,
            nanoseconds: 4000,
        };
        assert!(nanoseconds(before, after, 10).is_err());
        assert!(nanoseconds(before, before, 0).is_err());
    }
}
