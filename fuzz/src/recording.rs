//! Recordings, from the file to the tables of a report and to an export.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// First bytes of a compact recording in version 1 (docs/mprb.md).
const PREAMBLE: &[u8; 12] = b"\x89MPRB\r\n\x1a\x01\0\0\0";

use memprobe::estimate::AllocatorSettings;
use memprobe::estimate::what_if::{WhatIf, WhatIfFacts};
use memprobe::event::{Target, TimeNs};
use memprobe::export::{ExportFormat, ExportMoment, ExportRequest, write_export};
use memprobe::ledger::totals_curve::TotalsCurve;
use memprobe::ledger::{Analysis, AnalyzedLedger, Ledger, MAX_POINTS};
use memprobe::recording::{
    PICKLE_FIRST_BYTE, Reader, SeekableRecording, copy_pickle, decode_curve,
};
use memprobe::replay::Player;
use rustix::fs::{MemfdFlags, memfd_create};

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

/// Reads a memory snapshot that PyTorch pickled, exports it as one again, and replays it under its own and other
/// settings of the allocator.
pub fn read_pickle(data: &[u8]) {
    if data.first() != Some(&PICKLE_FIRST_BYTE) {
        return;
    }
    read(data);
    export_again(data);
    let Ok(reader) = Reader::new(data) else {
        return;
    };
    let target = reader.header().target.clone();
    let conf = target.allocator_conf.as_deref();
    let recorded =
        conf.map(|conf| AllocatorSettings::parse_recorded(conf, target.torch.as_deref()));
    let recorded = recorded.and_then(Result::ok);
    let recorded = recorded.unwrap_or_default();
    let Some(facts) = replayed(data, WhatIfFacts::with_settings(recorded)) else {
        return;
    };
    let expandable = AllocatorSettings {
        expandable: true,
        ..recorded
    };
    for wanted in [AllocatorSettings::DEFAULT, expandable] {
        let what_if = replayed(data, WhatIf::new(facts.clone(), wanted));
        let _ = what_if.map(|what_if| what_if.results(0));
    }
}

/// Exports a recording as PyTorch's snapshot, from a file: that reads it twice.
fn export_again(data: &[u8]) {
    let file = memfd_create(c"recording", MemfdFlags::CLOEXEC).expect("a file in memory");
    rustix::io::write(&file, data).expect("written");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    if let Ok(reader) = Reader::open(Path::new(&path)) {
        let request = ExportRequest {
            format: ExportFormat::MemoryViz,
            moment: ExportMoment::End,
            rank: None,
        };
        let mut exported = Vec::new();
        if write_export(reader, request, &AtomicU64::new(0), &mut exported).is_ok() {
            assert!(Reader::new(&*exported).is_ok());
        }
    }
}

/// Replays a recording to its end.
fn replayed<A: Analysis>(data: &[u8], analysis: A) -> Option<A> {
    let mut reader = Reader::new(data).ok()?;
    let mut replay = AnalyzedLedger::new(Target::default(), TimeNs(0), analysis);
    for event in reader.by_ref() {
        replay.apply(&event.ok()?);
    }
    Some(replay.analyses)
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
