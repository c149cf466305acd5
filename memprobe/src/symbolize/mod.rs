//! Turns records into events: resolves stack hashes to files, lines and functions, names threads, and assigns
//! devices to segments.

mod cpu;
mod cuda;
mod demangle;
pub mod marks;
pub mod native;
mod nodes;
pub mod readings;
mod segments;
mod shapes;
mod stacks;
mod waiting;

use std::collections::VecDeque;
use std::fs;
use std::sync::Arc;

use hashbrown::HashMap;
use memprobe_common::{
    CudaRecord, DEVICE_UNKNOWN, MarkRecord, MemoryRecord, NodeEnteredRecord, NodeMadeRecord,
    ShapeRecord, stack_state,
};

use crate::cuda::calls::{self, Api};
use crate::decode::{MemoryKind, PurposeHint, Record, StackCopy};
use crate::event::{
    Action, Address, Bytes, DeviceIndex, Event, Frame, MemoryEvent, NoStack, PhaseMark, PurposeId,
    StackId, Tgid, Tid, TimeNs, Totals,
};
use crate::process::memory::ReadMemory;
use crate::python::CodeCache;
use crate::torch::module_calls::{ModuleCalls, NameModules};

use cpu::CpuAllocatorTotals;
use cuda::{Call, CallerKind, CudaResolver};
use native::{NativeCode, NativeStack};
use nodes::{NodeName, Nodes};
use readings::{Readings, SegmentClaim, TimedReading};
use segments::{Owner, Segments, event_of};
use shapes::PurposeInterner;
use stacks::{Interned, Pending, Stacks, Wait};
use waiting::{GraphTasks, Waiters};

/// The most thread names in the cache; it is cleared when full.
const THREAD_NAMES: usize = 65_536;

/// The most records that wait behind a stack whose module has no name yet.
const MAX_WAITING: usize = 1 << 14;

pub struct Symbolizer<M> {
    tgid: Tgid,
    /// The reason for missing stacks while the kernel programs have no Python layout.
    no_python: NoStack,
    stacks: Stacks<M>,
    shapes: PurposeInterner,
    cpu: CpuAllocatorTotals,
    waiters: Waiters,
    graph_tasks: GraphTasks,
    nodes: Nodes,
    names: HashMap<Tid, Arc<str>>,
    /// The thread of the last event, whose name was emitted.
    last_thread: Option<Tid>,
    /// The last stack of a thread that another waits for.
    last_waiting: Option<WaitingStack>,
    native: NativeCode,
    cuda: CudaResolver,
    ready: Segments,
    /// Records in order that are not events yet.
    queue: VecDeque<Queued>,
    /// Tensors of the queued blocks that have one, in order.
    tensors: VecDeque<ShapeRecord>,
    readings: Readings,
    /// The number of queued records that were there at the last [`Symbolizer::settle`].
    certain: usize,
    /// The position in the queue of the last stack, counted from 1; 0 for none.
    unsettled: usize,
    /// True if [`Symbolizer::push_known`] made events since the last [`Symbolizer::settle_known`].
    has_known: bool,
}

/// A record from which nothing was read yet, or what was read from it. Small, as each moves into and out of the queue.
enum Queued {
    Stack(Box<Pending>),
    NodeMade(NodeMadeRecord),
    /// The record and the name of its node.
    NodeEntered(NodeEnteredRecord, NodeName),
    Memory(MemoryKind, MemoryRecord),
    /// A block whose tensor is the next in [`Symbolizer::tensors`].
    Tensor(MemoryKind, MemoryRecord),
    /// A block without a tensor, and the stack of its thread.
    MemoryWithStack(MemoryKind, Box<(MemoryRecord, StackCopy)>),
    Cuda(Box<CudaRecord>, Option<Box<StackCopy>>),
    Mark(Box<MarkRecord>),
}

