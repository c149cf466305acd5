//! Bytes that a call into CUDA asked for.

use memprobe_common::CudaRecord;

use crate::cuda::calls::{Effect, Lifetime, Size};
use crate::event::{Bytes, CudaMemoryKind};

/// Flags of an array (`cuda.h`; `driver_types.h` has the same numbers).
mod flag {
    /// `CUDA_ARRAY3D_LAYERED`: the depth is the number of layers.
    pub const LAYERED: u32 = 0x01;
    /// `CUDA_ARRAY3D_CUBEMAP`: the depth is the number of faces.
    pub const CUBEMAP: u32 = 0x04;
    /// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: "without physical backing memory", which
    /// `cuMemCreate` gives (CUDA Runtime API, `cudaMalloc3DArray`).
    pub const UNBACKED: u32 = 0x40 | 0x80;
}

/// Bytes that an allocating call gave out. What the target passed may be anything: a product that fits no 64 bits stops
/// at the largest number. 0 where an array has no memory of its own, or its size cannot be told.
pub fn of(size: Size, call: &CudaRecord) -> Bytes {
    let [_, second, third, fourth, fifth, _] = call.args;
    let bytes = match size {
        Size::Argument => second,
        Size::Pitched => call.second_out.saturating_mul(fourth),
        Size::PitchedExtent => {
            let [_, height, depth] = call.on_stack;
            volume([call.out[1], height, depth], 1)
        }
        Size::RuntimeArray => runtime_array(call, [third, fourth, 0], fifth).bytes(),
        Size::RuntimeArray3d => runtime_array(call, call.on_stack, third).bytes(),
        Size::RuntimeMipmapped => {
            runtime_array(call, call.on_stack, fourth).mipmapped_bytes(third as u32)
        }
        Size::DriverArray => {
            let [width, height, element, ..] = call.description;
            volume([width, height, 1], element_size(element))
        }
        Size::DriverArray3d => driver_array(call).bytes(),
        Size::DriverMipmapped => driver_array(call).mipmapped_bytes(third as u32),
    };
    Bytes(bytes)
}

/// Memory that a call asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedMemory {
    pub size: Bytes,
    pub space: CudaMemoryKind,
    /// CUDA's own pools were to give it.
    pub is_from_a_pool: bool,
}

/// Returns the memory that a failed call asked for, by its arguments alone; `None` if the function gives out none. The
/// pitch of rows is not known then.
pub fn wanted(effect: Effect, call: &CudaRecord) -> Option<RequestedMemory> {
    let [_, second, third, fourth, ..] = call.args;
    let (size, space, lifetime) = match effect {
        Effect::Allocates {
            space,
            size,
            lifetime,
        } => {
            let bytes = match size {
                Size::Pitched => Bytes(third.saturating_mul(fourth)),
                Size::PitchedExtent => Bytes(volume(call.on_stack, 1)),
                _ => of(size, call),
            };
            (bytes, space, lifetime)
        }
        Effect::Registers => (Bytes(second), CudaMemoryKind::Registered, Lifetime::Context),
        Effect::CreatesPhysical | Effect::Maps => {
            (Bytes(second), CudaMemoryKind::Virtual, Lifetime::Context)
        }
        _ => return None,
    };
    Some(RequestedMemory {
        size,
        space,
        is_from_a_pool: lifetime == Lifetime::Process,
    })
}

struct Array {
    /// Width, height, depth, in elements; 0 for a dimension that it does not have.
    extent: [u64; 3],
    element: u64,
    flags: u32,
}

