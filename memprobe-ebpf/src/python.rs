//! The walk of the current thread's Python stack, for CPython 3.9 and newer.
//!
//! The thread state comes from the thread-specific key (from 3.15 on the thread-local variable)
//! behind `PyGILState_GetThisThreadState()`, which is right also for threads that have released the
//! GIL (as PyTorch does around its operators); `tstate_current` is not. Frames are read in windows:
//! frames of nested calls lie side by side on the interpreter's data stack, callers at lower
//! addresses, and the frames that the interpreter keeps on the C stack (3.12) lie there with callers
//! at higher addresses. Before 3.11 frames are objects anywhere on the heap: one read each.

use aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP;
use aya_ebpf::helpers::generated::bpf_probe_read_user as read_user_raw;
use memprobe_common::{
    FRAME_CAPACITY, FRAME_HEADER, FrameRecord, MAX_WALKED, ProcessConfig, PythonConfig, StackHead,
    THREAD_STATE, counter, record, stack_state,
};

use crate::autograd;
use crate::context::Caller;
use crate::diagnostic;
use crate::maps::{RECORDS, SENT_CODES, SENT_STACKS, diagnostics, report_modules, sent_code};
use crate::read::user_word;
use crate::ring::count_loss;
use crate::scratch;
use crate::state::{C_WINDOW, DATA_WINDOW, SENT, Thread};
use crate::thread_local::thread_pointer;
use crate::verifier::{checkpoint, hide, may_leave, round};

/// Bytes before the `_PyCFrame` that its window covers: the interpreter's own frame of the same C
/// function can lie on either side.
const BEFORE_CFRAME: u64 = 256;

/// The first version with frames on the C stack (`entry_frame` of `_PyEval_EvalFrameDefault`,
/// Python/ceval.c@v3.12.0). Before it, a window there would hold nothing but the `_PyCFrame`.
const FRAMES_ON_C_STACK: u32 = 0x030c;

/// Bytes above the stack pointer in which an address still counts as on the C stack. Wrong guesses cost
/// a read, never a frame.
const C_STACK_REACH: u64 = 1 << 20;

/// Bytes of the interpreter's data stack that are mapped together (`DATA_STACK_CHUNK_SIZE`,
/// Python/pystate.c@v3.11.0).
const CHUNK: u64 = 16384;

/// Bytes of the smallest page on x86-64.
const PAGE: u64 = 4096;

/// The bits of a frame's code that are the address of a code object. The lowest two are the
/// interpreter's own marks from 3.14 on (`Py_TAG_BITS`, Include/internal/pycore_stackref.h); an
/// object's address has none of them.
const CODE_ADDRESS: u64 = ((1 << FrameRecord::OWNER_SHIFT) - 1) & !3;

/// `PyObject.ob_type` (Include/object.h@v3.9.18 to @v3.15.2), the class of an object.
const OB_TYPE: u64 = 8;

/// A window base that no address is near.
const NO_WINDOW: u64 = 1 << 63;

/// The last offsets in the two windows at which a frame's header may begin. The first window is never full, so that a
/// mask can bound its length for the verifier.
const LAST_IN_DATA: u64 = (DATA_WINDOW - FRAME_HEADER - 8) as u64;
const LAST_IN_C: u64 = (C_WINDOW - FRAME_HEADER) as u64;

/// The stack of an event, as records carry it.
#[derive(Clone, Copy)]
pub struct StackField {
    /// `MemoryRecord::stack_state`.
    pub state: u8,
    /// `MemoryRecord::stack`.
    pub word: u64,
}

impl StackField {
    /// For events without a stack.
    pub const NONE: Self = Self::without_stack(stack_state::NONE);

    /// The word is written here too: 5.15 refuses a program that loads a number which it stored on other paths only, and
    /// the compiler makes one if a variant of an enum has no number.
    const fn without_stack(state: u8) -> Self {
        Self { state, word: 0 }
    }

    /// Returns whether the thread runs Python, or works for a thread that does.
    #[inline(always)]
    pub fn leads_to_python(self) -> bool {
        match self.state {
            stack_state::PYTHON | stack_state::LOST => true,
            stack_state::NO_FRAMES => self.word != 0,
            _ => false,
        }
    }
}

/// Reads `len` bytes of user memory; zeroes `into` if that fails.
///
/// # Safety
/// `into` has space for `len` bytes in a map value.
#[inline(always)]
unsafe fn read(into: *mut u8, len: u32, from: u64) -> bool {
    // SAFETY: the caller's promise; the helper checks the address.
    unsafe { read_user_raw(into.cast(), len, from as *const _) == 0 }
}

