//! Calls into CUDA to events: what each gave out or took back, how much, where and on which device.

mod contexts;
mod physical;
mod size;

use memprobe_common::CudaRecord;

use super::segments::{Giver, Live, Place, Segments, event_of};
use crate::cuda::{Api, Effect, Function, Named};
use crate::event::{
    Action, Address, Bytes, CudaCall, DeviceIndex, MemoryEvent, Space, StackId, Tgid, Tid, TimeNs,
};

use contexts::Contexts;
use physical::Physical;

pub use physical::Owner;

/// `CU_MEM_LOCATION_TYPE_DEVICE` (cuda.h).
const ON_DEVICE: u32 = 1;

/// What a process does with CUDA.
#[derive(Default)]
pub struct Cuda {
    contexts: Contexts,
    physical: Physical,
    /// Whether the runtime has called the driver unseen: it takes references of its own.
    runtime_was_used: bool,
}

/// One call, and who made it.
pub struct Call<'a> {
    /// The function.
    pub function: &'static Function,
    /// What the kernel says of it.
    pub record: &'a CudaRecord,
    /// Who asked.
    pub owner: Owner,
    /// Where.
    pub stack: StackId,
}

impl Call<'_> {
    fn event(&self, action: Action, addr: u64, size: Bytes, space: Space) -> MemoryEvent {
        let call = CudaCall {
            function: self.function.name,
            space,
        };
        MemoryEvent {
            action,
            addr: Address(addr),
            size,
            stack: self.stack,
            call: Some(call),
            ..event_of(
                TimeNs(self.record.time_ns),
                Tgid(self.record.tgid),
                self.tid(),
            )
        }
    }

    fn freed(&self, addr: u64) -> MemoryEvent {
        // What it was is filled in by whoever remembers it.
        MemoryEvent {
            stack: StackId::NONE,
            ..self.event(Action::CudaFree, addr, Bytes(0), Space::Device)
        }
    }

    fn tid(&self) -> Tid {
        Tid(self.record.tid)
    }
}

impl Cuda {
    /// Of a process that is looked at since before its first call.
    pub fn from_the_start() -> Self {
        Self {
            contexts: Contexts::from_the_start(),
            ..Self::default()
        }
    }

    /// Takes a call that succeeded; what follows from it goes to `segments`.
    pub fn apply(&mut self, call: &Call<'_>, segments: &mut Segments) {
        let record = call.record;
        let [first, second, ..] = record.args;
        if call.function.api == Api::Tracepoint {
            return tell_of_block(call, segments);
        }
        self.runtime_was_used |= call.function.api == Api::Runtime;
        match call.function.effect {
            Effect::Allocates { space, size } => {
                let place = match space {
                    Space::Array => Place::Array(record.out[0]),
                    _ => Place::Address(record.out[0]),
                };
                self.give(call, place, size::of(size, record), space, segments);
            }
            Effect::Registers => {
                let place = Place::Address(first);
                self.give(call, place, Bytes(second), Space::Registered, segments);
            }
            Effect::Frees(named) if first != 0 => {
                let place = match named {
                    Named::Address => Place::Address(first),
                    Named::Array => Place::Array(first),
                };
                let giver = match call.owner {
                    Owner::Allocator => Giver::Allocator,
                    Owner::Other => Giver::Other,
                };
                segments.take(place, giver, call.freed(first));
            }
            Effect::Frees(_) => {}
            Effect::CreatesPhysical
            | Effect::RetainsPhysical
            | Effect::ReleasesPhysical
            | Effect::Maps
            | Effect::Unmaps => self.apply_physical(call, segments),
            _ => self.apply_context(call, segments),
        }
    }

    fn give(
        &self,
        call: &Call<'_>,
        place: Place,
        size: Bytes,
        space: Space,
        segments: &mut Segments,
    ) {
        // Nothing was asked for, and nothing was given.
        if place.number() == 0 || size == Bytes(0) && space != Space::Array {
            return;
        }
        let current = self.contexts.of(call.tid());
        let event = MemoryEvent {
            device: current.device,
            ..call.event(Action::CudaAlloc, place.number(), size, space)
        };
        segments.give(place, current.context, event);
    }

