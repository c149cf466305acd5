//! Programs that are attached to many functions of a file at once.
//!
//! Taking a single uprobe away waits until no processor can be in it, some hundredth of a second
//! or more each; a file's functions of CUDA are dozens. From Linux 6.6 on one link holds them all
//! (`BPF_TRACE_UPROBE_MULTI`, include/uapi/linux/bpf.h). The program is loaded for that purpose, so
//! this is done beside aya, which does not know such links yet.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use aya::Ebpf;
use aya::maps::Map;
use aya_obj::Object;
use rustix::io::Errno;

use super::loader::Reach;

/// `BPF_PROG_LOAD`, `BPF_LINK_CREATE` (`enum bpf_cmd`).
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;

/// `BPF_PROG_TYPE_KPROBE`, `BPF_TRACE_UPROBE_MULTI`, `BPF_F_UPROBE_MULTI_RETURN`.
const KPROBE: u32 = 2;
const UPROBE_MULTI: u32 = 48;
const RETURN: u32 = 1;

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

/// One of many functions: the place of its probe, and its cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbedFunction {
    pub offset: u64,
    pub cookie: u64,
}

pub struct Many {
    entry: OwnedFd,
    returns: OwnedFd,
}

impl Many {
    /// Loads the programs of these names from an object whose maps are loaded; `None` where the
    /// kernel has no such links, or not right ones: before 6.10 they were for a single thread.
    pub fn load(ebpf: &Ebpf, object: &[u8], entry: &str, returns: &str) -> Option<Self> {
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
        let many = Self {
            entry: load(&object, entry).ok()?,
            returns: load(&object, returns).ok()?,
        };
        many.works().then_some(many)
    }

    /// Asks for what cannot be had: the error tells whether the kernel knows what was asked.
    fn works(&self) -> bool {
        let nowhere = [ProbedFunction::default()];
        let root = Path::new("/");
        let known = link(&self.entry, root, &nowhere, 0, 0);
        let for_processes = link(&self.entry, root, &nowhere, u32::MAX, 0);
        let is = |result: io::Result<OwnedFd>, error| {
            result.is_err_and(|given| Errno::from_io_error(&given) == Some(error))
        };
        is(known, Errno::BADF) && is(for_processes, Errno::INVAL)
    }

    pub fn attach(
        &self,
        file: &Path,
        functions: &[ProbedFunction],
        reach: Reach,
    ) -> io::Result<[OwnedFd; 2]> {
        let pid = match reach {
            Reach::Process(tgid) => tgid.0,
            Reach::Everyone => 0,
        };
        // The kernel takes the return address at the entry: nobody may be between the two.
        let returns = link(&self.returns, file, functions, pid, RETURN)?;
        let entry = link(&self.entry, file, functions, pid, 0)?;
        Ok([returns, entry])
    }
}

fn descriptor(map: &Map) -> Option<RawFd> {
    match map {
        Map::Array(map) | Map::HashMap(map) | Map::LruHashMap(map) | Map::RingBuf(map) => {
            Some(map.fd().as_fd().as_raw_fd())
        }
        _ => None,
    }
}

fn load(object: &Object, name: &str) -> io::Result<OwnedFd> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let program = object.programs.get(name).ok_or_else(missing)?;
    let function = object.functions.get(&program.function_key());
    let function = function.ok_or_else(missing)?;
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
    bpf(PROG_LOAD, &attributes)
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
    bpf(LINK_CREATE, &attributes)
}

/// `bpf(2)`, for commands that give a descriptor.
fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: `attributes` is the head of a `bpf_attr` of that size, and what it points to lives in
    // the caller for as long as the call lasts; the kernel only reads it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor for us (close-on-exec), and nobody else knows it.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

const _: () = {
    assert!(size_of::<ProgLoad>() == 72);
    assert!(size_of::<LinkCreate>() == 64);
};
