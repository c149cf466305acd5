//! Exports of a recording, read by other programs or by the rules of their formats, against its reports.

use std::collections::BTreeMap;
use std::io::Read as _;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::protobuf::ProtoMessage;
use memprobe_tests::recorded_training::{RecordedTraining, text};
use serde_json::Value;

#[test]
fn folded_stacks_and_speedscope_have_the_allocators_peak_and_the_lines_of_the_report() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let recorded = RecordedTraining::take(&environment);
    let peak = recorded.peak(&environment);
    let allocated = peak["allocated"].as_u64().expect("bytes");
    let folded = recorded.export(&environment, "peak.folded", &["--at", "peak"]);
    let folded = String::from_utf8(folded).expect("UTF-8");
    let mut bytes_by_line: BTreeMap<&str, u64> = BTreeMap::new();
    let mut sum = 0;
    for line in folded.lines() {
        let (stack, bytes) = line.rsplit_once(' ').expect("a stack and a number");
        let bytes: u64 = bytes.parse().expect("a number");
        sum += bytes;
        assert!(stack.starts_with("cuda:0;"), "{stack}");
        let of_workload = stack
            .split(';')
            .rfind(|frame| frame.starts_with("mlp_adam.py:"));
        *bytes_by_line.entry(of_workload.unwrap_or("-")).or_default() += bytes;
    }
    assert_eq!(sum, allocated);
    let rows = peak["rows"].as_array().expect("rows").iter();
    let forward = rows.filter(|row| row["by"] == "line" && row["kind"] == "line");
    let mut compared = 0;
    for row in forward {
        let (line, function) = (&row["line"], row["function"].as_str().expect("a name"));
        let frame = format!("mlp_adam.py:{line} {function}");
        let bytes = bytes_by_line.get(&*frame).copied();
        assert!(bytes >= row["bytes"].as_u64(), "{frame}: {bytes:?} {row}");
        compared += 1;
    }
    assert!(compared >= 2, "{peak}");

    let file = recorded.export(&environment, "peak.speedscope.json", &["--at", "peak"]);
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    let profile = &file["profiles"][0];
    assert_eq!(
        (&profile["type"], &profile["unit"]),
        (&"sampled".into(), &"bytes".into())
    );
    let weights = profile["weights"].as_array().expect("weights").iter();
    let weights: Vec<u64> = weights.filter_map(Value::as_u64).collect();
    assert_eq!(weights.iter().sum::<u64>(), allocated);
    assert_eq!(profile["endValue"].as_u64(), Some(allocated));
    let samples = profile["samples"].as_array().expect("samples");
    assert_eq!(samples.len(), weights.len());
    let frames = file["shared"]["frames"].as_array().expect("frames").len() as u64;
    let numbers = samples
        .iter()
        .flat_map(|sample| sample.as_array().expect("a stack"));
    assert!(
        numbers
            .filter_map(Value::as_u64)
            .all(|frame| frame < frames)
    );
}

/// Values of a profile by their labels of one key: allocated objects and bytes, live objects and bytes.
fn values_by(profile: &ProtoMessage<'_>, key: &str) -> BTreeMap<String, [u64; 4]> {
    let strings = profile.texts(6);
    let mut sums: BTreeMap<String, [u64; 4]> = BTreeMap::new();
    for sample in profile.messages(2) {
        let labels = sample.messages(3);
        let label = labels
            .iter()
            .find(|it| strings[it.number(1) as usize] == key);
        let value = label.map_or("-", |label| strings[label.number(2) as usize]);
        let sum = sums.entry(value.to_owned()).or_default();
        for (sum, value) in sum.iter_mut().zip(sample.numbers(2)) {
            *sum += value;
        }
    }
    sums
}

#[test]
fn a_pprof_profile_has_the_categories_of_the_report_and_every_allocation() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let recorded = RecordedTraining::take(&environment);
    let packed = recorded.export(&environment, "peak.pb.gz", &["--at", "peak"]);
    let mut bytes = Vec::new();
    let mut unpacked = flate2::read::GzDecoder::new(&packed[..]);
    unpacked.read_to_end(&mut bytes).expect("gzip");
    let profile = ProtoMessage::parse(&bytes);
    let strings = profile.texts(6);
    assert_eq!(strings[0], "");
    let types = profile.messages(1);
    let types = types.iter().map(|of| {
        [
            strings[of.number(1) as usize],
            strings[of.number(2) as usize],
        ]
    });
    let expected = [
        ["alloc_objects", "count"],
        ["alloc_space", "bytes"],
        ["inuse_objects", "count"],
        ["inuse_space", "bytes"],
    ];
    assert_eq!(types.collect::<Vec<_>>(), expected);
    assert_eq!(strings[profile.number(14) as usize], "inuse_space");

    let peak = recorded.peak(&environment);
    let rows = peak["rows"].as_array().expect("rows").iter();
    let of_report: BTreeMap<String, u64> = rows
        .filter(|row| row["by"] == "category" && row["kind"] == "category")
        .map(|row| {
            (
                row["category"].as_str().unwrap().to_owned(),
                row["bytes"].as_u64().unwrap(),
            )
        })
        .collect();
    let by_category = values_by(&profile, "category");
    let live: BTreeMap<String, u64> = by_category
        .iter()
        .filter(|(_, values)| values[3] > 0)
        .map(|(category, values)| (category.clone(), values[3]))
        .collect();
    assert!(live.len() >= 4, "{live:?}");
    assert_eq!(live, of_report);
    let devices = values_by(&profile, "device");
    assert_eq!(
        devices["cuda:0"][3],
        peak["allocated"].as_u64().expect("bytes")
    );

    // At the end, every allocation of the recording is counted.
    let packed = recorded.export(&environment, "end.pprof", &[]);
    let mut bytes = Vec::new();
    let mut unpacked = flate2::read::GzDecoder::new(&packed[..]);
    unpacked.read_to_end(&mut bytes).expect("gzip");
    let devices = values_by(&ProtoMessage::parse(&bytes), "device");
    let events = environment.events(&recorded.trace());
    let allocations = events.iter().filter(|event| event.action == "alloc");
    assert_eq!(devices["cuda:0"][0], allocations.clone().count() as u64);
    assert_eq!(
        devices["cuda:0"][1],
        allocations.filter_map(|event| event.size).sum::<u64>()
    );

    let modules = values_by(&profile, "module");
    assert!(modules.contains_key("Perceptron"), "{modules:?}");
    check_locations(&profile);
}

