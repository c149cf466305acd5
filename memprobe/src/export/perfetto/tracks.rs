//! Tracks of a trace.

use super::messages::{
    CounterDescriptor, ProcessDescriptor, TracePacket, TrackDescriptor, UNIT_BYTES,
};
use crate::event::DeviceIndex;

/// Distance of the tracks of two devices.
const TRACKS_OF_A_DEVICE: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Track {
    Iterations,
    Phases,
    Allocated(DeviceIndex),
    Reserved(DeviceIndex),
    /// Segments, failed requests and the peak.
    Events(DeviceIndex),
}

impl Track {
    pub(super) fn of_device(device: DeviceIndex) -> [Self; 3] {
        [
            Self::Allocated(device),
            Self::Reserved(device),
            Self::Events(device),
        ]
    }

    pub(super) fn uuid(self, pid: u32) -> u64 {
        let of =
            |device: DeviceIndex, track| TRACKS_OF_A_DEVICE * (u64::from(device.0) + 1) + track;
        let track = match self {
            Self::Iterations => 1,
            Self::Phases => 2,
            Self::Allocated(device) => of(device, 0),
            Self::Reserved(device) => of(device, 1),
            Self::Events(device) => of(device, 2),
        };
        process_uuid(pid) + track
    }

    pub(super) fn descriptor(self, pid: u32) -> TracePacket {
        let counter = |device: DeviceIndex| CounterDescriptor {
            unit: Some(UNIT_BYTES),
            y_axis_share_key: Some(device.to_string()),
        };
        let (name, counter) = match self {
            Self::Iterations => ("iterations".to_owned(), None),
            Self::Phases => ("phases (inferred)".to_owned(), None),
            Self::Allocated(device) => (format!("{device} allocated"), Some(counter(device))),
            Self::Reserved(device) => (format!("{device} reserved"), Some(counter(device))),
            Self::Events(device) => (format!("{device} events"), None),
        };
        of_track(TrackDescriptor {
            uuid: Some(self.uuid(pid)),
            parent_uuid: Some(process_uuid(pid)),
            name: Some(name),
            counter,
            ..TrackDescriptor::default()
        })
    }
}

/// Track of the process, which has the others below it.
pub(super) fn process(pid: u32, name: String) -> TracePacket {
    of_track(TrackDescriptor {
        uuid: Some(process_uuid(pid)),
        process: Some(ProcessDescriptor {
            pid: Some(i32::try_from(pid).unwrap_or(i32::MAX)),
            cmdline: vec![name.clone()],
            process_name: Some(name),
        }),
        ..TrackDescriptor::default()
    })
}

/// Numbers of the tracks of different processes differ: Perfetto merges traces by them.
fn process_uuid(pid: u32) -> u64 {
    u64::from(pid) << 32
}

fn of_track(descriptor: TrackDescriptor) -> TracePacket {
    TracePacket {
        track_descriptor: Some(descriptor),
        ..TracePacket::default()
    }
}
