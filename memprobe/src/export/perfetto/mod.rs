//! Traces of Perfetto: counters of each device, iterations and phases, segments and failed requests with their stacks,
//! and heap profiles at keyframes.
//!
//! The events are written in the order of time, on one sequence of packets.

mod heaps;
mod messages;
mod packets;
mod slices;
#[cfg(test)]
mod tests;
mod tracks;

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::iter::Peekable;
use std::sync::atomic::AtomicU64;
use std::vec::IntoIter;

use super::ExportError;
use super::profile::{ProfileOrigin, frames_of};
use super::replay::ExportReplay;
use super::second_replay::{ReplayedEvent, replay_again};
use crate::event::{Action, DeviceIndex, TimeNs, Totals};
use crate::ledger::StackRef;
use crate::recording::Reader;
use crate::view::{FileNames, clean, counted};
use heaps::{Heaps, Keyframes};
use messages::{
    CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, CLOCK_REALTIME, COUNTER, ClockReading, ClockSnapshot,
    INSTANT, ProfilePacket, SLICE_BEGIN, SLICE_END, TracePacket, TrackEvent,
};
use packets::PacketWriter;
use slices::{SliceEdge, TraceSlices, annotation};
use tracks::Track;

/// Process id of a trace whose recording has none: Perfetto knows no process without one. 0 is the kernel's idle task.
const NO_PID: u32 = 1;

/// Writes a trace. Returns sentences on what it lacks.
pub(super) fn write<R: BufRead>(
    replay: &ExportReplay,
    reader: &Reader<R>,
    progress: &AtomicU64,
    out: &mut impl Write,
) -> Result<Vec<String>, ExportError> {
    let slices = TraceSlices::of(replay);
    let notes = notes(replay, &slices);
    let mut trace = TraceWriter::new(replay, slices, out);
    trace.begin()?;
    replay_again(replay, reader, progress, |replayed| trace.event(&replayed))?;
    trace.slices_until(TimeNs(u64::MAX))?;
    Ok(notes)
}

/// Sentences on slices that are missing.
fn notes(replay: &ExportReplay, slices: &TraceSlices) -> Vec<String> {
    let missing = [
        (slices.dropped, "iteration", "the first"),
        (replay.phases.left_out(), "change of the phase", "the last"),
    ];
    let missing = missing.iter().filter(|(count, ..)| *count > 0);
    let notes = missing.map(|(count, noun, which)| {
        format!(
            "{which} {} are left out, since the recording has too many",
            counted(*count, noun)
        )
    });
    notes.collect()
}

struct TraceWriter<'a, W> {
    replay: &'a ExportReplay,
    names: FileNames,
    packets: PacketWriter<W>,
    pid: u32,
    slices: Peekable<IntoIter<SliceEdge>>,
    keyframes: Keyframes,
    heaps: Heaps,
    /// Values of the counters.
    totals: BTreeMap<DeviceIndex, Totals>,
    /// Time of the last packet: records of several threads may come slightly out of order.
    now: TimeNs,
    /// Heap profiles written.
    profiles: u64,
}

impl<'a, W: Write> TraceWriter<'a, W> {
    fn new(replay: &'a ExportReplay, slices: TraceSlices, out: W) -> Self {
        let stacks = replay.ledger.stacks();
        let files = stacks.flat_map(|(_, stack)| stack.frames.iter().map(|frame| &frame.file));
        Self {
            replay,
            names: FileNames::of(files),
            packets: PacketWriter::new(out),
            pid: replay.header.target.tgid.map_or(NO_PID, |tgid| tgid.0),
            slices: slices.edges.into_iter().peekable(),
            keyframes: Keyframes::of(replay),
            heaps: Heaps::default(),
            totals: BTreeMap::new(),
            now: replay.header.start,
            profiles: 0,
        }
    }

    /// Writes the clocks, the process, and the tracks without a device.
    fn begin(&mut self) -> io::Result<()> {
        self.packets.begin(CLOCK_MONOTONIC)?;
        let header = &self.replay.header;
        let start = stamp(header.start);
        let wall = header.wall_start_ms.map(|ms| ms.saturating_mul(1_000_000));
        // Heap profiles are stamped with the coarse clock.
        let readings = [
            (CLOCK_MONOTONIC, Some(start)),
            (CLOCK_MONOTONIC_COARSE, Some(start)),
            (CLOCK_REALTIME, wall),
        ];
        let clocks = readings.into_iter().filter_map(|(clock, timestamp)| {
            Some(ClockReading {
                clock_id: Some(clock),
                timestamp: Some(timestamp?),
            })
        });
        self.packets.push(TracePacket {
            clock_snapshot: Some(ClockSnapshot {
                clocks: clocks.collect(),
                primary_trace_clock: Some(CLOCK_MONOTONIC),
            }),
            timestamp: Some(start),
            ..TracePacket::default()
        })?;
        let name = match header.target.tgid {
            Some(_) => clean(&header.target.command),
            None => "process of unknown PID".to_owned(),
        };
        self.packets.push(tracks::process(self.pid, name))?;
        for track in [Track::Iterations, Track::Phases] {
            self.packets.push(track.descriptor(self.pid))?;
        }
        Ok(())
    }

