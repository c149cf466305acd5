//! The tensors that PyTorch makes: each request, kept with the thread until its memory is allocated.
//!
//! All new tensors with memory of their own come from two functions. Either calls the allocator
//! once, on the same thread, for all bytes of the tensor, and nothing else allocates between:
//! `_empty_generic` and `empty_strided_generic` (aten/src/ATen/EmptyTensor.cpp@v2.15.0). So the next
//! block of that thread on that kind of device is the tensor's. A shape without a block would be taken for the
//! next block's:
//!
//! - A tensor without elements gets no memory: the program keeps no shape.
//! - If PyTorch refuses the sizes (negative, or more bytes than there are), no block is as large: user space
//!   then attributes the block to no tensor.
//! - If memory runs out, the allocator's report of it takes the shape.
//! - A tensor of zeros without memory (`_efficientzerotensor`) has an allocator of its own
//!   and more dispatch keys than a plain one: the program keeps no shape.
//! - Pinned memory comes from another allocator than that of the CPU, which is not probed. The shape stays
//!   until the thread's next tensor, and user space accepts a block of the CPU for the tensor only if it has
//!   exactly its bytes.
//! - If CUDA itself fails (`cudaMalloc` with another error than out of memory), the shape
//!   stays until the thread's next tensor; user space checks that a block fits the requested bytes.

use aya_ebpf::helpers::generated::bpf_probe_read_user as read_user_raw;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{
    DEVICE_TYPE_CPU, DEVICE_TYPE_CUDA, MAX_DIMENSIONS, MemoryRecord, ShapeRecord, process_flag,
    shape_layout,
};

use crate::context::{Caller, Entry as _, Registers as _};
use crate::process::watched;
use crate::read::user_words;
use crate::ring::{send_memory, send_shaped};
use crate::scratch;
use crate::state::Thread;

/// The request for a tensor.
struct Request {
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
    let request = Request {
        sizes: ctx.argument(1),
        dimensions: ctx.argument(2),
        keys: ctx.argument(4),
        dtype: ctx.argument(5) as u8,
    };
    if let Some(shape) = begin(&request) {
        shape.layout = shape_layout::DENSE;
    }
    0
}

/// `TensorBase at::detail::empty_strided_generic(IntArrayRef size, IntArrayRef stride, Allocator*
/// allocator, DispatchKeySet ks, ScalarType scalar_type)`; the last two are on the stack. At the probe
/// the stack pointer is still the entry's.
#[uprobe]
pub fn empty_strided_generic(ctx: ProbeContext) -> u32 {
    let Some([keys, dtype]) = user_words(ctx.stack_pointer() + 8) else {
        return 0;
    };
    let request = Request {
        sizes: ctx.argument(1),
        dimensions: ctx.argument(2),
        keys,
        dtype: dtype as u8,
    };
    let Some(shape) = begin(&request) else {
        return 0;
    };
    let mut strides = [0u64; MAX_DIMENSIONS];
    let from = ctx.argument(3);
    // SAFETY: space for MAX_DIMENSIONS numbers.
    if !unsafe { read_sizes(strides.as_mut_ptr(), from, request.dimensions) } {
        return 0;
    }
    // As in `computeStorageNbytes` (aten/src/ATen/EmptyTensor.cpp@v2.15.0).
    let mut extent = 1u64;
    for at in 0..MAX_DIMENSIONS {
        if (at as u64) < request.dimensions {
            let steps = shape.sizes[at].wrapping_sub(1);
            extent = extent.wrapping_add(steps.wrapping_mul(strides[at]));
        }
    }
    shape.extent = extent;
    shape.layout = shape_layout::STRIDED;
    0
}

/// Notes the request for a tensor on a watched kind of device. The caller sets the layout.
#[inline(always)]
fn begin(request: &Request) -> Option<&'static mut ShapeRecord> {
    let device_type = device_type_of(request.keys)?;
    let caller = Caller::current();
    let thread = match scratch::existing(caller) {
        Some(thread) if device_type == DEVICE_TYPE_CUDA => thread,
        _ => {
            let process = watched(caller)?;
            if device_type == DEVICE_TYPE_CPU && process.flags & process_flag::CPU == 0 {
                return None;
            }
            scratch::made(caller)?
        }
    };
    let shape = &mut thread.shape;
    shape.layout = shape_layout::UNREADABLE;
    shape.device_type = device_type;
    shape.dtype = request.dtype;
    shape.dimensions = request.dimensions.min(u64::from(u32::MAX)) as u32;
    // SAFETY: space for MAX_DIMENSIONS numbers.
    let read = unsafe { read_sizes(shape.sizes.as_mut_ptr(), request.sizes, request.dimensions) };
    if !read {
        return None;
    }
    for at in 0..MAX_DIMENSIONS {
        if (at as u64) < request.dimensions && shape.sizes[at] == 0 {
            shape.layout = shape_layout::NONE;
            return None;
        }
    }
    Some(shape)
}

/// Reads a number for each dimension, up to `MAX_DIMENSIONS`.
///
/// # Safety
/// `into` has space for `MAX_DIMENSIONS` numbers.
#[inline(always)]
unsafe fn read_sizes(into: *mut u64, from: u64, dimensions: u64) -> bool {
    let bytes = if dimensions < MAX_DIMENSIONS as u64 {
        (dimensions as u32 & (MAX_DIMENSIONS as u32 - 1)) * 8
    } else {
        MAX_DIMENSIONS as u32 * 8
    };
    // SAFETY: the caller's promise; the helper checks the address.
    bytes == 0 || unsafe { read_user_raw(into.cast(), bytes, from as *const _) == 0 }
}

/// The type of device in a plain tensor's keys: one bit for the backend and one for "dense"
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

/// Returns whether this thread has begun a tensor on that type of device and has no memory for it yet.
#[inline(always)]
pub fn has_shape(thread: &Thread, device_type: u8) -> bool {
    let shape = &thread.shape;
    shape.layout != shape_layout::NONE && shape.device_type == device_type
}

/// Sends an event of the allocator, with the shape of the tensor that this thread has begun to make.
#[inline(always)]
pub fn send_with_shape(record: MemoryRecord, device_type: u8, thread: &mut Thread) {
    if !has_shape(thread, device_type) {
        send_memory(record);
        return;
    }
    send_shaped(record, &thread.shape);
    thread.shape.layout = shape_layout::NONE;
}
