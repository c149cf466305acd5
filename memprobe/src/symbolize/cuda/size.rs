//! How much memory a call into CUDA asked for.

use memprobe_common::CudaRecord;

use crate::cuda::Size;
use crate::event::Bytes;

/// Bytes that an allocating call gave out. What the target passed may be anything: a product that
/// fits no 64 bits stops at the largest number.
pub fn of(size: Size, call: &CudaRecord) -> Bytes {
    let bytes = match size {
        Size::Argument => call.args[1],
        Size::Pitched => call.second_out.saturating_mul(call.args[3]),
        Size::PitchedExtent => {
            let [_, height, depth] = call.on_stack;
            volume(call.out[1], height, depth)
        }
        Size::RuntimeArray => {
            let width = call.args[2].saturating_mul(channels(call.description));
            volume(width, call.args[3], 1)
        }
        Size::RuntimeArray3d => {
            let [width, height, depth] = call.on_stack;
            volume(
                width.saturating_mul(channels(call.description)),
                height,
                depth,
            )
        }
        Size::DriverArray => {
            let [width, height, element, _] = call.description;
            volume(width.saturating_mul(element_size(element)), height, 1)
        }
        Size::DriverArray3d => {
            let [width, height, depth, element] = call.description;
            volume(width.saturating_mul(element_size(element)), height, depth)
        }
    };
    Bytes(bytes)
}

/// A dimension of an array that is 0 is one that the array does not have.
fn volume(row: u64, height: u64, depth: u64) -> u64 {
    row.saturating_mul(height.max(1))
        .saturating_mul(depth.max(1))
}

/// Bytes of an element of `cudaChannelFormatDesc { int x, y, z, w; enum f; }`: its bits by channel
/// (driver_types.h).
fn channels(words: [u64; 4]) -> u64 {
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
        let four_floats = [32 << 32 | 32, 32 << 32 | 32, 2, 0];
        let call = CudaRecord {
            args: [1, 2, 64, 0, 0, 0],
            description: four_floats,
            on_stack: [8, 4, 2],
            ..call()
        };
        assert_eq!(of(Size::RuntimeArray, &call), Bytes(64 * 16));
        assert_eq!(of(Size::RuntimeArray3d, &call), Bytes(8 * 4 * 2 * 16));
        let halves = 2 << 32 | 0x10;
        let call = CudaRecord {
            description: [10, 3, halves, 0],
            ..call
        };
        assert_eq!(of(Size::DriverArray, &call), Bytes(120));
        let call = CudaRecord {
            description: [10, 3, 2, halves],
            ..call
        };
        assert_eq!(of(Size::DriverArray3d, &call), Bytes(240));
    }

    #[test]
    fn numbers_beyond_all_measure_do_not_overflow() {
        let call = CudaRecord {
            args: [u64::MAX; 6],
            second_out: u64::MAX,
            out: [u64::MAX; 4],
            on_stack: [u64::MAX; 3],
            description: [u64::MAX; 4],
            ..call()
        };
        for size in [
            Size::Pitched,
            Size::PitchedExtent,
            Size::RuntimeArray,
            Size::RuntimeArray3d,
        ] {
            assert_eq!(of(size, &call), Bytes(u64::MAX));
        }
        assert_eq!(
            of(Size::DriverArray, &call),
            Bytes(0),
            "a format without a size"
        );
    }
}
