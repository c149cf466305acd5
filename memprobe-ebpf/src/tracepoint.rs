//! PyTorch's caching allocator through its own tracepoints (USDT), for builds without symbols of the functions
//! by which it reports to the profiler.
//!
//! They have less: the requested bytes instead of the block's, and no totals. A tracepoint is
//! a `nop`; the library's notes locate its values, and the probe's cookie repeats that.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{CudaRecord, Operand, TracepointCookie, counter, record};

use crate::context::{Caller, Entry as _, Registers as _, now_ns};
use crate::process::watched;
use crate::python::{StackField, walk};
use crate::read::user_word;
use crate::ring::{count_loss, send};

/// The registers in the order of [`Operand::REGISTERS`].
type RegisterValues = [u64; 16];

/// `pytorch:malloc(ptr, device, size, stream)` or `pytorch:free(ptr)`
/// (c10/cuda/CUDACachingAllocator.cpp@v2.6.0). A size means that a block was handed out.
#[uprobe]
#[inline(always)]
pub fn allocator_tracepoint(ctx: ProbeContext) -> u32 {
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    let regs = ctx.registers();
    let hit = Hit {
        caller,
        address: regs.rip,
        cookie: ctx.cookie(),
        registers: [
            regs.rax, regs.rbx, regs.rcx, regs.rdx, regs.rsi, regs.rdi, regs.rbp, regs.rsp,
            regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
        ],
    };
    // Separate calls, so that verifiers follow the walk once.
    if TracepointCookie::count_of(hit.cookie) <= 1 {
        send_values(&hit, 1, StackField::NONE);
        return 0;
    }
    let stack = walk(process, caller, ctx.stack_pointer());
    send_values(&hit, TracepointCookie::count_of(hit.cookie), stack);
    0
}

/// State of the thread at a tracepoint.
struct Hit {
    caller: Caller,
    /// Address of the tracepoint.
    address: u64,
    cookie: u64,
    registers: RegisterValues,
}

/// Reads the values of a tracepoint, and sends them.
#[inline(always)]
fn send_values(hit: &Hit, values: usize, stack: StackField) {
    // After the walk, which older verifiers would follow once for each path through these reads. One by one:
    // such kernels let no program read the padding of an array of operands.
    let [addr, device, size] = [0, 1, 2].map(|at| {
        if at < values {
            let operand = TracepointCookie::operand_of(hit.cookie, at);
            value(&hit.registers, operand)
        } else {
            0
        }
    });
    let record = CudaRecord {
        kind: record::CUDA_CALL,
        function: TracepointCookie::function_of(hit.cookie),
        stack_state: stack.state,
        wants_stack: u8::from(values > 1),
        tid: hit.caller.tid,
        tgid: hit.caller.tgid,
        time_ns: now_ns(),
        args: [addr, size, device, 0, 0, 0],
        caller: hit.address,
        out: [addr, 0, 0, 0],
        stack: stack.word,
        ..CudaRecord::default()
    };
    if !send(record) {
        count_loss(counter::EVENTS_LOST);
    }
}

/// The value of an operand, unsigned; 0 if its memory cannot be read.
#[inline(always)]
fn value(registers: &RegisterValues, operand: Operand) -> u64 {
    let register = registers[usize::from(operand.register & 15)];
    let word = match operand.offset {
        None => register,
        // Reading a whole word is safe: no value of a stack frame lies at the very end of a page.
        Some(offset) => {
            let address = register.wrapping_add(i64::from(offset) as u64);
            user_word(address).unwrap_or(0)
        }
    };
    match operand.width {
        1 => word & 0xff,
        2 => word & 0xffff,
        4 => word & 0xffff_ffff,
        _ => word,
    }
}
