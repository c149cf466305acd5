//! memprobe's eBPF programs: uprobes on PyTorch's caching allocator, on CUDA and on
//! autograd's engine, each telling user space what happened and on which line of Python.
//!
//! One file a probe family; `lifecycle` says which processes are watched, `python` walks the interpreter's frames, `thread` keeps what is known
//! of a thread between events, `ring` sends.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod allocator;
mod autograd;
mod code;
mod cpu;
mod cuda;
mod lifecycle;
mod maps;
mod mark;
mod nodes;
mod python;
mod read;
mod ring;
mod shape;
mod stack;
mod thread;
mod thread_local;
mod tracepoint;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: the programs have no panicking path that the verifier would accept as reachable.
    unsafe { core::hint::unreachable_unchecked() }
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
