//! Sending records, and counting those that could not be sent.

use core::arch::asm;

use aya_ebpf::bindings::{BPF_NOEXIST, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::generated::bpf_map_lookup_elem;
use memprobe_common::{MemoryRecord, ShapeRecord, ShapedRecord, counter, record as kind};

use crate::context::Caller;
use crate::diagnostic;
use crate::maps::{COUNTERS, LOST_BY, RECORDS};

/// Sends a record; false if the ring buffer is full. The reader polls: waking it would cost many times the record
/// itself.
#[inline(always)]
pub fn send<T: 'static>(record: T) -> bool {
    let Some(mut entry) = RECORDS.reserve::<T>(0) else {
        return false;
    };
    entry.write(record);
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    true
}

/// Sends a memory record, or counts its loss.
#[inline(always)]
pub fn send_memory(record: MemoryRecord) {
    if !send(record) {
        count_loss(match record.kind {
            // It is about the origin of a stack, not about memory.
            kind::BACKWARD => counter::STACKS_LOST,
            _ => counter::EVENTS_LOST,
        });
    }
}

/// Like [`send_memory`], with the shape of the tensor that the block is for.
#[inline(always)]
pub fn send_shaped(record: MemoryRecord, shape: &ShapeRecord) {
    match RECORDS.reserve::<ShapedRecord>(0) {
        Some(mut entry) => {
            let to = entry.as_mut_ptr();
            // SAFETY: the entry is as large as the record, both parts of which are written.
            unsafe {
                (&raw mut (*to).memory).write(record);
                (&raw mut (*to).shape).copy_from_nonoverlapping(shape, 1);
            }
            entry.submit(u64::from(BPF_RB_NO_WAKEUP));
        }
        None => count_loss(counter::EVENTS_LOST),
    }
}

/// Counts a record of the calling process that could not be sent.
#[inline(always)]
pub fn count_loss(index: u32) {
    count(index);
    let key = counter::of_process(Caller::current().tgid, index);
    if let Some(of_process) = LOST_BY.get_ptr_mut(&key) {
        add_one(of_process);
    } else if LOST_BY.insert(&key, &1, u64::from(BPF_NOEXIST)).is_err()
        && let Some(of_process) = LOST_BY.get_ptr_mut(&key)
    {
        // Another thread was faster.
        add_one(of_process);
    }
}

/// Adds one to a counter.
#[inline(always)]
pub fn count(index: u32) {
    diagnostic::counted(index);
    // As wide as a slot of the stack, for the reason in `read`.
    let index = u64::from(index);
    // SAFETY: the map, and a key of 32 bits in a little-endian number of 64.
    let counter = unsafe {
        let map = (&raw const COUNTERS).cast_mut().cast();
        bpf_map_lookup_elem(map, (&raw const index).cast()).cast::<u64>()
    };
    if !counter.is_null() {
        add_one(counter);
    }
}

/// Adds one to a number in a map, in one step for all CPUs.
#[inline(always)]
pub fn add_one(number: *mut u64) {
    // SAFETY: a map value of 8 aligned bytes. Other CPUs write it too, hence atomically;
    // `core` has no atomic addition for targets without compare-and-swap.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) number, in(reg) 1u64) };
}