impl Queued {
    /// Time of an event; `None` for what describes later events.
    fn time(&self) -> Option<TimeNs> {
        let time = match self {
            Self::Memory(_, memory) | Self::Tensor(_, memory) => memory.time_ns,
            Self::MemoryWithStack(_, block) => block.0.time_ns,
            Self::Cuda(call, _) => call.time_ns,
            Self::Mark(mark) => mark.time_ns,
            Self::Stack(_) | Self::NodeMade(_) | Self::NodeEntered(..) => return None,
        };
        Some(TimeNs(time))
    }
}

/// Purpose of a block, as far as the kernel's programs recorded it.
#[derive(Clone, Copy)]
enum RecordedPurpose<'a> {
    Unknown,
    Tensor(&'a ShapeRecord),
    Stack(&'a StackCopy),
}

/// The native code that called into CUDA.
enum CudaCaller {
    /// The direct caller, if the record carries no stack copy.
    From(Frame),
    /// The native stack, unwound from the copy that the kernel programs take of a thread without Python.
    Native(NativeStack),
}

impl CudaCaller {
    fn frame(&self) -> Option<&Frame> {
        match self {
            Self::From(frame) => Some(frame),
            Self::Native(stack) => stack.frames.first(),
        }
    }

    fn library(&self) -> Option<&Arc<str>> {
        self.frame()?.library.as_ref()
    }
}

/// The stack of a thread without Python frames, made of that of the thread that waits for it.
#[derive(Clone, Copy)]
struct WaitingStack {
    thread: Tid,
    waiting: StackId,
    stack: StackId,
}

#[derive(Clone, Copy)]
enum PythonStack {
    /// The stack of the thread itself.
    Own(StackId),
    /// The stack of the thread that waits for it.
    Waiting(StackId),
}

/// The possible CUDA use of a process before memprobe observed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PriorCudaUse {
    None,
    Unknown,
}

impl<M: ReadMemory> Symbolizer<M> {
    /// Creates a symbolizer for one process that reads code objects through `memory`. Stacks have no Python
    /// lines as long as `code` is `None`, that is, while the process's Python is unknown.
    pub fn new(tgid: Tgid, memory: M, code: Option<CodeCache>, past: PriorCudaUse) -> Self {
        Self {
            tgid,
            no_python: NoStack::UnknownPython,
            native: NativeCode::of(tgid),
            cuda: match past {
                PriorCudaUse::None => CudaResolver::from_the_start(),
                PriorCudaUse::Unknown => CudaResolver::default(),
            },
            stacks: Stacks::new(memory, code),
            shapes: PurposeInterner::default(),
            cpu: CpuAllocatorTotals::new(tgid, past),
            waiters: Waiters::default(),
            graph_tasks: GraphTasks::default(),
            nodes: Nodes::default(),
            names: HashMap::new(),
            last_thread: None,
            last_waiting: None,
            ready: Segments::default(),
            queue: VecDeque::new(),
            tensors: VecDeque::new(),
            readings: Readings::default(),
            certain: 0,
            unsettled: 0,
            has_known: false,
        }
    }

    /// Like [`Self::push`], where [`Self::settle_known`] follows: a block that would be alone in the queue, as most are,
    /// becomes an event without it.
    pub fn push_known(&mut self, record: Record<'_>) {
        let waits = !self.queue.is_empty() || !self.readings.is_empty();
        match record {
            Record::Memory(kind, memory, purpose) if !waits && Tgid(memory.tgid) == self.tgid => {
                self.has_known = true;
                let tensor;
                let purpose = match &purpose {
                    PurposeHint::None => RecordedPurpose::Unknown,
                    PurposeHint::Tensor(shape) => {
                        tensor = shape.read();
                        RecordedPurpose::Tensor(&tensor)
                    }
                    PurposeHint::Stack(copy) => RecordedPurpose::Stack(copy),
                };
                self.push_memory(kind, &memory, purpose);
            }
            other => self.push(other),
        }
    }

