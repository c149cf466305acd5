//! The files that are probed: each once, whoever uses it, for as long as somebody does.

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use super::attach::{AttachError, Located, Result, VariableSymbol, attach_cuda};
use super::catalog::{Need, Probe, ThreadVariable};
use super::loader::{Link, Loader, Reach, detach};
use super::patch::{self, BREAKPOINT, EntryState};
use crate::event::{CaptureLevel, ProbeStatus, Tgid};
use crate::process::maps::{DeviceNumber, MappedFile, Maps};
use crate::process::memory::{ProcessMemory, ReadMemory as _};
use crate::process::process_scan;

/// Lifetime of a file's probes after its last user has ended, so that the next run of a program is
/// probed from its first instruction. Their only cost is the disk space of a deleted file.
const RETENTION: Duration = Duration::from_secs(300);

/// The most files whose probes are kept so.
const MAX_RETAINED: usize = 64;

/// A file and the family of probes in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    dev: DeviceNumber,
    inode: u64,
    /// [`Probe::library`] of its probes.
    family: &'static str,
    /// Set where the probes are for one process alone.
    reach: Reach,
}

#[derive(Clone, Debug, Default)]
pub struct Probed {
    pub probes: Vec<ProbeStatus>,
    /// Sentences on what is not seen, one for each missing probe.
    pub missing: Vec<String>,
    /// Error of looking for the caching allocator's report function, where PyTorch has none.
    pub lacks_allocator: Option<String>,
    /// Reason why a required probe is missing.
    pub refused: Option<Arc<AttachError>>,
    /// Functions that are not probed, since a process has rewritten them; a sentence for each process.
    pub left_alone: Vec<String>,
}

impl Probed {
    fn note(&mut self, attached: Result<ProbeStatus>, need: Need) {
        use AttachError::{NoFunction, Patched};
        match (attached, need) {
            (Ok(status), _) => self.probes.push(status),
            (Err(error @ (NoFunction { .. } | Patched { .. })), Need::Allocator) => {
                self.lacks_allocator = Some(error.to_string());
            }
            (Err(error), Need::Allocator) => {
                self.refused.get_or_insert(Arc::new(error));
            }
            (Err(NoFunction { .. }), Need::WhereItIs) => {}
            (Err(error), Need::WhereItIs) => self.missing.push(error.to_string()),
            (Err(error), Need::Optional(without)) => {
                self.missing.push(format!("{error}: {without}"));
            }
        }
    }
}

/// Identity of a file across paths and devices.
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

struct ProbedFile {
    probed: Arc<Probed>,
    likeness: Option<Likeness>,
    /// Offset in the file of the first breakpoint, in bytes.
    breakpoint: Option<u64>,
    /// Probes that are not on functions of CUDA.
    placed: Vec<PlacedProbe>,
    /// The process in which it was probed first, and its mapping there.
    first: (Tgid, MappedFile),
    cuda: Vec<Located>,
    cuda_links: Vec<Link>,
    users: HashSet<Tgid>,
    unused_since: Option<Instant>,
}

/// A probe at its place; without its link it is off.
struct PlacedProbe {
    located: Located,
    link: Option<Link>,
}

impl ProbedFile {
    fn take_links(&mut self) -> impl Iterator<Item = Link> {
        let placed = self.placed.iter_mut();
        (placed.filter_map(|placed| placed.link.take())).chain(self.cuda_links.drain(..))
    }

    /// Attaches the probes that are on at a level of detail. Returns the links of all others.
    fn set_level(
        &mut self,
        loader: &mut Loader,
        reach: Reach,
        level: CaptureLevel,
    ) -> (Vec<Link>, Result<()>) {
        let mut gone = Vec::new();
        let mut result = Ok(());
        let (first, mapped) = &self.first;
        for PlacedProbe { located, link } in &mut self.placed {
            if !located.probe.is_on(level) {
                gone.extend(link.take());
            } else if link.is_none() {
                let is_there = self.users.contains(first);
                let unpatched = is_there.then(|| unpatched(located, *first, mapped));
                let attached = unpatched.unwrap_or(Ok(()));
                match attached.and_then(|()| located.attach(loader, reach)) {
                    Ok(attached) => *link = Some(attached),
                    Err(error) => result = Err(error),
                }
            }
        }
        (gone, result)
    }
}