    fn event(&mut self, replayed: &ReplayedEvent<'_, '_>) -> Result<(), ExportError> {
        let event = replayed.event;
        self.slices_until(event.time)?;
        self.now = self.now.max(event.time);
        if let Some(device) = event.device {
            let size = event.size.0;
            match event.action {
                Action::OutOfMemory => {
                    self.instant(device, "out of memory", ("requested bytes", size), replayed)?;
                }
                Action::CudaOutOfMemory => {
                    let name = "out of memory in CUDA";
                    self.instant(device, name, ("requested bytes", size), replayed)?;
                }
                Action::SegmentAlloc => {
                    self.instant(device, "segment allocated", ("bytes", size), replayed)?;
                }
                Action::SegmentFree => {
                    self.instant(device, "segment freed", ("bytes", size), replayed)?;
                }
                _ => {}
            }
            if let Some(sample) = replayed.ledger.moment_of(event) {
                self.counters(device, sample.totals)?;
            }
        }
        self.heaps.apply(replayed.change, replayed.ledger);
        if let Some(keyframe) = self.keyframes.take(replayed.number) {
            for (device, allocated) in keyframe.peaks {
                self.instant(device, "peak", ("allocated bytes", allocated), replayed)?;
            }
            self.heap_profile(replayed)?;
        }
        Ok(())
    }

    /// Writes the totals of a device that have changed.
    fn counters(&mut self, device: DeviceIndex, totals: Totals) -> io::Result<()> {
        let before = self.device(device)?;
        self.totals.insert(device, totals);
        let counters = [
            (
                Track::Allocated(device),
                before.map(|it| it.allocated),
                totals.allocated,
            ),
            (
                Track::Reserved(device),
                before.map(|it| it.reserved),
                totals.reserved,
            ),
        ];
        for (track, before, now) in counters {
            if before != Some(now) {
                self.track_event(
                    track,
                    TrackEvent {
                        r#type: Some(COUNTER),
                        counter_value: Some(i64::try_from(now.0).unwrap_or(i64::MAX)),
                        ..TrackEvent::default()
                    },
                )?;
            }
        }
        Ok(())
    }

    /// Totals of a device; writes its tracks if it is new.
    fn device(&mut self, device: DeviceIndex) -> io::Result<Option<Totals>> {
        let known = self.totals.get(&device).copied();
        if known.is_none() {
            for track in Track::of_device(device) {
                self.packets.push(track.descriptor(self.pid))?;
            }
        }
        Ok(known)
    }

    fn instant(
        &mut self,
        device: DeviceIndex,
        name: &str,
        (key, value): (&str, u64),
        replayed: &ReplayedEvent<'_, '_>,
    ) -> io::Result<()> {
        if self.device(device)?.is_none() {
            // The counters begin with the first event of a block.
            self.totals.insert(device, Totals::default());
        }
        let known = Some(replayed.stack).filter(|stack| *stack != StackRef::UNKNOWN);
        let callstack_iid = known.map(|stack| self.stack(device, ProfileOrigin::Stack(stack)));
        let name_iid = Some(self.packets.name(name));
        self.track_event(
            Track::Events(device),
            TrackEvent {
                r#type: Some(INSTANT),
                name_iid,
                callstack_iid,
                debug_annotations: vec![annotation(key.to_owned(), value)],
                ..TrackEvent::default()
            },
        )
    }

    fn heap_profile(&mut self, replayed: &ReplayedEvent<'_, '_>) -> io::Result<()> {
        let Self {
            heaps,
            packets,
            names,
            replay,
            ..
        } = self;
        let time = stamp(self.now);
        let process_dumps =
            heaps.samples(replayed.ledger, TimeNs(time), self.pid, |device, origin| {
                packets.stack(device, origin, || frames_of(names, replay, origin))
            });
        let index = Some(self.profiles);
        self.profiles += 1;
        self.packets.push(TracePacket {
            timestamp: Some(time),
            profile_packet: Some(ProfilePacket {
                process_dumps,
                index,
            }),
            ..TracePacket::default()
        })
    }

    fn stack(&mut self, device: DeviceIndex, origin: ProfileOrigin) -> u64 {
        let (names, replay) = (&self.names, self.replay);
        self.packets
            .stack(device, origin, || frames_of(names, replay, origin))
    }

    /// Writes the slices that begin or end up to a time.
    fn slices_until(&mut self, time: TimeNs) -> io::Result<()> {
        while let Some(edge) = self.slices.next_if(|edge| edge.time <= time) {
            self.now = self.now.max(edge.time);
            let event = match edge.begin {
                Some(begin) => TrackEvent {
                    r#type: Some(SLICE_BEGIN),
                    name_iid: Some(self.packets.name(&begin.name)),
                    debug_annotations: begin.annotations,
                    ..TrackEvent::default()
                },
                None => TrackEvent {
                    r#type: Some(SLICE_END),
                    ..TrackEvent::default()
                },
            };
            self.track_event(edge.track, event)?;
        }
        Ok(())
    }

    fn track_event(&mut self, track: Track, event: TrackEvent) -> io::Result<()> {
        self.packets.push(TracePacket {
            timestamp: Some(stamp(self.now)),
            track_event: Some(TrackEvent {
                track_uuid: Some(track.uuid(self.pid)),
                ..event
            }),
            ..TracePacket::default()
        })
    }
}

/// Timestamp of a packet, which Perfetto reads as a signed number.
fn stamp(time: TimeNs) -> u64 {
    time.0.min(i64::MAX as u64)
}
