//! CPU time and memory that memprobe itself uses at a steady event rate.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::profiler::{Build, Profiler, Programs};
use super::table::Table;
use super::target::Target;

/// Allocator events per second.
const RATE: u32 = 20_000;

/// Duration of the measurement.
const MEASURED: Duration = Duration::from_secs(8);

/// Time that the loop runs before and after the measurement.
const AROUND: Duration = Duration::from_secs(1);

/// Time in which memprobe, once it has started, uses at most this much of a core while the loop stands still.
const IDLE: (Duration, f64) = (Duration::from_millis(500), 0.05);

/// Most time that memprobe may take to start, with all that it reads of the process at attach.
const MAX_START: Duration = Duration::from_secs(30);

/// Ticks a second of the times in `/proc/PID/stat`: `USER_HZ`, 100 on every x86-64 Linux.
const TICKS: f64 = 100.0;

/// Measures each of memprobe's subcommands.
pub fn measure(target: &mut Target, programs: &Programs) -> Result<Table> {
    eprintln!("== memprobe's own CPU time and memory at {RATE} events/s");
    let mut table = Table::new(
        format!("memprobe's own CPU time and memory at {RATE} events/s"),
        &[
            "",
            "events/s",
            "CPU of one core",
            "µs/event",
            "resident",
            "at most",
            "of it memprobe's",
        ],
    );
    for profiler in [
        Profiler::RecordNowhere(Build::Own),
        Profiler::Record(Build::Own),
        Profiler::Attach(Build::Own),
    ] {
        target.check_clean()?;
        let attached = profiler
            .attach(programs, target.pid())?
            .context("it attaches from outside")?;
        wait_until_idle(attached.pid())?;
        target.pace(RATE, (MEASURED + 2 * AROUND).as_secs())?;
        sleep(AROUND);
        let (start, before) = (Instant::now(), cpu_seconds(attached.pid())?);
        sleep(MEASURED);
        let cpu = cpu_seconds(attached.pid())? - before;
        let elapsed = start.elapsed().as_secs_f64();
        let memory = Memory::of(attached.pid())?;
        let paced = target.paced()?;
        attached.detach()?;
        let rate = paced.events as f64 / paced.seconds;
        let row = [
            profiler.name(),
            format!("{rate:.0}"),
            format!("{:.1} %", 100.0 * cpu / elapsed),
            format!("{:.2}", 1e6 * cpu / elapsed / rate),
            mebibytes(memory.resident()),
            mebibytes(memory.most()),
            mebibytes(memory.anonymous),
        ];
        eprintln!("  {}: {} of a core", row[0], row[2]);
        table.samples([json!({
            "profiler": profiler.name(),
            "events": paced.events,
            "seconds": paced.seconds,
            "cpu_seconds": cpu,
            "measured_seconds": elapsed,
            "resident_kib": memory.resident(),
            "most_kib": memory.most(),
            "anonymous_kib": memory.anonymous,
        })]);
        table.row(row);
    }
    table.note(format!(
        "User and system time over {} s, the start not counted; what is memprobe's is anonymous memory, the \
         rest is its program file and the ring buffer, which is mapped twice and counts once.",
        MEASURED.as_secs()
    ));
    Ok(table)
}

/// Waits until memprobe has read what was there at attach, while the loop stands still.
fn wait_until_idle(pid: u32) -> Result<()> {
    let (time, share) = IDLE;
    let start = Instant::now();
    while start.elapsed() < MAX_START {
        let before = cpu_seconds(pid)?;
        sleep(time);
        if cpu_seconds(pid)? - before <= share * time.as_secs_f64() {
            return Ok(());
        }
    }
    bail!(
        "memprobe (PID {pid}) was still at work {} s after its start, though the loop stood still",
        MAX_START.as_secs()
    );
}

/// Returns a process's user plus system time, in seconds.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("memprobe has ended")?;
    cpu_ticks(&stat)
        .map(|ticks| ticks as f64 / TICKS)
        .context("/proc/PID/stat has no times")
}

