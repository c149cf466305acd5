//! Which processes are watched, from their first instruction to the end of their last thread.
//!
//! A child is watched before it runs, so that not one of its events is lost however long user space
//! takes to hear of it; what is known of its parent holds for it, since its memory is a copy.

use aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP;
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_probe_read_kernel};
use aya_ebpf::macros::{raw_tracepoint, uprobe};
use aya_ebpf::programs::{ProbeContext, RawTracePointContext};
use memprobe_common::{
    ProcessConfig, ProcessRecord, PythonConfig, ThreadLocal, counter, process_flag, record,
};

use crate::maps::{
    LOADS, PROCESSES, RECORDS, THREADS, live_offset, pid_offset, signal_offset, tgid_offset,
    watch_all,
};
use crate::ring::count;
use crate::thread::Caller;

/// What is known of the calling process, if it is watched. Where all are that use a probed library,
/// it is watched from here on.
#[inline(always)]
pub fn watched(caller: Caller) -> Option<&'static ProcessConfig> {
    // SAFETY: entries change where no program of their process runs, or field by field.
    if let Some(process) = unsafe { PROCESSES.get(&caller.tgid) } {
        return Some(process);
    }
    if watch_all() == 0 {
        return None;
    }
    let process = ProcessConfig {
        // SAFETY: takes no arguments.
        generation: unsafe { bpf_ktime_get_ns() },
        flags: process_flag::CHILDREN,
        ..UNKNOWN
    };
    if PROCESSES.insert(&caller.tgid, &process, 0).is_err() {
        count(counter::PROCESSES_REFUSED);
        return None;
    }
    tell(record::FOUND, caller.tgid, 0);
    // SAFETY: as above.
    unsafe { PROCESSES.get(&caller.tgid) }
}

/// A process of which nothing is known.
const UNKNOWN: ProcessConfig = ProcessConfig {
    python: PythonConfig::UNKNOWN,
    generation: 0,
    graph_task: NOWHERE,
    autograd_state: NOWHERE,
    flags: 0,
    module_call: 0,
};

const NOWHERE: ThreadLocal = ThreadLocal {
    module: 0,
    offset: 0,
};

/// `sched_process_fork(struct task_struct *parent, struct task_struct *child)`: before the child
/// runs (`kernel_clone` in kernel/fork.c). The parent is the caller.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn process_forked(ctx: RawTracePointContext) -> i32 {
    let caller = Caller::current();
    // SAFETY: entries change where no program of their process runs, or field by field.
    let Some(parent) = (unsafe { PROCESSES.get(&caller.tgid) }) else {
        return 0;
    };
    if parent.flags & process_flag::CHILDREN == 0 {
        return 0;
    }
    let child: u64 = ctx.arg(1);
    // SAFETY: the helper checks the addresses.
    let (pid, tgid) = unsafe {
        (
            bpf_probe_read_kernel((child + pid_offset()) as *const u32),
            bpf_probe_read_kernel((child + tgid_offset()) as *const u32),
        )
    };
    let (Ok(pid), Ok(tgid)) = (pid, tgid) else {
        count(counter::PROCESSES_LOST);
        return 0;
    };
    if pid != tgid {
        // A thread.
        return 0;
    }
    let process = ProcessConfig {
        // SAFETY: takes no arguments.
        generation: unsafe { bpf_ktime_get_ns() },
        ..*parent
    };
    if PROCESSES.insert(&tgid, &process, 0).is_err() {
        count(counter::PROCESSES_REFUSED);
        return 0;
    }
    tell(record::FORKED, tgid, caller.tgid);
    0
}

/// `sched_process_exec(struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)`: the
/// caller, alone in its process by now, has a new memory (`exec_binprm` in fs/exec.c).
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn process_executed(ctx: RawTracePointContext) -> i32 {
    let caller = Caller::current();
    let Some(process) = PROCESSES.get_ptr_mut(&caller.tgid) else {
        return 0;
    };
    // What was known of the thread is of the memory before.
    let before: u32 = ctx.arg::<i32>(1) as u32;
    let _ = THREADS.remove(&before);
    let _ = THREADS.remove(&caller.tid);
    // SAFETY: a map value; the process has no other thread that could use it.
    unsafe {
        (*process).python = PythonConfig::UNKNOWN;
        (*process).graph_task = NOWHERE;
        (*process).autograd_state = NOWHERE;
        (*process).module_call = 0;
        (*process).generation = bpf_ktime_get_ns();
    }
    tell(record::EXECUTED, caller.tgid, 0);
    0
}

/// `sched_process_exit(struct task_struct *task, …)`: the caller is ending and has counted itself
/// out (`do_exit` in kernel/exit.c).
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn thread_exited(ctx: RawTracePointContext) -> i32 {
    let caller = Caller::current();
    let _ = THREADS.remove(&caller.tid);
    // SAFETY: the value is only tested for presence.
    if unsafe { PROCESSES.get(&caller.tgid) }.is_none() {
        return 0;
    }
    let task: u64 = ctx.arg(0);
    // SAFETY: the helper checks the addresses.
    let living = unsafe {
        bpf_probe_read_kernel((task + signal_offset()) as *const u64)
            .and_then(|signal| bpf_probe_read_kernel((signal + live_offset()) as *const i32))
    };
    if living != Ok(0) {
        return 0;
    }
    // Of threads that end together one comes first.
    if PROCESSES.remove(&caller.tgid).is_ok() {
        tell(record::EXITED, caller.tgid, 0);
    }
    0
}

/// The dynamic loader's `_dl_debug_state()`, which it calls for debuggers before it maps libraries
/// and once they are mapped, before their code runs (elf/dl-debug.c in glibc).
#[uprobe]
pub fn library_mapped(_: ProbeContext) -> u32 {
    /// How often a program calls it while it starts.
    const STARTING: u32 = 2;
    let tgid = Caller::current().tgid;
    // SAFETY: the value is only tested for presence.
    if unsafe { PROCESSES.get(&tgid) }.is_none() {
        if watch_all() == 0 {
            return 0;
        }
        // SAFETY: a number; two threads of one process do not load at once.
        let before = unsafe { LOADS.get(&tgid).copied().unwrap_or(0) };
        if before < STARTING {
            let _ = LOADS.insert(&tgid, &(before + 1), 0);
            return 0;
        }
    }
    tell(record::LIBRARY_MAPPED, tgid, 0);
    0
}

/// Sends a record of a process's life; the reader is woken.
#[inline(always)]
fn tell(kind: u8, tgid: u32, parent: u32) {
    let record = ProcessRecord {
        kind,
        pad: [0; 3],
        tgid,
        parent,
        pad2: 0,
        // SAFETY: takes no arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
    };
    match RECORDS.reserve::<ProcessRecord>(0) {
        Some(mut entry) => {
            entry.write(record);
            entry.submit(u64::from(BPF_RB_FORCE_WAKEUP));
        }
        None => count(counter::PROCESSES_LOST),
    }
}
