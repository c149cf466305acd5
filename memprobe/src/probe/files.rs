//! The files that are probed: each once, whoever uses it, for as long as somebody does.

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use super::attach::{AttachError, Located, VariableSymbol, attach_cuda};
use super::catalog::{Need, Probe, ThreadVariable};
use super::loader::{Link, Loader, Reach};
use crate::event::Tgid;
use crate::model::snapshot::ProbeStatus;
use crate::target::maps::{Device, MappedFile};
use crate::target::memory::{ProcessMemory, ReadMemory as _};

/// How long the probes of a file stay that nobody uses any more: the next run of a program is
/// probed from its first instruction. They cost nothing meanwhile but that a deleted file keeps its
/// room on the disk.
const KEPT: Duration = Duration::from_secs(300);

/// The most files whose probes are kept so.
const MOST_KEPT: usize = 64;

/// A file and the family of probes in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    dev: Device,
    inode: u64,
    /// What its probes begin with in the catalog ([`Probe::library`]).
    family: &'static str,
    /// Set where the probes are for one process alone.
    reach: Reach,
}

/// What came of probing a file.
#[derive(Clone, Debug, Default)]
pub struct Probed {
    /// Where the probes sit.
    pub probes: Vec<ProbeStatus>,
    /// What is missing for want of a probe.
    pub missing: Vec<String>,
    /// It is a PyTorch whose caching allocator has no function to be heard by: what was looked for.
    pub lacks_allocator: Option<String>,
    /// Why a probe that memprobe cannot do without is not there.
    pub refused: Option<Arc<AttachError>>,
}

/// What a file is like, whatever path and device it is seen through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Likeness {
    inode: u64,
    size: u64,
    /// When it was changed last: seconds and nanoseconds.
    changed: (i64, i64),
}

impl Likeness {
    fn of(file: &MappedFile, tgid: Tgid) -> Option<Self> {
        let facts = file.open(tgid).ok()?.0.metadata().ok()?;
        Some(Self {
            inode: facts.ino(),
            size: facts.len(),
            changed: (facts.mtime(), facts.mtime_nsec()),
        })
    }
}

/// One probed file.
struct ProbedFile {
    probed: Arc<Probed>,
    likeness: Option<Likeness>,
    /// Where in the file the first breakpoint is.
    breakpoint: Option<u64>,
    /// Held as long as the probes are to stay.
    _links: Vec<Link>,
    users: HashSet<Tgid>,
    unused_since: Option<Instant>,
}

/// Every file that is probed.
#[derive(Default)]
pub struct ProbedFiles {
    files: HashMap<FileKey, ProbedFile>,
    /// Files that are another one under a second name: the kernel probes what lies below.
    twins: HashMap<FileKey, FileKey>,
    /// The thread-local variables that were looked for, by file and by what they begin with in the
    /// catalog.
    variables: HashMap<(Device, u64, &'static str), Option<VariableSymbol>>,
}

impl ProbedFiles {
    /// How a file and a family of probes are called here.
    pub fn key(file: &MappedFile, family: &'static str, reach: Reach) -> FileKey {
        FileKey {
            dev: file.dev,
            inode: file.inode,
            family,
            reach,
        }
    }

    /// Says that a process uses a file, if the file is probed already.
    pub fn share(&mut self, key: FileKey, user: Tgid) -> Option<Arc<Probed>> {
        let key = self.twins.get(&key).copied().unwrap_or(key);
        let file = self.files.get_mut(&key)?;
        file.users.insert(user);
        file.unused_since = None;
        Some(file.probed.clone())
    }

    /// As [`Self::share`], for a file that is seen as another one and is probed already all the same:
    /// containers that were made from one image have a device each (overlayfs), and the file below
    /// them is one. Probed twice, it would tell everything twice.
    pub fn share_twin(
        &mut self,
        key: FileKey,
        user: Tgid,
        mapped: &MappedFile,
    ) -> Option<Arc<Probed>> {
        let is_candidate = |other: &FileKey| {
            other.family == key.family && other.reach == key.reach && other.dev != key.dev
        };
        if key.reach != Reach::Everyone || !self.files.keys().any(is_candidate) {
            return None;
        }
        let likeness = Likeness::of(mapped, user)?;
        let (twin, _) = self.files.iter().find(|(other, file)| {
            is_candidate(other)
                && file.likeness == Some(likeness)
                && file
                    .breakpoint
                    .is_some_and(|offset| has_breakpoint(mapped, user, offset))
        })?;
        let twin = *twin;
        self.twins.insert(key, twin);
        self.share(key, user)
    }

