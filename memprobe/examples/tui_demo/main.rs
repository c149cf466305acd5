//! Live screen of a made-up training run, for work on the screen itself:
//! `cargo run -p memprobe --example tui_demo [waiting|empty|devices|lossy|gone|panic]`.
//!
//! No process is measured: every number is made up.

mod attribution;

use std::sync::Arc;
use std::time::{Duration, Instant};

use memprobe::event::{
    Bytes, Context, DeviceIndex, Frame, Losses, Stack, StackKind, Tgid, TimeNs, Totals,
};
use memprobe::event::{ProbeStatus, Target};
use memprobe::ledger::snapshot::{
    BeforeAttach, CudaSnapshot, DeviceSnapshot, DeviceTimeline, Grouping, Health, LineRow, Site,
    Snapshot, StackRow, TargetState, TimeWindow, Timeline, TotalsPoint,
};
use memprobe::tui::{
    self, AttributionQuery, AttributionTables, Command, News, Saving, SourceText, Tensors,
    ThemeChoice,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

const MIB: f64 = 1024.0 * 1024.0;
const STEP: u64 = 100_000_000;
/// Points kept of each timeline.
const MAX_POINTS: usize = 1200;

#[derive(Clone, Copy, PartialEq)]
enum Scene {
    Normal,
    Waiting,
    Empty,
    Devices,
    Lossy,
    Gone,
    Panic,
}

fn scene() -> anyhow::Result<Scene> {
    Ok(match std::env::args().nth(1).as_deref() {
        None => Scene::Normal,
        Some("waiting") => Scene::Waiting,
        Some("empty") => Scene::Empty,
        Some("devices") => Scene::Devices,
        Some("lossy") => Scene::Lossy,
        Some("gone") => Scene::Gone,
        Some("panic") => Scene::Panic,
        Some(other) => anyhow::bail!("no scene is called {other}: see the head of this example"),
    })
}

fn main() -> anyhow::Result<()> {
    let scene = scene()?;
    let mut run = Run::new(scene);
    let (snapshots, receiver) = watch::channel(Arc::new(run.snapshot()));
    let (commands, mut asked) = mpsc::unbounded_channel();
    let (quit, quit_receiver) = watch::channel(false);
    let (tensors, tensors_receiver) = watch::channel(Tensors::default());
    let (reasons, reasons_receiver) = watch::channel(AttributionTables::default());
    let (saving, saving_receiver) = watch::channel(Saving::default());
    let (mut trainer, mut wanted) = (attribution::Trainer::new(), AttributionQuery::Nothing);
    let news = News {
        snapshots: receiver,
        tensors: tensors_receiver,
        reasons: reasons_receiver,
        saving: saving_receiver,
    };
    let screen = std::thread::spawn(move || {
        tui::run(
            news,
            commands,
            Box::new(Script),
            quit_receiver,
            ThemeChoice::Auto,
        )
    });
    let quit = Arc::new(quit);
    quit_on_sigterm(quit.clone())?;
    let begun = Instant::now();
    while !screen.is_finished() {
        std::thread::sleep(Duration::from_nanos(STEP));
        while let Ok(command) = asked.try_recv() {
            match command {
                Command::SetGrouping(grouping) => run.grouping = grouping,
                Command::TakeTensors => {
                    let reason = "there is no process here, and so no tensors";
                    tensors.send_replace(Tensors::Failed(reason.into()));
                }
                Command::Explain(asked) => wanted = asked,
                // The figures of this run are made up: they have no peaks to reset, and no earlier moments.
                Command::ResetPeaks | Command::Seek(_) | Command::Quit => {}
                Command::SaveRecording | Command::SaveTensors => {
                    let reason = "there is no process here to save";
                    saving.send_replace(Saving::Failed(reason.into()));
                }
            }
        }
        run.advance();
        trainer.advance_to(run.ticks * STEP);
        if wanted != AttributionQuery::Nothing {
            reasons.send_replace(trainer.tables(wanted));
        }
        snapshots.send_replace(Arc::new(run.snapshot()));
        assert!(
            scene != Scene::Panic || begun.elapsed() < Duration::from_secs(2),
            "a panic beside the screen, as asked for"
        );
    }
    drop(quit);
    screen
        .join()
        .map_err(|_| anyhow::anyhow!("the screen panicked"))?
}

/// Returns the points of each window.
fn device_timeline(totals: &[Totals]) -> DeviceTimeline {
    let last = |number: usize| Timeline {
        start: TimeNs(0),
        step: STEP,
        points: totals[totals.len().saturating_sub(number)..]
            .iter()
            .map(|totals| TotalsPoint {
                low: *totals,
                high: *totals,
                ..TotalsPoint::default()
            })
            .collect(),
    };
    let steps = |window: TimeWindow| {
        window
            .length()
            .map_or(usize::MAX, |length| (length / STEP) as usize)
    };
    DeviceTimeline {
        all: last(usize::MAX),
        recent: TimeWindow::RECENT.map(|window| last(steps(window))),
    }
}

/// Sets `quit` on SIGTERM, so that the screen restores the terminal. Callers of the screen handle signals.
fn quit_on_sigterm(quit: Arc<watch::Sender<bool>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            if let Ok(mut sigterm) = signal(SignalKind::terminate()) {
                sigterm.recv().await;
                quit.send_replace(true);
            }
        });
    });
    Ok(())
}

