//! Virtual machine that boots a kernel, runs a script and powers off.

use std::fmt;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;

const QEMU: &str = "qemu-system-x86_64";

/// Time limit for a kernel's first output under KVM.
const FIRST_WORD: Duration = Duration::from_secs(15);

/// Execution engine of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accelerator {
    /// Hardware virtualization.
    Kvm,
    /// qemu's binary translation, with the reason why KVM is not used.
    Tcg { reason: String },
}

impl Accelerator {
    /// Returns the reason why KVM cannot work, if that is known without booting a kernel.
    pub fn without_kvm() -> Option<String> {
        let opened = fs::File::options().read(true).write(true).open("/dev/kvm");
        if let Err(error) = opened {
            return Some(format!("/dev/kvm: {error}"));
        }
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let virtualizes = processor
            .lines()
            .filter(|line| line.starts_with("flags"))
            .flat_map(str::split_whitespace)
            .any(|flag| flag == "vmx" || flag == "svm");
        // The KVM of some nested machines runs only kernels made for it.
        (!virtualizes).then(|| "the processor has neither VMX nor SVM".to_owned())
    }

    /// Boots a kernel under KVM as a trial; falls back to TCG.
    pub fn find(vmlinuz: &Path, folder: &Path) -> Result<Self> {
        if let Some(reason) = Self::without_kvm() {
            return Ok(Self::Tcg { reason });
        }
        let console = folder.join("kvm-trial.log");
        fs::write(&console, "")?;
        let mut qemu = Command::new(QEMU);
        qemu.args(["-accel", "kvm", "-cpu", "host", "-m", "512"]);
        qemu.args(["-display", "none", "-no-reboot", "-kernel"]);
        qemu.arg(vmlinuz);
        qemu.args(["-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1"]);
        qemu.arg("-serial")
            .arg(format!("file:{}", console.display()));
        let mut machine = Machine::start(qemu.stdout(Stdio::null()).stderr(Stdio::piped()))?;
        let start = Instant::now();
        loop {
            if fs::metadata(&console)?.len() > 0 {
                return Ok(Self::Kvm);
            }
            if machine.0.try_wait()?.is_some() {
                let mut words = BufReader::new(machine.0.stderr.take().context("piped")?).lines();
                let reason = words
                    .find_map(|line| line.ok()?.split_once("error: ").map(|at| at.1.to_owned()))
                    .unwrap_or_else(|| "qemu ended at once".to_owned());
                return Ok(Self::Tcg {
                    reason: format!("KVM cannot run an ordinary kernel here ({reason})"),
                });
            }
            if start.elapsed() > FIRST_WORD {
                let reason = "KVM does not get an ordinary kernel to its first word here";
                return Ok(Self::Tcg {
                    reason: reason.to_owned(),
                });
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Factor for time limits, relative to KVM.
    pub fn patience(&self) -> u32 {
        match self {
            Self::Kvm => 1,
            Self::Tcg { .. } => 6,
        }
    }

    /// Name in a table.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg { .. } => "qemu",
        }
    }

    fn options(&self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Tcg { .. } => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        }
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kvm => f.write_str("KVM"),
            Self::Tcg { reason } => write!(f, "qemu's translation, much slower than KVM: {reason}"),
        }
    }
}

/// Parts and settings of a virtual machine.
pub struct Guest {
    pub vmlinuz: PathBuf,
    pub initramfs: PathBuf,
    /// System disk and test disk.
    pub disks: [PathBuf; 2],
    /// Log file for the kernel's console.
    pub console: PathBuf,
    /// Log file for the script's output, written as it arrives.
    pub log: PathBuf,
    /// Time limit of a run.
    pub limit: Duration,
}

impl Guest {
    /// Boots the guest, waits for its end, and returns the script's output. `heard` receives each
    /// line as it arrives.
    ///
    /// # Errors
    ///
    /// If the guest does not start or exceeds its limit; the error includes the kernel's last
    /// messages.
    pub fn run(
        &self,
        accelerator: &Accelerator,
        mut heard: impl FnMut(&str),
    ) -> Result<Vec<String>> {
        let mut qemu = Command::new(QEMU);
        qemu.args(accelerator.options());
        qemu.args(["-smp", "2", "-m", "4096", "-display", "none", "-no-reboot"]);
        qemu.arg("-kernel").arg(&self.vmlinuz);
        qemu.arg("-initrd").arg(&self.initramfs);
        // On a busy machine, a translated guest's timer may be too late for the kernel's own check.
        qemu.args(["-append", "console=ttyS0 panic=-1 quiet no_timer_check"]);
        for disk in &self.disks {
            let disk = disk.display();
            qemu.arg("-drive")
                .arg(format!("file={disk},if=virtio,format=raw,readonly=on"));
        }
        qemu.arg("-serial")
            .arg(format!("file:{}", self.console.display()));
        qemu.args(["-serial", "stdio", "-nic", "none"]);
        let mut machine = Machine::start(qemu.stdout(Stdio::piped()))?;
        let printed = BufReader::new(machine.0.stdout.take().context("piped")?);
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in printed.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                if send.send(line.trim_end_matches('\r').to_owned()).is_err() {
                    break;
                }
            }
        });
        let mut log = fs::File::create(&self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let (start, mut all) = (Instant::now(), Vec::new());
        loop {
            match lines.recv_timeout(self.limit.saturating_sub(start.elapsed())) {
                Ok(line) => {
                    writeln!(log, "{:>6.1} {line}", start.elapsed().as_secs_f64())?;
                    heard(&line);
                    all.push(line);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => bail!(
                    "the guest was not over within {} s.\n{}",
                    self.limit.as_secs(),
                    self.last_words()
                ),
            }
        }
        let status = machine.0.wait()?;
        if !status.success() {
            bail!("{QEMU} failed ({status}).\n{}", self.last_words());
        }
        Ok(all)
    }

    /// Returns the last lines of the kernel's console.
    pub fn last_words(&self) -> String {
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<&str> = console.lines().collect();
        let last = &lines[lines.len().saturating_sub(12)..];
        format!(
            "The kernel's last words ({}):\n  {}",
            self.console.display(),
            last.join("\n  ")
        )
    }
}

/// A running qemu, killed on drop.
struct Machine(Child);

impl Machine {
    fn start(command: &mut Command) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start `{}`", process::shown(command)))?;
        Ok(Self(child))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
