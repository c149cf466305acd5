//! The program under test: `memprobe doctor`, `record` and `top`, as users run them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tempfile::TempDir;

use super::results::Place;

/// The line of `record` that says that all probes are in place.
const RECORDING: &str = "recording PID";

/// The longest that memprobe may take to attach, or to end: loading takes 10 s on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The output of `memprobe doctor --pid N --format json`, as far as it matters.
#[derive(Debug, Deserialize)]
pub struct Diagnosis {
    process: Option<Process>,
}

#[derive(Debug, Deserialize)]
struct Process {
    findings: Vec<Finding>,
    probes: Vec<Probe>,
}

#[derive(Debug, Deserialize)]
struct Finding {
    found: String,
}

/// A probe by `memprobe doctor`.
#[derive(Debug, Deserialize)]
pub struct Probe {
    finding: Finding,
    /// Its name in the documentation.
    pub function: String,
    /// The library that it goes to.
    pub library: Option<PathBuf>,
    symbol: Option<String>,
    offset: Option<u64>,
    kind: Option<String>,
}

impl Probe {
    /// The name in the symbol table.
    pub fn symbol(&self) -> &str {
        self.symbol.as_deref().unwrap_or(&self.function)
    }

    /// Its place; none where it goes nowhere.
    pub fn place(&self) -> Option<Place> {
        let emulated = match self.kind.as_deref()? {
            "emulated" => true,
            "single-stepped" => false,
            // memprobe keeps away.
            _ => return None,
        };
        Some(Place {
            offset: self.offset?,
            emulated,
        })
    }

    /// The words on it.
    pub fn words(&self) -> &str {
        &self.finding.found
    }
}

impl Diagnosis {
    /// Examines a process.
    pub fn of(memprobe: &Path, pid: u32) -> Result<Self> {
        let output = Command::new(memprobe)
            .args(["doctor", "--format", "json", "--pid", &pid.to_string()])
            .stdin(Stdio::null())
            .output()
            .context("cannot start memprobe")?;
        // The exit status is 2 where something stands in the way, which the words say too.
        Self::read(&output.stdout).with_context(|| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            format!("memprobe doctor ended with {}: {stderr}", output.status)
        })
    }

    fn read(json: &[u8]) -> Result<Self> {
        serde_json::from_slice(json).context("it does not answer with the JSON that is known")
    }

    /// Every probe.
    pub fn probes(&self) -> &[Probe] {
        self.process.as_ref().map_or(&[], |process| &process.probes)
    }

    /// Everything that is said of the process and its probes, a line each.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        let process = self.process.iter();
        process.flat_map(|process| {
            let probes = process.probes.iter().map(|probe| &probe.finding);
            let all = process.findings.iter().chain(probes);
            all.flat_map(|finding| finding.found.lines())
        })
    }
}

/// A running `memprobe record --detail full`. It is ended when this value goes.
#[derive(Debug)]
pub struct Recording {
    child: Child,
    folder: TempDir,
}

/// End of a recording.
#[derive(Debug)]
pub struct Recorded {
    pub status: ExitStatus,
    /// Everything that memprobe said.
    pub said: String,
    /// The folder with the recording, `trace.json`.
    pub folder: TempDir,
}

