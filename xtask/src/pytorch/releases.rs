//! Table of PyTorch releases to test: the last patch of each, with the Pythons that have a Linux
//! x86-64 wheel on PyPI (free-threaded builds aside).

/// A release of PyTorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// Full version.
    pub torch: &'static str,
    /// CUDA version of its wheel on PyPI.
    pub cuda: &'static str,
    /// Minor versions of CPython 3 that have a wheel.
    pub pythons: &'static [u8],
    /// Size of the wheel for CPython 3.11, in 10^6 bytes. The others differ by less than 1 %.
    pub wheel_mb: u32,
    /// pip requirement for the numpy that it is compiled against.
    pub numpy: &'static str,
}

const fn release(
    torch: &'static str,
    cuda: &'static str,
    pythons: &'static [u8],
    wheel_mb: u32,
) -> Release {
    Release {
        torch,
        cuda,
        pythons,
        wheel_mb,
        numpy: "numpy",
    }
}

const fn with_numpy_1(release: Release) -> Release {
    Release {
        numpy: "numpy<2",
        ..release
    }
}

/// Every release, oldest first (PyPI, 2026-11-21).
pub const RELEASES: &[Release] = &[
    with_numpy_1(release("2.0.1", "11.7", &[9, 10, 11], 620)),
    with_numpy_1(release("2.1.2", "12.1", &[9, 10, 11], 670)),
    with_numpy_1(release("2.2.2", "12.1", &[9, 10, 11, 12], 756)),
    release("2.3.1", "12.1", &[9, 10, 11, 12], 779),
    release("2.4.1", "12.1", &[9, 10, 11, 12], 797),
    release("2.5.1", "12.4", &[9, 10, 11, 12, 13], 906),
    release("2.6.0", "12.4", &[9, 10, 11, 12, 13], 767),
    release("2.7.1", "12.6", &[9, 10, 11, 12, 13], 821),
    release("2.8.0", "12.8", &[9, 10, 11, 12, 13], 888),
    release("2.9.1", "12.8", &[10, 11, 12, 13, 14], 900),
    release("2.10.0", "12.8", &[10, 11, 12, 13, 14], 916),
    release("2.11.0", "13.0", &[10, 11, 12, 13, 14], 531),
    release("2.12.1", "13.0", &[10, 11, 12, 13, 14], 532),
    release("2.13.0", "13.0", &[10, 11, 12, 13, 14], 527),
    release("2.14.1", "13.0", &[10, 11, 12, 13, 14], 555),
    release("2.15.0", "13.2", &[11, 12, 13, 14, 15], 539),
];

/// A release, run on the first of these Pythons that a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TestedPair {
    /// Version of PyTorch.
    pub torch: &'static str,
    /// Minor versions of CPython 3, in order of preference.
    pub pythons: &'static [u8],
}

/// Pairs that `cargo xtask test --all` and CI use; `cargo xtask test` uses the first two. Most tests
/// run on the first alone, with a Python that machines commonly have. Comparisons with PyTorch's own history run on the others: the newest
/// Python, a middle release and an old one.
pub const TESTED: [TestedPair; 4] = [
    TestedPair {
        torch: "2.15.0",
        pythons: &[13, 12, 11],
    },
    TestedPair {
        torch: "2.15.0",
        pythons: &[15, 14],
    },
    TestedPair {
        torch: "2.6.0",
        pythons: &[11, 12, 10],
    },
    TestedPair {
        torch: "2.0.1",
        pythons: &[9, 10, 11],
    },
];

/// Returns the release of that version, if the table has it.
pub fn release_of(torch: &str) -> Option<&'static Release> {
    RELEASES.iter().find(|release| release.torch == torch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tested_pair_has_wheels() {
        for pair in TESTED {
            let release = release_of(pair.torch).expect("a row of the table");
            for python in pair.pythons {
                assert!(
                    release.pythons.contains(python),
                    "3.{python} x {}",
                    pair.torch
                );
            }
        }
    }

    #[test]
    fn the_table_is_in_order_and_has_the_default() {
        let number = |release: &Release| {
            let minor = release.torch.split('.').nth(1).expect("a minor version");
            minor.parse::<u32>().expect("a number")
        };
        assert!(
            RELEASES
                .windows(2)
                .all(|pair| number(&pair[0]) < number(&pair[1]))
        );
        assert!(release_of(super::super::DEFAULT_TORCH).is_some());
    }
}
