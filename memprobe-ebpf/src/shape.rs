//! The tensors that PyTorch makes: what was asked for, kept with the thread until its memory comes.
//!
//! All new tensors with memory of their own come from two functions. Either calls the allocator
//! once, on the same thread, for all bytes of the tensor, and nothing else allocates between:
//! `_empty_generic` and `empty_strided_generic` (aten/src/ATen/EmptyTensor.cpp@v2.15.0). So the next
//! block of that thread on that kind of device is the tensor's. A shape that is not followed by its
//! block would stick to another one:
//!
//! - A tensor without elements gets no memory: it leaves no shape.
//! - Where the sizes are refused (negative, or more bytes than there are), no block is as large: user space
//!   takes it for one without a tensor.
//! - Where memory runs out, the allocator's word of it takes the shape.
//! - A tensor of zeros that has no memory (`_efficientzerotensor`) comes with an allocator of its own
//!   and more dispatch keys than a plain one: it leaves no shape.
//! - Pinned memory comes from another allocator than that of the CPU, which is not heard: the shape stays
//!   until the thread's next tensor, and user space takes a block of the CPU for the tensor's only where it has
//!   exactly its bytes.
//! - Where CUDA itself fails (`cudaMalloc` with another error than that there is no memory), the shape
//!   stays until the thread's next tensor; user space checks that a block fits the bytes asked for.

use aya_ebpf::helpers::generated::bpf_probe_read_user as read_user_raw;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{
    DEVICE_TYPE_CPU, DEVICE_TYPE_CUDA, MAX_DIMENSIONS, MemoryRecord, ShapeRecord, process_flag,
    shape_layout,
};

use crate::lifecycle::watched;
use crate::read::user_words;
use crate::ring::{send, send_shaped};
use crate::thread::{Caller, Thread};

/// What one of the functions was asked for.
struct Asked {
    keys: u64,
    dtype: u8,
    sizes: u64,
    dimensions: u64,
}

/// `TensorBase at::detail::empty_generic(IntArrayRef size, Allocator* allocator, DispatchKeySet ks,
/// ScalarType scalar_type, optional<MemoryFormat> memory_format)`; the result's address is the
/// hidden first argument.
#[uprobe]
pub fn empty_generic(ctx: ProbeContext) -> u32 {
    let asked = Asked {
        sizes: ctx.arg::<u64>(1).unwrap_or(0),
        dimensions: ctx.arg::<u64>(2).unwrap_or(0),
        keys: ctx.arg::<u64>(4).unwrap_or(0),
        dtype: ctx.arg::<u64>(5).unwrap_or(0) as u8,
    };
    if let Some(shape) = begin(&asked) {
        shape.layout = shape_layout::DENSE;
    }
    0
}

/// `TensorBase at::detail::empty_strided_generic(IntArrayRef size, IntArrayRef stride, Allocator*
/// allocator, DispatchKeySet ks, ScalarType scalar_type)`; the last two come on the stack. The probe
/// sits where the stack pointer is that of the entry.
#[uprobe]
pub fn empty_strided_generic(ctx: ProbeContext) -> u32 {
    // SAFETY: the context of a uprobe holds the registers.
    let stack_pointer = unsafe { (*ctx.regs).rsp };
    let Some([keys, dtype]) = user_words(stack_pointer + 8) else {
        return 0;
    };
    let asked = Asked {
        sizes: ctx.arg::<u64>(1).unwrap_or(0),
        dimensions: ctx.arg::<u64>(2).unwrap_or(0),
        keys,
        dtype: dtype as u8,
    };
    let Some(shape) = begin(&asked) else {
        return 0;
    };
    let mut strides = [0u64; MAX_DIMENSIONS];
    let from = ctx.arg::<u64>(3).unwrap_or(0);
    // SAFETY: room for the sizes of all dimensions that are told.
    if !unsafe { read_sizes(strides.as_mut_ptr(), from, asked.dimensions) } {
        return 0;
    }
    // As `computeStorageNbytes` (aten/src/ATen/EmptyTensor.cpp@v2.15.0) has it.
    let mut extent = 1u64;
    for at in 0..MAX_DIMENSIONS {
        if (at as u64) < asked.dimensions {
            let steps = shape.sizes[at].wrapping_sub(1);
            extent = extent.wrapping_add(steps.wrapping_mul(strides[at]));
        }
    }
    shape.extent = extent;
    shape.layout = shape_layout::STRIDED;
    0
}

