//! Physical GPUs behind the ordinals of a process: joins what is known of the process with NVML's devices.
//!
//! Without I/O. A UUID that CUDA gave the process is certain. The environment is not: other variables, control groups
//! and MPS also choose devices. What it leads to is inferred, and dropped if the driver's process lists contradict it.

use crate::cuda::nvml::{DeviceMemory, MigHardware};
use crate::event::{Bytes, DeviceIdentity, DeviceIndex, Gpu, IdentitySource, MigIdentity};

/// CUDA's variables that choose and order devices.
pub const VARIABLES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];

/// Values of [`VARIABLES`]; `None` for one that is not set.
pub type CudaVariables = [Option<String>; 2];

/// Facts about a process that tell its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// UUIDs that CUDA gave it, by ordinal.
    pub uuids: Vec<Option<[u8; 16]>>,
    /// Memory of its devices as CUDA told it, by ordinal.
    pub memory: Vec<Option<Bytes>>,
    /// Variables that its program was started with; `None` if they cannot be read.
    pub start: Option<CudaVariables>,
    /// The variables by now. CUDA reads them once, in `cuInit`: before or after a change.
    pub now: Option<CudaVariables>,
    /// Minor numbers of the device nodes that it sees; empty if it sees none.
    pub nodes: Vec<u32>,
    /// Devices on which the driver lists it; empty if the driver does not list it, or not on every device.
    pub held: Vec<u32>,
}

/// Device of the host, as the environment chooses it: its place in NVML's list, and its MIG device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chosen<'a> {
    device: &'a DeviceMemory,
    mig: Option<&'a MigHardware>,
}

/// Returns the GPU behind an ordinal, or the reason why it cannot be known. `devices` are NVML's, or the reason why there
/// are none.
pub fn identify(
    device: DeviceIndex,
    devices: Result<&[DeviceMemory], &str>,
    evidence: &Evidence,
) -> DeviceIdentity {
    let known = devices.unwrap_or_default();
    let uuid = evidence.uuids.get(usize::from(device.0)).copied().flatten();
    let chosen = || from_environment(device, devices, evidence);
    let gpu = match (uuid, evidence.held.as_slice()) {
        (Some(uuid), _) => Ok(of_uuid(uuid, known, || chosen().ok())),
        (None, [only]) if let Some(device) = numbered(known, *only) => {
            let mig = chosen().ok().and_then(|chosen| chosen.mig);
            Ok(gpu(device, mig, IdentitySource::Driver))
        }
        (None, _) => {
            chosen().map(|chosen| gpu(chosen.device, chosen.mig, IdentitySource::Environment))
        }
    };
    let memory = evidence.memory.get(usize::from(device.0));
    match gpu {
        Ok(gpu) => DeviceIdentity {
            device,
            gpu: Some(Gpu {
                memory: gpu.memory.or_else(|| memory.copied().flatten()),
                ..gpu
            }),
            unknown: None,
        },
        Err(reason) => DeviceIdentity::unknown(device, &reason),
    }
}

fn numbered(devices: &[DeviceMemory], index: u32) -> Option<&DeviceMemory> {
    devices.iter().find(|device| device.index == index)
}

fn gpu(device: &DeviceMemory, mig: Option<&MigHardware>, source: IdentitySource) -> Gpu {
    let hardware = &device.hardware;
    // A process never has the whole of a GPU in MIG mode.
    let mig = hardware.is_in_mig_mode.then(|| MigIdentity {
        index: mig.map(|mig| mig.index),
        uuid: mig.and_then(|mig| mig.uuid.clone()),
    });
    Gpu {
        index: Some(device.index),
        uuid: hardware.uuid.clone(),
        pci_bus_id: hardware.pci_bus_id.clone(),
        memory: match (&device.memory, mig.is_some()) {
            (Ok(usage), false) => Some(usage.total),
            _ => None,
        },
        mig,
        source,
    }
}

/// Finds the device with a UUID. CUDA gives the UUID of the MIG device, or before CUDA 12 that of its GPU
/// (`cuDeviceGetUuid`, cuda.h): the environment may then say which MIG device it is.
fn of_uuid<'a>(
    uuid: [u8; 16],
    devices: &'a [DeviceMemory],
    chosen: impl FnOnce() -> Option<Chosen<'a>>,
) -> Gpu {
    let is = |text: &Option<String>| text.as_deref().and_then(parse_uuid) == Some(uuid);
    for device in devices {
        let mut migs = device.hardware.mig_devices.iter();
        let mig = migs.find(|mig| is(&mig.uuid));
        if mig.is_some() {
            return gpu(device, mig, IdentitySource::Properties);
        }
        if is(&device.hardware.uuid) {
            let mig = match device.hardware.mig_devices.as_slice() {
                [only] => Some(only),
                _ => chosen()
                    .filter(|chosen| chosen.device == device)
                    .and_then(|chosen| chosen.mig),
            };
            return gpu(device, mig, IdentitySource::Properties);
        }
    }
    Gpu {
        index: None,
        uuid: Some(uuid_text(uuid)),
        pci_bus_id: None,
        mig: None,
        memory: None,
        source: IdentitySource::Properties,
    }
}

