//! memprobe's eBPF programs: uprobes on PyTorch's caching allocator, on CUDA and on autograd's engine.
//! Each sends user space an event and the Python stack behind it.
//!
//! Files depend on each other in one direction, downwards in this table:
//!
//! | files | contents (a file of programs is one probe family) |
//! |---|---|
//! | `event`, `code`, `cuda`, `lifecycle`, `shape`, `tracepoint` | programs |
//! | `allocator`, `backward`, `cpu`, `mark`, `nodes` | records of `event`'s program, and programs without a stack |
//! | `evaluation` | the node of autograd's graph that a thread evaluates |
//! | `python` | the walk of the interpreter's frames |
//! | `process`, `scratch`, `autograd`, `thread_local` | the state of the calling process and thread |
//! | `ring`, `stack`, `diagnostic` | records and messages on their way to user space |
//! | `maps`, `read`, `context`, `verifier` | the kernel's interface |
//! | `state` | the structures behind the maps |
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod allocator;
mod autograd;
mod backward;
mod code;
mod context;
mod cpu;
mod cuda;
mod diagnostic;
mod evaluation;
mod event;
mod lifecycle;
mod maps;
mod mark;
mod nodes;
mod process;
mod python;
mod read;
mod ring;
mod scratch;
mod shape;
mod stack;
mod state;
mod thread_local;
mod tracepoint;
mod verifier;

/// Never called: the verifier accepts no program that can reach a panic, since this loop has no end.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
