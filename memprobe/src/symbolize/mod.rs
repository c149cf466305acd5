//! Records to events: hashes become stacks with files, lines and functions, threads get names,
//! segments get devices.

mod segments;
mod stacks;
mod waiting;

pub mod python;

use std::collections::VecDeque;
use std::fs;
use std::sync::Arc;

use hashbrown::HashMap;
use memprobe_common::{DEVICE_UNKNOWN, MemoryRecord, stack_state};

use crate::decode::{MemoryKind, Record};
use crate::event::{
    Action, Address, Bytes, DeviceIndex, Event, MemoryEvent, NoStack, StackId, Tgid, Tid, TimeNs,
    Totals,
};
use crate::target::memory::ReadMemory;

use segments::SegmentDevices;
use stacks::{Pending, Stacks};
use waiting::{GraphTasks, Waiters};

/// Threads whose names are remembered; beyond that they are read again.
const THREAD_NAMES: usize = 65_536;

/// Turns the records of one process into events, in order.
pub struct Symbolizer<M> {
    tgid: Tgid,
    stacks: Stacks<M>,
    waiters: Waiters,
    graph_tasks: GraphTasks,
    names: HashMap<Tid, Arc<str>>,
    ready: SegmentDevices,
    /// Records in order, not yet events.
    queue: VecDeque<Queued>,
    /// How many of them were taken before the last [`Symbolizer::settle`].
    certain: usize,
    /// 0, or the last stack's place in the queue, counted from 1.
    unsettled: usize,
}

/// A record that waits for those behind it.
enum Queued {
    Memory(MemoryKind, MemoryRecord),
    Stack(Pending),
}

impl<M: ReadMemory> Symbolizer<M> {
    /// A symbolizer for one process, whose code objects are read through `memory`.
    /// Without `code`, as long as its Python is not known, stacks have no lines.
    pub fn new(tgid: Tgid, memory: M, code: Option<python::CodeCache>) -> Self {
        Self {
            tgid,
            stacks: Stacks::new(memory, code),
            waiters: Waiters::default(),
            graph_tasks: GraphTasks::default(),
            names: HashMap::new(),
            ready: SegmentDevices::default(),
            queue: VecDeque::new(),
            certain: 0,
            unsettled: 0,
        }
    }

    /// Takes the next record and reads what it names of the process's memory. Records of other
    /// processes are ignored.
    pub fn push(&mut self, record: Record) {
        match record {
            Record::Memory(kind, memory) if memory.tgid == self.tgid.0 => {
                self.queue.push_back(Queued::Memory(kind, memory));
            }
            Record::Stack(head, frames) if head.tgid == self.tgid.0 => {
                if let Some(pending) = self.stacks.read(head, frames) {
                    self.unsettled = self.queue.len() + 1;
                    self.queue.push_back(Queued::Stack(pending));
                }
            }
            Record::CodeFreed(freed) if freed.tgid == self.tgid.0 => {
                let pending = self.queue.iter_mut().filter_map(|queued| match queued {
                    Queued::Stack(pending) => Some(pending),
                    Queued::Memory(..) => None,
                });
                self.stacks.freed(&freed, pending);
            }
            Record::Memory(..) | Record::Stack(..) | Record::CodeFreed(_) | Record::Process(..) => {
            }
        }
    }

    /// Reads code objects by this from now on: the process's Python has become known, or it runs
    /// another one now.
    pub fn set_code(&mut self, code: python::CodeCache) {
        self.stacks.set_code(code);
    }

    /// As [`Self::settle`], where nothing of the process can follow.
    pub fn settle_all(&mut self) {
        self.settle();
        self.settle();
        self.ready.give_up();
    }

    /// Says that all records were taken that were there. A stack becomes an event only when all
    /// records that came before its code objects were read are taken too: they may say that one
    /// was freed.
    pub fn settle(&mut self) {
        let certain = std::mem::replace(&mut self.certain, self.queue.len());
        let ready = if self.unsettled == 0 {
            self.queue.len()
        } else {
            certain
        };
        for queued in self.queue.drain(..ready).collect::<Vec<_>>() {
            match queued {
                Queued::Memory(kind, memory) => self.push_memory(kind, &memory),
                Queued::Stack(pending) => {
                    if let Some((id, stack)) = self.stacks.define(pending) {
                        self.ready.push(Event::Stack(id, stack));
                    }
                }
            }
        }
        self.certain -= ready;
        self.unsettled = self.unsettled.saturating_sub(ready);
    }

