//! Maps, and programs that are loaded for links of many functions (`BPF_TRACE_UPROBE_MULTI`, include/uapi/linux/bpf.h).
//!
//! A perf event of a uprobe goes under a lock of the whole kernel, which waits each time until no processor can be in a
//! program: about a tenth of a second. Links go at the same time, and one link holds the dozens of functions of CUDA.
//! The kernel has them from Linux 6.6 on, right ones from 6.10 on. A program is loaded for one way or the other, so this
//! is done without aya's loader, which does not know such links yet, and which reads all types of the kernel first.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use aya::maps::{Map, MapData};
use aya_obj::generated::{bpf_map_type, bpf_prog_info};
use aya_obj::{EbpfSectionKind, Object, ProgramSection};
use rustix::io::Errno;

pub use super::bpf_calls::ProbedFunction;
use super::bpf_calls::{
    ProbePoint, ProgramKind, create_map, freeze, info, link, load_program, open_tracepoint, put,
};
use super::loader::{Reach, Settings};
use super::open_loops;

/// Most links that are taken away at the same time.
const MAX_DETACHED: usize = 64;

pub struct MultiPrograms {
    object: Object,
    maps: HashMap<String, Map>,
    loaded: BTreeMap<String, OwnedFd>,
    /// Links of the programs at tracepoints.
    tracepoints: Vec<OwnedFd>,
}

impl MultiPrograms {
    /// Makes the maps of an object and loads its programs, but for those `on_demand`. `None` where the kernel has no such
    /// links, or not right ones, or refuses anything: aya's way says why.
    pub fn load(object: &[u8], settings: &Settings, on_demand: &[&str]) -> Option<Self> {
        let mut object = Object::parse(object).ok()?;
        object.patch_map_data(settings.globals()).ok()?;
        let maps = make_maps(&object, settings).ok()?;
        relocate(&mut object, &maps)?;
        let mut names: Vec<String> = object.programs.keys().cloned().collect();
        names.retain(|name| !on_demand.contains(&name.as_str()));
        let (uprobes, others): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| is_uprobe(&object, name));
        let mut loaded = load_each(&object, &others)?;
        loaded.extend(load_uprobes(&mut object, uprobes)?);
        Some(Self {
            object,
            maps,
            loaded,
            tracepoints: Vec::new(),
        })
    }

    pub fn map_mut(&mut self, name: &str) -> Option<&mut Map> {
        self.maps.get_mut(name)
    }

    pub fn take_map(&mut self, name: &str) -> Option<Map> {
        self.maps.remove(name)
    }

    /// Loads one of those on demand, unless it is loaded.
    pub fn demand(&mut self, name: &str) -> io::Result<()> {
        if !self.loaded.contains_key(name) {
            let program = load(&self.object, name)?;
            self.loaded.insert(name.to_owned(), program);
        }
        Ok(())
    }

    /// Attaches a program to functions of a file, at their returns if it is for returns.
    pub fn attach(
        &self,
        name: &str,
        file: &Path,
        functions: &[ProbedFunction],
        reach: Reach,
    ) -> io::Result<OwnedFd> {
        let program = self.program(name)?;
        let pid = match reach {
            Reach::Process(tgid) => tgid.0,
            Reach::Everyone => 0,
        };
        let point = match section(&self.object, name) {
            Some(ProgramSection::URetProbe { .. }) => ProbePoint::Return,
            _ => ProbePoint::Entry,
        };
        link(program, file, functions, pid, point)
    }

    /// Runs a program at a tracepoint from now on.
    pub fn follow(&mut self, name: &str, tracepoint: &str) -> io::Result<()> {
        let link = open_tracepoint(self.program(name)?, tracepoint)?;
        self.tracepoints.push(link);
        Ok(())
    }

    /// Puts a program into an array of programs.
    pub fn put(&self, name: &str, array: &str, index: u32) -> io::Result<()> {
        let program = self.program(name)?.as_raw_fd();
        let array = self.maps.get(array).and_then(descriptor);
        put(array.ok_or_else(not_found)?, index, &program.to_ne_bytes())
    }

    fn program(&self, name: &str) -> io::Result<&OwnedFd> {
        self.loaded.get(name).ok_or_else(not_found)
    }

    /// The names of all programs, loaded or not.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.object.programs.keys().map(String::as_str)
    }

    pub fn is_uprobe(&self, name: &str) -> bool {
        is_uprobe(&self.object, name)
    }

    /// The kernel's facts of a program.
    pub fn info(&self, name: &str) -> io::Result<bpf_prog_info> {
        info(self.program(name)?)
    }

    /// The kernel's facts of all loaded programs.
    pub fn infos(&self) -> impl Iterator<Item = bpf_prog_info> {
        self.loaded
            .values()
            .filter_map(|program| info(program).ok())
    }
}