/// `cudaChannelFormatDesc` and an extent.
fn runtime_array(call: &CudaRecord, extent: [u64; 3], flags: u64) -> Array {
    Array {
        extent,
        element: channels(call.description),
        flags: flags as u32,
    }
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
fn driver_array(call: &CudaRecord) -> Array {
    let [width, height, depth, element, flags] = call.description;
    Array {
        extent: [width, height, depth],
        element: element_size(element),
        flags: flags as u32,
    }
}

impl Array {
    fn bytes(&self) -> u64 {
        if self.flags & flag::UNBACKED != 0 {
            return 0;
        }
        volume(self.extent, self.element)
    }

    /// Bytes of all levels, each of which has half the width, height and depth of the one before, rounded
    /// down, and at least 1; layers and faces stay as many. The number of levels "is clamped to the range
    /// [1, 1 + floor(log2(max(width, height, depth)))]" (CUDA Driver API, `cuMipmappedArrayCreate`).
    fn mipmapped_bytes(&self, levels: u32) -> u64 {
        if self.flags & flag::UNBACKED != 0 {
            return 0;
        }
        let [width, height, depth] = self.extent;
        let in_layers = self.flags & (flag::LAYERED | flag::CUBEMAP) != 0;
        let flat = 1 + width.max(height).max(1).ilog2();
        let deep = 1 + width.max(height).max(depth).max(1).ilog2();
        let levels = levels.clamp(1, deep);
        if in_layers && levels > flat {
            // It is not documented whether layers count as depth there.
            return 0;
        }
        let level = |level: u32| {
            let depth = if in_layers { depth } else { depth >> level };
            // A dimension that got too small stays 1.
            volume(
                [(width >> level).max(1), height >> level, depth],
                self.element,
            )
        };
        (0..levels).map(level).fold(0, u64::saturating_add)
    }
}

/// Bytes of so many elements. A height or depth of 0 is a dimension that is not there.
fn volume([width, height, depth]: [u64; 3], element: u64) -> u64 {
    width
        .saturating_mul(element)
        .saturating_mul(height.max(1))
        .saturating_mul(depth.max(1))
}

/// Bytes of an element of `cudaChannelFormatDesc { int x, y, z, w; enum f; }`: its bits by channel (driver_types.h).
fn channels(words: [u64; 5]) -> u64 {
    let bits = [words[0], words[0] >> 32, words[1], words[1] >> 32];
    let bits: u64 = bits.iter().map(|bits| u64::from(*bits as u32)).sum();
    bits / 8
}

/// Bytes of an element of `CUarray_format Format; unsigned int NumChannels;`; 0 for a format whose
/// elements have no size of their own (cuda.h).
fn element_size(word: u64) -> u64 {
    let bytes = match word as u32 {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 0,
    };
    bytes * (word >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> CudaRecord {
        CudaRecord::default()
    }

    #[test]
    fn a_plain_allocation_says_its_size() {
        let call = CudaRecord {
            args: [1, 4096, 0, 0, 0, 0],
            ..call()
        };
        assert_eq!(of(Size::Argument, &call), Bytes(4096));
    }

    #[test]
    fn a_pitched_one_is_as_large_as_its_rows_with_their_padding() {
        let call = CudaRecord {
            args: [1, 2, 100, 7, 0, 0],
            second_out: 512,
            ..call()
        };
        assert_eq!(of(Size::Pitched, &call), Bytes(3584));
        let call = CudaRecord {
            out: [0x7000, 512, 100, 3],
            on_stack: [100, 3, 5],
            ..call
        };
        assert_eq!(of(Size::PitchedExtent, &call), Bytes(512 * 3 * 5));
    }

    #[test]
    fn an_array_is_its_elements() {
        let four_floats = [32 << 32 | 32, 32 << 32 | 32, 2, 0, 0];
        let call = CudaRecord {
            args: [1, 2, 64, 0, 0, 0],
            description: four_floats,
            on_stack: [8, 4, 2],
            ..call()
        };
        assert_eq!(of(Size::RuntimeArray, &call), Bytes(64 * 16));
        let without_flags = CudaRecord {
            args: [1, 2, 0, 0, 0, 0],
            ..call
        };
        assert_eq!(
            of(Size::RuntimeArray3d, &without_flags),
            Bytes(8 * 4 * 2 * 16)
        );
        let halves = 2 << 32 | 0x10;
        let call = CudaRecord {
            description: [10, 3, halves, 0, 0],
            ..call
        };
        assert_eq!(of(Size::DriverArray, &call), Bytes(120));
        let call = CudaRecord {
            description: [10, 3, 2, halves, 0],
            ..call
        };
        assert_eq!(of(Size::DriverArray3d, &call), Bytes(240));
    }

    #[test]
    fn numbers_beyond_all_measure_do_not_overflow() {
        let call = CudaRecord {
            args: [u64::MAX, u64::MAX, u64::MAX, u64::MAX, 0, u64::MAX],
            second_out: u64::MAX,
            out: [u64::MAX; 4],
            on_stack: [u64::MAX; 3],
            description: [u64::MAX; 5],
            ..call()
        };
        for size in [Size::Pitched, Size::PitchedExtent, Size::RuntimeArray] {
            assert_eq!(of(size, &call), Bytes(u64::MAX));
        }
        for unbacked in [
            Size::RuntimeArray3d,
            Size::RuntimeMipmapped,
            Size::DriverArray3d,
            Size::DriverMipmapped,
        ] {
            assert_eq!(of(unbacked, &call), Bytes(0));
        }
        let huge = Array {
            extent: [u64::MAX; 3],
            element: 8,
            flags: 0,
        };
        assert_eq!(huge.mipmapped_bytes(u32::MAX), u64::MAX);
        assert_eq!(
            of(Size::DriverArray, &call),
            Bytes(0),
            "a format without a size"
        );
    }

    fn array(extent: [u64; 3], flags: u32) -> Array {
        Array {
            extent,
            element: 4,
            flags,
        }
    }

    #[test]
    fn a_mipmapped_array_is_the_sum_of_its_levels() {
        assert_eq!(array([10, 0, 0], 0).mipmapped_bytes(3), 4 * (10 + 5 + 2));
        assert_eq!(
            array([10, 3, 0], 0).mipmapped_bytes(4),
            4 * (30 + 5 + 2 + 1)
        );
        assert_eq!(array([4, 8, 2], 0).mipmapped_bytes(3), 4 * (64 + 2 * 4 + 2));
        assert_eq!(
            array([10, 3, 0], 0).mipmapped_bytes(0),
            4 * 30,
            "at least 1"
        );
        assert_eq!(
            array([10, 3, 0], 0).mipmapped_bytes(99),
            4 * (30 + 5 + 2 + 1),
            "1 + floor(log2(10)) at most"
        );
        assert_eq!(
            array([2, 1, 9], 0).mipmapped_bytes(99),
            4 * (18 + 4 + 2 + 1),
            "the depth counts too"
        );
    }

    #[test]
    fn layers_and_faces_of_a_mipmapped_array_are_not_halved() {
        for flags in [flag::LAYERED, flag::CUBEMAP, flag::LAYERED | flag::CUBEMAP] {
            let cube = array([8, 8, 12], flags);
            assert_eq!(cube.mipmapped_bytes(2), 4 * 12 * (64 + 16));
            assert_eq!(cube.mipmapped_bytes(9), 4 * 12 * (64 + 16 + 4 + 1));
        }
        let more_layers_than_width = array([8, 0, 600], flag::LAYERED);
        assert_eq!(
            more_layers_than_width.mipmapped_bytes(4),
            4 * 600 * (8 + 4 + 2 + 1)
        );
        assert_eq!(
            more_layers_than_width.mipmapped_bytes(5),
            0,
            "not documented"
        );
    }

    #[test]
    fn a_mipmapped_array_says_its_levels_and_flags_in_either_interface() {
        let one_float = [32, 0, 2, 0, 0];
        let call = CudaRecord {
            args: [1, 2, 7 << 32 | 2, 0, 0, 0],
            description: one_float,
            on_stack: [6, 4, 2],
            ..call()
        };
        assert_eq!(of(Size::RuntimeMipmapped, &call), Bytes(4 * (48 + 6)));
        let layered = CudaRecord {
            args: [1, 2, 2, flag::LAYERED.into(), 0, 0],
            ..call
        };
        assert_eq!(of(Size::RuntimeMipmapped, &layered), Bytes(4 * (48 + 12)));
        let float = 1 << 32 | 0x20;
        let driver = CudaRecord {
            description: [6, 4, 2, float, 7 << 32],
            ..call
        };
        assert_eq!(of(Size::DriverMipmapped, &driver), Bytes(4 * (48 + 6)));
        let layered = CudaRecord {
            description: [6, 4, 2, float, flag::LAYERED.into()],
            ..driver
        };
        assert_eq!(of(Size::DriverMipmapped, &layered), Bytes(4 * (48 + 12)));
    }

    #[test]
    fn an_array_without_backing_has_no_memory() {
        for flags in [0x40_u64, 0x80] {
            let call = CudaRecord {
                args: [1, 2, flags, flags, flags, 0],
                description: [32, 0, 2, 0, 0],
                on_stack: [6, 4, 2],
                ..call()
            };
            for size in [
                Size::RuntimeArray,
                Size::RuntimeArray3d,
                Size::RuntimeMipmapped,
            ] {
                assert_eq!(of(size, &call), Bytes(0));
            }
            let call = CudaRecord {
                description: [6, 4, 2, 1 << 32 | 0x20, flags],
                ..call
            };
            for size in [Size::DriverArray3d, Size::DriverMipmapped] {
                assert_eq!(of(size, &call), Bytes(0));
            }
        }
    }
}
