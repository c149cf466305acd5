use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::failure::{SleepingBytes, SleepingOwner};
use super::parts::completed;
use super::*;
use crate::attribution::allocation_groups::samples::{learning_for, retained_by_losses};
use crate::attribution::growth::GrowthLedger;
use crate::event::tensors::TensorDevice;
use crate::event::{
    Action, Address, DeviceIdentity, Event, Gpu, IdentitySource, LoadedLibrary, MemoryEvent,
    ProcessGroup, Tgid, TimeNs, UseSign,
};
use crate::ledger::snapshot::host::{
    DeviceRow, DriverDevice, DriverMemory, DriverSnapshot, DriverUse, HostHealth, HostSnapshot,
    ProcessFacts, ProcessRow, ProcessState, Trend,
};
use crate::ledger::snapshot::{Grouping, GrowthRate};
use crate::recording::samples::{self, recording};
use crate::recording::{DumpFacts, DumpReason, DumpedGpu, DumpedProcess, Header, Reader};
use crate::report::replay;
use crate::tensors::explain;
use crate::tensors::samples::{Building, line, plain, server, training};

const GIB: u64 = 1 << 30;
const DEVICE: DeviceIndex = DeviceIndex(0);

fn gpu(process: Option<u64>) -> GpuMemory {
    GpuMemory {
        total: Bytes(16 * GIB),
        used: Bytes(3 * GIB),
        process: process.map(Bytes),
        unbacked: Bytes(0),
    }
}

fn growth(events: &[Event]) -> BTreeMap<DeviceIndex, Growth> {
    let file = recording(events);
    let ledger = GrowthLedger::new(Grouping::User, None);
    let reader = Reader::new(&file[..]).unwrap();
    let (_, ledger) = replay::run(reader, Grouping::User, ledger).unwrap();
    let intervals = ledger.intervals_per_iteration();
    let growth = ledger.growth(DEVICE, intervals);
    growth.map(|growth| (DEVICE, growth)).into_iter().collect()
}

/// A process whose list of losses has kept 2 GiB.
fn leaking() -> Explanation {
    let mut snapshot = training();
    let mut losses = Building::new();
    let address = losses.block(2 * GIB, Some(line("/home/me/train.py", 40, "step")));
    let mut block = losses.snapshot.blocks.remove(0);
    // Beyond all blocks of the training.
    block.addr = Address(address.0 + (1 << 40));
    snapshot.blocks.push(block.clone());
    losses.storage(block.addr, 2 * GIB, TensorDevice::Cuda(DEVICE));
    losses.retain(0, "train.py:53 main() -> losses[*]", Some("list"));
    let mut storage = losses.snapshot.storages.remove(0);
    storage.object = 0x7700_0000;
    snapshot.storages.push(storage);
    let tensor = crate::event::tensors::Tensor {
        object: 0x7800_0000,
        storage: Some(snapshot.storages.len() - 1),
        device: TensorDevice::Cuda(DEVICE),
        shape: Some([GIB / 2].into()),
        strides: [1].into(),
        ..plain("train.py:53 main() -> losses[0]")
    };
    snapshot.tensors.push(tensor);
    let totals = &mut snapshot.devices[0].totals;
    totals.allocated.0 += 2 * GIB;
    totals.reserved.0 += 2 * GIB + (512 << 20);
    snapshot.target.gpus = vec![DeviceIdentity {
        device: DEVICE,
        gpu: Some(Gpu {
            index: Some(0),
            uuid: Some("GPU-1".to_owned()),
            pci_bus_id: None,
            mig: None,
            memory: None,
            source: IdentitySource::Properties,
        }),
        unknown: None,
    }];
    let mut program = learning_for(40, |_| true);
    program.read(|addr| match addr >> 9 {
        nth if nth % 8 == 0 => None,
        nth => Some(retained_by_losses(nth % 7, None)),
    });
    let events = program.events;
    explain_process(ProcessEvidence {
        table: &explain(snapshot),
        source: ExplanationSource::Process {
            watched: Duration::from_secs(3),
            consistency: "paused for 12.3 ms".to_owned(),
        },
        gpus: [(DEVICE, gpu(Some(2 * GIB + 700 * (1 << 20))))].into(),
        growth: growth(&events),
        returnable: [(DEVICE, Bytes(500 << 20))].into(),
        notes: Vec::new(),
    })
}

