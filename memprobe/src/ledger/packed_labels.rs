//! Labels of live blocks from before attach, packed: a list of a million tensors gives as many names, which differ in
//! one number only.

use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, Equivalent, HashTable};

use super::block_store::{BlockId, BlockStore, LiveBlock};
use super::dense::{CompactIndex, PerBlock};
use crate::event::tensors::{Name, Retainer, TensorKind};
use crate::event::{BlockLabels, CalledModule, LabeledBlock, Tgid, TimeNs};

/// Labels by block. A label ends with its block.
#[derive(Clone, Debug)]
pub(super) struct PackedLabels {
    /// Time of the last reading.
    pub(super) time: TimeNs,
    tgid: Tgid,
    labels: PerBlock<PackedLabel>,
    shared: Interner<SharedLabel>,
    patterns: Interner<Pattern>,
}

/// Label of a block. Its device, address and size are those of the block.
#[derive(Clone, Copy, Debug)]
struct PackedLabel {
    shared: CompactIndex,
    name: Option<PackedText>,
    /// [`Retainer::slot`].
    slot: Option<PackedText>,
}

// An empty place of the table takes no more than a label.
const _: () = assert!(size_of::<Option<PackedLabel>>() == 20);

/// Parts of a label that many blocks have in common.
#[derive(Clone, Debug)]
struct SharedLabel {
    kind: Option<TensorKind>,
    /// [`Name::inferred`].
    inferred: Option<&'static str>,
    module: Option<Arc<str>>,
    called: Option<CalledModule>,
    saved_by: Option<Arc<str>>,
    /// Without its slot.
    retainer: Option<Arc<Retainer>>,
    is_saved_variable: bool,
}

/// [`SharedLabel`] by reference, to look for it.
type SharedParts<'a> = (
    (Option<TensorKind>, Option<&'static str>, bool),
    [Option<&'a Arc<str>>; 2],
    Option<&'a CalledModule>,
    Option<(&'a Arc<str>, [Option<&'a Arc<str>>; 2], bool)>,
);

impl SharedLabel {
    fn of(block: &LabeledBlock) -> Self {
        let without_slot = |retainer: &Arc<Retainer>| match retainer.slot {
            Some(_) => Arc::new(Retainer {
                slot: None,
                ..Retainer::clone(retainer)
            }),
            None => Arc::clone(retainer),
        };
        Self {
            kind: block.kind,
            inferred: block.name.as_ref().and_then(|name| name.inferred),
            module: block.module.clone(),
            called: block.called.clone(),
            saved_by: block.saved_by.clone(),
            retainer: block.retainer.as_ref().map(without_slot),
            is_saved_variable: block.is_saved_variable,
        }
    }

    fn parts(&self) -> SharedParts<'_> {
        (
            (self.kind, self.inferred, self.is_saved_variable),
            [self.module.as_ref(), self.saved_by.as_ref()],
            self.called.as_ref(),
            self.retainer.as_deref().map(retainer_parts),
        )
    }
}

impl PartialEq for SharedLabel {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for SharedLabel {}

impl Hash for SharedLabel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl Equivalent<SharedLabel> for SharedParts<'_> {
    fn equivalent(&self, label: &SharedLabel) -> bool {
        *self == label.parts()
    }
}

fn parts_of(block: &LabeledBlock) -> SharedParts<'_> {
    let inferred = block.name.as_ref().and_then(|name| name.inferred);
    (
        (block.kind, inferred, block.is_saved_variable),
        [block.module.as_ref(), block.saved_by.as_ref()],
        block.called.as_ref(),
        block.retainer.as_deref().map(retainer_parts),
    )
}

fn retainer_parts(retainer: &Retainer) -> (&Arc<str>, [Option<&Arc<str>>; 2], bool) {
    let parts = [retainer.class.as_ref(), retainer.through.as_ref()];
    (&retainer.by, parts, retainer.exclusive)
}

