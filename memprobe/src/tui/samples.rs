//! Snapshots for the tests of the screen.

use std::sync::Arc;

use super::SourceText;
use crate::attribution::tables::{
    self, Breakdown, BreakdownKey, BreakdownRow, DeviceBreakdown, Holding, SegmentBlock,
    SegmentBlockState, SegmentMap, SegmentRow,
};
use crate::event::{
    Address, Bytes, Context, CudaMemoryKind, DeviceIdentity, DeviceIndex, Frame, Gpu,
    IdentitySource, Losses, NoStack, Pool, PoolId, PoolOwner, PoolSize, PrivatePoolState, Stack,
    StackKind, Tgid, TimeNs, Totals,
};
use crate::event::{ProbeStatus, Target};
use crate::ledger::snapshot::{
    BaselineGroup, BaselineKind, BaselineOwner, BeforeAttach, CudaKindTotal, CudaSnapshot,
    DeviceSnapshot, DeviceTimeline, GrowthRate, Health, LineRow, OutsideRow, ReplayMark,
    ReplayMoment, ReplayUnit, Site, Snapshot, SoftwareLayer, StackRow, TargetState, Timeline,
    TotalsPoint,
};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

pub(super) fn frame(file: &str, line: u32, function: &str) -> Frame {
    Frame {
        file: file.into(),
        line,
        function: function.into(),
        library: None,
    }
}

fn model(line: u32, function: &str) -> Frame {
    frame("/home/ada/gpt/model.py", line, function)
}

fn train(line: u32, function: &str) -> Frame {
    frame("/home/ada/gpt/train.py", line, function)
}

pub(super) fn stack(frames: &[Frame], mib: u64, blocks: u64) -> StackRow {
    let kind = StackKind::Python;
    StackRow {
        stack: Arc::new(Stack {
            kind,
            frames: frames.to_vec(),
            truncated: false,
            context: Context::default(),
        }),
        live: Bytes(mib * MIB),
        peak: Bytes((mib + 64) * MIB),
        live_blocks: blocks,
        allocs: blocks * 10,
    }
}

pub(super) fn line(site: Site, per_second: f64, stacks: Vec<StackRow>) -> LineRow {
    let sum = |number: fn(&StackRow) -> u64| stacks.iter().map(number).sum();
    LineRow {
        site,
        live: Bytes(sum(|row| row.live.0)),
        peak: Bytes(sum(|row| row.peak.0)),
        live_blocks: sum(|row| row.live_blocks),
        allocs: sum(|row| row.allocs),
        alloc_bytes: Bytes(sum(|row| row.live.0) * 10),
        allocs_per_second: per_second,
        growth: None,
        stacks,
    }
}

/// Returns the lines of a small GPT: one with a tree of callers, one that calls into PyTorch, the backward
/// pass, a thread without a line, one without live memory.
pub(super) fn lines() -> Vec<LineRow> {
    let block = |line| model(line, "forward");
    let step = [
        block(131),
        train(27, "step"),
        train(61, "main"),
        train(70, "<module>"),
    ];
    let eval = [
        block(131),
        train(35, "evaluate"),
        train(64, "main"),
        train(70, "<module>"),
    ];
    let from = |inner: &[Frame], outer: &[Frame]| [inner, outer].concat();
    let mlp = block(88);
    let zeros = train(29, "step");
    let adam = |line, function| {
        frame(
            "/usr/lib/python3.12/site-packages/torch/optim/adamw.py",
            line,
            function,
        )
    };
    let moments = [
        adam(412, "_init_group"),
        adam(230, "step"),
        zeros.clone(),
        train(61, "main"),
        train(70, "<module>"),
    ];
    let loss = train(28, "step");
    let forward = train(70, "<module>");
    vec![
        line(
            Site::Line(mlp.clone()),
            96.0,
            vec![
                stack(&from(&[mlp.clone(), block(41)], &step), 3994, 48),
                stack(&from(&[mlp.clone(), block(44)], &step), 225, 36),
                stack(&from(&[mlp.clone(), block(41)], &eval), 12, 12),
            ],
        ),
        line(Site::Line(zeros), 0.0, vec![stack(&moments, 2058, 290)]),
        line(
            Site::Backward(loss.clone()),
            1182.4,
            vec![stack(&[loss, train(61, "main")], 640, 17)],
        ),
        line(
            Site::Line(model(52, "__init__")),
            0.2,
            vec![stack(&[model(52, "__init__"), forward], 1500, 148)],
        ),
        line(
            Site::NoLine {
                thread: "pt_data_pin".into(),
                reason: NoStack::NoPythonThread.as_str(),
            },
            4.0,
            vec![StackRow {
                stack: Arc::new(Stack {
                    kind: StackKind::Unknown {
                        thread: "pt_data_pin".into(),
                        reason: NoStack::NoPythonThread,
                    },
                    frames: Vec::new(),
                    truncated: false,
                    context: Context::default(),
                }),
                ..stack(&[], 32, 2)
            }],
        ),
        line(
            Site::Line(model(97, "forward")),
            12.0,
            vec![stack(&[model(97, "forward")], 0, 0)],
        ),
    ]
}

