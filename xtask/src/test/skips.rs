//! Skips that are expected on a machine. Any other skip fails the run.

use std::path::Path;

use super::Extent;
use super::outcome::Skip;
use crate::process;

/// Reason of a test of the suite that only a run of everything, or of its feature, includes: it takes more than 8 s.
pub const LONG: &str = "long: cargo xtask test --all";

/// True if a test was left out because it is long.
pub fn is_long(skip: &Skip) -> bool {
    skip.reason.strip_prefix("ignored, ") == Some(LONG)
}

/// Facts about this machine and run that excuse skips.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    pub extent: Extent,
    /// A real NVIDIA GPU is here.
    pub has_gpu: bool,
    /// Output of `uname -r`.
    pub kernel: String,
    /// `/sys/kernel/btf/vmlinux` is here.
    pub publishes_types: bool,
    /// The kernel has overlayfs, and the folder for temporary files does not lie on one.
    pub mounts_overlays: bool,
    /// PyTorch's environments and temporary files lie on one file system.
    pub links_environments: bool,
    /// A hierarchy of control groups is mounted.
    pub has_control_groups: bool,
    /// Packages can be installed: apt-get, and root.
    pub installs_packages: bool,
    /// npm is here.
    pub has_npm: bool,
    pub is_root: bool,
}

impl Machine {
    /// Inspects this machine.
    pub fn inspect(extent: Extent) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let exists = |path: &str| Path::new(path).exists();
        let temporary = std::env::temp_dir();
        let overlays = read("/proc/filesystems")
            .lines()
            .any(|line| line.ends_with("\toverlay"));
        let groups = ["", "unified/", "pids/", "freezer/"];
        let is_root = process::is_root();
        Self {
            extent,
            has_gpu: exists("/dev/nvidia0"),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            publishes_types: exists("/sys/kernel/btf/vmlinux"),
            mounts_overlays: overlays && !is_on_overlay(&temporary),
            links_environments: crate::repository::cache_folder()
                .is_ok_and(|cache| is_one_file_system(&cache, &temporary)),
            has_control_groups: groups
                .iter()
                .any(|group| exists(&format!("/sys/fs/cgroup/{group}cgroup.procs"))),
            installs_packages: is_root && process::on_path("apt-get").is_some(),
            has_npm: process::on_path("npm").is_some(),
            is_root,
        }
    }

    /// True if this skip is expected here.
    pub fn expects(&self, skip: &Skip) -> bool {
        EXPECTED
            .iter()
            .any(|expected| expected.covers(skip) && (expected.on)(self))
    }

    /// True if the kernel is older than 5.15.
    fn is_too_old(&self) -> bool {
        let mut numbers = self
            .kernel
            .split(['.', '-'])
            .map(|part| part.parse::<u32>().ok());
        let version = (numbers.next().flatten(), numbers.next().flatten());
        version < (Some(5), Some(15))
    }
}

/// A skip, and the machines on which it is expected.
struct Expected {
    /// Beginning of the test's name, with its program.
    test: &'static str,
    /// Part of the reason.
    reason: &'static str,
    on: fn(&Machine) -> bool,
}

impl Expected {
    fn covers(&self, skip: &Skip) -> bool {
        skip.test.starts_with(self.test) && skip.reason.contains(self.reason)
    }
}

const fn expected(test: &'static str, reason: &'static str, on: fn(&Machine) -> bool) -> Expected {
    Expected { test, reason, on }
}