    /// Accepts the next record and reads the process memory that it refers to. Records of other processes are ignored.
    pub fn push(&mut self, record: Record<'_>) {
        if record.tgid() != self.tgid {
            return;
        }
        let queued = match record {
            Record::Memory(kind, memory, PurposeHint::None) => Queued::Memory(kind, memory),
            Record::Memory(kind, memory, PurposeHint::Tensor(shape)) => {
                self.tensors.push_back(shape.read());
                Queued::Tensor(kind, memory)
            }
            Record::Memory(kind, memory, PurposeHint::Stack(copy)) => {
                Queued::MemoryWithStack(kind, Box::new((memory, *copy)))
            }
            Record::Stack(head, frames) => {
                let Some(pending) = self.stacks.read(head, frames) else {
                    return;
                };
                self.unsettled = self.queue.len() + 1;
                Queued::Stack(Box::new(pending))
            }
            Record::CodeFreed(freed) => {
                let pending = self.queue.iter_mut().filter_map(|queued| match queued {
                    Queued::Stack(pending) => Some(&mut **pending),
                    _ => None,
                });
                return self.stacks.freed(&freed, pending);
            }
            Record::NodeMade(node) => Queued::NodeMade(node),
            Record::NodeEntered(node) => {
                let name = self.nodes.name(&self.stacks.memory, &node);
                Queued::NodeEntered(node, name)
            }
            Record::Cuda(call, copy) => Queued::Cuda(call, copy),
            Record::Mark(mark) => Queued::Mark(mark),
            Record::Process(..) => return,
        };
        self.queue.push_back(queued);
    }

    /// Reads the process's mappings now, because the process may end soon after its first calls into CUDA.
    pub fn look_at_code(&mut self) {
        self.native.look();
    }

    /// Reads code objects through `code` from now on: that of a Python that was detected.
    pub fn set_code(&mut self, code: CodeCache) {
        self.no_python = NoStack::UnknownPython;
        self.stacks.code = Some(code);
    }

    pub fn set_module_names(&mut self, names: Box<dyn NameModules + Send>) {
        self.stacks.modules.set_names(names);
    }

    /// Returns the code object that every call of a `torch.nn.Module` passes, if known. The kernel programs
    /// report modules only once they have it.
    pub fn module_call(&self) -> Option<u64> {
        self.stacks.modules.code()
    }

    /// Takes over what is known of the parent's code objects; in a forked child they are at the same addresses.
    pub fn inherit_code(&mut self, parent: &Self) {
        self.stacks.modules.inherit(&parent.stacks.modules);
    }

    pub fn modules(&self) -> &ModuleCalls {
        &self.stacks.modules
    }

    /// True if stacks that were already named may now have other modules. `ran` returns the CPU time of the process.
    pub fn look_at_modules(&mut self, ran: &dyn Fn() -> Option<u64>) -> bool {
        self.stacks.modules.look_again(ran)
    }

    /// Records that the process runs no Python; missing stacks then have another reason than an unknown version.
    pub fn runs_no_python(&mut self) {
        self.no_python = NoStack::NoPython;
    }

    /// Restarts the CPU allocator's totals in a forked child: the blocks inherited from the parent are unknown.
    pub fn inherit_cpu_memory(&mut self) {
        self.cpu = CpuAllocatorTotals::new(self.tgid, PriorCudaUse::Unknown);
    }

    /// Records that probes report every tensor of the process: blocks without one have no tensor.
    pub fn watch_all_tensors(&mut self) {
        self.shapes.watch_all();
    }

    /// Records that probes report every tensor whose making begins after `since`.
    pub fn watch_tensors_since(&mut self, since: TimeNs) {
        self.shapes.watch_since(since);
    }

    /// Like [`Self::settle`], for a process whose last record has arrived.
    pub fn settle_all(&mut self) {
        self.settle_up_to(Wait::Over);
        self.settle_up_to(Wait::Over);
        self.ready.give_up();
    }

