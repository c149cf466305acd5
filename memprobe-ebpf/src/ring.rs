//! Sending records, and counting those that could not be sent.

use core::arch::asm;

use aya_ebpf::bindings::{BPF_NOEXIST, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::generated::bpf_map_lookup_elem;
use memprobe_common::{MemoryRecord, ShapeRecord, ShapedRecord, counter, record as kind};

use crate::maps::{COUNTERS, LOST_BY, RECORDS};
use crate::thread::Caller;

/// Sends a record. The reader polls: waking it would cost many times the record itself.
#[inline(always)]
pub fn send(record: MemoryRecord) {
    match RECORDS.reserve::<MemoryRecord>(0) {
        Some(mut entry) => {
            entry.write(record);
            entry.submit(BPF_RB_NO_WAKEUP as u64);
        }
        // It says where a stack comes from, and nothing of memory.
        None if record.kind == kind::BACKWARD => lose(counter::STACKS_LOST),
        None => lose(counter::EVENTS_LOST),
    }
}

/// As [`send`], with the shape of the tensor that it happened for.
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
            entry.submit(BPF_RB_NO_WAKEUP as u64);
        }
        None => lose(counter::EVENTS_LOST),
    }
}

/// Counts a record of the calling process that could not be sent.
#[inline(always)]
pub fn lose(index: u32) {
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
    // As wide as a place on the stack, for the reason that `read` has.
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

#[inline(always)]
fn add_one(counter: *mut u64) {
    // SAFETY: a map value of 8 aligned bytes. Other CPUs write it too, hence atomically;
    // `core` has no atomic addition for targets without compare-and-swap.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) 1u64) };
}
