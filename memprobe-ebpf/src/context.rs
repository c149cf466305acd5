//! The moment of a probe: time, registers, calling process and thread.

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_ktime_get_ns};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: takes no arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// The registers of the probed thread.
pub trait Registers {
    /// All of them.
    fn registers(&self) -> &pt_regs;

    /// `rsp`.
    #[inline(always)]
    fn stack_pointer(&self) -> u64 {
        self.registers().rsp
    }

    /// `rbp`.
    #[inline(always)]
    fn frame_pointer(&self) -> u64 {
        self.registers().rbp
    }
}

impl Registers for ProbeContext {
    #[inline(always)]
    fn registers(&self) -> &pt_regs {
        // SAFETY: the kernel passes the registers to a uprobe's program.
        unsafe { &*self.regs }
    }
}

impl Registers for RetProbeContext {
    #[inline(always)]
    fn registers(&self) -> &pt_regs {
        // SAFETY: the kernel passes the registers to a uprobe's program.
        unsafe { &*self.regs }
    }
}

/// Values of a probe at a function's entry.
pub trait Entry: Registers {
    /// Argument `index` of the function, counted from 0, as a whole register: the bits above a narrower type
    /// may hold anything.
    fn argument(&self, index: usize) -> u64;

    /// The cookie that the probe was attached with.
    fn cookie(&self) -> u64;
}

impl Entry for ProbeContext {
    #[inline(always)]
    fn argument(&self, index: usize) -> u64 {
        self.arg(index).unwrap_or(0)
    }

    #[inline(always)]
    fn cookie(&self) -> u64 {
        // SAFETY: the program's own context.
        unsafe { bpf_get_attach_cookie(self.regs.cast()) }
    }
}

/// The calling process and thread.
#[derive(Clone, Copy)]
pub struct Caller {
    /// The process.
    pub tgid: u32,
    /// The thread.
    pub tid: u32,
}

impl Caller {
    /// The process and thread that run now.
    #[inline(always)]
    pub fn current() -> Self {
        let id = bpf_get_current_pid_tgid();
        Self {
            tgid: (id >> 32) as u32,
            tid: id as u32,
        }
    }
}
