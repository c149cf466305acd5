//! Libraries of a running process that may have got device memory before memprobe attached.
//!
//! Their calls are over. A process with PyTorch has most of them loaded whether it uses them or not, so that signs of use
//! are counted: process groups, threads, shared files, and files that a library loads at its first use.

use std::collections::BTreeMap;

use crate::cuda::libraries::{family, has_communicators, is_compiled, is_part};
use crate::event::{LoadedLibrary, Tgid, UseSign};
use crate::process::facts;
use crate::process::maps::Maps;
use crate::python::PythonProcess;
use crate::torch::names::WATCHDOG_THREAD;
use crate::torch::process_groups;

/// Folder and begin of the name of the files that NCCL shares among the ranks of a machine (src/misc/shmutils.cc@v2.27).
const SHARED_FILES: &str = "/dev/shm/nccl-";

/// Reads the mapped files, the threads and the process groups of a process.
pub(crate) fn read(tgid: Tgid, python: Option<&PythonProcess>) -> Vec<LoadedLibrary> {
    let files = Maps::of(tgid).unwrap_or_default().files();
    let shared = files.iter().filter(|file| !file.is_executable());
    let shared = shared.filter(|file| file.path.to_string_lossy().starts_with(SHARED_FILES));
    let loaded = files.iter().filter(|file| file.is_executable());
    let loaded = loaded.map(|file| file.path.to_string_lossy().into_owned());
    let loaded: Vec<String> = loaded.collect();
    let threads = facts::thread_names(tgid);
    let watchdogs = threads.iter().filter(|name| *name == WATCHDOG_THREAD);
    let has_nccl = loaded.iter().any(|path| has_communicators(path));
    let python = python.filter(|_| has_nccl);
    let of_nccl = [
        python.and_then(process_groups),
        counted(UseSign::WatchdogThreads, watchdogs.count()),
        counted(UseSign::SharedFiles, shared.count()),
    ];
    let of_nccl: Vec<UseSign> = of_nccl.into_iter().flatten().collect();
    libraries(&loaded, &of_nccl)
}

fn process_groups(python: &PythonProcess) -> Option<UseSign> {
    let memory = python.memory();
    let groups = process_groups::read(&memory, &python.layout, python.interpreter);
    (!groups.is_empty()).then_some(UseSign::ProcessGroups(groups))
}

/// A sign that is there at least once.
fn counted(sign: fn(u32) -> UseSign, number: usize) -> Option<UseSign> {
    (number > 0).then(|| sign(u32::try_from(number).unwrap_or(u32::MAX)))
}

/// Files of one library.
#[derive(Default)]
struct Files<'a> {
    /// Library itself; `None` if only parts of it are known.
    library: Option<&'a str>,
    first: &'a str,
    parts: usize,
    compiled: usize,
}

/// Groups loaded files by library. `of_nccl` are the signs that are no files of a library.
fn libraries(loaded: &[String], of_nccl: &[UseSign]) -> Vec<LoadedLibrary> {
    let mut found: BTreeMap<&str, Files> = BTreeMap::new();
    for path in loaded {
        let Some(family) = family(path) else { continue };
        let files = found.entry(family).or_insert_with(|| Files {
            first: path,
            ..Files::default()
        });
        if is_part(path) {
            files.parts += 1;
        } else if is_compiled(path) {
            files.compiled += 1;
        } else {
            files.library = files.library.or(Some(path));
        }
    }
    let library = |files: Files| {
        let path = files.library.unwrap_or(files.first);
        let of_nccl = of_nccl.iter().filter(|_| has_communicators(path));
        let of_files = [
            counted(UseSign::LoadedParts, files.parts),
            counted(UseSign::CompiledModules, files.compiled),
        ];
        LoadedLibrary {
            path: path.to_owned(),
            signs: of_nccl
                .cloned()
                .chain(of_files.into_iter().flatten())
                .collect(),
        }
    };
    found.into_values().map(library).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_have_the_signs_of_their_use() {
        let loaded = [
            "/v/nvidia/libnccl.so.2",
            "/v/nvidia/libcudnn_graph.so.9",
            "/v/nvidia/libcudnn.so.9",
            "/v/nvidia/libcudnn_ops.so.9",
            "/v/nvidia/libcublas.so.13",
            "/v/torch/lib/libtorch_cuda.so",
            "/c/7A/__triton_launcher.cpython-313-x86_64-linux-gnu.so",
            "/c/8B/__triton_launcher.cpython-313-x86_64-linux-gnu.so",
            "/home/me/_C.so",
        ];
        let loaded = loaded.map(str::to_owned);
        let found = libraries(&loaded, &[UseSign::WatchdogThreads(2)]);
        let found: Vec<(&str, &[UseSign])> = found
            .iter()
            .map(|library| (library.path.as_str(), library.signs.as_slice()))
            .collect();
        let expected: [(&str, &[UseSign]); 4] = [
            ("/v/nvidia/libnccl.so.2", &[UseSign::WatchdogThreads(2)]),
            (
                "/c/7A/__triton_launcher.cpython-313-x86_64-linux-gnu.so",
                &[UseSign::CompiledModules(2)],
            ),
            ("/v/nvidia/libcublas.so.13", &[]),
            ("/v/nvidia/libcudnn.so.9", &[UseSign::LoadedParts(2)]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_process_without_cuda_has_none() {
        assert_eq!(read(Tgid(std::process::id()), None), []);
    }
}
