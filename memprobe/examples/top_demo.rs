//! Host screen with made-up processes, for work on the screen itself:
//! `cargo run -p memprobe --example top_demo [busy|empty|alone]`.
//!
//! No process is measured: every event is made up. Events pass through the real ledgers, so that rows, trends
//! and a process's screen are built as in live use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memprobe::attribution::modules::ModuleLedger;
use memprobe::attribution::views::modules;
use memprobe::event::{
    Action, Address, Bytes, Context, DeviceIdentity, DeviceIndex, Event, Frame, Gpu,
    IdentitySource, MemoryEvent, PurposeId, Rank, Stack, StackId, StackKind, Tgid, Tid, TimeNs,
    Totals,
};
use memprobe::event::{ProbeStatus, Target};
use memprobe::ledger::host::{Attached, Host};
use memprobe::ledger::snapshot::host::{
    DriverDevice, DriverMemory, DriverSnapshot, DriverUse, ProcessFacts,
};
use memprobe::ledger::snapshot::{Grouping, Snapshot};
use memprobe::tui::host::{self, HostCommand, HostView};
use memprobe::tui::{
    AttributionQuery, AttributionTables, Command, News, Saving, SourceText, Tensors, ThemeChoice,
};
use tokio::sync::{mpsc, watch};

const MIB: u64 = 1 << 20;
/// Nanoseconds between two rounds of events.
const STEP: u64 = 200_000_000;

/// Returns a `cuda:0` that is this GPU.
fn identity(index: u32) -> DeviceIdentity {
    DeviceIdentity {
        device: DeviceIndex(0),
        gpu: Some(Gpu {
            index: Some(index),
            uuid: None,
            pci_bus_id: None,
            mig: None,
            memory: None,
            source: IdentitySource::Properties,
        }),
        unknown: None,
    }
}

fn main() -> anyhow::Result<()> {
    let scene = std::env::args().nth(1).unwrap_or_else(|| "busy".to_owned());
    let mut stage = Stage::new(&scene)?;
    let (views, receiver) = watch::channel(stage.view());
    let (commands, mut asked) = mpsc::unbounded_channel();
    let (quit, quit_receiver) = watch::channel(false);
    let screen = std::thread::spawn(move || {
        let sources = Box::new(|_| Box::new(NoSource) as Box<dyn SourceText + Send>);
        host::run(
            receiver,
            commands,
            sources,
            quit_receiver,
            host::HostTitle {
                name: "memprobe top".to_owned(),
                instead: "another terminal",
            },
            ThemeChoice::Auto,
        )
    });
    while !screen.is_finished() {
        std::thread::sleep(Duration::from_nanos(STEP));
        while let Ok(command) = asked.try_recv() {
            stage.execute(command);
        }
        stage.advance();
        views.send_replace(stage.view());
    }
    drop(quit);
    screen
        .join()
        .map_err(|_| anyhow::anyhow!("the screen panicked"))?
}

/// Made-up process with its allocation pattern.
struct Actor {
    tgid: Tgid,
    /// Sizes of its blocks in MiB, oldest first.
    blocks: Vec<u64>,
    most: u64,
    grows: bool,
}

/// The host, its processes and the time.
struct Stage {
    host: Host,
    actors: Vec<Actor>,
    round: u64,
    opened: Option<Opened>,
    driver: bool,
}

impl Stage {
    fn new(scene: &str) -> anyhow::Result<Self> {
        let mut stage = Self {
            host: Host::new(TimeNs(0)),
            actors: Vec::new(),
            round: 0,
            opened: None,
            driver: scene != "alone",
        };
        match scene {
            "empty" => {}
            "alone" => stage.enter(1234, "ada", "/opt/venv/bin/python train.py", None, 4000),
            "busy" => {
                stage.enter(
                    1234,
                    "ada",
                    "/opt/venv/bin/python train.py --lr 3e-4",
                    None,
                    9000,
                );
                for rank in 0..4 {
                    let command = "/usr/bin/python3 -u finetune.py --deepspeed z3.json";
                    stage.enter(2000 + rank, "ada", command, Some(rank), 3000);
                }
                stage.enter(6001, "1000", "python -m server --model x", None, 12_000);
                let found = |tgid, command: &str| Target {
                    tgid: Some(Tgid(tgid)),
                    command: command.to_owned(),
                    ..Target::default()
                };
                let now = TimeNs(0);
                let old = found(5120, "python3.8 serve.py");
                stage.host.start(old, facts("grace", None), now);
                stage.host.refuse(Tgid(5120), "Python 3.8 is not supported");
                let notebook = found(7001, "python -m ipykernel_launcher -f k.json");
                stage.host.start(notebook, facts("ada", None), now);
                stage.host.wait(Tgid(7001), "torch to be imported");
            }
            other => anyhow::bail!("no scene is called {other}: see the head of this example"),
        }
        for _ in 0..150 {
            stage.advance();
        }
        Ok(stage)
    }

