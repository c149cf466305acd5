//! The plain data that crosses the kernel boundary: the records that memprobe's eBPF programs write for
//! user space, and the configuration that they read.
//!
//! `repr(C)`, explicit padding, sizes asserted, integers only: the reader checks every value
//! before it becomes an enum.
#![no_std]

mod cookie;

pub use cookie::{CudaCookie, Description, Operand, TracepointCookie};

/// Most Python frames of a stack that user space shows.
pub const MAX_FRAMES: usize = 128;

/// Most frames of a stack that the programs walk. That includes the interpreter's own frames (3.12 has one for
/// each call from C), which user space leaves out.
pub const MAX_WALKED: usize = 192;

/// Bytes of an interpreter frame that hold every field the walk needs, on CPython 3.9 to 3.15.
pub const FRAME_HEADER: usize = 112;

/// Bytes of a thread state that hold every field the walk needs, on CPython 3.9 to 3.15.
pub const THREAD_STATE: usize = 264;

/// Kinds of record in the ring buffer: the first byte of each.
pub mod record {
    /// [`super::MemoryRecord`]: a block was handed out (`size > 0`) or taken back (`size < 0`). A
    /// [`super::ShapeRecord`] follows if it is handed out for a tensor of known shape.
    pub const BLOCK: u8 = 1;
    /// [`super::MemoryRecord`]: the allocator ran out of memory; `size` is the request. A
    /// [`super::ShapeRecord`] follows as for a block.
    pub const OUT_OF_MEMORY: u8 = 2;
    /// [`super::CudaRecord`]: a function of CUDA that manages memory returned success, or found no memory.
    pub const CUDA_CALL: u8 = 3;
    /// [`super::CudaStackRecord`]: as [`CUDA_CALL`], with a piece of the thread's stack.
    pub const CUDA_CALL_WITH_STACK: u8 = 4;
    /// [`super::MemoryRecord`]: this thread entered autograd's engine and will wait there for the
    /// `GraphTask` at `addr`.
    pub const BACKWARD: u8 = 5;
    /// [`super::StackRecord`]: the frames behind a stack hash, sent before its first use.
    pub const STACK: u8 = 6;
    /// [`super::CodeRecord`]: a code object of a sent stack is about to be freed.
    pub const CODE_FREED: u8 = 7;
    /// [`super::MemoryRecord`]: the CPU allocator handed out a block of `size` bytes. A
    /// [`super::ShapeRecord`] follows as for [`BLOCK`].
    pub const CPU_BLOCK: u8 = 8;
    /// [`super::MemoryRecord`]: the CPU allocator is about to take a block back; the record has no size.
    pub const CPU_FREE: u8 = 9;
    /// [`super::BlockStackRecord`]: as [`BLOCK`] for a block that is handed out for no tensor, with a piece of
    /// the thread's stack.
    pub const BLOCK_WITH_STACK: u8 = 10;
    /// [`super::NodeMadeRecord`]: an operation of the forward pass made a node of autograd's graph.
    pub const NODE_MADE: u8 = 11;
    /// [`super::NodeEnteredRecord`]: the node that a thread's memory records name in [`super::MemoryRecord::node`].
    pub const NODE_ENTERED: u8 = 12;
    /// [`super::MarkRecord`]: PyTorch named the work that the program is about to do.
    pub const MARK: u8 = 13;
    /// [`super::ProcessRecord`]: a watched process made a child (`fork`, `vfork`, `clone`). The child is
    /// watched from its first instruction on.
    pub const FORKED: u8 = 32;
    /// [`super::ProcessRecord`]: a watched process runs another program now (`execve`).
    pub const EXECUTED: u8 = 33;
    /// [`super::ProcessRecord`]: the last thread of a watched process is ending. This is its last record.
    pub const EXITED: u8 = 34;
    /// [`super::ProcessRecord`]: the dynamic loader of a process has mapped libraries, or is about
    /// to.
    pub const LIBRARY_MAPPED: u8 = 35;
    /// [`super::ProcessRecord`]: a process that was not watched used a probed library and is watched
    /// from here on.
    pub const FOUND: u8 = 36;
}

