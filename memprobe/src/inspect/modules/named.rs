//! A tree of modules and the names that it gives them.

use std::sync::Arc;

use hashbrown::HashMap;

use super::sign::Sign;
use super::tree::{Member, Tree};
use crate::inspect::heap::modules::joined;
use crate::symbolize::python::module_calls::Question;

/// Where a tree stands among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rank {
    /// Of trees of one class in the order of being met, from 1 on.
    pub(super) number: u32,
    /// Of all trees, in the order of being met.
    pub(super) order: u64,
}

/// A tree and its name.
#[derive(Debug)]
pub(super) struct Named {
    /// The class of the module at the top.
    pub(super) class: Arc<str>,
    /// Where it stands.
    pub(super) rank: Rank,
    /// The first question that its names are an answer to: they were read after those before it were asked.
    pub(super) since: Question,
    /// At how many moments, none of them chosen by its calls, it was found unchanged.
    pub(super) moments: u32,
    /// The modules by their addresses, with full paths.
    members: HashMap<u64, Member>,
    /// The module at its top was freed: its number is free.
    pub(super) is_over: bool,
}

impl Named {
    /// The names that a tree gives which was only just read.
    pub(super) fn of(mut tree: Tree, rank: Rank, since: Question) -> Self {
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
        }
    }

    /// How many modules it has.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether a module is in it.
    pub(super) fn holds(&self, module: u64) -> bool {
        self.members.contains_key(&module)
    }

    /// Its name and what it is known by.
    pub(super) fn get(&self, module: u64) -> Option<&Member> {
        self.members.get(&module)
    }

    /// What a module is known by.
    pub(super) fn sign(&self, module: u64) -> Option<Sign> {
        self.get(module).map(|member| member.sign)
    }

    /// What all are known by.
    pub(super) fn signs(&self) -> impl Iterator<Item = (u64, Sign)> {
        let members = self.members.iter();
        members.map(|(object, member)| (*object, member.sign))
    }

    /// What a module and all above it are known by: its path is right where none of them is another.
    pub(super) fn signs_up_from(&self, module: u64) -> impl Iterator<Item = (u64, Sign)> {
        let first = self.get(module).map(|member| (module, member));
        let up = std::iter::successors(first, |(_, member)| {
            let above = member.above;
            Some((above, self.get(above)?))
        });
        // Each stands below one that was met before it, so this has an end.
        up.map(|(object, member)| (object, member.sign))
            .take(self.len())
    }

    /// Whether both have the same modules under the same names.
    pub(super) fn has_names_of(&self, other: &Self) -> bool {
        let same = |(object, member): (&u64, &Member)| {
            let its = other.members.get(object);
            its.is_some_and(|its| its.path == member.path)
        };
        self.len() == other.len() && self.members.iter().all(same)
    }
}
