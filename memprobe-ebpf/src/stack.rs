//! Copies of the innermost part of a thread's stack, from which user space unwinds it.

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE};
use aya_ebpf::helpers::generated::bpf_probe_read_user as read_user_raw;
use aya_ebpf::maps::ring_buf::RingBufEntry;
use memprobe_common::{BlockStackRecord, MemoryRecord, ThreadStack, record};

use crate::maps::RECORDS;

/// Reserves a record with a copy of a stack, unless the ring buffer is more than half full: the rest is for
/// events.
#[inline(always)]
pub fn reserve<T: 'static>() -> Option<RingBufEntry<T>> {
    let waiting = RECORDS.query(u64::from(BPF_RB_AVAIL_DATA));
    if waiting > RECORDS.query(u64::from(BPF_RB_RING_SIZE)) / 2 {
        return None;
    }
    RECORDS.reserve::<T>(0)
}

/// Copies the stack from `stack_pointer` on, up to the first byte that cannot be read.
///
/// # Safety
/// `into` must be valid for writes. Every byte up to `length` is written.
#[inline(always)]
pub unsafe fn copy<const N: usize>(
    into: *mut ThreadStack<N>,
    stack_pointer: u64,
    frame_pointer: u64,
) {
    const CHUNK: usize = 1024;
    // SAFETY: within the caller's promise; the helper checks the address that is read.
    unsafe {
        (*into).frame_pointer = frame_pointer;
        (*into).stack.address = stack_pointer;
        let bytes = (&raw mut (*into).stack.bytes).cast::<u8>();
        let mut length = 0;
        for at in (0..N).step_by(CHUNK) {
            let from = stack_pointer + at as u64;
            if read_user_raw(bytes.add(at).cast(), CHUNK as u32, from as *const _) != 0 {
                break;
            }
            length = at + CHUNK;
        }
        (*into).stack.length = length as u64;
    }
}

/// Sends the event of a block with the thread's stack; false if the ring buffer has no space for it. The block
/// then goes without a name, and user space shows that. Nothing else is lost.
#[inline(always)]
pub fn send_block(mut memory: MemoryRecord, stack_pointer: u64, frame_pointer: u64) -> bool {
    let Some(mut entry) = reserve::<BlockStackRecord>() else {
        return false;
    };
    memory.kind = record::BLOCK_WITH_STACK;
    let to = entry.as_mut_ptr();
    // SAFETY: the entry is as large as the record, both parts of which are written.
    unsafe {
        (&raw mut (*to).memory).write(memory);
        copy(&raw mut (*to).thread, stack_pointer, frame_pointer);
    }
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    true
}