    /// Marks that every available record was pushed. A stack becomes an event only after every record older
    /// than the read of its code objects was pushed: one of them may report a freed code object. A stack whose
    /// module still has no name waits for the name too.
    pub fn settle(&mut self) {
        self.settle_up_to(if self.queue.len() < MAX_WAITING {
            Wait::Allowed
        } else {
            Wait::Over
        });
    }

    /// Makes events of the queued records if no stack is among them: then they wait for no later record. Returns true if
    /// there are new events. All losses from before these records must be known.
    pub fn settle_known(&mut self) -> bool {
        let has_known = std::mem::take(&mut self.has_known);
        if self.unsettled > 0 || self.queue.is_empty() {
            return has_known;
        }
        self.settle_up_to(Wait::Allowed);
        true
    }

    fn settle_up_to(&mut self, wait: Wait) {
        let certain = std::mem::replace(&mut self.certain, self.queue.len());
        let ready = match self.unsettled {
            0 => self.queue.len(),
            _ => certain,
        };
        let waits = match self.unsettled {
            0 => None,
            _ => self.first_that_waits(ready, wait),
        };
        let ready = waits.unwrap_or(ready);
        for _ in 0..ready {
            let Some(queued) = self.queue.pop_front() else {
                break;
            };
            if !self.readings.is_empty()
                && let Some(time) = queued.time()
            {
                self.pass_readings(Some(time));
            }
            self.apply(queued);
        }
        self.certain -= ready;
        self.unsettled = self.unsettled.saturating_sub(ready);
    }

    /// Position of the first stack, among so many records, whose module still has no name.
    fn first_that_waits(&mut self, ready: usize, wait: Wait) -> Option<usize> {
        let mut queued = self.queue.iter_mut().take(ready);
        queued.position(|queued| match queued {
            Queued::Stack(pending) => !self.stacks.answer(pending, wait),
            _ => false,
        })
    }

    /// Passes on the readings from before a record, or all.
    fn pass_readings(&mut self, record: Option<TimeNs>) {
        while let Some(reading) = self.readings.take_before(record) {
            if let TimedReading::Segments(list, SegmentClaim::Listed) = &reading {
                self.ready.note_reading(list);
            }
            self.ready.push(reading.event());
        }
    }

    fn apply(&mut self, queued: Queued) {
        match queued {
            Queued::Memory(kind, memory) => {
                self.push_memory(kind, &memory, RecordedPurpose::Unknown)
            }
            Queued::Tensor(kind, memory) => {
                let tensor = self.tensors.pop_front();
                let purpose = tensor
                    .as_ref()
                    .map_or(RecordedPurpose::Unknown, RecordedPurpose::Tensor);
                self.push_memory(kind, &memory, purpose);
            }
            Queued::MemoryWithStack(kind, block) => {
                let (memory, copy) = &*block;
                self.push_memory(kind, memory, RecordedPurpose::Stack(copy));
            }
            Queued::NodeMade(node) => {
                let forward = self.stack_of(Tid(node.tid), node.stack_state, node.stack);
                self.nodes.make(&node, forward);
            }
            Queued::NodeEntered(node, name) => self.nodes.enter(&node, name),
            Queued::Stack(pending) => {
                if let Some((id, stack)) = self.stacks.define(*pending) {
                    self.ready.push(Event::Stack(id, stack));
                }
            }
            // Symbols are read only now: it takes time in which code objects may be freed.
            Queued::Cuda(call, copy) => {
                let called = match copy {
                    Some(copy) => CudaCaller::Native(self.native.unwind(call.caller, &copy)),
                    None => CudaCaller::From(self.native.caller(call.caller)),
                };
                self.push_call(&call, called);
            }
            Queued::Mark(mark) => self.push_mark(&mark),
        }
    }