/// Walks the current thread's Python stack and sends its frames if they were never sent.
/// `stack_pointer` is the thread's, at the probe.
#[inline(always)]
pub fn walk(process: &ProcessConfig, caller: Caller, stack_pointer: u64) -> StackField {
    let thread = scratch::for_walk(process, caller);
    walk_in(thread, process, caller, stack_pointer)
}

/// Like [`walk`], in the scratch memory of `scratch::for_walk`.
#[inline(always)]
pub fn walk_in(
    thread: Option<&mut Thread>,
    process: &ProcessConfig,
    caller: Caller,
    stack_pointer: u64,
) -> StackField {
    if process.python.version == 0 {
        diagnostic::unknown_python();
        return StackField::without_stack(stack_state::UNKNOWN_PYTHON);
    }
    let Some(thread) = thread else {
        return StackField::without_stack(stack_state::UNREADABLE);
    };
    let StackField { state, word } = walk_thread(thread, process, caller, stack_pointer);
    match state {
        stack_state::NO_THREAD_STATE => diagnostic::no_thread_state(),
        stack_state::UNREADABLE => diagnostic::unreadable_stack(),
        _ => {}
    }
    StackField {
        state: hide(thread, state.into()) as u8,
        word: hide(thread, word),
    }
}

#[inline(always)]
fn walk_thread(
    thread: &mut Thread,
    process: &ProcessConfig,
    caller: Caller,
    stack_pointer: u64,
) -> StackField {
    let config = &process.python;
    thread.node = 0;
    let top = match top_frame(config, thread) {
        Ok(top) => top,
        Err(state) => return StackField::without_stack(state),
    };
    // SAFETY: a field of a map value; `code_freed` counts it up at any time.
    let generation = unsafe { (&raw const process.generation).read_volatile() };
    if top == 0 {
        return StackField {
            state: stack_state::NO_FRAMES,
            word: autograd::read_engine_state(process, thread),
        };
    }
    let grad = autograd::grad(process, thread);
    let grad = hide(thread, grad.into());
    let seed = mix(u64::from(caller.tgid) | grad << 32, generation);
    let module_call = hide(thread, module_call(process));
    let (count, hash, rest) = collect(config, thread, top, seed, stack_pointer, module_call);
    let head = StackHead {
        kind: record::STACK,
        truncated: u8::from(rest != 0),
        count: count as u8,
        grad: grad as u8,
        tgid: caller.tgid,
        hash,
        module_call,
    };
    match send_once(thread, count, head) {
        stack_state::PYTHON => StackField {
            state: stack_state::PYTHON,
            word: hash,
        },
        state => StackField::without_stack(state),
    }
}

/// The code object in which every call of a module runs, or a value that no frame has.
#[inline(always)]
fn module_call(process: &ProcessConfig) -> u64 {
    const OF_NO_FRAME: u64 = 1;
    if report_modules() == 0 {
        return OF_NO_FRAME;
    }
    // SAFETY: a field of a map value; `code_freed` clears it at any time.
    match unsafe { (&raw const process.module_call).read_volatile() } {
        0 => OF_NO_FRAME,
        code => code,
    }
}

