//! Tables for other programs: CSV, JSON documents and JSON lines.

use std::io::{self, Write};

use serde::ser::{Serialize, Serializer};

use super::{Cell, Column, Data, Output, Table};

impl<R> Table<R> {
    /// The rows of a JSON document.
    pub fn cells(&self) -> Cell<'_> {
        Cell::List(self.objects().collect())
    }

    pub fn objects(&self) -> impl Iterator<Item = Cell<'_>> {
        let is_in_document = |output| matches!(output, Output::All | Output::Data);
        let rows = self.rows.iter();
        rows.filter(move |entry| is_in_document(entry.output))
            .map(|entry| object(&self.columns, &entry.row))
    }
}

impl<R> Serialize for Table<R> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.objects())
    }
}

fn object<'a, R>(columns: &[Column<R>], row: &'a R) -> Cell<'a> {
    let mut fields = Vec::with_capacity(columns.len());
    for column in columns {
        let is_sparse = match column.data {
            Data::None | Data::Csv => continue,
            Data::All => false,
            Data::Sparse | Data::Json => true,
        };
        let cell = (column.value)(row);
        if !(is_sparse && cell.is_empty()) {
            fields.push((column.key, cell));
        }
    }
    Cell::Object(fields)
}

/// Writes one JSON document, indented.
pub fn json_document(document: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document)?;
    out.write_all(b"\n")
}

/// Writes a row as one JSON object on a line.
pub fn json_line<R>(columns: &[Column<R>], row: &R, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &object(columns, row))?;
    out.write_all(b"\n")
}

/// Writes comma-separated values.
pub struct CsvWriter<'a, R, W: Write> {
    columns: Vec<&'a Column<R>>,
    table: csv::Writer<W>,
}

impl<'a, R, W: Write> CsvWriter<'a, R, W> {
    /// Writes the heading, which stands there even without rows.
    pub fn new(columns: &'a [Column<R>], out: W) -> io::Result<Self> {
        let is_in_csv = |data| matches!(data, Data::All | Data::Sparse | Data::Csv);
        let columns = columns.iter().filter(|column| is_in_csv(column.data));
        let columns: Vec<&Column<R>> = columns.collect();
        let mut table = csv::Writer::from_writer(out);
        let keys = columns.iter().map(|column| column.key);
        table.write_record(keys).map_err(io_error)?;
        Ok(Self { columns, table })
    }

    pub fn row(&mut self, row: &R) -> io::Result<()> {
        for column in &self.columns {
            let cell = (column.value)(row);
            self.table.write_field(&*cell.csv()).map_err(io_error)?;
        }
        self.table.write_record(None::<&[u8]>).map_err(io_error)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.table.flush()
    }
}

/// Unwraps I/O errors, so that a broken pipe stays recognizable.
fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}
