//! PyTorch's caching allocator through its own tracepoints (USDT), for builds whose symbols do not
//! tell where it reports to the profiler.
//!
//! They say less: what was asked for and not how much the block takes, and no totals. A tracepoint is
//! a `nop`; where its values are, the library's notes say, and from there the probe's cookie.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::helpers::generated::bpf_get_attach_cookie;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{CudaRecord, Operand, TracepointCookie, counter, record};

use crate::lifecycle::watched;
use crate::maps::RECORDS;
use crate::python::{Walked, walk};
use crate::read::user_word;
use crate::ring::lose;
use crate::thread::Caller;

/// The registers in the order of [`Operand::REGISTERS`].
type Registers = [u64; 16];

/// `pytorch:malloc(ptr, device, size, stream)` or `pytorch:free(ptr)`
/// (c10/cuda/CUDACachingAllocator.cpp@v2.6.0). One that has a size is of a block that was handed out.
#[uprobe]
pub fn allocator_tracepoint(ctx: ProbeContext) -> u32 {
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    // SAFETY: the context of a uprobe holds the registers.
    let (registers, caller_address, cookie) = unsafe {
        let regs = &*ctx.regs;
        let registers: Registers = [
            regs.rax, regs.rbx, regs.rcx, regs.rdx, regs.rsi, regs.rdi, regs.rbp, regs.rsp,
            regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
        ];
        (registers, regs.rip, bpf_get_attach_cookie(ctx.regs.cast()))
    };
    let told = Told {
        caller,
        caller_address,
        cookie,
        registers,
    };
    // Apart from each other, so that verifiers follow the walk once.
    if TracepointCookie::count_of(cookie) <= 1 {
        send(&told, 1, Walked::NONE);
        return 0;
    }
    let stack = walk(process, caller, registers[7]);
    send(&told, TracepointCookie::count_of(cookie), stack);
    0
}

/// What is known where a tracepoint is hit.
struct Told {
    caller: Caller,
    /// Where the tracepoint is.
    caller_address: u64,
    cookie: u64,
    registers: Registers,
}

/// Reads the values of a tracepoint, and sends them.
#[inline(always)]
fn send(told: &Told, values: usize, stack: Walked) {
    // Behind the walk, which older verifiers would follow once for each way in which these can be read. One by one:
    // such kernels let no program read the padding of an array of operands.
    let [addr, device, size] = [0, 1, 2].map(|at| {
        if at < values {
            let operand = TracepointCookie::operand_of(told.cookie, at);
            value(&told.registers, operand)
        } else {
            0
        }
    });
    let Some(mut entry) = RECORDS.reserve::<CudaRecord>(0) else {
        lose(counter::EVENTS_LOST);
        return;
    };
    entry.write(CudaRecord {
        kind: record::CUDA_CALL,
        function: TracepointCookie::function_of(told.cookie),
        stack_state: stack.state,
        wants_stack: u8::from(values > 1),
        tid: told.caller.tid,
        tgid: told.caller.tgid,
        // SAFETY: takes no arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        args: [addr, size, device, 0, 0, 0],
        caller: told.caller_address,
        out: [addr, 0, 0, 0],
        stack: stack.hash,
        ..CudaRecord::default()
    });
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
}

/// The value of an operand, unsigned; 0 where its memory cannot be read.
#[inline(always)]
fn value(registers: &Registers, operand: Operand) -> u64 {
    let register = registers[usize::from(operand.register & 15)];
    let word = match operand.offset {
        None => register,
        // A value at the very end of a page, with less than a word behind it, is none of a stack frame.
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
