//! ELF files: symbols, sections, thread-local variables, tracepoints, functions.

use std::fs::File;
use std::io::Write as _;

use memprobe::process::elf::{ElfImage, FunctionNames};
use rustix::fs::{MemfdFlags, memfd_create};

/// Reads a file of these bytes as memprobe reads a library.
pub fn read(data: &[u8]) {
    let open = || -> Option<ElfImage> {
        let mut file = File::from(memfd_create("elf", MemfdFlags::CLOEXEC).ok()?);
        file.write_all(data).ok()?;
        ElfImage::from_file(file).ok()
    };
    let Some(image) = open() else { return };
    let _ = image.symbols(&["cudaMalloc", "PyCode_Type", "_PyRuntime"]);
    let _ = image.needs("libcudart.so");
    let _ = image.thread_local_number();
    let _ = image.tracepoints();
    let _ = image.section_contents(".eh_frame", 1 << 20);
    let _ = image.load_bias(&[]);
    for start in image.function_starts().into_iter().flatten().take(64) {
        let _ = image.bytes_at(start, 64);
        let _ = image.file_offset_of(start);
    }
    if let Ok(names) = FunctionNames::of(image) {
        let _ = (0..4096).step_by(64).map(|at| names.at(at)).last();
    }
}