/// Meaning of a [`MemoryRecord`]'s `stack`.
pub mod stack_state {
    /// No stack was asked for.
    pub const NONE: u8 = 0;
    /// `stack` is the hash of a Python stack.
    pub const PYTHON: u8 = 1;
    /// The thread has no Python thread state.
    pub const NO_THREAD_STATE: u8 = 2;
    /// The thread has a thread state that runs no Python; `stack` is the `GraphTask` that it works
    /// for, or 0.
    pub const NO_FRAMES: u8 = 3;
    /// Memory of the interpreter could not be read.
    pub const UNREADABLE: u8 = 4;
    /// The process has no [`super::PythonConfig`].
    pub const UNKNOWN_PYTHON: u8 = 5;
    /// The stack was walked, but the ring buffer had no space for its frames.
    pub const LOST: u8 = 6;
}

/// `c10::DeviceType::CPU` (c10/core/DeviceType.h@v2.15.0).
pub const DEVICE_TYPE_CPU: u8 = 0;

/// `c10::DeviceType::CUDA` (c10/core/DeviceType.h@v2.15.0).
pub const DEVICE_TYPE_CUDA: u8 = 1;

/// The device byte of records that cannot know their device.
pub const DEVICE_UNKNOWN: u8 = 0xff;

/// A call of a function of CUDA that succeeded or found no memory: the outermost one, if such functions call each
/// other. The meaning of the numbers depends on the function; user space knows it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(zerocopy::FromBytes))]
pub struct CudaRecord {
    /// [`record::CUDA_CALL`] or [`record::CUDA_CALL_WITH_STACK`].
    pub kind: u8,
    /// [`CudaCookie::function`].
    pub function: u8,
    /// One of [`stack_state`]; about the Python stack.
    pub stack_state: u8,
    /// [`CudaCookie::wants_stack`].
    pub wants_stack: u8,
    /// Thread, in the initial PID namespace.
    pub tid: u32,
    /// Process, in the initial PID namespace.
    pub tgid: u32,
    /// Its result: 0, or [`CudaRecord::OUT_OF_MEMORY`] of a function with [`CudaCookie::wants_stack`]. Nothing was
    /// written then: [`Self::out`] and [`Self::second_out`] are zeroes.
    pub error: u32,
    /// `bpf_ktime_get_ns`, when it returned.
    pub time_ns: u64,
    /// `bpf_ktime_get_ns`, when it was entered. A free takes effect after this time.
    pub entered_ns: u64,
    /// The arguments that came in registers.
    pub args: [u64; 6],
    /// The return address.
    pub caller: u64,
    /// The words above the return address at the entry: arguments that came on the stack.
    pub on_stack: [u64; 3],
    /// The first [`Description::bytes`] of the description at the entry, then zeroes; all zeroes where
    /// there is none.
    pub description: [u64; 5],
    /// The context that the last function with [`CudaCookie::sets_context`] within this call was called with:
    /// 0 where there was none, [`CudaRecord::NO_CONTEXT`] for a null pointer.
    pub context: u64,
    /// Words at the address in the first argument, when it returned.
    pub out: [u64; 4],
    /// The word at the address in the second argument, when it returned.
    pub second_out: u64,
    /// Hash of the Python stack, or what [`stack_state`] says.
    pub stack: u64,
}

impl CudaRecord {
    /// [`Self::context`] of `cuCtxSetCurrent(NULL)`, which takes a context off the thread's stack.
    pub const NO_CONTEXT: u64 = u64::MAX;

    /// `cudaErrorMemoryAllocation` (driver_types.h) and `CUDA_ERROR_OUT_OF_MEMORY` (cuda.h), which are the same.
    pub const OUT_OF_MEMORY: u32 = 2;

    /// Most records of failed calls that a process sends in a second.
    pub const MAX_FAILURES_PER_SECOND: u64 = 32;
}

/// Most bytes of a thread's stack that a record has.
pub const STACK_COPY: usize = 16 << 10;

/// Like [`STACK_COPY`], for a block without a tensor. The frame that requested it lies 2 to 4 KiB from the allocator's
/// report (measured on PyTorch 2.15.0).
pub const BLOCK_STACK_COPY: usize = 8 << 10;