    /// The functions of virtual memory management.
    fn apply_physical(&mut self, call: &Call<'_>, segments: &mut Segments) {
        let record = call.record;
        let [first, second, _, fourth, ..] = record.args;
        match call.function.effect {
            Effect::CreatesPhysical => {
                let (handle, device) = (record.out[0], located(record));
                self.physical.create(handle, call.owner, device);
                if call.owner == Owner::Other {
                    let event =
                        call.event(Action::CudaAlloc, handle, Bytes(second), Space::Virtual);
                    segments.give(Place::Handle(handle), None, MemoryEvent { device, ..event });
                }
            }
            Effect::RetainsPhysical => self.physical.retain(record.out[0], second),
            Effect::ReleasesPhysical => {
                if let Some((handle, Owner::Other)) = self.physical.release(first) {
                    segments.take(Place::Handle(handle), Giver::Other, call.freed(handle));
                }
            }
            Effect::Maps => {
                let mapped = self.physical.map(first, Bytes(second), fourth);
                if let Some((Owner::Allocator, device)) = mapped {
                    let event =
                        call.event(Action::SegmentAlloc, first, Bytes(second), Space::Virtual);
                    segments.give(Place::Address(first), None, MemoryEvent { device, ..event });
                }
            }
            _ => {
                for unmapped in self.physical.unmap(first, Bytes(second)) {
                    let place = match (unmapped.owner, unmapped.gone) {
                        (Owner::Allocator, _) => Place::Address(unmapped.addr),
                        (Owner::Other, Some(handle)) => Place::Handle(handle),
                        (Owner::Other, None) => continue,
                    };
                    segments.take(place, Giver::Other, call.freed(place.number()));
                }
            }
        }
    }

    /// The functions of devices and contexts.
    fn apply_context(&mut self, call: &Call<'_>, segments: &mut Segments) {
        let (tid, record) = (call.tid(), call.record);
        let [first, second, ..] = record.args;
        match call.function.effect {
            Effect::SetsDevice => self.contexts.set_device(tid, first),
            Effect::SetsContext => self.contexts.set_context(tid, first),
            Effect::PushesContext => self.contexts.push(tid, first),
            Effect::PopsContext => self.contexts.pop(tid),
            Effect::CreatesContext { device } => {
                let device = record.args.get(usize::from(device)).copied();
                self.contexts
                    .create(tid, record.out[0], device.unwrap_or(u64::MAX));
            }
            Effect::DestroysContext => {
                self.contexts.destroy(first);
                let gone = |_, live: &Live| !live.outlives_contexts && live.context == Some(first);
                segments.take_all(gone, call.freed(0));
            }
            Effect::RetainsPrimary => self.contexts.retain_primary(record.out[0], second),
            Effect::ReleasesPrimary => {
                let was_last = self.contexts.release_primary(first);
                if was_last && !self.runtime_was_used {
                    self.reset(contexts::device(first), call, segments);
                }
            }
            Effect::ResetsPrimary => self.reset(contexts::device(first), call, segments),
            Effect::ResetsDevice => {
                let device = self.contexts.of(tid).device;
                self.reset(device, call, segments);
            }
            _ => {}
        }
    }

    /// A device's primary context is gone, and all that was allocated in it.
    fn reset(&self, device: Option<DeviceIndex>, call: &Call<'_>, segments: &mut Segments) {
        let gone = |_, live: &Live| {
            !live.outlives_contexts && live.context.is_none() && live.device == device
        };
        segments.take_all(gone, call.freed(0));
    }
}

/// A tracepoint of the caching allocator: argument 0 is the block, 1 its size, 2 its device.
fn tell_of_block(call: &Call<'_>, segments: &mut Segments) {
    let [addr, size, device, ..] = call.record.args;
    match call.function.effect {
        Effect::Frees(_) => segments.take_block(call.freed(addr)),
        _ => segments.give_block(MemoryEvent {
            device: contexts::device(device),
            ..call.event(Action::CudaAlloc, addr, Bytes(size), Space::Device)
        }),
    }
}

/// The device of `CUmemAllocationProp { int type, handleTypes; struct { int type, id; } location; … }`
/// (cuda.h).
fn located(record: &CudaRecord) -> Option<DeviceIndex> {
    let location = record.description[1];
    (location as u32 == ON_DEVICE)
        .then(|| contexts::device(location >> 32))
        .flatten()
}

#[cfg(test)]
mod tests;
