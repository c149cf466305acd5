//! Finds processes with CUDA or PyTorch by what a person calls them: a script, or a part of the command line.

use std::collections::HashMap;
use std::io;

use super::facts;
use super::process_scan::{self, GpuLibrary};
use super::status::Status;
use crate::event::Tgid;

/// Most processes of which the caller of memprobe is taken for its launcher: `sudo`, `env`, `timeout`, a shell.
const MAX_LAUNCHERS: usize = 16;

/// A process that memprobe may read, with what a person knows of it. Its words are its own: views clean them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessCandidate {
    pub tgid: Tgid,
    pub parent: Option<Tgid>,
    pub uid: Option<u32>,
    pub words: Vec<String>,
    /// `None` for a process that has loaded neither CUDA nor PyTorch.
    pub library: Option<GpuLibrary>,
}

impl ProcessCandidate {
    pub fn command(&self) -> String {
        self.words.join(" ")
    }

    /// True if a word is the name, or a path that ends in it: `train.py` is `/home/ada/train.py`, not `pretrain.py`.
    fn is_named(&self, name: &str) -> bool {
        let ends_in = |word: &String| {
            let before = word.strip_suffix(name);
            before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
        };
        self.words.iter().any(ends_in)
    }
}

/// Processes of the host that memprobe may read, without memprobe itself and the programs that launched it.
#[derive(Clone, Debug, Default)]
pub struct ProcessSearch {
    all: Vec<ProcessCandidate>,
}

/// Processes that a match stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchScope {
    /// The process alone. Copies of it that it forked, such as data loader workers, are not meant.
    Process,
    /// The process and its descendants, which are not meant themselves.
    Family,
}

impl MatchScope {
    /// Scope of a verb with `--children`, or without.
    pub const fn of_children(are_meant: bool) -> Self {
        if are_meant {
            Self::Family
        } else {
            Self::Process
        }
    }
}

impl ProcessSearch {
    /// Reads the processes of the host.
    pub fn read() -> io::Result<Self> {
        let own = Tgid(std::process::id());
        let launchers = launchers(own);
        let program = facts::program(own);
        let mut all = Vec::new();
        for tgid in process_scan::pids()?.into_iter().map(Tgid) {
            let is_memprobe = || program.is_some() && facts::program(tgid) == program;
            if tgid == own || launchers.contains(&tgid) || is_memprobe() {
                continue;
            }
            // A process whose mappings cannot be read cannot be probed either.
            let Ok(library) = process_scan::library_of(tgid) else {
                continue;
            };
            let status = Status::of(tgid).unwrap_or_default();
            all.push(ProcessCandidate {
                tgid,
                parent: status.parent,
                uid: status.uid,
                words: facts::command_words(tgid),
                library,
            });
        }
        Ok(Self { all })
    }

    /// Returns the processes with CUDA, and those with PyTorch alone too if `library` is PyTorch. Forked copies are left
    /// out.
    pub fn users(&self, library: GpuLibrary) -> Vec<&ProcessCandidate> {
        let is_wanted = |candidate: &&ProcessCandidate| match library {
            GpuLibrary::Cuda => candidate.library == Some(GpuLibrary::Cuda),
            GpuLibrary::PyTorch => candidate.library.is_some(),
        };
        self.outermost(
            self.all.iter().filter(is_wanted).collect(),
            MatchScope::Process,
        )
    }

    /// Returns the processes of a name. The name is a word or the end of a path in the command line; without such a
    /// process, it is any part of the command line. With CUDA or PyTorch if `has_library`, else without.
    pub fn named(
        &self,
        name: &str,
        scope: MatchScope,
        has_library: bool,
    ) -> Vec<&ProcessCandidate> {
        let all = self.all.iter();
        let all: Vec<_> = all
            .filter(|candidate| candidate.library.is_some() == has_library)
            .collect();
        let exact: Vec<_> = all
            .iter()
            .copied()
            .filter(|candidate| candidate.is_named(name))
            .collect();
        if !exact.is_empty() {
            return self.outermost(exact, scope);
        }
        let contains = |candidate: &&ProcessCandidate| candidate.command().contains(name);
        self.outermost(all.into_iter().filter(contains).collect(), scope)
    }

