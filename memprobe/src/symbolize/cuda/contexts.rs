//! On which device, and in which context, each thread works.
//!
//! The runtime has one context a device, the primary one, and a device for each thread, 0 at
//! first. The driver has a stack of contexts for each thread. Threads that were running before
//! memprobe looked may be anywhere.

use hashbrown::HashMap;

use crate::event::{DeviceIndex, Tid};

/// The most threads whose place is remembered.
const THREADS: usize = 65_536;

/// The most contexts whose device is remembered.
const CONTEXTS: usize = 65_536;

/// The deepest stack of contexts that is followed.
const DEPTH: usize = 64;

/// A context, where it is not a device's primary one.
pub type Context = Option<u64>;

/// Where a thread works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// Its device; `None` where it is not known.
    pub device: Option<DeviceIndex>,
    /// Its context.
    pub context: Context,
}

/// The devices and contexts of one process.
#[derive(Default)]
pub struct Contexts {
    /// Where a thread is of which nothing is known.
    first: Place,
    threads: HashMap<Tid, Vec<Place>>,
    known: HashMap<u64, Place>,
    /// By device: references to its primary context that were seen being taken.
    primary: HashMap<u64, u64>,
}

impl Contexts {
    /// Of a process that is looked at since before its first call: its threads begin on device 0.
    pub fn from_the_start() -> Self {
        Self {
            first: Place {
                device: Some(DeviceIndex(0)),
                context: None,
            },
            ..Self::default()
        }
    }

    /// Where a thread works.
    pub fn of(&self, tid: Tid) -> Place {
        let stack = self.threads.get(&tid);
        stack
            .and_then(|stack| stack.last())
            .copied()
            .unwrap_or(self.first)
    }

    /// `cudaSetDevice`, and the like.
    pub fn set_device(&mut self, tid: Tid, device: u64) {
        let place = primary(device);
        self.set(tid, place);
    }

    /// `cuCtxSetCurrent`.
    pub fn set_context(&mut self, tid: Tid, context: u64) {
        let place = self.place_of(context);
        self.set(tid, place);
    }

    fn set(&mut self, tid: Tid, place: Place) {
        let stack = self.stack(tid);
        stack.pop();
        stack.push(place);
    }

    /// `cuCtxPushCurrent`.
    pub fn push(&mut self, tid: Tid, context: u64) {
        let place = self.place_of(context);
        self.push_place(tid, place);
    }

    fn push_place(&mut self, tid: Tid, place: Place) {
        let first = self.first;
        let stack = self.stack(tid);
        if stack.is_empty() {
            stack.push(first);
        }
        if stack.len() >= DEPTH {
            stack.remove(0);
        }
        stack.push(place);
    }

    /// `cuCtxPopCurrent`.
    pub fn pop(&mut self, tid: Tid) {
        self.stack(tid).pop();
    }

    /// `cuCtxCreate`.
    pub fn create(&mut self, tid: Tid, context: u64, device: u64) {
        let place = Place {
            context: Some(context),
            ..primary(device)
        };
        self.learn(context, place);
        self.push_place(tid, place);
    }

    /// `cuCtxDestroy`.
    pub fn destroy(&mut self, context: u64) {
        self.known.remove(&context);
        for stack in self.threads.values_mut() {
            stack.retain(|place| place.context != Some(context));
        }
    }

    /// `cuDevicePrimaryCtxRetain`.
    pub fn retain_primary(&mut self, context: u64, device: u64) {
        self.learn(context, primary(device));
        if self.primary.len() < CONTEXTS || self.primary.contains_key(&device) {
            *self.primary.entry(device).or_default() += 1;
        }
    }

    /// `cuDevicePrimaryCtxRelease`: whether it was the last reference of those that were seen.
    pub fn release_primary(&mut self, device: u64) -> bool {
        match self.primary.get_mut(&device) {
            Some(references @ 2..) => {
                *references -= 1;
                false
            }
            Some(_) => {
                self.primary.remove(&device);
                true
            }
            None => false,
        }
    }

    fn learn(&mut self, context: u64, place: Place) {
        if self.known.len() < CONTEXTS || self.known.contains_key(&context) {
            self.known.insert(context, place);
        }
    }

    /// Where a context is; one of which nothing is known is its own, on a device unknown.
    fn place_of(&self, context: u64) -> Place {
        let unknown = Place {
            device: None,
            context: Some(context),
        };
        match context {
            0 => Place::default(),
            _ => self.known.get(&context).copied().unwrap_or(unknown),
        }
    }

    fn stack(&mut self, tid: Tid) -> &mut Vec<Place> {
        if self.threads.len() >= THREADS && !self.threads.contains_key(&tid) {
            self.threads.clear();
        }
        self.threads.entry(tid).or_default()
    }
}

/// A device by its ordinal, which is never large.
pub fn device(ordinal: u64) -> Option<DeviceIndex> {
    u8::try_from(ordinal as u32).ok().map(DeviceIndex)
}

fn primary(ordinal: u64) -> Place {
    Place {
        device: device(ordinal),
        context: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: Tid = Tid(1);

    fn on(device: u8, context: Context) -> Place {
        Place {
            device: Some(DeviceIndex(device)),
            context,
        }
    }

    #[test]
    fn a_thread_is_on_device_0_only_if_it_was_watched_from_the_start() {
        assert_eq!(Contexts::from_the_start().of(THREAD), on(0, None));
        assert_eq!(Contexts::default().of(THREAD), Place::default());
    }

    #[test]
    fn each_thread_has_its_own_device() {
        let mut contexts = Contexts::from_the_start();
        contexts.set_device(THREAD, 3);
        assert_eq!(contexts.of(THREAD), on(3, None));
        assert_eq!(contexts.of(Tid(2)), on(0, None));
    }

    #[test]
    fn contexts_are_a_stack() {
        let mut contexts = Contexts::from_the_start();
        contexts.create(THREAD, 0xc1, 1);
        assert_eq!(contexts.of(THREAD), on(1, Some(0xc1)));
        contexts.create(THREAD, 0xc2, 2);
        contexts.pop(THREAD);
        assert_eq!(contexts.of(THREAD), on(1, Some(0xc1)));
        contexts.push(THREAD, 0xc2);
        contexts.destroy(0xc2);
        assert_eq!(contexts.of(THREAD), on(1, Some(0xc1)));
        contexts.pop(THREAD);
        assert_eq!(contexts.of(THREAD), on(0, None));
    }

    #[test]
    fn a_primary_context_is_the_devices_own() {
        let mut contexts = Contexts::default();
        contexts.retain_primary(0xaa, 1);
        contexts.set_context(THREAD, 0xaa);
        assert_eq!(contexts.of(THREAD), on(1, None));
        contexts.set_context(THREAD, 0xbb);
        assert_eq!(
            contexts.of(THREAD).device,
            None,
            "a context of which nothing is known"
        );
        contexts.retain_primary(0xaa, 1);
        assert!(!contexts.release_primary(1));
        assert!(contexts.release_primary(1));
        assert!(!contexts.release_primary(1));
    }
}