/// The input for unwinding a thread's stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(zerocopy::FromBytes))]
pub struct ThreadStack<const N: usize> {
    /// The frame pointer.
    pub frame_pointer: u64,
    /// The innermost part of the stack; its address is the stack pointer.
    pub stack: Stretch<N>,
}

/// A [`CudaRecord`] of a thread that runs no Python, with its stack: the registers as they stand in
/// the caller, whose next instruction is [`CudaRecord::caller`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaStackRecord {
    /// The call.
    pub call: CudaRecord,
    /// The stack.
    pub thread: ThreadStack<STACK_COPY>,
}

/// A [`MemoryRecord`] of a block that was handed out for no tensor, with the thread's stack as it stands at
/// the entry of the allocator's report: the return address comes first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockStackRecord {
    /// The event.
    pub memory: MemoryRecord,
    /// The stack.
    pub thread: ThreadStack<BLOCK_STACK_COPY>,
}

/// One event of the allocator or of autograd's engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(zerocopy::FromBytes))]
pub struct MemoryRecord {
    /// One of [`record`], not [`record::STACK`].
    pub kind: u8,
    /// CUDA device ordinal, or [`DEVICE_UNKNOWN`].
    pub device: u8,
    /// One of [`stack_state`].
    pub stack_state: u8,
    /// Zero.
    pub pad: u8,
    /// Thread, in the initial PID namespace.
    pub tid: u32,
    /// Process, in the initial PID namespace.
    pub tgid: u32,
    /// The node that autograd's engine was evaluating on this thread: [`NodeEnteredRecord::number`] of the thread's
    /// last such record. 0 if it evaluated nothing, or the node is unknown.
    pub node: u32,
    /// `bpf_ktime_get_ns`.
    pub time_ns: u64,
    /// Block or segment.
    pub addr: u64,
    /// Bytes; negative where a block was taken back.
    pub size: i64,
    /// The allocator's `total_allocated` after this event.
    pub allocated: u64,
    /// The allocator's `total_reserved` after this event.
    pub reserved: u64,
    /// Hash of the Python stack, or what [`stack_state`] says.
    pub stack: u64,
}

/// A node of autograd's graph that the operation which is running made.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(zerocopy::FromBytes))]
pub struct NodeMadeRecord {
    /// [`record::NODE_MADE`].
    pub kind: u8,
    /// One of [`stack_state`].
    pub stack_state: u8,
    /// Zero.
    pub pad: u16,
    /// Thread, in the initial PID namespace.
    pub tid: u32,
    /// Process, in the initial PID namespace.
    pub tgid: u32,
    /// Zero.
    pub pad2: u32,
    /// The `torch::autograd::Node`.
    pub node: u64,
    /// Identity of the node: a later node at the same address has another.
    pub identity: u64,
    /// Hash of the Python stack, or what [`stack_state`] says.
    pub stack: u64,
}

/// Byte offsets in a `torch::autograd::PyNode` of the pointer to the Python object of its `torch.autograd.Function`:
/// from PyTorch 2.13 on, and before (torch/csrc/autograd/python_function.h).
pub const PYTHON_OBJECTS: [u64; 2] = [0x70, 0x1d8];

/// A node that autograd's engine evaluates. Sent before the thread's first memory record of the evaluation.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(zerocopy::FromBytes))]
pub struct NodeEnteredRecord {
    /// [`record::NODE_ENTERED`].
    pub kind: u8,
    /// Zero.
    pub pad: [u8; 3],
    /// Thread, in the initial PID namespace.
    pub tid: u32,
    /// Process, in the initial PID namespace.
    pub tgid: u32,
    /// Name of the node in [`MemoryRecord::node`], among those that the thread has sent.
    pub number: u32,
    /// The `torch::autograd::Node`.
    pub node: u64,
    /// Like [`NodeMadeRecord::identity`].
    pub identity: u64,
    /// The virtual table of its class.
    pub table: u64,
    /// Types of the Python objects behind the pointers at [`PYTHON_OBJECTS`]; 0 if there is none. If the node is a
    /// `PyNode`, one of them is the type of its object.
    pub python_types: [u64; 2],
}

