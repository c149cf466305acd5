//! Recordings, from the file to the tables of a report and to an export.

use std::io;
use std::sync::atomic::AtomicU64;

use memprobe::event::{Target, TimeNs};
use memprobe::export::{ExportFormat, ExportMoment, write_export};
use memprobe::ledger::Ledger;
use memprobe::recording::{Reader, copy_pickle};

/// Reads a recording, applies its events, and exports it.
pub fn read(data: &[u8]) {
    let Ok(mut reader) = Reader::new(data) else {
        return;
    };
    let mut ledger = Ledger::new(Target::default(), TimeNs(0));
    for event in reader.by_ref() {
        let Ok(event) = event else { break };
        ledger.apply(&event);
    }
    let _ = (reader.header(), reader.end(), reader.truncated());
    if let Ok(reader) = Reader::new(data) {
        let (format, moment) = (ExportFormat::Pprof, ExportMoment::Peak);
        let _ = write_export(reader, format, moment, &AtomicU64::new(0), &mut io::sink());
    }
    let _ = copy_pickle(data, &mut io::sink());
}