/// Finds the current thread's innermost frame, 0 if it runs no Python, and sets the windows as they stand after that.
/// The error is one of [`stack_state`].
#[inline(always)]
fn top_frame(config: &PythonConfig, thread: &mut Thread) -> Result<u64, u8> {
    thread.data_window = NO_WINDOW;
    thread.c_window = NO_WINDOW;
    thread.window = NO_WINDOW;
    let window = thread.windows.as_mut_ptr();
    let known = thread.state != 0
        // SAFETY: THREAD_STATE bytes of the windows.
        && unsafe { read(window, THREAD_STATE as u32, thread.state) }
        && unsafe { field(window, config.ts_thread_id) } == thread.thread_id
        && unsafe { field(window, config.ts_identity) } == thread.identity;
    if !known {
        let state = find_state(config)?;
        // SAFETY: as above.
        if !unsafe { read(window, THREAD_STATE as u32, state) } {
            thread.state = 0;
            return Err(stack_state::UNREADABLE);
        }
        thread.state = state;
        thread.graph_task = 0;
        thread.evaluating_node = 0;
        thread.autograd_state = 0;
        // SAFETY: within the THREAD_STATE bytes just read.
        thread.thread_id = unsafe { field(window, config.ts_thread_id) };
        thread.identity = unsafe { field(window, config.ts_identity) };
    }
    // SAFETY: within the THREAD_STATE bytes just read.
    let pointer = unsafe { field(window, config.ts_frame) };
    if config.cframe_current == PythonConfig::NONE {
        // SAFETY: as above.
        let base = unsafe { field(window, config.ts_base_frame) };
        let runs_nothing = config.ts_base_frame != PythonConfig::NONE && pointer == base;
        return Ok(if runs_nothing { 0 } else { pointer });
    }
    if config.version >= FRAMES_ON_C_STACK {
        let base = pointer - BEFORE_CFRAME;
        // SAFETY: the second window is C_WINDOW bytes.
        unsafe {
            let second = window.add(DATA_WINDOW);
            if read(second, C_WINDOW as u32, base) {
                let frame = field(second.add(BEFORE_CFRAME as usize), config.cframe_current);
                thread.c_window = base;
                return Ok(frame);
            }
        }
    }
    let at = pointer + u64::from(config.cframe_current);
    user_word(at).ok_or(stack_state::UNREADABLE)
}

/// Reads a word of a structure that lies at `base` of a window.
///
/// # Safety
/// `base` is followed by at least 512 bytes of the map value.
#[inline(always)]
unsafe fn field(base: *const u8, offset: u16) -> u64 {
    // SAFETY: the mask keeps it within 512 bytes and aligned, as these fields are. (For a word that
    // may be unaligned the compiler reads and joins eight bytes.)
    unsafe { base.add((offset & 0x1f8) as usize).cast::<u64>().read() }
}

/// The current thread's `PyThreadState`, by the steps in the configuration.
#[inline(always)]
fn find_state(config: &PythonConfig) -> Result<u64, u8> {
    let Some(thread_pointer) = thread_pointer() else {
        return Err(stack_state::UNREADABLE);
    };
    let [first, second, third] = config.tss_steps;
    let mut at = thread_pointer.wrapping_add_signed(first.into());
    if config.tss_count > 1 {
        at = follow(at)?.wrapping_add_signed(second.into());
    }
    if config.tss_count > 2 {
        at = follow(at)?.wrapping_add_signed(third.into());
    }
    follow(at)
}

/// The pointer at `at`, if the thread has one there.
#[inline(always)]
fn follow(at: u64) -> Result<u64, u8> {
    /// Stands for a block of thread-local storage that the thread has not used
    /// (`TLS_DTV_UNALLOCATED`, sysdeps/generic/dl-dtv.h in glibc).
    const UNALLOCATED: u64 = u64::MAX;
    match user_word(at) {
        Some(0 | UNALLOCATED) => Err(stack_state::NO_THREAD_STATE),
        Some(pointer) => Ok(pointer),
        None => Err(stack_state::UNREADABLE),
    }
}

/// Follows the chain of frames into `thread.stack`. Returns their number, their hash, and the frame
/// at which it stopped (0 at the end of the chain).
#[inline(always)]
fn collect(
    config: &PythonConfig,
    thread: &mut Thread,
    top: u64,
    seed: u64,
    stack_pointer: u64,
    module_call: u64,
) -> (usize, u64, u64) {
    let windows = thread.windows.as_mut_ptr();
    let frames = thread.stack.frames.as_mut_ptr();
    let mut frame = top;
    let mut hash = seed;
    let mut count = 0usize;
    while count < MAX_WALKED {
        may_leave!();
        if frame == 0 {
            break;
        }
        // Read back from the map, so that the verifier knows the same of it whichever window was found.
        // SAFETY: fields of a map value.
        let base = unsafe { (&raw const thread.window).read_volatile() };
        // SAFETY: as above.
        let last = unsafe { (&raw const thread.last).read_volatile() };
        if frame.wrapping_sub(base) > last {
            find_window(config, thread, frame, stack_pointer);
        }
        checkpoint();
        // SAFETY: as above.
        let origin = unsafe { (&raw const thread.origin).read_volatile() };
        let at = frame.wrapping_sub(origin);
        // SAFETY: `at` is within the two windows, a field within a frame's header, and behind the
        // windows lie 2 * FRAME_HEADER bytes; `count` is below FRAME_CAPACITY. The masks say so.
        unsafe {
            let base = windows.add((at & 0x1ff8) as usize);
            let code = header(base, config.f_code) & CODE_ADDRESS;
            let instr = header(base, config.f_instr);
            let owner = *base.add((config.f_owner & 0x7f) as usize);
            let mut word = code | (u64::from(owner) << FrameRecord::OWNER_SHIFT);
            if report_modules() != 0 && code == module_call {
                word = called_module(config, base, frame).unwrap_or(word);
            }
            let slot = frames.add(count & (FRAME_CAPACITY - 1));
            (*slot).code_and_owner = word;
            (*slot).instr = instr;
            hash = mix(hash, word.rotate_left(32) ^ instr.wrapping_mul(FACTOR));
            frame = header(base, config.f_previous);
        }
        checkpoint();
        count = round(thread, count + 1);
    }
    let walked = hide(thread, count as u64);
    (walked as usize, hash, frame)
}

