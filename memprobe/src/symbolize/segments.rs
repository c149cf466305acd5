//! Which device a segment lies on.
//!
//! libcudart's calls do not say their device. The caching allocator asks for a segment and at
//! once hands out a block in it, on the same thread; that block's event names the device. So a
//! new segment is held back, with everything behind it, until its thread's next event.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::event::{Action, Address, Bytes, DeviceIndex, Event, MemoryEvent, Tid};

/// The most events that are held back for a segment's sake.
const HELD: usize = 65_536;

/// Segments that are remembered, so that a free can tell what was freed.
const REMEMBERED: usize = 1 << 20;

/// Events on their way, in order, with the devices of segments filled in.
#[derive(Default)]
pub struct SegmentDevices {
    held: VecDeque<Event>,
    /// Positions in `held`, counted from the first event ever, of segments without a device.
    waiting: Vec<Waiting>,
    /// The position of the front of `held`.
    front: u64,
    /// Live segments.
    segments: HashMap<Address, (Bytes, Option<DeviceIndex>)>,
}

struct Waiting {
    position: u64,
    tid: Tid,
    addr: Address,
    size: Bytes,
}

impl SegmentDevices {
    /// Takes the next event of the stream.
    pub fn push(&mut self, mut event: Event) {
        if let Event::Memory(memory) = &mut event {
            self.settle(memory);
            match memory.action {
                Action::SegmentAlloc => {
                    if self.segments.len() < REMEMBERED {
                        self.segments.insert(memory.addr, (memory.size, None));
                    }
                    self.waiting.push(Waiting {
                        position: self.front + self.held.len() as u64,
                        tid: memory.tid,
                        addr: memory.addr,
                        size: memory.size,
                    });
                }
                Action::SegmentFree => {
                    if let Some((size, device)) = self.segments.remove(&memory.addr) {
                        memory.size = size;
                        memory.device = device;
                    }
                }
                Action::Alloc | Action::Free | Action::OutOfMemory | Action::Held => {}
            }
        }
        self.held.push_back(event);
        if self.held.len() > HELD {
            self.waiting.clear();
        }
    }

    /// What `event` says of the segments that wait for their device.
    fn settle(&mut self, event: &MemoryEvent) {
        if self.waiting.is_empty() || event.action == Action::SegmentAlloc {
            return;
        }
        let (front, held, segments) = (self.front, &mut self.held, &mut self.segments);
        self.waiting.retain(|waiting| {
            if waiting.tid != event.tid {
                return true;
            }
            let inside = event
                .addr
                .0
                .checked_sub(waiting.addr.0)
                .is_some_and(|at| at < waiting.size.0);
            if event.action != Action::Alloc || !inside {
                return false;
            }
            if let Some((_, device)) = segments.get_mut(&waiting.addr) {
                *device = event.device;
            }
            let at = usize::try_from(waiting.position - front).unwrap_or(usize::MAX);
            if let Some(Event::Memory(segment)) = held.get_mut(at) {
                segment.device = event.device;
            }
            false
        });
    }

    /// The next event that need not wait any more.
    pub fn pop(&mut self) -> Option<Event> {
        if self
            .waiting
            .first()
            .is_some_and(|waiting| waiting.position <= self.front)
        {
            return None;
        }
        let event = self.held.pop_front()?;
        self.front += 1;
        Some(event)
    }

    /// Stops waiting: the segments held back so far keep an unknown device.
    pub fn give_up(&mut self) {
        self.waiting.clear();
    }

    /// Whether an event is held back.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{StackId, Tgid, TimeNs, Totals};

    fn event(action: Action, tid: u32, addr: u64, size: u64, device: Option<u8>) -> Event {
        Event::Memory(MemoryEvent {
            time: TimeNs(1),
            tgid: Tgid(1),
            tid: Tid(tid),
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: device.map(DeviceIndex),
            totals: device.map(|_| Totals::default()),
            stack: StackId::NONE,
        })
    }

    fn drain(devices: &mut SegmentDevices) -> Vec<(Action, Option<u8>, u64)> {
        std::iter::from_fn(|| devices.pop())
            .filter_map(|event| match event {
                Event::Memory(memory) => {
                    Some((memory.action, memory.device.map(|d| d.0), memory.size.0))
                }
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_segment_takes_the_device_of_the_block_that_follows_on_its_thread() {
        let mut devices = SegmentDevices::default();
        devices.push(event(Action::SegmentAlloc, 1, 0x1000, 0x1000, None));
        devices.push(event(Action::Alloc, 2, 0x9000, 8, Some(0)));
        assert_eq!(
            drain(&mut devices),
            [],
            "the order is kept, so everything waits"
        );
        devices.push(event(Action::Alloc, 1, 0x1200, 8, Some(3)));
        let seen = drain(&mut devices);
        assert_eq!(seen[0], (Action::SegmentAlloc, Some(3), 0x1000));
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn a_segment_without_a_block_keeps_an_unknown_device() {
        let mut devices = SegmentDevices::default();
        devices.push(event(Action::SegmentAlloc, 1, 0x1000, 0x1000, None));
        devices.push(event(Action::Alloc, 1, 0x9000, 8, Some(0)));
        assert_eq!(drain(&mut devices)[0], (Action::SegmentAlloc, None, 0x1000));
        devices.push(event(Action::SegmentAlloc, 1, 0x3000, 0x1000, None));
        assert!(devices.is_waiting());
        devices.give_up();
        assert_eq!(drain(&mut devices), [(Action::SegmentAlloc, None, 0x1000)]);
    }

    #[test]
    fn a_freed_segment_tells_its_size_and_device() {
        let mut devices = SegmentDevices::default();
        devices.push(event(Action::SegmentAlloc, 1, 0x1000, 0x1000, None));
        devices.push(event(Action::Alloc, 1, 0x1000, 8, Some(1)));
        devices.push(event(Action::SegmentFree, 1, 0x1000, 0, None));
        devices.push(event(Action::SegmentFree, 1, 0x7000, 0, None));
        let seen = drain(&mut devices);
        assert_eq!(seen[2], (Action::SegmentFree, Some(1), 0x1000));
        assert_eq!(
            seen[3],
            (Action::SegmentFree, None, 0),
            "a segment from before attach"
        );
    }

    #[test]
    fn a_target_that_never_allocates_in_its_segments_cannot_hold_back_events_without_end() {
        let mut devices = SegmentDevices::default();
        devices.push(event(Action::SegmentAlloc, 1, 0x1000, 0x1000, None));
        for _ in 0..=HELD {
            devices.push(event(Action::Free, 2, 0x10, 8, Some(0)));
        }
        assert!(devices.pop().is_some());
    }
}
