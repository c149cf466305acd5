//! Host snapshots for the tests of its screen.

use std::time::Duration;

use crate::event::{
    Bytes, DeviceIdentity, DeviceIndex, Frame, Gpu, IdentitySource, Losses, Rank, Target, Tgid,
    TimeNs, Totals,
};
use crate::ledger::snapshot::Site;
use crate::ledger::snapshot::host::{
    DeviceRow, DriverDevice, DriverMemory, DriverSnapshot, DriverUse, Holder, HostHealth,
    HostSnapshot, ProcessFacts, ProcessRow, ProcessState, TREND_STEPS, TopHolder, Trend,
};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

fn line(file: &str, line: u32, function: &str) -> Holder {
    Holder::Site(Site::Line(Frame {
        library: None,
        file: file.into(),
        line,
        function: function.into(),
    }))
}

/// Returns a process without known memory.
fn silent(tgid: u32, user: &str, command: &str, state: ProcessState) -> ProcessRow {
    ProcessRow {
        tgid: Tgid(tgid),
        target: Target {
            tgid: Some(Tgid(tgid)),
            command: command.to_owned(),
            ..Target::default()
        },
        facts: ProcessFacts {
            user: Some(user.to_owned()),
            ..ProcessFacts::default()
        },
        state,
        stopped: None,
        devices: Vec::new(),
        totals_age: None,
        peak: Totals::default(),
        driver: Vec::new(),
        driver_is_partial: false,
        trend: Trend::default(),
        growth: None,
        top: None,
        note: None,
        events: 0,
        events_per_second: 0.0,
    }
}

/// Returns a device that is the GPU of the same number.
fn identity(index: u8) -> DeviceIdentity {
    DeviceIdentity {
        device: DeviceIndex(index),
        gpu: Some(Gpu {
            index: Some(index.into()),
            uuid: None,
            pci_bus_id: None,
            mig: None,
            memory: None,
            source: IdentitySource::Properties,
        }),
        unknown: None,
    }
}

/// Returns a probed process with `mib` MiB on each device and the trend `wave`.
fn probed(
    tgid: u32,
    command: &str,
    mib: &[u64],
    top: (Holder, u64),
    wave: impl Fn(u64) -> u64,
) -> ProcessRow {
    let totals = |mib: u64| Totals {
        allocated: Bytes(mib * MIB),
        reserved: Bytes((mib + mib / 4) * MIB),
    };
    let sum: u64 = mib.iter().sum();
    let device = |(index, mib): (usize, &u64)| DeviceRow {
        index: DeviceIndex(index as u8),
        totals: totals(*mib),
        peak: totals(*mib),
    };
    let driver = |(index, mib): (usize, &u64)| DriverUse {
        device: index as u32,
        bytes: Some(Bytes((mib + mib / 4 + 480) * MIB)),
    };
    ProcessRow {
        devices: mib.iter().enumerate().map(device).collect(),
        driver: mib.iter().enumerate().map(driver).collect(),
        peak: totals(sum + sum / 8),
        growth: None,
        trend: Trend {
            step: SECOND,
            points: (0..TREND_STEPS as u64)
                .map(|at| Bytes(wave(at) * MIB))
                .collect(),
        },
        top: Some(TopHolder {
            holder: top.0,
            live: Bytes(top.1 * MIB),
        }),
        events: 120_000,
        events_per_second: 402.5,
        target: Target {
            python: Some("3.12.1".to_owned()),
            torch: Some("2.15.0+cu132".to_owned()),
            gpus: (0..).zip(mib).map(|(index, _)| identity(index)).collect(),
            ..silent(tgid, "", command, ProcessState::Probed).target
        },
        ..silent(tgid, "ada", command, ProcessState::Probed)
    }
}

fn driver() -> DriverSnapshot {
    let device = |index: u32, gib: u64| DriverDevice {
        index,
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        uuid: None,
        pci_bus_id: None,
        memory: Ok(DriverMemory {
            used: Bytes(gib << 30),
            total: Bytes(80 << 30),
        }),
        mig_devices: None,
        processes: Ok(()),
        others: None,
    };
    DriverSnapshot::Devices(vec![device(0, 31), device(1, 9)])
}

