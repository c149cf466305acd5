//! Memory of a process's GPUs as the driver counts it, at one moment.

use std::sync::Arc;

use super::{Bytes, DeviceIndex, Tgid, TimeNs};

/// Answer of the driver about the GPUs of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverReading {
    /// Time of the answer.
    pub time: TimeNs,
    /// Time of the question. The driver counts at a moment in between.
    pub asked: TimeNs,
    pub tgid: Tgid,
    /// Devices whose GPU is known and answered.
    pub devices: Vec<DriverCount>,
    /// Reason why devices may be missing; `None` if none is.
    pub unread: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverCount {
    pub device: DeviceIndex,
    /// Memory of the GPU.
    pub total: Bytes,
    /// Bytes of all processes.
    pub used: Bytes,
    /// Bytes of this process; `None` if the driver does not say.
    pub process: Option<Bytes>,
}
