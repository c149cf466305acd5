//! The verdict: what a person should know first, in a sentence or two with numbers.

use super::failure::{self, OomCause};
use super::{
    DeviceExplanation, Explanation, ExplanationSource, MemoryOwner, PartId, RecordedMoment,
};
use crate::attribution::growth::{Growth, StepUnit, Suspect};
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::view::{clean, counted, percent, span};
use std::time::Duration;

/// VerdictCause that the verdict names. The keys stay the same in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub(super) enum VerdictCause {
    /// Nothing is on a GPU.
    NoMemory,
    OutOfMemory,
    Growth,
    /// A large share of what is reserved is cached.
    Cached,
    /// Other processes have more than this one.
    OtherProcesses,
    /// None of these: the largest part is named.
    LargestPart,
}

impl VerdictCause {
    /// Key in JSON.
    pub(super) const fn key(self) -> &'static str {
        self.into_str()
    }
}

/// Least share of the reserved bytes that is cached, for the verdict: 1/3.
const MUCH_CACHED: u64 = 3;

/// Least share of the GPU's memory that is cached, for the verdict: 1/100. Less matters to nobody.
const MUCH_OF_GPU: u64 = 100;

pub(super) struct Verdict {
    pub(super) cause: VerdictCause,
    pub(super) text: String,
}

/// Names the cause on the device with most memory.
pub(super) fn verdict(explanation: &Explanation) -> Verdict {
    let Some(device) = explanation.devices.first() else {
        return Verdict {
            cause: VerdictCause::NoMemory,
            text: "PyTorch's allocator has no GPU memory in this process.".to_owned(),
        };
    };
    let cause = cause(device);
    let mut sentences = vec![whole(explanation, device)];
    if let Some(failed) = &device.failed {
        sentences.extend(failure::sentences(device, failed));
        if failed.cause == OomCause::Growth {
            let growth = device.growth.as_ref().filter(|growth| grows(growth));
            sentences.extend(growth.map(|growth| growing(device, growth)));
        }
        return Verdict {
            cause: VerdictCause::OutOfMemory,
            text: sentences.join(" "),
        };
    }
    match cause {
        VerdictCause::OutOfMemory => sentences.push(format!(
            "PyTorch ran out of memory {}.",
            counted(device.ooms, "time")
        )),
        VerdictCause::Growth | VerdictCause::Cached | VerdictCause::OtherProcesses => {}
        VerdictCause::NoMemory | VerdictCause::LargestPart => sentences.extend(largest(device)),
    }
    if let Some(growth) = device.growth.as_ref().filter(|growth| grows(growth)) {
        sentences.push(growing(device, growth));
    }
    if matches!(cause, VerdictCause::Cached | VerdictCause::OutOfMemory) {
        let (cached, reserved) = (device.part(PartId::Cached), device.totals.reserved);
        sentences.push(format!(
            "{} of {} reserved is cached, not allocated ({}).",
            human(cached),
            human(reserved),
            percent(cached.0.into(), reserved.0.into())
        ));
        if let Some(returnable) = device.returnable {
            let returnable = match returnable {
                Bytes(0) => "none".to_owned(),
                returnable => human(returnable),
            };
            sentences.push(format!("empty_cache() would return {returnable} of it."));
        }
    }
    if cause == VerdictCause::OtherProcesses {
        let others = human(device.part(PartId::OtherProcesses));
        sentences.push(format!("Other processes have {others} there."));
    }
    Verdict {
        cause,
        text: sentences.join(" "),
    }
}

fn cause(device: &DeviceExplanation) -> VerdictCause {
    let cached = device.part(PartId::Cached).0;
    let of_process = device.totals.reserved;
    let of_gpu = device.gpu.map_or(0, |gpu| gpu.total.0 / MUCH_OF_GPU);
    if device.ooms > 0 {
        VerdictCause::OutOfMemory
    } else if device.growth.as_ref().is_some_and(grows) {
        VerdictCause::Growth
    } else if cached > device.totals.reserved.0 / MUCH_CACHED && cached >= of_gpu {
        VerdictCause::Cached
    } else if device.part(PartId::OtherProcesses) > of_process {
        VerdictCause::OtherProcesses
    } else {
        VerdictCause::LargestPart
    }
}

/// True if lines grow and the total with them.
pub(super) fn grows(growth: &Growth) -> bool {
    growth.total.is_some() && !growth.lines.is_empty()
}

fn whole(explanation: &Explanation, device: &DeviceExplanation) -> String {
    let name = clean(&crate::view::device_name(&explanation.target, device.index));
    let allocated = human(device.totals.allocated);
    let reserved = human(device.totals.reserved);
    let when = match explanation.source {
        ExplanationSource::Recording {
            moment: RecordedMoment::Peak,
            ..
        } => "At its peak, ",
        ExplanationSource::Recording {
            moment: RecordedMoment::OutOfMemory,
            ..
        } => "Out of memory: ",
        _ => "",
    };
    let mut text =
        format!("{when}{name} has {allocated} allocated by PyTorch, {reserved} reserved");
    if let Some(gpu) = device.gpu {
        let share = percent(device.totals.reserved.0.into(), gpu.total.0.into());
        text.push_str(&format!(" ({share} of the GPU's {})", human(gpu.total)));
    }
    text.push('.');
    text
}

