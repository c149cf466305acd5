//! A fake Python for tests: objects laid out by the same table that the readers use.

use super::layout::{
    BytesLayout, Instructions, LineFormat, ObjectLayout, PythonLayout, StringLayout,
};
use crate::process::memory::fake::FakeMemory;

/// Address of `PyCode_Type`.
pub(super) const CODE_TYPE: u64 = 0x10_0000;

/// A code object to lay out.
pub(super) struct FakeCode<'a> {
    pub(super) address: u64,
    pub(super) file: &'a str,
    pub(super) name: &'a str,
    pub(super) first_line: u32,
    pub(super) version: u32,
    /// One entry per line: the number of code units of two bytes.
    pub(super) units_of_lines: &'a [u8],
}

fn put(bytes: &mut [u8], offset: u16, value: &[u8]) {
    let offset = usize::from(offset);
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

/// Lays out a str as CPython does.
pub(crate) fn map_str(memory: &mut FakeMemory, layout: &PythonLayout, address: u64, text: &str) {
    let string = &layout.string;
    let widest = text.chars().map(u32::from).max().unwrap_or(0);
    let (kind, width) = match widest {
        0..=0xff => (1, 1),
        0x100..=0xffff => (2, 2),
        _ => (4, 4),
    };
    let ascii = widest < 0x80;
    let start = if ascii {
        string.ascii_data
    } else {
        string.compact_data
    };
    let mut bytes = vec![0; usize::from(start)];
    let flags = StringLayout::COMPACT | if ascii { StringLayout::ASCII } else { 0 };
    put(
        &mut bytes,
        StringLayout::LENGTH,
        &(text.chars().count() as u64).to_le_bytes(),
    );
    put(
        &mut bytes,
        StringLayout::STATE,
        &(flags | kind << StringLayout::KIND_SHIFT).to_le_bytes(),
    );
    for char in text.chars() {
        bytes.extend(&u32::from(char).to_le_bytes()[..width]);
    }
    memory.map(address, bytes);
}

impl FakeCode<'_> {
    /// Lays out the code object with its strings and line table.
    pub(super) fn map(&self, memory: &mut FakeMemory, layout: &PythonLayout) {
        let code = &layout.code;
        let units: u64 = self.units_of_lines.iter().copied().map(u64::from).sum();
        let mut strings = vec![(code.file, self.file), (code.name(), self.name)];
        strings.extend(code.qualname.map(|qualname| (qualname, self.name)));
        let mut bytes = vec![0; usize::from(code.size)];
        put(&mut bytes, ObjectLayout::REFERENCES, &1_u64.to_le_bytes());
        put(&mut bytes, ObjectLayout::KIND, &CODE_TYPE.to_le_bytes());
        match code.instructions {
            Instructions::Apart { object, .. } => {
                let address = self.address + 0x9_0000;
                put(&mut bytes, object, &address.to_le_bytes());
                map_bytes(memory, address, &vec![0; 2 * units as usize]);
            }
            Instructions::Inline {
                units: count,
                first_traceable,
                ..
            } => {
                put(&mut bytes, count, &units.to_le_bytes());
                put(&mut bytes, first_traceable, &1_u32.to_le_bytes());
            }
        }
        put(&mut bytes, code.first_line, &self.first_line.to_le_bytes());
        if let Some(version) = code.version {
            put(&mut bytes, version, &self.version.to_le_bytes());
        }
        for (place, (offset, text)) in (1..).zip(strings) {
            let address = self.address + place * 0x1_0000;
            put(&mut bytes, offset, &address.to_le_bytes());
            map_str(memory, layout, address, text);
        }
        let address = self.address + 0x8_0000;
        put(&mut bytes, code.line_table, &address.to_le_bytes());
        map_bytes(memory, address, &self.line_table(code.line_format));
        memory.map(self.address, bytes);
    }

    /// Returns a line table in which each entry advances by one line.
    fn line_table(&self, format: LineFormat) -> Vec<u8> {
        let units = self.units_of_lines.iter();
        match format {
            // The line advances after the bytes before it.
            LineFormat::Increments => {
                let before = [0].into_iter().chain(units.copied());
                let lines = before.take(self.units_of_lines.len());
                lines.flat_map(|units| [2 * units, 1]).collect()
            }
            LineFormat::Ranges => units.flat_map(|units| [2 * units, 1]).collect(),
            LineFormat::Locations => units
                .flat_map(|units| [0x80 | 13 << 3 | (units - 1), 2])
                .collect(),
        }
    }

    /// Returns the `instr` value of a frame at the code unit `unit`.
    pub(super) fn instr(&self, layout: &PythonLayout, unit: u64) -> u64 {
        match layout.code.instructions {
            // The upper half of the word holds another field.
            Instructions::Apart { step, .. } => 0x55 << 32 | (2 * unit / u64::from(step)),
            Instructions::Inline { start, .. } => self.address + u64::from(start) + 2 * unit,
        }
    }
}

fn map_bytes(memory: &mut FakeMemory, address: u64, content: &[u8]) {
    let mut object = vec![0; usize::from(BytesLayout::DATA)];
    let size = content.len() as u64;
    put(&mut object, BytesLayout::SIZE, &size.to_le_bytes());
    object.extend(content);
    memory.map(address, object);
}
