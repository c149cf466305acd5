//! Uprobe programs that are loaded for links of many functions (`BPF_TRACE_UPROBE_MULTI`, include/uapi/linux/bpf.h).
//!
//! A perf event of a uprobe goes under a lock of the whole kernel, which waits each time until no processor can be in a
//! program: about a tenth of a second. Links go at the same time, and one link holds the dozens of functions of CUDA.
//! The kernel has them from Linux 6.6 on, right ones from 6.10 on. A program is loaded for one way or the other, so this
//! is done beside aya, which does not know such links yet.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use aya::Ebpf;
use aya::maps::Map;
use aya_obj::generated::bpf_prog_info;
use aya_obj::{Object, ProgramSection};
use rustix::io::Errno;

use super::loader::Reach;
use super::open_loops;

/// `BPF_MAP_UPDATE_ELEM`, `BPF_PROG_LOAD`, `BPF_OBJ_GET_INFO_BY_FD`, `BPF_LINK_CREATE` (`enum bpf_cmd`).
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const LINK_CREATE: libc::c_long = 28;

/// `BPF_PROG_TYPE_KPROBE`, `BPF_TRACE_UPROBE_MULTI`, `BPF_F_UPROBE_MULTI_RETURN`.
const KPROBE: u32 = 2;
const UPROBE_MULTI: u32 = 48;
const RETURN: u32 = 1;

/// Most links that are taken away at the same time.
const MAX_DETACHED: usize = 64;

/// The head of `union bpf_attr` for [`MAP_UPDATE_ELEM`].
#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The head of `union bpf_attr` for [`PROG_LOAD`].
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// The head of `union bpf_attr` for [`OBJ_GET_INFO_BY_FD`].
#[repr(C)]
struct GetInfo {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The head of `union bpf_attr` for [`LINK_CREATE`] of uprobes.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    cnt: u32,
    multi_flags: u32,
    pid: u32,
    pad: u32,
}

/// One function: the offset of its probe in the file, and its cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbedFunction {
    pub offset: u64,
    pub cookie: u64,
}

pub struct MultiPrograms {
    object: Object,
    loaded: BTreeMap<String, OwnedFd>,
}

impl MultiPrograms {
    /// Loads the uprobe programs of an object whose maps are loaded, but for those `on_demand`. `None` where the kernel
    /// has no such links, or not right ones, or refuses a program: aya's way says why.
    pub fn load(ebpf: &Ebpf, object: &[u8], on_demand: &[&str]) -> Option<Self> {
        let mut object = relocated(ebpf, object)?;
        let is_uprobe = |section: &ProgramSection| {
            matches!(
                section,
                ProgramSection::UProbe { .. } | ProgramSection::URetProbe { .. }
            )
        };
        let programs = object.programs.iter();
        let names = programs.filter(|(_, program)| is_uprobe(&program.section));
        let names = names.map(|(name, _)| name.clone());
        let mut names: Vec<_> = names
            .filter(|name| !on_demand.contains(&name.as_str()))
            .collect();
        names.sort_by_key(|name| instructions(&object, name));
        let first = names.first().cloned()?;
        let first = (first.clone(), load(&object, &first).ok()?);
        if !has_links(&first.1) {
            return None;
        }
        names.remove(0);
        let closed = object.functions.clone();
        let functions = object.functions.values_mut();
        functions.for_each(|function| open_loops::open(&mut function.instructions));
        let mut loaded = load_each(&object, &names).or_else(|| {
            log::debug!("the verifier refuses loops with may_goto: it gets all rounds to follow");
            object.functions = closed;
            load_each(&object, &names)
        })?;
        loaded.extend([first]);
        Some(Self { object, loaded })
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
        let section = self.object.programs.get(name);
        let section = section.map(|program| &program.section);
        let flags = match section {
            Some(ProgramSection::URetProbe { .. }) => RETURN,
            _ => 0,
        };
        link(program, file, functions, pid, flags)
    }

    /// Puts a program into an array of programs.
    pub fn put(&self, name: &str, array: &Map, index: u32) -> io::Result<()> {
        let program = self.program(name)?.as_raw_fd();
        let array = descriptor(array).ok_or_else(not_found)?;
        let attributes = MapUpdate {
            map_fd: array.cast_unsigned(),
            pad: 0,
            key: (&raw const index) as u64,
            value: (&raw const program) as u64,
            flags: 0,
        };
        bpf(MAP_UPDATE_ELEM, &attributes).map(drop)
    }

