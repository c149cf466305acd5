//! Parquet of allocations, one row each, with the columns of the CSV.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{Type, TypePtr};

use super::ExportError;
use super::allocation_rows::{AllocationRow, columns, each_allocation};
use super::replay::ExportReplay;
use crate::event::DeviceIndex;
use crate::recording::Reader;
use crate::view::table::{Cell, Column};

/// Rows that are in memory at once, and in a row group of the file.
const GROUP_ROWS: usize = 1 << 18;

/// Cap on the dictionary of a column of texts in a row group. Beyond it the rest of the group repeats them.
const DICTIONARY_BYTES: usize = 16 << 20;

/// Number of the CPU in the column `device`.
const CPU: i32 = -1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnType {
    Integer,
    Unsigned,
    Device,
    Text,
}

impl ColumnType {
    /// Returns the type of a column by its key.
    fn of(key: &str) -> Self {
        match key {
            "time_ns" | "freed_ns" | "size" | "requested" | "tid" | "line" => Self::Integer,
            "addr" | "stream" => Self::Unsigned,
            "device" => Self::Device,
            _ => Self::Text,
        }
    }

    fn schema(self, key: &str) -> Result<TypePtr, ParquetError> {
        let (physical, logical) = match self {
            Self::Integer => (PhysicalType::INT64, LogicalType::integer(64, true)),
            Self::Unsigned => (PhysicalType::INT64, LogicalType::integer(64, false)),
            Self::Device => (PhysicalType::INT32, LogicalType::integer(32, true)),
            Self::Text => (PhysicalType::BYTE_ARRAY, LogicalType::String),
        };
        let column = Type::primitive_type_builder(key, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(Some(logical));
        Ok(Arc::new(column.build()?))
    }
}

/// Texts of a column, each once.
#[derive(Default)]
struct Texts {
    numbers: HashMap<Box<str>, u32>,
    texts: Vec<ByteArray>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.into());
        self.numbers.insert(text.into(), number);
        number
    }
}

/// Values of a column in the current row group.
enum Values {
    Wide(Vec<i64>),
    Narrow(Vec<i32>),
    Texts(Texts, Vec<u32>),
}

struct ColumnBuffer {
    /// 1 for a value and 0 for a null, by row.
    defined: Vec<i16>,
    values: Values,
}

impl ColumnBuffer {
    fn of(column: ColumnType) -> Self {
        let values = match column {
            ColumnType::Integer | ColumnType::Unsigned => Values::Wide(Vec::new()),
            ColumnType::Device => Values::Narrow(Vec::new()),
            ColumnType::Text => Values::Texts(Texts::default(), Vec::new()),
        };
        Self {
            defined: Vec::new(),
            values,
        }
    }

    fn push(&mut self, cell: &Cell<'_>) {
        let is_known = match &mut self.values {
            Values::Wide(values) => number(cell).map(|number| values.push(number)),
            Values::Narrow(values) => device(cell).map(|device| values.push(device)),
            Values::Texts(texts, values) => {
                let text = cell.csv();
                (!text.is_empty()).then(|| values.push(texts.number(&text)))
            }
        };
        self.defined.push(i16::from(is_known.is_some()));
    }

    /// Writes the row group's values, and forgets them.
    fn flush(&mut self, column: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let defined = Some(&*self.defined);
        match &mut self.values {
            Values::Wide(values) => {
                let writer = column.typed::<Int64Type>();
                writer.write_batch(values, defined, None)?;
                values.clear();
            }
            Values::Narrow(values) => {
                let writer = column.typed::<Int32Type>();
                writer.write_batch(values, defined, None)?;
                values.clear();
            }
            Values::Texts(texts, values) => {
                let text = |number: &u32| texts.texts[*number as usize].clone();
                let all: Vec<ByteArray> = values.iter().map(text).collect();
                let writer = column.typed::<ByteArrayType>();
                writer.write_batch(&all, defined, None)?;
                values.clear();
                *texts = Texts::default();
            }
        }
        self.defined.clear();
        Ok(())
    }
}

