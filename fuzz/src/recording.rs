//! Recordings, from the file to the tables of a report.

use memprobe::event::{Target, TimeNs};
use memprobe::ledger::Ledger;
use memprobe::recording::Reader;

/// Reads a recording and applies its events.
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
}