impl Drop for ProbedFile {
    fn drop(&mut self) {
        detach(self.take_links());
    }
}

#[derive(Default)]
pub struct ProbedFiles {
    files: HashMap<FileKey, ProbedFile>,
    /// Files that are another one under a second name: the kernel probes what lies below.
    twins: HashMap<FileKey, FileKey>,
    /// The thread-local variables that were looked for, by file and by their name in the catalog.
    variables: HashMap<(DeviceNumber, u64, &'static str), Option<VariableSymbol>>,
    /// Detail that the probes give at present.
    level: CaptureLevel,
    /// Takes away the probes of the detail that was given up.
    detaching: Option<JoinHandle<()>>,
}

impl Drop for ProbedFiles {
    fn drop(&mut self) {
        detach(self.files.values_mut().flat_map(ProbedFile::take_links));
    }
}

impl ProbedFiles {
    pub fn key(file: &MappedFile, family: &'static str, reach: Reach) -> FileKey {
        FileKey {
            dev: file.dev,
            inode: file.inode,
            family,
            reach,
        }
    }

    fn original(&self, key: FileKey) -> FileKey {
        self.twins.get(&key).copied().unwrap_or(key)
    }

    /// Says that a process uses a file, if the file is probed already.
    pub fn share(&mut self, key: FileKey, user: Tgid) -> Option<Arc<Probed>> {
        let key = self.original(key);
        let file = self.files.get_mut(&key)?;
        file.users.insert(user);
        file.unused_since = None;
        Some(file.probed.clone())
    }

    /// [`Self::share`] for a file already probed under another device number: containers made from one image share the
    /// file below their overlayfs mounts. Probed twice, it would send every event twice.
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
        let has_breakpoint = |offset| has_breakpoint(mapped, user, offset);
        let mut files = self.files.iter();
        let (&twin, _) = files.find(|(other, file)| {
            is_candidate(other)
                && file.likeness == Some(likeness)
                && file.breakpoint.is_some_and(has_breakpoint)
        })?;
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
        located: Vec<(&'static Probe, Result<Located>)>,
    ) -> Arc<Probed> {
        let mut probed = Probed::default();
        let mut placed = Vec::new();
        let mut breakpoint = None;
        let is_cuda = |(probe, found): &(&Probe, Result<_>)| probe.is_cuda() && found.is_ok();
        let (cuda, others): (Vec<_>, Vec<_>) = located.into_iter().partition(is_cuda);
        let cuda = cuda.into_iter().filter_map(|(_, found)| found.ok());
        let mut cuda: Vec<_> = cuda.collect();
        let reached = (!cuda.is_empty()).then(|| reached(key.reach, user, mapped));
        for (tgid, file) in reached.into_iter().flatten() {
            if let Some(patched) = patched_functions(&cuda, tgid, &file, State::Unprobed) {
                cuda.retain(|located| !patched.left.contains(&located.probe.function));
                probed.left_alone.extend(patched.sentences);
            }
        }
        let mut cuda_links = Vec::new();
        match attach_cuda(&cuda, loader, key.reach) {
            Ok(attached) => {
                cuda_links = attached;
                probed.probes.extend(cuda.iter().map(Located::status));
                breakpoint = cuda.first().map(Located::probed_offset);
            }
            Err(error) => probed.missing.push(error.to_string()),
        }
        for (probe, located) in others {
            let attached = located.and_then(|located| {
                unpatched(&located, user, mapped)?;
                let status = located.status();
                let is_on = located.probe.is_on(self.level);
                let link = is_on.then(|| located.attach(loader, key.reach));
                let link = link.transpose()?;
                if link.is_some() {
                    breakpoint.get_or_insert(located.probed_offset());
                }
                placed.push(PlacedProbe { located, link });
                Ok(status)
            });
            probed.note(attached, probe.need);
        }
        if probed.refused.is_some() {
            // Half of the probes would tell half of what happens.
            let links = placed.drain(..).filter_map(|placed| placed.link);
            detach(links.chain(cuda_links.drain(..)));
        }
        let probed = Arc::new(probed);
        let file = ProbedFile {
            probed: probed.clone(),
            likeness: Likeness::of(mapped, user),
            breakpoint,
            placed,
            first: (user, mapped.clone()),
            cuda,
            cuda_links,
            users: HashSet::from_iter([user]),
            unused_since: None,
        };
        self.files.insert(key, file);
        probed
    }

