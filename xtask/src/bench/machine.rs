//! Description of the machine that the figures were taken on.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process;

/// Prints the versions of the measured programs, and their GPU.
const VERSIONS: &str = "import platform, torch; \
    print(f'Python {platform.python_version()}, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}')";

/// Returns lines that name the machine, kernel, versions and date. `python` ran the measured programs, if any.
pub fn describe(python: Option<&Path>) -> Result<Vec<String>> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mut lines = vec![
        format!("Machine: {}", machine(&cpu, &memory)),
        format!(
            "Kernel: {}",
            process::answer(Command::new("uname").arg("-sr"))?
        ),
    ];
    let rustc = process::answer(Command::new("rustc").arg("--version"))?;
    let memprobe = env!("CARGO_PKG_VERSION");
    let mut versions = format!("Versions: memprobe {memprobe}, {rustc}");
    if let Some(python) = python {
        let asked = process::answer(Command::new(python).args(["-W", "ignore", "-c", VERSIONS]))?;
        versions += &format!(", {asked}");
    }
    lines.push(versions);
    let date = process::today()?;
    lines.push(format!("Date: {date}"));
    Ok(lines)
}

/// Summarizes `/proc/cpuinfo` and `/proc/meminfo`, such as `AMD EPYC, 2 CPUs, 15.6 GiB, virtual`.
fn machine(cpu: &str, memory: &str) -> String {
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim())
    };
    let count = cpu
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let mut words = vec![field("model name").unwrap_or("unknown CPU").to_owned()];
    words.push(format!("{count} CPUs"));
    let kib = memory.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<f64>()
            .ok()
    });
    if let Some(kib) = kib {
        words.push(format!("{:.1} GiB", kib / f64::from(1 << 20)));
    }
    let flags = field("flags").unwrap_or_default();
    if flags.split_whitespace().any(|flag| flag == "hypervisor") {
        words.push("a virtual machine".to_owned());
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_machine_is_called_one() {
        let cpu =
            "processor\t: 0\nmodel name\t: Some CPU\nflags\t: fpu hypervisor\n\nprocessor\t: 1\n";
        let memory = "MemTotal:        8388608 kB\n";
        assert_eq!(
            machine(cpu, memory),
            "Some CPU, 2 CPUs, 8.0 GiB, a virtual machine"
        );
    }

    #[test]
    fn unknown_values_are_left_out() {
        assert_eq!(machine("processor: 0\n", ""), "unknown CPU, 1 CPUs");
    }
}