/// Parses the 16 bytes of `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6` or `MIG-…`.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let (_, digits) = text.split_once('-')?;
    let digits: String = digits.chars().filter(|digit| *digit != '-').collect();
    let number = (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok());
    Some(number??.to_be_bytes())
}

fn uuid_text(uuid: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(uuid));
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    format!("GPU-{}", parts.join("-"))
}

/// Infers the device from the variables of the process, at its start and now.
fn from_environment<'a>(
    device: DeviceIndex,
    devices: Result<&'a [DeviceMemory], &str>,
    evidence: &Evidence,
) -> Result<Chosen<'a>, String> {
    let devices = devices?;
    let Evidence { start, now, .. } = evidence;
    if start.is_none() && now.is_none() {
        return Err("the environment of the process cannot be read".to_owned());
    }
    if now.is_none() && evidence.held.is_empty() {
        return Err("it cannot be read whether the process changed its environment".to_owned());
    }
    let is_changed = start.is_some() && now.is_some() && start != now;
    let settings = [start, now].into_iter().flatten();
    let mut found: Vec<Chosen<'a>> = Vec::new();
    let mut wrong = None;
    for setting in settings {
        match visible(setting, devices, &evidence.nodes) {
            Ok(visible) => match visible.get(usize::from(device.0)) {
                Some(chosen) => found.push(*chosen),
                None => wrong = Some(left_out(setting, device)),
            },
            Err(reason) => wrong = Some(reason.to_owned()),
        }
    }
    let before = found.len();
    let held = &evidence.held;
    found.retain(|chosen| held.is_empty() || held.contains(&chosen.device.index));
    found.dedup();
    match found.as_slice() {
        [only] if wrong.is_none() || !held.is_empty() => Ok(*only),
        [] if before > 0 => Err(format!(
            "the driver lists the process on other GPUs than {}",
            VARIABLES[0]
        )),
        _ if is_changed => Err(format!(
            "{} was changed at run time",
            VARIABLES.join(" or ")
        )),
        _ => Err(wrong.unwrap_or_default()),
    }
}

fn left_out(setting: &CudaVariables, device: DeviceIndex) -> String {
    match &setting[0] {
        Some(list) => format!("{}={list} has no {device}", VARIABLES[0]),
        None => format!("NVML lists no GPU for {device}"),
    }
}

/// Returns the devices that CUDA shows with these variables, by ordinal.
///
/// The list is read as the CUDA programming guide 13.4 says ("CUDA Environment Variables"): an entry that names no
/// device ends it, and entries are of one kind. A device that is named twice leaves none, and a number ends at the first
/// character that is no digit (torch/cuda/__init__.py@v2.15.0, `_parse_visible_devices`).
fn visible<'a>(
    [list, order]: &CudaVariables,
    devices: &'a [DeviceMemory],
    nodes: &[u32],
) -> Result<Vec<Chosen<'a>>, &'static str> {
    let is_seen = |device: &&DeviceMemory| {
        let minor = device.hardware.minor;
        nodes.is_empty() || minor.is_none_or(|minor| nodes.contains(&minor))
    };
    let devices: Vec<&DeviceMemory> = devices.iter().filter(is_seen).collect();
    let entries = list.iter().flat_map(|list| list.split(',')).map(str::trim);
    let entries: Vec<&str> = entries.collect();
    let of_kind = |kind: &'static str| {
        let is_kind = move |entry: &&&str| entry.starts_with(kind);
        entries.iter().take_while(is_kind)
    };
    match entries.first() {
        Some(first) if first.starts_with("GPU-") => Ok(collected(
            of_kind("GPU-").map(|entry| by_uuid(entry, &devices)),
        )),
        Some(first) if first.starts_with("MIG-") => Ok(collected(
            of_kind("MIG-").map(|entry| by_mig_name(entry, &devices)),
        )),
        Some(_) => {
            let numbers = entries
                .iter()
                .map(|entry| number(entry))
                .take_while(Option::is_some);
            let numbers: Vec<_> = numbers.flatten().collect();
            if numbers.is_empty() {
                return Ok(Vec::new());
            }
            let ordered = ordered(devices, order.as_deref())?;
            Ok(collected(
                numbers
                    .into_iter()
                    .map(|number| ordered.get(number).copied()),
            ))
        }
        None => ordered(devices, order.as_deref()),
    }
}

