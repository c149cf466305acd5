//! The life of watched processes, from their first instruction to the end of their last thread.
//!
//! A child is watched before it runs, so that none of its events is lost however late user space
//! learns of it. Its parent's configuration holds for it, since its memory is a copy.

use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::macros::{raw_tracepoint, uprobe};
use aya_ebpf::programs::{ProbeContext, RawTracePointContext};
use memprobe_common::{ProcessConfig, PythonConfig, counter, process_flag, record};

use crate::context::{Caller, now_ns};
use crate::diagnostic;
use crate::maps::{
    LOADS, PROCESSES, THREADS, live_offset, pid_offset, signal_offset, tgid_offset, watch_all,
};
use crate::process::{self, UNKNOWN_VARIABLE, is_watched, send_event};
use crate::ring::count;

/// `sched_process_fork(struct task_struct *parent, struct task_struct *child)`: before the child
/// runs (`kernel_clone` in kernel/fork.c). The parent is the caller.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn process_forked(ctx: RawTracePointContext) -> i32 {
    let caller = Caller::current();
    let Some(parent) = process::find(&caller.tgid) else {
        return 0;
    };
    if parent.flags & process_flag::CHILDREN == 0 {
        diagnostic::child_not_watched();
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
        generation: now_ns(),
        ..*parent
    };
    if PROCESSES.insert(&tgid, &process, 0).is_err() {
        count(counter::PROCESSES_REFUSED);
        return 0;
    }
    send_event(record::FORKED, tgid, caller.tgid);
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
    // The thread's state is about the memory before.
    let before: u32 = ctx.arg::<i32>(1) as u32;
    let _ = THREADS.remove(&before);
    let _ = THREADS.remove(&caller.tid);
    // SAFETY: a map value; the process has no other thread that could use it.
    unsafe {
        (*process).python = PythonConfig::UNKNOWN;
        (*process).graph_task = UNKNOWN_VARIABLE;
        (*process).evaluating_node = UNKNOWN_VARIABLE;
        (*process).autograd_state = UNKNOWN_VARIABLE;
        (*process).module_call = 0;
        (*process).generation = now_ns();
    }
    send_event(record::EXECUTED, caller.tgid, 0);
    0
}

/// `sched_process_exit(struct task_struct *task, …)`: the caller is ending and has counted itself
/// out (`do_exit` in kernel/exit.c).
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn thread_exited(ctx: RawTracePointContext) -> i32 {
    let caller = Caller::current();
    let _ = THREADS.remove(&caller.tid);
    if !is_watched(&caller.tgid) {
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
    // If several threads end together, only the first removal succeeds.
    if PROCESSES.remove(&caller.tgid).is_ok() {
        send_event(record::EXITED, caller.tgid, 0);
    }
    0
}

/// The dynamic loader's `_dl_debug_state()`, which it calls for debuggers before it maps libraries
/// and once they are mapped, before their code runs (elf/dl-debug.c in glibc).
#[uprobe]
pub fn library_mapped(_: ProbeContext) -> u32 {
    /// Calls while a program starts.
    const STARTING: u32 = 2;
    let tgid = Caller::current().tgid;
    if !is_watched(&tgid) {
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
    send_event(record::LIBRARY_MAPPED, tgid, 0);
    0
}
