//! CUDA's functions that manage memory, of libcudart and of libcuda: one program for all entries
//! and one for all returns, told apart by the cookies of their probes.
//!
//! These functions call each other: the runtime calls the driver, and its own functions too. Only the outermost
//! call of an allocation is sent, and only if it succeeds or finds no memory. User space knows the meaning of the
//! arguments.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use memprobe_common::{CudaCookie, CudaRecord, CudaStackRecord, counter, record, stack_state};

use crate::context::{Caller, Entry as _, Registers as _, now_ns};
use crate::diagnostic;
use crate::maps::{CALLS, FAILURES, RECORDS};
use crate::process::{self, is_watched};
use crate::python::walk;
use crate::read::{user_bytes, user_word, user_words};
use crate::ring::count_loss;
use crate::stack;
use crate::state::{Budget, PendingCall};

/// A function of CUDA is entered.
#[uprobe]
pub fn cuda_enter(ctx: ProbeContext) -> u32 {
    let caller = Caller::current();
    if !is_watched(&caller.tgid) {
        diagnostic::not_watched();
        return 0;
    }
    let stack_pointer = ctx.stack_pointer();
    let cookie = CudaCookie::of_word(ctx.cookie());
    if let Some(outer) = outer_call(caller, stack_pointer) {
        if cookie.sets_context {
            outer.record.context = match ctx.argument(0) {
                0 => CudaRecord::NO_CONTEXT,
                context => context,
            };
        }
        return 0;
    }
    let args = [
        ctx.argument(0),
        ctx.argument(1),
        ctx.argument(2),
        ctx.argument(3),
        ctx.argument(4),
        ctx.argument(5),
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
            entered_ns: now_ns(),
            args,
            caller: top[0],
            on_stack: [top[1], top[2], top[3]],
            description: described.unwrap_or_default(),
            ..CudaRecord::default()
        },
    };
    if CALLS.insert(&caller.tid, &call, 0).is_err() {
        count_loss(counter::EVENTS_LOST);
    }
    0
}

/// The call into CUDA that the thread is in. A program asks once: the reference is the only one.
#[inline(always)]
fn pending_call(caller: Caller) -> Option<&'static mut PendingCall> {
    let call = CALLS.get_ptr_mut(&caller.tid)?;
    // SAFETY: a map value; only this thread uses it.
    Some(unsafe { &mut *call })
}

/// The call into CUDA that the thread is in, if it still goes on.
///
/// A call that was left by a jump (`longjmp`, an exception) never returns; it must not hide those
/// that follow. One that still goes on lies above on the stack, and the kernel has replaced its return address
/// with that of its trampoline, which begins a page (`get_trampoline_vaddr`, kernel/events/uprobes.c).
#[inline(always)]
fn outer_call(caller: Caller, stack_pointer: u64) -> Option<&'static mut PendingCall> {
    const IN_PAGE: u64 = 4095;
    let call = pending_call(caller)?;
    if call.stack_pointer < stack_pointer {
        return None;
    }
    let returns_to = user_word(call.stack_pointer)?;
    (returns_to != 0 && returns_to & IN_PAGE == 0).then_some(call)
}

/// A function of CUDA returns.
#[uretprobe]
#[inline(always)]
pub fn cuda_return(ctx: RetProbeContext) -> u32 {
    let caller = Caller::current();
    let stack_pointer = ctx.stack_pointer();
    let Some(call) = pending_call(caller) else {
        return 0;
    };
    // The return address is off the stack by now.
    if call.stack_pointer.wrapping_add(8) != stack_pointer {
        return 0;
    }
    // Both APIs return an int that is 0 for success.
    let error = ctx.ret::<u64>() as u32;
    let is_sent = if error == 0 {
        complete(&mut call.record);
        true
    } else {
        is_failure(&call.record, error) && spend(caller.tgid)
    };
    if is_sent {
        call.record.time_ns = now_ns();
        call.record.error = error;
        send(caller, &mut call.record, stack_pointer, ctx.frame_pointer());
    }
    let _ = CALLS.remove(&caller.tid);
    0
}

/// Returns whether a call asked for memory and found none.
#[inline(always)]
fn is_failure(call: &CudaRecord, error: u32) -> bool {
    error == CudaRecord::OUT_OF_MEMORY && call.wants_stack != 0
}

/// Returns whether a process may send another failed call in this second, and counts it if not: a program may ask
/// again and again.
#[inline(always)]
fn spend(tgid: u32) -> bool {
    let second = now_ns() / 1_000_000_000;
    let Some(budget) = FAILURES.get_ptr_mut(&tgid) else {
        let first = Budget {
            second,
            requested: 1,
        };
        return FAILURES.insert(&tgid, &first, 0).is_ok();
    };
    // SAFETY: a map value. Other threads of the process may change it in between: a few records more or fewer.
    let requested = unsafe {
        if (*budget).second != second {
            (*budget).second = second;
            (*budget).requested = 0;
        }
        (*budget).requested += 1;
        (*budget).requested
    };
    if requested > CudaRecord::MAX_FAILURES_PER_SECOND {
        count_loss(counter::FAILURES_NOT_SENT);
        return false;
    }
    true
}

/// Reads the results of the call.
#[inline(always)]
fn complete(call: &mut CudaRecord) {
    let out = call.args[0];
    // Most functions write one word. The words behind it mean nothing then, and may not be mapped.
    call.out = match user_words(out) {
        Some(words) => words,
        None => [user_word(out).unwrap_or(0), 0, 0, 0],
    };
    call.second_out = user_word(call.args[1]).unwrap_or(0);
}

/// Sends the call, with the Python stack or, if the thread runs no Python, a copy of its stack.
#[inline(always)]
fn send(caller: Caller, call: &mut CudaRecord, stack_pointer: u64, frame_pointer: u64) {
    if call.wants_stack != 0 {
        let Some(process) = process::find(&caller.tgid) else {
            return;
        };
        let stack = walk(process, caller, stack_pointer);
        call.stack_state = stack.state;
        call.stack = stack.word;
        if !stack.leads_to_python() && send_with_stack(call, stack_pointer, frame_pointer) {
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
        count_loss(counter::EVENTS_LOST);
    }
}

/// Sends the call with a copy of the stack, if the ring buffer has space for one.
#[inline(always)]
fn send_with_stack(call: &mut CudaRecord, stack_pointer: u64, frame_pointer: u64) -> bool {
    let Some(mut entry) = stack::reserve::<CudaStackRecord>() else {
        count_loss(counter::STACKS_LOST);
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