    /// Compares the functions of CUDA that are probed in a file with the memory of a process that uses
    /// it, and takes the probes away from those that it has rewritten. Where the kernel has put a probe
    /// into the new code, it stays: the kernel would write the file's byte into that code.
    pub fn leave_patched(
        &mut self,
        loader: &mut Loader,
        key: FileKey,
        user: Tgid,
        mapped: &MappedFile,
    ) -> Result<()> {
        let key = self.original(key);
        let Some(file) = self.files.get_mut(&key) else {
            return Ok(());
        };
        let Some(patched) = patched_functions(&file.cuda, user, mapped, State::Probed) else {
            return Ok(());
        };
        let mut probed = Probed::clone(&file.probed);
        if !patched.left.is_empty() {
            let is_left = |function: &str| patched.left.contains(&function);
            (file.cuda).retain(|located| !is_left(located.probe.function));
            // The new links come before the old go: a call that runs into both is one record.
            let cuda_links = attach_cuda(&file.cuda, loader, key.reach)?;
            detach(std::mem::replace(&mut file.cuda_links, cuda_links));
            (probed.probes).retain(|probe| !is_left(&probe.function));
        }
        add_new(&mut probed.left_alone, &patched.sentences);
        file.probed = Arc::new(probed);
        Ok(())
    }

    /// Sets the detail that the probes give. Probes go in a thread of their own, since the kernel waits for each: see
    /// [`Self::is_detaching`]. After an error some probes of the level are missing.
    pub fn set_level(&mut self, loader: &mut Loader, level: CaptureLevel) -> Result<()> {
        self.level = level;
        let mut gone = Vec::new();
        let mut result = Ok(());
        for (key, file) in &mut self.files {
            let (links, attached) = file.set_level(loader, key.reach, level);
            gone.extend(links);
            result = result.and(attached);
        }
        if !gone.is_empty() {
            let earlier = self.detaching.take();
            self.detaching = Some(thread::spawn(move || {
                detach(gone);
                // It cannot panic: it drops descriptors.
                let _ = earlier.map(JoinHandle::join);
            }));
        }
        result
    }

    /// True while probes that were given up may still be hit.
    pub fn is_detaching(&self) -> bool {
        (self.detaching.as_ref()).is_some_and(|detaching| !detaching.is_finished())
    }

    pub fn wait_until_detached(&mut self) {
        // The thread cannot panic: it drops descriptors.
        let _ = self.detaching.take().map(JoinHandle::join);
    }

    /// Returns the programs with a probe that the kernel single-steps. Its trap costs many times that of others.
    pub fn stepped_programs(&self) -> HashSet<&'static str> {
        let located = self.files.values().flat_map(|file| {
            let placed = file.placed.iter().map(|placed| &placed.located);
            placed.chain(&file.cuda)
        });
        let stepped = located.filter(|located| !located.place.emulated);
        stepped.map(|located| located.probe.entry).collect()
    }

    pub fn probed(&self, key: FileKey) -> Option<&Probed> {
        Some(&self.files.get(&self.original(key))?.probed)
    }