/// Returns timelines of these totals, a second each, with a step of an optimizer every 40 seconds.
fn timeline(totals: Vec<Totals>) -> DeviceTimeline {
    let point = |(at, totals): (usize, Totals)| {
        let mut point = TotalsPoint::at(totals);
        point.marks.steps = u32::from(at % 40 == 39);
        point
    };
    let points: Vec<TotalsPoint> = totals.into_iter().enumerate().map(point).collect();
    // The last minute repeats; the device was used for less than ten minutes.
    let recent = |step, number: usize| Timeline {
        start: TimeNs(0),
        step,
        points: (0..number).map(|at| points[120 + at % 60]).collect(),
    };
    DeviceTimeline {
        recent: [
            recent(SECOND / 40, 400),
            recent(SECOND / 20 * 3, 400),
            recent(SECOND / 2 * 3, 200),
        ],
        all: Timeline {
            start: TimeNs(0),
            step: SECOND,
            points,
        },
    }
}

pub(super) fn device(
    index: u8,
    lines: Vec<LineRow>,
    before_mib: u64,
    unaccounted: i64,
) -> DeviceSnapshot {
    let before_attach = Bytes(before_mib * MIB);
    let live: u64 = lines.iter().map(|line| line.live.0).sum();
    let allocated = Bytes(
        (live + before_attach.0)
            .checked_add_signed(unaccounted)
            .unwrap(),
    );
    let totals = Totals {
        allocated,
        reserved: Bytes(allocated.0 / 10 * 13),
    };
    let peak = Totals {
        allocated: Bytes(allocated.0 / 10 * 12),
        reserved: totals.reserved,
    };
    // Rises, then oscillates with each iteration, and ends with the current totals.
    let wave = |at: u64| {
        let part = 120 - (at * 7 % 60).abs_diff(30);
        let allocated = Bytes((peak.allocated.0 / 120 * part).min(peak.allocated.0 / 90 * at));
        Totals {
            allocated,
            reserved: Bytes(totals.reserved.0 / 60 * at.min(60)).max(allocated),
        }
    };
    let points: Vec<Totals> = (0..199).map(wave).chain([totals]).collect();
    DeviceSnapshot {
        index: DeviceIndex(index),
        totals,
        peak,
        before_attach: BeforeAttach {
            live: before_attach,
            peak: before_attach,
            unknown: before_attach,
            ..BeforeAttach::default()
        },
        unaccounted,
        live_blocks: lines.iter().map(|line| line.live_blocks).sum(),
        ooms: 0,
        growth: None,
        iterations_per_minute: None,
        lines,
        timeline: timeline(points),
    }
}

