//! Table of the kernels that memprobe is tested on.

/// A kernel: its package, and memprobe's expected behaviour on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Name on the command line.
    pub name: &'static str,
    pub distribution: Distribution,
    /// Suites of the archive to search; the newest package wins.
    pub suites: &'static [&'static str],
    /// Metapackage that depends on the suite's current kernel.
    pub package: &'static str,
    /// Reason for testing it.
    pub reason: &'static str,
    /// Expected behaviour of memprobe.
    pub expected: Expected,
}

/// Distribution that built and signed a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    Debian,
    Ubuntu,
}

/// Expected behaviour of memprobe on a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Everything works.
    Works,
    /// memprobe reports that the kernel is too old, and names the required version.
    Refused,
}

/// The representative kernel, used if only one can be tested.
pub const TYPICAL: &str = "6.1";

/// Every kernel, oldest first.
pub const KERNELS: [Kernel; 7] = [
    Kernel {
        name: "5.10",
        distribution: Distribution::Debian,
        suites: &["bullseye", "bullseye-security"],
        package: "linux-image-amd64",
        reason: "Debian 11; too old: no perf links for uprobes",
        expected: Expected::Refused,
    },
    Kernel {
        name: "5.15.0-25",
        distribution: Distribution::Ubuntu,
        suites: &["jammy"],
        package: "linux-image-generic",
        reason: "the oldest: Ubuntu 22.04 as it was released",
        expected: Expected::Works,
    },
    Kernel {
        name: "5.15",
        distribution: Distribution::Ubuntu,
        suites: &["jammy", "jammy-updates", "jammy-security"],
        package: "linux-image-generic",
        reason: "Ubuntu 22.04 with its updates",
        expected: Expected::Works,
    },
    Kernel {
        name: "6.1",
        distribution: Distribution::Debian,
        suites: &["bookworm", "bookworm-security"],
        package: "linux-image-amd64",
        reason: "Debian 12",
        expected: Expected::Works,
    },
    Kernel {
        name: "6.8",
        distribution: Distribution::Ubuntu,
        suites: &["noble", "noble-updates", "noble-security"],
        package: "linux-image-generic",
        reason: "Ubuntu 24.04",
        expected: Expected::Works,
    },
    Kernel {
        name: "6.12",
        distribution: Distribution::Debian,
        suites: &["trixie", "trixie-security"],
        package: "linux-image-amd64",
        reason: "Debian 13",
        expected: Expected::Works,
    },
    Kernel {
        name: "sid",
        distribution: Distribution::Debian,
        suites: &["sid"],
        package: "linux-image-amd64",
        reason: "the newest of Debian",
        expected: Expected::Works,
    },
];

/// A test program to run on a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    pub name: &'static str,
    /// Substrings of the names of the tests to run; empty for all.
    pub tests: &'static [&'static str],
    /// Kernels to run on, by expected behaviour.
    pub on: Expected,
    /// Substrings of the tests in a quick run; `None` skips the program.
    pub quick: Option<&'static [&'static str]>,
}

/// Extent of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A few tests.
    Quick,
    /// All tests.
    Whole,
}

/// Every program, in the order of execution.
pub const PROGRAMS: [Program; 6] = [
    Program {
        name: "kernel",
        tests: &["too_old"],
        on: Expected::Refused,
        quick: Some(&["too_old"]),
    },
    Program {
        name: "kernel",
        tests: &["verifier"],
        on: Expected::Works,
        quick: Some(&["verifier"]),
    },
    Program {
        name: "python_frames",
        tests: &[
            "every_frame",
            "lines_do_not",
            "outlives_it",
            "all_the_time",
            "forked",
        ],
        on: Expected::Works,
        quick: None,
    },
    Program {
        name: "exactness",
        tests: &["perceptron", "threads", "started"],
        on: Expected::Works,
        quick: Some(&["perceptron"]),
    },
    Program {
        name: "robustness",
        tests: &[
            "killed",
            "two_memprobes",
            "losses",
            "control_c",
            "exit_status",
        ],
        on: Expected::Works,
        quick: Some(&["losses"]),
    },
    Program {
        name: "mid_attach",
        tests: &[],
        on: Expected::Works,
        quick: None,
    },
];

/// Returns the programs of a run: those named in `only`, or all if it is empty.
pub fn programs(extent: Extent, only: &[&str]) -> Vec<Program> {
    let named = |program: &Program| only.is_empty() || only.contains(&program.name);
    PROGRAMS
        .into_iter()
        .filter(named)
        .filter_map(|program| match extent {
            Extent::Whole => Some(program),
            Extent::Quick => Some(Program {
                tests: program.quick?,
                ..program
            }),
        })
        .collect()
}

impl Kernel {
    pub fn named(name: &str) -> Option<&'static Self> {
        KERNELS.iter().find(|kernel| kernel.name == name)
    }

    /// Returns distribution and suite, such as `Debian bullseye`.
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
                |program: &&Program| program.on == kernel.expected && program.quick.is_some();
            assert!(PROGRAMS.iter().any(|program| tried(&program)), "{kernel:?}");
        }
    }
}
