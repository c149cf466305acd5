//! CPython's code objects, just before they are freed.
//!
//! A stack names code objects by address, and user space reads them a moment later. If one is freed in
//! between, its names are gone, and its address may at once belong to another. So the program copies a code object
//! of a sent stack when it is freed, and gives later stacks other hashes.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{CodeRecord, Stretch, counter, record};

use crate::context::{Caller, Entry as _};
use crate::maps::{PROCESSES, RECORDS, SENT_CODES, sent_code};
use crate::ring::{add_one, count_loss};

/// `PyCode_Type.tp_dealloc`, which is `code_dealloc(PyCodeObject *co)`
/// (Objects/codeobject.c@v3.9.18 to @v3.15.2).
#[uprobe]
pub fn code_freed(ctx: ProbeContext) -> u32 {
    let caller = Caller::current();
    let Some(process) = PROCESSES.get_ptr_mut(&caller.tgid) else {
        return 0;
    };
    let code = ctx.argument(0);
    let key = sent_code(caller.tgid, code);
    if SENT_CODES.get_ptr(&key).is_none() {
        return 0;
    }
    let _ = SENT_CODES.remove(&key);
    // SAFETY: fields of a map value. Should another program read the first at this moment, its frames
    // still run that code object.
    unsafe {
        if (*process).module_call == code {
            (&raw mut (*process).module_call).write_volatile(0);
        }
        add_one(&raw mut (*process).generation);
    }
    let Some(mut entry) = RECORDS.reserve::<CodeRecord>(0) else {
        count_loss(counter::STACKS_LOST);
        return 0;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: the entry is as large as the record; `copy` writes every byte of a stretch.
    unsafe {
        (*record).kind = record::CODE_FREED;
        (*record).pad = [0; 3];
        (*record).tgid = caller.tgid;
        copy(&raw mut (*record).code, code);
        let python = &raw const (*process).python;
        let bytes = (&raw const (*record).code.bytes).cast::<u8>();
        let names = bytes.add(usize::from((*python).co_filename & 0x7f));
        // A number that this mask lets through may lie behind the copy, never behind the record.
        let lines = bytes.add(usize::from((*python).co_lines & 0xff));
        copy(
            &raw mut (*record).file,
            names.cast::<u64>().read_unaligned(),
        );
        copy(
            &raw mut (*record).name,
            names.add(8).cast::<u64>().read_unaligned(),
        );
        copy(
            &raw mut (*record).lines,
            lines.cast::<u64>().read_unaligned(),
        );
    }
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    0
}

/// Copies a stretch of the target's memory, up to the end of its page if the next page
/// cannot be read.
///
/// # Safety
/// `into` is valid for writes.
#[inline(always)]
unsafe fn copy<const N: usize>(into: *mut Stretch<N>, address: u64) {
    // SAFETY: the caller's promise; the helper zeroes what it cannot read, and `rest` is at most N.
    unsafe {
        (*into).address = address;
        (*into).length = N as u64;
        let bytes = (&raw mut (*into).bytes).cast();
        if bpf_probe_read_user(bytes, N as u32, address as *const _) == 0 {
            return;
        }
        let rest = PAGE - (address & (PAGE - 1));
        (*into).length = 0;
        if rest < N as u64 && bpf_probe_read_user(bytes, rest as u32, address as *const _) == 0 {
            (*into).length = rest;
        }
    }
}

/// Bytes of a page.
const PAGE: u64 = 4096;
