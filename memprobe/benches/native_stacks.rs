//! Benchmarks of native stacks: from the copy of a thread's stack to its functions.
//!
//! `cargo bench -p memprobe --bench native_stacks`.

use std::arch::asm;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt as _;

use criterion::{BatchSize, Criterion};

use memprobe::decode::StackCopy;
use memprobe::event::Tgid;
use memprobe::symbolize::native::NativeCode;
use memprobe_common::STACK_COPY;

/// Calls between this file's functions on the stack, beside those of the benchmark.
const CALLS: u32 = 16;

/// A return address, and the stack of its caller.
struct Captured {
    return_address: u64,
    stack: StackCopy,
}

impl Captured {
    /// Copies the stack of the function that this is inlined into.
    #[inline(always)]
    fn here() -> Self {
        let (address, frame_pointer, return_address): (u64, u64, u64);
        // SAFETY: only the three registers are written, each an output.
        unsafe {
            asm!(
                "mov {}, rsp",
                "mov {}, rbp",
                "lea {}, [rip]",
                out(reg) address,
                out(reg) frame_pointer,
                out(reg) return_address,
                options(nomem, nostack, preserves_flags),
            );
        }
        let mut bytes = vec![0; STACK_COPY];
        let memory = File::open("/proc/self/mem").expect("own memory");
        memory.read_exact_at(&mut bytes, address).expect("a stack");
        let stack = StackCopy {
            address,
            frame_pointer,
            bytes,
        };
        Self {
            return_address,
            stack,
        }
    }

    #[inline(never)]
    fn within(calls: u32) -> Self {
        let captured = match calls {
            0 => Self::here(),
            _ => Self::within(calls - 1),
        };
        black_box(captured)
    }

    /// Copies the stack of a thread that has more above it than a copy takes.
    fn deep() -> Self {
        let above = [0_u8; STACK_COPY];
        black_box(&above);
        let captured = Self::within(CALLS);
        black_box(&above);
        captured
    }
}

fn this_process() -> NativeCode {
    NativeCode::of(Tgid(std::process::id()))
}

fn bench(criterion: &mut Criterion) {
    let captured = Captured::deep();
    let unwind = |code: &mut NativeCode| code.unwind(captured.return_address, &captured.stack);
    let frames = unwind(&mut this_process()).frames.len();
    assert!(frames > CALLS as usize, "{frames} frames");
    let mut group = criterion.benchmark_group(format!("native stacks of {frames} frames"));
    group.bench_function("unwind, with known functions", |bencher| {
        let mut code = this_process();
        bencher.iter(|| unwind(&mut code));
    });
    group.bench_function("unwind the first stack of a process", |bencher| {
        bencher.iter_batched_ref(this_process, unwind, BatchSize::PerIteration);
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    bench(&mut criterion);
    criterion.final_summary();
}
