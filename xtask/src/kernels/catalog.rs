//! The kernels that memprobe is tried on, as data.

/// A kernel: where it comes from, and what is expected of memprobe on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// What it is called on the command line.
    pub name: &'static str,
    /// Whose it is.
    pub distribution: Distribution,
    /// The suites of the archive that are looked in; the newest package of all counts.
    pub suites: &'static [&'static str],
    /// The package that depends on the suite's current kernel.
    pub package: &'static str,
    /// Why it is tried.
    pub why: &'static str,
    /// What memprobe does on it.
    pub expected: Expected,
    /// How many instructions its verifier followed of the longest program, by its log (2026-11-22), where the kernel does
    /// not tell.
    pub followed: Option<u32>,
}

/// Who built a kernel, and signs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    Debian,
    Ubuntu,
}

/// What memprobe does on a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// All that it does.
    Works,
    /// It says that the kernel is too old, and what would do.
    Refused,
}

/// The kernel that stands for all where only one can be tried.
pub const TYPICAL: &str = "6.1";

/// Every kernel, from the oldest to the newest.
pub const KERNELS: [Kernel; 7] = [
    Kernel {
        name: "5.10",
        distribution: Distribution::Debian,
        suites: &["bullseye", "bullseye-security"],
        package: "linux-image-amd64",
        why: "Debian 11; too old: no perf links for uprobes",
        expected: Expected::Refused,
        followed: None,
    },
    Kernel {
        name: "5.15.0-25",
        distribution: Distribution::Ubuntu,
        suites: &["jammy"],
        package: "linux-image-generic",
        why: "the oldest: Ubuntu 22.04 as it was released",
        expected: Expected::Works,
        followed: Some(174_586),
    },
    Kernel {
        name: "5.15",
        distribution: Distribution::Ubuntu,
        suites: &["jammy", "jammy-updates", "jammy-security"],
        package: "linux-image-generic",
        why: "Ubuntu 22.04 with its updates",
        expected: Expected::Works,
        followed: Some(172_018),
    },
    Kernel {
        name: "6.1",
        distribution: Distribution::Debian,
        suites: &["bookworm", "bookworm-security"],
        package: "linux-image-amd64",
        why: "Debian 12",
        expected: Expected::Works,
        followed: None,
    },
    Kernel {
        name: "6.8",
        distribution: Distribution::Ubuntu,
        suites: &["noble", "noble-updates", "noble-security"],
        package: "linux-image-generic",
        why: "Ubuntu 24.04",
        expected: Expected::Works,
        followed: None,
    },
    Kernel {
        name: "6.12",
        distribution: Distribution::Debian,
        suites: &["trixie", "trixie-security"],
        package: "linux-image-amd64",
        why: "Debian 13",
        expected: Expected::Works,
        followed: None,
    },
    Kernel {
        name: "sid",
        distribution: Distribution::Debian,
        suites: &["sid"],
        package: "linux-image-amd64",
        why: "the newest of Debian",
        expected: Expected::Works,
        followed: None,
    },
];

/// A program of tests that runs on a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Its package and its name there.
    pub package: &'static str,
    pub name: &'static str,
    /// The tests of it, by parts of their names; none for all.
    pub tests: &'static [&'static str],
    /// On which kernels it runs.
    pub on: Expected,
    /// Those of its tests that run where time is short, if any.
    pub brief: Option<&'static [&'static str]>,
}

/// How much is tried on a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A few tests.
    Brief,
    /// All of them.
    Whole,
}

/// The programs, in the order of their running.
pub const PROGRAMS: [Program; 6] = [
    Program {
        package: "memprobe-tests",
        name: "kernel",
        tests: &["too_old"],
        on: Expected::Refused,
        brief: Some(&["too_old"]),
    },
    Program {
        package: "memprobe-tests",
        name: "kernel",
        tests: &["verifier"],
        on: Expected::Works,
        brief: Some(&["verifier"]),
    },
    Program {
        package: "memprobe",
        name: "python_frames",
        tests: &[
            "every_frame",
            "lines_do_not",
            "outlives_it",
            "all_the_time",
            "forked",
        ],
        on: Expected::Works,
        brief: None,
    },
    Program {
        package: "memprobe-tests",
        name: "exactness",
        tests: &["perceptron", "threads", "started"],
        on: Expected::Works,
        brief: Some(&["perceptron"]),
    },
    Program {
        package: "memprobe-tests",
        name: "robustness",
        tests: &[
            "killed",
            "two_memprobes",
            "losses",
            "control_c",
            "exit_status",
        ],
        on: Expected::Works,
        brief: Some(&["losses"]),
    },
    Program {
        package: "memprobe-tests",
        name: "mid_attach",
        tests: &[],
        on: Expected::Works,
        brief: None,
    },
];

/// The programs of a run: those that are named, or all.
pub fn programs(extent: Extent, only: &[&str]) -> Vec<Program> {
    let named = |program: &Program| only.is_empty() || only.contains(&program.name);
    PROGRAMS
        .into_iter()
        .filter(named)
        .filter_map(|program| match extent {
            Extent::Whole => Some(program),
            Extent::Brief => Some(Program {
                tests: program.brief?,
                ..program
            }),
        })
        .collect()
}

impl Kernel {
    /// The kernel of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        KERNELS.iter().find(|kernel| kernel.name == name)
    }

    /// Where its packages come from, as people say it.
    pub fn origin(&self) -> String {
        let distribution = match self.distribution {
            Distribution::Debian => "Debian",
            Distribution::Ubuntu => "Ubuntu",
        };
        format!("{distribution} {}", self.suites[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_typical_kernel_is_one_of_them() {
        for kernel in &KERNELS {
            assert_eq!(Kernel::named(kernel.name), Some(kernel));
        }
        assert!(Kernel::named(TYPICAL).is_some());
    }

    #[test]
    fn every_expectation_has_a_program_that_tries_it_when_time_is_short() {
        for kernel in &KERNELS {
            let tried =
                |program: &&Program| program.on == kernel.expected && program.brief.is_some();
            assert!(PROGRAMS.iter().any(|program| tried(&program)), "{kernel:?}");
        }
    }
}
