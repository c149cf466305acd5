//! Sums of event sizes, compared with the totals in the events.

use std::collections::BTreeMap;

use crate::events::Event;
use crate::reference::Checkpoint;

/// Totals of a device after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Bytes of blocks.
    pub allocated: u64,
    /// Bytes of segments.
    pub reserved: u64,
}

/// Totals of every device over time.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Totals after each event, in order, by device.
    pub devices: BTreeMap<u8, Vec<Totals>>,
    /// Totals before a device's first event.
    pub before: BTreeMap<u8, Totals>,
}

impl Ledger {
    /// Sums up the events. Totals before a device's first event follow from its first event with
    /// totals.
    ///
    /// # Errors
    ///
    /// The first event whose totals differ from the previous ones plus or minus its size.
    pub fn of(events: &[Event]) -> Result<Self, String> {
        let mut ledger = Self::default();
        for (at, event) in events.iter().enumerate() {
            let device = event
                .device
                .ok_or_else(|| format!("event {at} has no device: {event:?}"))?;
            let next = ledger
                .after(device, event, &events[at..])
                .ok_or_else(|| format!("event {at} has no totals or no size: {event:?}"))?;
            if let (Some(allocated), Some(reserved)) = (event.allocated, event.reserved)
                && (allocated, reserved) != (next.allocated, next.reserved)
            {
                return Err(format!(
                    "event {at} says allocated {allocated}, reserved {reserved}, but by the events \
                     before it there are {} and {}: {event:?}",
                    next.allocated, next.reserved
                ));
            }
            ledger.devices.entry(device).or_default().push(next);
        }
        Ok(ledger)
    }

    /// Returns the totals after an event, from the previous totals and its size.
    fn after(&mut self, device: u8, event: &Event, rest: &[Event]) -> Option<Totals> {
        let before = match self.devices.get(&device).and_then(|totals| totals.last()) {
            Some(before) => *before,
            None => {
                let first = before_first(device, rest)?;
                self.before.insert(device, first);
                first
            }
        };
        step(before, event)
    }

    /// Returns the totals after the last event.
    pub fn last(&self, device: u8) -> Option<Totals> {
        self.devices.get(&device)?.last().copied()
    }

    /// Compares a checkpoint within the recording with the totals from the events.
    ///
    /// # Errors
    ///
    /// Both values, if they differ.
    pub fn check(&self, checkpoint: &Checkpoint) -> Result<(), String> {
        let all = self.devices.get(&checkpoint.device);
        let all = all.map(Vec::as_slice).unwrap_or_default();
        let passed = all.partition_point(|totals| totals.time_ns <= checkpoint.monotonic_ns);
        let known = match passed.checked_sub(1) {
            Some(last) => Some(&all[last]),
            None => self.before.get(&checkpoint.device),
        };
        let (allocated, reserved) =
            known.map_or((0, 0), |totals| (totals.allocated, totals.reserved));
        if (allocated, reserved) == (checkpoint.allocated, checkpoint.reserved) {
            return Ok(());
        }
        Err(format!(
            "checkpoint {:?} of device {}: PyTorch has allocated {} and reserved {}, memprobe {allocated} \
             and {reserved}",
            checkpoint.label, checkpoint.device, checkpoint.allocated, checkpoint.reserved
        ))
    }
}

/// Returns the totals after an event of known size.
fn step(before: Totals, event: &Event) -> Option<Totals> {
    let size = event.size?;
    let mut after = Totals {
        time_ns: event.time_ns,
        ..before
    };
    match event.action.as_str() {
        "alloc" => after.allocated = before.allocated.checked_add(size)?,
        "free" => after.allocated = before.allocated.checked_sub(size)?,
        "segment_alloc" => after.reserved = before.reserved.checked_add(size)?,
        "segment_free" => after.reserved = before.reserved.checked_sub(size)?,
        _ => {}
    }
    Some(after)
}

/// Goes back from the device's first event with totals to those before its first event.
fn before_first(device: u8, events: &[Event]) -> Option<Totals> {
    let mut here = events.iter().filter(|event| event.device == Some(device));
    let (mut blocks, mut segments) = (0_i128, 0_i128);
    loop {
        let event = here.next()?;
        let size = i128::from(event.size?);
        match event.action.as_str() {
            "alloc" => blocks += size,
            "free" => blocks -= size,
            "segment_alloc" => segments += size,
            "segment_free" => segments -= size,
            _ => {}
        }
        if let (Some(allocated), Some(reserved)) = (event.allocated, event.reserved) {
            return Some(Totals {
                time_ns: 0,
                allocated: u64::try_from(i128::from(allocated) - blocks).ok()?,
                reserved: u64::try_from(i128::from(reserved) - segments).ok()?,
            });
        }
    }
}
