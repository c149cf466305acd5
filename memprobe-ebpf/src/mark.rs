//! PyTorch's own marks: it wraps the steps of optimizers and the batches of data
//! loaders in a `record_function`, whether a profiler runs or not.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::generated::bpf_probe_read_user_str;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{MARK_NAME, MarkRecord, counter, record};

use crate::context::{Entry as _, now_ns};
use crate::event::Event;
use crate::maps::RECORDS;
use crate::read::user_word;
use crate::ring::count_loss;

/// The first letters of the names: `Optimizer.step#Adam.step`, `Optimizer.zero_grad#Adam.zero_grad`
/// (torch/optim/optimizer.py@v2.15.0), `enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`
/// (torch/utils/data/dataloader.py@v2.15.0).
const BEGINNINGS: [[u8; 8]; 2] = [*b"Optimize", *b"enumerat"];

/// Returns whether a call of `intrusive_ptr<PythonRecordFunction>
/// torch::autograd::profiler::record_function_enter_new(const std::string& name, const optional<std::string>& args)`
/// (torch/csrc/autograd/record_function_ops.cpp@v2.15.0) has one of these names.
#[inline(always)]
pub fn is_reported(ctx: &ProbeContext) -> bool {
    letters(ctx)
        .and_then(user_word)
        .is_some_and(|beginning| BEGINNINGS.map(u64::from_ne_bytes).contains(&beginning))
}

/// Address of the name. The result's address is the hidden first argument. A string begins with the pointer to its
/// letters, which end with a zero byte, in either of libstdc++'s layouts.
#[inline(always)]
fn letters(ctx: &ProbeContext) -> Option<u64> {
    user_word(ctx.argument(1))
}

/// Sends the record of a call that [`is_reported`].
#[inline(always)]
pub fn send(event: Event<'_>) {
    let letters = letters(event.ctx).unwrap_or(0);
    let Some(mut entry) = RECORDS.reserve::<MarkRecord>(0) else {
        count_loss(counter::STACKS_LOST);
        return;
    };
    let to = entry.as_mut_ptr();
    // SAFETY: the entry is as large as the record, all of which is written; the helper checks the address.
    unsafe {
        to.write(MarkRecord {
            kind: record::MARK,
            stack_state: event.stack.state,
            pad: 0,
            tid: event.caller.tid,
            tgid: event.caller.tgid,
            pad2: 0,
            time_ns: now_ns(),
            stack: event.stack.word,
            name: [0; MARK_NAME],
        });
        let into = (&raw mut (*to).name).cast();
        bpf_probe_read_user_str(into, MARK_NAME as u32, letters as *const _);
    }
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
}
