//! PyTorch's own marks: it wraps the steps of optimizers and the batches of data
//! loaders in a `record_function`, whether a profiler runs or not.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::generated::bpf_probe_read_user_str;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{MARK_NAME, MarkRecord, counter, record};

use crate::context::{Caller, Entry as _, Registers as _, now_ns};
use crate::maps::RECORDS;
use crate::process::watched;
use crate::python::walk;
use crate::read::user_word;
use crate::ring::count_loss;

/// The first letters of the names: `Optimizer.step#Adam.step`, `Optimizer.zero_grad#Adam.zero_grad`
/// (torch/optim/optimizer.py@v2.15.0), `enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`
/// (torch/utils/data/dataloader.py@v2.15.0).
const BEGINNINGS: [[u8; 8]; 2] = [*b"Optimize", *b"enumerat"];

/// `intrusive_ptr<PythonRecordFunction> torch::autograd::profiler::record_function_enter_new(const std::string& name,
/// const optional<std::string>& args)` (torch/csrc/autograd/record_function_ops.cpp@v2.15.0). The result's
/// address is the hidden first argument. A string begins with the pointer to its letters, which end with a
/// zero byte, in either of libstdc++'s layouts.
#[uprobe]
pub fn record_function_enter(ctx: ProbeContext) -> u32 {
    let Some(letters) = user_word(ctx.argument(1)) else {
        return 0;
    };
    let Some(beginning) = user_word(letters) else {
        return 0;
    };
    if !BEGINNINGS.map(u64::from_ne_bytes).contains(&beginning) {
        return 0;
    }
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    let stack = walk(process, caller, ctx.stack_pointer());
    let Some(mut entry) = RECORDS.reserve::<MarkRecord>(0) else {
        count_loss(counter::STACKS_LOST);
        return 0;
    };
    let to = entry.as_mut_ptr();
    // SAFETY: the entry is as large as the record, all of which is written; the helper checks the address.
    unsafe {
        to.write(MarkRecord {
            kind: record::MARK,
            stack_state: stack.state,
            pad: 0,
            tid: caller.tid,
            tgid: caller.tgid,
            pad2: 0,
            time_ns: now_ns(),
            stack: stack.word,
            name: [0; MARK_NAME],
        });
        let into = (&raw mut (*to).name).cast();
        bpf_probe_read_user_str(into, MARK_NAME as u32, letters as *const _);
    }
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    0
}
