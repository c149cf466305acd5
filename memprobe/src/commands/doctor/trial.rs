//! Trying it: memprobe's programs are loaded, and the allocator's own is attached to a function of
//! memprobe, whose event must come back through the ring buffer.

use std::hint::black_box;
use std::time::{Duration, Instant};

use memprobe_common::ProcessConfig;

use crate::decode::{MemoryKind, Record, decode};
use crate::event::Tgid;
use crate::probe::catalog::{Need, PROBES};
use crate::probe::finding::{Finding, Level};
use crate::probe::kernel::TaskOffsets;
use crate::probe::loader::{Loader, MAX_FOLLOWED, Modules, Reach, Watch};
use crate::probe::refusal::{KernelRequest, Refusal};
use crate::process::maps::Maps;
use crate::view::count;

const RING_BYTES: u32 = 64 << 10;
/// Time limit for the event, which is written before the probed function continues.
const PATIENCE: Duration = Duration::from_secs(1);
/// A freed block of so many bytes on device 7: what no allocator would say.
const SIZE: i64 = -0x6d70_726f;
const ADDRESS: u64 = 0x6d65_6d70_726f_6265;
const CUDA_DEVICE_7: u64 = 7 << 8 | 1;

pub(super) struct Trial {
    pub(super) findings: Vec<Finding>,
    /// Verifier's log of the program that it refused.
    pub(super) log: Option<String>,
}

pub(super) fn of_the_kernel() -> Trial {
    let mut trial = Trial {
        findings: Vec::new(),
        log: None,
    };
    let Ok(offsets) = TaskOffsets::of_this_kernel() else {
        let reason = "not tried: the kernel's types are missing (see above)";
        trial.findings.push(Finding::note("programs", reason));
        return trial;
    };
    let before = Instant::now();
    let loader = Loader::new(&offsets, Watch::One, RING_BYTES).and_then(|mut loader| {
        loader.load_on_demand()?;
        Ok(loader)
    });
    match loader {
        Ok(mut loader) => {
            trial.findings.push(of_programs(&loader, before.elapsed()));
            trial.findings.push(of_modules(loader.modules));
            trial.findings.push(try_probe(&mut loader));
        }
        Err(error) => {
            let mut finding = Finding::from_error("programs", Level::Fail, &error);
            if let Some(refusal) = error.downcast_ref::<Refusal>() {
                finding = with_refusal(finding, refusal);
                trial.log = Some(refusal.log.clone()).filter(|log| !log.is_empty());
            }
            trial.findings.push(finding);
        }
    }
    trial
}

fn of_programs(loader: &Loader, took: Duration) -> Finding {
    let programs = loader.programs();
    let seconds = took.as_secs_f64();
    let mut words = format!("{programs} programs and their maps load in {seconds:.1} s");
    let followed = loader.followed();
    if let Some(followed) = followed {
        let [followed, most] = [followed, MAX_FOLLOWED].map(|number| count(number.into()));
        words +=
            &format!("; of the longest the verifier follows {followed} of {most} instructions");
    }
    let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    Finding::ok("programs", words)
        .with("programs", programs)
        .with("milliseconds", milliseconds)
        .with("followed", followed)
}

fn of_modules(modules: Modules) -> Finding {
    let finding = match modules.missing() {
        None => Finding::ok(
            "modules",
            "the programs record which module allocated memory",
        ),
        Some(missing) => Finding::warn(
            "modules",
            missing,
            "Use one of the kernels on which memprobe was tried (docs/kernels.md), or a newer one.",
        ),
    };
    finding.with("told", modules == Modules::Told)
}

fn with_refusal(finding: Finding, refusal: &Refusal) -> Finding {
    let (asked, name) = match &refusal.asked {
        KernelRequest::Maps => ("map", ""),
        KernelRequest::Map(name) => ("map", name.as_str()),
        KernelRequest::Program(name) => ("program", name.as_str()),
        KernelRequest::Probe(name) => ("probe", name.as_str()),
    };
    finding
        .with("refused", asked)
        .with("name", name)
        .with("errno", refusal.errno.map(|errno| errno.raw_os_error()))
}

fn try_probe(loader: &mut Loader) -> Finding {
    let remedy = "Please report it with the output of `memprobe doctor --format json`.";
    match probe_itself(loader) {
        Ok(Some(took)) => {
            let fired = "one on memprobe itself fired, and its event came through the ring buffer";
            Finding::ok("probe", format!("{fired} in {} µs", took.as_micros()))
        }
        Ok(None) => {
            let lost = "one on memprobe itself was attached, and its event never came";
            Finding::fail("probe", lost, remedy)
        }
        Err(error) => {
            let finding = Finding::from_error("probe", Level::Fail, &error);
            match error.downcast_ref::<Refusal>() {
                Some(refusal) => with_refusal(finding, refusal),
                None => finding,
            }
        }
    }
}

/// Stands for the allocator's function: the same arguments in the same registers.
#[inline(never)]
extern "C" fn probed(address: u64, size: i64, allocated: u64, reserved: u64, device: u64) -> u64 {
    black_box(address) ^ black_box(size.cast_unsigned()) ^ allocated ^ reserved ^ device
}

/// Probes memprobe itself; returns the time until the event, `None` if there was none.
fn probe_itself(loader: &mut Loader) -> anyhow::Result<Option<Duration>> {
    use anyhow::Context as _;
    let tgid = Tgid(std::process::id());
    let mut needed = PROBES.iter().filter(|probe| probe.need == Need::Allocator);
    let allocator = needed.next().context("no probe is required")?;
    let address = probed as *const () as u64;
    let maps = Maps::of(tgid).context("reading memprobe's own mappings")?;
    let mapping = maps.find(address);
    let mapping = mapping.context("memprobe's own code is in no mapping")?;
    let offset = address - mapping.start + mapping.offset;
    let mut ring = loader.take_records()?;
    loader.admit(tgid, ProcessConfig::default())?;
    let own = "/proc/self/exe".as_ref();
    let _link = loader.attach(
        allocator.entry,
        own,
        offset,
        allocator.cookie,
        Reach::Process(tgid),
    )?;
    // A block, whose stack no program can walk: with diagnostics on, a line says so.
    black_box(probed(ADDRESS, 1, 0, 0, CUDA_DEVICE_7));
    let before = Instant::now();
    black_box(probed(ADDRESS, SIZE, 0, 0, CUDA_DEVICE_7));
    while before.elapsed() < PATIENCE {
        let Some(record) = ring.next() else {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        };
        if let Ok(Record::Memory(MemoryKind::Block, block, _)) = decode(&record) {
            let ours = block.addr == ADDRESS && block.size == SIZE && block.device == 7;
            if ours && block.tgid == tgid.0 {
                return Ok(Some(before.elapsed()));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_whose_verifier_cannot_follow_modules_is_warned_of() {
        let recorded = of_modules(Modules::Told);
        assert_eq!(recorded.level, Level::Ok);
        let left_out = of_modules(Modules::LeftOut);
        assert_eq!(left_out.level, Level::Warn);
        assert_eq!(left_out.facts["told"], false);
        let words = left_out.to_string();
        assert!(
            words.contains("is not told.\nUse one of the kernels"),
            "{words}"
        );
    }
}
