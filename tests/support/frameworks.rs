//! Programs of frameworks, each recorded by both sides with all its processes, and read at a point.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;

use crate::environment::TestEnvironment;
use crate::events::Event;
use crate::gated_workload::BothSides;
use crate::memprobe::lost;
use crate::module_agreement::{ModuleAgreement, ModuleTruth};
use crate::paused_workload::PausedWorkload;
use crate::process::Background;
use crate::pytorch::PyTorch;
use crate::reference::Reference;
use crate::tensor_agreement::{self, Devices};

/// A program of `tests/workloads/frameworks`.
#[derive(Debug)]
pub struct Framework {
    /// Name on the command line and on the page.
    pub name: &'static str,
    pub program: &'static str,
    /// Processes that use a GPU.
    pub processes: usize,
    /// Environment variables.
    pub settings: &'static [(&'static str, &'static str)],
}

const fn single(name: &'static str, program: &'static str) -> Framework {
    Framework {
        name,
        program,
        processes: 1,
        settings: &[],
    }
}

const fn double(
    name: &'static str,
    program: &'static str,
    settings: &'static [(&'static str, &'static str)],
) -> Framework {
    Framework {
        name,
        program,
        processes: 2,
        settings,
    }
}

const TWO_DEVICES: (&str, &str) = ("CUDASIM_DEVICES", "2");

pub const FRAMEWORKS: &[Framework] = &[
    single("transformers Trainer", "frameworks/trainer.py"),
    single("transformers generate", "frameworks/generate.py"),
    single("PEFT", "frameworks/adapters.py"),
    single("accelerate", "frameworks/accelerated.py"),
    single("Lightning", "frameworks/lightning_fit.py"),
    single("diffusers", "frameworks/denoise.py"),
    single("timm", "frameworks/averaged.py"),
    single("torchvision", "frameworks/vision.py"),
    double("DDP", "frameworks/ranks.py", &[TWO_DEVICES]),
    double(
        "FSDP2",
        "frameworks/ranks.py",
        &[TWO_DEVICES, ("SHARDED", "1")],
    ),
    single("torch.compile", "frameworks/compiled_graph.py"),
    double("spawn", "frameworks/workers.py", &[("START", "spawn")]),
    double(
        "forkserver",
        "frameworks/workers.py",
        &[("START", "forkserver")],
    ),
    single("FastAPI", "frameworks/api.py"),
    single("ipykernel", "frameworks/kernel.py"),
    single("torchao", "frameworks/quantized.py"),
    double(
        "Ray",
        "frameworks/actors.py",
        &[
            TWO_DEVICES,
            ("RAY_AUTH_MODE", "disabled"),
            ("RAY_USAGE_STATS_ENABLED", "0"),
        ],
    ),
    single("DeepSpeed", "frameworks/zero.py"),
    single("Keras", "frameworks/keras_fit.py"),
    single("PyTorch Geometric", "frameworks/graphs.py"),
    single("Sentence Transformers", "frameworks/embeddings.py"),
    single("Ultralytics", "frameworks/detector.py"),
];

/// Settings of every program: nothing comes from the network.
const OFFLINE: [(&str, &str); 3] = [
    ("HF_HUB_OFFLINE", "1"),
    ("HF_HUB_DISABLE_TELEMETRY", "1"),
    ("TOKENIZERS_PARALLELISM", "false"),
];

/// Result of comparing one kind of facts.
#[derive(Debug, Default, Serialize)]
pub struct Compared {
    /// Facts that were compared.
    pub compared: usize,
    /// Facts that memprobe gives as unknown.
    pub unknown: usize,
    /// Facts that differ.
    pub differing: usize,
    /// The first difference.
    pub first: Option<String>,
}

impl Compared {
    fn add(&mut self, compared: usize, differences: &[String]) {
        self.compared += compared;
        self.differing += differences.len();
        if self.first.is_none() {
            self.first = differences.first().cloned();
        }
    }
}

