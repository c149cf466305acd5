//! Memory by stack and category at one moment of each device, for formats of profilers.

use hashbrown::HashMap;

use super::replay::ExportReplay;
use super::{ExportError, ExportMoment};
use crate::attribution::allocations::EventNumber;
use crate::attribution::category::Category;
use crate::event::{DeviceIndex, Frame, StackKind, TimeNs};
use crate::ledger::{StackRef, TotalsSample};
use crate::view::{BEFORE_ATTACH, FileNames, UNACCOUNTED, clean};

/// Outermost frame of a stack that was cut.
const CUT_FRAMES: &str = "(outer frames cut)";

pub(super) struct Profile {
    pub devices: Vec<DeviceProfile>,
    pub names: FileNames,
}

/// Memory of one device. The live bytes of its rows add up to `allocated`, unless events were lost.
pub(super) struct DeviceProfile {
    pub device: DeviceIndex,
    pub sample: TotalsSample,
    pub rows: Vec<ProfileRow>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProfileRow {
    pub origin: ProfileOrigin,
    pub category: Option<Category>,
    pub live: ProfileAmount,
    /// Since the start of the recording, up to the moment.
    pub allocated: ProfileAmount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ProfileOrigin {
    Stack(StackRef),
    BeforeAttach,
    Unaccounted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProfileAmount {
    pub bytes: u64,
    pub blocks: u64,
}

impl ProfileAmount {
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks += 1;
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }
}

/// Frame of a profile: a line of Python, native code, or a text in its place.
pub(super) struct ProfileFrame<'a> {
    /// Text as in the tables of reports: `model.py:88 forward`.
    pub name: String,
    /// `None` for a text in place of a frame.
    pub frame: Option<&'a Frame>,
}

impl Profile {
    pub(super) fn of(replay: &ExportReplay, moment: ExportMoment) -> Result<Self, ExportError> {
        let moments = replay.moments(moment)?.into_iter();
        let devices: Vec<_> = moments
            .map(|(device, (event, sample))| DeviceProfile::of(replay, device, event, sample))
            .collect();
        let rows = devices.iter().flat_map(|device| &device.rows);
        let stacks = rows.filter_map(|row| match row.origin {
            ProfileOrigin::Stack(stack) => Some(replay.stack(stack)),
            _ => None,
        });
        let files = stacks.flat_map(|stack| &stack.frames);
        let names = FileNames::of(files.map(|frame| &frame.file));
        Ok(Self { devices, names })
    }

    /// True if no memory is live.
    pub(super) fn is_empty(&self) -> bool {
        let mut rows = self.devices.iter().flat_map(|device| &device.rows);
        rows.all(|row| row.live.bytes == 0)
    }

    /// Frames of an origin, innermost first.
    pub(super) fn frames<'a>(
        &self,
        replay: &'a ExportReplay,
        origin: ProfileOrigin,
    ) -> Vec<ProfileFrame<'a>> {
        frames_of(&self.names, replay, origin)
    }

    /// Sentences on devices whose rows do not add up to the allocator's total.
    pub(super) fn notes(&self) -> Vec<String> {
        let excess = self.devices.iter().filter(|it| it.sample.unaccounted < 0);
        let notes = excess.map(|device| {
            format!(
                "on {}, live blocks exceed the allocator's own total by {} bytes, since frees were lost",
                device.device,
                device.sample.unaccounted.unsigned_abs()
            )
        });
        notes.collect()
    }
}

/// Frames of an origin, innermost first.
pub(super) fn frames_of<'a>(
    names: &FileNames,
    replay: &'a ExportReplay,
    origin: ProfileOrigin,
) -> Vec<ProfileFrame<'a>> {
    let text = |name: String| ProfileFrame { name, frame: None };
    let stack = match origin {
        ProfileOrigin::Stack(stack) => replay.stack(stack),
        ProfileOrigin::BeforeAttach => return vec![text(BEFORE_ATTACH.to_owned())],
        ProfileOrigin::Unaccounted => return vec![text(UNACCOUNTED.to_owned())],
    };
    let node = stack.context.node.iter();
    let mut frames: Vec<_> = node.map(|node| text(clean(&node.name))).collect();
    frames.extend(stack.frames.iter().map(|frame| ProfileFrame {
        name: names.frame(frame),
        frame: Some(frame),
    }));
    match &stack.kind {
        StackKind::Unknown { thread, reason } if thread.is_empty() => {
            frames.push(text(format!("({})", reason.as_str())));
        }
        StackKind::Unknown { thread, reason } => {
            frames.push(text(format!("({}: {})", clean(thread), reason.as_str())));
        }
        _ if stack.truncated => frames.push(text(CUT_FRAMES.to_owned())),
        _ => {}
    }
    frames
}

impl DeviceProfile {
    fn of(
        replay: &ExportReplay,
        device: DeviceIndex,
        event: EventNumber,
        sample: TotalsSample,
    ) -> Self {
        let mut rows: HashMap<(ProfileOrigin, Option<Category>), [ProfileAmount; 2]> =
            HashMap::new();
        let ended = replay.ended.iter();
        for (stack, category, amount) in ended.flat_map(|ended| ended.up_to(device, event)) {
            let origin = ProfileOrigin::Stack(stack);
            let [_, allocated] = rows.entry((origin, category)).or_default();
            allocated.extend(amount);
        }
        let mut before_attach = sample.before_attach.0;
        let of_device = replay.history.allocations().iter();
        for allocation in of_device.filter(|it| it.device == device && it.born <= event) {
            let origin = match allocation.is_baseline {
                true => ProfileOrigin::BeforeAttach,
                false => ProfileOrigin::Stack(allocation.stack),
            };
            let bytes = allocation.size.0;
            let is_live = allocation.is_live_at(event);
            if allocation.is_baseline {
                if !is_live {
                    continue;
                }
                before_attach = before_attach.saturating_sub(bytes);
            }
            let [live, allocated] = rows.entry((origin, allocation.category)).or_default();
            if is_live {
                live.add(bytes);
            }
            if !allocation.is_baseline {
                allocated.add(bytes);
            }
        }
        let unaccounted = u64::try_from(sample.unaccounted).unwrap_or(0);
        for (origin, bytes) in [
            (ProfileOrigin::BeforeAttach, before_attach),
            (ProfileOrigin::Unaccounted, unaccounted),
        ] {
            if bytes > 0 {
                // The number of its blocks is unknown.
                let [live, _] = rows.entry((origin, None)).or_default();
                live.bytes = live.bytes.saturating_add(bytes);
            }
        }
        let rows = rows.into_iter();
        let mut rows: Vec<_> = rows
            .map(|((origin, category), [live, allocated])| ProfileRow {
                origin,
                category,
                live,
                allocated,
            })
            .collect();
        rows.sort_by_key(|row| (row.origin, row.category));
        Self {
            device,
            sample,
            rows,
        }
    }

    /// Nanoseconds from the start of the recording.
    pub(super) fn since(&self, start: TimeNs) -> u64 {
        self.sample.time.0.saturating_sub(start.0)
    }
}