    fn now(&self) -> TimeNs {
        TimeNs(self.round * STEP)
    }

    fn enter(&mut self, tgid: u32, user: &str, command: &str, rank: Option<u32>, most: u64) {
        let tgid = Tgid(tgid);
        let target = Target {
            tgid: Some(tgid),
            command: command.to_owned(),
            container: (user == "1000").then(|| "llm-serving-7d9f".to_owned()),
            python: Some("3.12.3".to_owned()),
            torch: Some("2.15.0+cu132".to_owned()),
            gpus: vec![identity(u32::from(tgid.0 < 3000))],
            ..Target::default()
        };
        self.host
            .start(target.clone(), facts(user, rank), self.now());
        let probe = ProbeStatus {
            function: "c10::reportMemoryUsageToProfiler".to_owned(),
            library: "/opt/venv/lib/python3.12/site-packages/torch/lib/libc10.so".to_owned(),
            offset: 7,
            emulated: true,
        };
        let found = Attached {
            target,
            probes: vec![probe],
            ..Attached::default()
        };
        self.host.attach(tgid, found);
        for line in 1..=5 {
            self.host.apply(tgid, &stack(line));
        }
        self.actors.push(Actor {
            tgid,
            blocks: Vec::new(),
            most,
            grows: true,
        });
    }

    fn advance(&mut self) {
        self.round += 1;
        let now = self.now();
        for actor in &mut self.actors {
            for step in 0..12 {
                if let Some(event) = actor.act(now, self.round * 12 + step) {
                    self.host.apply(actor.tgid, &event);
                }
            }
        }
        // The last process (the server) ends periodically and is started again.
        if self.round % 200 == 190
            && let Some(last) = self.actors.pop_if(|actor| actor.tgid.0 == 6001)
        {
            self.host.end(last.tgid, now);
        }
        if self.round % 200 == 40 && self.actors.len() == 5 {
            self.enter(6001, "1000", "python -m server --model x", None, 12_000);
        }
        self.update_driver();
        self.host.tick(now);
    }

    fn update_driver(&mut self) {
        if !self.driver {
            let reason = "libnvidia-ml.so.1 was not found".to_owned();
            self.host
                .set_driver(DriverSnapshot::Silent(reason), &BTreeMap::new());
            return;
        }
        let mut held: BTreeMap<Tgid, Vec<DriverUse>> = BTreeMap::new();
        for actor in &self.actors {
            let mib: u64 = actor.blocks.iter().sum::<u64>() + 480;
            let bytes = Some(Bytes(mib * MIB));
            let device = u32::from(actor.tgid.0 < 3000);
            held.insert(actor.tgid, vec![DriverUse { device, bytes }]);
        }
        let bytes = Some(Bytes(6800 * MIB));
        held.insert(Tgid(5120), vec![DriverUse { device: 1, bytes }]);
        let devices = (0..2).map(|index| {
            let all = held.values().flatten();
            let own = all.filter(|held| held.device == index);
            let used = own.filter_map(|held| held.bytes).map(|bytes| bytes.0).sum();
            DriverDevice {
                index,
                name: "NVIDIA H100 80GB HBM3".to_owned(),
                uuid: None,
                pci_bus_id: None,
                memory: Ok(DriverMemory {
                    used: Bytes(used),
                    total: Bytes(80 << 30),
                }),
                others: None,
                mig_devices: None,
                processes: Ok(()),
            }
        });
        let devices = devices.collect();
        self.host
            .set_driver(DriverSnapshot::Devices(devices), &held);
    }

    fn execute(&mut self, command: HostCommand) {
        match command {
            HostCommand::Open(tgid) => {
                let now = self.now();
                let snapshot = self.host.process(tgid, now, Grouping::default());
                self.opened = snapshot.map(|snapshot| Opened::new(tgid, snapshot));
            }
            HostCommand::Close => self.opened = None,
            HostCommand::Ask(command) => {
                let now = self.now();
                if let Some(opened) = &mut self.opened {
                    opened.execute(command, &mut self.host, now);
                }
            }
            HostCommand::Quit => {}
        }
        self.host
            .open(self.opened.as_ref().map(|opened| opened.tgid));
    }

    fn view(&mut self) -> HostView {
        let now = self.now();
        if let Some(opened) = &self.opened {
            opened.show(&self.host, now);
        }
        HostView {
            host: Arc::new(self.host.snapshot(now)),
            process: self
                .opened
                .as_ref()
                .map(|opened| (opened.tgid, opened.news.clone())),
        }
    }
}

