//! Serialized answers of the driver about the GPUs of a process.

use serde::{Deserialize, Serialize};

use super::MAX_CONTEXT;
use super::segments::MAX_DEVICES;
use crate::event::{Bytes, DeviceIndex, DriverCount, DriverReading, Tgid, TimeNs};

/// A [`DriverReading`].
#[derive(Serialize, Deserialize)]
pub(crate) struct DriverRecord {
    asked_ns: u64,
    devices: Vec<DriverDeviceRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct DriverDeviceRecord {
    device: DeviceIndex,
    total: u64,
    used: u64,
    process: Option<u64>,
}

impl From<&DriverReading> for DriverRecord {
    fn from(reading: &DriverReading) -> Self {
        let devices = reading.devices.iter().map(|memory| DriverDeviceRecord {
            device: memory.device,
            total: memory.total.0,
            used: memory.used.0,
            process: memory.process.map(|process| process.0),
        });
        Self {
            asked_ns: reading.asked.0,
            devices: devices.collect(),
            unread: reading.unread.as_deref().map(str::to_owned),
        }
    }
}

impl DriverRecord {
    /// Returns the answer. An error describes the fault in a few words.
    pub(super) fn at(self, time: TimeNs, tgid: Tgid) -> Result<DriverReading, String> {
        if self.devices.len() > MAX_DEVICES {
            return Err(format!("memory of more than {MAX_DEVICES} devices"));
        }
        if self
            .unread
            .as_ref()
            .is_some_and(|text| text.len() > MAX_CONTEXT)
        {
            return Err("a reason of many bytes".to_owned());
        }
        let devices = self.devices.into_iter().map(|memory| DriverCount {
            device: memory.device,
            total: Bytes(memory.total),
            used: Bytes(memory.used),
            process: memory.process.map(Bytes),
        });
        Ok(DriverReading {
            time,
            asked: TimeNs(self.asked_ns),
            tgid,
            devices: devices.collect(),
            unread: self.unread.map(Into::into),
        })
    }
}