pub(super) fn probes() -> Vec<ProbeStatus> {
    let probe = |function: &str, library: &str, offset, emulated| ProbeStatus {
        function: function.to_owned(),
        library: format!("/usr/lib/python3.12/site-packages/{library}"),
        offset,
        emulated,
    };
    let (c10, cudart) = (
        "torch/lib/libc10_cuda.so",
        "nvidia/cuda_runtime/lib/libcudart.so.13",
    );
    vec![
        probe(
            "c10::reportMemoryUsageToProfiler",
            "torch/lib/libc10.so",
            7,
            true,
        ),
        probe(
            "c10::reportOutOfMemoryToProfiler",
            "torch/lib/libc10.so",
            9,
            true,
        ),
        probe("cudaMalloc", cudart, 4, true),
        probe("cudaFree", c10, 0, true),
    ]
}

/// Returns a training script in the middle of its run.
/// A process whose objects were read: its memory from before attach is labelled, but for a part.
pub(super) fn labeled() -> Snapshot {
    let group = |kind, name: &str, class: Option<&str>, mib: u64, blocks| BaselineGroup {
        kind,
        owner: BaselineOwner {
            name: Some(name.into()),
            class: class.map(Into::into),
        },
        live: Bytes(mib * MIB),
        blocks,
    };
    let mut snapshot = normal();
    let before = &mut snapshot.devices[0].before_attach;
    before.unknown = Bytes(0);
    before.known_blocks = 312;
    before.labeled = Some(TimeNs(101 * SECOND));
    before.groups = vec![
        group(
            BaselineKind::OptimizerState,
            "model.layers.0",
            None,
            320,
            24,
        ),
        group(
            BaselineKind::OptimizerState,
            "model.layers.1",
            None,
            320,
            24,
        ),
        group(
            BaselineKind::Retained,
            "serve.py:61 main() -> cache['kv'][*]",
            Some("list"),
            200,
            40,
        ),
        group(BaselineKind::Parameter, "model.layers.0", None, 160, 12),
    ];
    snapshot
}

pub(super) fn normal() -> Snapshot {
    Snapshot {
        target: Target {
            tgid: Some(Tgid(1234)),
            command: "python train.py --epochs 10 --batch 64".to_owned(),
            python: Some("3.12.1".to_owned()),
            torch: Some("2.15.0+cu132".to_owned()),
            ..Target::default()
        },
        started: TimeNs(100 * SECOND),
        now: TimeNs(851 * SECOND),
        devices: vec![device(0, lines(), 1126, 0)],
        cuda: CudaSnapshot::default(),
        health: Health {
            budget: None,
            events: 3_292_114,
            events_per_second: 1204.4,
            losses: Losses::default(),
            state: TargetState::Running,
            stopped: None,
            probes: probes(),
            capture: crate::event::CaptureOptions::default(),
            missing: Vec::new(),
            disagreements: 0,
            unread_at_attach: None,
        },
    }
}

/// Returns a moment of a recording, compared with an earlier one in which a line held less.
pub(super) fn replay() -> Snapshot {
    let mut before = normal();
    for line in &mut before.devices[0].lines[..2] {
        line.live = Bytes(line.live.0 / 2);
    }
    let mut snapshot = normal();
    let all = &snapshot.devices[0].timeline.all;
    let at = |eighths| TimeNs(all.start.0 + all.length() / 8 * eighths);
    let (start, mark, time, end) = (at(0), at(2), at(6), at(8));
    (snapshot.started, snapshot.now) = (start, time);
    snapshot.health.state = TargetState::Replay(Box::new(ReplayMoment {
        start,
        end,
        time,
        events: 1_292_114,
        all_events: 3_292_114,
        iteration: Some(40),
        all_iterations: 97,
        percent_read: None,
        unit: ReplayUnit::Iteration,
        mark: Some(Arc::new(ReplayMark {
            time: mark,
            iteration: Some(13),
            snapshot: before,
        })),
    }));
    snapshot
}