fn largest(device: &DeviceExplanation) -> Option<String> {
    let allocated = device.parts.iter().filter(|part| {
        !matches!(
            part.id,
            PartId::OtherProcesses
                | PartId::Others
                | PartId::OutsideAllocator
                | PartId::Cached
                | PartId::Free
        )
    });
    let part = allocated.max_by_key(|part| part.bytes)?;
    let share = percent(part.bytes.0.into(), device.totals.allocated.0.into());
    let (words, _) = part.id.words();
    Some(format!(
        "The largest part is {words}: {} ({share}).",
        human(part.bytes)
    ))
}

fn growing(device: &DeviceExplanation, growth: &Growth) -> String {
    let mut text = "It grows".to_owned();
    let rate = growth.total.map_or(0.0, |total| total.bytes);
    text.push_str(&format!(" by {}", rate_text(rate, growth.step)));
    if let Some(suspect) = growth.lines.first() {
        text.push_str(&format!(", most of it from {}", suspect_name(suspect)));
        if let Some(retainer) = suspect.retained.retainers.first() {
            // Of the retainer, the row of the owner has all bytes; the suspect has those of its lines that were watched.
            let is_owner = |owner: &&MemoryOwner| owner.name.as_deref() == Some(&*retainer.by);
            let owner = device.owners.iter().find(is_owner);
            let bytes = owner.map_or(retainer.retained.bytes, |owner| owner.bytes);
            let (by, bytes) = (clean(&retainer.by), human(bytes));
            text.push_str(&format!(", retained by {by} ({bytes})"));
        }
    }
    if let Some(left) = time_until_full(device, rate, growth.step) {
        text.push_str(&format!("; the GPU is full in about {}", span(left)));
    }
    text.push('.');
    text
}

/// Formats a rate of growth.
pub(super) fn rate_text(bytes: f64, step: StepUnit) -> String {
    let per = match step {
        StepUnit::Iterations(_) => "an iteration",
        StepUnit::Window(_) => "a second",
    };
    format!("{} {per}", human(Bytes(bytes.max(0.0) as u64)))
}

pub(super) fn suspect_name(suspect: &Suspect) -> String {
    let site = &suspect.part.origin.site;
    let names = crate::view::FileNames::of(site.frame().into_iter().map(|frame| &frame.file));
    names.site(site)
}

/// Time until the free memory is used up; `None` if the rate is not one of time.
fn time_until_full(device: &DeviceExplanation, rate: f64, step: StepUnit) -> Option<Duration> {
    let StepUnit::Window(_) = step else {
        return None;
    };
    device.gpu.filter(|_| device.failed.is_none())?;
    let free = device
        .part(PartId::Free)
        .0
        .saturating_add(device.part(PartId::Cached).0);
    let seconds = free as f64 / rate;
    // More than a month says nothing.
    (rate > 0.0 && seconds < 2.6e6).then(|| Duration::from_secs(seconds as u64))
}

/// Returns the command that leads on.
pub(super) fn next_commands(
    explanation: &Explanation,
    cause: VerdictCause,
) -> Vec<(String, &'static str)> {
    let grows = cause == VerdictCause::Growth;
    let device = explanation.devices.first();
    match &explanation.source {
        ExplanationSource::Process { .. } => {
            let pid = explanation.target.tgid.map_or(0, |tgid| tgid.0);
            let first = match cause {
                _ if grows => (
                    format!("memprobe snapshot {pid} --watch 5s --by retainer"),
                    "what each 5 s add, and who keeps it",
                ),
                VerdictCause::OtherProcesses => {
                    ("memprobe top".to_owned(), "all processes on the GPUs")
                }
                VerdictCause::Cached => {
                    return vec![(
                        format!("memprobe attach {pid}"),
                        "live; M shows the segments with their holes",
                    )];
                }
                _ if device.is_some_and(|device| device.kv.is_some()) => (
                    format!("memprobe snapshot {pid} --by request"),
                    "the KV cache of each request",
                ),
                _ => (
                    format!("memprobe snapshot {pid} --by retainer"),
                    "every owner of memory",
                ),
            };
            let live = (format!("memprobe attach {pid}"), "the lines, live");
            vec![first, live]
        }
        ExplanationSource::Snapshot { file } => vec![(
            format!("memprobe snapshot {} --by retainer", clean(file)),
            "every owner of memory",
        )],
        ExplanationSource::Recording { file, moment } => {
            let failed = explanation
                .devices
                .iter()
                .find_map(|device| device.failed.as_ref());
            let failed = failed.map(|failed| failed.cause);
            let (by, words) = match failed {
                _ if grows || failed == Some(OomCause::Growth) => {
                    ("growth", "all that grows, and who keeps it")
                }
                Some(OomCause::Fragmentation | OomCause::CachedElsewhere) => {
                    ("segment --at oom", "the holes, by pool and stream")
                }
                Some(OomCause::Asleep) => ("owner --at oom", "what sleeps, by line and pool"),
                _ if *moment == RecordedMoment::Peak => ("peak", "all that is live at the peak"),
                _ => ("line", "all lines with their live bytes"),
            };
            vec![(format!("memprobe report {} --by {by}", clean(file)), words)]
        }
    }
}