/// Selects a window that covers a frame: one of the two as they are, or read anew.
#[inline(always)]
fn find_window(config: &PythonConfig, thread: &mut Thread, frame: u64, stack_pointer: u64) {
    let first = thread.windows.as_mut_ptr();
    let second = first.wrapping_add(DATA_WINDOW);
    if frame.wrapping_sub(thread.data_window) <= thread.last_in_data {
        select_window(thread, thread.data_window, thread.last_in_data, thread.data_window);
    } else if frame.wrapping_sub(thread.c_window) <= LAST_IN_C {
        select_c_window(thread, thread.c_window);
    } else if frame.wrapping_sub(stack_pointer) < C_STACK_REACH {
        thread.c_window = frame;
        select_c_window(thread, frame);
        // SAFETY: the second window is C_WINDOW bytes.
        unsafe {
            if !read(second, C_WINDOW as u32, frame) {
                thread.c_window = NO_WINDOW;
                select_window(thread, NO_WINDOW, 0, frame - DATA_WINDOW as u64);
                read_alone(thread, second, config, frame);
            }
        }
    } else {
        read_data_window(config, thread, frame);
    }
}

/// Reads the part of the data stack up to the end of a frame's header. Not below the frame's own page, unless a page
/// further down was read before: the page may not be mapped, and a read that faults costs more than all others together.
#[inline(always)]
fn read_data_window(config: &PythonConfig, thread: &mut Thread, frame: u64) {
    let first = thread.windows.as_mut_ptr();
    let page = frame & !(PAGE - 1);
    let lowest = thread.lowest_page;
    let reach = frame.wrapping_sub(LAST_IN_DATA);
    let mut is_near = page.wrapping_sub(lowest) < CHUNK;
    let mut base = reach.max(if is_near { lowest } else { page });
    // SAFETY: the first window is DATA_WINDOW bytes.
    let mut covers = unsafe { read_up_to(first, base, frame) };
    if !covers && is_near {
        is_near = false;
        base = reach.max(page);
        // SAFETY: as above.
        covers = unsafe { read_up_to(first, base, frame) };
    }
    if !is_near {
        thread.lowest_page = page;
    }
    thread.data_window = base;
    thread.last_in_data = frame - base;
    select_window(thread, base, frame - base, base);
    if !covers {
        thread.data_window = NO_WINDOW;
        select_window(thread, NO_WINDOW, 0, frame - LAST_IN_DATA);
        // SAFETY: FRAME_HEADER bytes of the first window, and the second one, follow.
        unsafe { read_alone(thread, first.add(LAST_IN_DATA as usize), config, frame) };
    }
}

/// Reads what lies between `base` and the end of a frame's header.
///
/// # Safety
/// `into` is followed by DATA_WINDOW bytes of the map value.
#[inline(always)]
unsafe fn read_up_to(into: *mut u8, base: u64, frame: u64) -> bool {
    const LENGTHS: u64 = DATA_WINDOW as u64 - 1;
    let length = (frame - base + FRAME_HEADER as u64) & LENGTHS;
    // SAFETY: the caller's promise, and the mask.
    unsafe { read(into, length as u32, base) }
}

#[inline(always)]
fn select_c_window(thread: &mut Thread, window: u64) {
    select_window(thread, window, LAST_IN_C, window - DATA_WINDOW as u64);
}

#[inline(always)]
fn select_window(thread: &mut Thread, window: u64, last: u64, origin: u64) {
    // SAFETY: fields of a map value. Volatile, so that they do go through the map.
    unsafe {
        (&raw mut thread.window).write_volatile(window);
        (&raw mut thread.last).write_volatile(last);
        (&raw mut thread.origin).write_volatile(origin);
    }
}

