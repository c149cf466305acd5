//! Tables for other programs: CSV, JSON documents and JSON lines.

use std::io::{self, Write};
use std::rc::Rc;

use serde::Serialize;

use super::{Cell, Column, Data, Output, OutputRow, Table};

/// Rows of an array in a JSON document, made one at a time.
pub trait Rows {
    /// Calls `emit` with each row as an object.
    fn each(&self, emit: &mut dyn FnMut(Cell<'_>));
}

impl<R> Rows for Table<R> {
    fn each(&self, emit: &mut dyn FnMut(Cell<'_>)) {
        for OutputRow { row, output } in &self.rows {
            if matches!(output, Output::All | Output::Data) {
                emit(object(&self.columns, row));
            }
        }
    }
}

impl<'a, R: 'a> From<Table<R>> for Cell<'a> {
    fn from(table: Table<R>) -> Self {
        Self::Rows(Rc::new(table))
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

pub fn json_document(document: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document)?;
    out.write_all(b"\n")
}

pub fn json_object<R>(columns: &[Column<R>], row: &R, out: &mut impl Write) -> io::Result<()> {
    Ok(serde_json::to_writer(out, &object(columns, row))?)
}

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
