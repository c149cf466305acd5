//! Owners of a process's memory for the tests of the screens.

use std::sync::Arc;

use super::super::samples::frame;
use crate::attribution::tables::{
    AllocationTag, CommunicatorCall, OwnerKind, OwnerRow, PoolOfStream, Waterfall,
};
use crate::event::{
    Bytes, CudaMemoryKind, DeviceIndex, LoadedLibrary, Pool, PoolOwner, PoolSize, ProcessGroup,
    TimeNs, Totals, UseSign,
};
use crate::ledger::DriverMemoryState;
use crate::ledger::snapshot::Site;

const MIB: i64 = 1 << 20;

fn line(bytes: i64, line: u32, function: &str) -> OwnerRow {
    OwnerRow {
        peak: Some(Bytes(bytes.unsigned_abs())),
        blocks: Some(1),
        site: Some(Site::Line(frame("/home/ada/gpt/train.py", line, function))),
        ..OwnerRow::new(OwnerKind::Line, 2, bytes)
    }
}

fn library(path: &str, bytes: i64, blocks: u64) -> OwnerRow {
    OwnerRow {
        peak: Some(Bytes(bytes.unsigned_abs())),
        blocks: Some(blocks),
        library: Some(path.into()),
        library_device: Some(DeviceIndex(0)),
        kind: Some(CudaMemoryKind::Device),
        ..OwnerRow::new(OwnerKind::Library, 1, bytes)
    }
}

/// The same owners of a process that had called CUDA before attach.
pub fn late_owners() -> Arc<Vec<Waterfall>> {
    let mut owners = owners().as_ref().clone();
    let rows = &mut owners[0].rows;
    let is_context = |row: &OwnerRow| row.id == OwnerKind::Context;
    let context = rows.iter().position(is_context).expect("a context");
    let bytes = rows[context].bytes;
    let candidate = |path: &str, signs: &[UseSign]| LoadedLibrary {
        path: path.to_owned(),
        signs: signs.to_vec(),
    };
    let group = |name: &str, ranks: std::ops::Range<u32>| ProcessGroup {
        name: name.to_owned(),
        size: ranks.end - ranks.start,
        ranks: ranks.collect(),
    };
    let libraries = [
        candidate(
            "/v/nvidia/nccl/lib/libnccl.so.2",
            &[
                UseSign::ProcessGroups(vec![group("0", 0..8), group("1", 2..4)]),
                UseSign::WatchdogThreads(2),
            ],
        ),
        candidate(
            "/c/7A/__triton_launcher.so",
            &[UseSign::CompiledModules(31)],
        ),
        candidate("/v/nvidia/cublas/lib/libcublas.so.13", &[]),
        candidate("/v/nvidia/cufft/lib/libcufft.so.12", &[]),
    ];
    let mut late = vec![OwnerRow::new(OwnerKind::BeforeAttach, 1, bytes)];
    late.extend(OwnerRow::candidates(2, &libraries));
    rows.splice(context..context + 2, late);
    Arc::new(owners)
}

/// Owners whose bytes are the driver's count, among them a pool that sleeps.
pub fn owners() -> Arc<Vec<Waterfall>> {
    let large = PoolOfStream {
        pool: Some(Pool {
            owner: PoolOwner::Default,
            size: PoolSize::Large,
        }),
        stream: Some(0),
        is_expandable: false,
    };
    let of_pool = |id, bytes| OwnerRow {
        pool: Some(large),
        ..OwnerRow::new(id, 2, bytes)
    };
    let whole = 8700 * MIB + 4096;
    let context = OwnerRow {
        blocks: Some(1),
        ..OwnerRow::new(OwnerKind::Context, 1, 417 * MIB + 4096)
    };
    let asleep = OwnerRow {
        blocks: Some(2),
        ..OwnerRow::new(OwnerKind::Asleep, 1, -1024 * MIB)
    };
    let rows = vec![
        OwnerRow::new(OwnerKind::Process, 0, whole),
        context,
        line(0, 12, "main"),
        library("/v/nvidia/nccl/lib/libnccl.so.2", 1024 * MIB, 16),
        OwnerRow {
            communicator: Some(CommunicatorCall::Function("new_group".into())),
            ..line(768 * MIB, 31, "setup")
        },
        OwnerRow {
            communicator: Some(CommunicatorCall::Unknown),
            ..line(256 * MIB, 88, "reduce")
        },
        library("/opt/plan/libplan\u{1b}[2J.so", 91 * MIB, 3),
        OwnerRow::new(OwnerKind::Reserved, 1, 8192 * MIB),
        OwnerRow::new(OwnerKind::Requested, 2, 6100 * MIB),
        OwnerRow::new(OwnerKind::Rounding, 2, 20 * MIB),
        of_pool(OwnerKind::Cached, 1500 * MIB),
        of_pool(OwnerKind::InactiveSplit, 572 * MIB),
        asleep,
        OwnerRow {
            pool: Some(large),
            tag: Some(AllocationTag::Known("weights".into())),
            ..line(-1024 * MIB, 140, "sleep")
        },
    ];
    Arc::new(vec![Waterfall {
        index: DeviceIndex(0),
        totals: Totals {
            allocated: Bytes(6120 << 20),
            reserved: Bytes(8192 << 20),
        },
        driver: Some(DriverMemoryState {
            time: TimeNs(1),
            total: Bytes(24 << 30),
            used: Bytes(12 << 30),
            process: Some(Bytes(whole.unsigned_abs())),
            unattributed: Some(417 * MIB + 4096),
            is_exact: true,
        }),
        driver_unknown: None,
        read: Some(TimeNs(1)),
        rows,
    }])
}