/// Returns a training script whose GPU is nearly full, and one of whose lines grows.
pub(super) fn training() -> Snapshot {
    let mut snapshot = normal();
    snapshot.target.command =
        "/opt/venv/bin/python -u /home/ada/gpt/train.py --seconds 600".to_owned();
    snapshot.target.gpus = vec![DeviceIdentity {
        device: DeviceIndex(0),
        gpu: Some(Gpu {
            index: Some(0),
            uuid: None,
            pci_bus_id: None,
            mig: None,
            memory: Some(Bytes(16 << 30)),
            source: IdentitySource::Properties,
        }),
        unknown: None,
    }];
    let grows = |mib: i64| {
        Some(GrowthRate {
            per_minute: mib << 20,
            is_steady: mib > 0,
        })
    };
    let device = &mut snapshot.devices[0];
    device.growth = grows(48);
    for (line, mib) in device.lines.iter_mut().zip([0, 0, 0, 48, 0, 0]) {
        line.growth = grows(mib);
    }
    device.timeline.all.points[150].marks.ooms = 1;
    device.timeline.recent[1].points[170].marks.readings = 1;
    device.ooms = 1;
    snapshot
}

/// Returns rows of a breakdown: chosen ones for threads, else those of a sample program.
pub(super) fn breakdown(breakdown: Breakdown) -> Arc<Vec<DeviceBreakdown>> {
    if breakdown == Breakdown::Thread {
        threads()
    } else {
        tables::samples::breakdown(breakdown)
    }
}

/// Returns threads that allocated: Python's own, autograd's, and one without a name.
fn threads() -> Arc<Vec<DeviceBreakdown>> {
    let row = |tid: u64, name: Option<&str>, live: u64| BreakdownRow {
        key: BreakdownKey::Key(tid),
        name: name.map(Into::into),
        holding: Holding {
            live: Bytes(live * MIB),
            live_blocks: live / 2,
            at_peak: Bytes(2 * live * MIB),
            at_peak_blocks: live,
            peak: Some(Bytes(3 * live * MIB)),
            allocs: 10 * live,
            alloc_bytes: Bytes(0),
        },
    };
    let totals = |allocated: u64| Totals {
        allocated: Bytes(allocated * MIB),
        reserved: Bytes(256 * MIB),
    };
    Arc::new(vec![DeviceBreakdown {
        index: DeviceIndex(0),
        totals: totals(100),
        peak: totals(190),
        before_attach: [Bytes(20 * MIB), Bytes(30 * MIB)],
        unaccounted: [0; 2],
        live_blocks: 40,
        rows: vec![
            row(1234, Some("python"), 50),
            row(1300, Some("pt_autograd_0"), 28),
            row(1301, None, 2),
        ],
    }])
}

/// Returns segments of three pools: fragmented, of a CUDA graph, expandable; one with a block that awaits an event.
pub(super) fn segments() -> Arc<Vec<SegmentMap>> {
    use SegmentBlockState::{AwaitingEvent, Cached, InactiveSplit, Live};
    let row = |addr: u64, pool, stream, parts: &[(SegmentBlockState, u64)]| {
        let mut next = addr;
        let pieces = parts.iter().map(|(state, mib)| {
            let size = mib * MIB;
            next += size;
            SegmentBlock {
                addr: Address(next - size),
                size: Bytes(size),
                state: *state,
            }
        });
        let pieces: Vec<SegmentBlock> = pieces.collect();
        SegmentRow {
            addr: Address(addr),
            size: Bytes(next - addr),
            pool: Some(pool),
            stream: Some(stream),
            is_expandable: false,
            returnable: match parts {
                [(Cached, mib)] => Bytes(mib * MIB),
                _ => Bytes(0),
            },
            pieces,
        }
    };
    let owner = PoolOwner::Private {
        id: PoolId(1, 0),
        state: PrivatePoolState::InUse,
    };
    let pool = |owner, size| Pool { owner, size };
    let large = pool(PoolOwner::Default, PoolSize::Large);
    let fragmented = [
        (Live, 10),
        (InactiveSplit, 6),
        (Live, 20),
        (AwaitingEvent, 4),
        (InactiveSplit, 24),
    ];
    Arc::new(vec![SegmentMap {
        index: DeviceIndex(0),
        totals: Totals {
            allocated: Bytes(50 * MIB),
            reserved: Bytes(126 * MIB),
        },
        read: Some(TimeNs(1)),
        unread: None,
        requested: Some(Bytes(49 * MIB)),
        active: Some(Bytes(54 * MIB)),
        unplaced: 0,
        outside: Bytes(0),
        segments: vec![
            row(0x7f00_0000_0000, large, 0, &fragmented),
            row(0x7f00_0800_0000, large, 0, &[(Cached, 20)]),
            row(
                0x7f00_1000_0000,
                pool(PoolOwner::Default, PoolSize::Small),
                0,
                &[(Live, 1), (InactiveSplit, 1)],
            ),
            row(
                0x7f00_2000_0000,
                pool(owner, PoolSize::Large),
                0x55d0_1040,
                &[(Live, 19), (InactiveSplit, 21)],
            ),
        ],
    }])
}

