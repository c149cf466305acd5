//! Turns calls into CUDA into events: allocation or free, bytes, kind of memory, device.

mod contexts;
mod physical;
mod size;

use hashbrown::HashMap;
use memprobe_common::CudaRecord;

use super::segments::{Live, MemoryKey, Owner, Segments, Until, event_of};
use crate::cuda::calls::{Api, Effect, Function, Lifetime, Named};
use crate::event::{
    Action, Address, Bytes, CudaCall, CudaMemoryKind, DeviceIndex, Event, MemoryEvent, StackId,
    Tgid, Tid, TimeNs,
};

use contexts::{Bound, CudaContexts};
use physical::Physical;

pub use contexts::CallerKind;

/// Most imported allocations that are open more than once; further openings are not counted.
const MAX_REOPENED: usize = 1 << 16;

/// `CU_MEM_LOCATION_TYPE_DEVICE` (cuda.h).
const ON_DEVICE: u32 = 1;

#[derive(Default)]
pub struct CudaResolver {
    contexts: CudaContexts,
    physical: Physical,
    /// Openings of another process's memory that are not closed, by address, beyond the first of each.
    reopened: HashMap<u64, u64>,
    /// True for a process watched from before its first call: the first use of a context is its begin.
    is_from_the_start: bool,
}

pub struct Call<'a> {
    pub function: &'static Function,
    pub record: &'a CudaRecord,
    pub owner: Owner,
    pub caller: CallerKind,
    pub stack: StackId,
}

impl Call<'_> {
    fn event(&self, action: Action, addr: u64, size: Bytes, space: CudaMemoryKind) -> MemoryEvent {
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
            ..self.event(Action::CudaFree, addr, Bytes(0), CudaMemoryKind::Device)
        }
    }

    fn entered(&self) -> TimeNs {
        TimeNs(self.record.entered_ns)
    }

    fn tid(&self) -> Tid {
        Tid(self.record.tid)
    }

    /// Caller whose device counts: the runtime, if it is the runtime that calls the driver.
    fn caller(&self) -> CallerKind {
        match self.function.api {
            Api::Runtime => CallerKind::Runtime,
            Api::Driver | Api::Tracepoint => self.caller,
        }
    }

    fn bound(&self) -> Bound {
        match self.record.context {
            0 => Bound::Nothing,
            CudaRecord::NO_CONTEXT => Bound::Popped,
            context => Bound::Context(context),
        }
    }
}

impl CudaResolver {
    /// State of a process watched from before its first call.
    pub fn from_the_start() -> Self {
        Self {
            contexts: CudaContexts::from_the_start(),
            is_from_the_start: true,
            ..Self::default()
        }
    }

    pub fn apply(&mut self, call: &Call<'_>, segments: &mut Segments) {
        let record = call.record;
        let [first, second, ..] = record.args;
        if call.function.api == Api::Tracepoint {
            return record_traced_block(call, segments);
        }
        for tid in segments.take_disputed() {
            self.contexts.doubt(tid);
        }
        self.follow_context(call);
        if record.error != 0 {
            return self.fail(call, segments);
        }
        self.announce_context(call, segments);
        match call.function.effect {
            Effect::Allocates {
                space,
                size,
                lifetime,
            } => {
                let place = match space {
                    CudaMemoryKind::Array => MemoryKey::Array(record.out[0]),
                    _ => MemoryKey::Address(record.out[0]),
                };
                let size = size::of(size, record);
                self.give(call, place, (size, space, lifetime), segments);
            }
            Effect::Registers => {
                let memory = (Bytes(second), CudaMemoryKind::Registered, Lifetime::Context);
                self.give(call, MemoryKey::Address(first), memory, segments);
            }
            Effect::Frees(named) if first != 0 => {
                let place = match named {
                    Named::Address => MemoryKey::Address(first),
                    Named::Array => MemoryKey::Array(first),
                };
                segments.record_free(place, call.owner, call.entered(), call.freed(first));
            }
            Effect::Frees(_) => {}
            Effect::OpensImported => self.open_imported(call, segments),
            Effect::ClosesImported => self.close_imported(call, segments),
            Effect::CreatesPhysical
            | Effect::RetainsPhysical
            | Effect::ImportsPhysical
            | Effect::ReleasesPhysical
            | Effect::Maps
            | Effect::Unmaps
            | Effect::FreesAddresses => self.apply_physical(call, segments),
            _ => self.apply_context(call, segments),
        }
    }