/// Collects devices up to the first that does not exist; none if one comes twice.
fn collected<'a>(devices: impl Iterator<Item = Option<Chosen<'a>>>) -> Vec<Chosen<'a>> {
    let mut all = Vec::new();
    for chosen in devices.map_while(|device| device) {
        if all.contains(&chosen) {
            return Vec::new();
        }
        all.push(chosen);
    }
    all
}

/// Reads a number as `strtoul` does; `None` for a negative one and for a text without digits.
fn number(entry: &str) -> Option<usize> {
    let entry = entry.strip_prefix('+').unwrap_or(entry);
    let end = entry.find(|letter: char| !letter.is_ascii_digit());
    entry[..end.unwrap_or(entry.len())].parse().ok()
}

/// Returns the only one of these; `None` for none and for several.
fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

/// Finds the GPU whose UUID alone begins so.
fn by_uuid<'a>(entry: &str, devices: &[&'a DeviceMemory]) -> Option<Chosen<'a>> {
    let begins = |device: &&&DeviceMemory| {
        let uuid = device.hardware.uuid.as_deref();
        uuid.is_some_and(|uuid| uuid.starts_with(entry))
    };
    let device = only(devices.iter().filter(begins))?;
    Some(Chosen { device, mig: None })
}

/// Finds a MIG device by its UUID, or as drivers before R470 name it: `MIG-GPU-<UUID>/<GPU instance>/<compute instance>`.
fn by_mig_name<'a>(entry: &str, devices: &[&'a DeviceMemory]) -> Option<Chosen<'a>> {
    let name = entry
        .strip_prefix("MIG-")
        .filter(|name| name.starts_with("GPU-"));
    let is_named = |device: &DeviceMemory, mig: &MigHardware| match name {
        None => mig
            .uuid
            .as_deref()
            .is_some_and(|uuid| uuid.starts_with(entry)),
        Some(name) => {
            let mut parts = name.split('/');
            let instances = [mig.gpu_instance, mig.compute_instance];
            device.hardware.uuid.as_deref() == parts.next()
                && instances.iter().all(|id| {
                    let asked = parts.next().and_then(|part| part.parse::<u32>().ok());
                    id.is_some() && *id == asked
                })
        }
    };
    let migs = devices.iter().flat_map(|device| {
        let migs = device.hardware.mig_devices.iter();
        migs.map(|mig| Chosen {
            device,
            mig: Some(mig),
        })
    });
    only(migs.filter(|chosen| chosen.mig.is_some_and(|mig| is_named(chosen.device, mig))))
}

/// Returns the devices in the order in which CUDA numbers them: by PCI bus id if asked for. By default the fastest comes
/// first, which says nothing unless all are equal.
fn ordered<'a>(
    mut devices: Vec<&'a DeviceMemory>,
    order: Option<&str>,
) -> Result<Vec<Chosen<'a>>, &'static str> {
    if devices.iter().any(|device| device.hardware.is_in_mig_mode) {
        return Err("CUDA's order of GPUs in MIG mode is not known");
    }
    let total = |device: &DeviceMemory| device.memory.as_ref().ok().map(|memory| memory.total);
    let is_like = |one: &DeviceMemory, other: &DeviceMemory| {
        !one.name.is_empty() && one.name == other.name && total(one) == total(other)
    };
    let are_equal = devices.windows(2).all(|pair| is_like(pair[0], pair[1]));
    if order != Some("PCI_BUS_ID") && !are_equal {
        return Err("CUDA_DEVICE_ORDER is not PCI_BUS_ID, and the GPUs differ");
    }
    if devices.len() > 1
        && devices
            .iter()
            .any(|device| device.hardware.pci_bus_id.is_none())
    {
        return Err("NVML does not give the PCI bus id of every GPU");
    }
    devices.sort_by_cached_key(|device| {
        let id = device.hardware.pci_bus_id.as_ref();
        id.map(|id| id.to_ascii_uppercase())
    });
    let whole = |device: &'a DeviceMemory| Chosen { device, mig: None };
    Ok(devices.into_iter().map(whole).collect())
}

#[cfg(test)]
mod tests;