/// Process opened on the screen. Only its modules have an attribution table.
struct Opened {
    tgid: Tgid,
    grouping: Grouping,
    explains: AttributionQuery,
    snapshots: watch::Sender<Arc<Snapshot>>,
    tensors: watch::Sender<Tensors>,
    reasons: watch::Sender<AttributionTables>,
    news: News,
}

impl Opened {
    fn new(tgid: Tgid, snapshot: Snapshot) -> Self {
        let (snapshots, shown) = watch::channel(Arc::new(snapshot));
        let (tensors, shown_tensors) = watch::channel(Tensors::default());
        let (reasons, shown_reasons) = watch::channel(AttributionTables::default());
        let news = News {
            snapshots: shown,
            tensors: shown_tensors,
            reasons: shown_reasons,
            saving: watch::channel(Saving::default()).1,
        };
        Self {
            tgid,
            grouping: Grouping::default(),
            explains: AttributionQuery::default(),
            snapshots,
            tensors,
            reasons,
            news,
        }
    }

    fn execute(&mut self, command: Command, host: &mut Host, now: TimeNs) {
        match command {
            Command::ResetPeaks => host.reset_peaks(self.tgid, now),
            Command::SetGrouping(grouping) => self.grouping = grouping,
            Command::Explain(wanted) => self.explains = wanted,
            Command::TakeTensors => {
                let reason = "the process is invented, and has none".into();
                self.tensors.send_replace(Tensors::Failed(reason));
            }
            Command::SaveRecording | Command::SaveTensors | Command::Seek(_) | Command::Quit => {}
        }
    }

    fn show(&self, host: &Host, now: TimeNs) {
        let Some(snapshot) = host.process(self.tgid, now, self.grouping) else {
            return;
        };
        if let (AttributionQuery::Modules, Some(known)) = (self.explains, host.ledger(self.tgid)) {
            let ledger = ModuleLedger::late(known, now);
            let tables = Arc::new(modules(&ledger, &snapshot));
            self.reasons
                .send_replace(AttributionTables::Modules(tables));
        }
        self.snapshots.send_replace(Arc::new(snapshot));
    }
}

impl Actor {
    /// Returns the next event: memory grows to `most`, then shrinks to a quarter of it, block by block.
    fn act(&mut self, time: TimeNs, dice: u64) -> Option<Event> {
        let held: u64 = self.blocks.iter().sum();
        if held >= self.most {
            self.grows = false;
        } else if held < self.most / 4 {
            self.grows = true;
        }
        let place = |blocks: usize| Address((blocks as u64 + 1) << 40);
        let (action, addr, mib) = if self.grows {
            let mib = 8 + dice * 37 % 90;
            self.blocks.push(mib);
            (Action::Alloc, place(self.blocks.len()), mib)
        } else {
            let addr = place(self.blocks.len());
            (Action::Free, addr, self.blocks.pop()?)
        };
        let held: u64 = self.blocks.iter().sum();
        Some(Event::Memory(MemoryEvent {
            shape: PurposeId::NONE,
            call: None,
            time,
            tgid: self.tgid,
            tid: Tid(self.tgid.0),
            action,
            addr,
            size: Bytes(mib * MIB),
            device: Some(DeviceIndex(0)),
            totals: Some(Totals {
                allocated: Bytes(held * MIB),
                reserved: Bytes((held + self.most / 8) * MIB),
            }),
            stack: StackId((dice % 5) as u32 + 1),
        }))
    }
}

fn facts(user: &str, rank: Option<u32>) -> ProcessFacts {
    ProcessFacts {
        user: Some(user.to_owned()),
        rank: rank.map(|rank| Rank {
            global: rank,
            local: Some(rank),
            world: Some(4),
        }),
        forked_from: None,
    }
}

fn stack(line: u32) -> Event {
    let frame = |line, function: &str| Frame {
        library: None,
        file: "/home/ada/gpt/model.py".into(),
        line,
        function: function.into(),
    };
    let stack = Stack {
        kind: StackKind::Python,
        frames: vec![frame(40 + line * 7, "forward"), frame(12, "step")],
        truncated: false,
        context: Context::default(),
    };
    Event::Stack(StackId(line), Arc::new(stack))
}

/// Source without files: the processes are made up.
struct NoSource;

impl SourceText for NoSource {
    fn line(&mut self, _: &str, _: u32) -> Option<String> {
        None
    }

    fn around(&mut self, _: &str, _: u32, _: u32) -> Option<Vec<(u32, String)>> {
        None
    }

    fn edit(&mut self, file: &str, line: u32) -> Result<(), String> {
        Err(format!("{file}:{line} is made up: there is no such file"))
    }
}