    /// Probes a file that a process uses. What is located comes in the order of attaching.
    pub fn probe(
        &mut self,
        loader: &mut Loader,
        key: FileKey,
        user: Tgid,
        mapped: &MappedFile,
        located: Vec<(&'static Probe, Result<Located, AttachError>)>,
    ) -> Arc<Probed> {
        let mut probed = Probed::default();
        let mut links = Vec::new();
        let mut breakpoint = None;
        let is_cuda = |probe: &Probe, located: &Result<Located, AttachError>| {
            probe.cookie.is_some() && located.is_ok()
        };
        let (cuda, located): (Vec<_>, Vec<_>) = located
            .into_iter()
            .partition(|(probe, located)| is_cuda(probe, located));
        let cuda: Vec<_> = cuda
            .into_iter()
            .filter_map(|(_, found)| found.ok())
            .collect();
        match attach_cuda(&cuda, loader, key.reach) {
            Ok(attached) => {
                links.extend(attached);
                probed.probes.extend(cuda.iter().map(Located::status));
                breakpoint = cuda.first().map(|located| located.function_offset);
            }
            Err(error) => probed.missing.push(error.to_string()),
        }
        for (probe, located) in located {
            let attached = located.and_then(|located| {
                links.extend(located.attach(loader, key.reach)?);
                breakpoint.get_or_insert(located.function_offset + located.place.offset);
                Ok(located.status())
            });
            match (attached, probe.need) {
                (Ok(status), _) => probed.probes.push(status),
                (Err(error @ AttachError::NoFunction { .. }), Need::Allocator) => {
                    probed.lacks_allocator = Some(error.to_string());
                }
                (Err(error), Need::Allocator) => {
                    probed.refused.get_or_insert(Arc::new(error));
                }
                (Err(AttachError::NoFunction { .. }), Need::WhereItIs) => {}
                (Err(error), Need::WhereItIs) => probed.missing.push(error.to_string()),
                (Err(error), Need::Optional(without)) => {
                    probed.missing.push(format!("{error}: {without}"));
                }
            }
        }
        if probed.refused.is_some() {
            // Half of the probes would tell half of what happens.
            links.clear();
        }
        let probed = Arc::new(probed);
        let file = ProbedFile {
            probed: probed.clone(),
            likeness: Likeness::of(mapped, user),
            breakpoint,
            _links: links,
            users: HashSet::from_iter([user]),
            unused_since: None,
        };
        self.files.insert(key, file);
        probed
    }

    /// Says that a process uses a file no more: it has ended, or runs another program.
    pub fn leave(&mut self, key: FileKey, user: Tgid, now: Instant) {
        let key = self.twins.get(&key).copied().unwrap_or(key);
        let Some(file) = self.files.get_mut(&key) else {
            return;
        };
        file.users.remove(&user);
        if !file.users.is_empty() {
            return;
        }
        match key.reach {
            Reach::Process(_) => {
                self.files.remove(&key);
            }
            Reach::Everyone => file.unused_since = Some(now),
        }
    }

    /// Takes away the probes of a file that has not been used for a while, if there is one. One at a
    /// time: it takes milliseconds.
    pub fn let_go(&mut self, now: Instant) {
        let unused = self
            .files
            .iter()
            .filter_map(|(key, file)| Some((*key, file.unused_since?)));
        let count = unused.clone().count();
        let Some((oldest, since)) = unused.min_by_key(|(_, since)| *since) else {
            return;
        };
        if count > MOST_KEPT || now.duration_since(since) >= KEPT {
            self.files.remove(&oldest);
            self.twins.retain(|_, twin| *twin != oldest);
        }
    }

    /// Where a library says how to find a thread-local variable. Looking through its symbols takes a while:
    /// each copy once.
    pub fn variable(
        &mut self,
        tgid: Tgid,
        library: &MappedFile,
        variable: &'static ThreadVariable,
    ) -> Option<VariableSymbol> {
        let key = (library.dev, library.inode, variable.library);
        if let Some(known) = self.variables.get(&key) {
            return *known;
        }
        let found = VariableSymbol::find(tgid, library, variable.names);
        if self.variables.len() >= MOST_KEPT {
            self.variables.clear();
        }
        self.variables.insert(key, found);
        found
    }

    /// How many files are probed.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// Whether a breakpoint is in the memory of a process at an offset of a file.
fn has_breakpoint(mapped: &MappedFile, tgid: Tgid, offset: u64) -> bool {
    /// `INT3`, which the kernel puts there (arch/x86/include/asm/uprobes.h).
    const INT3: u8 = 0xcc;
    let mut mappings = mapped.mappings.iter();
    let mapping = mappings.find(|mapping| {
        let length = mapping.end - mapping.start;
        mapping.perms.execute && (mapping.offset..mapping.offset + length).contains(&offset)
    });
    mapping.is_some_and(|mapping| {
        let address = mapping.start + (offset - mapping.offset);
        ProcessMemory::new(tgid).read_array::<1>(address) == Ok([INT3])
    })
}