    /// Says that a process uses a file no more: it has ended, or runs another program.
    pub fn leave(&mut self, key: FileKey, user: Tgid, now: Instant) {
        let key = self.original(key);
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

    /// Takes away the probes of one file that has not been used for a while: each takes milliseconds.
    pub fn let_go(&mut self, now: Instant) {
        let files = self.files.iter();
        let unused = files.filter_map(|(key, file)| Some((*key, file.unused_since?)));
        let count = unused.clone().count();
        let Some((oldest, since)) = unused.min_by_key(|(_, since)| *since) else {
            return;
        };
        if count > MAX_RETAINED || now.duration_since(since) >= RETENTION {
            self.files.remove(&oldest);
            self.twins.retain(|_, twin| *twin != oldest);
        }
    }

    /// Finds a thread-local variable in a library, once for each copy: searching its symbols takes milliseconds.
    pub fn variable(
        &mut self,
        tgid: Tgid,
        library: &MappedFile,
        variable: &'static ThreadVariable,
    ) -> Option<VariableSymbol> {
        let key = (library.dev, library.inode, variable.name);
        if let Some(known) = self.variables.get(&key) {
            return *known;
        }
        let found = VariableSymbol::find(tgid, library, variable);
        if self.variables.len() >= MAX_RETAINED {
            self.variables.clear();
        }
        self.variables.insert(key, found);
        found
    }
}

/// Adds what is not known yet.
pub(super) fn add_new<T: Clone + PartialEq>(known: &mut Vec<T>, new: &[T]) {
    for one in new {
        if !known.contains(one) {
            known.push(one.clone());
        }
    }
}

/// The processes whose memory probes on functions of a file change, with the file's mappings.
fn reached(reach: Reach, user: Tgid, mapped: &MappedFile) -> Vec<(Tgid, MappedFile)> {
    let only_the_user = || vec![(user, mapped.clone())];
    match reach {
        Reach::Process(_) => only_the_user(),
        Reach::Everyone => {
            let users = process_scan::processes_mapping(mapped.dev, mapped.inode);
            users.unwrap_or_else(|_| only_the_user())
        }
    }
}

/// Functions that a process has rewritten where they are probed, or would be.
struct PatchedFunctions {
    /// Functions from which the probes can be taken away.
    left: Vec<&'static str>,
    /// All of them, for people.
    sentences: Vec<String>,
}

/// Finds functions rewritten by a process at the place of their probe; `None` if there are none.
fn patched_functions(
    located: &[Located],
    tgid: Tgid,
    mapped: &MappedFile,
    state: State,
) -> Option<PatchedFunctions> {
    let functions = located.iter().map(|located| &located.code);
    let (entries, maps) = patch::changed_entries(tgid, mapped, functions)?;
    let mut left = Vec::new();
    let mut broken = Vec::new();
    let mut writable = Vec::new();
    let mut first = None;
    for (located, entry) in located.iter().zip(entries) {
        let function = located.probe.function;
        match (entry, state) {
            (EntryState::PatchedOver(patch), _) => {
                first.get_or_insert(patch);
                match (state, patch.holds_breakpoint) {
                    (State::Probed, true) => broken.push(function),
                    (State::Probed, false) | (State::Unprobed, _) => left.push(function),
                }
            }
            // The kernel decides when a probe is placed, not later.
            (EntryState::Writable, State::Unprobed) => writable.push(function),
            (EntryState::Writable | EntryState::AsInFile | EntryState::PatchedBefore(_), _) => {}
        }
    }
    let how = match first {
        Some(patch) => patch.described(&maps),
        None if writable.is_empty() => return None,
        None => String::new(),
    };
    let library = mapped.basename().to_string_lossy();
    let groups = [
        (&left, how.as_str(), patch::LEFT_ALONE),
        (&broken, how.as_str(), patch::BROKEN),
        (&writable, "can be written", patch::WRITABLE),
    ];
    let there = (groups.iter()).filter(|(functions, ..)| !functions.is_empty());
    let sentences = there.map(|(functions, how, what)| {
        let functions = functions.join(", ");
        format!("{functions} of {library} {how} in PID {}: {what}", tgid.0)
    });
    let sentences = sentences.collect();
    Some(PatchedFunctions { left, sentences })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unprobed,
    Probed,
}

fn unpatched(located: &Located, user: Tgid, mapped: &MappedFile) -> Result<()> {
    let entries = patch::entries(user, mapped, std::iter::once(&located.code));
    match entries.first() {
        Some(EntryState::PatchedOver(patch)) => Err(AttachError::Patched {
            function: located.probe.function,
            library: located.library.clone(),
            how: patch.described(&Maps::of(user).unwrap_or_default()),
        }),
        _ => Ok(()),
    }
}

fn has_breakpoint(mapped: &MappedFile, tgid: Tgid, offset: u64) -> bool {
    mapped.address_of(offset).is_some_and(|address| {
        ProcessMemory::new(tgid).read_array::<1>(address) == Ok([BREAKPOINT])
    })
}
