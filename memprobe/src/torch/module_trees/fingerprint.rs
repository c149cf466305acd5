//! Recognizes an object again: its address may hold another object by now.

use crate::process::memory::{Cause, Piece, ReadMemory, ReadResult};
use crate::python::heap::word_at;
use crate::python::layout::{Attributes, ObjectLayout, PythonLayout};

const LENGTH: usize = 48;

/// Properties that stay constant during the life of an object whose class is written in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectFingerprint {
    pub(super) class: u64,
    /// The attribute store: a dict, or the values before a dict exists.
    attributes: u64,
    /// Address of the word in the parent that refers to the object; 0 for a root.
    slot: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectState {
    Same,
    /// Freed, and no other object is known to have taken its address.
    Freed,
    /// Another object has its address, its attributes were moved, or its parent's slot refers to another.
    Changed,
}

impl ObjectFingerprint {
    pub fn read(memory: &impl ReadMemory, layout: &PythonLayout, object: u64) -> ReadResult<Self> {
        let bytes = memory.read_array(start(layout, object))?;
        let is_live = !is_freed(layout, &bytes);
        is_live
            .then(|| Self::of(layout, &bytes))
            .ok_or(Cause::NotAsExpected.at(object))
    }

    fn of(layout: &PythonLayout, bytes: &[u8; LENGTH]) -> Self {
        let at = |offset: i16| word(layout, bytes, offset);
        // The same offsets by which `heap/class.rs` reads attributes.
        let attributes = match layout.heap.attributes {
            Attributes::Dict => at(16),
            Attributes::ValuesOrDict => at(-32) ^ at(-24).rotate_left(32),
            Attributes::Tagged | Attributes::Inline => at(-24),
        };
        Self {
            class: at(ObjectLayout::KIND.cast_signed()),
            attributes,
            slot: 0,
        }
    }

    pub fn in_slot(self, slot: u64) -> Self {
        Self { slot, ..self }
    }

    pub fn states(
        memory: &impl ReadMemory,
        layout: &PythonLayout,
        objects: &[(u64, Self)],
    ) -> Vec<ObjectState> {
        let mut read = vec![[0; LENGTH]; objects.len()];
        let mut referred = vec![[0; 8]; objects.len()];
        let pieces = objects.iter().zip(&mut read);
        let pieces = pieces.map(|((object, _), into)| Piece::of(start(layout, *object), into));
        let mut pieces: Vec<_> = pieces.collect();
        let slots = objects.iter().zip(&mut referred);
        let slots = slots.filter(|((_, sign), _)| sign.slot != 0);
        pieces.extend(slots.map(|((_, sign), into)| Piece::of(sign.slot, into)));
        memory.read_each(&mut pieces);
        let outcomes = pieces.iter().take(objects.len());
        let outcomes: Vec<_> = outcomes.map(|piece| piece.outcome.is_ok()).collect();
        let fates = objects.iter().zip(read.iter().zip(&referred)).zip(outcomes);
        fates
            .map(|(((object, sign), (bytes, referred)), is_read)| {
                let is_in_place = sign.slot == 0 || u64::from_le_bytes(*referred) == *object;
                match Self::of(layout, bytes).in_slot(sign.slot) {
                    // The memory was unmapped.
                    _ if !is_read => ObjectState::Freed,
                    now if now.class != sign.class => ObjectState::Changed,
                    // A freed object keeps its type until its memory is reused.
                    _ if is_freed(layout, bytes) => ObjectState::Freed,
                    now if now == *sign && is_in_place => ObjectState::Same,
                    _ => ObjectState::Changed,
                }
            })
            .collect()
    }
}

/// True if the reference count is zero. From 3.14 on the count has 32 bits, followed by flags
/// (`Include/refcount.h`@v3.14.10). Before, no count is large enough to have 32 zero bits at the bottom.
fn is_freed(layout: &PythonLayout, bytes: &[u8; LENGTH]) -> bool {
    word(layout, bytes, ObjectLayout::REFERENCES.cast_signed()) as u32 == 0
}

fn start(layout: &PythonLayout, object: u64) -> u64 {
    object.wrapping_sub(before(layout))
}

/// Bytes read before an object. Up to 3.10 the attributes lie behind its header.
fn before(layout: &PythonLayout) -> u64 {
    match layout.heap.attributes {
        Attributes::Dict => 0,
        Attributes::ValuesOrDict | Attributes::Tagged | Attributes::Inline => 32,
    }
}

fn word(layout: &PythonLayout, bytes: &[u8; LENGTH], offset: i16) -> u64 {
    let at = before(layout).wrapping_add_signed(offset.into());
    u16::try_from(at).map_or(0, |at| word_at(bytes, at))
}
