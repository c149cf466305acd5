//! `bpf(2)`, for what aya does not offer: links of many functions, and maps and programs without its reading of all of
//! the kernel's types.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use aya_obj::generated::{bpf_insn, bpf_prog_info};

/// `enum bpf_cmd` (include/uapi/linux/bpf.h).
mod command {
    pub const MAP_CREATE: libc::c_long = 0;
    pub const MAP_UPDATE_ELEM: libc::c_long = 2;
    pub const PROG_LOAD: libc::c_long = 5;
    pub const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
    pub const RAW_TRACEPOINT_OPEN: libc::c_long = 17;
    pub const MAP_FREEZE: libc::c_long = 22;
    pub const LINK_CREATE: libc::c_long = 28;
}

/// `BPF_TRACE_UPROBE_MULTI`, `BPF_F_UPROBE_MULTI_RETURN`.
const UPROBE_MULTI: u32 = 48;
const RETURN: u32 = 1;

/// Bytes of a name in the kernel (`BPF_OBJ_NAME_LEN`), with the zero that ends it.
const NAME: usize = 16;

/// The head of `union bpf_attr` for [`command::MAP_CREATE`].
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; NAME],
}

/// The head of `union bpf_attr` for [`command::MAP_UPDATE_ELEM`].
#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The head of `union bpf_attr` for [`command::PROG_LOAD`].
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
    prog_name: [u8; NAME],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// The head of `union bpf_attr` for [`command::OBJ_GET_INFO_BY_FD`].
#[repr(C)]
struct GetInfo {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The head of `union bpf_attr` for [`command::RAW_TRACEPOINT_OPEN`].
#[repr(C)]
struct TracepointOpen {
    name: u64,
    prog_fd: u32,
    pad: u32,
}

/// The head of `union bpf_attr` for [`command::LINK_CREATE`] of uprobes.
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

/// Kind of a program, as it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramKind {
    /// For links of uprobes.
    Uprobe,
    RawTracepoint,
}

/// Point of a function at which a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbePoint {
    Entry,
    Return,
}

/// Makes a map as it is defined, but for its number of entries.
pub(super) fn create_map(
    name: &str,
    definition: &aya_obj::Map,
    max_entries: u32,
) -> io::Result<OwnedFd> {
    let attributes = MapCreate {
        map_type: definition.map_type(),
        key_size: definition.key_size(),
        value_size: definition.value_size(),
        max_entries,
        map_flags: definition.map_flags(),
        map_name: short_name(name),
        ..MapCreate::default()
    };
    descriptor(command::MAP_CREATE, &attributes)
}

/// Writes a value of a map whose keys are indices.
pub(super) fn put(map: BorrowedFd<'_>, index: u32, value: &[u8]) -> io::Result<()> {
    let attributes = MapUpdate {
        map_fd: map.as_raw_fd().cast_unsigned(),
        pad: 0,
        key: (&raw const index) as u64,
        value: value.as_ptr() as u64,
        flags: 0,
    };
    call(command::MAP_UPDATE_ELEM, &attributes).map(drop)
}

/// Makes a map constant for user space; the verifier then takes its values for known.
pub(super) fn freeze(map: BorrowedFd<'_>) -> io::Result<()> {
    call(command::MAP_FREEZE, &map.as_raw_fd().cast_unsigned()).map(drop)
}

pub(super) fn load_program(
    name: &str,
    kind: ProgramKind,
    instructions: &[bpf_insn],
    license: &CStr,
) -> io::Result<OwnedFd> {
    // `BPF_PROG_TYPE_KPROBE`, `BPF_PROG_TYPE_RAW_TRACEPOINT`.
    let (prog_type, expected_attach_type) = match kind {
        ProgramKind::Uprobe => (2, UPROBE_MULTI),
        ProgramKind::RawTracepoint => (17, 0),
    };
    let attributes = ProgLoad {
        prog_type,
        insn_cnt: u32::try_from(instructions.len()).unwrap_or(u32::MAX),
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        prog_name: short_name(name),
        expected_attach_type,
        ..ProgLoad::default()
    };
    descriptor(command::PROG_LOAD, &attributes)
}

/// Runs a program at a tracepoint until the link is dropped.
pub(super) fn open_tracepoint(program: &OwnedFd, tracepoint: &str) -> io::Result<OwnedFd> {
    let name = CString::new(tracepoint)?;
    let attributes = TracepointOpen {
        name: name.as_ptr() as u64,
        prog_fd: program.as_raw_fd().cast_unsigned(),
        pad: 0,
    };
    descriptor(command::RAW_TRACEPOINT_OPEN, &attributes)
}

/// Runs a program at functions of a file, in one process or (`pid` 0) in all, until the link is dropped.
pub(super) fn link(
    program: &OwnedFd,
    file: &Path,
    functions: &[ProbedFunction],
    pid: u32,
    point: ProbePoint,
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
        multi_flags: match point {
            ProbePoint::Entry => 0,
            ProbePoint::Return => RETURN,
        },
        pid,
        ..LinkCreate::default()
    };
    descriptor(command::LINK_CREATE, &attributes)
}

/// The kernel's facts of a program.
pub(super) fn info(program: &OwnedFd) -> io::Result<bpf_prog_info> {
    // SAFETY: integers, for which zero is a value.
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    let attributes = GetInfo {
        bpf_fd: program.as_raw_fd().cast_unsigned(),
        info_len: size_of::<bpf_prog_info>() as u32,
        info: (&raw mut info) as u64,
    };
    call(command::OBJ_GET_INFO_BY_FD, &attributes)?;
    Ok(info)
}

/// The beginning of a name that fits into the kernel's.
fn short_name(name: &str) -> [u8; NAME] {
    let mut short = [0; NAME];
    for (to, from) in short.iter_mut().take(NAME - 1).zip(name.bytes()) {
        *to = from;
    }
    short
}

/// Makes a call that gives a descriptor.
fn descriptor<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    let fd = call(command, attributes)?;
    let fd = RawFd::try_from(fd).map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
    // SAFETY: the kernel has just made this descriptor for us (close-on-exec), and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn call<T>(command: libc::c_long, attributes: &T) -> io::Result<libc::c_long> {
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
    assert!(size_of::<MapCreate>() == 44);
    assert!(size_of::<MapUpdate>() == 32);
    assert!(size_of::<ProgLoad>() == 72);
    assert!(size_of::<GetInfo>() == 16);
    assert!(size_of::<TracepointOpen>() == 16);
    assert!(size_of::<LinkCreate>() == 64);
};