/// Every sample refers to locations, and these to functions, that exist.
fn check_locations(profile: &ProtoMessage<'_>) {
    let functions: Vec<u64> = profile.messages(5).iter().map(|it| it.number(1)).collect();
    let mut locations = Vec::new();
    for location in profile.messages(4) {
        let lines = location.messages(4);
        assert!(functions.contains(&lines[0].number(1)));
        locations.push(location.number(1));
    }
    for sample in profile.messages(2) {
        let numbers = sample.numbers(1);
        assert!(!numbers.is_empty());
        assert!(numbers.iter().all(|number| locations.contains(number)));
    }
}

#[test]
fn an_export_says_what_it_cannot_write_and_what_to_give_instead() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let recorded = RecordedTraining::take(&environment);
    let (trace, folder) = (recorded.trace(), recorded.folder());
    let (trace, folder) = (text(&trace), text(folder));
    let out = recorded.path("x.html");
    let missing = recorded.path("missing/x.folded");
    for (arguments, expected) in [
        (
            ["export", trace, "-o", text(&out)],
            "or an output that ends in .speedscope.json",
        ),
        (["export", trace, "-o", "-"], "give --format"),
        (
            ["export", folder, "-o", "x.folded"],
            "give --format, and a directory of outputs",
        ),
        (
            ["export", trace, "-o", text(&missing)],
            "make it with `mkdir -p",
        ),
        (["export", "/dev/null", "-o", "x.folded"], "record again"),
    ] {
        let error = environment.run(&arguments).one_clear_error();
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let csv = ["export", trace, "-o", "x.csv", "--at", "peak"];
    let error = environment.run(&csv).one_clear_error();
    assert!(error.contains("leave it out"), "{error}");
    let stdout = [
        "export", trace, "-o", "-", "--format", "folded", "--at", "oom",
    ];
    let error = environment.run(&stdout).one_clear_error();
    assert!(error.contains("give --at peak"), "{error}");
    assert!(!recorded.path("x.html").exists());

    // An earlier file is replaced as a whole, and what is printed is the file's content.
    let first = recorded.export(&environment, "x.folded", &["--at", "peak"]);
    std::fs::write(recorded.path("x.folded"), "old").expect("a file");
    assert_eq!(
        recorded.export(&environment, "x.folded", &["--at", "peak"]),
        first
    );
    let stdout = [
        "export", trace, "-o", "-", "--format", "folded", "--at", "peak",
    ];
    let printed = environment.run(&stdout).succeeded();
    assert_eq!(printed.stdout.as_bytes(), first);
    assert_eq!(printed.stderr, "");
}

#[test]
fn a_perfetto_trace_has_the_allocators_peak_as_counter_and_as_heap_profile() {
    const COUNTER: u64 = 4;
    const SLICE_BEGIN: u64 = 1;
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let recorded = RecordedTraining::take(&environment);
    let allocated = recorded.peak(&environment)["allocated"].as_u64();
    let trace = recorded.export(&environment, "trace.pftrace", &[]);
    let packets = ProtoMessage::parse(&trace).messages(1);
    let tracks: BTreeMap<&str, u64> = packets
        .iter()
        .flat_map(|packet| packet.messages(60))
        .filter_map(|track| Some((*track.texts(2).first()?, track.number(1))))
        .collect();
    let of_track = |name: &str, kind: u64| -> Vec<u64> {
        let events = packets.iter().flat_map(|packet| packet.messages(11));
        let of = events.filter(|event| event.number(9) == kind && event.number(11) == tracks[name]);
        of.map(|event| event.number(30)).collect()
    };
    let counter = of_track("cuda:0 allocated", COUNTER);
    assert_eq!(counter.iter().max().copied(), allocated);
    let profiles = packets.iter().flat_map(|packet| packet.messages(37));
    let live = profiles.map(|profile| -> u64 {
        let dumps = profile.messages(5);
        let samples = dumps.iter().flat_map(|dump| dump.messages(2));
        samples
            .map(|sample| sample.number(2) - sample.number(3))
            .sum()
    });
    let live: Vec<u64> = live.collect();
    assert!(live.len() >= 32, "{live:?}");
    assert_eq!(live.iter().max().copied(), allocated);
    // The workload trains 20 steps.
    assert!(of_track("iterations", SLICE_BEGIN).len() >= 20);
    assert!(of_track("phases (inferred)", SLICE_BEGIN).len() >= 40);
}
