//! By what an object is known again: at its address there may be another one by now.

use crate::symbolize::python::layout::{Attributes, PythonLayout};
use crate::target::memory::{Cause, Piece, ReadMemory, Unreadable};

/// Bytes of an object that are read.
const LENGTH: usize = 48;

/// What does not change while an object of a class written in Python lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sign {
    /// `ob_type`.
    pub(super) class: u64,
    /// Where its attributes are kept: a dict, or the values before there is one.
    attributes: u64,
    /// Where the word lies by which the module above refers to it; 0 for the one at the top.
    slot: u64,
}

/// What has become of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is there.
    Same,
    /// It was freed, and nothing is known to have come to its place.
    Freed,
    /// Another one is there, its attributes are kept elsewhere, or it has another place in its tree.
    Changed,
}

impl Sign {
    /// Reads the sign of an object.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub(super) fn read(
        memory: &impl ReadMemory,
        layout: &PythonLayout,
        object: u64,
    ) -> Result<Self, Unreadable> {
        let bytes = memory.read_array(start(layout, object))?;
        match is_freed(layout, &bytes) {
            true => Err(Unreadable {
                address: object,
                cause: Cause::NotAsExpected,
            }),
            false => Ok(Self::of(layout, &bytes)),
        }
    }

    fn of(layout: &PythonLayout, bytes: &[u8; LENGTH]) -> Self {
        let at = |offset: i16| word(layout, bytes, offset);
        // The places are those by which `heap/class.rs` reads attributes.
        let attributes = match layout.heap.attributes {
            Attributes::Dict => at(16),
            Attributes::ValuesOrDict => at(-32) ^ at(-24).rotate_left(32),
            Attributes::Tagged | Attributes::Inline => at(-24),
        };
        Self {
            class: at(layout.object.kind.cast_signed()),
            attributes,
            slot: 0,
        }
    }

    /// That of an object which is referred to by the word at `slot`.
    pub(super) fn in_slot(self, slot: u64) -> Self {
        Self { slot, ..self }
    }

    /// What has become of the objects of these signs.
    pub(super) fn fates(
        memory: &impl ReadMemory,
        layout: &PythonLayout,
        objects: &[(u64, Self)],
    ) -> Vec<Fate> {
        let mut read = vec![[0; LENGTH]; objects.len()];
        let mut referred = vec![[0; 8]; objects.len()];
        let mut pieces: Vec<_> = objects
            .iter()
            .zip(&mut read)
            .map(|((object, _), into)| piece(start(layout, *object), into))
            .collect();
        let slots = objects.iter().zip(&mut referred);
        let slots = slots.filter(|((_, sign), _)| sign.slot != 0);
        pieces.extend(slots.map(|((_, sign), into)| piece(sign.slot, into)));
        memory.read_each(&mut pieces);
        let outcomes = pieces.iter().take(objects.len());
        let outcomes: Vec<_> = outcomes.map(|piece| piece.outcome.is_ok()).collect();
        let fates = objects.iter().zip(read.iter().zip(&referred)).zip(outcomes);
        fates
            .map(|(((object, sign), (bytes, referred)), is_read)| {
                let is_in_place = sign.slot == 0 || u64::from_le_bytes(*referred) == *object;
                match Self::of(layout, bytes).in_slot(sign.slot) {
                    // Its memory was given back.
                    _ if !is_read => Fate::Freed,
                    now if now.class != sign.class => Fate::Changed,
                    // What is freed keeps its type until its memory is used again.
                    _ if is_freed(layout, bytes) => Fate::Freed,
                    now if now == *sign && is_in_place => Fate::Same,
                    _ => Fate::Changed,
                }
            })
            .collect()
    }
}

fn piece(address: u64, into: &mut [u8]) -> Piece<'_> {
    Piece {
        address,
        into,
        outcome: Ok(()),
    }
}

/// Whether nobody refers to an object any more. From 3.14 on the count has 32 bits, and marks follow
/// (`Include/refcount.h`@v3.14.10); no object has so many that the low 32 bits are all zero before.
fn is_freed(layout: &PythonLayout, bytes: &[u8; LENGTH]) -> bool {
    word(layout, bytes, layout.object.references.cast_signed()) as u32 == 0
}

/// Where the bytes that are read of an object begin.
fn start(layout: &PythonLayout, object: u64) -> u64 {
    object.wrapping_sub(before(layout))
}

/// Bytes that are read before an object: up to 3.10 its attributes are behind its head.
fn before(layout: &PythonLayout) -> u64 {
    match layout.heap.attributes {
        Attributes::Dict => 0,
        Attributes::ValuesOrDict | Attributes::Tagged | Attributes::Inline => 32,
    }
}

/// The word at an offset from the object.
fn word(layout: &PythonLayout, bytes: &[u8; LENGTH], offset: i16) -> u64 {
    let at = before(layout).wrapping_add_signed(offset.into());
    let bytes = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
    bytes
        .and_then(|bytes| bytes.first_chunk())
        .map_or(0, |word| u64::from_le_bytes(*word))
}
