//! CUDA's functions that manage memory, of libcudart and of libcuda: one program for all entries
//! and one for all returns, told apart by the cookies of their probes.
//!
//! These functions call each other: the runtime calls the driver, and its own functions too. One
//! allocation is told once, by the outermost call, and only if that succeeds. What the arguments
//! mean is left to user space.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::helpers::generated::bpf_get_attach_cookie;
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use memprobe_common::{CudaCookie, CudaRecord, CudaStackRecord, counter, record, stack_state};

use crate::maps::{CALLS, PROCESSES, RECORDS};
use crate::python::walk;
use crate::read::{user_bytes, user_word, user_words};
use crate::ring::lose;
use crate::stack;
use crate::thread::Caller;

/// A call into CUDA that has not returned yet: the outermost of its thread.
#[repr(C)]
pub struct PendingCall {
    /// The stack pointer at its entry, where its return address lies.
    pub stack_pointer: u64,
    /// What is known of it.
    pub record: CudaRecord,
}

/// A function of CUDA is entered.
#[uprobe]
pub fn cuda_enter(ctx: ProbeContext) -> u32 {
    let caller = Caller::current();
    // SAFETY: the value is only tested for presence.
    if unsafe { PROCESSES.get(&caller.tgid) }.is_none() {
        return 0;
    }
    // SAFETY: the context of a uprobe holds the registers.
    let (stack_pointer, cookie) = unsafe {
        let regs = &*ctx.regs;
        (regs.rsp, bpf_get_attach_cookie(ctx.regs.cast()))
    };
    let cookie = CudaCookie::of_word(cookie);
    if let Some(outer) = outer_call(caller, stack_pointer) {
        if cookie.sets_context {
            let context = match ctx.arg(0) {
                Some(0) => CudaRecord::NO_CONTEXT,
                context => context.unwrap_or(0),
            };
            // SAFETY: a map value; only this thread uses it.
            unsafe { (*outer).record.context = context };
        }
        return 0;
    }
    let argument = |index: usize| ctx.arg::<u64>(index).unwrap_or(0);
    let args = [
        argument(0),
        argument(1),
        argument(2),
        argument(3),
        argument(4),
        argument(5),
    ];
    let top: [u64; 4] = user_words(stack_pointer).unwrap_or_default();
    let described = cookie.description.map(|described| {
        let address = match described.argument {
            0 => args[0],
            1 => args[1],
            _ => args[2],
        };
        let [first, second, third, fourth, fifth, ..] = user_bytes(address, described.bytes);
        [first, second, third, fourth, fifth]
    });
    let call = PendingCall {
        stack_pointer,
        record: CudaRecord {
            kind: record::CUDA_CALL,
            function: cookie.function,
            stack_state: stack_state::NONE,
            wants_stack: u8::from(cookie.wants_stack),
            tid: caller.tid,
            tgid: caller.tgid,
            // SAFETY: takes no arguments.
            entered_ns: unsafe { bpf_ktime_get_ns() },
            args,
            caller: top[0],
            on_stack: [top[1], top[2], top[3]],
            description: described.unwrap_or_default(),
            ..CudaRecord::default()
        },
    };
    if CALLS.insert(&caller.tid, &call, 0).is_err() {
        lose(counter::EVENTS_LOST);
    }
    0
}

/// The call into CUDA that the thread is in already.
///
/// A call that was left by a jump (`longjmp`, an exception) never returns; it must not hide those
/// that follow. One that is still going on lies above on the stack, and its return address has
/// been replaced by the kernel with that of its trampoline, which begins a page
/// (`get_trampoline_vaddr`, kernel/events/uprobes.c).
#[inline(always)]
fn outer_call(caller: Caller, stack_pointer: u64) -> Option<*mut PendingCall> {
    const IN_PAGE: u64 = 4095;
    let call = CALLS.get_ptr_mut(&caller.tid)?;
    // SAFETY: a map value; only this thread uses it.
    let outer = unsafe { (*call).stack_pointer };
    if outer < stack_pointer {
        return None;
    }
    let returns_to = user_word(outer)?;
    (returns_to != 0 && returns_to & IN_PAGE == 0).then_some(call)
}

/// A function of CUDA returns.
#[uretprobe]
pub fn cuda_return(ctx: RetProbeContext) -> u32 {
    let caller = Caller::current();
    // SAFETY: the context of a uprobe holds the registers.
    let (stack_pointer, frame_pointer) = unsafe { ((*ctx.regs).rsp, (*ctx.regs).rbp) };
    let Some(call) = CALLS.get_ptr_mut(&caller.tid) else {
        return 0;
    };
    // SAFETY: a map value; only this thread uses it.
    let call = unsafe { &mut *call };
    // The return address is off the stack by now.
    if call.stack_pointer.wrapping_add(8) != stack_pointer {
        return 0;
    }
    // Both APIs answer with an int that is 0 for success.
    if ctx.ret::<u64>() as u32 == 0 {
        complete(&mut call.record);
        tell(caller, &mut call.record, stack_pointer, frame_pointer);
    }
    let _ = CALLS.remove(&caller.tid);
    0
}

/// Reads what the call has written.
#[inline(always)]
fn complete(call: &mut CudaRecord) {
    // SAFETY: takes no arguments.
    call.time_ns = unsafe { bpf_ktime_get_ns() };
    let out = call.args[0];
    // Most functions write one word; what lies behind it is of no meaning then, and may not be there.
    call.out = match user_words(out) {
        Some(words) => words,
        None => [user_word(out).unwrap_or(0), 0, 0, 0],
    };
    call.second_out = user_word(call.args[1]).unwrap_or(0);
}

/// Sends the call, with the Python stack or, where the thread runs no Python, a copy of its stack.
#[inline(always)]
fn tell(caller: Caller, call: &mut CudaRecord, stack_pointer: u64, frame_pointer: u64) {
    if call.wants_stack != 0 {
        // SAFETY: user space changes an entry only before its process is probed.
        let Some(process) = (unsafe { PROCESSES.get(&caller.tgid) }) else {
            return;
        };
        let stack = walk(process, caller, stack_pointer);
        call.stack_state = stack.state;
        call.stack = stack.hash;
        let runs_python = stack.state == stack_state::PYTHON || stack.state == stack_state::LOST;
        let works_for_python = stack.state == stack_state::NO_FRAMES && stack.hash != 0;
        if !runs_python && !works_for_python && tell_with_stack(call, stack_pointer, frame_pointer)
        {
            return;
        }
    }
    // SAFETY: the bytes of a map value.
    let bytes = unsafe {
        core::slice::from_raw_parts((&raw const *call).cast::<u8>(), size_of::<CudaRecord>())
    };
    if RECORDS
        .output::<[u8]>(bytes, u64::from(BPF_RB_NO_WAKEUP))
        .is_err()
    {
        lose(counter::EVENTS_LOST);
    }
}

/// Sends the call with a copy of the stack, if there is room for one.
#[inline(always)]
fn tell_with_stack(call: &mut CudaRecord, stack_pointer: u64, frame_pointer: u64) -> bool {
    let Some(mut entry) = stack::reserve::<CudaStackRecord>() else {
        lose(counter::STACKS_LOST);
        return false;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: the entry is as large as the record, both parts of which are written.
    unsafe {
        call.kind = record::CUDA_CALL_WITH_STACK;
        (&raw mut (*record).call).write(*call);
        stack::copy(&raw mut (*record).thread, stack_pointer, frame_pointer);
    }
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    true
}