/// Returns a process in which libraries hold memory outside the caching allocator.
pub(super) fn with_memory_outside() -> Snapshot {
    let row = |library: &str, space, device: Option<u8>, live: u64, line: LineRow| OutsideRow {
        library: library.into(),
        space,
        device: device.map(DeviceIndex),
        live: Bytes(live),
        peak: Bytes(live),
        live_blocks: 3,
        allocs: 4,
        lines: vec![line],
    };
    let lines = lines();
    let rows = vec![
        row(
            "/v/nvidia/nccl/lib/libnccl.so.2",
            CudaMemoryKind::Device,
            Some(0),
            3 << 30,
            lines[0].clone(),
        ),
        row(
            "/v/torch/lib/libtorch_cuda.so",
            CudaMemoryKind::Pinned,
            None,
            96 << 20,
            lines[1].clone(),
        ),
        row(
            "/opt/plan/libplan\u{1b}[2J.so",
            CudaMemoryKind::Virtual,
            None,
            2 << 20,
            lines[2].clone(),
        ),
    ];
    Snapshot {
        cuda: CudaSnapshot {
            layer: SoftwareLayer::Allocator,
            kinds: rows
                .iter()
                .map(|row| CudaKindTotal {
                    kind: row.space,
                    live: row.live,
                    peak: row.peak,
                    live_blocks: row.live_blocks,
                    allocs: row.allocs,
                })
                .collect(),
            rows,
        },
        ..normal()
    }
}

/// Returns a process without events since attach.
pub(super) fn empty() -> Snapshot {
    let mut snapshot = normal();
    snapshot.devices.clear();
    snapshot.health.events = 0;
    snapshot.health.events_per_second = 0.0;
    snapshot
}

/// Returns a process that has not yet imported torch.
pub(super) fn waiting() -> Snapshot {
    let mut snapshot = empty();
    snapshot.target.torch = None;
    snapshot.health.state = TargetState::Waiting("torch to be imported".to_owned());
    snapshot.health.probes.clear();
    snapshot
}

/// Returns a process with losses, out-of-memory errors and a single-stepped probe.
pub(super) fn lossy() -> Snapshot {
    let mut snapshot = normal();
    snapshot.devices = vec![device(0, lines(), 1126, -300 * MIB as i64)];
    snapshot.devices[0].ooms = 2;
    snapshot.health.losses = Losses {
        events: 1204,
        stacks: 3,
        malformed: 1,
        uses: 12,
    };
    snapshot.health.probes[1].emulated = false;
    snapshot
}

/// Returns a process on a kernel that lacks a feature.
pub(super) fn lacking() -> Snapshot {
    let mut snapshot = normal();
    snapshot.health.missing = vec![
        "the verifier of this kernel cannot follow how modules are found, so which module asked for memory is not told"
            .to_owned(),
    ];
    snapshot
}

