//! NVML of a machine without a GPU: the library loads, answers with an error, and memprobe says so.

use std::path::Path;

use anyhow::{Context, Result};

use super::caller::Caller;
use super::library::Library;
use super::memprobe::top_once;
use super::results::{Circumstances, NvmlResult};
use super::trial::Tools;

/// Tries NVML and `memprobe top` with it.
pub fn try_nvml(
    tools: &Tools,
    library: &Path,
    version: &str,
    circumstances: Circumstances,
) -> Result<NvmlResult> {
    let mut caller = Caller::start(&tools.calls, None)?;
    caller.load(library)?;
    let init = caller.start_with("nvmlInit_v2");
    let folder = library.parent().context("a library lies in a folder")?;
    let (status, said) = top_once(&tools.memprobe, folder)?;
    Ok(NvmlResult {
        version: version.to_owned(),
        circumstances,
        exported: Library::read(library)?.exported("nvml") as u64,
        init: init.ok(),
        top_status: status.to_string(),
        top_says: on_driver(&said),
    })
}

/// The lines about the driver. The others name processes of this machine.
fn on_driver(said: &str) -> Vec<String> {
    said.lines()
        .filter(|line| {
            ["NVIDIA", "NVML", "libnvidia-ml"]
                .iter()
                .any(|word| line.contains(word))
        })
        .map(|line| line.trim().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_no_process_of_the_machine() {
        let said = "DRIVER is -: the NVIDIA driver is not loaded\n\
                    PID  USER  DEV  COMMAND\n958  root  -  python /home/me/secret.py\n";
        assert_eq!(
            on_driver(said),
            ["DRIVER is -: the NVIDIA driver is not loaded"]
        );
    }
}
