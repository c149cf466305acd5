//! Calls into NVML that nvml-wrapper does not make in the right form.
//!
//! Everything unsafe of this module is here: a buffer of the right size and alignment for each call.

use std::mem::size_of;
use std::ptr;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

use super::form::{BYTES_AN_ENTRY, PATTERN, RawList};
use super::query::{
    Asked, DeviceQuery, EntryPoint, ListKind, MigDevice, QueryRefusal, RawIdentity, RawMemory,
};

/// `nvmlMemory_t` (nvml.h 13.5), in bytes.
#[repr(C)]
#[derive(Default)]
struct MemoryV1 {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t` (nvml.h 13.5), in bytes.
#[repr(C)]
#[derive(Default)]
struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessDetailList_v1_t` (nvml.h 13.5).
#[repr(C)]
struct DetailList {
    version: u32,
    mode: u32,
    count: u32,
    entries: *mut u64,
}

const _: () = assert!(size_of::<MemoryV1>() == 24 && size_of::<MemoryV2>() == 40);

/// `NVML_STRUCT_VERSION`: the size of the structure and the number of its version.
const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

/// `nvmlProcessMode_t`.
const fn mode(kind: ListKind) -> u32 {
    match kind {
        ListKind::Compute => 0,
        ListKind::Mps => 2,
    }
}

/// Room for a list, aligned as its entries are and filled with the pattern.
struct Buffer(Vec<u64>);

impl Buffer {
    fn for_entries(capacity: u32) -> Self {
        let word = u64::from_ne_bytes([PATTERN; 8]);
        let words = (capacity as usize).saturating_mul(BYTES_AN_ENTRY / size_of::<u64>());
        Self(vec![word; words])
    }

    fn list(self, count: u32, capacity: u32) -> RawList {
        let bytes = self.0.into_iter().flat_map(u64::to_ne_bytes);
        RawList {
            count,
            capacity,
            bytes: bytes.collect(),
        }
    }
}

/// The outcome of a call that fills a list, `count` being what the driver left there.
fn listed(code: u32, count: u32, capacity: u32, buffer: Buffer) -> Asked<RawList> {
    match nvml_try(code) {
        Ok(()) => Ok(buffer.list(count, capacity)),
        Err(NvmlError::InsufficientSize(_)) => Err(QueryRefusal::Room(count)),
        Err(error) => Err(error.into()),
    }
}

/// Calls one of the functions that take a device, a count and an array of entries.
///
/// # Safety
/// `function` must be one of `nvmlDeviceGet…RunningProcesses…` and `device` a handle of its library.
unsafe fn fill<D, T, E: std::fmt::Display>(
    function: &Result<unsafe extern "C" fn(D, *mut u32, *mut T) -> u32, E>,
    (device, capacity): (D, u32),
) -> Asked<RawList> {
    let Ok(function) = function else {
        return Err(QueryRefusal::Missing);
    };
    let mut buffer = Buffer::for_entries(capacity);
    let mut count = capacity;
    // SAFETY: the caller's promise. The buffer has at least twice the bytes of the longest known
    // entry for each of the `capacity` entries that the function may write.
    let code = unsafe { function(device, &mut count, buffer.0.as_mut_ptr().cast()) };
    listed(code, count, capacity, buffer)
}

impl DeviceQuery for Device<'_> {
    fn processes(&self, kind: ListKind, point: EntryPoint, capacity: u32) -> Asked<RawList> {
        use EntryPoint::{DetailList, V1, V2, V3};
        use ListKind::{Compute, Mps};
        let lib = self.nvml().lib();
        // SAFETY: the handle is this device's and its library is open as long as `self` lives; each
        // function is one of those that `fill` is for.
        unsafe {
            let asked = (self.handle(), capacity);
            match (point, kind) {
                (V3, Compute) => fill(&lib.nvmlDeviceGetComputeRunningProcesses_v3, asked),
                (V2, Compute) => fill(&lib.nvmlDeviceGetComputeRunningProcesses_v2, asked),
                (V1, Compute) => fill(&lib.nvmlDeviceGetComputeRunningProcesses, asked),
                (V3, Mps) => fill(&lib.nvmlDeviceGetMPSComputeRunningProcesses_v3, asked),
                (V2, Mps) => fill(&lib.nvmlDeviceGetMPSComputeRunningProcesses_v2, asked),
                (V1, Mps) => fill(&lib.nvmlDeviceGetMPSComputeRunningProcesses, asked),
                (DetailList, _) => details(self, kind, capacity),
            }
        }
    }

