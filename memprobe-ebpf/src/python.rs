//! Walking the Python stack of the current thread, for CPython 3.9 and newer.
//!
//! The thread state comes from the thread-specific key (from 3.15 on the thread-local variable)
//! behind `PyGILState_GetThisThreadState()`, which is right also for threads that have released the
//! GIL (as PyTorch does around its operators); `tstate_current` is not. Frames are read in windows:
//! frames of nested calls lie side by side on the interpreter's data stack, callers at lower
//! addresses, and the frames that the interpreter keeps on the C stack (3.12) lie there with callers
//! at higher addresses. Before 3.11 frames are objects anywhere on the heap: one read each.

use core::arch::asm;

use aya_ebpf::helpers::bpf_get_current_task;
use aya_ebpf::helpers::generated::bpf_probe_read_user as read_user_raw;
use memprobe_common::{
    FRAME_HEADER, FRAME_ROOM, FrameRecord, MAX_WALKED, ProcessConfig, PythonConfig, StackHead,
    THREAD_STATE, counter, record, stack_state,
};

use crate::autograd;
use crate::maps::{RECORDS, SENT_CODES, SENT_STACKS, fsbase_offset, sent_code, tell_modules};
use crate::read::{kernel_word, user_word};
use crate::ring::lose;
use crate::thread::{Caller, SENT, Thread, WINDOW};

/// Bytes before the `_PyCFrame` that its window covers: the interpreter's own frame of the same C
/// function can lie on either side.
const BEFORE_CFRAME: u64 = 256;

/// How far above the stack pointer an address still counts as on the C stack. Wrong guesses cost
/// a read, never a frame.
const C_STACK_REACH: u64 = 1 << 20;

/// Bytes of the smallest page on x86-64.
const PAGE: u64 = 4096;

/// The bits of a frame's code that are the address of a code object. The lowest two are the
/// interpreter's own marks from 3.14 on (`Py_TAG_BITS`, Include/internal/pycore_stackref.h); an
/// object's address has none of them.
const CODE_ADDRESS: u64 = ((1 << FrameRecord::OWNER_SHIFT) - 1) & !3;

/// Where an object has its class (`PyObject.ob_type` in Include/object.h@v3.9.18 to @v3.15.2).
const OB_TYPE: u64 = 8;

/// A window base that no address is near.
const NO_WINDOW: u64 = 1 << 63;

/// How far into a window a frame's header may begin.
const LAST: u64 = (WINDOW - FRAME_HEADER) as u64;

/// The stack of an event: what `MemoryRecord::stack_state` and `::stack` say.
#[derive(Clone, Copy)]
pub struct Walked {
    /// One of `stack_state`.
    pub state: u8,
    /// The hash, for `stack_state::PYTHON`; the `GraphTask`, for `stack_state::NO_FRAMES`.
    pub hash: u64,
}

impl Walked {
    /// For events that carry no stack.
    pub const NONE: Self = Self::without(stack_state::NONE);

    /// No stack, and why.
    pub const fn without(state: u8) -> Self {
        Self { state, hash: 0 }
    }
}

/// Reads `len` bytes of user memory; `into` is zeroed where that fails.
#[inline(always)]
unsafe fn read(into: *mut u8, len: u32, from: u64) -> bool {
    // SAFETY: the caller passes `len` bytes of a map value.
    unsafe { read_user_raw(into.cast(), len, from as *const _) == 0 }
}

/// Walks the current thread's Python stack and sends its frames if they were never sent.
/// `stack_pointer` is the thread's, at the probe.
#[inline(always)]
pub fn walk(process: &ProcessConfig, caller: Caller, stack_pointer: u64) -> Walked {
    walk_in(room(process, caller), process, caller, stack_pointer)
}

/// The current thread's room. Where no stack can be walked, none is made for it.
#[inline(always)]
pub fn room(process: &ProcessConfig, caller: Caller) -> Option<*mut Thread> {
    match process.python.version {
        0 => caller.known_thread(),
        _ => caller.thread(),
    }
}

/// As [`walk`], in what [`room`] gave.
#[inline(always)]
pub fn walk_in(
    room: Option<*mut Thread>,
    process: &ProcessConfig,
    caller: Caller,
    stack_pointer: u64,
) -> Walked {
    let config = &process.python;
    if config.version == 0 {
        return Walked::without(stack_state::UNKNOWN_PYTHON);
    }
    let Some(thread) = room else {
        return Walked::without(stack_state::UNREADABLE);
    };
    // SAFETY: a map value; no other thread has this tid, so nobody else uses it now.
    let thread = unsafe { &mut *thread };
    let walked = walk_thread(thread, process, caller, stack_pointer);
    Walked {
        state: through_map(thread, walked.state.into()) as u8,
        hash: through_map(thread, walked.hash),
    }
}