/// Takes note of a tensor of a kind that is watched. Its layout is still to be set.
#[inline(always)]
fn begin(asked: &Asked) -> Option<&'static mut ShapeRecord> {
    let device_type = device_type_of(asked.keys)?;
    let caller = Caller::current();
    let room = match caller.known_thread() {
        // Only threads of watched processes have rooms.
        Some(room) if device_type == DEVICE_TYPE_CUDA => room,
        _ => {
            let process = watched(caller)?;
            if device_type == DEVICE_TYPE_CPU && process.flags & process_flag::CPU == 0 {
                return None;
            }
            caller.thread()?
        }
    };
    // SAFETY: a map value; no other thread has this tid, so nobody else uses it now.
    let shape = unsafe { &mut (*room).shape };
    shape.layout = shape_layout::UNREADABLE;
    shape.device_type = device_type;
    shape.dtype = asked.dtype;
    shape.dimensions = asked.dimensions.min(u64::from(u32::MAX)) as u32;
    // SAFETY: room for the sizes of all dimensions that are told.
    let read = unsafe { read_sizes(shape.sizes.as_mut_ptr(), asked.sizes, asked.dimensions) };
    if !read {
        return None;
    }
    for at in 0..MAX_DIMENSIONS {
        if (at as u64) < asked.dimensions && shape.sizes[at] == 0 {
            shape.layout = shape_layout::NONE;
            return None;
        }
    }
    Some(shape)
}

/// Reads as many numbers as there are dimensions and room for.
#[inline(always)]
unsafe fn read_sizes(into: *mut u64, from: u64, dimensions: u64) -> bool {
    let bytes = if dimensions < MAX_DIMENSIONS as u64 {
        (dimensions as u32 & (MAX_DIMENSIONS as u32 - 1)) * 8
    } else {
        MAX_DIMENSIONS as u32 * 8
    };
    // SAFETY: the caller passes room for MAX_DIMENSIONS numbers; the helper checks the address.
    bytes == 0 || unsafe { read_user_raw(into.cast(), bytes, from as *const _) == 0 }
}

/// The type of device of a plain tensor's keys: one bit for the backend and one that says "dense"
/// (c10/core/DispatchKeySet.h: bit 15 up to 2.7, bit 16 from 2.8 on).
#[inline(always)]
fn device_type_of(keys: u64) -> Option<u8> {
    const CPU: u64 = 1;
    const CUDA: u64 = 1 << 1;
    const DENSE: u64 = 1 << 15;
    const DENSE_2_8: u64 = 1 << 16;
    match keys & !(DENSE | DENSE_2_8) {
        _ if keys & (DENSE | DENSE_2_8) == 0 => None,
        CPU => Some(DEVICE_TYPE_CPU),
        CUDA => Some(DEVICE_TYPE_CUDA),
        _ => None,
    }
}

/// Whether a tensor of that type of device waits for its memory in this thread.
#[inline(always)]
pub fn has_shape(room: *mut Thread, device_type: u8) -> bool {
    // SAFETY: a map value; no other thread has this tid, so nobody else uses it now.
    let shape = unsafe { &(*room).shape };
    shape.layout != shape_layout::NONE && shape.device_type == device_type
}

/// Sends an event of the allocator, with the shape of the tensor that this thread has begun to make.
#[inline(always)]
pub fn send_with_shape(record: MemoryRecord, device_type: u8, room: *mut Thread) {
    if !has_shape(room, device_type) {
        send(record);
        return;
    }
    // SAFETY: a map value; no other thread has this tid, so nobody else uses it now.
    let shape = unsafe { &mut (*room).shape };
    send_shaped(record, shape);
    shape.layout = shape_layout::NONE;
}
