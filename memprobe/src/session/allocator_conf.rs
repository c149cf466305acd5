//! Settings of PyTorch's CUDA allocator in the environment of a process.

use crate::event::Tgid;
use crate::process::environment;
use crate::process::maps::Maps;
use crate::process::memory::ProcessMemory;
use crate::torch::versions::major_minor;

/// Variables with the settings. The first one that is set counts (`AcceleratorAllocatorConfig::instance`,
/// c10/core/AllocatorConfig.cpp@v2.15.0).
const VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// First version that reads the second one.
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

fn effective([cuda, common]: environment::Values<2>, torch: Option<&str>) -> Option<String> {
    let is_old = torch
        .and_then(major_minor)
        .is_some_and(|version| version < FIRST);
    let conf = cuda.or(common.filter(|_| !is_old))?;
    let most = conf.len().min(MAX_CONF);
    let end = (0..=most).rev().find(|at| conf.is_char_boundary(*at));
    let conf = conf[..end.unwrap_or_default()].trim();
    (!conf.is_empty()).then(|| conf.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_that_the_version_reads_counts() {
        let values = |cuda: &str, common: &str| {
            [cuda, common].map(|text| (!text.is_empty()).then(|| text.to_owned()))
        };
        let found = |cuda, common, torch| effective(values(cuda, common), torch);
        for torch in [Some("2.15.0+cu132"), Some("2.9.1"), None] {
            assert_eq!(found("a:1", "b:2", torch).as_deref(), Some("a:1"));
            assert_eq!(found("", "", torch), None);
        }
        assert_eq!(found("", "b:2", Some("2.9.1")), None);
        assert_eq!(found("", "b:2", Some("2.10.0")).as_deref(), Some("b:2"));
        assert_eq!(found("", " b:2 ", None).as_deref(), Some("b:2"));
        // An empty text is a setting too.
        let empty = [Some(String::new()), Some("b:2".to_owned())];
        assert_eq!(effective(empty, Some("2.15.0")), None);
        let long = "x".repeat(10_000);
        assert_eq!(found(&long, "", None).unwrap().len(), MAX_CONF);
    }
}