/// Result of a program's comparison.
#[derive(Debug, Default, Serialize)]
pub struct Comparison {
    /// Versions of the frameworks.
    pub packages: BTreeMap<String, String>,
    pub python: String,
    pub processes: usize,
    pub events: Compared,
    pub stacks: usize,
    pub backward: usize,
    /// Points at which the allocator's totals were compared.
    pub checkpoints: usize,
    /// `None` if the program takes no note of modules.
    pub modules: Option<Compared>,
    /// Tensors at the program's point; `None` if it has none.
    pub tensors: Option<Compared>,
    /// Names of these: parameters, buffers, gradients and optimizer state.
    pub names: usize,
    /// Iterations; `None` if the program has none.
    pub iterations: Option<Compared>,
}

/// A process's own account.
#[derive(Debug, Deserialize)]
struct Account {
    #[serde(flatten)]
    reference: Reference,
    packages: BTreeMap<String, String>,
    iterations: Option<usize>,
    /// Line at which an iteration starts.
    starts: Option<String>,
    modules: Option<ModuleTruth>,
}

impl Framework {
    /// Returns the framework of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FRAMEWORKS.iter().find(|framework| framework.name == name)
    }

    /// Runs the program twice: recorded to its end, and stopped at its points.
    ///
    /// # Errors
    ///
    /// The reason why the program could not run.
    pub fn compare(
        &self,
        environment: &TestEnvironment,
        pytorch: &PyTorch,
    ) -> Result<Comparison, String> {
        let mut comparison = Comparison::default();
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("run/");
        let mut accounts = self.record(environment, pytorch, &folder)?;
        accounts.sort_by_key(|account| account.reference.pid);
        let report = environment.report(&run);
        let recordings = report["recordings"].as_array().expect("recordings");
        comparison.processes = accounts.len();
        if (accounts.len(), recordings.len()) != (self.processes, self.processes) {
            let (accounts, recordings, wanted) = (accounts.len(), recordings.len(), self.processes);
            comparison.events.add(
                0,
                &[format!(
                    "{recordings} recordings and {accounts} accounts of {wanted} processes"
                )],
            );
        }
        for account in accounts {
            let pid = account.reference.pid;
            match recordings.iter().find(|recording| recording["pid"] == pid) {
                Some(recording) => {
                    let name = recording["recording"].as_str().expect("a name");
                    comparison.add_process(environment, &run.join(name), account);
                }
                None => comparison
                    .events
                    .add(0, &[format!("process {pid} has no recording")]),
            }
        }
        let at_points = AssertUnwindSafe(|| self.compare_tensors(environment, pytorch));
        match catch_unwind(at_points) {
            Ok((tensors, names)) => (comparison.tensors, comparison.names) = (tensors, names),
            Err(panic) => {
                let words = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                let mut tensors = Compared::default();
                tensors.add(0, &[words]);
                comparison.tensors = Some(tensors);
            }
        }
        Ok(comparison)
    }

    fn settings(&self) -> Vec<(&str, &str)> {
        let own = self.settings.iter().copied();
        OFFLINE.into_iter().chain(own).collect()
    }

    /// Records the program with all its processes; returns their accounts.
    fn record(
        &self,
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        folder: &TempDir,
    ) -> Result<Vec<Account>, String> {
        let truth = folder.path().join("truth");
        std::fs::create_dir(&truth).expect("a folder");
        let mut command = environment.memprobe();
        // Large enough for all records, however slowly memprobe reads on this machine.
        command.args(["record", "--buffer-size", "256MiB", "-o"]);
        command.arg(folder.path().join("run/")).arg("--");
        command.arg(pytorch.python()).args(["-W", "ignore"]);
        command.arg(self.program).arg("--out").arg(&truth);
        self.settle(&mut command, pytorch);
        let printed = Background::start(&mut command).finish();
        if !printed.status.success() {
            return Err(last_words(&printed.stderr));
        }
        let lost = lost(&printed.stderr);
        if lost > 0 {
            return Err(format!("{lost} records were lost"));
        }
        let files = std::fs::read_dir(&truth).expect("a folder");
        let files = files.map(|entry| entry.expect("an entry").path());
        Ok(files.map(|file| Account::read(&file)).collect())
    }

    fn settle(&self, command: &mut Command, pytorch: &PyTorch) {
        pytorch.settle(command);
        command.envs(self.settings());
    }

    /// Compares the tensors at each point; `None` if the program has no points.
    fn compare_tensors(
        &self,
        environment: &TestEnvironment,
        pytorch: &PyTorch,
    ) -> (Option<Compared>, usize) {
        let mut workload = PausedWorkload::start(pytorch, &[self.program], &self.settings());
        let (mut compared, mut names) = (None, 0);
        while let Some(point) = workload.next_point() {
            let snapshot = environment.snapshot(workload.stopped_pid(), &[]);
            let agreement = tensor_agreement::compare(&workload.truth(), &snapshot, Devices::Cuda);
            let differences = agreement.differences.iter();
            let differences: Vec<String> = differences
                .map(|difference| format!("at {point:?}: {difference}"))
                .collect();
            let facts = agreement.tensors + agreement.saved + agreement.blocks;
            compared
                .get_or_insert_with(Compared::default)
                .add(facts, &differences);
            names += agreement.names;
            workload.go_on();
        }
        workload.end();
        (compared, names)
    }
}