/// Takes links away at the same time. For each, the kernel waits until no processor can be in its program.
pub fn detach<L: Send>(links: impl IntoIterator<Item = L>) {
    let mut links: Vec<_> = links.into_iter().collect();
    while !links.is_empty() {
        let rest = links.split_off(links.len().min(MAX_DETACHED));
        thread::scope(|scope| {
            let mut links = std::mem::replace(&mut links, rest).into_iter();
            // The last one needs no thread of its own.
            let last = links.next_back();
            for link in links {
                // Without a thread, the link is dropped here.
                let _ = thread::Builder::new().spawn_scoped(scope, || drop(link));
            }
            drop(last);
        });
    }
}

/// Makes the maps of an object, with its constants.
fn make_maps(object: &Object, settings: &Settings) -> io::Result<HashMap<String, Map>> {
    let maps = object.maps.iter().map(|(name, map)| {
        let entries = settings.entries(name).unwrap_or(map.max_entries());
        let made = create_map(name, map, entries)?;
        if !map.data().is_empty() {
            put(made.as_fd(), 0, map.data())?;
        }
        if map.section_kind() == EbpfSectionKind::Rodata {
            freeze(made.as_fd())?;
        }
        let made = MapData::from_fd(made).map_err(io::Error::other)?;
        Ok((name.clone(), of_type(map.map_type(), made)?))
    });
    maps.collect()
}

/// The types of maps that the object has.
fn of_type(kind: u32, map: MapData) -> io::Result<Map> {
    use bpf_map_type::{
        BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LRU_HASH, BPF_MAP_TYPE_PROG_ARRAY,
        BPF_MAP_TYPE_RINGBUF,
    };
    Ok(match bpf_map_type::try_from(kind) {
        Ok(BPF_MAP_TYPE_ARRAY) => Map::Array(map),
        Ok(BPF_MAP_TYPE_HASH) => Map::HashMap(map),
        Ok(BPF_MAP_TYPE_LRU_HASH) => Map::LruHashMap(map),
        Ok(BPF_MAP_TYPE_PROG_ARRAY) => Map::ProgramArray(map),
        Ok(BPF_MAP_TYPE_RINGBUF) => Map::RingBuf(map),
        _ => return Err(not_found()),
    })
}

/// Puts the descriptors of the maps into the programs, and joins each program with the functions that it calls.
fn relocate(object: &mut Object, maps: &HashMap<String, Map>) -> Option<()> {
    let sections = object.functions.keys().map(|(section, _)| *section);
    let sections = sections.collect();
    let definitions: Vec<_> = object.maps.clone().into_iter().collect();
    let with_fds = definitions.iter().filter_map(|(name, map)| {
        let fd = descriptor(maps.get(name)?)?;
        Some((name.as_str(), fd.as_raw_fd(), map))
    });
    object.relocate_maps(with_fds, &sections).ok()?;
    object.relocate_calls(&sections).ok()
}