    /// Records a request for which CUDA had no memory. The caching allocator handles its own: it frees cached segments,
    /// asks again, and reports the error if that fails too.
    fn fail(&self, call: &Call<'_>, segments: &mut Segments) {
        let Some(wanted) = size::wanted(call.function.effect, call.record) else {
            return;
        };
        // The allocator over CUDA's own pools never asks twice, and reports nothing
        // (c10/cuda/CUDAMallocAsyncAllocator.cpp@v2.15.0).
        if call.owner == Owner::Allocator && !wanted.is_from_a_pool {
            return;
        }
        let device = match call.function.effect {
            Effect::CreatesPhysical => located(call.record),
            _ => self.contexts.of(call.tid(), call.caller()).device,
        };
        let event = call.event(Action::CudaOutOfMemory, 0, wanted.size, wanted.space);
        segments.push(Event::Memory(MemoryEvent { device, ..event }));
    }

    fn give(
        &self,
        call: &Call<'_>,
        place: MemoryKey,
        (size, space, lifetime): (Bytes, CudaMemoryKind, Lifetime),
        segments: &mut Segments,
    ) {
        // Nothing was asked for, and nothing was given.
        if place.number() == 0 || size == Bytes(0) && space != CudaMemoryKind::Array {
            return;
        }
        let current = self.contexts.of(call.tid(), call.caller());
        let event = MemoryEvent {
            device: current.device,
            ..call.event(Action::CudaAlloc, place.number(), size, space)
        };
        let until = match lifetime {
            Lifetime::Context => Until::ContextEnds(current.context),
            Lifetime::Process => Until::ProcessEnds,
        };
        segments.record_alloc(place, until, event);
    }

    /// A handle that the process has opened before gives the same address, and counts the openings (CUDA Driver API,
    /// `cuIpcOpenMemHandle`).
    fn open_imported(&mut self, call: &Call<'_>, segments: &mut Segments) {
        let addr = call.record.out[0];
        let key = MemoryKey::Address(addr);
        if addr == 0 {
            return;
        }
        if segments.is_live(key) {
            if self.reopened.len() < MAX_REOPENED {
                *self.reopened.entry(addr).or_default() += 1;
            }
            return;
        }
        self.reopened.remove(&addr);
        let current = self.contexts.of(call.tid(), call.caller());
        let event = MemoryEvent {
            device: current.device,
            ..call.event(Action::CudaAlloc, addr, Bytes(0), CudaMemoryKind::Imported)
        };
        segments.record_alloc(key, Until::ContextEnds(current.context), event);
    }

    fn close_imported(&mut self, call: &Call<'_>, segments: &mut Segments) {
        let [addr, ..] = call.record.args;
        match self.reopened.get_mut(&addr) {
            Some(1) => _ = self.reopened.remove(&addr),
            Some(more) => *more -= 1,
            None => {
                let key = MemoryKey::Address(addr);
                segments.record_free(key, call.owner, call.entered(), call.freed(addr));
            }
        }
    }

    fn apply_physical(&mut self, call: &Call<'_>, segments: &mut Segments) {
        let record = call.record;
        let [first, second, _, fourth, ..] = record.args;
        match call.function.effect {
            Effect::CreatesPhysical => {
                let (handle, device) = (record.out[0], located(record));
                let created = TimeNs(record.time_ns);
                self.physical.create(handle, call.owner, device, created);
                if call.owner == Owner::Other {
                    let place = MemoryKey::Handle(handle);
                    give_virtual(call, Action::CudaAlloc, place, device, segments);
                }
            }
            Effect::RetainsPhysical => self.physical.retain(record.out[0], second),
            Effect::ImportsPhysical => self.physical.import(record.out[0]),
            Effect::ReleasesPhysical => self.release(call, segments),
            Effect::Maps => {
                let size = Bytes(second);
                match self.physical.map(first, size, fourth) {
                    Some(mapped) if mapped.owner == Owner::Allocator => {
                        let place = MemoryKey::Address(first);
                        give_virtual(call, Action::SegmentAlloc, place, mapped.device, segments);
                    }
                    Some(mapped) => {
                        let event =
                            call.event(Action::SegmentWake, first, size, CudaMemoryKind::Virtual);
                        segments.record_map(mapped.handle, event);
                    }
                    None => {}
                }
            }
            Effect::FreesAddresses => {
                let event = call.event(
                    Action::SegmentFree,
                    first,
                    Bytes(second),
                    CudaMemoryKind::Virtual,
                );
                segments.record_address_free(event);
            }
            _ => self.unmap(call, segments),
        }
    }