/// Training loop: parameters and optimizer state stay, activations are allocated in the forward pass and
/// freed in the backward pass.
struct Run {
    scene: Scene,
    ticks: u64,
    grouping: Grouping,
    timelines: Vec<Vec<Totals>>,
}

impl Run {
    fn new(scene: Scene) -> Self {
        let devices = if scene == Scene::Devices { 2 } else { 1 };
        let mut run = Self {
            scene,
            ticks: 0,
            grouping: Grouping::User,
            timelines: vec![Vec::new(); devices],
        };
        for _ in 0..900 {
            run.advance();
        }
        run
    }

    fn advance(&mut self) {
        if self.scene == Scene::Gone && self.ticks >= 930 {
            return;
        }
        self.ticks += 1;
        for device in 0..self.timelines.len() {
            let lines: u64 = self.lines(device).iter().map(|line| line.live.0).sum();
            let allocated = Bytes(lines + BEFORE.0);
            let reserved_before = self.timelines[device]
                .last()
                .map_or(0, |point| point.reserved.0);
            let reserved = Bytes(reserved_before.max(allocated.0 + (420.0 * MIB) as u64));
            let timeline = &mut self.timelines[device];
            timeline.push(Totals {
                allocated,
                reserved,
            });
            if timeline.len() > MAX_POINTS {
                timeline.remove(0);
            }
        }
    }

    /// Returns the share of activations that is live: it rises in the forward pass and falls in the backward
    /// pass.
    fn activations(&self, device: usize) -> f64 {
        let phase = (self.ticks as usize + device * 17) % 90;
        if phase < 40 {
            phase as f64 / 40.0
        } else {
            (1.0 - (phase - 40) as f64 / 35.0).max(0.0)
        }
    }

    fn lines(&self, device: usize) -> Vec<LineRow> {
        let acts = self.activations(device);
        let warm = (self.ticks as f64 / 300.0).min(1.0);
        let mlp = [
            torch("nn/modules/linear.py", 134, "forward"),
            model(27, "forward"),
            model(44, "forward"),
        ];
        let attention = [model(19, "attend"), model(43, "forward")];
        let dropout = [
            torch("nn/functional.py", 1425, "dropout"),
            model(45, "forward"),
        ];
        let adam = [
            torch("optim/adamw.py", 174, "_init_group"),
            torch("optim/adamw.py", 232, "step"),
            torch("optim/optimizer.py", 493, "wrapper"),
        ];
        let init = [
            torch("nn/modules/sparse.py", 167, "__init__"),
            model(53, "__init__"),
        ];
        let main = [train(58, "main"), train(66, "<module>")];
        let forward = [&[model(61, "forward"), train(31, "train_step")], &main[..]].concat();
        let evaluate = [
            model(61, "forward"),
            train(49, "evaluate"),
            train(60, "main"),
        ];
        let evaluate = [&evaluate[..], &main[1..]].concat();
        let step = [&[train(35, "train_step")], &main[..]].concat();
        let backward = [&[train(33, "train_step")], &main[..]].concat();
        let batch = [&[train(29, "train_step")], &main[..]].concat();
        let built = [train(52, "main"), main[1].clone()];
        let attended = [
            ([&attention[..], &forward].concat(), acts * 2210.0),
            ([&attention[..], &evaluate].concat(), 118.0),
        ];
        let one = |inner: &[Frame], outer: &[Frame], mib: f64| [([inner, outer].concat(), mib)];
        let mut lines = vec![
            self.line(&one(&mlp, &forward, acts * 3900.0), 1, 3900.0, 96.0, 48.0),
            self.line(&attended, 0, 2328.0, 72.0, 24.0),
            self.line(&one(&dropout, &forward, acts * 640.0), 1, 640.0, 96.0, 24.0),
            self.line(&one(&adam, &step, warm * 2048.0), 3, 2048.0, 0.0, 296.0),
            self.line(&one(&init, &built, 474.0), 1, 474.0, 0.0, 148.0),
            self.line(&one(&[], &batch, 16.0), 0, 16.0, 2.0, 2.0),
        ];
        let mib = warm * (1.0 - acts) * 760.0;
        let mut grads = self.line(&one(&[], &backward, mib), 0, 1012.0, 418.0, 148.0);
        grads.site = Site::Backward(backward[0].clone());
        lines.push(grads);
        lines
    }

