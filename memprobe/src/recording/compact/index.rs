//! Index of a recording: places of its groups and keyframes.

use super::frame::{FrameKind, PREAMBLE, PlainFrame};
use super::varint::{VarintReader, push, push_difference};

/// Most places in an index. More groups than that have no place: they are reached from an earlier one.
const MAX_PLACES: usize = 1 << 20;

/// Place where a reader can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct FramePlace {
    /// Offset of the frame in the file, in bytes.
    pub(super) offset: u64,
    /// Memory events before it.
    pub(super) first_event: u64,
    /// Time of the last event before it.
    pub(super) time: u64,
    pub(super) kind: PlaceKind,
}

/// Kind of the frame at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum PlaceKind {
    /// First frame of a group that is no keyframe.
    #[default]
    Group,
    /// First frame of a keyframe.
    Keyframe,
    Curve,
    Source,
}

impl PlaceKind {
    const fn number(self) -> u64 {
        match self {
            Self::Group => 0,
            Self::Keyframe => 1,
            Self::Curve => 2,
            Self::Source => 3,
        }
    }

    const fn of(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Group),
            1 => Some(Self::Keyframe),
            2 => Some(Self::Curve),
            3 => Some(Self::Source),
            _ => None,
        }
    }
}

/// Places of a file, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameIndex {
    pub(super) places: Vec<FramePlace>,
}

impl FrameIndex {
    pub(super) fn push(&mut self, place: FramePlace) {
        if self.places.len() < MAX_PLACES {
            self.places.push(place);
        }
    }

    /// Forgets the places before a new beginning, which lies behind `head` bytes with source text at some offsets.
    pub(super) fn drop_before(&mut self, beginning: FramePlace, head: u64, sources: &[u64]) {
        let cut = beginning.offset;
        self.places.retain(|place| place.offset >= cut);
        for place in &mut self.places {
            place.offset = place.offset - cut + head;
        }
        let of_head = |offset, kind| FramePlace {
            offset,
            kind,
            ..beginning
        };
        let sources = sources.iter();
        let sources = sources.map(|offset| of_head(*offset, PlaceKind::Source));
        let first = of_head(PREAMBLE as u64, PlaceKind::Group);
        self.places.splice(0..0, [first].into_iter().chain(sources));
    }

    /// Returns the frame of the index, to be written after so many events.
    pub(super) fn frame(&self, group: u16, events: u64) -> PlainFrame {
        let mut payload = Vec::new();
        push(&mut payload, self.places.len() as u64);
        let mut before = FramePlace::default();
        for place in &self.places {
            push(&mut payload, place.kind.number());
            push_difference(&mut payload, before.offset, place.offset);
            push_difference(&mut payload, before.first_event, place.first_event);
            push_difference(&mut payload, before.time, place.time);
            before = *place;
        }
        PlainFrame {
            kind: FrameKind::Index,
            group,
            first_event: events,
            events: 0,
            times: [0, 0],
            payload,
        }
    }

    /// Decodes the payload of an index. An error describes the fault in a few words.
    pub(super) fn decode(payload: &[u8]) -> Result<Self, &'static str> {
        let mut reader = VarintReader(payload);
        let count = reader.count()?;
        if count > MAX_PLACES {
            return Err("an index of too many places");
        }
        let mut index = Self::default();
        let mut before = FramePlace::default();
        for _ in 0..count {
            let kind = PlaceKind::of(reader.number()?);
            let place = FramePlace {
                kind: kind.unwrap_or_default(),
                offset: reader.after(before.offset)?,
                first_event: reader.after(before.first_event)?,
                time: reader.after(before.time)?,
            };
            if before != FramePlace::default() && place.offset <= before.offset {
                return Err("places out of order");
            }
            index.places.extend(kind.map(|_| place));
            before = place;
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> FrameIndex {
        let place = |offset, kind| FramePlace {
            offset,
            first_event: offset / 3,
            time: u64::MAX - offset,
            kind,
        };
        let kinds = [
            PlaceKind::Group,
            PlaceKind::Source,
            PlaceKind::Curve,
            PlaceKind::Keyframe,
            PlaceKind::Group,
        ];
        FrameIndex {
            places: (1..)
                .zip(kinds)
                .map(|(at, kind)| place(at * 12, kind))
                .collect(),
        }
    }

    #[test]
    fn an_index_comes_back() {
        let payload = index().frame(0, 7).payload;
        assert_eq!(FrameIndex::decode(&payload), Ok(index()));
        assert_eq!(
            FrameIndex::decode(&FrameIndex::default().frame(0, 0).payload),
            Ok(FrameIndex::default())
        );
    }

    #[test]
    fn an_index_that_is_cut_or_out_of_order_is_refused() {
        let payload = index().frame(0, 7).payload;
        for end in 0..payload.len() {
            assert!(FrameIndex::decode(&payload[..end]).is_err(), "{end}");
        }
        let mut twice = index();
        twice.places[1].offset = 12;
        let payload = twice.frame(0, 7).payload;
        assert_eq!(FrameIndex::decode(&payload), Err("places out of order"));
    }
}