    /// Whether records wait to be settled.
    pub fn is_unsettled(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Forgets who waits in `backward()`: a record that said so was lost, and what is known may be
    /// out of date.
    pub fn forget_waiting(&mut self) {
        self.waiters = Waiters::default();
        self.graph_tasks = GraphTasks::default();
    }

    /// Passes on an event that is not the kernel's, in its place in the stream.
    pub fn push_event(&mut self, event: Event) {
        self.ready.push(event);
    }

    /// The next event, in order.
    pub fn pop(&mut self) -> Option<Event> {
        self.ready.pop()
    }

    /// Lets go of events that wait for another which did not come.
    pub fn give_up(&mut self) {
        self.ready.give_up();
    }

    /// Whether an event waits for another.
    pub fn is_waiting(&self) -> bool {
        self.ready.is_waiting()
    }

    fn push_memory(&mut self, kind: MemoryKind, record: &MemoryRecord) {
        let tid = Tid(record.tid);
        let action = match kind {
            MemoryKind::Backward => {
                let stack = self.stack_of(tid, record);
                self.waiters.enter(tid, stack);
                self.graph_tasks.begin(record.addr, stack);
                return;
            }
            MemoryKind::Block if record.size < 0 => Action::Free,
            MemoryKind::Block => Action::Alloc,
            MemoryKind::OutOfMemory => Action::OutOfMemory,
            MemoryKind::SegmentAlloc => Action::SegmentAlloc,
            MemoryKind::SegmentFree => Action::SegmentFree,
        };
        let stack = self.stack_of(tid, record);
        if record.stack_state == stack_state::PYTHON {
            self.waiters.seen(tid, stack);
        }
        let segment = matches!(action, Action::SegmentAlloc | Action::SegmentFree);
        self.ready.push(Event::Memory(MemoryEvent {
            time: TimeNs(record.time_ns),
            tgid: self.tgid,
            tid,
            action,
            addr: Address(record.addr),
            size: Bytes(record.size.unsigned_abs()),
            device: (record.device != DEVICE_UNKNOWN).then_some(DeviceIndex(record.device)),
            totals: (!segment).then_some(Totals {
                allocated: Bytes(record.allocated),
                reserved: Bytes(record.reserved),
            }),
            stack,
        }));
    }

    /// The stack that a record names, defined in the stream before it is used.
    fn stack_of(&mut self, tid: Tid, record: &MemoryRecord) -> StackId {
        let reason = match record.stack_state {
            stack_state::NONE => {
                self.name(tid);
                return StackId::NONE;
            }
            stack_state::PYTHON => match self.stacks.by_hash(record.stack) {
                Some(id) => {
                    self.name(tid);
                    return id;
                }
                None => NoStack::Lost,
            },
            stack_state::NO_THREAD_STATE => NoStack::NoPythonThread,
            stack_state::NO_FRAMES => NoStack::NoPythonFrames,
            stack_state::UNREADABLE => NoStack::Unreadable,
            stack_state::LOST => NoStack::Lost,
            _ => NoStack::UnknownPython,
        };
        let thread = self.name(tid);
        let waiting = match (reason, record.stack) {
            (NoStack::Lost, _) => Err(reason),
            (_, 0) if is_engine_thread(&thread) => self.waiters.the_one(),
            (NoStack::NoPythonFrames, graph_task) if graph_task != 0 => {
                self.graph_tasks.waiting_for(graph_task).ok_or(reason)
            }
            _ => Err(reason),
        };
        let (id, defined) = match waiting {
            Ok(waiting) => self.stacks.waiting(&thread, waiting),
            Err(reason) => self.stacks.unknown(&thread, reason),
        };
        if let Some(stack) = defined {
            self.ready.push(Event::Stack(id, stack));
        }
        id
    }

    /// The thread's name, told in the stream before its first event.
    fn name(&mut self, tid: Tid) -> Arc<str> {
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
        }
        self.names.insert(tid, name.clone());
        self.ready.push(Event::Thread(tid, name.clone()));
        name
    }
}

/// Autograd's engine names its device threads so (torch/csrc/autograd/engine.cpp@v2.15.0,
/// `Engine::thread_init`).
fn is_engine_thread(name: &str) -> bool {
    name.starts_with("pt_autograd_")
}