impl Account {
    fn read(file: &Path) -> Self {
        let text = std::fs::read(file).expect("an account");
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"))
    }
}

impl Comparison {
    fn add_process(&mut self, environment: &TestEnvironment, file: &Path, account: Account) {
        self.python.clone_from(&account.reference.python);
        self.packages.extend(account.packages);
        if let Some(counted) = account.iterations {
            let found = iterations(environment, file, account.starts.as_deref());
            let differs = (found != counted).then(|| format!("{found} iterations of {counted}"));
            self.iterations
                .get_or_insert_with(Compared::default)
                .add(counted, differs.as_slice());
        }
        let events = environment.events(file);
        let both = BothSides::until_the_end_of(account.reference, events);
        let agreement = both.compare();
        self.events.add(agreement.events, &agreement.differences);
        self.stacks += agreement.stacks;
        self.backward += agreement.backward;
        self.checkpoints += both.reference.checkpoints.len();
        if let Some(truth) = &account.modules {
            let events = both.events.into_iter().map(without_number);
            let events: Vec<Event> = events.collect();
            let agreement = ModuleAgreement::of(truth, &events, |_| false);
            let modules = self.modules.get_or_insert_with(Compared::default);
            modules.add(agreement.equal(), &agreement.differences);
            modules.unknown += agreement.unknown;
        }
    }
}

/// Returns the number of iterations that memprobe finds.
fn iterations(environment: &TestEnvironment, file: &Path, starts: Option<&str>) -> usize {
    let file = file.to_str().expect("UTF-8");
    let mut arguments = vec!["report", file, "--by", "iteration", "--format", "json"];
    arguments.extend(
        starts
            .into_iter()
            .flat_map(|line| ["--iteration-start", line]),
    );
    let report = environment.run(&arguments).succeeded().stdout;
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let devices = report["devices"].as_array().into_iter().flatten();
    let of_device = devices.map(|device| {
        let rows = device["rows"].as_array().into_iter().flatten();
        let numbered = rows
            .clone()
            .filter_map(|row| row["iteration"].as_u64())
            .max();
        let whole = rows.filter(|row| row["kind"] == "iteration").count();
        // With a line the last iteration has no end.
        match starts {
            Some(_) => usize::try_from(numbered.unwrap_or(0)).expect("a small number"),
            None => whole,
        }
    });
    of_device.max().unwrap_or(0)
}

/// Removes the number by which memprobe tells roots of one class apart (`Net#2.layer`).
fn without_number(mut event: Event) -> Event {
    let Some(path) = event.module.take() else {
        return event;
    };
    let (root, below) = path.split_once('.').unwrap_or((&path, ""));
    let root = root.split('#').next().unwrap_or_default();
    event.module = Some(match below {
        "" => root.to_owned(),
        below => format!("{root}.{below}"),
    });
    event
}

/// Returns the last lines of what a program printed.
fn last_words(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