    /// Builds one line from its stacks with their MiB. `user` is the index of the user's frame in them.
    fn line(
        &self,
        stacks: &[(Vec<Frame>, f64)],
        user: usize,
        most: f64,
        rate: f64,
        blocks: f64,
    ) -> LineRow {
        let live: f64 = stacks.iter().map(|(_, mib)| mib).sum();
        let row = |(frames, mib): &(Vec<Frame>, f64)| StackRow {
            stack: Arc::new(Stack {
                kind: StackKind::Python,
                frames: frames.clone(),
                truncated: false,
                context: Context::default(),
            }),
            live: Bytes((mib * MIB) as u64),
            peak: Bytes((most * MIB) as u64),
            live_blocks: (blocks * mib / most).ceil() as u64,
            allocs: self.ticks * blocks as u64,
        };
        let rows: Vec<StackRow> = stacks.iter().map(row).collect();
        let place = match self.grouping {
            Grouping::User => user.min(stacks[0].0.len() - 1),
            Grouping::Innermost => 0,
        };
        LineRow {
            site: Site::Line(stacks[0].0[place].clone()),
            live: Bytes(rows.iter().map(|row| row.live.0).sum()),
            peak: Bytes((most.max(live) * MIB) as u64),
            live_blocks: rows.iter().map(|row| row.live_blocks).sum(),
            allocs: rows.iter().map(|row| row.allocs).sum(),
            alloc_bytes: Bytes((most * MIB) as u64 * self.ticks / 90),
            allocs_per_second: rate,
            growth: None,
            stacks: rows,
        }
    }

