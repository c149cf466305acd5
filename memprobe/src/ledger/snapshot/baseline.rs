//! Memory from before attach, as views show it: by what the process's objects say of its blocks.

use std::cmp::Reverse;
use std::sync::Arc;

use super::BeforeAttach;
use crate::event::tensors::TensorKind;
use crate::event::{Bytes, LabeledBlock};

/// Content of blocks from before attach, as read from the process's objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum BaselineKind {
    Parameter,
    Buffer,
    Gradient,
    OptimizerState,
    KvCache,
    /// Saved for the backward pass, with no other known reference.
    Saved,
    /// Other tensors that a variable, a container or another named object keeps alive.
    Retained,
    /// Other tensors: no named object leads to them.
    Unretained,
    /// No tensor uses the block.
    NoTensor,
    /// No reading has named the block yet.
    Unread,
}

impl BaselineKind {
    /// Keyword in structured reports.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// Kind of a labelled block.
    pub fn of(block: &LabeledBlock) -> Self {
        match block.kind {
            Some(TensorKind::Parameter) => Self::Parameter,
            Some(TensorKind::Buffer) => Self::Buffer,
            Some(TensorKind::Gradient) => Self::Gradient,
            Some(TensorKind::OptimizerState) => Self::OptimizerState,
            Some(TensorKind::KvCache) => Self::KvCache,
            Some(TensorKind::Saved) => Self::Saved,
            Some(TensorKind::Tensor) if block.retainer.is_some() => Self::Retained,
            Some(TensorKind::Tensor) => Self::Unretained,
            None => Self::NoTensor,
        }
    }

    /// True if the objects say what the block is, or that it belongs to no tensor.
    pub const fn is_explained(self) -> bool {
        !matches!(self, Self::Unretained | Self::Unread)
    }
}

/// Owner of blocks of one [`BaselineKind`].
#[derive(Clone, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Default)]
pub struct BaselineOwner {
    /// Module, operation or retainer: `model.layers.0`, `AddmmBackward0`, `serve.py:12 main() -> cache[*]`. `None` if
    /// it is unknown, or beyond the limit of distinct owners.
    pub name: Option<Arc<str>>,
    /// Class of a retainer that is no variable: `dict`.
    pub class: Option<Arc<str>>,
}

/// Live memory from before attach of one owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BaselineGroup {
    pub kind: BaselineKind,
    pub owner: BaselineOwner,
    pub live: Bytes,
    pub blocks: u64,
}

/// Live memory from before attach of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BaselinePart<'a> {
    pub kind: BaselineKind,
    pub live: Bytes,
    /// `None` if the blocks are unknown.
    pub blocks: Option<u64>,
    /// By owner, largest first.
    pub groups: Vec<&'a BaselineGroup>,
}

impl BaselineOwner {
    /// Owner of a labelled block.
    pub fn of(block: &LabeledBlock) -> Self {
        let named = |name: Option<&Arc<str>>| Self {
            name: name.or(block.name.as_ref().map(|name| &name.text)).cloned(),
            class: None,
        };
        match (BaselineKind::of(block), &block.retainer) {
            (
                BaselineKind::Parameter
                | BaselineKind::Buffer
                | BaselineKind::Gradient
                | BaselineKind::OptimizerState,
                _,
            ) => named(block.module.as_ref()),
            (BaselineKind::Saved, _) => named(block.saved_by.as_ref()),
            (BaselineKind::KvCache | BaselineKind::Retained, Some(retainer)) => Self {
                name: Some(Arc::clone(&retainer.by)),
                class: retainer.class.clone(),
            },
            _ => named(None),
        }
    }
}

impl BeforeAttach {
    /// Parts that add up to `live`, largest first; the last is the rest that no reading has named. Empty if the
    /// process's objects were not read.
    pub fn parts(&self) -> Vec<BaselinePart<'_>> {
        if self.labeled.is_none() {
            return Vec::new();
        }
        let mut parts: Vec<BaselinePart<'_>> = Vec::new();
        for group in &self.groups {
            let known = parts.iter().position(|part| part.kind == group.kind);
            let at = known.unwrap_or_else(|| {
                parts.push(BaselinePart {
                    kind: group.kind,
                    live: Bytes(0),
                    blocks: Some(0),
                    groups: Vec::new(),
                });
                parts.len() - 1
            });
            let part = &mut parts[at];
            part.live.0 = part.live.0.saturating_add(group.live.0);
            part.blocks = part.blocks.map(|blocks| blocks + group.blocks);
            part.groups.push(group);
        }
        parts.sort_by_key(|part| (Reverse(part.live), part.kind));
        let named: u64 = self.groups.iter().map(|group| group.live.0).sum();
        let blocks: u64 = self.groups.iter().map(|group| group.blocks).sum();
        let rest = self.live.0.saturating_sub(named);
        if rest > 0 {
            let all = self.live_blocks();
            parts.push(BaselinePart {
                kind: BaselineKind::Unread,
                live: Bytes(rest),
                blocks: all.map(|all| all.saturating_sub(blocks)),
                groups: Vec::new(),
            });
        }
        parts
    }

    /// Bytes whose content is unknown: not read, or of tensors that nothing known keeps alive.
    pub fn unexplained(&self) -> Bytes {
        let explained = self.groups.iter().filter(|group| group.kind.is_explained());
        let explained: u64 = explained.map(|group| group.live.0).sum();
        Bytes(self.live.0.saturating_sub(explained))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::TimeNs;

    fn group(kind: BaselineKind, owner: &str, live: u64) -> BaselineGroup {
        BaselineGroup {
            kind,
            owner: BaselineOwner {
                name: Some(owner.into()),
                class: None,
            },
            live: Bytes(live),
            blocks: 1,
        }
    }

    #[test]
    fn the_parts_and_the_rest_add_up_to_what_is_live() {
        let mut before = BeforeAttach {
            live: Bytes(100),
            known_blocks: 5,
            groups: vec![
                group(BaselineKind::Parameter, "model.a", 30),
                group(BaselineKind::Retained, "cache[*]", 40),
                group(BaselineKind::Parameter, "model.b", 20),
            ],
            ..BeforeAttach::default()
        };
        assert!(before.parts().is_empty());
        before.labeled = Some(TimeNs(1));
        let parts = before.parts();
        let figures: Vec<_> = parts
            .iter()
            .map(|part| (part.kind, part.live.0, part.blocks))
            .collect();
        assert_eq!(
            figures,
            [
                (BaselineKind::Parameter, 50, Some(2)),
                (BaselineKind::Retained, 40, Some(1)),
                (BaselineKind::Unread, 10, Some(2)),
            ]
        );
        assert_eq!(before.unexplained(), Bytes(10));
    }
}
