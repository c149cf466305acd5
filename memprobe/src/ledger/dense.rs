//! Side tables: values by dense number, for data that analyses keep for blocks and stacks.

use std::marker::PhantomData;
use std::num::NonZeroU32;

use super::block_store::BlockId;
use super::definitions::StackRef;

pub type PerBlock<T> = DenseMap<BlockId, T>;

pub type PerStack<T> = DenseMap<StackRef, T>;

/// Number counted from 0, without large gaps.
pub trait Dense: Copy {
    fn index(self) -> usize;
    fn from_index(index: usize) -> Self;
}

/// Index in a table, which takes 4 bytes in a [`DenseMap`] too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompactIndex(NonZeroU32);

impl CompactIndex {
    pub fn of(index: usize) -> Self {
        // The caps keep every table far below 2^32 entries.
        Self(NonZeroU32::MIN.saturating_add(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Clone, Debug)]
pub struct DenseMap<K, V> {
    values: Vec<Option<V>>,
    keys: PhantomData<K>,
}

impl<K, V> Default for DenseMap<K, V> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            keys: PhantomData,
        }
    }
}

impl<K: Dense, V> DenseMap<K, V> {
    pub fn get(&self, key: K) -> Option<&V> {
        self.values.get(key.index())?.as_ref()
    }

    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.values.get_mut(key.index())?.as_mut()
    }

    pub fn insert(&mut self, key: K, value: V) {
        let index = key.index();
        if self.values.len() <= index {
            self.values.resize_with(index + 1, || None);
        }
        self.values[index] = Some(value);
    }

    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let index = key.index();
        if self.values.len() <= index {
            self.values.resize_with(index + 1, || None);
        }
        self.values[index].get_or_insert_default()
    }

    pub fn remove(&mut self, key: K) -> Option<V> {
        self.values.get_mut(key.index())?.take()
    }

    /// Gives back the memory beyond its last key.
    pub fn shrink_to_fit(&mut self) {
        self.values.shrink_to_fit();
    }

    /// Values in the order of their keys.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.values.iter_mut().flatten()
    }

    /// Bytes of its table, without what its values point to.
    pub fn bytes(&self) -> u64 {
        (self.values.len() * size_of::<Option<V>>()) as u64
    }

    /// Entries in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        let values = self.values.iter().enumerate();
        values.filter_map(|(index, value)| Some((K::from_index(index), value.as_ref()?)))
    }
}