/// Text with its last number taken out: `kept[17]` is the pattern `kept[`, `]` with the number 17.
#[derive(Clone, Copy, Debug)]
struct PackedText {
    pattern: CompactIndex,
    /// 0 where the pattern has no place for a number.
    number: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pattern {
    before: Arc<str>,
    /// The text after the number; `None` for a text without one.
    after: Option<Arc<str>>,
}

impl Equivalent<Pattern> for (&str, Option<&str>) {
    fn equivalent(&self, pattern: &Pattern) -> bool {
        *self == (&*pattern.before, pattern.after.as_deref())
    }
}

/// Values by number, counted from 0. Each is there once.
#[derive(Clone, Debug)]
struct Interner<T> {
    values: Vec<T>,
    /// Numbers by the hash of their value.
    numbers: HashTable<CompactIndex>,
    hasher: DefaultHashBuilder,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            numbers: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// Number of a value, which is made only if there is none like it.
    fn intern(
        &mut self,
        like: &(impl Hash + Equivalent<T>),
        value: impl FnOnce() -> T,
    ) -> CompactIndex {
        let Self {
            values,
            numbers,
            hasher,
        } = self;
        let hash = hasher.hash_one(like);
        let is_like = |number: &CompactIndex| like.equivalent(&values[number.index()]);
        if let Some(known) = numbers.find(hash, is_like) {
            return *known;
        }
        let next = CompactIndex::of(values.len());
        values.push(value());
        numbers.insert_unique(hash, next, |number| {
            hasher.hash_one(&values[number.index()])
        });
        next
    }
}

impl<T> Interner<T> {
    fn get(&self, number: CompactIndex) -> &T {
        &self.values[number.index()]
    }

    fn bytes(&self) -> usize {
        self.values.len() * size_of::<T>() + self.numbers.allocation_size()
    }
}

impl PackedLabels {
    /// Labels of no blocks yet, of a reading.
    pub(super) fn of(reading: &BlockLabels) -> Self {
        Self {
            time: reading.time,
            tgid: reading.tgid,
            labels: PerBlock::default(),
            shared: Interner::default(),
            patterns: Interner::default(),
        }
    }

    /// Begins another reading. Where that does not name a block, the earlier label stays.
    pub(super) fn begin(&mut self, reading: &BlockLabels, store: &BlockStore) {
        if self.keeps_much_unused() {
            let mut packed = Self::of(reading);
            for (id, label) in self.labels.iter() {
                packed.insert(id, &self.unpacked(*label, store.get(id)));
            }
            *self = packed;
        }
        (self.time, self.tgid) = (reading.time, reading.tgid);
    }

    /// True if most of the parts that labels share are of labels that have ended.
    fn keeps_much_unused(&self) -> bool {
        let parts = self.shared.values.len() + self.patterns.values.len();
        // A label has one shared part and up to two patterns.
        parts > 2 * 3 * self.labels.iter().count()
    }

    /// Adopts the label of a block.
    pub(super) fn insert(&mut self, id: BlockId, named: &LabeledBlock) {
        let like = parts_of(named);
        let shared = self.shared.intern(&like, || SharedLabel::of(named));
        let slot = named.retainer.as_ref();
        let slot = slot.and_then(|retainer| retainer.slot.as_ref());
        let label = PackedLabel {
            shared,
            name: named.name.as_ref().map(|name| self.pack(&name.text)),
            slot: slot.map(|slot| self.pack(slot)),
        };
        self.labels.insert(id, label);
    }

    fn pack(&mut self, text: &str) -> PackedText {
        let (before, number, after) = match numbered(text) {
            Some((before, number, after)) => (before, number, Some(after)),
            None => (text, 0, None),
        };
        let pattern = self.patterns.intern(&(before, after), || Pattern {
            before: before.into(),
            after: after.map(Into::into),
        });
        PackedText { pattern, number }
    }

    /// Gives back memory that the reading did not need.
    pub(super) fn end(&mut self) {
        self.labels.shrink_to_fit();
    }

