//! Calls that succeed, where there is a GPU: memprobe's events against the program's own count, to the byte.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::memprobe::{Event, Recording, events};
use super::results::{Circumstances, GpuKind, GpuResult};
use crate::process;

/// The source of the program that allocates.
const SOURCE: &str = include_str!("success.c");

/// The reason why no call can succeed here, if there is one.
pub fn absence() -> Option<&'static str> {
    let has_gpu = Path::new("/dev/nvidia0").exists();
    (!has_gpu).then_some("no GPU here: success paths not seen")
}

/// The libcuda of this machine.
pub fn system_libcuda() -> Result<PathBuf> {
    let listed = process::answer(Command::new("ldconfig").arg("-p"))
        .or_else(|_| process::answer(Command::new("/sbin/ldconfig").arg("-p")))?;
    let path = listed_libcuda(&listed).context("ldconfig knows no libcuda.so.1")?;
    fs::canonicalize(path).with_context(|| format!("{path} cannot be opened"))
}

/// The 64-bit libcuda in what `ldconfig -p` prints.
fn listed_libcuda(listed: &str) -> Option<&str> {
    listed
        .lines()
        .filter(|line| line.contains("libcuda.so.1 ") && line.contains("x86-64"))
        .find_map(|line| line.split_once(" => "))
        .map(|(_, path)| path.trim())
}

/// The version of a libcuda, by its file name or the kernel's module.
pub fn version_of(libcuda: &Path) -> String {
    let name = libcuda.file_name().unwrap_or_default().to_string_lossy();
    let number = name.strip_prefix("libcuda.so.").unwrap_or_default();
    if number.contains('.') {
        return number.to_owned();
    }
    fs::read_to_string("/sys/module/nvidia/version")
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// A result without a trial.
pub fn absent(reason: &str, circumstances: Circumstances) -> GpuResult {
    GpuResult {
        circumstances,
        absent: Some(reason.to_owned()),
        driver: None,
        kinds: Vec::new(),
        refused: Vec::new(),
        complaints: Vec::new(),
    }
}

/// Records a program that allocates memory of each kind, and compares.
pub fn try_success(
    memprobe: &Path,
    libcuda: &Path,
    libcudart: Option<&Path>,
    circumstances: Circumstances,
) -> Result<GpuResult> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let program = folder.path().join("success");
    let source = folder.path().join("success.c");
    fs::write(&source, SOURCE)?;
    process::answer(
        Command::new("cc")
            .args(["-std=gnu11", "-O2", "-o"])
            .arg(&program)
            .arg(&source)
            .arg("-ldl"),
    )?;
    let mut child = Command::new(&program)
        .arg(libcuda)
        .args(libcudart)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the program cannot be started")?;
    let mut input = child.stdin.take().context("a pipe was asked for")?;
    let output = child.stdout.take().context("a pipe was asked for")?;
    let mut lines = BufReader::new(output).lines();
    let mut said = String::new();
    // The driver's libraries may print lines of their own.
    let mut read_until = |end: &str| -> Result<String> {
        let mut text = String::new();
        for line in lines.by_ref() {
            let line = line?;
            if line == end {
                return Ok(text);
            }
            text += &(line + "\n");
        }
        bail!("the program ended early: {}", text.trim())
    };
    said += &read_until("ready")?;
    let recording = Recording::start(memprobe, child.id())?;
    writeln!(input, "go")?;
    said += &read_until("done")?;
    drop(input);
    let ended = child.wait()?;
    let recorded = recording.finish()?;
    let mut complaints = Vec::new();
    if !ended.success() {
        complaints.push(format!("the program ended with {ended}"));
    }
    if !recorded.status.success() || !recorded.said.contains("lost 0") {
        complaints.push(format!("memprobe said: {}", recorded.said.trim()));
    }
    let events = events(memprobe, &recorded.file())?;
    let kinds = compare(&held(&said), &events);
    for kind in kinds.iter().filter(|kind| kind.held != kind.recorded) {
        complaints.push(format!(
            "{}: {} bytes held, {} recorded",
            kind.kind, kind.held, kind.recorded
        ));
    }
    Ok(GpuResult {
        circumstances,
        absent: None,
        driver: Some(version_of(libcuda)),
        kinds,
        refused: said
            .lines()
            .filter_map(|line| line.strip_prefix("refused "))
            .map(str::to_owned)
            .collect(),
        complaints,
    })
}

/// Bytes by kind in the program's lines.
fn held(said: &str) -> BTreeMap<String, u64> {
    said.lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("held ")?.split(' ');
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        })
        .collect()
}

/// Puts what is live by the events beside what the program holds.
fn compare(held: &BTreeMap<String, u64>, events: &[Event]) -> Vec<GpuKind> {
    let mut live: BTreeMap<&str, i128> = held.keys().map(|kind| (kind.as_str(), 0)).collect();
    for event in events {
        let bytes = i128::from(event.size.unwrap_or(0));
        let change = match event.action.as_str() {
            "cuda_alloc" => bytes,
            "cuda_free" => -bytes,
            _ => continue,
        };
        *live
            .entry(event.space.as_deref().unwrap_or("unknown"))
            .or_default() += change;
    }
    let kinds = live.into_iter();
    kinds
        .map(|(kind, recorded)| GpuKind {
            kind: kind.to_owned(),
            held: held.get(kind).copied().unwrap_or(0),
            // Less than nothing is live only where events are wrong.
            recorded: u64::try_from(recorded).unwrap_or(u64::MAX),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_libcuda_is_found_among_others() {
        let listed = "3 libs found in cache\n\
                      \tlibcuda.so.1 (libc6) => /lib/i386-linux-gnu/libcuda.so.1\n\
                      \tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1\n\
                      \tlibcuda.so (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so\n";
        assert_eq!(
            listed_libcuda(listed),
            Some("/lib/x86_64-linux-gnu/libcuda.so.1")
        );
        assert_eq!(listed_libcuda(""), None);
    }

    #[test]
    fn a_version_is_read_from_the_name_of_the_file() {
        assert_eq!(
            version_of(Path::new("/x/libcuda.so.580.65.06")),
            "580.65.06"
        );
    }

    #[test]
    fn bytes_that_memprobe_missed_are_seen() {
        let held = held("refused cuMemCreate 801\nheld device 30\nheld pinned 5\n");
        let event = |action: &str, space: &str, size| Event {
            action: action.to_owned(),
            space: Some(space.to_owned()),
            size: Some(size),
        };
        let events = [
            event("cuda_alloc", "device", 40),
            event("cuda_free", "device", 10),
            event("cuda_alloc", "array", 1),
        ];
        let kinds = compare(&held, &events);
        let found: Vec<_> = kinds
            .iter()
            .map(|kind| (kind.kind.as_str(), kind.held, kind.recorded))
            .collect();
        assert_eq!(
            found,
            [("array", 0, 1), ("device", 30, 30), ("pinned", 5, 0)]
        );
    }
}