/// Bytes of the longest name of a mark, with the zero byte at its end.
pub const MARK_NAME: usize = 96;

/// PyTorch's name of the work that it is about to do (`record_function`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(zerocopy::FromBytes))]
pub struct MarkRecord {
    /// [`record::MARK`].
    pub kind: u8,
    /// One of [`stack_state`].
    pub stack_state: u8,
    /// Zero.
    pub pad: u16,
    /// Thread, in the initial PID namespace.
    pub tid: u32,
    /// Process, in the initial PID namespace.
    pub tgid: u32,
    /// Zero.
    pub pad2: u32,
    /// `bpf_ktime_get_ns`.
    pub time_ns: u64,
    /// Hash of the Python stack, or what [`stack_state`] says.
    pub stack: u64,
    /// The name, up to its zero byte.
    pub name: [u8; MARK_NAME],
}

/// Most dimensions whose sizes a record has.
pub const MAX_DIMENSIONS: usize = 8;

/// Meaning of a [`ShapeRecord`]'s `layout`.
pub mod shape_layout {
    /// There is no shape.
    pub const NONE: u8 = 0;
    /// Elements lie side by side: there are as many as the product of the sizes.
    pub const DENSE: u8 = 1;
    /// Strides were given; `extent` is their reach.
    pub const STRIDED: u8 = 2;
    /// The sizes or strides could not be read.
    pub const UNREADABLE: u8 = 3;
}

/// The request for a tensor, as PyTorch passed it to the function that makes tensors. Nothing here has been checked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(zerocopy::FromBytes))]
pub struct ShapeRecord {
    /// One of [`shape_layout`].
    pub layout: u8,
    /// [`DEVICE_TYPE_CPU`] or [`DEVICE_TYPE_CUDA`].
    pub device_type: u8,
    /// `c10::ScalarType` (c10/core/ScalarType.h@v2.15.0).
    pub dtype: u8,
    /// Zero.
    pub pad: u8,
    /// Dimensions; the record has the sizes of the first [`MAX_DIMENSIONS`].
    pub dimensions: u32,
    /// Elements from the first to the last, for [`shape_layout::STRIDED`] with all sizes in the record.
    pub extent: u64,
    /// The sizes of the first dimensions; the rest is undefined.
    pub sizes: [u64; MAX_DIMENSIONS],
}

/// A [`MemoryRecord`] and the shape that follows it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShapedRecord {
    /// The event.
    pub memory: MemoryRecord,
    /// The tensor that it happened for.
    pub shape: ShapeRecord,
}

/// The head of a stack record; `count` [`FrameRecord`]s follow, innermost first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(zerocopy::FromBytes))]
pub struct StackHead {
    /// [`record::STACK`].
    pub kind: u8,
    /// 1 where there were more than [`MAX_WALKED`] frames.
    pub truncated: u8,
    /// Frames that follow.
    pub count: u8,
    /// One of [`grad_mode`].
    pub grad: u8,
    /// Process.
    pub tgid: u32,
    /// Name of this stack in [`MemoryRecord::stack`].
    pub hash: u64,
    /// The code object of the frames that name a module instead ([`FrameRecord::module`]).
    pub module_call: u64,
}

/// Bits of `c10::AutogradState` (c10/core/AutogradState.h@v2.0.1 to @v2.15.0). A thread that has not asked for
/// it yet has none of them set, and its grad mode is on.
pub mod grad_bit {
    /// `grad_mode_`.
    pub const GRAD: u8 = 1;
    /// `inference_mode_`.
    pub const INFERENCE: u8 = 2;
}

/// Recording of a thread's operations by PyTorch, for a later backward pass.
pub mod grad_mode {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// On.
    pub const ENABLED: u8 = 1;
    /// Off (`torch.no_grad()`).
    pub const DISABLED: u8 = 2;
    /// Off, and its tensors can never be recorded (`torch.inference_mode()`).
    pub const INFERENCE: u8 = 3;
}

