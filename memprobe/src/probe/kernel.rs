//! What this kernel is and whether memprobe can work on it.

use std::fs;

use anyhow::{Context as _, Result, bail};
use btfparse::{Offset, Readable, TypeInformation};

/// The oldest kernel that has what the programs need: `bpf_ringbuf_*` (5.8) and perf links for
/// uprobes (5.15).
const OLDEST: (u32, u32) = (5, 15);

/// Where the kernel publishes its own types.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// `CAP_SYS_ADMIN` and `CAP_BPF` (include/uapi/linux/capability.h).
const CAP_SYS_ADMIN: u32 = 21;

/// Checks what attaching needs before anything is touched.
///
/// # Errors
/// Says what is missing and what to do.
pub fn preflight() -> Result<()> {
    if !has_capability(CAP_SYS_ADMIN)? {
        bail!(
            "attaching needs root (CAP_SYS_ADMIN: the kernel allows uprobes to nobody else).\n\
             Run it with sudo: sudo memprobe …"
        );
    }
    let release =
        fs::read_to_string("/proc/sys/kernel/osrelease").context("reading the kernel's version")?;
    let version = parse_release(&release).with_context(|| {
        format!(
            "the kernel calls itself {:?}, which is no version",
            release.trim()
        )
    })?;
    if version < OLDEST {
        bail!(
            "this kernel is {}; memprobe needs Linux {}.{} or newer.\nUpdate the kernel and try again.",
            release.trim(),
            OLDEST.0,
            OLDEST.1
        );
    }
    if !fs::exists(KERNEL_TYPES).unwrap_or(false) {
        bail!(
            "this kernel does not publish its types ({KERNEL_TYPES} is missing), which memprobe needs to find \
             a thread's Python stack.\nUse a kernel built with CONFIG_DEBUG_INFO_BTF=y (every large distribution's is)."
        );
    }
    Ok(())
}

/// Whether this process has an effective capability.
fn has_capability(capability: u32) -> Result<bool> {
    let status =
        fs::read_to_string("/proc/self/status").context("reading memprobe's own capabilities")?;
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .context("/proc/self/status has no CapEff line")?;
    Ok(effective >> capability & 1 == 1)
}

/// `major.minor` of a kernel release such as `6.1.0-18-amd64`.
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .trim()
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Byte offsets in this kernel's own structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskOffsets {
    /// `task_struct.thread.fsbase`: the thread pointer of the running thread.
    pub fsbase: u64,
    /// `task_struct.pid`: a thread's number.
    pub pid: u64,
    /// `task_struct.tgid`: a process's number.
    pub tgid: u64,
    /// `task_struct.signal`: what the threads of a process share.
    pub signal: u64,
    /// `signal_struct.live`: how many of them live.
    pub live: u64,
}

impl TaskOffsets {
    /// Those of the kernel that runs.
    ///
    /// # Errors
    /// When the kernel's types cannot be read or have no such field.
    pub fn of_this_kernel() -> Result<Self> {
        let types = Types::of_this_kernel()?;
        Ok(Self {
            fsbase: types
                .offset("task_struct", "thread.fsbase")
                .context("memprobe knows x86-64 only so far")?,
            pid: types.offset("task_struct", "pid")?,
            tgid: types.offset("task_struct", "tgid")?,
            signal: types.offset("task_struct", "signal")?,
            live: types.offset("signal_struct", "live")?,
        })
    }
}

/// Byte offset of `thread.fsbase` in `task_struct`: the thread pointer of the running thread.
///
/// # Errors
/// When the kernel's types cannot be read or have no such field.
pub fn fsbase_offset() -> Result<u64> {
    TaskOffsets::of_this_kernel().map(|offsets| offsets.fsbase)
}

/// The types that the kernel publishes.
struct Types(TypeInformation);

impl Types {
    fn of_this_kernel() -> Result<Self> {
        let bytes = fs::read(KERNEL_TYPES).with_context(|| format!("reading {KERNEL_TYPES}"))?;
        TypeInformation::new(&InMemory(bytes))
            .map(Self)
            .map_err(|error| anyhow::anyhow!("{KERNEL_TYPES} cannot be parsed: {error:?}"))
    }

    /// Bytes from the start of a structure to a field of it.
    fn offset(&self, structure: &str, field: &str) -> Result<u64> {
        let id = self
            .0
            .id_of(structure)
            .with_context(|| format!("the kernel's types have no {structure}"))?;
        match self.0.offset_of(id, field) {
            Ok((_, Offset::ByteOffset(bytes))) => Ok(u64::from(bytes)),
            _ => bail!("this kernel's {structure} has no {field}"),
        }
    }
}

/// The whole of a small file.
struct InMemory(Vec<u8>);

impl Readable for InMemory {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), btfparse::Error> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = start
            .checked_add(buffer.len())
            .and_then(|end| self.0.get(start..end));
        match bytes {
            Some(bytes) => {
                buffer.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(btfparse::Error::new(
                btfparse::ErrorKind::IOError,
                "read past the end",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_read_up_to_its_minor_version() {
        assert_eq!(parse_release("6.18.44-fc-v657\n"), Some((6, 18)));
        assert_eq!(parse_release("5.15.0"), Some((5, 15)));
        assert_eq!(parse_release("linux"), None);
    }

    #[test]
    fn this_kernel_tells_where_the_thread_pointer_lies() {
        if !fs::exists(KERNEL_TYPES).unwrap_or(false) {
            eprintln!("skipped: this kernel does not publish its types");
            return;
        }
        let offsets = TaskOffsets::of_this_kernel().expect("the kernel's types have them");
        let fsbase = offsets.fsbase;
        assert!(fsbase.is_multiple_of(8) && fsbase < 32 * 1024, "{fsbase}");
        assert_eq!(offsets.tgid, offsets.pid + 4, "declared side by side");
    }
}
