//! Recordings, from the file to the tables of a report and to an export.

use std::io;
use std::sync::atomic::AtomicU64;

/// First bytes of a compact recording in version 1 (docs/mprb.md).
const PREAMBLE: &[u8; 12] = b"\x89MPRB\r\n\x1a\x01\0\0\0";

use memprobe::event::{Target, TimeNs};
use memprobe::export::{ExportFormat, ExportMoment, ExportRequest, write_export};
use memprobe::ledger::totals_curve::TotalsCurve;
use memprobe::ledger::{Ledger, MAX_POINTS};
use memprobe::recording::{
    PICKLE_FIRST_BYTE, Reader, SeekableRecording, copy_pickle, decode_curve,
};
use memprobe::replay::Player;

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
        let request = ExportRequest {
            format: ExportFormat::Pprof,
            moment: ExportMoment::Peak,
            rank: None,
        };
        let _ = write_export(reader, request, &AtomicU64::new(0), &mut io::sink());
    }
    let _ = copy_pickle(data, &mut io::sink());
}

/// Reads a memory snapshot that PyTorch pickled.
pub fn read_pickle(data: &[u8]) {
    if data.first() == Some(&PICKLE_FIRST_BYTE) {
        read(data);
    }
}

/// Reads the payload of a frame of a curve, and draws all time from it.
pub fn read_curve(payload: &[u8]) {
    let Ok(part) = decode_curve(payload, 7) else {
        return;
    };
    for device in part.cells.iter().flat_map(|cell| &cell.devices) {
        assert_eq!(device.low, device.low.lower(device.last));
        assert_eq!(device.high, device.high.higher(device.last));
    }
    let mut curve = TotalsCurve::behind(7);
    curve.append(part);
    for (_, timeline) in curve.timelines(TimeNs(0)) {
        assert!(timeline.points.len() <= MAX_POINTS);
    }
}

/// Opens a recording from its keyframes and curve, and goes to a few of its moments.
pub fn replay(data: &[u8]) {
    let Ok(Some(recording)) = SeekableRecording::of_bytes(data.to_vec()) else {
        return;
    };
    let _ = (recording.curve().is_ok(), recording.sources().is_ok());
    let Ok(Some(mut player)) = Player::from_keyframes(&recording, ()) else {
        return;
    };
    let events = player.overview.events;
    for at in [0, events / 3, events / 2, events] {
        if player.seek(at).is_err() {
            return;
        }
    }
}

/// Reads the payload of a frame of records, in a file with the right checksums.
pub fn read_columns(payload: &[u8]) {
    let Ok(length) = u32::try_from(payload.len()) else {
        return;
    };
    let mut header = Vec::from(b"\xf7MPF\x02\0\0\0");
    header.extend(length.to_le_bytes());
    header.extend(length.to_le_bytes());
    // As many events as the corpus has.
    header.extend(0_u64.to_le_bytes());
    header.extend(14_u32.to_le_bytes());
    header.extend(crc32fast::hash(payload).to_le_bytes());
    header.extend([0; 16]);
    let checksum = crc32fast::hash(&header).to_le_bytes();
    read(&[&PREAMBLE[..], &header, &checksum, payload].concat());
}