    fn release(&mut self, call: &Call<'_>, segments: &mut Segments) {
        let [handle, ..] = call.record.args;
        let is_known = self.physical.is_known(handle);
        match self.physical.release(handle, call.entered()) {
            Some((handle, Owner::Other)) => {
                let (place, freed) = (MemoryKey::Handle(handle), call.freed(handle));
                segments.record_free(place, Owner::Other, call.entered(), freed);
            }
            None if !is_known && call.owner == Owner::Other => {
                segments.record_unknown_release(call.freed(handle));
            }
            _ => {}
        }
    }

    fn unmap(&mut self, call: &Call<'_>, segments: &mut Segments) {
        let [addr, size, ..] = call.record.args;
        let unmapped = self.physical.unmap(addr, Bytes(size));
        if unmapped.is_empty() && call.owner == Owner::Other {
            segments.record_unknown_unmap(call.tid(), addr, size);
        }
        for unmapped in unmapped {
            let place = match (unmapped.owner, unmapped.gone) {
                (Owner::Allocator, _) => MemoryKey::Address(unmapped.addr),
                (Owner::Other, Some(handle)) => MemoryKey::Handle(handle),
                (Owner::Other, None) => {
                    segments.record_unmap(unmapped.addr);
                    continue;
                }
            };
            let freed = call.freed(place.number());
            segments.record_free(place, Owner::Other, call.entered(), freed);
        }
    }

    /// Records a new context, with the line that made it. CUDA's runtime may make one in a private way: then the line of
    /// its first call with a stack counts.
    fn announce_context(&mut self, call: &Call<'_>, segments: &mut Segments) {
        let record = call.record;
        let context = match (call.function.effect, call.bound()) {
            (Effect::CreatesContext { .. }, _) => record.out[0],
            (Effect::RetainsPrimary, _) if self.is_from_the_start => record.out[0],
            (effect, Bound::Context(context)) if self.is_from_the_start && effect.wants_stack() => {
                context
            }
            _ => return,
        };
        let key = MemoryKey::Array(context);
        if context == 0 || segments.is_live(key) {
            return;
        }
        let device = match call.function.effect {
            Effect::CreatesContext { device } => {
                let device = record.args.get(usize::from(device));
                device.and_then(|device| contexts::device(*device))
            }
            Effect::RetainsPrimary => contexts::device(record.args[1]),
            _ => self.contexts.of(call.tid(), call.caller()).device,
        };
        let event = MemoryEvent {
            device,
            ..call.event(
                Action::CudaAlloc,
                context,
                Bytes(0),
                CudaMemoryKind::Context,
            )
        };
        let until = Until::ContextEnds(Some(context));
        segments.record_alloc(key, until, event);
    }

    /// The context that a function of CUDA made current on the way.
    fn follow_context(&mut self, call: &Call<'_>) {
        let (tid, bound) = (call.tid(), call.bound());
        match (call.function.api, bound) {
            // It says itself on which device.
            (Api::Runtime, _) if call.function.effect == Effect::SetsDevice => {}
            (Api::Runtime, _) => self.contexts.run(tid, bound),
            (_, Bound::Context(context)) => {
                self.contexts.set_context(tid, context, CallerKind::Other);
            }
            (_, Bound::Popped) => self.contexts.set_context(tid, 0, CallerKind::Other),
            (_, Bound::Nothing) => {}
        }
    }