impl Recording {
    /// Starts to record a process; returns once the probes are in place.
    pub fn start(memprobe: &Path, pid: u32) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the recording")?;
        let child = Command::new(memprobe)
            .args(["record", "--detail", "full", "--pid", &pid.to_string()])
            .arg("--output")
            .arg(folder.path().join("trace.json"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.path().join("stderr"))?)
            .spawn()
            .context("cannot start memprobe")?;
        let mut recording = Self { child, folder };
        let start = Instant::now();
        while !recording.said().contains(RECORDING) {
            if let Some(status) = recording.child.try_wait()? {
                bail!("memprobe record ended with {status}: {}", recording.said());
            }
            if start.elapsed() > LIMIT {
                bail!("memprobe record does not attach: {}", recording.said());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(recording)
    }

    /// Everything that memprobe said so far.
    fn said(&self) -> String {
        let bytes = fs::read(self.folder.path().join("stderr")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The numbers of the BPF programs that memprobe holds.
    pub fn programs(&self) -> Result<Vec<String>> {
        let folder = format!("/proc/{}/fdinfo", self.child.id());
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))?;
        let mut ids = BTreeSet::new();
        for entry in entries.flatten() {
            // A descriptor may be closed meanwhile.
            if let Ok(text) = fs::read_to_string(entry.path()) {
                ids.extend(program_id(&text).map(str::to_owned));
            }
        }
        Ok(ids.into_iter().collect())
    }

    /// Ends it as Ctrl-C does.
    pub fn interrupt(self) -> Result<Recorded> {
        kill_process(Pid::from_child(&self.child), Signal::INT).context("memprobe is gone")?;
        self.finish()
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Result<Recorded> {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if start.elapsed() > LIMIT {
                bail!("memprobe record does not end: {}", self.said());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let said = self.said();
        let folder = tempfile::tempdir().context("cannot make a folder")?;
        let folder = std::mem::replace(&mut self.folder, folder);
        Ok(Recorded {
            status,
            said,
            folder,
        })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Recorded {
    /// The recording's file.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("trace.json")
    }
}

/// The number of a BPF program in what `/proc/PID/fdinfo` says of its descriptor
/// (`bpf_prog_show_fdinfo`, kernel/bpf/syscall.c); a link's descriptor has it too.
fn program_id(text: &str) -> Option<&str> {
    let line = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
    line.map(str::trim)
}

/// An event of a recording.
#[derive(Debug, Deserialize)]
pub struct Event {
    pub action: String,
    pub space: Option<String>,
    pub size: Option<u64>,
}

/// Every event of a recording.
pub fn events(memprobe: &Path, file: &Path) -> Result<Vec<Event>> {
    let output = Command::new(memprobe)
        .arg("report")
        .arg(file)
        .args(["--by", "event", "--format", "jsonl"])
        .stdin(Stdio::null())
        .output()
        .context("cannot start memprobe")?;
    if !output.status.success() {
        return Err(anyhow!(
            "memprobe report ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("the event {line:?}")))
        .collect()
}

/// Runs `memprobe top --once` where it finds this NVML first; its exit status and words.
pub fn top_once(memprobe: &Path, nvml: &Path) -> Result<(ExitStatus, String)> {
    let output = Command::new(memprobe)
        .args(["top", "--once"])
        .env("LD_LIBRARY_PATH", nvml)
        .stdin(Stdio::null())
        .output()
        .context("cannot start memprobe")?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said += &String::from_utf8_lossy(&output.stderr);
    Ok((output.status, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCTOR: &str = r#"{"fit":true,"process":{"findings":[{"check":"python","found":"none\ncuMemFree_v2 is rewritten"}],
        "probes":[{"finding":{"found":"in libcuda.so.1"},"function":"cuMemAllocAsync_ptsz","library":"/x/libcuda.so.1",
        "symbol":"cuMemAllocAsync_ptsz","offset":10,"kind":"emulated"},
        {"finding":{"found":"libcudart is not mapped yet"},"function":"cudaMalloc","library":null,"symbol":null,
        "offset":null,"kind":null},
        {"finding":{"found":"rewritten"},"function":"cuMemMap","library":"/x/libcuda.so.1","symbol":"cuMemMap",
        "offset":0,"kind":"left alone"}]}}"#;

    #[test]
    fn places_are_read_from_the_doctor() {
        let diagnosis = Diagnosis::read(DOCTOR.as_bytes()).unwrap();
        let [placed, absent, left_alone] = diagnosis.probes() else {
            panic!("three probes");
        };
        assert_eq!(left_alone.place(), None);
        assert_eq!(placed.symbol(), "cuMemAllocAsync_ptsz");
        let expected = Place {
            offset: 10,
            emulated: true,
        };
        assert_eq!(placed.place(), Some(expected));
        assert_eq!((absent.symbol(), absent.place()), ("cudaMalloc", None));
        assert_eq!(absent.words(), "libcudart is not mapped yet");
        assert!(
            diagnosis
                .lines()
                .any(|line| line == "cuMemFree_v2 is rewritten")
        );
        assert!(Diagnosis::read(b"memprobe: no").is_err());
    }

    #[test]
    fn a_program_is_found_by_the_number_that_the_kernel_shows() {
        let text = "pos:\t0\nprog_type:\t2\nmemlock:\t4096\nprog_id:\t133\nrun_cnt:\t0\n";
        assert_eq!(program_id(text), Some("133"));
        assert_eq!(program_id("pos:\t0\nmap_id:\t4\n"), None);
    }
}
