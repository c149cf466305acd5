//! Settings of PyTorch's CUDA allocator in the environment of a process.

use crate::event::Tgid;
use crate::process::environment;
use crate::process::maps::Maps;
use crate::process::memory::ProcessMemory;

/// Variables with the settings: the one since PyTorch 2.10, and the one of all versions (`AcceleratorAllocatorConfig`,
/// c10/core/AllocatorConfig.h@v2.15.0).
const VARIABLES: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// First version that reads the first of them.
const FIRST: (u32, u32) = (2, 10);

/// Longest text that is kept, in bytes.
const MAX_CONF: usize = 4096;

/// Returns the settings of a process that has this version of PyTorch; `None` if there are none.
pub(super) fn read(tgid: Tgid, torch: Option<&str>) -> Option<String> {
    let memory = ProcessMemory::new(tgid);
    let maps = Maps::of(tgid).unwrap_or_default();
    let values = environment::by_now(tgid, &maps, &memory, VARIABLES);
    let values = values.or_else(|| environment::at_start(tgid, VARIABLES))?;
    effective(values, torch)
}

fn effective([common, cuda]: environment::Values<2>, torch: Option<&str>) -> Option<String> {
    let is_old = torch
        .and_then(version)
        .is_some_and(|version| version < FIRST);
    let conf = common.filter(|_| !is_old).or(cuda)?;
    let end = conf.floor_char_boundary(MAX_CONF);
    let conf = conf[..end].trim();
    (!conf.is_empty()).then(|| conf.to_owned())
}

/// Returns the first two numbers of a version such as `2.15.0+cu132`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_that_the_version_reads_counts() {
        let values = |common: &str, cuda: &str| {
            [common, cuda].map(|text| (!text.is_empty()).then(|| text.to_owned()))
        };
        let found = |common, cuda, torch| effective(values(common, cuda), torch);
        assert_eq!(
            found("a:1", "b:2", Some("2.15.0+cu132")).as_deref(),
            Some("a:1")
        );
        assert_eq!(found("a:1", "b:2", Some("2.9.1")).as_deref(), Some("b:2"));
        assert_eq!(found("a:1", "", Some("2.9.1")), None);
        assert_eq!(found("", " b:2 ", None).as_deref(), Some("b:2"));
        assert_eq!(found("", "", None), None);
        let long = "x".repeat(10_000);
        assert_eq!(found("", &long, None).unwrap().len(), MAX_CONF);
    }
}
