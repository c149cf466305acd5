//! Serialized names of live blocks, one record a block, and of the roots that keep memory alive.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{MAX_CONTEXT, check_names};
use crate::event::tensors::{Name, Retainer};
use crate::event::{
    Address, BlockLabels, Bytes, CallPathOrigin, CalledModule, DeviceIndex, Event, LabeledBlock,
    MAX_TAGS, StepSettings, TaggedAllocation, Tgid, TimeNs,
};

const MOST: usize = 1 << 22;
pub(super) const MAX_OPTIMIZERS: usize = 64;

/// Ends the preceding [`NamedRecord`]s of a moment.
#[derive(Serialize, Deserialize)]
pub(crate) struct NamesRecord<'a> {
    /// Number of the blocks before it.
    blocks: u64,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    optimizers: Cow<'a, [StepSettings]>,
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    tags: Vec<TagRecord<'a>>,
}

/// Tagged allocation.
#[derive(Serialize, Deserialize)]
struct TagRecord<'a> {
    addr: u64,
    size: u64,
    #[serde(borrow)]
    tag: Cow<'a, str>,
}

/// Blocks that labels can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelScope {
    AllBlocks,
    /// Blocks from before attach.
    Baseline,
}

impl LabelScope {
    pub(super) fn event(self, labels: BlockLabels) -> Event {
        match self {
            Self::AllBlocks => Event::BlockLabels(Arc::new(labels)),
            Self::Baseline => Event::BaselineLabels(Arc::new(labels)),
        }
    }
}

impl<'a> From<&'a BlockLabels> for NamesRecord<'a> {
    fn from(names: &'a BlockLabels) -> Self {
        Self {
            blocks: names.blocks.len() as u64,
            optimizers: names.optimizers.as_slice().into(),
            tags: names.tags.iter().map(TagRecord::from).collect(),
        }
    }
}

impl<'a> From<&'a TaggedAllocation> for TagRecord<'a> {
    fn from(tagged: &'a TaggedAllocation) -> Self {
        Self {
            addr: tagged.addr.0,
            size: tagged.size.0,
            tag: clipped(&tagged.tag),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct NamedRecord<'a> {
    addr: u64,
    size: u64,
    device: DeviceIndex,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inferred: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<Cow<'a, str>>,
    /// Path that begins with the class of the root module.
    #[serde(skip_serializing_if = "Option::is_none")]
    called: Option<Cow<'a, str>>,
    /// Path in calls of the module itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saved_by: Option<Cow<'a, str>>,
    #[serde(borrow, alias = "kept", skip_serializing_if = "Option::is_none")]
    retained_by: Option<RetainerRecord<'a>>,
    /// Absent if false, and in files of earlier versions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_saved_variable: bool,
}

impl<'a> From<&'a LabeledBlock> for NamedRecord<'a> {
    fn from(block: &'a LabeledBlock) -> Self {
        let text = |text: &'a Option<Arc<str>>| text.as_deref().map(clipped);
        let name = block.name.as_ref();
        let called = block.called.as_ref();
        let path = called.map(|called| clipped(&called.path));
        let (call, called) = match called.map(|called| called.origin) {
            Some(CallPathOrigin::Call) => (path, None),
            _ => (None, path),
        };
        Self {
            addr: block.addr.0,
            size: block.size.0,
            device: block.device,
            kind: block.kind.map(|kind| kind.as_str().into()),
            name: name.map(|name| clipped(&name.text)),
            inferred: name.and_then(|name| name.inferred).map(Cow::Borrowed),
            module: text(&block.module),
            called,
            call,
            saved_by: text(&block.saved_by),
            retained_by: block.retainer.as_deref().map(RetainerRecord::from),
            is_saved_variable: block.is_saved_variable,
        }
    }
}

/// Blocks and tags read before the `names` record that they belong to.
#[derive(Default)]
pub(super) struct PendingNames {
    blocks: Vec<LabeledBlock>,
    tags: Vec<TaggedAllocation>,
}