/// Returns a busy workstation: a training run, two ranks of a distributed one, a server in a container, a
/// notebook before its torch import, an unsupported Python, an ended process, a data loader worker.
pub(super) fn busy() -> HostSnapshot {
    let gpt = "/opt/venv/bin/python train.py --epochs 10 --batch 64";
    let train = probed(
        1234,
        gpt,
        &[9584],
        (line("/home/ada/gpt/model.py", 88, "forward"), 4231),
        |at| 4000 + at * 7 % 60 * 90,
    );
    let rank = |number: u32| {
        let command = "/usr/bin/python3 -u finetune.py --local-rank";
        let top = line("/home/ada/llama/attention.py", 41, "scores");
        let mut row = probed(
            2001 + number,
            command,
            &[1200 + u64::from(number), 1],
            (top, 700),
            |at| 20 * at,
        );
        row.facts.rank = Some(Rank {
            global: number,
            local: Some(number),
            world: Some(2),
        });
        row
    };
    let mut server = probed(
        6001,
        "python -m vllm.entrypoints.openai.api_server --model x",
        &[7168],
        (
            line("/app/vllm/worker/cache_engine.py", 70, "_allocate"),
            5000,
        ),
        |_| 7168,
    );
    server.target.container = Some("llm-serving-7d9f".to_owned());
    server.facts.user = Some("1000".to_owned());
    server.target.inner_tgid = Some(Tgid(7));
    if let Some(gpu) = &mut server.target.gpus[0].gpu {
        gpu.source = IdentitySource::Environment;
    }
    let waiting = ProcessState::Waiting("torch to be imported".to_owned());
    let mut notebook = silent(
        7001,
        "ada",
        "python -m ipykernel_launcher -f k.json",
        waiting,
    );
    notebook.driver = vec![DriverUse {
        device: 0,
        bytes: None,
    }];
    let refused = ProcessState::Refused("Python 3.8 is not supported".to_owned());
    let mut old = silent(5120, "grace", "python3.8 /srv/legacy/serve.py", refused);
    old.driver = vec![DriverUse {
        device: 1,
        bytes: Some(Bytes(6800 * MIB)),
    }];
    let mut ended = probed(
        900,
        "python evaluate.py",
        &[512],
        (Holder::BeforeAttach, 500),
        |at| if at < 40 { 2048 } else { 512 },
    );
    ended.state = ProcessState::Ended;
    ended.tgid = Tgid(8900);
    ended.target.gpus[0] =
        DeviceIdentity::unknown(DeviceIndex(0), "CUDA_VISIBLE_DEVICES was changed");
    let worker = silent(1240, "ada", gpt, ProcessState::Probed);
    HostSnapshot {
        started: TimeNs(100 * SECOND),
        now: TimeNs(851 * SECOND),
        processes: vec![
            train,
            worker,
            rank(0),
            rank(1),
            old,
            server,
            notebook,
            ended,
        ],
        driver: driver(),
        health: HostHealth {
            budget: None,
            events: 3_292_114,
            events_per_second: 1610.0,
            losses: Losses::default(),
            disagreements: 0,
            untracked: 0,
        },
    }
}

/// Returns one process on a machine without a usable driver library.
pub(super) fn alone() -> HostSnapshot {
    let mut host = busy();
    host.processes.truncate(1);
    host.processes[0].driver.clear();
    host.driver = DriverSnapshot::Silent("libnvidia-ml.so.1 was not found".to_owned());
    host
}

/// A driver that does not say everything: a device in MIG mode, one whose processes are unknown, and
/// one that shares the system's memory. The probes are off.
pub(super) fn reticent() -> HostSnapshot {
    let mut host = busy();
    if let DriverSnapshot::Devices(devices) = &mut host.driver {
        let name = "NVIDIA GB10".to_owned();
        let reason = "the driver does not say, as for GPUs that share the system's memory";
        devices.push(DriverDevice {
            index: 2,
            name,
            memory: Err(reason.to_owned()),
            ..devices[0].clone()
        });
        devices[0].mig_devices = Some(3);
        let reason = "the driver does not permit it: run memprobe as root";
        devices[1].processes = Err(reason.to_owned());
    }
    for row in &mut host.processes {
        row.driver_is_partial = true;
        row.totals_age = Some(Duration::from_secs(3));
    }
    host
}