/// Returns the bits of a number; an address above 2^63 is negative here and unsigned in the file.
fn number(cell: &Cell<'_>) -> Option<i64> {
    match cell {
        Cell::Bytes(number)
        | Cell::Count(number)
        | Cell::Nanoseconds(number)
        | Cell::Number(number) => Some(number.cast_signed()),
        Cell::Address(address) => Some(address.0.cast_signed()),
        _ => None,
    }
}

fn device(cell: &Cell<'_>) -> Option<i32> {
    match cell {
        Cell::Device(DeviceIndex::UNKNOWN) => None,
        Cell::Device(DeviceIndex::CPU) => Some(CPU),
        Cell::Device(device) => i32::try_from(device.0).ok(),
        _ => None,
    }
}

/// A file in memory up to the end of its last row group.
struct ParquetTable<'a, 'r> {
    columns: &'a [Column<AllocationRow<'r>>],
    buffers: Vec<ColumnBuffer>,
    rows: usize,
    file: SerializedFileWriter<Vec<u8>>,
}

impl<'a, 'r> ParquetTable<'a, 'r> {
    fn new(
        columns: &'a [Column<AllocationRow<'r>>],
        facts: Vec<KeyValue>,
    ) -> Result<Self, ParquetError> {
        let types: Vec<ColumnType> = columns.iter().map(|it| ColumnType::of(it.key)).collect();
        let fields: Result<Vec<TypePtr>, ParquetError> = columns
            .iter()
            .zip(&types)
            .map(|(column, kind)| kind.schema(column.key))
            .collect();
        let schema = Type::group_type_builder("allocations").with_fields(fields?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
            .set_dictionary_page_size_limit(DICTIONARY_BYTES)
            .set_created_by(concat!("memprobe ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(facts))
            .build();
        let schema = Arc::new(schema.build()?);
        Ok(Self {
            columns,
            buffers: types.into_iter().map(ColumnBuffer::of).collect(),
            rows: 0,
            file: SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?,
        })
    }

    fn push(&mut self, row: &AllocationRow<'r>) {
        for (column, buffer) in self.columns.iter().zip(&mut self.buffers) {
            buffer.push(&(column.value)(row));
        }
        self.rows += 1;
    }

    /// Ends the row group, and moves what the file has by now to `out`.
    fn flush(&mut self, out: &mut impl Write) -> Result<(), ExportError> {
        self.end_group().map_err(io_error)?;
        self.file.flush()?;
        Ok(out.write_all(&std::mem::take(self.file.inner_mut()))?)
    }

    fn end_group(&mut self) -> Result<(), ParquetError> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for buffer in &mut self.buffers {
            let column = group.next_column()?;
            let mut column = column.ok_or_else(|| ParquetError::General("no column".to_owned()))?;
            buffer.flush(&mut column)?;
            column.close()?;
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }

    fn finish(mut self, out: &mut impl Write) -> Result<(), ExportError> {
        self.flush(out)?;
        let end = self.file.into_inner().map_err(io_error)?;
        Ok(out.write_all(&end)?)
    }
}

fn io_error(error: ParquetError) -> ExportError {
    ExportError::Output(io::Error::other(error))
}

/// Facts about the recording, in the file's metadata.
fn facts(replay: &ExportReplay) -> Vec<KeyValue> {
    let target = &replay.header.target;
    let fact = |key: &str, value: String| KeyValue::new(format!("memprobe.{key}"), value);
    let start = replay.header.wall_start_ms;
    let optional = [
        start.map(|start| fact("start_unix_ms", start.to_string())),
        target.tgid.map(|tgid| fact("pid", tgid.0.to_string())),
        target.torch.clone().map(|torch| fact("torch", torch)),
    ];
    let command = fact("command", target.command.clone());
    optional.into_iter().flatten().chain([command]).collect()
}

/// Writes a row for each allocation, in their order.
pub(super) fn write<R: BufRead>(
    replay: &ExportReplay,
    reader: &Reader<R>,
    progress: &AtomicU64,
    out: &mut impl Write,
) -> Result<(), ExportError> {
    let columns = columns();
    let mut table = ParquetTable::new(&columns, facts(replay)).map_err(io_error)?;
    each_allocation(replay, reader, progress, |row| {
        table.push(row);
        if table.rows < GROUP_ROWS {
            return Ok(());
        }
        table.flush(out)
    })?;
    table.finish(out)
}

#[cfg(test)]
mod tests {
    use parquet::basic::Encoding;
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::Field;

    use super::*;
    use crate::export::ExportFormat;
    use crate::export::tests::exported_file;
    use crate::recording::samples::story;

    fn text_of(field: &Field) -> String {
        match field {
            Field::Null => String::new(),
            Field::Str(text) => text.clone(),
            Field::Int(number) => number.to_string(),
            Field::Long(number) => number.to_string(),
            Field::ULong(number) => number.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_table_has_the_rows_of_the_csv_in_typed_columns() {
        let (file, notes) = exported_file(&story(), ExportFormat::Parquet);
        let (csv, notes_of_csv) = exported_file(&story(), ExportFormat::Csv);
        assert_eq!(notes, notes_of_csv);
        let file = SerializedFileReader::new(bytes(file)).expect("Parquet");
        let mut csv = csv::Reader::from_reader(&*csv);
        let keys: Vec<String> = csv
            .headers()
            .expect("a head")
            .iter()
            .map(Into::into)
            .collect();
        let rows = file.get_row_iter(None).expect("rows");
        let mut compared = 0;
        for (row, record) in rows.zip(csv.records()) {
            let (row, record) = (row.expect("a row"), record.expect("a row"));
            for (((name, field), key), text) in row.get_column_iter().zip(&keys).zip(&record) {
                assert_eq!(name, key);
                let hexadecimal = text.strip_prefix("0x");
                let text = match hexadecimal.map(|digits| u64::from_str_radix(digits, 16)) {
                    Some(Ok(number)) if key == "addr" => number.to_string(),
                    _ => text.to_owned(),
                };
                assert_eq!(text_of(field), text, "{key}");
            }
            compared += 1;
        }
        assert!(compared > 5);
        let of_file = file.metadata().file_metadata();
        assert_eq!(of_file.num_rows(), compared);
        let facts = of_file.key_value_metadata().expect("facts");
        assert!(facts.iter().any(|it| it.key == "memprobe.command"));
    }

    fn bytes(file: Vec<u8>) -> std::fs::File {
        use std::io::Seek as _;
        let mut copy = tempfile::tempfile().expect("a file");
        copy.write_all(&file).expect("written");
        copy.rewind().expect("a file");
        copy
    }

    #[test]
    fn texts_are_in_dictionaries() {
        let (file, _) = exported_file(&story(), ExportFormat::Parquet);
        let file = SerializedFileReader::new(bytes(file)).expect("Parquet");
        let group = file.metadata().row_group(0);
        let texts = group
            .columns()
            .iter()
            .filter(|it| it.column_type() == PhysicalType::BYTE_ARRAY);
        let mut counted = 0;
        for column in texts {
            let encodings: Vec<Encoding> = column.encodings().collect();
            assert!(
                encodings.contains(&Encoding::RLE_DICTIONARY),
                "{encodings:?}"
            );
            assert!(column.dictionary_page_offset().is_some());
            counted += 1;
        }
        assert_eq!(counted, 10);
    }

    #[test]
    fn numbers_of_any_size_keep_their_bits() {
        assert_eq!(
            number(&Cell::Address(crate::event::Address(u64::MAX))),
            Some(-1)
        );
        assert_eq!(number(&Cell::Unknown), None);
        assert_eq!(device(&Cell::Device(DeviceIndex::CPU)), Some(CPU));
        assert_eq!(device(&Cell::Device(DeviceIndex::UNKNOWN)), None);
    }
}
