//! Unknown Pythons, and files that only look like one: memprobe must read each correctly or refuse
//! it with a reason. The test makes them by patching copies of real interpreters.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use memprobe::event::Tgid;
use memprobe::python::{CodeCache, DetectError, PythonProcess, Resolved};
use object::{Object, ObjectSection, ObjectSymbol};

/// Program that stops at known lines.
const PROGRAM: &str =
    "import sys\ndef stand():\n    print(flush=True)\n    sys.stdin.read()\nstand()\n";

/// Lines at which [`PROGRAM`] may be stopped; it may still be inside `print`.
const LINES: [u32; 2] = [3, 4];

/// Line that calls `stand`.
const OUTER: u32 = 5;

/// A Python of this machine.
struct Installed {
    program: PathBuf,
    /// File that holds the interpreter: the shared library or the program.
    holder: PathBuf,
    minor: u8,
}

impl Installed {
    fn is_library(&self) -> bool {
        self.holder != fs::canonicalize(&self.program).unwrap()
    }
}

/// Returns one working Python per minor version on this machine.
fn installed() -> Vec<Installed> {
    let question = "import sys, sysconfig as c; print(sys.version_info[1]); \
                    print(sys.executable); \
                    print(c.get_config_var('LIBDIR') + '/' + c.get_config_var('INSTSONAME') \
                    if c.get_config_var('Py_ENABLE_SHARED') and not sys.executable.startswith('/usr/bin') \
                    else sys.executable)";
    let mut found: Vec<Installed> = Vec::new();
    for minor in 9..=15 {
        for folder in folders() {
            let answer = Command::new(folder.join(format!("python3.{minor}")))
                .args(["-I", "-c", question])
                .stderr(Stdio::null())
                .output();
            let Ok(answer) = answer else { continue };
            let text = String::from_utf8_lossy(&answer.stdout).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            if let [version, program, holder] = lines[..]
                && version == minor.to_string()
            {
                found.push(Installed {
                    program: program.into(),
                    holder: fs::canonicalize(holder).unwrap(),
                    minor,
                });
                break;
            }
        }
    }
    found
}

fn folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let pyenv = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv")));
    let versions = pyenv.map(|pyenv| fs::read_dir(pyenv.join("versions")));
    if let Some(Ok(versions)) = versions {
        folders.extend(versions.flatten().map(|entry| entry.path().join("bin")));
    }
    folders.push("/usr/bin".into());
    folders
}

/// A copy of an interpreter with patched bytes, running [`PROGRAM`].
struct Changed {
    child: Child,
    copy: PathBuf,
    _folder: tempfile::TempDir,
}