/// Returns user plus system time of all threads, in ticks, from the text of `/proc/PID/stat`. See
/// proc_pid_stat(5): `utime` is field 14, `stime` is 15, and the name in field 2 may contain
/// blanks.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    resident: u64,
    most: u64,
    anonymous: u64,
    /// Part of a ring buffer that counts twice in `resident` and `most`, because it is mapped twice.
    mapped_twice: u64,
}

impl Memory {
    pub(super) fn of(pid: u32) -> Result<Self> {
        let status =
            fs::read_to_string(format!("/proc/{pid}/status")).context("memprobe has ended")?;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).context("memprobe has ended")?;
        let memory = Self::parse(&status).context("/proc/PID/status tells no memory")?;
        Ok(Self {
            mapped_twice: second_mapping(&maps),
            ..memory
        })
    }

    /// Resident memory, a ring buffer counted once.
    pub(super) const fn resident(self) -> u64 {
        self.resident.saturating_sub(self.mapped_twice)
    }

    /// The most resident memory so far, a ring buffer counted once.
    pub(super) const fn most(self) -> u64 {
        self.most.saturating_sub(self.mapped_twice)
    }

    /// Adds a later reading: the highest of each figure counts. A program that ends has unmapped its ring buffer.
    pub(super) fn add(&mut self, later: Self) {
        self.resident = self.resident.max(later.resident);
        self.most = self.most.max(later.most);
        self.anonymous = self.anonymous.max(later.anonymous);
        self.mapped_twice = self.mapped_twice.max(later.mapped_twice);
    }

    /// Parses the text of `/proc/PID/status` (proc_pid_status(5)).
    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix(" kB")?.parse().ok()
        };
        Some(Self {
            resident: field("VmRSS:")?,
            most: field("VmHWM:")?,
            anonymous: field("RssAnon:")?,
            mapped_twice: 0,
        })
    }
}

/// Returns the KiB of the ring buffer that the kernel counts twice, from the text of `/proc/PID/maps`. Its data pages
/// follow the page of a position, and themselves again (`ringbuf_map_mmap_kern`, kernel/bpf/ringbuf.c@v6.18).
fn second_mapping(maps: &str) -> u64 {
    let sizes = maps.lines().filter(|line| line.ends_with("bpf-map"));
    let sizes = sizes.filter_map(|line| {
        let (begin, end) = line.split_once(' ')?.0.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        address(end)?.checked_sub(address(begin)?)
    });
    const POSITION: u64 = 4096;
    let data = sizes.max().unwrap_or(0).saturating_sub(POSITION);
    data / 2 / 1024
}

pub(super) fn mebibytes(kib: u64) -> String {
    format!("{:.1} MiB", kib as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_user_and_system_time() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 1 0 5";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("7 (short) S 1"), None);
    }

    #[test]
    fn memory_is_shown_in_kib() {
        let status = "VmHWM:\t   2048 kB\nVmRSS:\t  1024 kB\nRssAnon:\t   512 kB\n";
        let memory = Memory {
            resident: 1024,
            most: 2048,
            anonymous: 512,
            mapped_twice: 0,
        };
        assert_eq!(Memory::parse(status), Some(memory));
        assert_eq!(mebibytes(1536), "1.5 MiB");
    }

    #[test]
    fn a_ring_buffer_counts_once() {
        let maps = "7f0000000000-7f0000001000 rw-s 00000000 00:0e 1057  anon_inode:bpf-map\n\
                    7f0000002000-7f0000403000 r--s 00001000 00:0e 1057  anon_inode:bpf-map\n\
                    7f0000500000-7f0100500000 r--p 00000000 fe:00 99  /usr/lib/libc.so.6\n";
        assert_eq!(second_mapping(maps), 2048);
        assert_eq!(
            second_mapping("7f0000000000-7f0000001000 rw-p 0 00:00 0\n"),
            0
        );
        let mut memory = Memory {
            resident: 3000,
            most: 4000,
            anonymous: 512,
            mapped_twice: 2048,
        };
        assert_eq!((memory.resident(), memory.most()), (952, 1952));
        // It is still known once the program has unmapped it.
        memory.add(Memory {
            most: 4100,
            mapped_twice: 0,
            ..memory
        });
        assert_eq!(memory.most(), 2052);
    }
}
