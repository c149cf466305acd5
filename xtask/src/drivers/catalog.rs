//! Libraries of NVIDIA and UCX that memprobe is tried on, and where they come from.

use clap::ValueEnum;

/// A version of NVIDIA's user-space driver, as a suite of Debian packages it (component non-free).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Driver {
    /// NVIDIA's version.
    pub version: &'static str,
    /// The suite of Debian that has it (seen 2026-11-22).
    pub suite: &'static str,
    /// The package of libcuda.
    pub cuda: &'static str,
    /// The package of NVML, where the suite has one of the same version.
    pub nvml: Option<&'static str>,
}

/// Every driver, from the oldest to the newest.
pub const DRIVERS: [Driver; 8] = [
    Driver {
        version: "450.248.02",
        suite: "sid",
        cuda: "libnvidia-tesla-450-cuda1",
        nvml: Some("libnvidia-tesla-450-ml1"),
    },
    Driver {
        version: "460.106.00",
        suite: "sid",
        cuda: "libnvidia-tesla-460-cuda1",
        nvml: Some("libnvidia-tesla-460-ml1"),
    },
    Driver {
        version: "470.256.02",
        suite: "bookworm",
        cuda: "libnvidia-tesla-470-cuda1",
        nvml: Some("libnvidia-tesla-470-ml1"),
    },
    Driver {
        version: "525.147.05",
        suite: "bookworm",
        cuda: "libnvidia-tesla-cuda1",
        nvml: Some("libnvidia-tesla-ml1"),
    },
    Driver {
        version: "535.261.03",
        suite: "bookworm",
        cuda: "libcuda1",
        nvml: Some("libnvidia-ml1"),
    },
    Driver {
        version: "535.274.02",
        suite: "trixie",
        cuda: "libnvidia-tesla-535-cuda1",
        nvml: Some("libnvidia-tesla-535-ml1"),
    },
    Driver {
        version: "550.163.01",
        suite: "trixie",
        cuda: "libcuda1",
        nvml: Some("libnvidia-ml1"),
    },
    Driver {
        version: "555.58.02",
        suite: "experimental",
        cuda: "libcuda1",
        nvml: Some("libnvidia-ml1"),
    },
];

/// A wheel of a package registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wheel {
    /// The package.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
}

/// The wheels of libcudart, from the oldest to the newest.
pub const RUNTIMES: [Wheel; 7] = [
    wheel("nvidia-cuda-runtime-cu11", "11.8.89"),
    wheel("nvidia-cuda-runtime-cu12", "12.1.105"),
    wheel("nvidia-cuda-runtime-cu12", "12.4.127"),
    wheel("nvidia-cuda-runtime-cu12", "12.9.79"),
    wheel("nvidia-cuda-runtime", "13.0.96"),
    wheel("nvidia-cuda-runtime", "13.2.86"),
    wheel("nvidia-cuda-runtime", "13.5.37"),
];

/// UCX, which rewrites the entries of functions of libcuda.
pub const UCX: Wheel = wheel("libucx-cu12", "1.22.0");

const fn wheel(package: &'static str, version: &'static str) -> Wheel {
    Wheel { package, version }
}

/// A group of trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Each probed function of each libcuda
    Cuda,
    /// Each probed function of each libcudart
    Runtime,
    /// UCX, which rewrites functions, before and after memprobe
    Ucx,
    /// NVML, which `memprobe top` reads
    Nvml,
    /// Calls that succeed, where there is a GPU
    Gpu,
}

/// Returns the origin and licence of every download, as text.
pub fn origins() -> String {
    let mut text = String::from(
        "Downloads into the cache (nothing is installed, nothing goes into the repository):\n\
         * NVIDIA's user-space driver, libcuda and libnvidia-ml, by apt-get from Debian's non-free section. Proprietary: \
         \"License For Customer Use of NVIDIA Software\"; it forbids disassembly, which is not done.\n",
    );
    for driver in DRIVERS {
        text += &format!(
            "    {:<11} {:<13} {}{}\n",
            driver.version,
            driver.suite,
            driver.cuda,
            driver
                .nvml
                .map(|package| format!(", {package}"))
                .unwrap_or_default()
        );
    }
    text += "* CUDA runtimes (libcudart), by pip. Proprietary: \"NVIDIA CUDA Toolkit EULA\".\n";
    for Wheel { package, version } in RUNTIMES {
        text += &format!("    {package} {version}\n");
    }
    text += &format!(
        "* UCX, by pip: {} {}. BSD-3-Clause; the wheel brings a copy of NVIDIA's libcudart.\n",
        UCX.package, UCX.version
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_each_package_and_each_licence_before_a_download() {
        let text = origins();
        for driver in DRIVERS {
            assert!(text.contains(driver.version) && text.contains(driver.cuda));
        }
        for runtime in RUNTIMES {
            assert!(text.contains(&format!("{} {}\n", runtime.package, runtime.version)));
        }
        for licence in ["Customer Use", "EULA", "BSD-3-Clause"] {
            assert!(text.contains(licence), "{licence}");
        }
    }
}