    fn device(&self, device: usize) -> DeviceSnapshot {
        let timeline = &self.timelines[device];
        let totals = timeline.last().copied().unwrap_or_default();
        let lost = if self.scene == Scene::Lossy {
            37.5 * MIB
        } else {
            0.0
        } as u64;
        let highest =
            |pick: fn(&Totals) -> Bytes| timeline.iter().map(pick).max().unwrap_or_default();
        let lines = self.lines(device);
        DeviceSnapshot {
            index: DeviceIndex(device as u8),
            totals: Totals {
                allocated: Bytes(totals.allocated.0 + lost),
                ..totals
            },
            peak: Totals {
                allocated: highest(|point| point.allocated),
                reserved: highest(|point| point.reserved),
            },
            before_attach: BeforeAttach {
                live: BEFORE,
                peak: BEFORE,
                known_blocks: 312,
                ..BeforeAttach::default()
            },
            unaccounted: lost as i64,
            live_blocks: lines.iter().map(|line| line.live_blocks).sum(),
            ooms: u64::from(self.scene == Scene::Lossy),
            growth: None,
            iterations_per_minute: None,
            lines,
            timeline: device_timeline(timeline),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let devices = match self.scene {
            Scene::Waiting | Scene::Empty => Vec::new(),
            _ => (0..self.timelines.len())
                .map(|device| self.device(device))
                .collect(),
        };
        let state = match self.scene {
            Scene::Waiting => TargetState::Waiting("torch to be imported".to_owned()),
            Scene::Gone if self.ticks >= 930 => TargetState::Exited,
            _ => TargetState::Running,
        };
        let events = if devices.is_empty() {
            0
        } else {
            self.ticks * 73
        };
        let lost = if self.scene == Scene::Lossy {
            self.ticks / 3
        } else {
            0
        };
        Snapshot {
            target: Target {
                tgid: Some(Tgid(1234)),
                command: "python train.py --config gpt2-medium.yaml".to_owned(),
                python: Some("3.12.3".to_owned()),
                torch: (self.scene != Scene::Waiting).then(|| "2.15.0+cu132".to_owned()),
                ..Target::default()
            },
            started: TimeNs(0),
            now: TimeNs(self.ticks * STEP),
            devices,
            cuda: CudaSnapshot::default(),
            health: Health {
                budget: None,
                events,
                events_per_second: if events == 0 {
                    0.0
                } else {
                    730.0 + (self.ticks % 7) as f64
                },
                losses: Losses {
                    events: lost,
                    stacks: lost / 50,
                    malformed: 0,
                    uses: 0,
                },
                probes: probes(self.scene),
                state,
                stopped: None,
                capture: memprobe::event::CaptureOptions::default(),
                missing: Vec::new(),
                disagreements: 0,
                unread_at_attach: None,
            },
        }
    }
}

const BEFORE: Bytes = Bytes(1_153_433_600);

fn probes(scene: Scene) -> Vec<ProbeStatus> {
    let probe = |function: &str, library: &str, offset| ProbeStatus {
        function: function.to_owned(),
        library: format!("/opt/venv/lib/python3.12/site-packages/{library}"),
        offset,
        emulated: scene != Scene::Lossy || function != "cudaFree",
    };
    let (c10, cudart) = (
        "torch/lib/libc10.so",
        "nvidia/cuda_runtime/lib/libcudart.so.13",
    );
    match scene {
        Scene::Waiting => Vec::new(),
        _ => vec![
            probe("c10::reportMemoryUsageToProfiler", c10, 7),
            probe("c10::reportOutOfMemoryToProfiler", c10, 7),
            probe("cudaMalloc", cudart, 4),
            probe("cudaFree", cudart, 4),
        ],
    }
}

fn frame(file: String, line: u32, function: &str) -> Frame {
    Frame {
        file: file.into(),
        line,
        function: function.into(),
        library: None,
    }
}

fn model(line: u32, function: &str) -> Frame {
    frame("/home/ada/gpt/model.py".to_owned(), line, function)
}

fn train(line: u32, function: &str) -> Frame {
    frame("/home/ada/gpt/train.py".to_owned(), line, function)
}

fn torch(file: &str, line: u32, function: &str) -> Frame {
    frame(
        format!("/opt/venv/lib/python3.12/site-packages/torch/{file}"),
        line,
        function,
    )
}

/// Source text of the made-up script.
struct Script;

const MODEL: &[(u32, &str)] = &[
    (17, "    def attend(self, q, k, v):"),
    (18, "        scale = 1.0 / math.sqrt(q.size(-1))"),
    (19, "        return torch.softmax(q @ k.mT * scale, -1) @ v"),
    (25, "    def forward(self, x):"),
    (26, "        # widen, bend, narrow"),
    (27, "        return self.proj(F.gelu(self.fc(x)))"),
    (42, "    def forward(self, x):"),
    (43, "        x = x + self.attn(self.ln1(x))"),
    (44, "        h = self.mlp(self.ln2(x))"),
    (45, "        return x + self.drop(h)"),
    (53, "        self.wte = nn.Embedding(vocab, width)"),
    (61, "            x = block(x)"),
];

const TRAIN: &[(u32, &str)] = &[
    (29, "    batch = next(batches).cuda()"),
    (30, "    # forward"),
    (31, "    loss = model(batch)"),
    (32, "    # backward"),
    (33, "    loss.backward()"),
    (34, "    clip_grad_norm_(model.parameters(), 1.0)"),
    (35, "    optimizer.step()"),
    (36, "    optimizer.zero_grad(set_to_none=True)"),
    (49, "    return model(batch).item()"),
    (52, "    model = Transformer(config)"),
    (58, "        train_step(model, optimizer, batches)"),
    (60, "            print(evaluate(model, batches))"),
    (66, "    main()"),
];

impl SourceText for Script {
    fn line(&mut self, file: &str, line: u32) -> Option<String> {
        let script = if file.ends_with("model.py") {
            MODEL
        } else if file.ends_with("train.py") {
            TRAIN
        } else {
            return None;
        };
        let text = script
            .iter()
            .find(|(number, _)| *number == line)
            .map_or("", |(_, text)| text);
        Some(text.to_owned())
    }

    fn around(&mut self, file: &str, line: u32, radius: u32) -> Option<Vec<(u32, String)>> {
        let numbers = line.saturating_sub(radius).max(1)..=line.saturating_add(radius);
        numbers
            .map(|number| Some((number, self.line(file, number)?)))
            .collect()
    }

    fn edit(&mut self, file: &str, line: u32) -> Result<(), String> {
        Err(format!("{file}:{line} is made up: there is no such file"))
    }
}
