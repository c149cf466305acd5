//! Text for the waterfall of a process's memory, and its table.

use super::cells;
use super::segments::{owner, pool_id, pool_name};
use super::table::{Cell, Column, Tone, columns};
use super::{FileNames, clean, counted, duration, library_file};
use crate::attribution::tables::{
    AllocationTag, CommunicatorCall, OwnerKind, OwnerRow, Waterfall, totals_by_kind,
};
use crate::cuda::libraries::{family, purpose};
use crate::event::bytes::human;
use crate::event::{
    Address, Bytes, CudaMemoryKind, DeviceIndex, Frame, Pool, ProcessGroup, TimeNs, UseSign,
};
use crate::ledger::snapshot::CudaSnapshot;
use std::sync::Arc;
use std::time::Duration;

/// A row of the waterfall of a device.
#[derive(Clone, PartialEq, Debug)]
pub struct OwnerEntry {
    /// Device; `None` for the totals of all devices.
    pub device: Option<DeviceIndex>,
    pub row: OwnerRow,
    /// Bytes that the row is a share of.
    pub whole: i64,
    /// Name for text, without indentation.
    pub name: String,
    /// Name with the indentation of its depth.
    pub indented: String,
}

/// Most process groups of a row, and most ranks of a group, that are listed one by one.
const MAX_GROUPS: usize = 4;
const MAX_RANKS: usize = 4;

pub const OWNER_COLUMNS: [Column<OwnerEntry>; 25] = columns![|row: OwnerEntry|
    data("device") => row.device,
    data("owner") => row.row.id.into_str(),
    data("depth") => u64::from(row.row.depth),
    number("bytes", "BYTES").screen(11, 0).tone(Tone::Strong) => bytes(row),
    figure("SHARE").screen(7, 50) => bytes(row).map(|bytes| Cell::share(bytes, row.whole)),
    label("").not_in_text().screen(10, 128).order(None).tone(Tone::Graph) => Cell::Bar(row.row.bytes.into(), row.whole.into()),
    number("peak", "PEAK").priority(2).screen(11, 96) => bytes(row).and(row.row.peak),
    number("blocks", "BLOCKS").priority(1).screen(7, 84) => row.row.blocks,
    number("allocs", "ALLOCS").priority(3) => row.row.allocs,
    data("library") => row.row.library.as_deref(),
    data("purpose") => row.row.library.as_deref().and_then(purpose),
    data("signs") => signs(row),
    data("idle_libraries") => idle(row),
    data("tag") => tag(row),
    data("communicator_call") => communicator_call(row),
    data("space") => row.row.kind.map(|kind| kind.as_str()),
    data("pool") => pool(row).map(|pool| pool.size.as_str()),
    data("pool_owner") => pool(row).map(|pool| owner(pool.owner)),
    json("pool_id") => pool(row).and_then(pool_id),
    data("stream") => row.row.pool.and_then(|pool| pool.stream).map(Address),
    data("file") => frame(row).map(|frame| &*frame.file),
    data("line") => frame(row).and_then(cells::known_line),
    data("function") => frame(row).map(|frame| &*frame.function),
    label("OWNER") => &row.indented,
    label("OWNER").not_in_text().name(0).order(None) => &row.name,
];

/// Bytes of a row; `None` for imported memory, whose size only its exporter knows, and for libraries from before attach.
fn bytes(row: &OwnerEntry) -> Option<i128> {
    let is_imported = row.row.kind == Some(CudaMemoryKind::Imported);
    let is_known = !is_imported && row.row.id != OwnerKind::Candidate;
    is_known.then_some(row.row.bytes.into())
}

fn frame(row: &OwnerEntry) -> Option<&Frame> {
    row.row.site.as_ref()?.frame()
}

/// Signs that a library was in use at attach; `None` for other rows.
fn signs(row: &OwnerEntry) -> Option<String> {
    (!row.row.signs.is_empty()).then(|| use_signs(&row.row.signs))
}

/// Libraries that were loaded at attach without a sign of use; `None` for other rows.
fn idle(row: &OwnerEntry) -> Option<String> {
    (!row.row.idle.is_empty()).then(|| families(&row.row.idle))
}

