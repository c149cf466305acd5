//! Serialized readings of the allocator's segments, one record a segment.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::MAX_CONTEXT;
use crate::event::{
    Address, Bytes, DeviceIndex, DeviceSegments, MemorySegment, Pool, PoolId, PoolOwner,
    PrivatePoolState, SegmentReading, Tgid, TimeNs, Totals,
};

/// Most records of one reading.
const MOST: usize = 1 << 22;
pub(super) const MAX_DEVICES: usize = 256;

/// A segment, or a block that awaits an event, before the [`SegmentsRecord`] that it belongs to.
#[derive(Serialize, Deserialize)]
pub(crate) struct SegmentRecord {
    device: DeviceIndex,
    addr: u64,
    size: u64,
    /// Absent for a block that awaits an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    stream: u64,
    /// `MempoolId_t`; absent for the default pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pool_id: Option<PoolId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool_state: Option<String>,
    /// Start of the expandable segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    expandable: Option<u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Ends the preceding [`SegmentRecord`]s of a moment.
#[derive(Serialize, Deserialize)]
pub(crate) struct SegmentsRecord {
    /// Number of the records before it.
    records: u64,
    devices: Vec<DeviceRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct DeviceRecord {
    pub device: DeviceIndex,
    pub allocated: u64,
    pub reserved: u64,
    pub active: u64,
    pub requested: u64,
}

impl SegmentRecord {
    /// The records of a reading, in order.
    pub(crate) fn all(reading: &SegmentReading) -> impl Iterator<Item = Self> {
        reading.devices.iter().flat_map(|device| {
            let segments = device.segments.iter();
            let segments = segments.map(|segment| Self::of_segment(device.device, segment));
            let awaiting = device.awaiting.iter();
            let awaiting = awaiting.map(|(addr, size)| Self::new(device.device, *addr, *size));
            segments.chain(awaiting)
        })
    }

    fn new(device: DeviceIndex, addr: Address, size: Bytes) -> Self {
        Self {
            device,
            addr: addr.0,
            size: size.0,
            pool: None,
            stream: 0,
            pool_id: None,
            pool_state: None,
            expandable: None,
        }
    }

    fn of_segment(device: DeviceIndex, segment: &MemorySegment) -> Self {
        let private = match segment.pool.owner {
            PoolOwner::Default => None,
            PoolOwner::Private { id, state } => Some((id, state)),
        };
        Self {
            pool: Some(segment.pool.size.as_str().to_owned()),
            stream: segment.stream,
            pool_id: private.map(|(id, _)| id),
            pool_state: private.map(|(_, state)| state.as_str().to_owned()),
            expandable: segment.expandable.map(|addr| addr.0),
            ..Self::new(device, segment.addr, segment.size)
        }
    }

    /// Returns the content. An error describes the fault in a few words.
    fn part(&self) -> Result<SegmentPart, String> {
        let Some(pool) = &self.pool else {
            return Ok(SegmentPart::Awaiting(Address(self.addr), Bytes(self.size)));
        };
        let size = pool.parse().map_err(|_| "a segment of an unknown `pool`")?;
        let owner = match self.pool_id {
            None => PoolOwner::Default,
            Some(id) => PoolOwner::Private {
                id,
                state: match &self.pool_state {
                    None => PrivatePoolState::InUse,
                    Some(word) => word.parse().map_err(|_| "a pool of unknown state")?,
                },
            },
        };
        Ok(SegmentPart::Segment(MemorySegment {
            addr: Address(self.addr),
            size: Bytes(self.size),
            stream: self.stream,
            pool: Pool { owner, size },
            expandable: self.expandable.map(Address),
        }))
    }
}

/// Content of a [`SegmentRecord`].
pub(super) enum SegmentPart {
    Segment(MemorySegment),
    /// A freed block that awaits an event.
    Awaiting(Address, Bytes),
}

impl SegmentPart {
    fn reaches_beyond_last_address(&self) -> bool {
        let (Self::Segment(MemorySegment { addr, size, .. }) | Self::Awaiting(addr, size)) = self;
        addr.0.checked_add(size.0).is_none()
    }
}

impl From<&SegmentReading> for SegmentsRecord {
    fn from(reading: &SegmentReading) -> Self {
        let devices = reading.devices.iter();
        let count = |device: &DeviceSegments| device.segments.len() + device.awaiting.len();
        Self {
            records: devices.clone().map(count).sum::<usize>() as u64,
            devices: devices
                .map(|device| DeviceRecord {
                    device: device.device,
                    allocated: device.totals.allocated.0,
                    reserved: device.totals.reserved.0,
                    active: device.active.0,
                    requested: device.requested.0,
                })
                .collect(),
            unread: reading.unread.as_deref().map(str::to_owned),
        }
    }
}

/// Segments read before the `segments` record that they belong to.
#[derive(Default)]
pub(super) struct PendingSegments(Vec<(DeviceIndex, SegmentPart)>);

impl PendingSegments {
    pub(super) fn push(&mut self, record: &SegmentRecord) -> Result<(), String> {
        self.add(record.device, record.part()?)
    }

    pub(super) fn add(&mut self, device: DeviceIndex, part: SegmentPart) -> Result<(), String> {
        if self.0.len() >= MOST {
            return Err(format!("more than {MOST} segments of one moment"));
        }
        if part.reaches_beyond_last_address() {
            return Err("a segment beyond the last address".to_owned());
        }
        self.0.push((device, part));
        Ok(())
    }

    /// Returns the reading that a record ends.
    pub(super) fn end_record(
        &mut self,
        record: SegmentsRecord,
        time: TimeNs,
        tgid: Tgid,
    ) -> Result<SegmentReading, String> {
        let unread = record.unread.map(Into::into);
        self.end(record.records, &record.devices, unread, time, tgid)
    }

    /// Returns the reading, and checks the number of its records.
    pub(super) fn end(
        &mut self,
        announced: u64,
        devices: &[DeviceRecord],
        unread: Option<Arc<str>>,
        time: TimeNs,
        tgid: Tgid,
    ) -> Result<SegmentReading, String> {
        let pending = std::mem::take(&mut self.0);
        if pending.len() as u64 != announced {
            let here = pending.len();
            return Err(format!(
                "{announced} segments were listed, but {here} are there"
            ));
        }
        if devices.len() > MAX_DEVICES {
            return Err(format!("segments of more than {MAX_DEVICES} devices"));
        }
        if unread.as_ref().is_some_and(|text| text.len() > MAX_CONTEXT) {
            return Err("a reason of many bytes".to_owned());
        }
        let devices = devices.iter().map(|device| DeviceSegments {
            device: device.device,
            totals: Totals::of(device.allocated, device.reserved),
            active: Bytes(device.active),
            requested: Bytes(device.requested),
            segments: Vec::new(),
            awaiting: Vec::new(),
        });
        let mut devices: Vec<DeviceSegments> = devices.collect();
        for (device, part) in pending {
            let mut known = devices.iter_mut();
            let device = known.find(|known| known.device == device);
            let device = device.ok_or("a segment of a device without totals")?;
            match part {
                SegmentPart::Segment(segment) => device.segments.push(segment),
                SegmentPart::Awaiting(addr, size) => device.awaiting.push((addr, size)),
            }
        }
        Ok(SegmentReading {
            time,
            tgid,
            devices,
            unread,
        })
    }
}
