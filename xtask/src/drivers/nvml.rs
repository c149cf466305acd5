//! NVML of a machine without a GPU: the library loads, answers with an error, and memprobe says so.

use std::path::Path;

use anyhow::{Context, Result};

use super::caller::Caller;
use super::library::Library;
use super::memprobe::top_once;
use super::results::{Circumstances, NvmlResult};
use super::trial::Tools;

/// Lines of memprobe's words that are kept.
const KEPT_LINES: usize = 6;

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
    let folder = folder.to_string_lossy();
    Ok(NvmlResult {
        version: version.to_owned(),
        circumstances,
        exported: Library::read(library)?.exported("nvml") as u64,
        init: init.ok(),
        top_status: status.to_string(),
        top_says: said
            .lines()
            .filter(|line| !line.trim().is_empty())
            .take(KEPT_LINES)
            .map(|line| line.trim_end().replace(&*folder, "DRIVER"))
            .collect(),
    })
}