fn written(explanation: &Explanation, format: DocumentFormat) -> String {
    let options = ExplainOptions {
        format,
        width: 100,
        colour: Colour::Plain,
    };
    let mut out = Vec::new();
    write_explanation(explanation, options, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    text.replace(env!("CARGO_PKG_VERSION"), "0.0.0")
}

fn of_recording(events: &[Event]) -> Explanation {
    let file = recording(events);
    explain_recording(Reader::new(&file[..]).unwrap(), "trace.json").unwrap()
}

#[test]
fn libraries_in_use_are_named_with_the_context() {
    let mut explained = leaking();
    let library = |path: &str, signs: &[UseSign]| LoadedLibrary {
        path: path.to_owned(),
        signs: signs.to_vec(),
    };
    let group = |name: &str, ranks: &[u32]| ProcessGroup {
        name: name.to_owned(),
        size: ranks.len() as u32,
        ranks: ranks.to_vec(),
    };
    let nccl = [
        UseSign::ProcessGroups(vec![group("0", &[0, 1, 2]), group("tp\u{1b}[1m", &[0, 9])]),
        UseSign::WatchdogThreads(2),
    ];
    explained.target.libraries = vec![
        library("/v/libnccl.so.2", &nccl),
        library("/v/libcublas.so.13", &[]),
    ];
    explained.devices[0].parts.push(MemoryPart {
        id: PartId::OutsideAllocator,
        bytes: Bytes(500 << 20),
    });
    let page = written(&explained, DocumentFormat::Text);
    let words = "  this process beside PyTorch's allocator: CUDA's context; perhaps NCCL\n";
    assert!(page.contains(words), "{page}");
    let document = written(&explained, DocumentFormat::Json);
    let document: Value = serde_json::from_str(&document).unwrap();
    let signs =
        "2 process groups (0: ranks 0-2; tp\\u{1b}[1m: ranks 0, 9), 2 threads of ProcessGroupNCCL";
    let groups = serde_json::json!([
        {"name": "0", "size": 3, "ranks": [0, 1, 2]},
        {"name": "tp\u{1b}[1m", "size": 2, "ranks": [0, 9]},
    ]);
    let expected = serde_json::json!([
        {"name": "NCCL", "path": "/v/libnccl.so.2", "signs": signs, "process_groups": groups},
        {"name": "cuBLAS", "path": "/v/libcublas.so.13", "signs": null, "process_groups": []},
    ]);
    assert_eq!(document["libraries"], expected);
}

#[test]
fn the_page_of_a_process_that_leaks() {
    let text = written(&leaking(), DocumentFormat::Text);
    assert!(text.lines().count() <= 40, "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn the_page_of_a_snapshot() {
    let explanation = explain_process(ProcessEvidence {
        table: &explain(training()),
        source: ExplanationSource::Snapshot {
            file: "a.json".to_owned(),
        },
        gpus: BTreeMap::new(),
        growth: BTreeMap::new(),
        returnable: BTreeMap::new(),
        notes: Vec::new(),
    });
    insta::assert_snapshot!(written(&explanation, DocumentFormat::Text));
}

#[test]
fn the_page_of_a_server_divides_its_kv_cache() {
    let explanation = explain_process(ProcessEvidence {
        table: &explain(server()),
        source: ExplanationSource::Snapshot {
            file: "a.json".to_owned(),
        },
        gpus: BTreeMap::new(),
        growth: BTreeMap::new(),
        returnable: BTreeMap::new(),
        notes: Vec::new(),
    });
    let page = written(&explanation, DocumentFormat::Text);
    let at = page.find("KV CACHE").expect("a section");
    let section: Vec<&str> = page[at..].lines().take(2).collect();
    insta::assert_snapshot!(section.join("\n"), @"
    KV CACHE  cuda:0  KV cache 64.00 KiB, 8 blocks (8.00 KiB each, 16 tokens), as BlockPool in PID 4242…
      2 requests 24.00 KiB, shared 8.00 KiB, cached 8.00 KiB, free 16.00 KiB
    ");
    let json: Value = serde_json::from_str(&written(&explanation, DocumentFormat::Json)).unwrap();
    let cache = &json["devices"][0]["kv_cache"];
    let rows = cache["rows"].as_array().expect("rows").iter();
    let sum: u64 = rows.map(|row| row["bytes"].as_u64().expect("bytes")).sum();
    assert_eq!(Some(sum), cache["bytes"].as_u64());
    assert_eq!(cache["scheduler_pid"], 4242);
}

#[test]
fn the_page_of_a_recording() {
    let explanation = of_recording(&learning_for(40, |_| true).events);
    insta::assert_snapshot!(written(&explanation, DocumentFormat::Text));
}

#[test]
fn the_json_has_the_facts_of_the_page() {
    let explanation = leaking();
    let text = written(&explanation, DocumentFormat::Json);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["verdict"]["id"], "growth");
    let device = &document["devices"][0];
    let bytes = |rows: &Value, id: &str| {
        let rows = rows.as_array().unwrap();
        let row = rows.iter().find(|row| row["id"] == id);
        row.map(|row| row["bytes"].as_u64().unwrap())
    };
    let parts = device["parts"].as_array().unwrap();
    let sum: u64 = parts
        .iter()
        .map(|part| part["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(sum, 16 * GIB);
    assert_eq!(bytes(&device["parts"], "free"), Some(13 * GIB));
    assert_eq!(bytes(&device["measures"], "drop_retainer"), Some(2 * GIB));
    // The segments are known: it is no upper bound.
    assert_eq!(bytes(&device["measures"], "empty_cache"), Some(500 << 20));
    let measures = device["measures"].as_array().unwrap();
    assert!(measures.iter().all(|it| it["at_most"] == false));
    assert_eq!(
        device["owners"][0]["name"],
        "train.py:53 main() -> losses[*]"
    );
    assert_eq!(device["owners"][0]["exclusive_bytes"], 2 * GIB);
    let growing = &device["growth"]["lines"][0];
    assert!(growing["bytes"].as_f64().unwrap() > 0.0, "{growing}");
    assert!(document["next"][0].as_str().unwrap().contains("20292"));
}

#[test]
fn the_verdict_on_a_cache_says_what_would_be_returned() {
    let mut explanation = leaking();
    let device = &mut explanation.devices[0];
    device.growth = None;
    device.totals.reserved = Bytes(3 * device.totals.allocated.0);
    device.parts = completed([], device.totals, None);
    device.returnable = Some(Bytes(0));
    let text = written(&explanation, DocumentFormat::Text).replace("\n  ", " ");
    assert!(
        text.contains("empty_cache() would return none of it."),
        "{text}"
    );
}

#[test]
fn a_cache_of_little_of_the_gpu_is_no_verdict() {
    let mut explanation = leaking();
    let device = &mut explanation.devices[0];
    device.growth = None;
    let mut verdict_with = |cached: u64| {
        let device = &mut explanation.devices[0];
        device.totals.allocated = Bytes(50 << 20);
        device.totals.reserved = Bytes((50 + cached) << 20);
        device.parts = completed([], device.totals, device.gpu);
        let document = written(&explanation, DocumentFormat::Json);
        let document: serde_json::Value = serde_json::from_str(&document).unwrap();
        document["verdict"]["id"].as_str().unwrap().to_owned()
    };
    // 1 % of 16 GiB.
    assert_eq!(verdict_with(164), "cached");
    assert_ne!(verdict_with(163), "cached");
}

#[test]
fn a_kv_cache_is_no_memory_to_give_back() {
    let mut explanation = leaking();
    let device = &mut explanation.devices[0];
    let drops = |device: &DeviceExplanation| {
        let measures = super::measures::measures(device).into_iter();
        let drops = measures.filter(|measure| measure.id == MeasureId::DropRetainer);
        drops.count()
    };
    let before = drops(device);
    assert!(before > 0);
    device.owners[0].kv_cache = device.owners[0].bytes;
    assert_eq!(drops(device), before - 1);
}

#[test]
fn the_parts_add_up_to_the_gpu_or_to_what_is_reserved() {
    let totals = Totals {
        allocated: Bytes(700),
        reserved: Bytes(1000),
    };
    let sum = |gpu| {
        let parts = completed([(PartId::Parameters, 600)], totals, gpu);
        let sum: u64 = parts.iter().map(|part| part.bytes.0).sum();
        (sum, parts.len())
    };
    assert_eq!(sum(None), (1000, 3));
    assert_eq!(sum(Some(gpu(None))), (16 * GIB, 5));
    assert_eq!(sum(Some(gpu(Some(2000)))), (16 * GIB, 6));
    // The driver was asked before the allocator grew.
    assert_eq!(sum(Some(gpu(Some(10)))).0, 16 * GIB);
}

#[test]
fn a_process_without_memory_says_so() {
    let explanation = Explanation {
        target: Target::default(),
        source: ExplanationSource::Snapshot {
            file: "a.json".to_owned(),
        },
        devices: Vec::new(),
        notes: vec!["x\u{1b}[31m".to_owned()],
    };
    let text = written(&explanation, DocumentFormat::Text);
    assert!(text.contains("has no GPU memory"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}

/// Two GPUs: on the first two processes, of which one grows, on the second one that cannot be looked into.
fn machine() -> HostSnapshot {
    let process = |tgid: u32, command: &str, gpu: u32, mib: u64| ProcessRow {
        tgid: Tgid(tgid),
        target: Target {
            tgid: Some(Tgid(tgid)),
            command: command.to_owned(),
            ..Target::default()
        },
        facts: ProcessFacts::default(),
        state: ProcessState::Probed,
        stopped: None,
        devices: vec![DeviceRow {
            index: DEVICE,
            totals: Totals {
                allocated: Bytes(mib << 20),
                reserved: Bytes((mib + 512) << 20),
            },
            peak: Totals::default(),
        }],
        totals_age: None,
        peak: Totals::default(),
        driver: vec![DriverUse {
            device: gpu,
            bytes: Some(Bytes((mib + 812) << 20)),
        }],
        driver_is_partial: false,
        trend: Trend::default(),
        growth: None,
        top: None,
        note: None,
        events: 1000,
        events_per_second: 1.0,
    };
    let mut grows = process(11, "python train.py --seconds 600", 0, 9000);
    grows.growth = Some(GrowthRate {
        per_minute: 3 << 30,
        is_steady: true,
    });
    let mut refused = process(30, "python old.py", 1, 100);
    refused.state = ProcessState::Refused("Python 3.8 is not supported".to_owned());
    refused.devices.clear();
    let gpu = |index: u32, used_mib: u64| DriverDevice {
        index,
        name: "NVIDIA H100".to_owned(),
        uuid: None,
        pci_bus_id: None,
        memory: Ok(DriverMemory {
            used: Bytes(used_mib << 20),
            total: Bytes(80 * GIB),
        }),
        mig_devices: None,
        processes: Ok(()),
        others: None,
    };
    HostSnapshot {
        started: TimeNs(0),
        now: TimeNs(5_000_000_000),
        processes: vec![grows, process(12, "python serve.py", 0, 40_000), refused],
        // Of the second GPU a process that nobody lists has 20 GiB.
        driver: DriverSnapshot::Devices(vec![gpu(0, 50_624), gpu(1, 912 + 20_480)]),
        health: HostHealth::default(),
    }
}

fn written_machine(snapshot: &HostSnapshot, format: DocumentFormat) -> String {
    let options = ExplainOptions {
        format,
        width: 100,
        colour: Colour::Plain,
    };
    let mut out = Vec::new();
    write_host_explanation(snapshot, options, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    text.replace(env!("CARGO_PKG_VERSION"), "0.0.0")
}

#[test]
fn the_page_of_all_processes() {
    let text = written_machine(&machine(), DocumentFormat::Text);
    assert!(text.lines().count() <= 40, "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn the_page_of_many_processes_is_no_longer_than_40_lines() {
    let mut snapshot = machine();
    let row = snapshot.processes[1].clone();
    let more = (100..200).map(|tgid| ProcessRow {
        tgid: Tgid(tgid),
        ..row.clone()
    });
    snapshot.processes.extend(more);
    let DriverSnapshot::Devices(gpus) = &mut snapshot.driver else {
        unreachable!("it has GPUs")
    };
    let gpu = gpus[0].clone();
    gpus.extend((2..16).map(|index| DriverDevice {
        index,
        ..gpu.clone()
    }));
    let text = written_machine(&snapshot, DocumentFormat::Text);
    assert!(text.lines().count() <= 40, "{text}");
    assert!(text.contains("4 more GPUs"), "{text}");
    let document = written_machine(&snapshot, DocumentFormat::Json);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["processes"].as_array().unwrap().len(), 103);
}

/// A recording that ends with a request of 40 GiB, as a dump with the driver's numbers.
fn dumped(facts: impl FnOnce(TimeNs) -> Option<DumpFacts>) -> Explanation {
    let mut events = learning_for(40, |_| true).events;
    let last = events.iter().rev().find_map(|event| match event {
        Event::Memory(memory) => Some(*memory),
        _ => None,
    });
    let last = last.expect("a memory event");
    let time = TimeNs(last.time.0 + 1);
    events.push(Event::Memory(MemoryEvent {
        time,
        action: Action::OutOfMemory,
        addr: Address(0),
        size: Bytes(40 * GIB),
        ..last
    }));
    let file = tempfile::NamedTempFile::new().unwrap();
    let header = Header {
        dump: facts(time).map(Box::new),
        ..samples::header()
    };
    std::fs::write(file.path(), samples::recording_of(&header, &events)).unwrap();
    explain_recording(Reader::open(file.path()).unwrap(), "dump.mprb").unwrap()
}

fn facts(time: TimeNs) -> DumpFacts {
    let gpu = DumpedGpu {
        device: DEVICE,
        asked: time,
        total: 16 * GIB,
        used: 10 * GIB,
        own: Some(GIB),
        others: vec![DumpedProcess {
            pid: 7,
            command: "python serve.py".to_owned(),
            bytes: Some(9 * GIB),
            cached: Some(2 * GIB),
        }],
        others_unknown: None,
    };
    DumpFacts {
        reason: DumpReason::OutOfMemory,
        time,
        counted_ooms: 3,
        gpus: vec![gpu],
        gpus_unknown: None,
        objects: None,
        objects_unread: Some("it ended".to_owned()),
        blocks_left_out: 0,
    }
}

#[test]
fn the_page_of_a_dump_names_the_cause_of_the_failed_request() {
    let dumped = dumped(|time| Some(facts(time)));
    assert_eq!(verdict_of(&dumped).0, "too_large");
    insta::assert_snapshot!(written(&dumped, DocumentFormat::Text));
    let document: Value = serde_json::from_str(&written(&dumped, DocumentFormat::Json)).unwrap();
    let failed = &document["devices"][0]["failed_request"];
    assert_eq!(failed["cause"], "too_large");
    assert_eq!(failed["bytes"], 40 * GIB);
    assert_eq!(failed["other_processes"][0]["pid"], 7);
}

/// A dump whose request failed for another cause, with the evidence for it.
fn failed_for(cause: OomCause) -> Explanation {
    const MIB: u64 = 1 << 20;
    let mut explanation = dumped(|time| Some(facts(time)));
    let device = &mut explanation.devices[0];
    device.totals = Totals::of(3000 * MIB, 6000 * MIB);
    device.gpu = Some(GpuMemory {
        total: Bytes(16 * GIB),
        used: Bytes(16 * GIB - 100 * MIB),
        process: Some(Bytes(6900 * MIB)),
        unbacked: Bytes(0),
    });
    device.growth = None;
    let failed = device.failed.as_mut().unwrap();
    let list = |name: &str, free: u64, largest: u64| FreeList {
        name: name.to_owned(),
        free: Bytes(free * MIB),
        largest: Bytes(largest * MIB),
    };
    failed.size = Bytes(512 * MIB);
    failed.line = "train.py:88 step".to_owned();
    failed.cause = cause;
    match cause {
        OomCause::Growth => failed.growing = Bytes(2500 * MIB),
        OomCause::Fragmentation => {
            failed.free_lists = Some(vec![list("large, default stream", 3000, 90)]);
        }
        OomCause::CachedElsewhere => {
            let lists = [
                ("large, default stream", 20, 8),
                ("large, stream 2", 700, 600),
            ];
            let lists = lists.map(|(name, free, largest)| list(name, free, largest));
            failed.free_lists = Some(lists.into());
        }
        OomCause::Asleep => {
            let asleep = Bytes(4000 * MIB);
            device.gpu = device.gpu.map(|gpu| GpuMemory {
                used: Bytes(12 * GIB),
                process: Some(Bytes(2900 * MIB)),
                unbacked: asleep,
                ..gpu
            });
            failed.asleep = Some(SleepingBytes {
                bytes: asleep,
                largest: Some(SleepingOwner {
                    line: "serve.py:12 load".to_owned(),
                    tag: Some("weights".into()),
                    bytes: Bytes(3000 * MIB),
                }),
            });
        }
        OomCause::TooLarge | OomCause::AnotherProcess | OomCause::Unknown => {}
    }
    let parts = [(PartId::Parameters, 2000 * MIB)];
    device.parts = completed(parts, device.totals, device.gpu);
    device.returnable = None;
    device.measures = measures::measures(device);
    explanation
}

#[test]
fn each_cause_of_a_failed_request_has_its_page() {
    for cause in [
        OomCause::Growth,
        OomCause::Fragmentation,
        OomCause::CachedElsewhere,
        OomCause::AnotherProcess,
        OomCause::Asleep,
        OomCause::Unknown,
    ] {
        let explanation = failed_for(cause);
        let page = written(&explanation, DocumentFormat::Text);
        assert!(page.lines().count() <= 40, "{page}");
        insta::assert_snapshot!(format!("the_page_of_the_cause_{}", cause.key()), page);
        let document = written(&explanation, DocumentFormat::Json);
        let document: Value = serde_json::from_str(&document).unwrap();
        let failed = &document["devices"][0]["failed_request"];
        assert_eq!(failed["cause"], cause.key());
        assert_eq!(document["verdict"]["id"], "out_of_memory");
    }
}

#[test]
fn a_recording_without_the_drivers_numbers_says_that_the_cause_is_unknown() {
    let recorded = dumped(|_| None);
    let (cause, text) = verdict_of(&recorded);
    assert_eq!(cause, "unknown");
    assert!(text.starts_with("Out of memory: "), "{text}");
    assert!(text.contains("The cause is unknown"), "{text}");
}
