//! A tree of modules with the names of its members.

use std::sync::Arc;

use hashbrown::HashMap;

use super::fingerprint::ObjectFingerprint;
use super::tree::{NamedModules, TreeMember};
use crate::python::heap::modules::joined;
use crate::torch::module_calls::Question;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeNumber {
    /// Number among the trees of its class, in order of discovery, from 1.
    pub(super) number: u32,
    /// Number among all trees, in order of discovery.
    pub(super) order: u64,
}

#[derive(Debug)]
pub(super) struct NamedTree {
    pub(super) class: Arc<str>,
    pub(super) rank: TreeNumber,
    /// First question that these names answer: the tree was read after earlier questions were asked.
    pub(super) since: Question,
    /// Moments, independent of the process's calls, at which the tree was found unchanged.
    pub(super) moments: u32,
    pub(super) members: HashMap<u64, TreeMember>,
    /// True if the root was freed, so its number is free.
    pub(super) is_over: bool,
    /// Number of trees put up to this one.
    pub(super) version: u64,
}

impl NamedTree {
    pub fn of(mut tree: NamedModules, rank: TreeNumber, since: Question) -> Self {
        let top: Arc<str> = match rank.number {
            1 => tree.class.clone(),
            number => format!("{}#{number}", tree.class).into(),
        };
        for member in tree.members.values_mut() {
            member.path = match &*member.path {
                "" => top.clone(),
                below => joined(&top, below),
            };
        }
        Self {
            class: tree.class,
            rank,
            since,
            moments: 0,
            members: tree.members,
            is_over: false,
            version: 0,
        }
    }

    pub fn sign(&self, module: u64) -> Option<ObjectFingerprint> {
        self.members.get(&module).map(|member| member.sign)
    }

    pub fn signs(&self) -> impl Iterator<Item = (u64, ObjectFingerprint)> {
        let members = self.members.iter();
        members.map(|(object, member)| (*object, member.sign))
    }

    /// Signs of a module and all its ancestors. Its path is still correct if none of them was replaced.
    pub fn signs_up_from(&self, module: u64) -> impl Iterator<Item = (u64, ObjectFingerprint)> {
        let first = self.members.get(&module).map(|member| (module, member));
        let up = std::iter::successors(first, |(_, member)| {
            let above = member.above;
            Some((above, self.members.get(&above)?))
        });
        // Each parent was met before its child, so the chain ends.
        up.map(|(object, member)| (object, member.sign))
            .take(self.members.len())
    }

    pub fn has_names_of(&self, other: &Self) -> bool {
        let same = |(object, member): (&u64, &TreeMember)| {
            let its = other.members.get(object);
            its.is_some_and(|its| its.path == member.path)
        };
        self.members.len() == other.members.len() && self.members.iter().all(same)
    }
}