/// A copy of one interpreter frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(zerocopy::FromBytes))]
pub struct FrameRecord {
    /// Address of the code object in the low 56 bits, `owner` of the frame in the high 8. (User
    /// addresses on x86-64 have at most 56 bits, also with five-level paging.) With
    /// [`Self::CALLS_MODULE`] it is the address of a module instead, and the code object is
    /// [`StackHead::module_call`].
    pub code_and_owner: u64,
    /// The frame's instruction pointer (`prev_instr` or `instr_ptr`); before 3.11 the word that
    /// begins with `f_lasti`, an int. With [`Self::CALLS_MODULE`] the class of the module in the high 48 bits
    /// (Python has no memory beyond those, unless it asks for it, and it does not), and of that word the low 16.
    pub instr: u64,
}

impl FrameRecord {
    /// The lowest bit of `owner` in [`Self::code_and_owner`].
    pub const OWNER_SHIFT: u32 = 56;

    /// The bit of [`Self::code_and_owner`] that a call of a `torch.nn.Module` has. No owner has it.
    pub const CALLS_MODULE: u64 = 1 << 63;

    /// Address of the code object, in the stack of this head.
    pub const fn code(&self, head: &StackHead) -> u64 {
        match self.module() {
            Some(_) => head.module_call,
            None => self.address(),
        }
    }

    /// The module that is called: the address of the call's `self`.
    pub const fn module(&self) -> Option<u64> {
        match self.code_and_owner & Self::CALLS_MODULE {
            0 => None,
            _ => Some(self.address()),
        }
    }

    /// Sets the class of the module that is called; `None` becomes 0.
    pub const fn set_class(&mut self, class: Option<u64>) {
        let class = match class {
            Some(class) => class << Self::CLASS_SHIFT,
            None => 0,
        };
        self.instr = class | self.low_instr();
    }

    /// The class of the module that is called: its `ob_type`; 0 if it could not be read.
    pub const fn class(&self) -> u64 {
        self.instr >> Self::CLASS_SHIFT
    }

    /// For a call of a module, the low 16 bits of the value that other frames have in [`Self::instr`].
    pub const fn low_instr(&self) -> u64 {
        self.instr & ((1 << Self::CLASS_SHIFT) - 1)
    }

    const CLASS_SHIFT: u32 = 16;

    /// The frame's `owner` (Include/internal/pycore_frame.h).
    pub const fn owner(&self) -> u8 {
        ((self.code_and_owner & !Self::CALLS_MODULE) >> Self::OWNER_SHIFT) as u8
    }

    const fn address(&self) -> u64 {
        self.code_and_owner & ((1 << Self::OWNER_SHIFT) - 1)
    }
}

/// Space for [`MAX_WALKED`] frames.
pub const FRAME_CAPACITY: usize = MAX_WALKED.next_power_of_two();

/// A stack record as the programs build it; only the frames in use are sent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StackRecord {
    /// The head.
    pub head: StackHead,
    /// Innermost first. As long as a power of two, so that an index can be masked: the verifier
    /// follows that.
    pub frames: [FrameRecord; FRAME_CAPACITY],
}

/// A copy of a stretch of the target's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(zerocopy::FromBytes))]
pub struct Stretch<const N: usize> {
    /// Its address.
    pub address: u64,
    /// Number of bytes that could be read.
    pub length: u64,
    /// The bytes; zero from `length` on.
    pub bytes: [u8; N],
}

/// Bytes of a code object that hold every field that is read, on CPython 3.9 to 3.15.
pub const CODE_HEAD: usize = 208;

/// A code object of a sent stack, with its names and lines, just before it is freed. User
/// space may not have read it yet, and another one may be allocated at its address.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRecord {
    /// [`record::CODE_FREED`].
    pub kind: u8,
    /// Zero.
    pub pad: [u8; 3],
    /// Process.
    pub tgid: u32,
    /// The code object.
    pub code: Stretch<CODE_HEAD>,
    /// `co_filename`.
    pub file: Stretch<320>,
    /// `co_name`.
    pub name: Stretch<160>,
    /// `co_linetable` or `co_lnotab`.
    pub lines: Stretch<2048>,
}