    /// Leaves out processes that another one of `found` stands for.
    fn outermost<'a>(
        &self,
        found: Vec<&'a ProcessCandidate>,
        scope: MatchScope,
    ) -> Vec<&'a ProcessCandidate> {
        let by_tgid: HashMap<Tgid, &ProcessCandidate> = self
            .all
            .iter()
            .map(|candidate| (candidate.tgid, candidate))
            .collect();
        let stands_for = |ancestor: Tgid, candidate: &ProcessCandidate| {
            let mut found = found.iter();
            found.any(|other| {
                let is_copy = || other.words == candidate.words;
                other.tgid == ancestor && (scope == MatchScope::Family || is_copy())
            })
        };
        let is_inner = |candidate: &&&ProcessCandidate| {
            let mut next = candidate.parent;
            // A table that was read while processes ended may hold a circle.
            for _ in 0..by_tgid.len() {
                let Some(ancestor) = next else { return false };
                if stands_for(ancestor, candidate) {
                    return true;
                }
                next = by_tgid.get(&ancestor).and_then(|ancestor| ancestor.parent);
            }
            false
        };
        let outer = found.iter().filter(|candidate| !is_inner(candidate));
        outer.copied().collect()
    }
}

/// Returns the ancestors of memprobe that were called with its name, up to the first without: `sudo memprobe ...`.
fn launchers(own: Tgid) -> Vec<Tgid> {
    let name = std::env::current_exe().ok();
    let name = name.as_deref().and_then(std::path::Path::file_name);
    let Some(name) = name.map(|name| name.to_string_lossy().into_owned()) else {
        return Vec::new();
    };
    let mut launchers = Vec::new();
    let mut next = facts::parent(own);
    while let Some(tgid) = next.filter(|_| launchers.len() < MAX_LAUNCHERS) {
        if !facts::command_line(tgid).contains(&name) {
            break;
        }
        launchers.push(tgid);
        next = facts::parent(tgid);
    }
    launchers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(
        tgid: u32,
        parent: u32,
        command: &str,
        library: Option<GpuLibrary>,
    ) -> ProcessCandidate {
        ProcessCandidate {
            tgid: Tgid(tgid),
            parent: Some(Tgid(parent)),
            uid: Some(1000),
            words: command.split(' ').map(str::to_owned).collect(),
            library,
        }
    }

    fn search(all: &[(u32, u32, &str, Option<GpuLibrary>)]) -> ProcessSearch {
        let all = all.iter();
        let all = all
            .map(|(tgid, parent, command, library)| candidate(*tgid, *parent, command, *library));
        ProcessSearch { all: all.collect() }
    }

    fn pids(found: &[&ProcessCandidate]) -> Vec<u32> {
        found.iter().map(|candidate| candidate.tgid.0).collect()
    }

    const CUDA: Option<GpuLibrary> = Some(GpuLibrary::Cuda);
    const TORCH: Option<GpuLibrary> = Some(GpuLibrary::PyTorch);

    #[test]
    fn a_script_is_found_by_its_name_and_not_by_the_end_of_another_name() {
        let search = search(&[
            (10, 1, "python /home/ada/train.py --lr 1", CUDA),
            (11, 1, "python pretrain.py", CUDA),
            (12, 1, "python -m lab.train", CUDA),
            (13, 1, "vim train.py", None),
        ]);
        let named = |name| pids(&search.named(name, MatchScope::Process, true));
        assert_eq!(named("train.py"), [10]);
        assert_eq!(named("ada/train.py"), [10]);
        assert_eq!(named("lab.train"), [12]);
        assert_eq!(named("train"), [10, 11, 12]);
        assert_eq!(named("serve.py"), [0; 0]);
        assert_eq!(
            pids(&search.named("train.py", MatchScope::Process, false)),
            [13]
        );
    }

    #[test]
    fn workers_that_a_process_forked_are_not_meant() {
        let search = search(&[
            (10, 1, "python train.py", CUDA),
            (11, 10, "python train.py", CUDA),
            (12, 11, "python train.py", CUDA),
        ]);
        assert_eq!(
            pids(&search.named("train.py", MatchScope::Process, true)),
            [10]
        );
        assert_eq!(pids(&search.users(GpuLibrary::Cuda)), [10]);
    }

    #[test]
    fn a_launcher_stands_for_its_ranks_only_where_a_family_is_meant() {
        let search = search(&[
            (10, 1, "python torchrun --nproc-per-node 2 train.py", TORCH),
            (11, 10, "python -u train.py", CUDA),
            (12, 10, "python -u train.py", CUDA),
        ]);
        let named = |scope| pids(&search.named("train.py", scope, true));
        assert_eq!(named(MatchScope::Process), [10, 11, 12]);
        assert_eq!(named(MatchScope::Family), [10]);
        assert_eq!(pids(&search.users(GpuLibrary::Cuda)), [11, 12]);
        assert_eq!(pids(&search.users(GpuLibrary::PyTorch)), [10, 11, 12]);
    }

    #[test]
    fn memprobe_does_not_find_itself() {
        let own = std::process::id();
        let search = ProcessSearch::read().expect("/proc");
        assert!(search.all.iter().all(|candidate| candidate.tgid.0 != own));
        assert!(!search.all.is_empty(), "other processes can be read");
    }
}