/// Returns a host on which no process has loaded CUDA.
pub(super) fn empty() -> HostSnapshot {
    HostSnapshot {
        processes: Vec::new(),
        driver: DriverSnapshot::Unasked,
        health: HostHealth::default(),
        ..busy()
    }
}

/// Returns more processes, devices and losses than fit on the screen.
pub(super) fn crowded() -> HostSnapshot {
    let mut host = busy();
    for number in 0..40 {
        let mut row = probed(
            10_000 + number,
            "python worker.py",
            &[u64::from(number) * 10, 3, 5],
            (line("/srv/worker.py", 9, "run"), 3),
            |at| at % 9,
        );
        row.facts.rank = Some(Rank {
            global: number,
            local: None,
            world: None,
        });
        host.processes.push(row);
    }
    if let DriverSnapshot::Devices(devices) = &mut host.driver {
        for index in 2..40 {
            let memory = DriverMemory {
                used: Bytes(u64::from(index) << 30),
                total: Bytes(80 << 30),
            };
            devices.push(DriverDevice {
                index,
                memory: match index {
                    7 => Err("the driver does not answer: the GPU is lost".to_owned()),
                    _ => Ok(memory),
                },
                ..devices[0].clone()
            });
        }
    }
    host.health.losses = Losses {
        events: 1204,
        stacks: 3,
        malformed: 1,
        ..Losses::default()
    };
    host.health.untracked = 9;
    host
}

/// Returns processes and devices whose texts and numbers try to break the screen.
pub(super) fn hostile() -> HostSnapshot {
    let mut host = busy();
    let evil = "\x1b[2J\x1b]0;owned\x07\r\n\t\u{202e}\u{200b}模型\u{301}\u{301}\u{301}\u{301}🦀"
        .repeat(40);
    for row in &mut host.processes {
        row.target.command = evil.clone();
        row.target.python = Some(evil.clone());
        row.target.torch = Some(evil.clone());
        row.facts.user = Some(evil.clone());
        row.target.container = Some(evil.clone());
        row.target.inner_tgid = Some(Tgid(u32::MAX));
        row.facts.rank = Some(Rank {
            global: u32::MAX,
            local: Some(u32::MAX),
            world: Some(0),
        });
        row.tgid = Tgid(u32::MAX - row.tgid.0);
        let huge = Totals {
            allocated: Bytes(u64::MAX),
            reserved: Bytes(u64::MAX),
        };
        row.devices = (0..=255)
            .map(|index| DeviceRow {
                index: DeviceIndex(index),
                totals: huge,
                peak: huge,
            })
            .collect();
        row.driver = vec![
            DriverUse {
                device: u32::MAX,
                bytes: Some(Bytes(u64::MAX)),
            };
            3
        ];
        row.trend.points = vec![Bytes(u64::MAX); 7];
        row.top = Some(TopHolder {
            holder: line(&evil, 0, &evil),
            live: Bytes(u64::MAX),
        });
        row.events_per_second = f64::NAN;
    }
    host.processes[0].state = ProcessState::Waiting(evil.clone());
    host.processes[1].state = ProcessState::Refused(evil.clone());
    if let DriverSnapshot::Devices(devices) = &mut host.driver {
        devices[0].name = evil.clone();
        devices[0].memory = Ok(DriverMemory {
            used: Bytes(u64::MAX),
            total: Bytes(0),
        });
        devices[1].index = u32::MAX;
        devices[1].memory = Err(evil.clone());
        devices[1].processes = Err(evil);
    }
    host.started = TimeNs(u64::MAX);
    host.now = TimeNs(0);
    host.health.events_per_second = f64::NEG_INFINITY;
    host.health.events = u64::MAX;
    host
}