/// Layout of a CPython, for the stack walk: byte offsets. Data, not code, so that one
/// program serves every version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonConfig {
    /// Steps from a thread's pointer to the word that holds its thread state: the first is added
    /// to the thread pointer, each further one to the word read at the step before.
    pub tss_steps: [i32; 3],
    /// Number of [`Self::tss_steps`]: 1 to 3.
    pub tss_count: u32,
    /// `PyThreadState.thread_id`.
    pub ts_thread_id: u16,
    /// A second word that identifies a thread state: `PyThreadState.native_thread_id`, or
    /// `.id` if there is none.
    pub ts_identity: u16,
    /// `PyThreadState.cframe`, `.current_frame` or `.frame`.
    pub ts_frame: u16,
    /// `PyThreadState.base_frame`, a frame that runs nothing and lies below all others;
    /// [`Self::NONE`] where there is none.
    pub ts_base_frame: u16,
    /// `_PyCFrame.current_frame`; [`Self::NONE`] where the thread state holds the frame itself.
    pub cframe_current: u16,
    /// `_PyInterpreterFrame.f_code` or `.f_executable`, or `PyFrameObject.f_code`.
    pub f_code: u16,
    /// `_PyInterpreterFrame.previous` or `PyFrameObject.f_back`.
    pub f_previous: u16,
    /// `_PyInterpreterFrame.prev_instr` or `.instr_ptr`, or `PyFrameObject.f_lasti`.
    pub f_instr: u16,
    /// `_PyInterpreterFrame.owner`, or a byte that is always zero where frames have no owner.
    pub f_owner: u16,
    /// Bytes of a frame up to the end of the last of these fields: never more than
    /// [`FRAME_HEADER`].
    pub f_size: u16,
    /// `PyCodeObject.co_filename`; `co_name` is the next word.
    pub co_filename: u16,
    /// `PyCodeObject.co_linetable` or `.co_lnotab`.
    pub co_lines: u16,
    /// `0x030c` for 3.12; 0 where there is no Python that memprobe knows.
    pub version: u32,
    /// The first variable of a frame, which in a method is `self`: `_PyInterpreterFrame.localsplus` or
    /// `PyFrameObject.f_localsplus`.
    pub f_first_local: u16,
    /// Zero.
    pub pad: u16,
}

impl PythonConfig {
    /// The offset of a field that this version does not have.
    pub const NONE: u16 = 0xffff;

    /// Layout for a process without a Python that memprobe knows.
    pub const UNKNOWN: Self = Self {
        tss_steps: [0; 3],
        tss_count: 0,
        ts_thread_id: 0,
        ts_identity: 0,
        ts_frame: 0,
        ts_base_frame: 0,
        cframe_current: 0,
        f_code: 0,
        f_previous: 0,
        f_instr: 0,
        f_owner: 0,
        f_size: 0,
        co_filename: 0,
        co_lines: 0,
        version: 0,
        f_first_local: 0,
        pad: 0,
    };

    /// Offset of a frame's first variable, if it is within the header. Before 3.11 it lies behind
    /// it.
    pub const fn first_local_in_header(&self) -> Option<u16> {
        const LAST: u16 = (FRAME_HEADER - 8) as u16;
        match self.f_first_local {
            first @ 0..=LAST => Some(first),
            _ => None,
        }
    }
}

/// An event in the life of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "wire", derive(zerocopy::FromBytes))]
pub struct ProcessRecord {
    /// One of [`record::FORKED`] to [`record::FOUND`].
    pub kind: u8,
    /// Zero.
    pub pad: [u8; 3],
    /// The process, in the initial PID namespace.
    pub tgid: u32,
    /// The parent process, for [`record::FORKED`]; otherwise zero.
    pub parent: u32,
    /// Zero.
    pub pad2: u32,
    /// `bpf_ktime_get_ns`.
    pub time_ns: u64,
}

/// Configuration of one watched process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessConfig {
    /// Layout of its Python.
    pub python: PythonConfig,
    /// Part of every stack's hash. Counts up with every freed code object of a sent stack, from a number that no
    /// other process had (the time). So a stack is sent again when an address in it may belong to another code
    /// object, and when another process has this tgid.
    pub generation: u64,
    /// The variable with the `GraphTask` that a thread of autograd works for; module 0 if it is
    /// unknown.
    pub graph_task: ThreadLocal,
    /// The variable with the node of autograd's graph that a thread evaluates; module 0 if it is unknown.
    pub evaluating_node: ThreadLocal,
    /// The variable with a thread's byte of modes of `c10::AutogradState` ([`grad_bit`]); module 0 if it is
    /// unknown.
    pub autograd_state: ThreadLocal,
    /// Bits of [`process_flag`].
    pub flags: u64,
    /// The code object in which every call of a `torch.nn.Module` runs, with the module as its first
    /// variable; 0 if it is unknown.
    pub module_call: u64,
}

