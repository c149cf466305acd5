//! A fake Python heap for tests, laid out by the same table that the readers use.

use crate::process::memory::ReadMemory as _;
use crate::process::memory::fake::FakeMemory;
use crate::python::fake::map_str;
use crate::python::layout::{
    Attributes, ClassLayout, CollectorLayout, DictKeys, DictLayout, HeapLayout, ObjectLayout,
    PythonLayout,
};

/// Base address.
const BASE: u64 = 0x5000_0000;

/// Bytes before an object: the collector's header, and the words that 3.11 and 3.12 put before it.
const BEFORE: u64 = 32;

/// Bytes of a class.
const CLASS: u64 = 1024;

/// Objects in layout order.
pub(crate) struct FakeHeap {
    pub(crate) layout: &'static PythonLayout,
    bytes: Vec<u8>,
    /// Objects in the collector's lists.
    listed: Vec<u64>,
    pub(crate) str_class: u64,
    pub(crate) int_class: u64,
    pub(crate) dict_class: u64,
    pub(crate) list_class: u64,
    pub(crate) tuple_class: u64,
    pub(crate) module_class: u64,
}

impl FakeHeap {
    pub(crate) fn new(layout: &'static PythonLayout) -> Self {
        let mut heap = Self {
            layout,
            bytes: Vec::new(),
            listed: Vec::new(),
            str_class: 0,
            int_class: 0,
            dict_class: 0,
            list_class: 0,
            tuple_class: 0,
            module_class: 0,
        };
        heap.str_class = heap.class("str", ClassLayout::STR, 0);
        heap.int_class = heap.class("int", ClassLayout::LONG, 0);
        heap.dict_class = heap.class("dict", ClassLayout::DICT_CLASS, 0);
        heap.list_class = heap.class("list", ClassLayout::LIST, 0);
        heap.tuple_class = heap.class("tuple", ClassLayout::TUPLE, 0);
        heap.module_class = heap.class("module", 0, 0);
        heap
    }

    /// Reserves `size` zero bytes.
    pub(crate) fn reserve(&mut self, size: u64) -> u64 {
        let at = BASE + self.bytes.len() as u64;
        let end = self.bytes.len() + size.next_multiple_of(64) as usize;
        self.bytes.resize(end, 0);
        at
    }