    fn memory_v2(&self) -> Asked<RawMemory> {
        let function = nvml_sym(self.nvml().lib().nvmlDeviceGetMemoryInfo_v2.as_ref())?;
        let mut memory = MemoryV2 {
            version: version::<MemoryV2>(2),
            ..MemoryV2::default()
        };
        // SAFETY: the handle is this device's; the structure is the one that its version names.
        nvml_try(unsafe { function(self.handle(), ptr::from_mut(&mut memory).cast()) })?;
        Ok(RawMemory {
            total: memory.total,
            reserved: Some(memory.reserved),
            free: memory.free,
            used: memory.used,
        })
    }

    fn memory_v1(&self) -> Asked<RawMemory> {
        let function = nvml_sym(self.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
        let mut memory = MemoryV1::default();
        // SAFETY: the handle is this device's; the structure is the function's.
        nvml_try(unsafe { function(self.handle(), ptr::from_mut(&mut memory).cast()) })?;
        Ok(RawMemory {
            total: memory.total,
            reserved: None,
            free: memory.free,
            used: memory.used,
        })
    }

    fn mig_devices(&self) -> Vec<MigDevice<Self>> {
        // Zero outside of MIG mode, and an error before R450.
        let count = self.mig_device_count().unwrap_or(0);
        let devices = (0..count.min(super::MAX_DEVICES))
            .filter_map(|index| Some((index, self.mig_device_by_index(index).ok()?)))
            .map(|(index, device)| {
                let function = &self.nvml().lib().nvmlDeviceGetGpuInstanceId;
                // SAFETY: the handle is the device's, and its library is open.
                let gpu_instance = unsafe { instance(function, device.handle()) };
                MigDevice {
                    device,
                    gpu_instance,
                    index,
                }
            });
        devices.collect()
    }

    fn identity(&self) -> RawIdentity {
        let mode = self.mig_mode();
        let function = &self.nvml().lib().nvmlDeviceGetComputeInstanceId;
        RawIdentity {
            uuid: self.uuid().ok(),
            pci_bus_id: self.pci_info().ok().map(|pci| pci.bus_id),
            minor: self.minor_number().ok(),
            // Zero for a GPU without MIG; an error for a MIG device.
            is_in_mig_mode: mode.is_ok_and(|mode| mode.current != 0),
            // SAFETY: the handle is this device's, and its library is open.
            compute_instance: unsafe { instance(function, self.handle()) },
        }
    }
}

fn details(device: &Device<'_>, kind: ListKind, capacity: u32) -> Asked<RawList> {
    let lib = device.nvml().lib();
    let function = nvml_sym(lib.nvmlDeviceGetRunningProcessDetailList.as_ref())?;
    let mut buffer = Buffer::for_entries(capacity);
    let mut list = DetailList {
        version: version::<DetailList>(1),
        mode: mode(kind),
        count: capacity,
        entries: buffer.0.as_mut_ptr(),
    };
    // SAFETY: the handle is the device's; the structure is the one that its version names, and its
    // array has more than 32 bytes for each entry that it says there is room for.
    let code = unsafe { function(device.handle(), ptr::from_mut(&mut list).cast()) };
    listed(code, list.count, capacity, buffer)
}

/// Asks a MIG device for the number of its GPU instance or compute instance.
///
/// # Safety
/// `function` must be one of `nvmlDeviceGet…InstanceId` and `device` a handle of its library.
unsafe fn instance<D, E>(
    function: &Result<unsafe extern "C" fn(D, *mut u32) -> u32, E>,
    device: D,
) -> Option<u32> {
    let function = function.as_ref().ok()?;
    let mut id = 0;
    // SAFETY: the caller's promise; both functions write one number.
    nvml_try(unsafe { function(device, &mut id) }).ok()?;
    Some(id)
}
