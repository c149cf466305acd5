//! `/proc/PID/maps`: the mapped files of a process, and the paths by which to open them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::event::Tgid;

/// The most bytes read of a maps file. The kernel allows 65,530 mappings by default (`vm.max_map_count`); at
/// some 100 bytes a line, this limit is ten times as much.
const MAX_MAPS_BYTES: u64 = 64 << 20;

/// The suffix that the kernel adds to the path of an unlinked file (`d_path`).
const DELETED: &[u8] = b" (deleted)";

/// One line of `/proc/PID/maps` (`proc_pid_maps(5)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub perms: Permissions,
    pub offset: u64,
    pub dev: DeviceNumber,
    pub inode: u64,
    /// The path as the kernel shows it to memprobe, which may differ from the target's view. A name in
    /// brackets for special memory, such as `[stack]`; empty for anonymous memory.
    pub path: PathBuf,
    pub deleted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Permissions {
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    /// Shared with other processes rather than private (copy on write).
    pub shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl Mapping {
    pub fn size(&self) -> u64 {
        self.end - self.start
    }

    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    pub fn is_file(&self) -> bool {
        self.inode != 0 && self.path.as_os_str().as_bytes().first() == Some(&b'/')
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile {
    /// The path as the kernel shows it, without the suffix for deleted files.
    pub path: PathBuf,
    pub dev: DeviceNumber,
    pub inode: u64,
    /// The file was unlinked or replaced after it was mapped.
    pub deleted: bool,
    /// The file's mappings, by ascending address; at least one.
    pub mappings: Vec<Mapping>,
}

impl MappedFile {
    pub fn basename(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// True if any mapping is executable, as in a loaded library; false for a file that is only read.
    pub fn is_executable(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.perms.execute)
    }

    /// Returns the address of the code at a file offset; `None` if it is not mapped as executable.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        let mapping = self.code_mapping(offset)?;
        Some(mapping.start + (offset - mapping.offset))
    }

    pub fn code_mapping(&self, offset: u64) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| {
            let end = mapping.offset.saturating_add(mapping.size());
            mapping.perms.execute && (mapping.offset..end).contains(&offset)
        })
    }

    /// Returns paths by which memprobe can open the file, best first. A deleted file has only `map_files`
    /// paths, because its own path may now name another file.
    pub fn paths(&self, tgid: Tgid) -> Vec<PathBuf> {
        // The kernel's own links are valid even if the path is unlinked or belongs to a chroot or another mount
        // namespace. They need CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE (`proc(5)`).
        let links = self.mappings.iter().map(|mapping| {
            let range = format!("{:x}-{:x}", mapping.start, mapping.end);
            PathBuf::from(format!("/proc/{}/map_files/{range}", tgid.0))
        });
        let mut paths: Vec<_> = links.collect();
        if !self.deleted {
            let root = format!("/proc/{}/root", tgid.0);
            // The path of a process in a chroot starts with the path of the chroot.
            let named = fs::read_link(&root).unwrap_or_default();
            let within = self.path.strip_prefix(named);
            let relative = within.or_else(|_| self.path.strip_prefix("/"));
            paths.push(Path::new(&root).join(relative.unwrap_or(&self.path)));
        }
        paths
    }

    /// Opens the file by the first of [`Self::paths`] that works, and returns that path too.
    /// Fails with the error of the last path that was tried.
    pub fn open(&self, tgid: Tgid) -> io::Result<(File, PathBuf)> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for path in self.paths(tgid) {
            match open_regular(&path) {
                Ok(file) => return Ok((file, path)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Opens a regular file for reading. Does not block on a FIFO that the target put there.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    regular(file)
}

pub(super) fn regular(file: File) -> io::Result<File> {
    let is_file = file.metadata()?.is_file();
    let other = || io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
    is_file.then_some(file).ok_or_else(other)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maps {
    mappings: Vec<Mapping>,
}

impl Maps {
    /// Reads the maps of a process.
    /// Fails with `NotFound` if there is no such process, `PermissionDenied` if memprobe may not inspect it
    /// (`ptrace(2)`, PTRACE_MODE_READ_FSCREDS), and the OS error `ESRCH` if it has just ended.
    pub fn of(tgid: Tgid) -> io::Result<Self> {
        let mut bytes = Vec::new();
        File::open(format!("/proc/{}/maps", tgid.0))?
            .take(MAX_MAPS_BYTES)
            .read_to_end(&mut bytes)?;
        Ok(Self::parse(&bytes))
    }

    pub fn parse(text: &[u8]) -> Self {
        let lines = text.split(|&byte| byte == b'\n');
        let mut mappings: Vec<_> = lines.filter_map(parse_line).collect();
        mappings.sort_by_key(|mapping| mapping.start);
        Self { mappings }
    }

    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let after = self
            .mappings
            .partition_point(|mapping| mapping.start <= address);
        let last = self.mappings[..after].last();
        last.filter(|mapping| mapping.contains(address))
    }

    /// Returns the mapped files without duplicates, in the order of their first mapping.
    pub fn files(&self) -> Vec<MappedFile> {
        let mut files: Vec<MappedFile> = Vec::new();
        let mut index = hashbrown::HashMap::new();
        for mapping in self.mappings.iter().filter(|mapping| mapping.is_file()) {
            let key = (mapping.dev, mapping.inode, &mapping.path);
            let place = *index.entry(key).or_insert_with(|| {
                files.push(MappedFile {
                    path: mapping.path.clone(),
                    dev: mapping.dev,
                    inode: mapping.inode,
                    deleted: mapping.deleted,
                    mappings: Vec::new(),
                });
                files.len() - 1
            });
            files[place].mappings.push(mapping.clone());
        }
        files
    }

    /// Returns the loaded libraries (files mapped as executable) whose basename is `name`, or `name` followed
    /// by neither letter, digit nor underscore. `libcudart` matches `libcudart.so.13`, not `libcudartish.so`.
    /// A process may have loaded several.
    pub fn libraries(&self, name: &str) -> Vec<MappedFile> {
        let mut files = self.files();
        files.retain(|file| file.is_executable() && is_named(file.basename().as_bytes(), name));
        files
    }

    /// Returns the present mappings of a file whose mappings were read before; `None` if it is unmapped.
    pub fn again(&self, file: &MappedFile) -> Option<MappedFile> {
        let is_same = |other: &MappedFile| {
            (other.dev, other.inode, &other.path) == (file.dev, file.inode, &file.path)
        };
        self.files().into_iter().find(is_same)
    }

    pub fn library(&self, name: &str) -> Option<MappedFile> {
        self.libraries(name).into_iter().next()
    }
}

/// True if a file name is `name`, or `name` followed by the end of a word.
pub(super) fn is_named(basename: &[u8], name: &str) -> bool {
    let ends_word = |next: &u8| !next.is_ascii_alphanumeric() && *next != b'_';
    let rest = basename.strip_prefix(name.as_bytes());
    rest.is_some_and(|rest| rest.first().is_none_or(ends_word))
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let range = field(&mut rest)?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let perms = permissions(field(&mut rest)?)?;
    let offset = hex(field(&mut rest)?)?;
    let (major, minor) = field(&mut rest)?.split_once(':')?;
    let dev = DeviceNumber {
        major: hex(major)?.try_into().ok()?,
        minor: hex(minor)?.try_into().ok()?,
    };
    let inode = field(&mut rest)?.parse().ok()?;
    let (path, deleted) = match rest.trim_ascii_start() {
        path if path.starts_with(b"/") && path.ends_with(DELETED) => {
            (&path[..path.len() - DELETED.len()], true)
        }
        path => (path, false),
    };
    (start < end).then(|| Mapping {
        start,
        end,
        perms,
        offset,
        dev,
        inode,
        path: PathBuf::from(OsStr::from_bytes(&unescape(path))),
        deleted,
    })
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let end = rest.iter().position(|&byte| byte == b' ');
    let (field, tail) = rest.split_at(end.unwrap_or(rest.len()));
    *rest = tail.get(1..).unwrap_or_default();
    let field = std::str::from_utf8(field).ok();
    field.filter(|field| !field.is_empty())
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

fn permissions(letters: &str) -> Option<Permissions> {
    let &[read, write, execute, sharing] = letters.as_bytes() else {
        return None;
    };
    Some(Permissions {
        read: read == b'r',
        write: write == b'w',
        execute: execute == b'x',
        shared: sharing == b's',
    })
}

/// Undoes the only escape in paths: the kernel writes a newline as `\012` (`show_map_vma` in `fs/proc/task_mmu.c`).
fn unescape(path: &[u8]) -> Vec<u8> {
    const NEWLINE: &[u8] = b"\\012";
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, tail)) = rest.split_first() {
        if rest.starts_with(NEWLINE) {
            plain.push(b'\n');
            rest = &rest[NEWLINE.len()..];
        } else {
            plain.push(first);
            rest = tail;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
00400000-0041f000 r--p 00000000 08:01 1234                               /usr/bin/python3.11
0041f000-006d2000 r-xp 0001f000 08:01 1234                               /usr/bin/python3.11
7f0000000000-7f0000001000 r--p 00000000 fe:10 77   /srv/a b/libc10.so (deleted)
7f0000001000-7f0000002000 r-xp 00001000 fe:10 77   /srv/a b/libc10.so (deleted)
7f0000002000-7f0000003000 r-xp 00001000 fe:10 78   /srv/a b/libc10_cuda.so
7f0000004000-7f0000005000 r--s 00000000 fe:10 79   /srv/weights\\012.safetensors
7f0000006000-7f0000007000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn a_line_gives_every_field() {
        let maps = Maps::parse(MAPS);
        assert_eq!(maps.mappings().len(), 8);
        assert_eq!(
            maps.mappings()[3],
            Mapping {
                start: 0x7f00_0000_1000,
                end: 0x7f00_0000_2000,
                perms: Permissions {
                    read: true,
                    write: false,
                    execute: true,
                    shared: false
                },
                offset: 0x1000,
                dev: DeviceNumber {
                    major: 0xfe,
                    minor: 0x10
                },
                inode: 77,
                path: PathBuf::from("/srv/a b/libc10.so"),
                deleted: true,
            }
        );
        assert_eq!(
            maps.mappings()[5].path,
            Path::new("/srv/weights\n.safetensors")
        );
        assert!(maps.mappings()[5].perms.shared);
        assert!(!maps.mappings()[7].is_file());
    }

    #[test]
    fn an_address_finds_its_mapping_and_a_hole_finds_none() {
        let maps = Maps::parse(MAPS);
        assert_eq!(
            maps.find(0x41f000).map(|mapping| mapping.offset),
            Some(0x1f000)
        );
        assert_eq!(maps.find(0x7f00_0000_3000), None);
        assert_eq!(maps.find(0), None);
        assert_eq!(maps.find(u64::MAX), None);
    }

    #[test]
    fn a_library_is_found_by_the_start_of_its_name_when_it_is_loaded_for_execution() {
        let maps = Maps::parse(MAPS);
        let found = maps.libraries("libc10.so");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].mappings.len(), 2);
        assert_eq!(maps.library("libc10"), found.into_iter().next());
        assert_eq!(maps.libraries("libc10_cuda").len(), 1);
        assert_eq!(maps.library("libc1"), None);
        assert_eq!(maps.library("weights"), None);
    }

    #[test]
    fn a_deleted_file_is_opened_only_through_map_files() {
        let maps = Maps::parse(MAPS);
        let deleted = maps.libraries("libc10.so")[0].paths(Tgid(7));
        assert_eq!(
            deleted,
            [
                Path::new("/proc/7/map_files/7f0000000000-7f0000001000"),
                Path::new("/proc/7/map_files/7f0000001000-7f0000002000"),
            ]
        );
        let present = maps.libraries("libc10_cuda.so")[0].paths(Tgid(7));
        assert_eq!(present[1], Path::new("/proc/7/root/srv/a b/libc10_cuda.so"));
    }

    #[test]
    fn lines_of_another_form_are_left_out() {
        let text = b"\n \nzz-10 r--p 0 0:0 0\n20-10 r--p 00 00:00 0\n10-20 r-p 00 00:00 0\n\
            10-20 r--p 00 00 0\n10-20\n\xff\xff-\xff r--p 00 00:00 0 /x\n10-20 r--p 00 00:00 0";
        assert_eq!(Maps::parse(text).mappings().len(), 1);
    }

    #[test]
    fn this_very_process_can_be_read_and_its_program_opened() {
        let tgid = Tgid(std::process::id());
        let maps = Maps::of(tgid).unwrap();
        let program = std::env::current_exe().unwrap();
        let file = maps
            .files()
            .into_iter()
            .find(|file| file.path == program)
            .unwrap();
        assert!(file.is_executable());
        file.open(tgid).unwrap();
    }
}