/// The list. A row says which fact of the machine excuses the skip, never "always", unless no
/// machine could run the part.
const EXPECTED: &[Expected] = &[
    // One of the two runs on each machine.
    expected("kernel::a_kernel_that_is_too_old", "is not too old", |it| {
        !it.is_too_old()
    }),
    expected(
        "kernel::every_program_passes",
        "is too old",
        Machine::is_too_old,
    ),
    // The first release without `expandable_segments` is the oldest tested one.
    expected("late_attach::blocks_in_expandable", "PyTorch 2.0.", |_| {
        true
    }),
    expected("", "runs on a real GPU", |it| it.has_gpu),
    expected("", "GPUs are wanted", |it| it.has_gpu),
    expected("top::", "this machine has a driver", |it| it.has_gpu),
    expected("top::", "may have fewer than four GPUs", |it| it.has_gpu),
    expected("another kernel", "here is a GPU", |it| it.has_gpu),
    // The reason is the outcome of a trial of this machine's KVM.
    expected("another kernel", "without KVM", |_| true),
    expected("another kernel", "apt-get", |it| !it.installs_packages),
    expected("", "overlayfs cannot be mounted", |it| !it.mounts_overlays),
    expected("confined_targets::", "Overlay:", |it| !it.mounts_overlays),
    expected("confined_targets::", "no hard links", |it| {
        !it.links_environments
    }),
    expected("confined_targets::", "no control group", |it| {
        !it.has_control_groups
    }),
    expected("memprobe::", "does not publish its types", |it| {
        !it.publishes_types
    }),
    // Every Python and every PyTorch is tried where they can be installed, in a run of everything.
    expected("", "no Python 3.", |it| {
        it.extent != Extent::Everything || !it.installs_packages
    }),
    // It only has to be refused, and distributions have it no more.
    expected(
        "python_frames::a_python_of_unknown_layout",
        "no Python 3.8",
        |_| true,
    ),
    // The browser is installed in a run of everything.
    expected("html::", "chromedriver is not installed", |it| {
        it.extent != Extent::Everything || !it.installs_packages
    }),
    // The programs that open exports, too. Each needs its own registry.
    expected("consumers::", "names no programs", |it| {
        it.extent != Extent::Everything
    }),
    expected("consumers::", "chromedriver is not installed", |it| {
        it.extent != Extent::Everything || !it.installs_packages
    }),
    expected("consumers::", "npm/node_modules", |it| !it.has_npm),
    expected("a PyTorch", "no Python", |it| !it.installs_packages),
    expected("", LONG, |it| it.extent == Extent::Short),
    // Chosen by --no-pytorch.
    expected("", "--no-pytorch", |it| it.extent == Extent::WithoutPyTorch),
    expected("", "names no PyTorch", |it| {
        it.extent == Extent::WithoutPyTorch
    }),
    expected("", "needs root", |it| !it.is_root),
    expected("xtask::", "is not installed", |it| {
        it.extent == Extent::WithoutPyTorch
    }),
    expected("xtask::", "no C compiler", |it| {
        it.extent == Extent::WithoutPyTorch
    }),
];

fn is_on_overlay(folder: &Path) -> bool {
    const OVERLAYFS_SUPER_MAGIC: i128 = 0x794c_7630;
    rustix::fs::statfs(folder).is_ok_and(|found| i128::from(found.f_type) == OVERLAYFS_SUPER_MAGIC)
}

fn is_one_file_system(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| path.metadata().ok().map(|found| found.dev());
    device(one).is_some() && device(one) == device(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::outcome::Skipped;

    fn machine() -> Machine {
        Machine {
            extent: Extent::Everything,
            has_gpu: false,
            kernel: "6.1.0-56-amd64".to_owned(),
            publishes_types: true,
            mounts_overlays: true,
            links_environments: true,
            has_control_groups: true,
            installs_packages: true,
            has_npm: true,
            is_root: true,
        }
    }

    fn skip(test: &str, reason: &str) -> Skip {
        Skip {
            test: test.to_owned(),
            extent: Skipped::Whole,
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn a_skip_that_is_not_listed_is_not_expected() {
        assert!(!machine().expects(&skip("top::rows", "I did not feel like it")));
    }

    #[test]
    fn a_listed_skip_is_expected_on_its_machines_alone() {
        let real = skip("top::x", "skipped: this machine has a driver");
        assert!(!machine().expects(&real));
        let with_gpu = Machine {
            has_gpu: true,
            ..machine()
        };
        assert!(with_gpu.expects(&real));
        let overlay = skip("confined_targets::x", "Overlay: mount: no such device");
        assert!(!machine().expects(&overlay));
        let without = Machine {
            mounts_overlays: false,
            ..machine()
        };
        assert!(without.expects(&overlay));
    }

    #[test]
    fn of_the_two_tests_of_old_kernels_one_is_expected_to_be_skipped() {
        let of_new = skip("kernel::every_program_passes_x", "5.10.0 is too old");
        let of_old = skip("kernel::a_kernel_that_is_too_old_is", "6.1 is not too old");
        let old = Machine {
            kernel: "5.10.0-9".to_owned(),
            ..machine()
        };
        assert!(machine().expects(&of_old) && !machine().expects(&of_new));
        assert!(old.expects(&of_new) && !old.expects(&of_old));
    }

    #[test]
    fn a_long_test_is_left_out_of_a_short_run_alone() {
        let long = skip("top::x", "ignored, long: cargo xtask test --all");
        let other = skip("top::x", "ignored, it fails");
        assert!(is_long(&long) && !is_long(&other));
        let short = Machine {
            extent: Extent::Short,
            ..machine()
        };
        assert!(short.expects(&long) && !short.expects(&other));
        assert!(!machine().expects(&long));
    }

    #[test]
    fn a_machine_without_kvm_does_not_try_another_kernel() {
        let slow = skip(
            "another kernel",
            "it takes long without KVM (no VMX nor SVM)",
        );
        assert!(machine().expects(&slow));
        assert!(!machine().expects(&skip("another kernel", "I was tired")));
    }

    #[test]
    fn a_missing_python_is_expected_if_not_everything_is_run() {
        let python = skip("every_python::x", "no Python 3.15");
        assert!(!machine().expects(&python));
        let short = Machine {
            extent: Extent::Short,
            ..machine()
        };
        assert!(short.expects(&python));
        let no_packages = Machine {
            installs_packages: false,
            ..machine()
        };
        assert!(no_packages.expects(&python));
    }
}