impl Changed {
    /// Starts a copy of `python` patched by `change`, under the original name or `name`.
    fn start(python: &Installed, name: Option<&str>, change: impl FnOnce(&mut Image)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut image = Image::of(python);
        change(&mut image);
        let original = python.holder.file_name().unwrap().to_str().unwrap();
        let copy = folder.path().join(name.unwrap_or(original));
        let written = folder.path().join("image");
        fs::write(&written, image.bytes).unwrap();
        // A program that another thread starts has this file open for a moment, and a file that is open for writing
        // cannot be run: cp writes the one that is.
        let copied = Command::new("cp").arg(&written).arg(&copy).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = if python.is_library() {
            let mut command = Command::new(&python.program);
            // The loader finds the library by its original name; a renamed copy must be preloaded.
            match name {
                None => command.env("LD_LIBRARY_PATH", folder.path()),
                Some(_) => command.env("LD_PRELOAD", &copy),
            };
            command
        } else {
            let mut command = Command::new(&copy);
            command.env(
                "PYTHONHOME",
                python.program.parent().unwrap().parent().unwrap(),
            );
            command
        };
        let mut child = command
            .args(["-S", "-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "\n", "the changed Python does not run");
        Self {
            child,
            copy,
            _folder: folder,
        }
    }

    /// Like [`Self::start`], for patches that would break the dynamic loader: a library is patched
    /// once it is loaded.
    fn start_and(python: &Installed, change: impl FnOnce(&mut Image)) -> Self {
        if !python.is_library() {
            return Self::start(python, None, change);
        }
        let started = Self::start(python, None, |_| {});
        let mut image = Image::of(python);
        change(&mut image);
        // Write in place, so that the copy stays the mapped file.
        let mut file = fs::File::options().write(true).open(&started.copy).unwrap();
        file.write_all(&image.bytes).unwrap();
        started
    }

    fn detect(&self) -> Result<PythonProcess, DetectError> {
        PythonProcess::detect(Tgid(self.child.id()))
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

struct Image {
    bytes: Vec<u8>,
}

impl Image {
    fn of(python: &Installed) -> Self {
        Self {
            bytes: fs::read(&python.holder).unwrap(),
        }
    }

    /// Returns the file offset of a dynamic symbol's value.
    fn place(&self, symbol: &str) -> Option<usize> {
        let file = object::File::parse(&*self.bytes).unwrap();
        let symbol = file
            .dynamic_symbols()
            .find(|found| found.name() == Ok(symbol))?;
        let section = file.section_by_index(symbol.section_index()?).unwrap();
        let (offset, _) = section.file_range()?;
        Some(
            (offset + symbol.address() - section.address())
                .try_into()
                .unwrap(),
        )
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Overwrites `Py_Version`, which other programs read but the interpreter does not.
    fn set_version(&mut self, hex: u32) {
        let at = self.place("Py_Version").expect("from 3.11 on");
        self.write(at, &u64::from(hex).to_le_bytes());
    }

    /// Overwrites a word of `_Py_DebugOffsets`.
    fn set_debug_offset(&mut self, at: usize, value: u64) {
        let runtime = self.place("_PyRuntime").expect("it is exported");
        self.write(runtime + at, &value.to_le_bytes());
    }

    /// Renames a symbol in every string table, so that no lookup by name finds it.
    fn hide_symbol(&mut self, name: &str) {
        let tables: Vec<_> = {
            let file = object::File::parse(&*self.bytes).unwrap();
            [".dynstr", ".strtab"]
                .into_iter()
                .filter_map(|table| file.section_by_name(table)?.file_range())
                .collect()
        };
        let wanted = format!("\0{name}\0");
        for (start, size) in tables {
            let (start, size) = (start as usize, size as usize);
            let found = self.bytes[start..start + size]
                .windows(wanted.len())
                .position(|window| window == wanted.as_bytes());
            if let Some(at) = found {
                self.bytes[start + at + 1] = b'#';
            }
        }
        assert_eq!(self.place(name), None);
    }

    /// Removes the section headers, which a loader does not need.
    fn cut_sections(&mut self) {
        self.write(40, &[0; 8]);
        self.write(60, &[0; 4]);
    }

    /// Renames a section.
    fn hide_section(&mut self, name: &str) {
        let wanted = format!("\0{name}\0");
        let at = self
            .bytes
            .windows(wanted.len())
            .rposition(|window| window == wanted.as_bytes());
        self.bytes[at.expect("it has this section") + 1] = b'#';
    }
}

/// True if memprobe reads the correct frames: the innermost one is at a line of [`LINES`].
fn is_read_right(process: &PythonProcess) -> bool {
    let states = process.thread_states().unwrap();
    let chain = process.frames(&states[0]).unwrap();
    let mut cache = CodeCache::new(process);
    let memory = process.memory();
    let frames: Vec<_> = chain
        .frames
        .iter()
        .map(|frame| cache.resolve(&memory, frame.code, frame.instr, frame.owner))
        .filter(|resolved| *resolved != Resolved::Skip)
        .collect();
    matches!(&frames[..], [Resolved::Frame(inner), Resolved::Frame(outer)]
        if LINES.contains(&inner.line) && &*inner.function == "stand" && outer.line == OUTER)
}

#[track_caller]
fn assert_read_right(changed: &Changed, python: &Installed) {
    match changed.detect() {
        Ok(process) => assert!(is_read_right(&process), "Python 3.{}", python.minor),
        Err(error) => panic!("Python 3.{}: {error}", python.minor),
    }
}

fn since(minor: u8) -> impl Iterator<Item = Installed> {
    let mut found = installed();
    found.retain(|python| python.minor >= minor);
    if found.is_empty() {
        println!("skipped: no Python 3.{minor} or newer is here");
    }
    found.into_iter()
}

#[test]
fn an_unchanged_copy_under_any_name_is_read_right() {
    for python in since(9) {
        assert_read_right(&Changed::start(&python, None, |_| {}), &python);
    }
    for python in since(11) {
        let renamed = Changed::start(&python, Some("trainer"), |_| {});
        assert_read_right(&renamed, &python);
    }
}

#[test]
fn a_file_without_sections_is_read_right_or_refused() {
    for python in since(9) {
        let cut = Changed::start(&python, None, Image::cut_sections);
        assert_read_right(&cut, &python);
    }
}

#[test]
fn a_hidden_runtime_is_found_by_its_section_or_refused() {
    for python in since(9) {
        let hidden = Changed::start_and(&python, |image| image.hide_symbol("_PyRuntime"));
        match (hidden.detect(), python.minor) {
            (Ok(process), 10..) => assert!(is_read_right(&process)),
            (Err(DetectError::NoSymbol(_, "_PyRuntime")), 9) => {}
            (found, minor) => panic!("Python 3.{minor}: {:?}", found.err()),
        }
        if python.minor >= 10 {
            let both = Changed::start_and(&python, |image| {
                image.hide_symbol("_PyRuntime");
                image.hide_section(".PyRuntime");
            });
            let error = both.detect().unwrap_err();
            assert!(
                matches!(error, DetectError::NoSymbol(_, "_PyRuntime")),
                "{error}"
            );
        }
    }
}

#[test]
fn without_the_type_of_code_objects_it_is_refused() {
    for python in since(9) {
        let hidden = Changed::start_and(&python, |image| image.hide_symbol("PyCode_Type"));
        let error = hidden.detect().unwrap_err();
        assert!(
            matches!(error, DetectError::NoSymbol(_, "PyCode_Type")),
            "Python 3.{}: {error}",
            python.minor
        );
    }
}

#[test]
fn a_version_that_is_not_known_is_refused_by_its_number() {
    for python in since(11) {
        for (hex, text) in [
            (0x0310_00f0, "3.16.0"),
            (0x0308_12f0, "3.8.18"),
            (0x0400_00f0, "4.0.0"),
        ] {
            let changed = Changed::start(&python, None, |image| image.set_version(hex));
            let error = changed.detect().unwrap_err();
            assert!(
                matches!(error, DetectError::UnsupportedVersion(_)),
                "{error}"
            );
            assert!(error.to_string().contains(text), "{error}");
        }
        let minor = u32::from(python.minor);
        let alpha = 3 << 24 | minor << 16 | 0xa1;
        let changed = Changed::start(&python, None, |image| image.set_version(alpha));
        let error = changed.detect().unwrap_err();
        assert!(matches!(error, DetectError::PreRelease(_)), "{error}");
    }
}

#[test]
fn a_version_that_is_not_its_own_is_noticed() {
    for python in since(11) {
        for minor in (11..=15).filter(|minor| *minor != python.minor) {
            let hex = 3 << 24 | u32::from(minor) << 16 | 0x01f0;
            let changed = Changed::start(&python, None, |image| image.set_version(hex));
            let error = changed.detect().unwrap_err();
            assert!(
                matches!(
                    error,
                    DetectError::Calibration(..)
                        | DetectError::DebugOffsets(..)
                        | DetectError::NotInitializedYet
                        | DetectError::Ending
                        | DetectError::Access(_)
                ),
                "Python 3.{} as 3.{minor}: {error}",
                python.minor
            );
        }
    }
}

#[test]
fn debug_offsets_that_make_no_sense_are_refused_and_never_followed_blindly() {
    for python in since(13) {
        let damaged = Changed::start(&python, None, |image| {
            image.set_debug_offset(0, u64::from_le_bytes(*b"xdebugpX"));
        });
        let error = damaged.detect().unwrap_err();
        assert!(matches!(error, DetectError::DebugOffsets(..)), "{error}");
        let free_threaded = Changed::start(&python, None, |image| image.set_debug_offset(16, 1));
        let error = free_threaded.detect().unwrap_err();
        assert!(matches!(error, DetectError::FreeThreaded(_)), "{error}");
        // Every word, with values far out of range and slightly wrong.
        let (mut refused, mut right) = (0, 0);
        for at in (24..560).step_by(8) {
            for value in [u64::MAX, 1 << 15, 24] {
                let changed =
                    Changed::start(&python, None, |image| image.set_debug_offset(at, value));
                match changed.detect() {
                    Ok(process) => {
                        assert!(is_read_right(&process), "word {at} as {value}");
                        right += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
        println!(
            "Python 3.{}: {right} read right, {refused} refused",
            python.minor
        );
        assert!(refused > 30);
    }
}