    /// True if records wait for [`Self::settle`].
    pub fn is_unsettled(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Forgets the threads that wait in `backward()`: records were lost, so that the state may be outdated.
    pub fn forget_waiting(&mut self) {
        self.waiters = Waiters::default();
        self.graph_tasks = GraphTasks::default();
    }

    /// Forgets the nodes of the forward pass: others were made without a record.
    pub fn forget_nodes(&mut self) {
        self.nodes = Nodes::default();
    }

    /// Records that no probes report tensors from a time on.
    pub fn watch_no_tensors(&mut self, since: TimeNs) {
        self.shapes.watch_none(since);
    }

    /// Returns the stack of blocks that were allocated while the probes were off, and its definition if it is new.
    pub fn stack_without_probes(&mut self) -> (StackId, Option<Event>) {
        let (id, new) = self.stacks.unknown(&"".into(), NoStack::ProbesOff);
        (id, new.map(|stack| Event::Stack(id, stack)))
    }

    /// Forgets the device of every thread, after a call that could have changed it was lost.
    pub fn forget_devices(&mut self) {
        self.cuda.forget_contexts();
    }

    /// Inserts an event that is not from the kernel, in its place in the stream.
    pub fn push_event(&mut self, event: Event) {
        self.ready.push(event);
    }

    /// Marks that the process mapped a library.
    pub fn library_mapped(&mut self) {
        self.native.library_mapped();
    }

    /// Accepts a reading, which becomes an event after the records from before it.
    pub fn push_reading(&mut self, reading: TimedReading) {
        self.readings.push(reading);
    }

    /// Marks that no record from before a reading is left.
    pub fn settle_readings(&mut self) {
        self.pass_readings(None);
    }

    /// True if a reading may still wait for records.
    pub fn has_readings(&self) -> bool {
        !self.readings.is_empty()
    }

    pub fn pop(&mut self) -> Option<Event> {
        self.ready.pop()
    }

    /// Releases events that wait for another event which did not arrive.
    pub fn give_up(&mut self) {
        self.ready.give_up();
    }

    pub fn is_waiting(&self) -> bool {
        self.ready.is_waiting()
    }

    fn push_memory(
        &mut self,
        kind: MemoryKind,
        record: &MemoryRecord,
        purpose: RecordedPurpose<'_>,
    ) {
        let tid = Tid(record.tid);
        let action = match kind {
            MemoryKind::CpuBlock | MemoryKind::CpuFree => {
                return self.push_cpu(kind, record, purpose);
            }
            MemoryKind::Backward => {
                let stack = self.stack_of(tid, record.stack_state, record.stack);
                self.waiters.enter(tid, stack);
                self.graph_tasks.begin(record.addr, stack);
                return;
            }
            MemoryKind::Block if record.size < 0 => Action::Free,
            MemoryKind::Block => Action::Alloc,
            MemoryKind::OutOfMemory => Action::OutOfMemory,
        };
        let stack = self.stack_of_memory(record);
        let shape = match action {
            Action::Free => PurposeId::NONE,
            _ => self.purpose_of(record, purpose),
        };
        self.ready.push(Event::Memory(MemoryEvent {
            action,
            addr: Address(record.addr),
            size: Bytes(record.size.unsigned_abs()),
            device: (record.device != DEVICE_UNKNOWN).then_some(DeviceIndex(record.device)),
            totals: Some(Totals::of(record.allocated, record.reserved)),
            stack,
            shape,
            ..event_of(TimeNs(record.time_ns), self.tgid, tid)
        }));
    }

    /// Emits an event of the CPU allocator, past the segment logic, which is the caching allocator's.
    fn push_cpu(&mut self, kind: MemoryKind, record: &MemoryRecord, purpose: RecordedPurpose<'_>) {
        let stack = self.stack_of_memory(record);
        let time = TimeNs(record.time_ns);
        if let Some(beginning) = self.cpu.begin(time) {
            self.ready.pass(Event::AtAttach(beginning));
        }
        let addr = Address(record.addr);
        let (action, size, shape) = match kind {
            MemoryKind::CpuFree => (Action::Free, self.cpu.free(addr), PurposeId::NONE),
            _ => {
                let size = Bytes(record.size.unsigned_abs());
                self.cpu.alloc(addr, size);
                (Action::Alloc, size, self.purpose_of(record, purpose))
            }
        };
        self.ready.pass(Event::Memory(MemoryEvent {
            action,
            addr,
            size,
            device: Some(DeviceIndex::CPU),
            totals: Some(self.cpu.totals()),
            stack,
            shape,
            ..event_of(time, self.tgid, Tid(record.tid))
        }));
    }

    /// Returns the purpose of a record's memory and defines it in the stream if it is new.
    fn purpose_of(&mut self, record: &MemoryRecord, purpose: RecordedPurpose<'_>) -> PurposeId {
        let (shape, purpose) = match purpose {
            RecordedPurpose::Unknown => (None, None),
            RecordedPurpose::Tensor(shape) => (Some(shape), None),
            RecordedPurpose::Stack(copy) => (None, self.native.purpose(copy)),
        };
        let (id, new) = self.shapes.of(record, shape, purpose);
        if let Some(new) = new {
            self.ready.push(Event::BlockPurpose(id, new));
        }
        id
    }

    fn push_call(&mut self, record: &CudaRecord, called: CudaCaller) {
        let Some(function) = calls::function(record.function) else {
            return;
        };
        let library = called.library().map_or("", |library| file_name(library));
        let owner = if library.starts_with("libc10_cuda.so") {
            Owner::Allocator
        } else {
            Owner::Other
        };
        let caller = if library.starts_with(Api::Runtime.library()) {
            CallerKind::Runtime
        } else {
            CallerKind::Other
        };
        let tid = Tid(record.tid);
        let stack = if record.wants_stack == 0 {
            self.introduce(tid);
            StackId::NONE
        } else {
            self.calling_stack(tid, record, called)
        };
        let call = Call {
            function,
            record,
            owner,
            caller,
            stack,
        };
        self.cuda.apply(&call, &mut self.ready);
    }

    /// Returns the stack of a call into CUDA: the native caller, then the Python stack.
    fn calling_stack(&mut self, tid: Tid, record: &CudaRecord, called: CudaCaller) -> StackId {
        let thread = self.name(tid);
        let waiting = self.stack_behind(&thread, record.stack_state, record.stack);
        if let Ok(PythonStack::Own(stack)) = waiting {
            self.waiters.seen(tid, stack);
        }
        let behind = match (waiting, &called) {
            (Ok(PythonStack::Own(stack)), CudaCaller::Native(_)) => return stack,
            (Ok(PythonStack::Own(stack)), CudaCaller::From(_)) => (stack, None),
            (Ok(PythonStack::Waiting(waiting)), _) => self.stacks.waiting(&thread, waiting),
            (Err(_), CudaCaller::Native(stack)) => {
                let interned = self.stacks.native(stack);
                return self.defined(interned);
            }
            (Err(reason), CudaCaller::From(_)) => self.stacks.unknown(&thread, reason),
        };
        let id = self.defined(behind);
        match called.frame() {
            Some(frame) => {
                let interned = self.stacks.called(id, frame);
                self.defined(interned)
            }
            None => id,
        }
    }

    fn push_mark(&mut self, record: &MarkRecord) {
        let Some((begins, class)) = marks::parse(&record.name) else {
            return;
        };
        let tid = Tid(record.tid);
        let stack = self.stack_of(tid, record.stack_state, record.stack);
        self.ready.push(Event::PhaseMark(PhaseMark {
            time: TimeNs(record.time_ns),
            tgid: self.tgid,
            tid,
            phase: begins,
            class: class.into(),
            stack,
        }));
    }

    fn stack_of_memory(&mut self, record: &MemoryRecord) -> StackId {
        let tid = Tid(record.tid);
        let stack = self.stack_of(tid, record.stack_state, record.stack);
        if record.stack_state == stack_state::PYTHON {
            self.waiters.seen(tid, stack);
        }
        match self.nodes.evaluated(tid, record.node) {
            Some((name, forward)) => {
                let name = (name, self.nodes.text(name));
                let interned = self.stacks.in_node(stack, name, forward);
                self.defined(interned)
            }
            None => stack,
        }
    }

    /// Returns the stack of a record and defines it in the stream if it is new.
    fn stack_of(&mut self, tid: Tid, state: u8, word: u64) -> StackId {
        self.introduce(tid);
        if state == stack_state::NONE {
            return StackId::NONE;
        }
        // Most stacks, without the name of their thread.
        if state == stack_state::PYTHON
            && let Some(stack) = self.stacks.by_hash(word)
        {
            return stack;
        }
        let thread = self.name(tid);
        let interned = match self.stack_behind(&thread, state, word) {
            Ok(PythonStack::Own(stack)) => (stack, None),
            Ok(PythonStack::Waiting(waiting)) => {
                return self.waiting_stack(tid, &thread, waiting);
            }
            Err(reason) => self.stacks.unknown(&thread, reason),
        };
        self.defined(interned)
    }

    /// Returns the stack of a thread that another waits for. A backward pass asks for the same one again and again.
    fn waiting_stack(&mut self, tid: Tid, thread: &Arc<str>, waiting: StackId) -> StackId {
        let is_it = |last: &WaitingStack| last.thread == tid && last.waiting == waiting;
        if let Some(last) = self.last_waiting.filter(is_it) {
            return last.stack;
        }
        let interned = self.stacks.waiting(thread, waiting);
        let stack = self.defined(interned);
        self.last_waiting = Some(WaitingStack {
            thread: tid,
            waiting,
            stack,
        });
        stack
    }

    /// Returns the Python stack of a thread's record, as far as it is known.
    fn stack_behind(&self, thread: &str, state: u8, word: u64) -> Result<PythonStack, NoStack> {
        let reason = match state {
            stack_state::PYTHON => match self.stacks.by_hash(word) {
                Some(id) => return Ok(PythonStack::Own(id)),
                None => NoStack::Lost,
            },
            stack_state::NO_THREAD_STATE => NoStack::NoPythonThread,
            stack_state::NO_FRAMES => NoStack::NoPythonFrames,
            stack_state::UNREADABLE => NoStack::Unreadable,
            stack_state::LOST => NoStack::Lost,
            _ => self.no_python,
        };
        match (reason, word) {
            (NoStack::Lost, _) => Err(reason),
            // A device thread of autograd's engine (`Engine::thread_init`, torch/csrc/autograd/engine.cpp@v2.15.0).
            (_, 0) if thread.starts_with("pt_autograd_") => {
                self.waiters.the_one().map(PythonStack::Waiting)
            }
            (NoStack::NoPythonFrames, graph_task) if graph_task != 0 => {
                let waiting = self.graph_tasks.waiting_for(graph_task);
                waiting.map(PythonStack::Waiting).ok_or(reason)
            }
            _ => Err(reason),
        }
    }

    fn defined(&mut self, (id, stack): Interned) -> StackId {
        if let Some(stack) = stack {
            self.ready.push(Event::Stack(id, stack));
        }
        id
    }

    /// Emits a thread's name before its first event.
    fn introduce(&mut self, tid: Tid) {
        if self.last_thread != Some(tid) {
            self.name(tid);
        }
    }

    /// Returns the thread's name and emits it before the thread's first event.
    fn name(&mut self, tid: Tid) -> Arc<str> {
        self.last_thread = Some(tid);
        if let Some(name) = self.names.get(&tid) {
            return name.clone();
        }
        let path = format!("/proc/{}/task/{}/comm", self.tgid.0, tid.0);
        let name: Arc<str> = match fs::read(path) {
            Ok(comm) => String::from_utf8_lossy(&comm).trim_end().into(),
            Err(_) => format!("thread {}", tid.0).into(),
        };
        if self.names.len() >= THREAD_NAMES {
            self.names.clear();
            self.last_waiting = None;
        }
        self.names.insert(tid, name.clone());
        self.ready.push(Event::Thread(tid, name.clone()));
        name
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests;
