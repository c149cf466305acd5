//! Tables for other programs: CSV, JSON documents and JSON lines.

use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Column, Data, Output, Table};

/// A row as a JSON object.
pub struct JsonRow<'a, R> {
    pub columns: &'a [Column<R>],
    pub row: &'a R,
}

impl<R> Serialize for JsonRow<'_, R> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        for column in self.columns {
            let is_sparse = match column.data {
                Data::None | Data::Csv => continue,
                Data::All => false,
                Data::Sparse | Data::Json => true,
            };
            let cell = (column.value)(self.row);
            if !(is_sparse && cell.is_empty()) {
                map.serialize_entry(column.key, &cell)?;
            }
        }
        map.end()
    }
}

/// The rows of a table as an array in a JSON document.
pub struct JsonRows<'a, R>(pub &'a Table<R>);

impl<R> Serialize for JsonRows<'_, R> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Table { columns, rows } = self.0;
        let rows = rows.iter().filter(|entry| {
            let output = entry.output;
            output.is_data() && output != Output::Flat
        });
        to.collect_seq(rows.map(|entry| JsonRow {
            columns,
            row: &entry.row,
        }))
    }
}

/// Writes one JSON document, indented.
pub fn json_document(document: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document)?;
    out.write_all(b"\n")
}

/// Writes one JSON object per row.
pub fn json_lines<R>(table: &Table<R>, out: &mut impl Write) -> io::Result<()> {
    let columns = &table.columns;
    for row in table.data_rows() {
        serde_json::to_writer(&mut *out, &JsonRow { columns, row })?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Writes comma-separated values.
pub struct CsvWriter<W: Write> {
    table: csv::Writer<W>,
}

impl<W: Write> CsvWriter<W> {
    /// Writes the heading.
    pub fn new<R>(columns: &[Column<R>], out: W) -> io::Result<Self> {
        let mut table = csv::Writer::from_writer(out);
        let keys = in_csv(columns).map(|column| column.key);
        table.write_record(keys).map_err(io_error)?;
        Ok(Self { table })
    }

    pub fn row<R>(&mut self, columns: &[Column<R>], row: &R) -> io::Result<()> {
        for column in in_csv(columns) {
            let cell = (column.value)(row);
            let field = cell.csv();
            self.table.write_field(&*field).map_err(io_error)?;
        }
        self.table.write_record(None::<&[u8]>).map_err(io_error)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.table.flush()
    }
}

/// Writes comma-separated values; the heading stands there even without rows.
pub fn csv<R>(table: &Table<R>, out: &mut impl Write) -> io::Result<()> {
    let mut csv = CsvWriter::new(&table.columns, out)?;
    for row in table.data_rows() {
        csv.row(&table.columns, row)?;
    }
    csv.flush()
}

fn in_csv<R>(columns: &[Column<R>]) -> impl Iterator<Item = &Column<R>> {
    let is_in_csv = |data| matches!(data, Data::All | Data::Sparse | Data::Csv);
    columns.iter().filter(move |column| is_in_csv(column.data))
}

/// Unwraps I/O errors, so that a broken pipe stays recognizable.
fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}