#[inline(always)]
fn walk_thread(
    thread: &mut Thread,
    process: &ProcessConfig,
    caller: Caller,
    stack_pointer: u64,
) -> Walked {
    let config = &process.python;
    let top = match top_frame(config, thread) {
        Ok(top) => top,
        Err(state) => return Walked::without(state),
    };
    // SAFETY: a field of a map value; `code_freed` counts it up at any time.
    let generation = unsafe { (&raw const process.generation).read_volatile() };
    let grad = autograd::grad(process, thread);
    let grad = through_map(thread, grad.into());
    let seed = mix(u64::from(caller.tgid) | grad << 32, generation);
    let module_call = through_map(thread, module_call(process));
    let (count, hash, rest) = collect(config, thread, top, seed, stack_pointer, module_call);
    if count == 0 {
        return Walked {
            state: stack_state::NO_FRAMES,
            hash: autograd::current_graph_task(process, thread),
        };
    }
    let head = StackHead {
        kind: record::STACK,
        truncated: u8::from(rest != 0),
        count: count as u8,
        grad: grad as u8,
        tgid: caller.tgid,
        hash,
        module_call,
    };
    send_once(thread, count, head)
}

/// The code object that every call of a module passes, or one that no frame runs.
#[inline(always)]
fn module_call(process: &ProcessConfig) -> u64 {
    const OF_NO_FRAME: u64 = 1;
    if tell_modules() == 0 {
        return OF_NO_FRAME;
    }
    // SAFETY: a field of a map value; `code_freed` clears it at any time.
    match unsafe { (&raw const process.module_call).read_volatile() } {
        0 => OF_NO_FRAME,
        code => code,
    }
}

/// Finds the current thread's innermost frame, and sets the windows as they stand after that.
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
    let base = pointer - BEFORE_CFRAME;
    // SAFETY: the second window is WINDOW bytes.
    unsafe {
        let second = window.add(WINDOW);
        if read(second, WINDOW as u32, base) {
            let frame = field(second.add(BEFORE_CFRAME as usize), config.cframe_current);
            thread.c_window = base;
            return Ok(frame);
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

/// The current thread's thread pointer.
#[inline(always)]
pub fn thread_pointer() -> Option<u64> {
    // SAFETY: takes no arguments.
    let task = unsafe { bpf_get_current_task() };
    kernel_word(task + fsbase_offset())
}

/// The current thread's `PyThreadState`, by the way that the configuration names.
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

/// The pointer at `at`, where the thread has one there.
#[inline(always)]
fn follow(at: u64) -> Result<u64, u8> {
    /// What a thread has in place of a block of thread-local storage that it has not used
    /// (`TLS_DTV_UNALLOCATED`, sysdeps/generic/dl-dtv.h in glibc).
    const UNALLOCATED: u64 = u64::MAX;
    match user_word(at) {
        Some(0 | UNALLOCATED) => Err(stack_state::NO_THREAD_STATE),
        Some(pointer) => Ok(pointer),
        None => Err(stack_state::UNREADABLE),
    }
}

/// Follows the chain of frames into `thread.stack`; gives their number, their hash, and the frame
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
        if frame == 0 {
            break;
        }
        // What the verifier is to know of the place comes from the map, whatever window was found.
        // SAFETY: fields of a map value.
        let base = unsafe { (&raw const thread.window).read_volatile() };
        if frame.wrapping_sub(base) > LAST {
            find_window(config, thread, frame, stack_pointer);
        }
        checkpoint();
        // SAFETY: as above.
        let origin = unsafe { (&raw const thread.origin).read_volatile() };
        let at = frame.wrapping_sub(origin);
        // SAFETY: `at` is within the two windows, a field within a frame's header, and behind the
        // windows lie 2 * FRAME_HEADER bytes; `count` is below FRAME_ROOM. The masks say so.
        unsafe {
            let base = windows.add((at & 0xff8) as usize);
            let code = header(base, config.f_code) & CODE_ADDRESS;
            let instr = header(base, config.f_instr);
            let owner = *base.add((config.f_owner & 0x7f) as usize);
            let mut word = code | (u64::from(owner) << FrameRecord::OWNER_SHIFT);
            if tell_modules() != 0 && code == module_call {
                word = called_module(config, base, frame).unwrap_or(word);
            }
            let slot = frames.add(count & (FRAME_ROOM - 1));
            (*slot).code_and_owner = word;
            (*slot).instr = instr;
            hash = mix(hash, word.rotate_left(32) ^ instr.wrapping_mul(FACTOR));
            frame = header(base, config.f_previous);
        }
        checkpoint();
        count += 1;
    }
    let walked = through_map(thread, count as u64);
    (walked as usize, hash, frame)
}