/// Signs of use in words, with their numbers.
pub fn use_signs(signs: &[UseSign]) -> String {
    let number_of = |number: &u32, noun| counted((*number).into(), noun);
    let words = signs.iter().map(|sign| match sign {
        UseSign::ProcessGroups(groups) => process_groups(groups),
        UseSign::WatchdogThreads(number) => {
            format!("{} of ProcessGroupNCCL", number_of(number, "thread"))
        }
        UseSign::SharedFiles(number) => format!("{} in /dev/shm", number_of(number, "file")),
        UseSign::LoadedParts(number) => {
            format!("{} loaded at first use", number_of(number, "part"))
        }
        UseSign::CompiledModules(number) => number_of(number, "compiled module"),
        UseSign::GraphPools(number) => format!("{} of theirs", number_of(number, "private pool")),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Process groups in words: `2 process groups (0: ranks 0-7; 3: ranks 0, 4)`.
fn process_groups(groups: &[ProcessGroup]) -> String {
    let named = groups.iter().take(MAX_GROUPS);
    let mut words: Vec<String> = named
        .map(|group| format!("{}: {}", clean(&group.name), ranks(group)))
        .collect();
    let others = groups.len().saturating_sub(MAX_GROUPS);
    if others > 0 {
        words.push(format!("{others} more"));
    }
    let number = counted(groups.len() as u64, "process group");
    format!("{number} ({})", words.join("; "))
}

fn ranks(group: &ProcessGroup) -> String {
    let [first, .., last] = group.ranks.as_slice() else {
        return match group.ranks.first() {
            Some(rank) => format!("rank {rank}"),
            None => counted(group.size.into(), "rank"),
        };
    };
    let step = group.ranks[1].saturating_sub(*first);
    let is_even = |pair: &[u32]| pair[1].saturating_sub(pair[0]) == step;
    // A recording may have any size beside the list.
    let number = group.ranks.len();
    match group.ranks.windows(2).all(is_even) {
        true if step == 1 => format!("ranks {first}-{last}"),
        _ if number <= MAX_RANKS => {
            let all = group.ranks.iter().map(u32::to_string);
            format!("ranks {}", all.collect::<Vec<_>>().join(", "))
        }
        true => format!("{number} ranks, {first} to {last} by {step}"),
        false => format!("{number} ranks, {first} to {last}"),
    }
}

/// Name of a library for a list, such as `NCCL`.
pub fn library_family(path: &str) -> String {
    match family(path) {
        Some(family) => family.to_owned(),
        None => clean(library_file(path)),
    }
}

fn families(paths: &[Arc<str>]) -> String {
    let names = paths.iter().map(|path| library_family(path));
    names.collect::<Vec<_>>().join(", ")
}

/// Tag of memory that sleeps; `None` if it is not known.
fn tag(row: &OwnerEntry) -> Option<&str> {
    match row.row.tag.as_ref()? {
        AllocationTag::Known(tag) => Some(tag),
        AllocationTag::Unknown => None,
    }
}

/// Function that the communicators of a line serve; `None` if it is not known.
fn communicator_call(row: &OwnerEntry) -> Option<&str> {
    match row.row.communicator.as_ref()? {
        CommunicatorCall::Function(function) => Some(function),
        CommunicatorCall::Unknown => None,
    }
}

fn pool(row: &OwnerEntry) -> Option<Pool> {
    row.row.pool.and_then(|pool| pool.pool)
}

impl OwnerEntry {
    /// The rows of a device, in order.
    pub fn all(of: &Waterfall) -> Vec<Self> {
        let sites = of.rows.iter().filter_map(|row| row.site.as_ref());
        let frames = sites.filter_map(|site| site.frame());
        let names = FileNames::of(frames.map(|frame| &frame.file));
        let whole = of.rows.first().map_or(0, |row| row.bytes);
        let entry = |row: &OwnerRow| {
            let name = name(row, of, &names);
            let indented = format!("{}{name}", "  ".repeat(row.depth.into()));
            Self {
                device: Some(of.index),
                row: row.clone(),
                whole,
                name,
                indented,
            }
        };
        of.rows.iter().map(entry).collect()
    }

    /// Totals by kind of memory.
    pub fn by_kind(cuda: &CudaSnapshot) -> Vec<Self> {
        let rows = totals_by_kind(cuda);
        let whole = rows.iter().map(|row| row.bytes).sum();
        let entry = |row: OwnerRow| {
            let name = row.kind.map_or("", kind_meaning).to_owned();
            Self {
                device: None,
                whole,
                indented: name.clone(),
                name,
                row,
            }
        };
        rows.into_iter().map(entry).collect()
    }
}

/// Kind of memory in words, with the call that gives it out.
const fn kind_meaning(kind: CudaMemoryKind) -> &'static str {
    match kind {
        CudaMemoryKind::Device => "device memory (cudaMalloc)",
        CudaMemoryKind::Pool => "stream-ordered pools (cudaMallocAsync)",
        CudaMemoryKind::Virtual => "virtual memory (cuMemCreate)",
        CudaMemoryKind::Array => "arrays (cudaMallocArray)",
        CudaMemoryKind::Managed => "managed memory (cudaMallocManaged)",
        CudaMemoryKind::Pinned => "pinned host memory (cudaHostAlloc)",
        CudaMemoryKind::Registered => "registered host memory (cudaHostRegister)",
        CudaMemoryKind::Imported => "imported by CUDA IPC: size not known, the exporter holds it",
        CudaMemoryKind::Context => "contexts",
    }
}

fn name(row: &OwnerRow, of: &Waterfall, names: &FileNames) -> String {
    let of_pool = |words: &str| match row.pool {
        Some(pool) => format!("{words}: {}", pool_name(pool)),
        None => words.to_owned(),
    };
    match row.id {
        OwnerKind::Process if of.driver.is_some_and(|driver| driver.process.is_some()) => {
            "this process, as the driver counts it".to_owned()
        }
        OwnerKind::Process => "known memory of this process".to_owned(),
        OwnerKind::Context => "CUDA's context and modules".to_owned(),
        OwnerKind::BeforeAttach => {
            "not seen: CUDA's context, modules, and libraries from before attach".to_owned()
        }
        OwnerKind::Candidate if row.signs.is_empty() => {
            format!("loaded, no sign of use: {}", families(&row.idle))
        }
        OwnerKind::Candidate => {
            let name = row.library.as_deref().map(library_family);
            let name = name.unwrap_or_else(|| "CUDA graphs".to_owned());
            format!("perhaps {name}: {}", use_signs(&row.signs))
        }
        OwnerKind::Library => {
            let library = row.library.as_deref().unwrap_or_default();
            let kind = row.kind.map_or("", |kind| kind.as_str());
            let file = clean(library_file(library));
            let device = match row.library_device {
                Some(_) => "",
                None => " on cuda:?",
            };
            match purpose(library) {
                Some(purpose) => format!("{file}, {kind} memory{device}: {purpose}"),
                None => format!("{file}, {kind} memory{device}"),
            }
        }
        OwnerKind::Line => {
            let site = row.site.as_ref();
            let site = site.map_or_else(
                || "allocated before attach".to_owned(),
                |site| names.site(site),
            );
            match &row.communicator {
                Some(CommunicatorCall::Function(call)) => {
                    format!("{site}, for {}", clean(call))
                }
                Some(CommunicatorCall::Unknown) => format!("{site}, communicator not known"),
                None => tagged(row, of_pool(&site)),
            }
        }
        OwnerKind::Reserved => "PyTorch's caching allocator: reserved".to_owned(),
        OwnerKind::Requested => "requested by live tensors".to_owned(),
        OwnerKind::Rounding => "rounding to the allocator's sizes".to_owned(),
        OwnerKind::AwaitingEvent => of_pool("freed, awaits an event"),
        OwnerKind::Cached => of_pool("cached"),
        OwnerKind::InactiveSplit => of_pool("inactive split"),
        OwnerKind::NotRead => "segments not read yet".to_owned(),
        OwnerKind::Asleep => "asleep: reserved, but given back to CUDA".to_owned(),
        OwnerKind::NotOnDevice => "reserved, but managed or host memory".to_owned(),
        OwnerKind::Kind => row.kind.map_or("", kind_meaning).to_owned(),
    }
}

/// Text of a row with the tag of its memory.
fn tagged(row: &OwnerRow, text: String) -> String {
    match &row.tag {
        Some(AllocationTag::Known(tag)) => format!("tag {}, {text}", clean(tag)),
        Some(AllocationTag::Unknown) => format!("tag not known, {text}"),
        None => text,
    }
}

/// The memory of the GPU, of which this process has a part.
pub fn owner_account(of: &Waterfall) -> String {
    let Some(driver) = of.driver else {
        return match &of.driver_unknown {
            Some(_) => "the driver does not say who has the rest of the GPU".to_owned(),
            None => "the driver has not counted the GPU's memory yet".to_owned(),
        };
    };
    let free = Bytes(driver.total.0.saturating_sub(driver.used.0));
    let (total, free) = (human(driver.total), human(free));
    match driver.process {
        Some(process) => {
            let others = Bytes(driver.used.0.saturating_sub(process.0));
            let (process, others) = (human(process), human(others));
            format!("GPU {total} = {process} of this process + {others} of others + {free} free")
        }
        None => format!(
            "GPU {total} = {} of all processes + {free} free",
            human(driver.used)
        ),
    }
}

/// Sentences about the figures of a device.
pub fn owner_notes(of: &Waterfall, now: TimeNs) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(reason) = &of.driver_unknown {
        let count = match of.driver {
            Some(_) => "is not whole",
            None => "is not known",
        };
        let reason = clean(reason);
        let end = match reason.ends_with(['.', '?', '!']) {
            true => "",
            false => ".",
        };
        notes.push(format!("The driver's count {count}: {reason}{end}"));
    } else if of.driver.is_none() {
        notes.push("The driver was not asked: the sum has only what memprobe saw.".to_owned());
    }
    let difference = of
        .rows
        .iter()
        .find(|row| matches!(row.id, OwnerKind::Context | OwnerKind::BeforeAttach));
    if let Some(row) = difference {
        notes.push(match (row.id, row.bytes) {
            (_, ..0) => "The allocator has reserved more than CUDA gives this process: segments slept before attach, or \
                         pools of other memory."
                .to_owned(),
            (OwnerKind::Context, _) => {
                "CUDA's context and modules are the driver's count minus all known memory.".to_owned()
            }
            _ => "What is not seen is the driver's count minus all known memory.".to_owned(),
        });
        if of.rows.iter().any(|row| row.id == OwnerKind::Candidate) {
            notes.push(
                "Libraries below it were loaded at attach; their bytes are not known.".to_owned(),
            );
        }
    }
    let whole = of.rows.first().map_or(0, |row| row.bytes);
    if let Some(driver) = of.driver
        && let Some(process) = driver.process
        && (i128::from(process.0) != i128::from(whole) || !driver.is_exact)
    {
        let age = Duration::from_nanos(now.0.saturating_sub(driver.time.0));
        notes.push(format!(
            "The driver counted {} {} before; memory changed since, or while it was asked.",
            human(process),
            duration(age)
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Totals;

    #[test]
    fn process_groups_are_named_with_their_ranks() {
        let group = |name: &str, ranks: &[u32]| ProcessGroup {
            name: name.to_owned(),
            size: ranks.len().try_into().unwrap(),
            ranks: ranks.to_vec(),
        };
        let words = |groups: &[ProcessGroup]| use_signs(&[UseSign::ProcessGroups(groups.to_vec())]);
        let every_eighth: Vec<u32> = (1..64).step_by(8).collect();
        let all = [
            group("0", &(0..64).collect::<Vec<_>>()),
            group("tp", &[0, 9]),
            group("dp", &every_eighth),
            group("odd", &[0, 1, 5, 6, 9]),
            group("last", &[3]),
            group("unseen", &[4]),
        ];
        assert_eq!(
            words(&all),
            "6 process groups (0: ranks 0-63; tp: ranks 0, 9; dp: 8 ranks, 1 to 57 by 8; odd: 5 ranks, 0 to 9; 2 more)"
        );
        assert_eq!(words(&all[4..5]), "1 process group (last: rank 3)");
        let contradictory = ProcessGroup {
            size: 2,
            ..group("odd", &[0, 1, 5, 6, 9])
        };
        assert_eq!(
            words(&[contradictory]),
            "1 process group (odd: 5 ranks, 0 to 9)"
        );
        let many = ProcessGroup {
            size: 40_000,
            ..group("all", &[])
        };
        assert_eq!(words(&[many]), "1 process group (all: 40,000 ranks)");
    }

    #[test]
    fn a_note_about_the_driver_ends_once() {
        let note = |reason: &str| {
            let waterfall = Waterfall {
                index: DeviceIndex(0),
                totals: Totals::default(),
                driver: None,
                driver_unknown: Some(reason.into()),
                read: None,
                rows: Vec::new(),
            };
            owner_notes(&waterfall, TimeNs(1)).join(" ")
        };
        assert_eq!(
            note("libnvidia-ml.so.1 was not found: is the NVIDIA driver installed?"),
            "The driver's count is not known: libnvidia-ml.so.1 was not found: is the NVIDIA driver installed?"
        );
        assert_eq!(
            note("the driver does not list this process"),
            "The driver's count is not known: the driver does not list this process."
        );
    }
}