/// Returns a process that has ended.
pub(super) fn gone() -> Snapshot {
    let mut snapshot = normal();
    snapshot.health.state = TargetState::Exited;
    snapshot.health.events_per_second = 0.0;
    snapshot
}

/// Returns three devices, the last with one line.
pub(super) fn several_devices() -> Snapshot {
    let mut snapshot = normal();
    snapshot.devices.push(device(1, lines().split_off(1), 0, 0));
    snapshot
        .devices
        .push(device(2, lines().split_off(5), 700, 0));
    snapshot
}

/// Returns a target whose texts and numbers try to break the screen.
pub(super) fn hostile() -> Snapshot {
    let mut snapshot = normal();
    let evil = "\x1b[2J\x1b]0;owned\x07\r\n\t\u{202e}\u{200b}模型\u{301}\u{301}\u{301}\u{301}🦀"
        .repeat(40);
    let own = frame(&evil, u32::MAX, &evil);
    let stacks = vec![stack(
        &[own.clone(), frame("", 0, "")],
        u64::MAX >> 24,
        u64::MAX >> 8,
    )];
    let mut row = line(Site::Line(own), f64::INFINITY, stacks);
    row.stacks.push(stack(&[frame("/", 0, "\0")], 0, 0));
    let mut lines = vec![row];
    lines.push(line(
        Site::NoLine {
            thread: evil.as_str().into(),
            reason: "stack lost",
        },
        f64::NAN,
        Vec::new(),
    ));
    snapshot.devices = vec![device(255, lines, 1, -5)];
    let largest = Totals {
        allocated: Bytes(u64::MAX),
        reserved: Bytes(u64::MAX),
    };
    let timeline = &mut snapshot.devices[0].timeline;
    for timeline in std::iter::once(&mut timeline.all).chain(&mut timeline.recent) {
        timeline.points.push(TotalsPoint::at(largest));
    }
    snapshot.target.command = evil.clone();
    snapshot.target.python = Some(evil.clone());
    snapshot.target.torch = Some(evil.clone());
    snapshot.started = TimeNs(u64::MAX);
    snapshot.now = TimeNs(0);
    snapshot.health.probes[0].function = evil.clone();
    snapshot.health.probes[0].library = evil.clone();
    snapshot.health.losses.events = u64::MAX;
    snapshot.health.events_per_second = f64::NEG_INFINITY;
    snapshot
}

/// Source files of the samples.
pub(super) struct Sources;

impl SourceText for Sources {
    fn line(&mut self, file: &str, line: u32) -> Option<String> {
        let text = match (file.rsplit('/').next()?, line) {
            ("model.py", 41) => "        x = x + self.mlp(self.ln_1(x))",
            ("model.py", 44) => "        return self.mlp(x)",
            ("model.py", 52) => "        self.wte = nn.Embedding(vocab, width)",
            ("model.py", 88) => "\t\th = self.gelu(self.c_fc(x))",
            ("model.py", 97) => "        att = F.softmax(att, dim=-1)",
            ("model.py", 131) => "        x = block(x)",
            ("train.py", 27) => "    logits = model(batch)",
            ("train.py", 28) => "    loss.backward()",
            ("train.py", 29) => "    optimizer.step()",
            ("train.py", 61) => "            step(model, batch)",
            ("adamw.py", 412) => "                state[\"exp_avg\"] = torch.zeros_like(p)",
            ("model.py" | "train.py", _) => "    # \x1b[31mmore\x1b[0m",
            _ => return None,
        };
        Some(text.to_owned())
    }

    fn around(&mut self, file: &str, line: u32, radius: u32) -> Option<Vec<(u32, String)>> {
        let lines = line.saturating_sub(radius).max(1)..=line.saturating_add(radius);
        lines
            .map(|line| Some((line, self.line(file, line)?)))
            .collect()
    }

    fn edit(&mut self, file: &str, line: u32) -> Result<(), String> {
        Err(format!("{file}:{line} cannot be opened here"))
    }
}
