//! Keys of dicts. The millions of events of a history have the same keys in the same order: each dict keeps its values
//! and the number of its last key, and shares the keys with the others.

use hashbrown::HashMap;

use super::machine::{TextId, Value};

/// A dict: its values in the order in which they were set.
#[derive(Debug, Default)]
pub(super) struct Dict {
    pub(super) values: Vec<Value>,
    /// Last key; 0 for an empty dict.
    last: u32,
}

/// A key after others. The same keys in the same order have one number.
#[derive(Clone, Copy, Debug)]
struct KeyAfter {
    key: Value,
    before: u32,
}

/// Keys of all dicts.
#[derive(Debug, Default)]
pub(super) struct PickledKeys {
    /// Key with the number of its place plus 1.
    keys: Vec<KeyAfter>,
    /// Texts, which are nearly all keys, by the number of the key before.
    texts: HashMap<(u32, TextId), u32>,
}

impl PickledKeys {
    pub(super) fn set(&mut self, dict: &mut Dict, key: Value, value: Value) {
        let before = dict.last;
        let keys = &mut self.keys;
        let mut add = || {
            keys.push(KeyAfter { key, before });
            keys.len() as u32
        };
        dict.last = match key {
            Value::Text(text) => *self.texts.entry((before, text)).or_insert_with(add),
            _ => add(),
        };
        dict.values.push(value);
    }

    /// Returns keys and values from the last one to the first.
    pub(super) fn pairs_from_last<'a>(
        &'a self,
        dict: &'a Dict,
    ) -> impl Iterator<Item = (Value, Value)> + 'a {
        let mut next = dict.last;
        dict.values.iter().rev().map_while(move |value| {
            let found = self.keys.get((next as usize).checked_sub(1)?)?;
            next = found.before;
            Some((found.key, *value))
        })
    }

    /// Returns keys and values in the order in which they were set.
    pub(super) fn pairs(&self, dict: &Dict) -> impl Iterator<Item = (Value, Value)> {
        let mut pairs: Vec<_> = self.pairs_from_last(dict).collect();
        pairs.reverse();
        pairs.into_iter()
    }
}