    /// Ends the label of a block that has ended.
    pub(super) fn release(&mut self, id: BlockId) {
        self.labels.remove(id);
    }

    /// Labels of all blocks, in no particular order.
    pub(super) fn unpack(&self, store: &BlockStore) -> BlockLabels {
        let blocks = self.labels.iter();
        let blocks = blocks.map(|(id, label)| self.unpacked(*label, store.get(id)));
        BlockLabels {
            time: self.time,
            tgid: self.tgid,
            blocks: blocks.collect(),
            optimizers: Vec::new(),
            tags: Vec::new(),
        }
    }

    /// Bytes of its tables.
    pub(super) fn bytes(&self) -> u64 {
        self.labels.bytes() + (self.shared.bytes() + self.patterns.bytes()) as u64
    }

    fn unpacked(&self, label: PackedLabel, block: &LiveBlock) -> LabeledBlock {
        let shared = self.shared.get(label.shared).clone();
        let text = |packed: PackedText| self.text(packed);
        let with_slot = |retainer: Arc<Retainer>| match label.slot {
            Some(slot) => Arc::new(Retainer {
                slot: Some(text(slot)),
                ..Retainer::clone(&retainer)
            }),
            None => retainer,
        };
        LabeledBlock {
            addr: block.addr,
            size: block.size,
            device: block.device,
            kind: shared.kind,
            name: label.name.map(|name| Name {
                text: text(name),
                inferred: shared.inferred,
            }),
            module: shared.module,
            called: shared.called,
            saved_by: shared.saved_by,
            retainer: shared.retainer.map(with_slot),
            is_saved_variable: shared.is_saved_variable,
        }
    }

