//! libFuzzer on one reader, which the variable `MEMPROBE_FUZZ_READER` names.

#![no_main]

use std::sync::OnceLock;

use memprobe_fuzz::{READER_VARIABLE, Reader};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static READER: OnceLock<Reader> = OnceLock::new();
    let reader = READER.get_or_init(|| {
        let name = std::env::var(READER_VARIABLE).unwrap_or_default();
        Reader::named(&name)
            .unwrap_or_else(|| panic!("{READER_VARIABLE} names no reader: {name:?}"))
    });
    (reader.read)(data);
});
