//! Evidence and words before a suspension: memory of the GPU and of the host, and refusals of the driver.

use crate::cuda::nvml::Sample;
use crate::event::bytes::human;
use crate::event::{Bytes, Tgid};
use crate::process::host_memory::AvailableMemory;

/// Device memory of the process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceShare {
    /// Number of the GPU in `nvidia-smi`.
    pub(super) gpu: u32,
    pub(super) bytes: Option<Bytes>,
}

/// Evidence on a process that is to be suspended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SuspensionPlan {
    pub(super) tgid: Tgid,
    pub(super) command: String,
    /// Its memory by GPU, or the reason why that is unknown.
    pub(super) devices: Result<Vec<DeviceShare>, String>,
    pub(super) host: Option<AvailableMemory>,
    pub(super) has_nccl: bool,
    /// True if the process waits for a command of memprobe alone.
    pub(super) is_for_command: bool,
}

/// Returns the memory of a process by GPU from the driver's lists.
pub(super) fn shares(
    driver: &Result<Sample, String>,
    has_pids_of_the_driver: bool,
    tgid: Tgid,
) -> Result<Vec<DeviceShare>, String> {
    let sample = driver.as_ref().map_err(Clone::clone)?;
    if !has_pids_of_the_driver {
        let reason = "memprobe runs in another PID namespace than the driver's lists";
        return Err(reason.to_owned());
    }
    if let Some(held) = sample.held.get(&tgid) {
        let share = |(gpu, bytes): &(u32, Option<Bytes>)| DeviceShare {
            gpu: *gpu,
            bytes: *bytes,
        };
        return Ok(held.iter().map(share).collect());
    }
    let silent = sample
        .devices
        .iter()
        .find_map(|device| Some((device.index, device.processes.as_ref().err()?)));
    match silent {
        Some((index, reason)) => Err(format!("GPU {index}: {reason}")),
        None => Ok(Vec::new()),
    }
}

/// Returns the sum of all devices; `None` if one is unknown.
pub(super) fn total(devices: &[DeviceShare]) -> Option<Bytes> {
    let add = |sum: Bytes, share: &DeviceShare| Some(Bytes(sum.0.checked_add(share.bytes?.0)?));
    devices.iter().try_fold(Bytes(0), add)
}

impl SuspensionPlan {
    /// Returns the bytes that the host must hold; `None` if unknown.
    fn needed(&self) -> Option<Bytes> {
        self.devices.as_deref().ok().and_then(total)
    }

    /// Returns the reason not to begin.
    pub(super) fn refusal(&self) -> Option<String> {
        let (needed, host) = (self.needed()?, self.host.as_ref()?);
        let place = match &host.cgroup {
            Some(cgroup) => format!("the memory limit of its cgroup {cgroup} leaves"),
            None => "the host has".to_owned(),
        };
        let more = match &host.cgroup {
            Some(_) => "raise the limit",
            None => "end what uses it",
        };
        (host.bytes < needed).then(|| {
            let (needed, available) = (human(needed), human(host.bytes));
            format!(
                "PID {} cannot be suspended: its device memory, {needed}, would move to host memory, and {place} \
                 {available}: {more}, or free memory in the process",
                self.tgid.0
            )
        })
    }

    /// Returns the lines that the user reads before the decision.
    pub(super) fn lines(&self) -> Vec<String> {
        let pid = self.tgid.0;
        let mut lines = vec![format!("to suspend: PID {pid} ({})", self.command)];
        match &self.devices {
            Ok(devices) if devices.is_empty() => {
                lines.push("  the driver lists no memory of it on any GPU".to_owned());
            }
            Ok(devices) => lines.extend(devices.iter().map(gpu_line)),
            Err(reason) => {
                lines.push(format!("  what the GPU gets back is unknown: {reason}"));
            }
        }
        lines.push(self.host_line());
        let until = if self.is_for_command {
            "the command has ended".to_owned()
        } else {
            format!("`memprobe resume {pid}`")
        };
        lines.push(format!(
            "  its calls of CUDA wait until {until}; its other code runs on"
        ));
        lines.push(
            "  the driver refuses managed memory, and shared memory (CUDA IPC) before 610; MIG and vGPU were not tried"
                .to_owned(),
        );
        if self.has_nccl {
            lines.push(
                "  it has loaded NCCL: ranks that share memory are refused or hang, and the others wait for this one"
                    .to_owned(),
            );
        }
        lines.push(
            "  if the driver cannot restore it later, the process is lost: then it can only be ended".to_owned(),
        );
        lines
    }

    fn host_line(&self) -> String {
        let needed = match self.needed() {
            Some(needed) => format!("must hold {}", human(needed)),
            None => "must hold as much (not checked)".to_owned(),
        };
        match &self.host {
            Some(AvailableMemory {
                bytes,
                cgroup: Some(cgroup),
            }) => {
                let available = human(*bytes);
                format!("  the host {needed}; the limit of its cgroup {cgroup} leaves {available}")
            }
            Some(host) => format!("  the host {needed}; {} are available", human(host.bytes)),
            None => format!("  the host {needed}; what is available is unknown"),
        }
    }
}

fn gpu_line(share: &DeviceShare) -> String {
    let gpu = share.gpu;
    match share.bytes {
        Some(bytes) => format!("  GPU {gpu} gets back {}", human(bytes)),
        None => format!("  GPU {gpu} gets back its memory; the driver does not say how much"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> SuspensionPlan {
        let share = |gpu, gib: u64| DeviceShare {
            gpu,
            bytes: Some(Bytes(gib << 30)),
        };
        SuspensionPlan {
            tgid: Tgid(1234),
            command: "train.py --big".to_owned(),
            devices: Ok(vec![share(0, 3), share(2, 1)]),
            host: Some(AvailableMemory {
                bytes: Bytes(64 << 30),
                cgroup: None,
            }),
            has_nccl: false,
            is_for_command: false,
        }
    }

    #[test]
    fn the_user_reads_what_changes_and_what_may_fail() {
        insta::assert_snapshot!("suspension_plan", plan().lines().join("\n"));
        let unknown = SuspensionPlan {
            devices: Err("the NVIDIA driver is not loaded".to_owned()),
            host: None,
            has_nccl: true,
            is_for_command: true,
            ..plan()
        };
        insta::assert_snapshot!("suspension_plan_unknown", unknown.lines().join("\n"));
    }

    #[test]
    fn memory_that_the_host_has_not_is_a_refusal() {
        assert_eq!(plan().refusal(), None);
        let little = AvailableMemory {
            bytes: Bytes(2 << 30),
            cgroup: None,
        };
        let refused = SuspensionPlan {
            host: Some(little.clone()),
            ..plan()
        };
        let text = refused.refusal().expect("4 GiB do not fit");
        assert!(
            text.contains("4.00 GiB") && text.contains("the host has 2.00 GiB"),
            "{text}"
        );
        let limited = SuspensionPlan {
            host: Some(AvailableMemory {
                cgroup: Some("/job".to_owned()),
                ..little
            }),
            ..plan()
        };
        let text = limited.refusal().expect("4 GiB do not fit");
        assert!(text.contains("limit of its cgroup /job"), "{text}");
    }

    #[test]
    fn unknown_numbers_refuse_nothing() {
        let unknown = SuspensionPlan {
            devices: Ok(vec![DeviceShare {
                gpu: 0,
                bytes: None,
            }]),
            ..plan()
        };
        assert_eq!(unknown.refusal(), None);
        assert!(unknown.lines()[1].contains("does not say how much"));
    }
}
