//! Benchmarks of an event's cost in user space: from ring buffer bytes to the ledger, to a file, or
//! to nothing. CPU time of all threads, which is what the target's processors lose.
//!
//! `cargo bench -p memprobe --bench user_side`. Goal: 4,000,000 events a second of CPU time for a compact recording.

use std::hint::black_box;
use std::io;
use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BatchSize, Criterion, Throughput};
use rustix::time::{ClockId, clock_gettime};

use memprobe::decode::decode;
use memprobe::event::Target;
use memprobe::event::{Event, Tgid, TimeNs};
use memprobe::ledger::Ledger;
use memprobe::ledger::snapshot::Grouping;
use memprobe::process::memory::{Cause, ReadMemory, Unreadable};
use memprobe::python::CodeCache;
use memprobe::python::cache::Limits;
use memprobe::python::layout::PythonLayout;
use memprobe::recording::write::compact::CompactWriter;
use memprobe::recording::write::trace_event::TraceWriter;
use memprobe::recording::{EndReason, Header};
use memprobe::symbolize::{PriorCudaUse, Symbolizer};
use memprobe_common::{MAX_FRAMES, grad_mode, record, stack_state};

/// CPU time of the threads of this process, those that have ended included.
struct CpuTime;

impl CpuTime {
    fn now() -> Duration {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::try_from(time).expect("CPU time is positive")
    }
}

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        Self::now()
    }

    fn end(&self, start: Duration) -> Duration {
        Self::now() - start
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, time: &Duration) -> f64 {
        WallTime.to_f64(time)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// Distinct stacks, each of [`FRAMES`] frames.
const STACKS: u64 = 300;

const FRAMES: u64 = 24;

/// Events per measurement: a thousand steps of 64 allocations and 64 frees.
const EVENTS: u64 = 128_000;

/// A process whose memory cannot be read, so every code object is unreadable. This does not affect
/// the result: a stack is resolved once, however many events name it.
struct NoMemory;

impl ReadMemory for NoMemory {
    fn read(&self, address: u64, _: &mut [u8]) -> Result<(), Unreadable> {
        Err(Unreadable {
            address,
            cause: Cause::NotMapped,
        })
    }
}

/// This process, whose threads have names to read.
fn tgid() -> Tgid {
    Tgid(std::process::id())
}

/// An empty cache for the code objects of Python 3.11.
fn code() -> CodeCache {
    let layout = PythonLayout::of(11).expect("3.11 is known");
    CodeCache::with_limits(*layout, 0x2000, Limits::default())
}

/// Records in the layout of the ring buffer.
struct Records {
    bytes: Vec<Vec<u8>>,
    time: u64,
    allocated: u64,
}

impl Records {
    /// The definitions of all stacks.
    fn stacks() -> Self {
        assert!(FRAMES <= MAX_FRAMES as u64);
        let bytes = (1..=STACKS).map(|hash| {
            let mut bytes = vec![record::STACK, 0, FRAMES as u8, grad_mode::UNKNOWN];
            bytes.extend(tgid().0.to_ne_bytes());
            bytes.extend(hash.to_ne_bytes());
            let module_call = 0u64;
            bytes.extend(module_call.to_ne_bytes());
            for frame in 0..FRAMES {
                bytes.extend((0x7000_0000 + 4096 * (hash * FRAMES + frame)).to_ne_bytes());
                bytes.extend(frame.to_ne_bytes());
            }
            bytes
        });
        Self {
            bytes: bytes.collect(),
            time: 0,
            allocated: 0,
        }
    }

    /// Steps of a training loop: 64 allocations from different stacks, then their frees.
    fn steps() -> Self {
        let mut records = Self {
            bytes: Vec::new(),
            time: 0,
            allocated: 0,
        };
        let mut step = 0;
        while (records.bytes.len() as u64) < EVENTS {
            for block in 0..64 {
                records.block(
                    block,
                    512 * (1 + block as i64 % 8),
                    1 + (step * 7 + block) % STACKS,
                );
            }
            for block in 0..64 {
                records.block(block, -512 * (1 + block as i64 % 8), 0);
            }
            step += 1;
        }
        records
    }

    fn block(&mut self, block: u64, size: i64, stack: u64) {
        self.time += 3_000;
        self.allocated = self.allocated.wrapping_add_signed(size);
        let state = if stack == 0 {
            stack_state::NONE
        } else {
            stack_state::PYTHON
        };
        let mut bytes = vec![record::BLOCK, 0, state, 0];
        bytes.extend(tgid().0.to_ne_bytes());
        bytes.extend(tgid().0.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        let address = 0x7f00_0000_0000 + (block << 12);
        let words = [
            self.time,
            address,
            size.cast_unsigned(),
            self.allocated,
            1 << 30,
            stack,
        ];
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        self.bytes.push(bytes);
    }
}

/// A symbolizer that already knows every stack.
fn symbolizer(mut sink: impl FnMut(&Event)) -> Symbolizer<NoMemory> {
    let mut symbolizer = Symbolizer::new(tgid(), NoMemory, Some(code()), PriorCudaUse::Unknown);
    feed(&mut symbolizer, &Records::stacks(), &mut sink);
    symbolizer
}

/// Records handled at once, about as many as one poll of the ring buffer returns.
const BATCH: usize = 512;

fn feed(symbolizer: &mut Symbolizer<NoMemory>, records: &Records, mut sink: impl FnMut(&Event)) {
    for batch in records.bytes.chunks(BATCH) {
        for bytes in batch {
            symbolizer.push_known(decode(bytes).expect("records are well-formed"));
        }
        settle(symbolizer, &mut sink);
    }
    // Flush the events that waited for later records.
    settle(symbolizer, &mut sink);
    assert!(!symbolizer.is_unsettled(), "every record became an event");
}

fn settle(symbolizer: &mut Symbolizer<NoMemory>, sink: &mut impl FnMut(&Event)) {
    symbolizer.settle();
    while let Some(event) = symbolizer.pop() {
        sink(&event);
    }
}

fn header() -> Header {
    Header {
        dropped: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        start: TimeNs(0),
        wall_start_ms: None,
        boot_id: None,
        target: Target::default(),
        probes: Vec::new(),
        from_live_screen: false,
        dump: None,
        history: None,
    }
}

fn bench(criterion: &mut Criterion<CpuTime>) {
    let steps = Records::steps();
    let mut group = criterion.benchmark_group("user side");
    group.throughput(Throughput::Elements(steps.bytes.len() as u64));
    group.bench_function("decode and symbolize", |bencher| {
        let mut symbolizer = symbolizer(|_| {});
        bencher.iter(|| {
            feed(&mut symbolizer, &steps, |event| {
                black_box(event);
            })
        });
    });
    group.bench_function("decode, symbolize and keep the ledger", |bencher| {
        bencher.iter_batched_ref(
            || {
                let mut ledger = Ledger::new(Target::default(), TimeNs(0));
                let symbolizer = symbolizer(|event| {
                    ledger.apply(event);
                });
                (symbolizer, ledger)
            },
            |(symbolizer, ledger)| {
                feed(symbolizer, &steps, |event| {
                    black_box(ledger.apply(event));
                })
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("decode, symbolize and write the trace", |bencher| {
        bencher.iter_batched_ref(
            || {
                let mut writer = TraceWriter::new(io::sink(), "nowhere", &header(), Grouping::User)
                    .expect("nothing can fail");
                let symbolizer = symbolizer(|event| writer.event(event).expect("nothing can fail"));
                (symbolizer, writer)
            },
            |(symbolizer, writer)| {
                feed(symbolizer, &steps, |event| {
                    writer.event(event).expect("nothing can fail")
                });
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function(
        "decode, symbolize and write a compact recording",
        |bencher| {
            bencher.iter_batched(
                || {
                    let mut writer = CompactWriter::new(io::sink(), "nowhere", &header())
                        .expect("nothing can fail");
                    let symbolizer =
                        symbolizer(|event| writer.event(event).expect("nothing can fail"));
                    (symbolizer, writer)
                },
                |(mut symbolizer, mut writer)| {
                    feed(&mut symbolizer, &steps, |event| {
                        writer.event(event).expect("nothing can fail")
                    });
                    // Its thread has compressed and followed all events then.
                    let out = writer.finish(EndReason::TargetExited);
                    (symbolizer, out.expect("nothing can fail"))
                },
                BatchSize::PerIteration,
            );
        },
    );
    group.finish();
}

fn main() {
    let criterion = Criterion::default().with_measurement(CpuTime);
    let mut criterion = criterion.configure_from_args();
    bench(&mut criterion);
    criterion.final_summary();
}