    fn program(&self, name: &str) -> io::Result<&OwnedFd> {
        self.loaded.get(name).ok_or_else(not_found)
    }

    /// The kernel's facts of a program.
    pub fn info(&self, name: &str) -> io::Result<bpf_prog_info> {
        info(self.program(name)?)
    }

    /// The kernel's facts of all programs.
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

/// The object's programs with the descriptors of the maps in `ebpf`.
fn relocated(ebpf: &Ebpf, object: &[u8]) -> Option<Object> {
    let mut object = Object::parse(object).ok()?;
    let sections = object.functions.keys().map(|(section, _)| *section);
    let sections = sections.collect();
    let maps: Vec<_> = object.maps.clone().into_iter().collect();
    let with_fds = maps.iter().filter_map(|(name, map)| {
        let fd = descriptor(ebpf.map(name)?)?;
        Some((name.as_str(), fd, map))
    });
    object.relocate_maps(with_fds, &sections).ok()?;
    object.relocate_calls(&sections).ok()?;
    Some(object)
}

/// Asks for what cannot be had: the error tells whether the kernel knows what was asked. Before 6.10, a link of a
/// process was for a single thread of it.
fn has_links(program: &OwnedFd) -> bool {
    let nowhere = [ProbedFunction::default()];
    let root = Path::new("/");
    let known = link(program, root, &nowhere, 0, 0);
    let for_processes = link(program, root, &nowhere, u32::MAX, 0);
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

fn descriptor(map: &Map) -> Option<RawFd> {
    match map {
        Map::Array(map)
        | Map::HashMap(map)
        | Map::LruHashMap(map)
        | Map::ProgramArray(map)
        | Map::RingBuf(map) => Some(map.fd().as_fd().as_raw_fd()),
        _ => None,
    }
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
    let mut attributes = ProgLoad {
        prog_type: KPROBE,
        insn_cnt: u32::try_from(function.instructions.len()).unwrap_or(u32::MAX),
        insns: function.instructions.as_ptr() as u64,
        license: program.license.as_ptr() as u64,
        expected_attach_type: UPROBE_MULTI,
        ..ProgLoad::default()
    };
    for (to, from) in attributes.prog_name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    let loaded = bpf_descriptor(PROG_LOAD, &attributes)?;
    if let Ok(info) = info(&loaded) {
        let followed = info.verified_insns;
        log::debug!("{name}: the verifier followed {followed} instructions");
    }
    Ok(loaded)
}

fn info(program: &OwnedFd) -> io::Result<bpf_prog_info> {
    // SAFETY: integers, for which zero is a value.
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    let attributes = GetInfo {
        bpf_fd: program.as_raw_fd().cast_unsigned(),
        info_len: size_of::<bpf_prog_info>() as u32,
        info: (&raw mut info) as u64,
    };
    bpf(OBJ_GET_INFO_BY_FD, &attributes)?;
    Ok(info)
}

fn link(
    program: &OwnedFd,
    file: &Path,
    functions: &[ProbedFunction],
    pid: u32,
    multi_flags: u32,
) -> io::Result<OwnedFd> {
    let path = CString::new(file.as_os_str().as_bytes())?;
    let offsets: Vec<u64> = functions.iter().map(|function| function.offset).collect();
    let cookies: Vec<u64> = functions.iter().map(|function| function.cookie).collect();
    let attributes = LinkCreate {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        attach_type: UPROBE_MULTI,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        cookies: cookies.as_ptr() as u64,
        cnt: u32::try_from(functions.len()).unwrap_or(u32::MAX),
        multi_flags,
        pid,
        ..LinkCreate::default()
    };
    bpf_descriptor(LINK_CREATE, &attributes)
}

/// `bpf(2)`, for commands that give a descriptor.
fn bpf_descriptor<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    let fd = RawFd::try_from(fd).map_err(|_| not_found())?;
    // SAFETY: the kernel has just made this descriptor for us (close-on-exec), and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: `attributes` is the head of a `bpf_attr` of that size, and what it points to lives in the caller for as
    // long as the call lasts; the kernel writes no more than what the attributes say is there.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    (result >= 0)
        .then_some(result)
        .ok_or_else(io::Error::last_os_error)
}

const _: () = {
    assert!(size_of::<ProgLoad>() == 72);
    assert!(size_of::<GetInfo>() == 16);
    assert!(size_of::<MapUpdate>() == 32);
    assert!(size_of::<LinkCreate>() == 64);
};