/// Bits of [`ProcessConfig::flags`].
pub mod process_flag {
    /// Child processes are watched too, with a copy of this configuration.
    pub const CHILDREN: u64 = 1;
    /// The memory of the CPU allocator is watched too.
    pub const CPU: u64 = 2;
    /// Blocks of CUDA devices that are handed out for no tensor come with a piece of the thread's stack.
    pub const BLOCK_STACKS: u64 = 4;
}

/// A thread-local variable of one library of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadLocal {
    /// The library's number among those with thread-local storage.
    pub module: u64,
    /// Byte offset of the variable in the library's block.
    pub offset: u64,
}

/// Marks in the programs' instructions, which user space replaces on kernels that know `may_goto`.
pub mod open_loop {
    /// Immediate of a conditional jump that leaves a loop.
    pub const MAY_LEAVE: u32 = 0x6d61_7967;
    /// Immediate of a move. Replaced by 0, it tells the programs that the jumps are replaced too.
    pub const IS_CLOSED: u32 = 0x6d61_7968;
}

/// Indices of the counters that the programs keep.
pub mod counter {
    /// Memory records for which the ring buffer had no space.
    pub const EVENTS_LOST: u32 = 0;
    /// Records of stacks, of threads in `backward()`, of autograd's nodes and of marks, for which the
    /// ring buffer had no space.
    pub const STACKS_LOST: u32 = 1;
    /// Records of the life of processes for which the ring buffer had no space.
    pub const PROCESSES_LOST: u32 = 2;
    /// Processes that could not be watched because the map of processes was full.
    pub const PROCESSES_REFUSED: u32 = 3;
    /// Events of threads for which the map of threads was full: their calls or stacks are unknown.
    pub const THREADS_REFUSED: u32 = 4;
    /// Failed calls of CUDA beyond [`super::CudaRecord::MAX_FAILURES_PER_SECOND`], which were not sent.
    pub const FAILURES_NOT_SENT: u32 = 5;
    /// The key of one process's losses of [`EVENTS_LOST`] or [`STACKS_LOST`], or of its [`FAILURES_NOT_SENT`].
    #[must_use]
    pub const fn of_process(tgid: u32, index: u32) -> u64 {
        (index as u64) << 32 | tgid as u64
    }

    /// Number of counters.
    pub const COUNT: u32 = 6;
}

const _: () = {
    assert!(size_of::<MemoryRecord>() == 64);
    assert!(size_of::<NodeMadeRecord>() == 40);
    assert!(size_of::<NodeEnteredRecord>() == 56);
    assert!(size_of::<MarkRecord>() == 32 + MARK_NAME);
    assert!(size_of::<ShapeRecord>() == 80);
    assert!(size_of::<ShapedRecord>() == 144);
    assert!(size_of::<StackHead>() == 24);
    assert!(size_of::<FrameRecord>() == 16);
    assert!(size_of::<StackRecord>() == 24 + 16 * FRAME_CAPACITY);
    assert!(size_of::<Stretch<CODE_HEAD>>() == 16 + CODE_HEAD);
    assert!(size_of::<CodeRecord>() == 8 + 4 * 16 + CODE_HEAD + 320 + 160 + 2048);
    assert!(size_of::<PythonConfig>() == 48);
    assert!(size_of::<ProcessConfig>() == 120);
    assert!(size_of::<ProcessRecord>() == 24);
    assert!(size_of::<CudaRecord>() == 208);
    assert!(size_of::<CudaStackRecord>() == 208 + 8 + 16 + STACK_COPY);
    assert!(size_of::<BlockStackRecord>() == 64 + 8 + 16 + BLOCK_STACK_COPY);
};