/// Reads the header of a frame whose window could not be read. Its variables may
/// not be mapped, and the bytes in their place are another frame's.
///
/// # Safety
/// `into` is followed by at least 136 bytes of the map value.
#[inline(always)]
unsafe fn read_alone(thread: &mut Thread, into: *mut u8, config: &PythonConfig, frame: u64) {
    // SAFETY: the masks keep both within 128 bytes.
    unsafe {
        let read = read(into, u32::from(config.f_size & 0x7f), frame);
        if diagnostics() != 0 && !read {
            thread.unreadable_frame = frame;
        }
        if let Some(first) = config.first_local_in_header() {
            into.add((first & 0x78) as usize).cast::<u64>().write(0);
        }
    }
}

/// The module that a frame calls, in place of the code object that calls every module.
///
/// # Safety
/// The same as for [`header`].
#[inline(always)]
unsafe fn called_module(config: &PythonConfig, base: *const u8, frame: u64) -> Option<u64> {
    let module = match config.first_local_in_header() {
        // SAFETY: the caller's promise.
        Some(first) => unsafe { header(base, first) },
        None => user_word(frame + u64::from(config.f_first_local)).unwrap_or(0),
    };
    let module = module & CODE_ADDRESS;
    (module != 0).then_some(module | FrameRecord::CALLS_MODULE)
}

/// Reads a word of a frame's header.
///
/// # Safety
/// `base` is followed by at least 136 bytes of the map value.
#[inline(always)]
unsafe fn header(base: *const u8, offset: u16) -> u64 {
    // SAFETY: the mask keeps it within 128 bytes and aligned, as these fields are.
    unsafe { base.add((offset & 0x78) as usize).cast::<u64>().read() }
}

/// An odd number with its bits spread evenly: 2^64 over the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of a 64-bit multiplicative hash.
#[inline(always)]
pub fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(FACTOR);
    product ^ (product >> 29)
}

/// Sends the stack unless it was sent before. Returns one of [`stack_state`]: `PYTHON` if user space has it, or will.
#[inline(always)]
fn send_once(thread: &mut Thread, frames: usize, head: StackHead) -> u8 {
    let hash = head.hash;
    let sent = &mut thread.sent[hash as usize & (SENT - 1)];
    // Never 0, the initial value of a slot.
    let high = (hash >> 32) as u32 | 1;
    if *sent == high {
        return stack_state::PYTHON;
    }
    if SENT_STACKS.get_ptr(&hash).is_some() {
        *sent = high;
        return stack_state::PYTHON;
    }
    if diagnostics() != 0 && thread.unreadable_frame != 0 {
        diagnostic::unreadable_frame(thread.unreadable_frame);
        thread.unreadable_frame = 0;
    }
    thread.stack.head = head;
    let mut at = 0;
    while at < MAX_WALKED {
        may_leave!();
        if at >= frames {
            break;
        }
        let frame = &mut thread.stack.frames[at & (FRAME_CAPACITY - 1)];
        // Without a branch if modules are off: older verifiers follow every path of every frame.
        let code = if report_modules() != 0 {
            frame.code(&head)
        } else {
            frame.code_and_owner & CODE_ADDRESS
        };
        if report_modules() != 0
            && let Some(module) = frame.module()
        {
            // Another object may be there when user space reads it.
            frame.set_class(user_word(module + OB_TYPE));
        }
        let _ = SENT_CODES.insert(&sent_code(head.tgid, code), &1, 0);
        at = round(thread, at + 1);
    }
    let bytes = size_of::<StackHead>() + (frames & 0xff) * size_of::<FrameRecord>();
    if bytes > size_of_val(&thread.stack) {
        return stack_state::UNREADABLE;
    }
    // SAFETY: the first `bytes` of the map value's stack record.
    let record =
        unsafe { core::slice::from_raw_parts((&raw const thread.stack).cast::<u8>(), bytes) };
    // Wakes the reader: it reads the code objects of these frames before they can be freed.
    if RECORDS
        .output::<[u8]>(record, u64::from(BPF_RB_FORCE_WAKEUP))
        .is_err()
    {
        count_loss(counter::STACKS_LOST);
        return stack_state::LOST;
    }
    let _ = SENT_STACKS.insert(&hash, &1, 0);
    stack_state::PYTHON
}
