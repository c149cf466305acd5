//! Every committed input is read to an end, cut at every length too where it is short.

use std::fs;
use std::path::Path;

use memprobe::python::heap::capture::CaptureMode;
use memprobe_fuzz::READERS;
use memprobe_fuzz::pytorch::{graph_of, tables_of};
use memprobe_fuzz::unwind::callers_of;

/// Longest input that is also read cut at every length, in bytes.
const SHORT: usize = 512;

#[test]
fn every_reader_reads_its_inputs_to_an_end() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for reader in READERS {
        let folder = corpus.join(reader.inputs);
        let files =
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", reader.name));
        let mut inputs = 0;
        for file in files {
            let input = fs::read(file.expect("an entry").path()).expect("read");
            (reader.read)(&input);
            for length in 0..input.len().min(SHORT) {
                (reader.read)(&input[..length]);
            }
            inputs += 1;
        }
        assert!(inputs > 0, "{} has no inputs", reader.name);
    }
}

/// Inputs that were read of a running PyTorch.
fn of_pytorch(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(folder);
    let files = fs::read_dir(&folder).expect("a folder").map(|file| {
        let file = file.expect("an entry");
        let name = file.file_name().to_string_lossy().into_owned();
        (name, fs::read(file.path()).expect("read"))
    });
    let files: Vec<_> = files
        .filter(|(name, _)| name.starts_with("torch"))
        .collect();
    assert!(!files.is_empty());
    files
}

#[test]
fn inputs_of_a_real_pytorch_are_read_as_its_objects() {
    for (name, input) in of_pytorch("tensors") {
        let graph = graph_of(&input, CaptureMode::Paused).unwrap_or_else(|| panic!("{name}"));
        assert!(graph.tensors.len() >= 2, "{name}: {graph:?}");
        assert_eq!(graph.left_out.words(), Vec::<String>::new(), "{name}");
    }
    for (name, input) in of_pytorch("allocator") {
        let tables = tables_of(&input).unwrap_or_else(|| panic!("{name}"));
        assert!(tables.blocks.len() >= 6, "{name}: {tables:?}");
        assert!(tables.is_consistent(), "{name}: {tables:?}");
    }
}

#[test]
fn inputs_of_real_libraries_have_callers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/unwind");
    for (name, least) in [("library", 1), ("frames", 2)] {
        let input = fs::read(folder.join(name)).expect("read");
        let callers = callers_of(&input).expect("an input");
        assert!(callers.len() >= least, "{name}: {callers:x?}");
    }
}
