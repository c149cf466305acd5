//! The watched processes.

use aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP;
use memprobe_common::{
    ProcessConfig, ProcessRecord, PythonConfig, ThreadLocal, counter, process_flag, record,
};

use crate::context::{Caller, now_ns};
use crate::diagnostic;
use crate::maps::{PROCESSES, RECORDS, watch_all};
use crate::ring::count;

/// The configuration of the calling process, if it is watched. Where every process is watched that uses a
/// probed library, it is watched from here on.
#[inline(always)]
pub fn watched(caller: Caller) -> Option<&'static ProcessConfig> {
    if let Some(process) = find(&caller.tgid) {
        return Some(process);
    }
    if watch_all() == 0 {
        diagnostic::not_watched();
        return None;
    }
    let process = ProcessConfig {
        generation: now_ns(),
        flags: process_flag::CHILDREN,
        ..UNKNOWN
    };
    if PROCESSES.insert(&caller.tgid, &process, 0).is_err() {
        count(counter::PROCESSES_REFUSED);
        return None;
    }
    send_event(record::FOUND, caller.tgid, 0);
    find(&caller.tgid)
}

/// The configuration of a watched process.
#[inline(always)]
pub fn find(tgid: &u32) -> Option<&'static ProcessConfig> {
    // SAFETY: entries change where no program of their process runs, or field by field.
    unsafe { PROCESSES.get(tgid) }
}

/// Returns whether a process is watched.
#[inline(always)]
pub fn is_watched(tgid: &u32) -> bool {
    PROCESSES.get_ptr(tgid).is_some()
}

/// Sends a record of a process's life and wakes the reader.
#[inline(always)]
pub fn send_event(kind: u8, tgid: u32, parent: u32) {
    let record = ProcessRecord {
        kind,
        pad: [0; 3],
        tgid,
        parent,
        pad2: 0,
        time_ns: now_ns(),
    };
    match RECORDS.reserve::<ProcessRecord>(0) {
        Some(mut entry) => {
            entry.write(record);
            entry.submit(u64::from(BPF_RB_FORCE_WAKEUP));
        }
        None => count(counter::PROCESSES_LOST),
    }
}

/// A process of which nothing is known.
const UNKNOWN: ProcessConfig = ProcessConfig {
    python: PythonConfig::UNKNOWN,
    generation: 0,
    graph_task: UNKNOWN_VARIABLE,
    evaluating_node: UNKNOWN_VARIABLE,
    autograd_state: UNKNOWN_VARIABLE,
    flags: 0,
    module_call: 0,
};

/// A thread-local variable of an unknown library.
pub const UNKNOWN_VARIABLE: ThreadLocal = ThreadLocal {
    module: 0,
    offset: 0,
};
