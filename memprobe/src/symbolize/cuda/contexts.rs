//! On which device, and in which context, each thread works.
//!
//! The driver has a stack of contexts for each thread. The runtime has one context a device, the primary
//! one, and a device for each thread, 0 at first; it makes the primary context of that device current when it
//! needs one (CUDA Runtime API, "Interactions with the CUDA Driver API"). Which context is which device's is
//! learned from the calls that say so: the runtimes of CUDA 11.8 to 13.0 get the primary context by a private
//! way, so the `cuCtxSetCurrent` within a call of theirs is all that there is.
//!
//! A wrong device is worse than none. Threads that were running before memprobe looked may be anywhere, and
//! calls that contradict what is believed make it unknown until it is said anew.

mod known;
mod thread;

use hashbrown::{HashMap, HashSet};

use crate::event::{DeviceIndex, Tid};

use known::{ContextOrigin, Known};
use thread::{StackedContext, Thread};

const THREADS: usize = 65_536;
const CONTEXTS: usize = 65_536;

/// A context, where it is not a device's primary one.
pub type ContextHandle = Option<u64>;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ThreadContext {
    /// Its device; `None` where it is not known.
    pub device: Option<DeviceIndex>,
    pub context: ContextHandle,
}

impl ThreadContext {
    /// In the primary context of a device.
    fn primary(device: DeviceIndex) -> Self {
        Self {
            device: Some(device),
            context: None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallerKind {
    /// The runtime whose functions are probed: its device for the thread is known.
    Runtime,
    /// The program, or a copy of the runtime inside of a library.
    Other,
}

/// The context that a call of the runtime has made current.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// None: it works in the one that is current.
    Nothing,
    Context(u64),
    /// Taken off the thread's stack.
    Popped,
}

#[derive(Default)]
pub struct CudaContexts {
    /// A thread of which nothing is known.
    first: Thread,
    threads: HashMap<Tid, Thread>,
    known: Known,
    /// By device: references to its primary context that were seen being taken.
    references: HashMap<DeviceIndex, u64>,
    /// True if every probed call since the process's first was seen.
    saw_everything: bool,
    /// True once the runtime was used, which takes references unseen.
    runtime_was_used: bool,
    /// Devices on which the runtime was seen to work: it keeps their primary contexts until it is reset.
    held_by_runtime: HashSet<DeviceIndex>,
    /// True once a context of unknown origin was set: something takes references unseen.
    saw_stranger: bool,
    /// By green context: its device, and the context made of it.
    greens: HashMap<u64, (DeviceIndex, ContextHandle)>,
}

impl CudaContexts {
    /// Contexts of a process watched from before its first call: its threads begin without a context, and
    /// on device 0 for the runtime.
    pub fn from_the_start() -> Self {
        Self {
            first: Thread::without_context(),
            saw_everything: true,
            ..Self::default()
        }
    }

    /// Device and context of a thread for calls of this kind.
    pub fn of(&self, tid: Tid, caller: CallerKind) -> ThreadContext {
        let top = self.threads.get(&tid).unwrap_or(&self.first).top();
        let place = top.context.map(|context| self.known.place_of(context));
        match (caller, top.runtime, place) {
            (CallerKind::Runtime, Some(device), _) => ThreadContext::primary(device),
            // The runtime may put off making its device's context current until it needs it.
            (CallerKind::Other, Some(device), Some(place)) if place.device != Some(device) => {
                ThreadContext::default()
            }
            (_, _, place) => place.unwrap_or_default(),
        }
    }

    /// `cudaSetDevice`, and the context that it has made current. "Any device memory subsequently allocated
    /// from this host thread using cudaMalloc() […] will be physically resident on device" (CUDA Runtime API).
    pub fn set_device(&mut self, tid: Tid, device: u64, bound: Bound) {
        self.runtime_was_used = true;
        let Some(device) = self::device(device) else {
            self.thread(tid).forget();
            return;
        };
        if let Bound::Context(context) = bound {
            self.learn_by_name(context, device);
        }
        let thread = self.thread(tid);
        match bound {
            Bound::Nothing => {}
            Bound::Context(context) => thread.set(StackedContext::of(context)),
            Bound::Popped => thread.pop(),
        }
        thread.set_runtime(device);
    }

    /// A call of the runtime, other than those that set the device, has made a context current or none.
    pub fn run(&mut self, tid: Tid, bound: Bound) {
        self.runtime_was_used = true;
        let top = self.thread(tid).top();
        match bound {
            Bound::Popped => self.thread(tid).pop(),
            Bound::Nothing => self.check_device(tid, top),
            Bound::Context(context) => {
                let bound_to = self.known.device_of(context);
                let runtime = match (bound_to, top.runtime) {
                    (Some(known), Some(device)) if known != device => {
                        self.known.remove(context);
                        None
                    }
                    (None, Some(device)) => {
                        self.learn_by_guess(context, device);
                        Some(device)
                    }
                    (_, runtime) => runtime,
                };
                let entry = StackedContext {
                    runtime,
                    ..StackedContext::of(context)
                };
                self.thread(tid).set(entry);
            }
        }
    }

    /// The runtime has worked on its device without making a context current: its context is the current
    /// one, so what was believed of another is not so.
    fn check_device(&mut self, tid: Tid, top: StackedContext) {
        let (Some(context), Some(device)) = (top.context, top.runtime) else {
            return;
        };
        if self.known.is_of_another(context, device) {
            self.known.remove(context);
            self.thread(tid).set(StackedContext {
                context: None,
                runtime: Some(device),
            });
        }
    }

    /// `cuCtxSetCurrent`, of 0 for "popping the top of the CUDA context stack, a no-op if it is empty".
    pub fn set_context(&mut self, tid: Tid, context: u64, caller: CallerKind) {
        if context == 0 {
            return self.thread(tid).pop();
        }
        let thread = self.thread(tid);
        let (before, is_empty) = (thread.top(), thread.is_empty());
        let runtime = match caller {
            // Its device stays, whichever function of it that is.
            CallerKind::Runtime => before.runtime,
            CallerKind::Other => None,
        };
        if let (Some(device), true, None) = (runtime, is_empty, self.known.device_of(context)) {
            self.learn_by_guess(context, device);
        }
        self.note_stranger(context);
        self.thread(tid).set(StackedContext {
            runtime,
            ..StackedContext::of(context)
        });
    }

    /// `cuCtxPushCurrent`.
    pub fn push(&mut self, tid: Tid, context: u64) {
        self.note_stranger(context);
        self.thread(tid).push(StackedContext::of(context));
    }

    /// `cuCtxPopCurrent`, with the context that it wrote, where it did.
    pub fn pop(&mut self, tid: Tid, popped: ContextHandle) {
        let thread = self.thread(tid);
        let expected = thread.top().context;
        let is_wrong = expected.is_some() && popped.is_some() && expected != popped;
        if is_wrong || thread.is_empty() {
            thread.forget();
        } else {
            thread.pop();
        }
    }

    /// `cuCtxCreate`.
    pub fn create(&mut self, tid: Tid, context: u64, device: u64) {
        self.replace(context);
        if let Some(device) = self::device(device) {
            self.known
                .insert(context, device, ContextOrigin::Created { uses: 1 });
        }
        self.thread(tid).push(StackedContext::of(context));
    }

    /// `cuCtxDestroy`. "If ctx is current to the calling thread then ctx will also be popped from the current
    /// thread's context stack […]. If ctx is current to other threads, then ctx will remain current to those
    /// threads" (CUDA Driver API).
    pub fn destroy(&mut self, tid: Tid, context: u64) {
        let thread = self.thread(tid);
        match thread.top().context {
            Some(top) if top == context => thread.pop(),
            Some(_) => {}
            // It may have been the current one.
            None => thread.forget(),
        }
        self.replace(context);
    }

    /// `cuCtxAttach`, which gave the current context.
    pub fn attach(&mut self, context: u64) {
        self.known.add_use(context);
    }

    /// `cuCtxDetach`: whether that is known to have destroyed the context.
    pub fn detach(&mut self, tid: Tid, context: u64) -> bool {
        match self.known.drop_use(context) {
            Some(0) => {
                self.destroy(tid, context);
                true
            }
            Some(_) => false,
            None => {
                self.replace(context);
                self.thread(tid).forget();
                false
            }
        }
    }

    /// `cuGreenCtxCreate`.
    pub fn create_green(&mut self, green: u64, device: u64) {
        let Some(device) = self::device(device) else {
            return;
        };
        *self.references.entry(device).or_default() += 1;
        if self.greens.len() < CONTEXTS || self.greens.contains_key(&green) {
            self.greens.insert(green, (device, None));
        }
    }

    /// `cuCtxFromGreenCtx`: the context "will be treated as if it were a primary context" (CUDA Driver API).
    pub fn convert_green(&mut self, context: u64, green: u64) {
        let Some((device, made)) = self.greens.get_mut(&green) else {
            self.replace(context);
            return;
        };
        let device = *device;
        *made = Some(context);
        if self.known.device_of(context) != Some(device) {
            self.replace(context);
            self.known.insert(context, device, ContextOrigin::Green);
        }
    }

    /// `cuGreenCtxDestroy`: the device whose primary context is destroyed with that.
    pub fn destroy_green(&mut self, green: u64) -> Option<DeviceIndex> {
        let (device, context) = self.greens.remove(&green)?;
        if let Some(context) = context.filter(|context| self.known.is_green(*context)) {
            self.replace(context);
        }
        self.release(device)
    }

    /// `cuDevicePrimaryCtxRetain`.
    pub fn retain_primary(&mut self, context: u64, device: u64) {
        let Some(device) = self::device(device) else {
            return;
        };
        if self.known.is_of_another(context, device) {
            self.contradict(context);
        }
        if let Some(other) = self.known.primary_of(device).filter(|it| *it != context) {
            self.replace(other);
        }
        self.known.insert(context, device, ContextOrigin::Primary);
        *self.references.entry(device).or_default() += 1;
    }

    /// `cuDevicePrimaryCtxRelease`: the device whose primary context is destroyed with that, as it was the
    /// last reference.
    pub fn release_primary(&mut self, device: u64) -> Option<DeviceIndex> {
        self.release(self::device(device)?)
    }

    /// [`Self::release_primary`], after which the context is unknown if the reference may have been the last.
    fn release(&mut self, device: DeviceIndex) -> Option<DeviceIndex> {
        if let Some(references @ 2..) = self.references.get_mut(&device) {
            *references -= 1;
            return None;
        }
        let was_seen = self.references.remove(&device).is_some() && self.saw_everything;
        if self.held_by_runtime.contains(&device) {
            return None;
        }
        if was_seen && !self.runtime_was_used && !self.saw_stranger {
            return Some(device);
        }
        self.reset_primary(device);
        None
    }

    /// Forgets a device's destroyed primary context; returns those known to be it. Their numbers may be reused.
    pub fn reset_primary(&mut self, device: DeviceIndex) -> Vec<u64> {
        let gone = self.known.primaries_of(device);
        for context in &gone {
            self.replace(*context);
        }
        gone
    }

    /// `cuDevicePrimaryCtxReset`: the contexts that were known to be the device's primary one, or the
    /// thread's own where none was.
    ///
    /// That is how a copy of the runtime resets the thread's device, whose context it got unseen. A program
    /// that made such a context itself before memprobe came, has it current and resets another would be
    /// misunderstood; memory that stays counted after every `cudaDeviceReset` of a copy would be worse.
    pub fn reset_primary_on(&mut self, tid: Tid, device: DeviceIndex) -> Vec<u64> {
        let gone = self.reset_primary(device);
        let top = self.thread(tid).top();
        let is_unknown = |context: &u64| self.known.device_of(*context).is_none();
        match top.context.filter(is_unknown) {
            Some(context) if gone.is_empty() => {
                self.replace(context);
                vec![context]
            }
            _ => gone,
        }
    }

    /// `cudaDeviceReset`: the thread's device, and the contexts that were known to be its primary one.
    pub fn reset_device(&mut self, tid: Tid) -> (Option<DeviceIndex>, Vec<u64>) {
        let device = self.of(tid, CallerKind::Runtime).device;
        let gone = match device {
            Some(device) => {
                self.held_by_runtime.remove(&device);
                self.reset_primary(device)
            }
            None => {
                for context in self.known.primaries() {
                    self.replace(context);
                }
                self.held_by_runtime.clear();
                Vec::new()
            }
        };
        (device, gone)
    }

    /// A block of the caching allocator turned out to lie on another device than the thread was believed to work on.
    pub fn doubt(&mut self, tid: Tid) {
        if let Some(context) = self.thread(tid).top().context {
            self.known.remove(context);
        }
        self.thread(tid).forget();
    }

    /// `cudaSetDevice` has made the context current: it is the device's, unless it is believed to be another's.
    fn learn_by_name(&mut self, context: u64, device: DeviceIndex) {
        if self.known.is_of_another(context, device) {
            return self.contradict(context);
        }
        if let Some(other) = self.known.primary_of(device).filter(|it| *it != context) {
            self.replace(other);
        }
        self.known.learn(context, device);
        self.held_by_runtime.insert(device);
    }

    /// The runtime has made a context current of which nothing is known, on a thread whose device is known:
    /// it is the primary one of that device, unless another is.
    fn learn_by_guess(&mut self, context: u64, device: DeviceIndex) {
        match self.known.primary_of(device).filter(|it| *it != context) {
            Some(other) => self.known.remove(other),
            None => {
                self.known.learn(context, device);
                self.held_by_runtime.insert(device);
            }
        }
    }

    /// A context is not the one any more that it was: threads that had it current have an unknown one.
    fn replace(&mut self, context: u64) {
        self.known.remove(context);
        for thread in self.threads.values_mut() {
            thread.lose(context);
        }
    }

    /// A context is not the one that it was believed to be: what is believed of the threads on it may be just as wrong.
    fn contradict(&mut self, context: u64) {
        self.known.remove(context);
        for thread in self.threads.values_mut() {
            if thread.has(context) {
                thread.forget();
            }
        }
    }

    fn note_stranger(&mut self, context: u64) {
        self.saw_stranger |= self.known.device_of(context).is_none();
    }

    fn thread(&mut self, tid: Tid) -> &mut Thread {
        if self.threads.len() >= THREADS && !self.threads.contains_key(&tid) {
            self.threads.clear();
            // Those that come again are not at their beginning.
            self.first = Thread::default();
        }
        let first = &self.first;
        self.threads.entry(tid).or_insert_with(|| first.clone())
    }
}

/// A device by its ordinal, which is never large.
pub fn device(ordinal: u64) -> Option<DeviceIndex> {
    let index = u8::try_from(ordinal as u32).ok().map(DeviceIndex);
    index.filter(|index| !matches!(*index, DeviceIndex::CPU | DeviceIndex::UNKNOWN))
}

#[cfg(test)]
mod tests;
