//! The maps, and the constants that user space sets.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, ProgramArray, RingBuf};
use memprobe_common::{ProcessConfig, counter};

use crate::state::{Budget, PendingCall, Thread, diagnostic_kind};

/// Every record, in the order in which it was reserved. User space sets the size.
#[map]
pub static RECORDS: RingBuf = RingBuf::with_byte_size(8 << 20, 0);

/// Programs to go on in. User space puts them there.
#[map]
pub static PROGRAMS: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Index of `event_with_stack` in [`PROGRAMS`].
pub const EVENT_WITH_STACK: u32 = 0;

/// The watched processes, by tgid. An event of any other process is ignored. An entry goes
/// when its process ends.
#[map]
pub static PROCESSES: HashMap<u32, ProcessConfig> = HashMap::with_max_entries(16384, 0);

/// Calls of the dynamic loader's hook in processes that are not watched, by tgid. An evicted entry costs a look
/// at its process.
#[map]
pub static LOADS: LruHashMap<u32, u32> = LruHashMap::with_max_entries(4096, 0);

/// State of a thread between its events, and its scratch memory, by tid. Uprobe programs can be preempted,
/// so scratch memory per CPU would be shared; memory per thread cannot be. An entry goes when its thread ends.
/// User space sets the size.
#[map]
pub static THREADS: HashMap<u32, Thread> = HashMap::with_max_entries(1024, 0);

/// One all-zero [`Thread`], from which new entries of [`THREADS`] are made (it does not fit on the
/// program's stack).
#[map]
pub static NEW_THREAD: Array<Thread> = Array::with_max_entries(1, 0);

/// The call into CUDA that a thread is in, by tid. An entry lasts as long as the call, so the
/// map is nearly always empty. The entry of a thread that died inside is evicted later.
#[map]
pub static CALLS: LruHashMap<u32, PendingCall> = LruHashMap::with_max_entries(8192, 0);

/// Failed calls of CUDA that each process has sent in this second, by tgid. An evicted entry lets it send more.
#[map]
pub static FAILURES: LruHashMap<u32, Budget> = LruHashMap::with_max_entries(1024, 0);

/// Stack hashes whose frames were sent. An evicted one costs sending it again.
#[map]
pub static SENT_STACKS: LruHashMap<u64, u8> = LruHashMap::with_max_entries(65536, 0);

/// Code objects in the stacks that were sent, by [`sent_code`]. An evicted one costs the frames of a code
/// object that is freed before user space has read it.
#[map]
pub static SENT_CODES: LruHashMap<u64, u8> = LruHashMap::with_max_entries(65536, 0);

/// The key of a code object in [`SENT_CODES`]: addresses of different processes may be equal.
#[inline(always)]
pub fn sent_code(tgid: u32, code: u64) -> u64 {
    code ^ u64::from(tgid).rotate_right(24)
}

/// Slots of [`NODES_MADE`].
pub const NODE_SLOTS: u32 = 4096;

/// Counts of autograd nodes that the forward pass made, by [`node_slot`] of their address.
#[map]
pub static NODES_MADE: Array<u64> = Array::with_max_entries(NODE_SLOTS, 0);

/// The index in [`NODES_MADE`] of a node. Nodes that share one, also those of other processes, only cost records.
#[inline(always)]
pub fn node_slot(node: u64) -> u32 {
    /// `malloc` aligns to 16 bytes.
    const ALIGNMENT_BITS: u32 = 4;
    (node >> ALIGNMENT_BITS) as u32 & (NODE_SLOTS - 1)
}

/// Losses, by `memprobe_common::counter`.
#[map]
pub static COUNTERS: Array<u64> = Array::with_max_entries(counter::COUNT, 0);

/// Losses of each process, by `memprobe_common::counter::of_process`. An evicted entry leaves its losses in
/// [`COUNTERS`], without the process.
#[map]
pub static LOST_BY: LruHashMap<u64, u64> = LruHashMap::with_max_entries(8192, 0);

/// Lines of diagnostics, by kind.
#[map]
pub static DIAGNOSTIC_BUDGETS: Array<Budget> = Array::with_max_entries(diagnostic_kind::COUNT, 0);

/// Byte offset of `thread.fsbase` in this kernel's `task_struct`, from its BTF.
#[unsafe(no_mangle)]
static FSBASE_OFFSET: u64 = 0;

/// Byte offset of `pid` in this kernel's `task_struct`.
#[unsafe(no_mangle)]
static PID_OFFSET: u64 = 0;

/// Byte offset of `tgid` in this kernel's `task_struct`.
#[unsafe(no_mangle)]
static TGID_OFFSET: u64 = 0;

/// Byte offset of `signal` in this kernel's `task_struct`.
#[unsafe(no_mangle)]
static SIGNAL_OFFSET: u64 = 0;

/// Byte offset of `live` in this kernel's `signal_struct`.
#[unsafe(no_mangle)]
static LIVE_OFFSET: u64 = 0;

/// Not 0 if every process is watched that uses a probed library.
#[unsafe(no_mangle)]
static WATCH_ALL: u64 = 0;

/// Not 0 if stacks name the modules that are called. The verifiers of older kernels cannot follow that.
#[unsafe(no_mangle)]
static REPORT_MODULES: u64 = 1;

/// Not 0 if the programs log diagnostics.
#[unsafe(no_mangle)]
static DIAGNOSTICS: u64 = 0;

/// Makes a function that reads a constant which user space sets before the programs are loaded.
macro_rules! constant {
    ($(#[$doc:meta])* $name:ident, $constant:ident) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u64 {
            // SAFETY: a plain static that the loader rewrites before the program is loaded;
            // volatile so that the compiler does not fold the 0 it sees.
            unsafe { core::ptr::read_volatile(&raw const $constant) }
        }
    };
}

constant!(
    /// Byte offset of the thread pointer in this kernel's `task_struct`.
    fsbase_offset,
    FSBASE_OFFSET
);
constant!(
    /// Byte offset of a thread's number in this kernel's `task_struct`.
    pid_offset,
    PID_OFFSET
);
constant!(
    /// Byte offset of a process's number in this kernel's `task_struct`.
    tgid_offset,
    TGID_OFFSET
);
constant!(
    /// Byte offset of the pointer to `signal_struct`, which the threads of a process share, in this kernel's
    /// `task_struct`.
    signal_offset,
    SIGNAL_OFFSET
);
constant!(
    /// Byte offset of the number of living threads in this kernel's `signal_struct`.
    live_offset,
    LIVE_OFFSET
);
constant!(
    /// Not 0 if every process is watched that uses a probed library.
    watch_all,
    WATCH_ALL
);
constant!(
    /// Not 0 if stacks name the modules that are called.
    report_modules,
    REPORT_MODULES
);
constant!(
    /// Not 0 if the programs log diagnostics.
    diagnostics,
    DIAGNOSTICS
);