    fn apply_context(&mut self, call: &Call<'_>, segments: &mut Segments) {
        let (tid, record) = (call.tid(), call.record);
        let [first, second, third, ..] = record.args;
        let written = record.out[0];
        match call.function.effect {
            Effect::SetsDevice => self.contexts.set_device(tid, first, call.bound()),
            Effect::SetsContext => self.contexts.set_context(tid, first, call.caller),
            Effect::PushesContext => self.contexts.push(tid, first),
            Effect::PopsContext => {
                let popped = Some(written).filter(|context| first != 0 && *context != 0);
                self.contexts.pop(tid, popped);
            }
            Effect::CreatesContext { device } => {
                let device = record.args.get(usize::from(device));
                let device = device.copied().unwrap_or(u64::MAX);
                self.contexts.create(tid, written, device);
            }
            Effect::DestroysContext => {
                self.contexts.destroy(tid, first);
                end(&[first], None, call, segments);
            }
            Effect::AttachesContext => self.contexts.attach(written),
            Effect::DetachesContext => {
                let was_last = self.contexts.detach(tid, first);
                if was_last {
                    end(&[first], None, call, segments);
                }
            }
            Effect::CreatesGreen => self.contexts.create_green(written, third),
            Effect::ConvertsGreen => self.contexts.convert_green(written, second),
            Effect::DestroysGreen => {
                if let Some(device) = self.contexts.destroy_green(first) {
                    self.end_primary(device, call, segments);
                }
            }
            Effect::RetainsPrimary => self.contexts.retain_primary(written, second),
            Effect::ReleasesPrimary => {
                if let Some(device) = self.contexts.release_primary(first) {
                    self.end_primary(device, call, segments);
                }
            }
            Effect::ResetsPrimary => {
                if let Some(device) = contexts::device(first) {
                    let contexts = self.contexts.reset_primary_on(tid, device);
                    end(&contexts, Some(Some(device)), call, segments);
                }
            }
            Effect::ResetsDevice => {
                let (device, contexts) = self.contexts.reset_device(tid);
                end(&contexts, Some(device), call, segments);
            }
            _ => {}
        }
    }

    fn end_primary(&mut self, device: DeviceIndex, call: &Call<'_>, segments: &mut Segments) {
        let contexts = self.contexts.reset_primary(device);
        end(&contexts, Some(Some(device)), call, segments);
    }

    /// Calls were missed: where threads work is not known any more.
    pub fn forget_contexts(&mut self) {
        self.contexts = CudaContexts::default();
    }
}

/// Records memory, of the size in argument 1, that belongs to its owner until the process ends.
fn give_virtual(
    call: &Call<'_>,
    action: Action,
    place: MemoryKey,
    device: Option<DeviceIndex>,
    segments: &mut Segments,
) {
    let size = Bytes(call.record.args[1]);
    let event = call.event(action, place.number(), size, CudaMemoryKind::Virtual);
    segments.record_alloc(place, Until::ProcessEnds, MemoryEvent { device, ..event });
}

/// Contexts are gone, and the primary one of a device, with all that was allocated in them.
fn end(
    contexts: &[u64],
    primary: Option<Option<DeviceIndex>>,
    call: &Call<'_>,
    segments: &mut Segments,
) {
    let gone = |_, live: &Live| match live.until {
        Until::ContextEnds(Some(context)) => contexts.contains(&context),
        Until::ContextEnds(None) => primary == Some(live.device),
        Until::ProcessEnds => false,
    };
    segments.free_matching(gone, call.entered(), call.freed(0));
}

/// A tracepoint of the caching allocator: argument 0 is the block, 1 its size, 2 its device.
fn record_traced_block(call: &Call<'_>, segments: &mut Segments) {
    let [addr, size, device, ..] = call.record.args;
    match call.function.effect {
        Effect::Frees(_) => segments.record_block_free(call.freed(addr)),
        _ => segments.record_block(MemoryEvent {
            device: contexts::device(device),
            ..call.event(Action::CudaAlloc, addr, Bytes(size), CudaMemoryKind::Device)
        }),
    }
}

/// The device of `CUmemAllocationProp { int type, handleTypes; struct { int type, id; } location; … }` (cuda.h).
fn located(record: &CudaRecord) -> Option<DeviceIndex> {
    let location = record.description[1];
    contexts::device(location >> 32).filter(|_| location as u32 == ON_DEVICE)
}

#[cfg(test)]
mod tests;
