//! Text for the physical GPUs behind the ordinals of a process.

use super::table::Cell;
use super::text::clean;
use crate::event::{DeviceIdentity, DeviceIndex, Gpu, Target};

/// Digits of a UUID that people are shown, as CUDA takes them: `GPU-8932f937`.
const SHORT: usize = 12;

/// Returns the number in `nvidia-smi`: `3`, `3:1` for MIG device 1 of GPU 3, `3:?` if that is unknown. An inferred
/// one ends in `?`.
pub fn gpu_number(gpu: &Gpu) -> String {
    let number = match (gpu.index, &gpu.uuid) {
        (Some(index), _) => index.to_string(),
        (None, Some(uuid)) => clean(uuid).chars().take(SHORT).collect(),
        (None, None) => "?".to_owned(),
    };
    let mig = gpu.mig.as_ref().map(|mig| match mig.index {
        Some(index) => format!(":{index}"),
        None => ":?".to_owned(),
    });
    let mark = if gpu.source.is_inferred() { "?" } else { "" };
    format!("{number}{}{mark}", mig.unwrap_or_default())
}

/// Returns `cuda:0`, or `cuda:0 = GPU 3` if the GPU is known.
pub fn device_name(target: &Target, device: DeviceIndex) -> String {
    match target.gpu(device) {
        Some(gpu) => format!("{device} = {}", gpu_name(gpu)),
        None => device.to_string(),
    }
}

fn gpu_name(gpu: &Gpu) -> String {
    match gpu.index {
        Some(_) => format!("GPU {}", gpu_number(gpu)),
        None => gpu_number(gpu),
    }
}

/// Returns `cuda:0 is GPU 3  GPU-8932f937-…  00000000:3B:00.0`, or why that is unknown.
pub fn identity_line(identity: &DeviceIdentity) -> String {
    let device = identity.device;
    let Some(gpu) = &identity.gpu else {
        let reason = identity.unknown.as_deref().unwrap_or_default();
        return format!("{device}: unknown GPU: {}", clean(reason));
    };
    let mig = gpu.mig.as_ref().and_then(|mig| mig.uuid.clone());
    // Without a number the UUID alone is the name.
    let name = gpu.index.map(|_| gpu_name(gpu));
    let ids = [name, gpu.uuid.clone(), mig, gpu.pci_bus_id.clone()];
    let ids: Vec<String> = ids.iter().flatten().map(|id| clean(id)).collect();
    let inferred = if gpu.source.is_inferred() {
        "  (inferred)"
    } else {
        ""
    };
    format!("{device} is {}{inferred}", ids.join("  "))
}

/// Returns the fields of JSON for the GPU behind an ordinal.
pub fn gpu_fields(target: &Target, device: DeviceIndex) -> [(&'static str, Cell<'_>); 6] {
    let identity = target.identity(device);
    let gpu = target.gpu(device);
    let mig = gpu.and_then(|gpu| gpu.mig.as_ref());
    let unknown = identity.and_then(|identity| identity.unknown.as_deref());
    // The MIG device's own UUID tells it from others of its GPU.
    let uuid = mig
        .and_then(|mig| mig.uuid.as_deref())
        .or_else(|| gpu?.uuid.as_deref());
    [
        // Number in `nvidia-smi`; null if unknown.
        ("gpu", gpu.and_then(|gpu| gpu.index).into()),
        ("mig_device", Cell::if_known(mig.and_then(|mig| mig.index))),
        ("uuid", uuid.into()),
        (
            "pci_bus_id",
            gpu.and_then(|gpu| gpu.pci_bus_id.as_deref()).into(),
        ),
        // How the GPU is known; `environment` is inferred.
        ("gpu_source", gpu.map(|gpu| gpu.source.as_str()).into()),
        ("gpu_unknown", unknown.into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{IdentitySource, MigIdentity};

    fn gpu(index: Option<u32>, mig: Option<Option<u32>>, source: IdentitySource) -> Gpu {
        Gpu {
            index,
            uuid: Some("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6".to_owned()),
            pci_bus_id: Some("00000000:3B:00.0".to_owned()),
            mig: mig.map(|index| MigIdentity { index, uuid: None }),
            memory: None,
            source,
        }
    }

    #[test]
    fn a_number_is_that_of_nvidia_smi_and_marked_if_it_is_inferred() {
        use IdentitySource::{Environment, Properties};
        let number = |index, mig, source| gpu_number(&gpu(index, mig, source));
        assert_eq!(number(Some(3), None, Properties), "3");
        assert_eq!(number(Some(3), None, Environment), "3?");
        assert_eq!(number(Some(3), Some(Some(1)), Properties), "3:1");
        assert_eq!(number(Some(3), Some(None), Properties), "3:?");
        assert_eq!(number(None, None, Properties), "GPU-8932f937");
    }

    #[test]
    fn a_line_has_all_identifiers() {
        let line = |index| {
            let gpu = gpu(index, None, IdentitySource::Properties);
            identity_line(&DeviceIdentity {
                device: DeviceIndex(0),
                gpu: Some(gpu),
                unknown: None,
            })
        };
        let ids = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6  00000000:3B:00.0";
        assert_eq!(line(Some(3)), format!("cuda:0 is GPU 3  {ids}"));
        assert_eq!(line(None), format!("cuda:0 is {ids}"));
    }

    #[test]
    fn an_unknown_gpu_has_a_reason() {
        let line = identity_line(&DeviceIdentity::unknown(DeviceIndex(1), "no\x1bdriver"));
        assert!(line.starts_with("cuda:1: unknown GPU: no"), "{line}");
        assert!(!line.contains('\x1b'));
    }
}
