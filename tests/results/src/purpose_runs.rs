//! Recordings of workloads, each with the process's own account of its memory.

use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::purposes::Purposes;
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;

/// A recorded workload.
pub struct PurposeRun {
    folder: TempDir,
    printed: String,
}

impl PurposeRun {
    /// Records `purposes.py [--profile] WORKLOAD...` from its first block to its end.
    pub fn of(
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        options: &[&str],
        workload: &[&str],
    ) -> Self {
        let script = [&["purposes.py"], workload].concat();
        Self::record(environment, pytorch, options, &script)
    }

    /// Records a training loop compiled by `torch.compile`, on the CPU or the GPU. Prints the
    /// reason and returns `None` if the script cannot compile.
    pub fn compiled(
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        script: &[&str],
    ) -> Option<Self> {
        let is_on_cpu = script.windows(2).any(|pair| pair == ["--device", "cpu"]);
        let allocators: &[&str] = if is_on_cpu { &["--cpu"] } else { &[] };
        let run = Self::record(environment, pytorch, allocators, script);
        let mut lines = run.printed.lines();
        if let Some(reason) = lines.find(|line| line.starts_with("skipped: ")) {
            println!("{reason}");
            return None;
        }
        Some(run)
    }

    /// Records `SCRIPT... --out TRUTH`.
    pub fn record(
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        options: &[&str],
        script: &[&str],
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = environment.memprobe();
        command.args(["record", "-q"]).args(options).arg("-o");
        command.arg(folder.path().join("trace.json"));
        command.arg("--").arg(pytorch.python());
        let (workload, arguments) = script.split_first().expect("a script");
        command
            .arg(workload)
            .arg("--out")
            .arg(folder.path().join("truth.json"));
        command.args(arguments);
        pytorch.settle(&mut command);
        command
            .env("TORCHINDUCTOR_CACHE_DIR", folder.path().join("inductor"))
            .env("TORCHINDUCTOR_COMPILE_THREADS", "1")
            // Avoid test compilations of vector instructions, and precompiled headers for more
            // kernels than needed.
            .env("TORCHINDUCTOR_VEC_ISA_OK", "0")
            .env("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0");
        let printed = Background::start(&mut command).finish().succeeded().stdout;
        Self { folder, printed }
    }

    /// Attaches to `purposes.py [--profile] WORKLOAD...` after so many calls of its model, and
    /// records it to its end.
    pub fn late(
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        options: &[&str],
        calls: u32,
        workload: &[&str],
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let mut command = pytorch.command();
        command
            .arg("purposes.py")
            .arg("--out")
            .arg(path("truth.json"));
        command.arg("--wait-after").arg(calls.to_string());
        command.arg("--until").arg(path("until")).args(workload);
        let mut target = Background::start(&mut command);
        let ready = target.wait_for("ready ");
        let pid = ready.split_whitespace().last().map(str::parse);
        let pid = pid.expect("a PID").expect("a number");
        let recording = environment.record(pid, &path("trace.json"), options);
        std::fs::write(path("until"), "").expect("written");
        recording.finish();
        let printed = target.finish().succeeded().stdout;
        Self { folder, printed }
    }

    /// Returns the path of the recording.
    pub fn trace(&self) -> PathBuf {
        self.folder.path().join("trace.json")
    }

    /// Returns the JSON lines that the workload printed.
    pub fn own_accounts(&self) -> Vec<Value> {
        let lines = self.printed.lines().filter(|line| line.starts_with('{'));
        lines
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    /// Returns the number after a text that it printed, as in `kept 512 in 4 iterations`.
    pub fn number(&self, before: &str) -> u64 {
        let rest = self.printed.rsplit_once(before).expect("it was printed").1;
        let digits = rest.split_whitespace().next().expect("a number");
        digits.parse().expect("a number")
    }

    /// Compares the recording with the process's account.
    pub fn compare(&self) -> Purposes {
        Purposes::compare(&self.trace(), &self.folder.path().join("truth.json"))
    }

    /// Compares, and prints the shares.
    pub fn purposes(&self, name: &str) -> Purposes {
        let compared = self.compare();
        println!("{}", compared.table(name));
        compared
    }
}