/// Loads uprobe programs. `None` where the kernel has no right links, or refuses one.
fn load_uprobes(object: &mut Object, mut names: Vec<String>) -> Option<BTreeMap<String, OwnedFd>> {
    names.sort_by_key(|name| instructions(object, name));
    let first = names.first().cloned()?;
    let first = (first.clone(), load(object, &first).ok()?);
    if !has_links(&first.1) {
        return None;
    }
    names.remove(0);
    let closed = object.functions.clone();
    let functions = object.functions.values_mut();
    functions.for_each(|function| open_loops::open(&mut function.instructions));
    let mut loaded = load_each(object, &names).or_else(|| {
        log::debug!("the verifier refuses loops with may_goto: it gets all rounds to follow");
        object.functions = closed;
        load_each(object, &names)
    })?;
    loaded.extend([first]);
    Some(loaded)
}

/// Asks for what cannot be had: the error tells whether the kernel knows what was asked. Before 6.10, a link of a
/// process was for a single thread of it.
fn has_links(program: &OwnedFd) -> bool {
    let nowhere = [ProbedFunction::default()];
    let root = Path::new("/");
    let known = link(program, root, &nowhere, 0, ProbePoint::Entry);
    let for_processes = link(program, root, &nowhere, u32::MAX, ProbePoint::Entry);
    let is = |result: io::Result<OwnedFd>, error| {
        result.is_err_and(|given| Errno::from_io_error(&given) == Some(error))
    };
    is(known, Errno::BADF) && is(for_processes, Errno::INVAL)
}

/// Loads programs, which come in order of size, on a few threads, the largest first: the verifier takes up to a second
/// for one, and works on several at once.
fn load_each(object: &Object, names: &[String]) -> Option<BTreeMap<String, OwnedFd>> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let names = Mutex::new(names.iter());
    let next = || names.lock().ok()?.next_back();
    let load_some = || {
        let loaded = std::iter::from_fn(next).map(|name| {
            let program = load(object, name);
            program.map(|program| (name.to_owned(), program))
        });
        loaded.collect::<io::Result<Vec<_>>>()
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (1..threads.min(4))
            .map(|_| scope.spawn(load_some))
            .collect();
        let mut loaded = BTreeMap::from_iter(load_some().ok()?);
        for worker in workers {
            loaded.extend(worker.join().ok()?.ok()?);
        }
        Some(loaded)
    })
}

fn descriptor(map: &Map) -> Option<BorrowedFd<'_>> {
    match map {
        Map::Array(map)
        | Map::HashMap(map)
        | Map::LruHashMap(map)
        | Map::ProgramArray(map)
        | Map::RingBuf(map) => Some(map.fd().as_fd()),
        _ => None,
    }
}

fn section<'a>(object: &'a Object, name: &str) -> Option<&'a ProgramSection> {
    object.programs.get(name).map(|program| &program.section)
}

fn is_uprobe(object: &Object, name: &str) -> bool {
    matches!(
        section(object, name),
        Some(ProgramSection::UProbe { .. } | ProgramSection::URetProbe { .. })
    )
}

fn instructions(object: &Object, name: &str) -> usize {
    let program = object.programs.get(name);
    let function = program.and_then(|program| object.functions.get(&program.function_key()));
    function.map_or(0, |function| function.instructions.len())
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn load(object: &Object, name: &str) -> io::Result<OwnedFd> {
    let program = object.programs.get(name).ok_or_else(not_found)?;
    let function = object.functions.get(&program.function_key());
    let function = function.ok_or_else(not_found)?;
    let kind = match is_uprobe(object, name) {
        true => ProgramKind::Uprobe,
        false => ProgramKind::RawTracepoint,
    };
    let loaded = load_program(name, kind, &function.instructions, &program.license)?;
    if let Ok(info) = info(&loaded) {
        let followed = info.verified_insns;
        log::debug!("{name}: the verifier followed {followed} instructions");
    }
    Ok(loaded)
}
