//! Every committed input is read to an end, cut at every length too where it is short.

use std::fs;
use std::path::Path;

use memprobe_fuzz::READERS;

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