    pub(crate) fn put(&mut self, address: u64, offset: impl Into<u64>, bytes: &[u8]) {
        let at = (address + offset.into() - BASE) as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn put_word(&mut self, address: u64, offset: impl Into<u64>, word: u64) {
        self.put(address, offset, &word.to_le_bytes());
    }

    pub(crate) fn word(&self, address: u64, offset: impl Into<u64>) -> u64 {
        let at = (address + offset.into() - BASE) as usize;
        let bytes = self.bytes[at..].first_chunk().unwrap();
        u64::from_le_bytes(*bytes)
    }

    fn c_string(&mut self, text: &str) -> u64 {
        let at = self.reserve(text.len() as u64 + 1);
        self.put(at, 0_u64, text.as_bytes());
        at
    }

    /// A class with these flags.
    pub(crate) fn class(&mut self, name: &str, flags: u64, base: u64) -> u64 {
        let class = self.reserve(CLASS);
        let name = self.c_string(name);
        self.put_word(class, ClassLayout::NAME, name);
        self.put_word(class, ClassLayout::FLAGS, flags | ClassLayout::READY);
        self.put_word(class, ClassLayout::BASE, base);
        self.put_word(class, ClassLayout::BASIC_SIZE, 16);
        class
    }

    /// A class made by a `class` statement whose objects have these attributes.
    pub(crate) fn python_class(&mut self, name: &str, module: &str, attributes: &[&str]) -> u64 {
        let managed = match self.layout.heap.attributes {
            Attributes::Dict => 0,
            _ => ClassLayout::MANAGED_DICT,
        };
        let class = self.class(name, ClassLayout::HEAP_TYPE | managed, 0);
        if managed == 0 {
            self.put_word(class, ClassLayout::DICT_OFFSET, 16);
        }
        if self.layout.heap.attributes == Attributes::Inline {
            let flags = ClassLayout::HEAP_TYPE | managed | ClassLayout::INLINE_VALUES;
            self.put_word(class, ClassLayout::FLAGS, flags | ClassLayout::READY);
        }
        let (key, value) = (self.text("__module__"), self.text(module));
        let dict = self.dict(&[(key, value)]);
        self.put_word(class, ClassLayout::DICT, dict);
        let keys: Vec<_> = attributes.iter().map(|name| (self.text(name), 0)).collect();
        let keys = self.keys(&keys, 2);
        let cached = self.layout.heap.cached_keys;
        self.put_word(class, cached, keys);
        class
    }

    /// Makes a class derive from others: `bases` are all of them in the order of method resolution, and the objects
    /// have the layout of `base`.
    pub(crate) fn derive(&mut self, class: u64, base: u64, bases: &[u64]) {
        let order: Vec<_> = std::iter::once(class)
            .chain(bases.iter().copied())
            .collect();
        let order = self.tuple(&order);
        self.put_word(class, ClassLayout::BASE, base);
        self.put_word(class, ClassLayout::MRO, order);
    }

    /// An object in the collector's lists.
    pub(crate) fn object(&mut self, class: u64, size: u64) -> u64 {
        let at = self.reserve(BEFORE + size) + BEFORE;
        self.put_word(at, 0_u64, 1);
        self.put_word(at, ObjectLayout::KIND, class);
        self.listed.push(at);
        at
    }

    /// Takes an object out of the collector's lists.
    pub(crate) fn untrack(&mut self, object: u64) -> u64 {
        self.listed.retain(|&listed| listed != object);
        object
    }

    /// An array of numpy with these lengths and strides of its axes, and its dtype.
    pub(crate) fn array(
        &mut self,
        data: u64,
        (lengths, strides): (&[u64], &[i64]),
        dtype: ([u8; 2], u32),
    ) -> u64 {
        let class = self.class("numpy.ndarray", 0, 0);
        self.put_word(class, ClassLayout::BASIC_SIZE, 80);
        let array = self.reserve(80);
        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let strides: Vec<u64> = strides.iter().map(|it| it.cast_unsigned()).collect();
        let [dimensions, distances] = [lengths, &strides].map(|axes| {
            let at = self.reserve(8 * axes.len() as u64);
            self.put(at, 0_u64, &words(axes));
            at
        });
        let descr = self.reserve(32);
        self.put(descr, 24_u64, &dtype.0);
        self.put(descr, 28_u64, &dtype.1.to_le_bytes());
        let fields = [
            class,
            data,
            lengths.len() as u64,
            dimensions,
            distances,
            0,
            descr,
        ];
        self.put(array, ObjectLayout::KIND, &words(&fields));
        array
    }

    pub(crate) fn text(&mut self, text: &str) -> u64 {
        let mut alone = FakeMemory::default();
        map_str(&mut alone, self.layout, 0x1000, text);
        let bytes = alone.copies_of(&[(0x1000, 4096)]);
        let bytes = bytes.read_prefix(0x1000, 4096, 4096).unwrap();
        let at = self.reserve(bytes.len() as u64 + 64);
        self.put(at, 0_u64, &bytes);
        self.put_word(at, ObjectLayout::KIND, self.str_class);
        at
    }

    /// An int of one digit.
    pub(crate) fn int(&mut self, value: i32) -> u64 {
        use crate::python::layout::Numbers;
        let at = self.reserve(40);
        let size = match (self.layout.heap.numbers, value) {
            (Numbers::Signed, ..0) => u64::MAX,
            (Numbers::Signed, _) => 1,
            (Numbers::Tagged, ..0) => 1 << 3 | 2,
            (Numbers::Tagged, _) => 1 << 3,
        };
        self.put_word(at, ObjectLayout::KIND, self.int_class);
        self.put_word(at, HeapLayout::SIZE, size);
        self.put(at, HeapLayout::DIGITS, &value.unsigned_abs().to_le_bytes());
        at
    }

    pub(crate) fn dict(&mut self, entries: &[(u64, u64)]) -> u64 {
        let dict = self.object(self.dict_class, 48);
        let keys = self.keys(entries, 0);
        self.put_word(dict, DictLayout::USED, entries.len() as u64);
        self.put_word(dict, DictLayout::KEYS, keys);
        dict
    }

    /// A keys table. From 3.11 on it has a kind: 0 stores hashes.
    pub(crate) fn keys(&mut self, entries: &[(u64, u64)], kind: u8) -> u64 {
        let size = entries.len().next_power_of_two().max(8) as u64;
        let width = if size > 0xff { 2 } else { 1 };
        let indices = size * width;
        let table = self.reserve(64 + indices + 24 * size);
        let (start, with_hash) = match self.layout.heap.dict_keys {
            DictKeys::Sized => {
                self.put_word(table, 8_u64, size);
                self.put_word(table, 32_u64, entries.len() as u64);
                (40 + indices, true)
            }
            DictKeys::Logarithmic => {
                let log = size.trailing_zeros() as u8;
                self.put(table, 8_u64, &[log, log + width as u8 - 1, kind]);
                self.put_word(table, 24_u64, entries.len() as u64);
                (32 + indices, kind == 0)
            }
        };
        let step = if with_hash { 24 } else { 16 };
        for (number, &(key, value)) in (0..).zip(entries) {
            let entry = start + number * step + step - 16;
            self.put_word(table, entry, key);
            self.put_word(table, entry + 8, value);
        }
        table
    }

    pub(crate) fn list(&mut self, items: &[u64]) -> u64 {
        let list = self.object(self.list_class, 40);
        let table = self.reserve(8 * items.len() as u64 + 8);
        self.put_word(list, HeapLayout::SIZE, items.len() as u64);
        self.put_word(list, HeapLayout::LIST_ITEMS, table);
        for (number, &item) in (0..).zip(items) {
            self.put_word(table, 8 * number as u64, item);
        }
        list
    }

    pub(crate) fn tuple(&mut self, items: &[u64]) -> u64 {
        let tuple = self.object(self.tuple_class, 40 + 8 * items.len() as u64);
        self.put_word(tuple, HeapLayout::SIZE, items.len() as u64);
        for (number, &item) in (0..).zip(items) {
            let at = u64::from(self.layout.heap.tuple_items) + 8 * number as u64;
            self.put_word(tuple, at, item);
        }
        tuple
    }

    /// A module with these globals.
    pub(crate) fn module(&mut self, name: &str, globals: &[(&str, u64)]) -> u64 {
        let (key, value) = (self.text("__name__"), self.text(name));
        let mut entries = vec![(key, value)];
        for &(name, value) in globals {
            entries.push((self.text(name), value));
        }
        let dict = self.dict(&entries);
        let module = self.object(self.module_class, 64);
        self.put_word(module, HeapLayout::MODULE_DICT, dict);
        module
    }

    /// An object with its attributes in a dict.
    pub(crate) fn with_dict(&mut self, class: u64, attributes: &[(&str, u64)]) -> u64 {
        let entries: Vec<_> = attributes
            .iter()
            .map(|&(name, value)| (self.text(name), value))
            .collect();
        let dict = self.dict(&entries);
        let object = self.object(class, 64);
        match self.layout.heap.attributes {
            Attributes::Dict => self.put_word(object, 16_u64, dict),
            _ => self.put_word(object - 24, 0_u64, dict),
        }
        object
    }

    /// An object with its attributes in a values array, in the order of its class's names.
    pub(crate) fn with_values(&mut self, class: u64, values: &[u64]) -> u64 {
        let table = self.reserve(16 + 8 * values.len() as u64);
        let object = self.object(class, 64 + 8 * values.len() as u64);
        let first = match self.layout.heap.attributes {
            Attributes::Dict => unreachable!("they have none before 3.11"),
            Attributes::ValuesOrDict => {
                self.put_word(object - 32, 0_u64, table);
                table
            }
            Attributes::Tagged => {
                self.put_word(object - 24, 0_u64, table - 1);
                table
            }
            Attributes::Inline => {
                self.put(object, 16_u64, &[8, 0, 1, 1]);
                object + 24
            }
        };
        for (number, &value) in (0..).zip(values) {
            self.put_word(first, 8 * number as u64, value);
        }
        object
    }

    /// Returns the memory and the address of an interpreter. Its four collector lists get the objects in
    /// turn.
    pub(crate) fn finish(mut self) -> (FakeMemory, u64) {
        let collector = self.layout.heap.collector;
        let interpreter = self.reserve(u64::from(collector.start) + 512);
        let start = interpreter + u64::from(collector.start);
        let generation = start + u64::from(collector.generations);
        let step = CollectorLayout::GENERATION_SIZE;
        let heads = [
            generation,
            generation + step,
            generation + 2 * step,
            start + u64::from(collector.permanent),
        ];
        for (number, head) in heads.into_iter().enumerate() {
            let listed: Vec<_> = self.listed.iter().skip(number).step_by(4).collect();
            let nodes: Vec<u64> = listed.into_iter().map(|object| object - 16).collect();
            let ring: Vec<u64> = [&[head][..], &nodes, &[head]].concat();
            for pair in ring.windows(2) {
                // Set the flag bits that the collector sets.
                self.put_word(pair[0], 0_u64, pair[1] | 1);
                self.put_word(pair[1], 8_u64, pair[0] | 2);
            }
        }
        // Pad the last page.
        self.reserve(16 << 10);
        let mut memory = FakeMemory::default();
        memory.map(BASE, self.bytes);
        (memory, interpreter)
    }
}