/// Makes a window that covers a frame the one that is looked into: one of the two as they are, or as read anew.
#[inline(always)]
fn find_window(config: &PythonConfig, thread: &mut Thread, frame: u64, stack_pointer: u64) {
    let first = thread.windows.as_mut_ptr();
    let second = first.wrapping_add(WINDOW);
    if frame.wrapping_sub(thread.data_window) <= LAST {
        look_into(thread, thread.data_window, thread.data_window);
    } else if frame.wrapping_sub(thread.c_window) <= LAST {
        look_into(thread, thread.c_window, thread.c_window - WINDOW as u64);
    } else if frame.wrapping_sub(stack_pointer) < C_STACK_REACH {
        thread.c_window = frame;
        let origin = frame - WINDOW as u64;
        look_into(thread, frame, origin);
        // SAFETY: the second window is WINDOW bytes.
        unsafe {
            if !read(second, WINDOW as u32, frame) {
                thread.c_window = NO_WINDOW;
                look_into(thread, NO_WINDOW, origin);
                read_alone(second, config, frame);
            }
        }
    } else {
        // Not below the frame's own page: nothing need be mapped there, and a read that
        // faults costs more than all others together.
        let base = frame.wrapping_sub(LAST).max(frame & !(PAGE - 1));
        thread.data_window = base;
        look_into(thread, base, base);
        // SAFETY: the first window is WINDOW bytes.
        unsafe {
            if !read(first, WINDOW as u32, base) {
                thread.data_window = NO_WINDOW;
                look_into(thread, NO_WINDOW, frame - LAST);
                read_alone(first.add(LAST as usize), config, frame);
            }
        }
    }
}

#[inline(always)]
fn look_into(thread: &mut Thread, window: u64, origin: u64) {
    // SAFETY: fields of a map value. Volatile, so that they do go through the map.
    unsafe {
        (&raw mut thread.window).write_volatile(window);
        (&raw mut thread.origin).write_volatile(origin);
    }
}

/// The same number, of which the verifier knows nothing: it then follows what comes after once, and not for each number
/// that it may be.
#[inline(always)]
pub fn through_map(thread: &mut Thread, number: u64) -> u64 {
    // SAFETY: a field of a map value. Volatile, so that the number does go through the map.
    unsafe {
        (&raw mut thread.passing).write_volatile(number);
        (&raw const thread.passing).read_volatile()
    }
}

/// Has the verifier compare what it knows here with what it knew when it came here before, and follow the program only
/// once where that is the same. It takes note at a jump, if it has followed 20 others since the last time
/// (`is_state_visited`, kernel/bpf/verifier.c@v5.15 to @v6.18). These jumps lead nowhere: before the program runs they are
/// taken out (`opt_remove_nops`).
#[inline(always)]
fn checkpoint() {
    // SAFETY: does nothing.
    unsafe { asm!(".rept 20", "goto +0", ".endr", options(nomem, nostack)) };
}

/// Reads what the walk needs of a frame that its window could not be read around. Its variables may
/// not be mapped, and what lies in their place is another frame's.
///
/// # Safety
/// `into` is followed by at least 136 bytes of the map value.
#[inline(always)]
unsafe fn read_alone(into: *mut u8, config: &PythonConfig, frame: u64) {
    // SAFETY: the masks keep both within 128 bytes.
    unsafe {
        read(into, u32::from(config.f_size & 0x7f), frame);
        if let Some(first) = config.first_local_in_header() {
            into.add((first & 0x78) as usize).cast::<u64>().write(0);
        }
    }
}

/// The module that a frame calls, in place of the code object that calls every module.
///
/// # Safety
/// As [`header`].
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

/// Sends the stack unless it was sent before, and says how the event names it.
#[inline(always)]
fn send_once(thread: &mut Thread, frames: usize, head: StackHead) -> Walked {
    let hash = head.hash;
    let walked = Walked {
        state: stack_state::PYTHON,
        hash,
    };
    let sent = &mut thread.sent[hash as usize & (SENT - 1)];
    // Never 0, which a place has at first.
    let high = (hash >> 32) as u32 | 1;
    if *sent == high {
        return walked;
    }
    // SAFETY: the value is only tested for presence.
    if unsafe { SENT_STACKS.get(&hash) }.is_some() {
        *sent = high;
        return walked;
    }
    thread.stack.head = head;
    for at in 0..MAX_WALKED {
        if at >= frames {
            break;
        }
        let frame = &mut thread.stack.frames[at & (FRAME_ROOM - 1)];
        // Without a branch where there are no modules: older verifiers follow each way of each frame.
        let code = if tell_modules() != 0 {
            frame.code(&head)
        } else {
            frame.code_and_owner & CODE_ADDRESS
        };
        if tell_modules() != 0
            && let Some(module) = frame.module()
        {
            // By the time that user space looks, another object may be there.
            frame.set_class(user_word(module + OB_TYPE));
        }
        let _ = SENT_CODES.insert(&sent_code(head.tgid, code), &1, 0);
    }
    let bytes = size_of::<StackHead>() + (frames & 0xff) * size_of::<FrameRecord>();
    if bytes > size_of_val(&thread.stack) {
        return Walked::without(stack_state::UNREADABLE);
    }
    // SAFETY: the first `bytes` of the map value's stack record.
    let record =
        unsafe { core::slice::from_raw_parts((&raw const thread.stack).cast::<u8>(), bytes) };
    // The reader is woken: it reads the code objects of these frames before they can go.
    if RECORDS
        .output::<[u8]>(record, u64::from(aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP))
        .is_err()
    {
        lose(counter::STACKS_LOST);
        return Walked::without(stack_state::LOST);
    }
    let _ = SENT_STACKS.insert(&hash, &1, 0);
    walked
}
