//! What a process has mapped (`/proc/PID/maps`, proc(5)).

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::event::Tgid;

/// The most that is read of a process's list of mappings: 65,530 mappings (the kernel's default
/// limit) of 250 bytes.
const MOST: u64 = 16 << 20;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Whether it can be executed.
    pub executable: bool,
    /// Where in the file it begins.
    pub offset: u64,
    /// Device and inode of the file, as in `08:01 1234`.
    pub file_id: String,
    /// The file, without the mark of a deleted one.
    pub path: PathBuf,
}

/// Every file mapping of a process.
#[derive(Clone, Debug)]
pub struct Maps {
    tgid: Tgid,
    mappings: Vec<Mapping>,
}

impl Maps {
    /// Reads the mappings of a process.
    ///
    /// # Errors
    /// When the process has ended or may not be looked at.
    pub fn of(tgid: Tgid) -> io::Result<Self> {
        let mut text = Vec::new();
        fs::File::open(format!("/proc/{}/maps", tgid.0))?
            .take(MOST)
            .read_to_end(&mut text)?;
        let mappings = String::from_utf8_lossy(&text)
            .lines()
            .filter_map(Mapping::parse)
            .collect();
        Ok(Self { tgid, mappings })
    }

    /// The process.
    pub fn tgid(&self) -> Tgid {
        self.tgid
    }

    /// Every file mapping, by address.
    pub fn files(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The first mapping of the library whose file name begins with `prefix`, followed by nothing
    /// or by something that is no letter (`libcudart` is `libcudart.so.13`, not `libcudartish`).
    pub fn library(&self, prefix: &str) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| {
            let name = mapping
                .path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            name.as_deref()
                .and_then(|name| name.strip_prefix(prefix))
                .is_some_and(|rest| {
                    !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                })
        })
    }

    /// Every mapping of the same file as `mapping`.
    pub fn same_file<'a>(&'a self, mapping: &'a Mapping) -> impl Iterator<Item = &'a Mapping> {
        self.mappings
            .iter()
            .filter(move |other| other.file_id == mapping.file_id && other.path == mapping.path)
    }
}

impl Mapping {
    /// Parses one line; `None` for memory that is no file.
    fn parse(line: &str) -> Option<Self> {
        let mut rest = line;
        let mut field = || {
            let trimmed = rest.trim_start_matches(' ');
            let end = trimmed.find(' ').unwrap_or(trimmed.len());
            let (word, behind) = trimmed.split_at(end);
            rest = behind;
            word
        };
        let (start, end) = field().split_once('-')?;
        let (start, end) = (
            u64::from_str_radix(start, 16).ok()?,
            u64::from_str_radix(end, 16).ok()?,
        );
        let executable = field().contains('x');
        let offset = u64::from_str_radix(field(), 16).ok()?;
        let file_id = format!("{} {}", field(), field());
        let path = rest.trim_start_matches(' ');
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        (path.starts_with('/') && start < end).then(|| Self {
            start,
            end,
            executable,
            offset,
            file_id,
            path: Path::new(path).to_path_buf(),
        })
    }

    /// Where memprobe can open the very file that is mapped: through `map_files`, which also
    /// works for deleted files, containers and chroots, or through the process's root.
    pub fn openable(&self, tgid: Tgid) -> PathBuf {
        let exact = PathBuf::from(format!(
            "/proc/{}/map_files/{:x}-{:x}",
            tgid.0, self.start, self.end
        ));
        if fs::File::open(&exact).is_ok() {
            return exact;
        }
        let inside = self.path.strip_prefix("/").unwrap_or(&self.path);
        PathBuf::from(format!("/proc/{}/root", tgid.0)).join(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(text: &str) -> Maps {
        Maps {
            tgid: Tgid(1),
            mappings: text.lines().filter_map(Mapping::parse).collect(),
        }
    }

    #[test]
    fn a_mapping_of_a_file_is_read_with_spaces_in_its_name() {
        let line = "7f00-8f00 r-xp 00001000 08:01 1234                       /opt/my env/libc10.so (deleted)";
        let mapping = Mapping::parse(line).expect("a file");
        assert_eq!(
            (mapping.start, mapping.end, mapping.offset),
            (0x7f00, 0x8f00, 0x1000)
        );
        assert!(mapping.executable);
        assert_eq!(mapping.path, Path::new("/opt/my env/libc10.so"));
        assert_eq!(mapping.file_id, "08:01 1234");
    }

    #[test]
    fn memory_without_a_file_and_nonsense_are_passed_over() {
        assert_eq!(Mapping::parse("7f00-8f00 rw-p 00000000 00:00 0"), None);
        assert_eq!(
            Mapping::parse("7f00-8f00 rw-p 00000000 00:00 0    [heap]"),
            None
        );
        assert_eq!(Mapping::parse("nonsense"), None);
        assert_eq!(Mapping::parse(""), None);
    }

    #[test]
    fn a_library_is_found_by_the_beginning_of_its_name() {
        let maps = maps(
            "1000-2000 r-xp 0 08:01 1 /lib/libcudartish.so\n\
             3000-4000 r-xp 0 08:01 2 /lib/libcudart.so.13\n\
             5000-6000 r-xp 0 08:01 3 /lib/libc10_cuda.so\n\
             7000-8000 r-xp 0 08:01 4 /lib/libc10.so\n\
             8000-9000 rw-p 1000 08:01 4 /lib/libc10.so\n",
        );
        assert_eq!(
            maps.library("libcudart").map(|mapping| mapping.start),
            Some(0x3000)
        );
        assert_eq!(
            maps.library("libc10.so").map(|mapping| mapping.start),
            Some(0x7000)
        );
        assert_eq!(maps.library("libtorch_cpu.so"), None);
        let library = maps.library("libc10.so").expect("found");
        assert_eq!(maps.same_file(library).count(), 2);
    }
}