    fn text(&self, packed: PackedText) -> Arc<str> {
        let pattern = self.patterns.get(packed.pattern);
        match &pattern.after {
            Some(after) => format!("{}{}{after}", pattern.before, packed.number).into(),
            None => Arc::clone(&pattern.before),
        }
    }
}

/// Parts before, in and after the last number in a text. `None` if there is none, or if it would not be written the
/// same way again.
fn numbered(text: &str) -> Option<(&str, u32, &str)> {
    let is_digit = |letter: char| letter.is_ascii_digit();
    let end = text.rfind(is_digit)? + 1;
    let (head, after) = text.split_at(end);
    let before = head.trim_end_matches(is_digit);
    let digits = &head[before.len()..];
    let is_canonical = digits == "0" || !digits.starts_with('0');
    let number = digits.parse().ok().filter(|_| is_canonical)?;
    Some((before, number, after))
}

/// Labels of live blocks from before attach.
pub(super) fn baseline_of<'a>(
    labels: &'a BlockLabels,
    store: &'a BlockStore,
) -> impl Iterator<Item = (BlockId, &'a LabeledBlock)> {
    labels.blocks.iter().filter_map(|named| {
        let id = store.at(named.device, named.addr)?;
        let block = store.get(id);
        (block.is_baseline && block.size == named.size).then_some((id, named))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Address, Bytes, CallPathOrigin, DeviceIndex, ModuleAddress, PurposeId};
    use crate::ledger::StackRef;

    const DEVICE: DeviceIndex = DeviceIndex(0);
    const SIZE: Bytes = Bytes(512);

    fn store(blocks: u64) -> BlockStore {
        let mut store = BlockStore::default();
        for at in 0..blocks {
            let id = store.add(LiveBlock {
                addr: Address(at * SIZE.0),
                size: SIZE,
                stack: StackRef::UNKNOWN,
                purpose: PurposeId::NONE,
                call_site: None,
                device: DEVICE,
                is_baseline: true,
            });
            assert!(store.track(id, None));
        }
        store
    }

    fn block(at: u64, text: &str) -> LabeledBlock {
        let name = Name {
            text: text.into(),
            inferred: None,
        };
        LabeledBlock {
            kind: Some(TensorKind::Tensor),
            name: Some(name),
            ..LabeledBlock::unlabeled(Address(at * SIZE.0), SIZE, DEVICE)
        }
    }

    fn labels(blocks: &[LabeledBlock]) -> BlockLabels {
        BlockLabels {
            time: TimeNs(9),
            tgid: Tgid(7),
            blocks: blocks.to_vec(),
            optimizers: Vec::new(),
            tags: Vec::new(),
        }
    }

    fn packed(labels: &BlockLabels, store: &BlockStore) -> PackedLabels {
        let mut packed = PackedLabels::of(labels);
        read_again(&mut packed, labels, store);
        packed
    }

    fn read_again(packed: &mut PackedLabels, labels: &BlockLabels, store: &BlockStore) {
        packed.begin(labels, store);
        for (id, named) in baseline_of(labels, store) {
            packed.insert(id, named);
        }
        packed.end();
    }

    #[test]
    fn labels_are_the_same_after_packing() {
        let texts = [
            "kept[17]",
            "kept[0]",
            "kept[017]",
            "kept[00]",
            "",
            "7",
            "x",
            "h.12.weight",
            "kept[4294967295]",
            "kept[4294967296]",
            "ü٣9é",
        ];
        let mut blocks: Vec<_> = (0..).zip(texts).map(|(at, text)| block(at, text)).collect();
        blocks[0].retainer = Some(Arc::new(Retainer {
            by: "train.py:3 main() -> kept[*]".into(),
            class: Some("list".into()),
            slot: Some("train.py:3 main() -> kept[17]".into()),
            through: None,
            exclusive: true,
        }));
        blocks[1].name = None;
        blocks[2].called = Some(CalledModule {
            path: "Net.a.1".into(),
            origin: CallPathOrigin::Unresolved(ModuleAddress {
                object: 1,
                class: 2,
            }),
        });
        blocks[3].name = Some(Name {
            text: "w".into(),
            inferred: Some("a rule"),
        });
        blocks[4].is_saved_variable = true;
        blocks[4].saved_by = Some("AddmmBackward0".into());
        blocks[4].module = Some("Net.a.1".into());
        let labels = labels(&blocks);
        let store = store(blocks.len() as u64);
        assert_eq!(packed(&labels, &store).unpack(&store), labels);
    }

    #[test]
    fn an_earlier_label_stays_where_a_reading_names_no_block() {
        let store = store(2);
        let first = labels(&[block(0, "a[1]"), block(1, "b[2]")]);
        let mut packed = packed(&first, &store);
        read_again(&mut packed, &labels(&[block(1, "c[3]")]), &store);
        assert_eq!(
            packed.unpack(&store),
            labels(&[block(0, "a[1]"), block(1, "c[3]")])
        );
    }

    #[test]
    fn parts_of_labels_that_have_ended_are_given_up() {
        let texts: Vec<_> = (0..100).map(|at| "x".repeat(at)).collect();
        let blocks = (0..).zip(&texts).map(|(at, text)| block(at, text));
        let blocks: Vec<_> = blocks.collect();
        let store = store(100);
        let mut packed = packed(&labels(&blocks), &store);
        assert_eq!(packed.patterns.values.len(), 100);
        for (id, _) in store.live().skip(10) {
            packed.release(id);
        }
        read_again(&mut packed, &labels(&blocks[..1]), &store);
        assert_eq!(packed.unpack(&store), labels(&blocks[..10]));
        assert_eq!(packed.patterns.values.len(), 10);
    }

    #[test]
    fn names_that_differ_in_a_number_take_no_memory_for_their_text() {
        let blocks: Vec<_> = (0..1000)
            .map(|at| block(at, &format!("kept[{at}]")))
            .collect();
        let store = store(1000);
        let packed = packed(&labels(&blocks), &store);
        let parts = (packed.shared.values.len(), packed.patterns.values.len());
        assert_eq!(parts, (1, 1));
    }
}
