use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::event::{
    Action, Address, BlockLabels, Bytes, CallPathOrigin, CalledModule, Context, DeviceIndex, Event,
    LabeledBlock, MemoryEvent, Module, Stack, StackId, StackKind, Tgid, TimeNs,
};
use crate::recording::samples::{
    MIB, at_attach, compact_recording, frame, labeled_attach, late_attach, memory, on_the_cpu,
    purposes, recording, stack, story, tensors, totals,
};

fn report(file: &[u8], options: ReportOptions) -> String {
    let mut out = Vec::new();
    write(Reader::new(file).unwrap(), &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn table(events: &[Event]) -> String {
    report(&recording(events), ReportOptions::default())
}

fn jsonl(events: &[Event]) -> Vec<Value> {
    let options = ReportOptions {
        by: By::Event,
        format: ReportFormat::Jsonl,
        ..ReportOptions::default()
    };
    let text = report(&recording(events), options);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// An allocation or free with the resulting totals, in MiB.
fn step(action: Action, micros: u64, addr: u64, mib: u64, id: u32, allocated: u64) -> Event {
    Event::Memory(MemoryEvent {
        stack: StackId(id),
        totals: totals(allocated * MIB, 64 * MIB),
        ..memory(action, micros, addr, mib * MIB)
    })
}

/// Three lines of two files with the same name, called from one script.
fn three_lines() -> Vec<Event> {
    let train = || frame("/home/me/train.py", 12, "main");
    let python = |id, inner| stack(id, StackKind::Python, vec![inner, train()]);
    vec![
        python(1, frame("/home/me/nn/model.py", 5, "forward")),
        python(2, frame("/home/me/rl/model.py", 7, "act")),
        python(3, frame("/home/me/data.py", 9, "load")),
        step(Action::Alloc, 1, 0x100_0000, 1, 1, 1),
        step(Action::Alloc, 2, 0x200_0000, 8, 2, 9),
        step(Action::Alloc, 3, 0x300_0000, 2, 3, 11),
        step(Action::Free, 4, 0x200_0000, 8, 0, 3),
        step(Action::Alloc, 5, 0x400_0000, 2, 3, 5),
    ]
}

/// The LINE column of a table's rows.
fn line_column(table: &str) -> Vec<String> {
    let heading = table
        .lines()
        .position(|line| line.contains("LINE"))
        .unwrap();
    let at = table.lines().nth(heading).unwrap().find("LINE").unwrap();
    table
        .lines()
        .skip(heading + 1)
        .map(|line| line[at..].to_owned())
        .collect()
}

#[test]
fn the_table_of_a_recording_with_a_little_of_everything() {
    insta::assert_snapshot!(table(&story()));
}

#[test]
fn the_table_of_a_late_attach_counts_what_was_found() {
    insta::assert_snapshot!(table(&late_attach()));
}

#[test]
fn the_table_of_a_late_attach_divides_it_by_what_the_objects_say() {
    insta::assert_snapshot!(table(&labeled_attach()));
    let options = ReportOptions {
        format: ReportFormat::Json,
        ..ReportOptions::default()
    };
    let text = report(&recording(&labeled_attach()), options);
    let report: Value = serde_json::from_str(&text).unwrap();
    let parts = &report["devices"][0]["before_attach_parts"];
    let owner = json!({ "name": "model.fc", "live": 2 * MIB, "live_blocks": 1 });
    assert_eq!(
        parts[0],
        json!({ "kind": "parameter", "live": 2 * MIB, "live_blocks": 1, "owners": [owner] })
    );
    assert_eq!(parts[1]["owners"][0]["class"], "list");
}

#[test]
fn modules_count_the_parameters_from_before_attach_that_they_hold() {
    let of = |events: &[Event]| {
        let options = ReportOptions {
            by: By::Module,
            ..ReportOptions::default()
        };
        report(&recording(events), options)
    };
    insta::assert_snapshot!(of(&labeled_attach()));
    let mut freed = labeled_attach();
    freed.push(step(Action::Free, 40, 0x7f00_0000_0000, 2, 0, 5));
    insta::assert_snapshot!(of(&freed));
}

#[test]
fn the_table_of_a_late_attach_with_unreadable_blocks_names_the_reason() {
    let reason = "memprobe does not know the tables of PyTorch 9.9.9";
    insta::assert_snapshot!(table(&[at_attach(Some(reason))]));
}

#[test]
fn what_was_found_at_attach_is_listed_without_a_thread() {
    let rows = jsonl(&late_attach());
    assert_eq!(rows.len(), 3);
    assert_eq!(
        (&rows[0]["action"], &rows[0]["tid"]),
        (&json!("live_at_attach"), &Value::Null)
    );
}

#[test]
fn the_table_of_an_empty_recording() {
    insta::assert_snapshot!(table(&[]));
}

#[test]
fn the_table_of_a_truncated_recording() {
    let file = recording(&three_lines());
    let end = file
        .windows(14)
        .position(|part| part == b"\"memprobe_end\"")
        .unwrap();
    insta::assert_snapshot!(report(&file[..end], ReportOptions::default()));
}

#[test]
fn the_table_of_a_recording_with_losses_shows_what_no_line_accounts_for() {
    let mut events = three_lines();
    events.push(Event::Loss(Losses {
        events: 2,
        stacks: 0,
        malformed: 1,
        uses: 4,
    }));
    events.push(step(Action::Alloc, 9, 0x500_0000, 1, 1, 10));
    insta::assert_snapshot!(table(&events));
}

#[test]
fn the_table_in_a_narrow_terminal_with_colour() {
    let options = ReportOptions {
        width: 60,
        colour: Colour::Ansi,
        top: RowLimit::Rows(2),
        ..Default::default()
    };
    let text = report(&recording(&three_lines()), options).replace('\x1b', "␛");
    insta::assert_snapshot!(text);
}

#[test]
fn the_table_of_the_cpu_says_that_its_sums_are_memprobes_own() {
    insta::assert_snapshot!(table(&on_the_cpu()));
}

#[test]
fn the_cpu_is_a_device_by_name_and_frees_of_what_is_not_known_are_counted() {
    let rows = jsonl(&on_the_cpu());
    assert!(rows.iter().all(|row| row["device"] == "cpu"));
    assert_eq!(
        (&rows[1]["size"], &rows[3]["size"]),
        (&Value::Null, &json!(12))
    );
    let options = ReportOptions {
        format: ReportFormat::Json,
        ..ReportOptions::default()
    };
    let document: Value =
        serde_json::from_str(&report(&recording(&on_the_cpu()), options)).unwrap();
    let device = &document["devices"][0];
    assert_eq!(
        (&device["device"], &device["unseen_frees"]),
        (&json!("cpu"), &json!(1))
    );
    assert_eq!(
        (&device["allocated"], &device["unaccounted"]),
        (&json!(400), &json!(0))
    );
}

fn by_tensor(format: ReportFormat) -> String {
    let options = ReportOptions {
        by: By::Tensor,
        format,
        ..ReportOptions::default()
    };
    report(&recording(&tensors()), options)
}

#[test]
fn the_table_of_tensors() {
    insta::assert_snapshot!(by_tensor(ReportFormat::Text));
}

#[test]
fn the_table_of_tensors_for_other_programs() {
    let document: Value = serde_json::from_str(&by_tensor(ReportFormat::Json)).unwrap();
    let device = &document["devices"][0];
    let rows = device["tensors"].as_array().unwrap();
    let row = rows.iter().find(|row| row["dtype"] == "float32").unwrap();
    assert_eq!(row["shape"], json!([32, 1024]));
    assert_eq!(
        (&row["requested"], &row["allocs"]),
        (&json!(131_072), &json!(2))
    );
    assert_eq!(
        (&row["live"], &row["peak"]),
        (&json!(131_072), &json!(262_144))
    );
    let csv = by_tensor(ReportFormat::Csv);
    assert!(
        csv.contains("0,tensor,\"(32, 1024)\",float32,131072,/home/me/train.py,31,"),
        "{csv}"
    );
    assert_eq!(
        by_tensor(ReportFormat::Jsonl).lines().count(),
        csv.lines().count() - 1
    );
}

#[test]
fn an_event_says_the_tensor_that_it_happened_for() {
    let rows = jsonl(&tensors());
    let cell = |at: usize, key: &str| rows[at][key].clone();
    assert_eq!(cell(0, "shape"), json!([32, 1024]));
    assert_eq!(
        (cell(0, "dtype"), cell(0, "requested")),
        (json!("float32"), json!(131_072))
    );
    assert_eq!(
        (cell(2, "more_dimensions"), cell(2, "dtype")),
        (json!(3), json!("dtype 99"))
    );
    assert_eq!(
        (cell(3, "tensor"), cell(3, "shape")),
        (json!(false), Value::Null)
    );
    assert!(rows[4].get("tensor").is_none() && rows[4].get("shape").is_none());
}

#[test]
fn the_table_of_blocks_without_a_tensor_has_a_row_for_each_use() {
    let by_use = |format| {
        let options = ReportOptions {
            by: By::Tensor,
            format,
            ..ReportOptions::default()
        };
        report(&recording(&purposes()), options)
    };
    insta::assert_snapshot!(by_use(ReportFormat::Text));
    let document: Value = serde_json::from_str(&by_use(ReportFormat::Json)).unwrap();
    let rows = document["devices"][0]["tensors"].as_array().unwrap();
    let row = rows.iter().find(|row| row["allocs"] == 2).unwrap();
    assert_eq!(
        (
            &row["kind"],
            &row["purpose"],
            &row["requested_by"],
            &row["library"]
        ),
        (
            &json!("no_tensor"),
            &json!("cuBLAS workspace"),
            &json!("at::cuda::getCurrentCUDABlasHandle"),
            &json!("libtorch_cuda.so")
        )
    );
    assert_eq!(rows.len(), 3);
    let csv = by_use(ReportFormat::Csv);
    assert!(
        csv.contains(",,at::native::foo,libtorch_cuda.so\n"),
        "{csv}"
    );
}

#[test]
fn an_event_says_what_its_block_is_for() {
    let rows = jsonl(&purposes());
    assert_eq!(rows[0]["tensor"], json!(false));
    assert_eq!(
        rows[0]["inferred"],
        json!({
            "purpose": "cuBLAS workspace",
            "function": "at::cuda::getCurrentCUDABlasHandle",
            "library": "libtorch_cuda.so",
        })
    );
    assert_eq!(rows[2]["inferred"]["purpose"], Value::Null);
    assert_eq!(rows[2]["inferred"]["function"], json!("at::native::foo"));
    assert!(rows[3].get("inferred").is_none() && rows[3]["tensor"] == json!(false));
}

#[test]
fn lines_are_sorted_by_what_was_asked_for() {
    let file = recording(&three_lines());
    let first = |sort| {
        let options = ReportOptions {
            sort,
            ..ReportOptions::default()
        };
        line_column(&report(&file, options))[0].clone()
    };
    assert!(first(Sort::Peak).starts_with("rl/model.py:7 act"));
    for sort in [Sort::Live, Sort::Blocks, Sort::Allocs] {
        assert!(first(sort).starts_with("data.py:9 load"));
    }
}

#[test]
fn live_bytes_of_all_rows_add_up_to_the_total_of_the_allocator() {
    let mut events = story();
    events.push(Event::Memory(MemoryEvent {
        totals: totals(15 * MIB, 22 * MIB),
        stack: StackId(1),
        ..memory(Action::Alloc, 70, 0x7f00_0080_0000, MIB)
    }));
    let file = recording(&events);
    for (top, format) in [
        (RowLimit::All, ReportFormat::Csv),
        (RowLimit::Rows(1), ReportFormat::Csv),
        (RowLimit::All, ReportFormat::Jsonl),
        (RowLimit::Rows(1), ReportFormat::Jsonl),
    ] {
        let text = report(
            &file,
            ReportOptions {
                top,
                format,
                ..ReportOptions::default()
            },
        );
        let live: Vec<i64> = match format {
            ReportFormat::Csv => csv::Reader::from_reader(text.as_bytes())
                .records()
                .map(Result::unwrap)
                .filter(|row| &row[0] == "0")
                .map(|row| row[7].parse().unwrap())
                .collect(),
            _ => text
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap())
                .filter(|row| row["device"] == 0)
                .map(|row| row["live"].as_i64().unwrap())
                .collect(),
        };
        assert!(live.len() >= 4, "lines, before attach, unaccounted");
        assert_eq!(live.iter().sum::<i64>(), 15 * MIB as i64);
    }
}

#[test]
fn the_json_report_holds_all_numbers() {
    let options = ReportOptions {
        format: ReportFormat::Json,
        ..ReportOptions::default()
    };
    let text = report(&recording(&story()), options);
    serde_json::from_str::<Value>(&text).unwrap();
    insta::assert_snapshot!(text);
}

#[test]
fn every_event_is_one_json_object_with_exactly_the_promised_keys() {
    let rows = jsonl(&story());
    assert_eq!(rows.len(), 10);
    let base = [
        "action",
        "addr",
        "allocated",
        "device",
        "reserved",
        "size",
        "stack",
        "tid",
        "time_ns",
    ];
    for row in &rows {
        let mut keys: Vec<&str> = row
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.retain(|key| !["thread", "waiting", "no_stack"].contains(key));
        keys.sort_unstable();
        assert_eq!(keys, base);
    }
    assert_eq!(
        rows[1],
        json!({
            "time_ns": 5_000_010_000_u64, "tid": 1234, "action": "alloc",
            "addr": 0x7f00_0000_0000_u64, "size": 2 * MIB, "device": 0,
            "allocated": 12 * MIB, "reserved": 22 * MIB,
            "stack": [
                {"file": "/v/lib/python3.12/site-packages/torch/nn/linear.py", "line": 134, "function": "forward"},
                {"file": "/home/me/model.py", "line": 88, "function": "forward"},
                {"file": "/home/me/train.py", "line": 31, "function": "<module>"},
            ],
        })
    );
}

#[test]
fn what_is_unknown_of_an_event_is_null() {
    let rows = jsonl(&story());
    let segment_free = rows
        .iter()
        .find(|row| row["action"] == "segment_free")
        .unwrap();
    for key in ["size", "device", "allocated", "reserved"] {
        assert_eq!(segment_free[key], Value::Null, "{key}");
    }
    let oom = rows.iter().find(|row| row["action"] == "oom").unwrap();
    assert_eq!(
        (&oom["addr"], &oom["size"]),
        (&Value::Null, &json!(1_u64 << 40))
    );
}

#[test]
fn events_of_threads_without_python_say_which_thread_it_was_and_what_waits_for_it() {
    let rows = jsonl(&story());
    let backward = rows
        .iter()
        .find(|row| row["thread"] == "pt_autograd_0")
        .unwrap();
    assert_eq!(backward["stack"], json!([]));
    assert_eq!(backward["waiting"][0]["line"], 88);
    assert_eq!(backward.get("no_stack"), None);
    let unknown = rows
        .iter()
        .find(|row| row["thread"] == "cuda-EvtHandlr")
        .unwrap();
    assert_eq!(unknown["no_stack"], "thread without Python");
    assert_eq!(
        (&unknown["stack"], unknown.get("waiting")),
        (&json!([]), None)
    );
}

#[test]
fn a_stack_whose_outer_frames_are_missing_says_so() {
    let whole = Stack {
        kind: StackKind::Python,
        frames: vec![frame("a.py", 0, "f")],
        truncated: true,
        context: Context::default(),
    };
    let rows = jsonl(&[
        Event::Stack(StackId(1), Arc::new(whole)),
        step(Action::Alloc, 1, 1, 1, 1, 1),
    ]);
    assert_eq!(rows[0]["stack_truncated"], true);
    assert_eq!(
        rows[0]["stack"][0]["line"],
        Value::Null,
        "line 0 stands for none"
    );
}

/// Two blocks of calls of equal models; later reads of the process name the models' variables.
fn equal_models() -> Vec<Event> {
    let called = |id, path: &str| {
        let stack = Stack {
            kind: StackKind::Python,
            frames: vec![frame("/home/me/train.py", 12, "main")],
            truncated: false,
            context: Context {
                module: Module::Called(path.into()),
                ..Context::default()
            },
        };
        Event::Stack(StackId(id), Arc::new(stack))
    };
    let labeled = |addr, variable: &str, path: &str| LabeledBlock {
        module: Some(variable.into()),
        called: Some(CalledModule {
            path: path.into(),
            origin: CallPathOrigin::Call,
        }),
        ..LabeledBlock::unlabeled(Address(addr), Bytes(MIB), DeviceIndex(0))
    };
    let labels = BlockLabels {
        time: TimeNs(5_000_000_100),
        tgid: Tgid(1234),
        blocks: vec![
            labeled(1, "G.0", "Sequential.0"),
            labeled(2, "D.0", "Sequential#2.0"),
        ],
        optimizers: Vec::new(),
        tags: Vec::new(),
    };
    vec![
        called(1, "Sequential.1"),
        step(Action::Alloc, 1, 1, 1, 1, 1),
        called(2, "Sequential#2"),
        step(Action::Alloc, 2, 2, 1, 2, 2),
        Event::BlockLabels(labels.into()),
    ]
}

#[test]
fn modules_of_events_go_by_the_variables_that_a_file_names_later() {
    let modules = |text: &[u8]| -> Vec<Value> {
        let lines = text.split(|&byte| byte == b'\n');
        let rows = lines.filter(|line| !line.is_empty());
        rows.map(|row| serde_json::from_slice::<Value>(row).unwrap()["module"].clone())
            .collect()
    };
    let options = ReportOptions {
        by: By::Event,
        format: ReportFormat::Jsonl,
        ..ReportOptions::default()
    };
    let bytes = recording(&equal_models());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let mut out = Vec::new();
    write(Reader::open(file.path()).unwrap(), &options, &mut out).unwrap();
    assert_eq!(modules(&out), ["G.1", "D"]);
    // A pipe is read once.
    let piped = report(&bytes, options);
    assert_eq!(modules(piped.as_bytes()), ["Sequential.1", "Sequential#2"]);
}

#[test]
fn every_event_as_text() {
    let options = ReportOptions {
        by: By::Event,
        ..ReportOptions::default()
    };
    insta::assert_snapshot!(report(&recording(&story()), options));
}

#[test]
fn every_event_as_csv_and_as_one_json_document() {
    let options = |format| ReportOptions {
        by: By::Event,
        format,
        ..ReportOptions::default()
    };
    let csv = report(&recording(&story()), options(ReportFormat::Csv));
    let rows: Vec<csv::StringRecord> = csv::Reader::from_reader(csv.as_bytes())
        .records()
        .map(Result::unwrap)
        .collect();
    assert_eq!(rows.len(), 10);
    assert_eq!(&rows[1][3], "0x7f0000000000");
    let document: Vec<Value> =
        serde_json::from_str(&report(&recording(&story()), options(ReportFormat::Json))).unwrap();
    assert_eq!(document, jsonl(&story()));
    assert_eq!(report(&recording(&[]), options(ReportFormat::Json)), "[]\n");
}

#[test]
fn hostile_texts_reach_no_terminal() {
    let evil = "\x1b]0;owned\x07\n\u{202e}";
    let events = [
        stack(
            1,
            StackKind::Waiting {
                thread: evil.into(),
            },
            vec![frame(evil, 1, evil)],
        ),
        step(Action::Alloc, 1, 0x1000, 1, 1, 1),
    ];
    let file = recording(&events);
    for by in [By::Line, By::Event] {
        let text = report(
            &file,
            ReportOptions {
                by,
                ..ReportOptions::default()
            },
        );
        assert!(
            text.chars()
                .all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'),
            "{text:?}"
        );
    }
}

#[test]
fn damage_is_an_error_after_the_events_that_could_be_read_and_instead_of_a_table() {
    let file = String::from_utf8(recording(&story())).unwrap();
    let file = file.replace("\"addr\":\"0x7f0000400000\"", "\"addr\":\"?\"");
    let run = |by| {
        let options = ReportOptions {
            by,
            format: ReportFormat::Jsonl,
            ..ReportOptions::default()
        };
        let mut out = Vec::new();
        let error = write(Reader::new(file.as_bytes()).unwrap(), &options, &mut out).unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{error}");
        out.iter().filter(|byte| **byte == b'\n').count()
    };
    assert_eq!(run(By::Event), 4);
    assert_eq!(run(By::Line), 0);
}

/// A pipe whose reader has closed it.
struct Gone;

impl Write for Gone {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let file = recording(&story());
    for by in [By::Line, By::Event] {
        for format in [
            ReportFormat::Text,
            ReportFormat::Json,
            ReportFormat::Jsonl,
            ReportFormat::Csv,
        ] {
            let options = ReportOptions {
                by,
                format,
                ..ReportOptions::default()
            };
            let outcome = write(Reader::new(&*file).unwrap(), &options, &mut Gone).unwrap();
            assert_eq!(outcome, None, "{by:?} {format:?}");
        }
    }
}

#[test]
fn the_outcome_says_what_was_lost_and_whether_the_end_is_missing() {
    let file = recording(&story());
    for by in [By::Line, By::Event] {
        let options = ReportOptions {
            by,
            ..ReportOptions::default()
        };
        let run = |file: &[u8]| write(Reader::new(file).unwrap(), &options, &mut io::sink());
        let outcome = run(&file).unwrap().unwrap();
        assert_eq!((outcome.events, outcome.truncated), (10, false));
        assert_eq!(
            outcome.losses,
            Losses {
                events: 3,
                stacks: 1,
                malformed: 0,
                uses: 0
            }
        );
        assert!(run(&file[..file.len() - 40]).unwrap().unwrap().truncated);
    }
}

#[test]
fn devices_stand_in_tables_of_their_own() {
    let text = table(&story());
    let headings: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("cuda:"))
        .collect();
    assert_eq!(headings.len(), 2);
    let other = Event::Memory(MemoryEvent {
        device: Some(DeviceIndex(3)),
        addr: Address(0x1000),
        size: Bytes(512),
        totals: totals(512, 2 * MIB),
        ..memory(Action::Alloc, 1, 0, 0)
    });
    assert!(table(&[other]).contains("cuda:3  allocated 512 B, peak 512 B"));
}

#[test]
fn every_report_of_a_compact_recording_is_that_of_its_trace() {
    let breakdowns = Breakdown::ALL.iter().copied().map(By::Breakdown);
    let kinds = [
        By::Line,
        By::Tensor,
        By::Event,
        By::Module,
        By::Peak,
        By::Growth,
        By::Iteration,
        By::Category,
        By::Phase,
        By::Saved,
        By::Size,
        By::Layer,
        By::Segment,
    ];
    let report = |file: &[u8], options: &ReportOptions| {
        let mut out = Vec::new();
        let outcome = write(Reader::new(file).unwrap(), options, &mut out);
        let outcome = outcome.map_err(|error| error.to_string());
        (outcome, String::from_utf8(out).unwrap())
    };
    for events in [
        story(),
        tensors(),
        purposes(),
        on_the_cpu(),
        late_attach(),
        labeled_attach(),
        equal_models(),
    ] {
        let (trace, compact) = (recording(&events), compact_recording(&events));
        for by in kinds.into_iter().chain(breakdowns.clone()) {
            for format in [ReportFormat::Text, ReportFormat::Jsonl, ReportFormat::Csv] {
                let options = ReportOptions {
                    by,
                    format,
                    ..ReportOptions::default()
                };
                assert_eq!(
                    report(&trace, &options),
                    report(&compact, &options),
                    "{by:?}"
                );
            }
        }
    }
}

#[test]
fn damage_of_a_compact_recording_is_said_and_is_no_matter_of_the_buffer() {
    let mut events = story();
    // Labels of many blocks fill several frames.
    let block = LabeledBlock::unlabeled(Address(512), Bytes(512), DeviceIndex(0));
    events.push(Event::BlockLabels(Arc::new(BlockLabels {
        time: TimeNs(6_000_000_000),
        tgid: Tgid(1234),
        blocks: vec![block; 100_000],
        optimizers: Vec::new(),
        tags: Vec::new(),
    })));
    let mut file = compact_recording(&events);
    // The last bytes before the end are of a frame with the labels.
    let place = file.len() - 600;
    file[place] ^= 1;
    let text = report(&file, ReportOptions::default());
    assert!(
        text.contains("the recording is damaged in 1 place"),
        "{text}"
    );
    assert!(text.contains("The report covers the rest."), "{text}");
    assert!(!text.contains("--buffer-size"), "{text}");
}
