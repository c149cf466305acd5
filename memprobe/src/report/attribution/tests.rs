use std::sync::Arc;

use serde_json::Value;

use crate::attribution::breakdown::Breakdown;
use crate::attribution::iterations::IterationLine;
use crate::event::{
    Action, Context, CudaCall, CudaMemoryKind, Event, Grad, MarkedPhase, MemoryEvent, Module, Node,
    PhaseMark, PurposeId, Stack, StackId, StackKind, Tgid, Tid, TimeNs,
};
use crate::recording::Reader;
use crate::recording::samples::{MIB, frame, memory, recording, story, totals};
use crate::report::{Alike, By, LayersOf, ReportFormat, ReportOptions, RowLimit, write};

const MODULES: &str = "/v/lib/python3.12/site-packages/torch/nn/modules/module.py";
const ENGINE: Tid = Tid(1300);

fn report(events: &[Event], options: ReportOptions) -> String {
    let mut out = Vec::new();
    let file = recording(events);
    write(Reader::new(&file[..]).unwrap(), &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn table(events: &[Event], by: By) -> String {
    let width = 190;
    let options = ReportOptions {
        by,
        width,
        ..ReportOptions::default()
    };
    report(events, options)
}

/// Stacks: 1 builds, 2 and 3 run forward, 4 runs backward, 5 steps, 6 evaluates.
fn stacks() -> Vec<Event> {
    let train = |line| frame("/home/me/train.py", line, "main");
    let called = || frame(MODULES, 1779, "_call_impl");
    let optimizer = "/v/lib/python3.12/site-packages/torch/optim/optimizer.py";
    let python = |inner: Vec<_>, module: Option<&str>, grad| Stack {
        kind: StackKind::Python,
        frames: inner,
        truncated: false,
        context: Context {
            module: module.map_or(Module::Outside, |path| Module::Called(path.into())),
            grad,
            node: None,
        },
    };
    let forward = |line, path| {
        let inner = frame("/home/me/model.py", line, "forward");
        python(vec![inner, called(), train(12)], Some(path), Grad::Enabled)
    };
    let up = forward(20, "Net.blocks.0.up");
    let backward = Stack {
        kind: StackKind::Waiting {
            thread: "pt_autograd_0".into(),
        },
        context: Context {
            node: Some(Arc::new(Node {
                name: "AddmmBackward0".into(),
                forward: Some(Arc::new(up.clone())),
            })),
            ..Context::default()
        },
        ..python(vec![train(14)], None, Grad::Unknown)
    };
    let evaluation = python(
        vec![
            frame("/home/me/model.py", 20, "forward"),
            called(),
            train(30),
        ],
        Some("Net.blocks.0.up"),
        Grad::Disabled,
    );
    let build = vec![frame(MODULES, 1365, "convert"), train(5)];
    let all = [
        python(build, None, Grad::Disabled),
        up,
        forward(21, "Net.blocks.0.down"),
        backward,
        python(
            vec![frame(optimizer, 500, "wrapper"), train(16)],
            None,
            Grad::Disabled,
        ),
        evaluation,
        forward(20, "Net.blocks.1.up"),
        forward(20, "Net.blocks.2.up"),
    ];
    let ids = 1_u32..;
    ids.zip(all)
        .map(|(id, stack)| Event::Stack(StackId(id), Arc::new(stack)))
        .collect()
}

/// Builder of a recording.
#[derive(Default)]
struct Story {
    events: Vec<Event>,
    micros: u64,
    allocated: u64,
}

impl Story {
    fn block(&mut self, action: Action, at: u64, mib: u64, id: u32, tid: Tid) {
        self.micros += 1_000;
        match action {
            Action::Alloc => self.allocated += mib,
            _ => self.allocated -= mib,
        }
        self.events.push(Event::Memory(MemoryEvent {
            tid,
            stack: StackId(id),
            totals: totals(self.allocated * MIB, 64 * MIB),
            shape: PurposeId::NONE,
            ..memory(action, self.micros, at * 0x100_0000, mib * MIB)
        }));
    }

    fn alloc(&mut self, at: u64, mib: u64, id: u32) {
        let tid = if id == 4 { ENGINE } else { Tid(1234) };
        self.block(Action::Alloc, at, mib, id, tid);
    }

    fn free(&mut self, at: u64, mib: u64, tid: Tid) {
        self.block(Action::Free, at, mib, 0, tid);
    }

    fn mark(&mut self, begins: MarkedPhase, class: &str) {
        self.micros += 10;
        self.events.push(Event::PhaseMark(PhaseMark {
            time: TimeNs(5_000_000_000 + self.micros * 1000),
            tgid: Tgid(1234),
            tid: Tid(1234),
            phase: begins,
            class: class.into(),
            stack: StackId(5),
        }));
    }

    fn iterate(&mut self, first: bool) {
        self.mark(MarkedPhase::ZeroGrad, "Adam");
        if !first {
            self.free(10, 3, Tid(1234));
        }
        self.alloc(20, 6, 2);
        self.alloc(21, 4, 3);
        self.alloc(10, 3, 4);
        self.alloc(22, 2, 4);
        self.free(22, 2, ENGINE);
        self.free(21, 4, ENGINE);
        self.free(20, 6, ENGINE);
        self.mark(MarkedPhase::Step, "Adam");
        if first {
            self.alloc(11, 6, 5);
        }
    }
}

/// A model of 3 MiB, trained for three iterations and evaluated after the second.
fn training() -> Vec<Event> {
    let mut story = Story {
        events: stacks(),
        ..Story::default()
    };
    story.alloc(1, 3, 1);
    for number in 1..=3 {
        story.iterate(number == 1);
        if number == 2 {
            story.alloc(30, 5, 6);
            story.free(30, 5, Tid(1234));
        }
    }
    story.events
}

/// A step through three layers, of which the last saves less.
fn layers() -> Vec<Event> {
    let mut story = Story {
        events: stacks(),
        ..Story::default()
    };
    story.alloc(1, 3, 1);
    story.mark(MarkedPhase::ZeroGrad, "Adam");
    let saved = [(20, 6, 2), (21, 4, 3), (23, 6, 7), (24, 5, 8)];
    for (at, mib, id) in saved {
        story.alloc(at, mib, id);
    }
    story.alloc(10, 3, 4);
    story.alloc(22, 2, 4);
    story.free(22, 2, ENGINE);
    for (at, mib, _) in saved {
        story.free(at, mib, ENGINE);
    }
    story.mark(MarkedPhase::Step, "Adam");
    story.alloc(11, 6, 5);
    story.events
}

#[test]
fn the_table_of_iterations() {
    insta::assert_snapshot!(table(&training(), By::Iteration));
}

#[test]
fn the_table_of_iterations_leaves_out_what_is_too_wide_and_says_so() {
    let options = ReportOptions {
        by: By::Iteration,
        top: RowLimit::Rows(2),
        ..ReportOptions::default()
    };
    insta::assert_snapshot!(report(&training(), options));
}

#[test]
fn the_table_of_iterations_as_csv_adds_up() {
    let options = ReportOptions {
        by: By::Iteration,
        format: ReportFormat::Csv,
        ..ReportOptions::default()
    };
    let text = report(&training(), options);
    insta::assert_snapshot!(text);
    let mut table = csv::Reader::from_reader(text.as_bytes());
    let headings = table.headers().unwrap().clone();
    for row in table.records() {
        let row = row.unwrap();
        let of = |name: &str| {
            let at = headings.iter().position(|heading| heading == name);
            row[at.expect("a column")].parse::<i64>().unwrap()
        };
        let parts = [
            "activation",
            "parameter",
            "gradient",
            "intermediate_gradient",
            "optimizer_state",
            "input",
            "temporary",
            "workspace",
            "unknown",
            "before_attach",
            "unaccounted",
        ];
        let sum: i64 = parts.iter().map(|part| of(part)).sum();
        assert_eq!(sum, of("peak_allocated"));
    }
}

#[test]
fn a_program_without_iterations_gets_advice() {
    insta::assert_snapshot!(table(&story(), By::Iteration));
}

#[test]
fn a_line_that_the_user_names_makes_iterations() {
    let unmarked = training()
        .into_iter()
        .filter(|event| !matches!(event, Event::PhaseMark(_)))
        .collect::<Vec<_>>();
    let options = ReportOptions {
        by: By::Iteration,
        format: ReportFormat::Jsonl,
        iteration: IterationLine::parse("train.py:12"),
        ..ReportOptions::default()
    };
    let text = report(&unmarked, options);
    let rows = text.lines().map(|row| serde_json::from_str(row).unwrap());
    let kinds: Vec<String> = rows
        .map(|row: Value| format!("{} {}", row["kind"].as_str().unwrap(), row["iteration"]))
        .collect();
    assert_eq!(
        kinds,
        ["before 0", "iteration 1", "iteration 2", "unfinished 3"]
    );
}

#[test]
fn says_that_nothing_is_allocated_below_the_line_of_the_user() {
    let options = ReportOptions {
        by: By::Iteration,
        iteration: IterationLine::parse("train.py:99999"),
        ..ReportOptions::default()
    };
    let text = report(&training(), options);
    assert!(
        text.contains("no code below the given line allocated memory"),
        "{text}"
    );
}

#[test]
fn the_table_of_categories() {
    insta::assert_snapshot!(table(&training(), By::Category));
}

#[test]
fn the_table_of_categories_of_a_recording_that_says_little() {
    insta::assert_snapshot!(table(&story(), By::Category));
}

/// A program without PyTorch that calls CUDA's driver.
fn driver_calls() -> [Event; 1] {
    [Event::Memory(MemoryEvent {
        call: Some(CudaCall {
            function: "cuMemAlloc_v2",
            space: CudaMemoryKind::Device,
        }),
        totals: None,
        ..memory(Action::CudaAlloc, 10, 0x7f00_0000_0000, 4 * MIB)
    })]
}

#[test]
fn a_recording_without_pytorch_has_no_such_table_and_no_advice_to_record_more_of_pytorch() {
    for by in [
        By::Category,
        By::Iteration,
        By::Layer,
        By::Phase,
        By::Saved,
        By::Size,
    ] {
        let text = table(&driver_calls(), by);
        let last = text.trim_end().lines().last().expect("lines");
        assert!(
            last.contains("Devices with only calls into CUDA are left out"),
            "{text}"
        );
        assert!(!text.contains("Record"), "{text}");
        assert!(!text.contains("Nothing was allocated"), "{text}");
        let options = ReportOptions {
            by,
            format: ReportFormat::Json,
            ..ReportOptions::default()
        };
        let document: Value = serde_json::from_str(&report(&driver_calls(), options)).unwrap();
        assert_eq!(document["devices"], Value::Array(Vec::new()), "{document}");
        let notes = document["notes"].as_array().expect("notes");
        assert_eq!(notes.len(), 1, "{document}");
    }
}

#[test]
fn the_table_of_phases() {
    insta::assert_snapshot!(table(&training(), By::Phase));
}

#[test]
fn the_table_of_threads_adds_up_to_the_allocator() {
    insta::assert_snapshot!(table(&training(), By::Breakdown(Breakdown::Thread)));
}

#[test]
fn the_table_of_what_is_saved_for_backward() {
    insta::assert_snapshot!(table(&training(), By::Saved));
}

#[test]
fn what_is_saved_as_json() {
    let options = ReportOptions {
        by: By::Saved,
        format: ReportFormat::Json,
        ..ReportOptions::default()
    };
    insta::assert_snapshot!(report(&training(), options));
}

#[test]
fn what_equal_layers_saved_is_one_row() {
    insta::assert_snapshot!(table(&layers(), By::Saved));
}

#[test]
fn each_layer_is_a_row_where_that_is_asked_for_and_for_programs() {
    let options = ReportOptions {
        by: By::Saved,
        alike: Alike::Each,
        ..ReportOptions::default()
    };
    let text = report(&layers(), options.clone());
    let csv = report(
        &layers(),
        ReportOptions {
            format: ReportFormat::Csv,
            alike: Alike::Folded,
            ..options
        },
    );
    for layer in 0..3 {
        let path = format!("Net.blocks.{layer}.up");
        assert!(text.contains(&path) && csv.contains(&path), "{path}");
    }
    assert!(!text.contains('*') && !csv.contains('*'));
}

#[test]
fn the_table_of_sizes() {
    insta::assert_snapshot!(table(&layers(), By::Size));
}

#[test]
fn modules_whose_paths_are_not_confirmed_were_called_nevertheless() {
    let mut events = layers();
    let stacks = events.iter_mut().filter_map(|event| match event {
        Event::Stack(_, stack) => Some(Arc::make_mut(stack)),
        _ => None,
    });
    for stack in stacks {
        stack.context.node = None;
        if stack.context.module != Module::Outside {
            stack.context.module = Module::Unknown;
        }
    }
    let text = table(&events, By::Size);
    assert!(!text.contains("No call of a torch.nn.Module"), "{text}");
    assert!(text.contains("paths were not confirmed"), "{text}");
}

#[test]
fn the_table_of_sizes_as_csv_adds_up_to_what_was_allocated() {
    let options = ReportOptions {
        by: By::Size,
        format: ReportFormat::Csv,
        ..ReportOptions::default()
    };
    let text = report(&layers(), options);
    insta::assert_snapshot!(text);
    let mut table = csv::Reader::from_reader(text.as_bytes());
    let headings = table.headers().unwrap().clone();
    let at = headings.iter().position(|it| it == "own_rounded").unwrap();
    let made: u64 = table
        .records()
        .map(|row| row.unwrap()[at].parse::<u64>().unwrap())
        .sum();
    // Without the parameters, which are made before the iteration.
    assert_eq!(made, (6 + 4 + 6 + 5 + 3 + 2 + 6) * MIB);
}

#[test]
fn the_table_of_layers_adds_up_to_the_peak() {
    insta::assert_snapshot!(table(&layers(), By::Layer));
    let options = ReportOptions {
        by: By::Layer,
        format: ReportFormat::Csv,
        ..ReportOptions::default()
    };
    let text = report(&layers(), options);
    let mut table = csv::Reader::from_reader(text.as_bytes());
    let headings = table.headers().unwrap().clone();
    let at = headings.iter().position(|it| it == "own_total").unwrap();
    let held: u64 = table
        .records()
        .map(|row| row.unwrap()[at].parse::<u64>().unwrap())
        .sum();
    assert_eq!(held, 29 * MIB);
}

fn layers_of(layers: LayersOf, format: ReportFormat) -> ReportOptions {
    ReportOptions {
        by: By::Layer,
        layers,
        format,
        width: 190,
        ..ReportOptions::default()
    }
}

#[test]
fn the_table_of_layers_of_each_iteration() {
    let text = report(&training(), layers_of(LayersOf::Each, ReportFormat::Text));
    insta::assert_snapshot!(text);
}

#[test]
fn layers_of_an_iteration_add_up_to_its_row_in_the_table_of_iterations() {
    let rows = |options: ReportOptions| -> Vec<Value> {
        let text = report(&training(), options);
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let iterations = rows(ReportOptions {
        by: By::Iteration,
        format: ReportFormat::Jsonl,
        ..ReportOptions::default()
    });
    let layers = rows(layers_of(LayersOf::Each, ReportFormat::Jsonl));
    for iteration in &iterations {
        let its = layers.iter().filter(|row| {
            (&row["iteration"], &row["iteration_kind"])
                == (&iteration["iteration"], &iteration["kind"])
        });
        let sum = |key: &str| its.clone().filter_map(|row| row[key].as_u64()).sum::<u64>();
        assert_eq!(iteration["peak_allocated"], sum("own_total"), "{iteration}");
        for category in [
            "activation",
            "parameter",
            "gradient",
            "optimizer_state",
            "unknown",
        ] {
            assert_eq!(
                iteration[category],
                sum(&format!("own_{category}")),
                "{category} of {iteration}"
            );
        }
    }
    let third = rows(layers_of(LayersOf::Iterations(3..=3), ReportFormat::Jsonl));
    assert!(!third.is_empty() && third.iter().all(|row| row["iteration"] == 3));
}

#[test]
fn an_iteration_that_was_not_recorded_is_refused_with_those_that_were() {
    let refused = |events: &[Event]| {
        let file = recording(events);
        let options = layers_of(LayersOf::Iterations(7..=9), ReportFormat::Csv);
        let refused = write(Reader::new(&file[..]).unwrap(), &options, &mut Vec::new());
        refused.unwrap_err().to_string()
    };
    assert_eq!(
        refused(&training()),
        "the recording has no such iteration: it has 1 to 3; give one of these, or all"
    );
    assert!(refused(&story()).contains("No iterations found"));
}