impl PendingNames {
    pub(super) fn push(
        &mut self,
        record: &NamedRecord<'_>,
        mut intern: impl FnMut(&str) -> Arc<str>,
    ) -> Result<(), String> {
        let [name, module] = [&record.name, &record.module];
        let (path, origin) = match &record.call {
            Some(_) => (&record.call, CallPathOrigin::Call),
            None => (&record.called, CallPathOrigin::Class),
        };
        let texts = [name, module, path, &record.saved_by].map(Option::as_deref);
        check_names(texts.into_iter().flatten())?;
        let kind = record.kind.as_deref();
        let known = kind.map(|word| word.parse().map_err(|_| "a block of unknown kind"));
        let retainer = record.retained_by.as_ref();
        let retainer = retainer
            .map(|retainer| retainer.read(&mut intern))
            .transpose()?;
        let [name, module, called, saved_by] = texts.map(|text| text.map(&mut intern));
        self.add(LabeledBlock {
            addr: Address(record.addr),
            size: Bytes(record.size),
            device: record.device,
            kind: known.transpose()?,
            name: name.map(|text| Name {
                text,
                inferred: record.inferred.as_deref().map(Name::rule),
            }),
            module,
            called: called.map(|path| CalledModule { path, origin }),
            saved_by,
            retainer: retainer.map(Arc::new),
            is_saved_variable: record.is_saved_variable,
        })
    }

    pub(super) fn add(&mut self, block: LabeledBlock) -> Result<(), String> {
        if self.blocks.len() >= MOST {
            return Err(format!("more than {MOST} blocks of one moment"));
        }
        self.blocks.push(block);
        Ok(())
    }

    pub(super) fn add_tag(&mut self, tagged: TaggedAllocation) -> Result<(), String> {
        if self.tags.len() >= MAX_TAGS {
            return Err(format!("more than {MAX_TAGS} tags of one moment"));
        }
        self.tags.push(tagged);
        Ok(())
    }

    /// Returns the labels that the record ends.
    pub(super) fn end_record(
        &mut self,
        record: NamesRecord<'_>,
        (time, tgid): (TimeNs, Tgid),
        mut intern: impl FnMut(&str) -> Arc<str>,
    ) -> Result<BlockLabels, String> {
        check_names(record.tags.iter().map(|tagged| &*tagged.tag))?;
        for tagged in &record.tags {
            self.add_tag(TaggedAllocation {
                addr: Address(tagged.addr),
                size: Bytes(tagged.size),
                tag: intern(&tagged.tag),
            })?;
        }
        let optimizers = record.optimizers.into_owned();
        self.end((time, tgid), record.blocks, optimizers)
    }

    /// Returns the labels collected, and checks the number of blocks against the count in the `names` record.
    pub(super) fn end(
        &mut self,
        (time, tgid): (TimeNs, Tgid),
        announced: u64,
        optimizers: Vec<StepSettings>,
    ) -> Result<BlockLabels, String> {
        let Self { blocks, tags } = std::mem::take(self);
        let here = blocks.len();
        if here as u64 != announced {
            return Err(format!(
                "{announced} blocks were named, but {here} are there"
            ));
        }
        if optimizers.len() > MAX_OPTIMIZERS {
            return Err(format!("more than {MAX_OPTIMIZERS} settings of optimizers"));
        }
        check_names(optimizers.iter().map(|group| &*group.class))?;
        Ok(BlockLabels {
            time,
            tgid,
            blocks,
            optimizers,
            tags,
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct RetainerRecord<'a> {
    #[serde(borrow, alias = "by")]
    root: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    through: Option<Cow<'a, str>>,
    #[serde(alias = "alone")]
    exclusive: bool,
}

impl<'a> From<&'a Retainer> for RetainerRecord<'a> {
    fn from(retainer: &'a Retainer) -> Self {
        let text = |text: &'a Option<Arc<str>>| text.as_deref().map(clipped);
        Self {
            root: clipped(&retainer.by),
            class: text(&retainer.class),
            slot: text(&retainer.slot),
            through: text(&retainer.through),
            exclusive: retainer.exclusive,
        }
    }
}

impl RetainerRecord<'_> {
    /// Checks the lengths of the texts and interns them. An error describes the fault in a few words.
    pub(super) fn read(
        &self,
        mut intern: impl FnMut(&str) -> Arc<str>,
    ) -> Result<Retainer, String> {
        let texts = [&self.class, &self.slot, &self.through].map(Option::as_deref);
        check_names(texts.into_iter().flatten().chain([&*self.root]))?;
        let [class, slot, through] = texts.map(|text| text.map(&mut intern));
        Ok(Retainer {
            by: intern(&self.root),
            class,
            slot,
            through,
            exclusive: self.exclusive,
        })
    }
}

/// Cuts a text to [`MAX_CONTEXT`] bytes at a character boundary.
fn clipped(text: &str) -> Cow<'_, str> {
    let mut end = text.len().min(MAX_CONTEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}
