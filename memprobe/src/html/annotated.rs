//! Page of an annotated source file.

use std::io::{self, Write};

use super::static_page::StaticPage;
use crate::report::AnnotatedFile;
use crate::view::table::html_table;

/// Writes the page of an annotated file. It has no script.
pub fn write_annotated_page(annotated: &AnnotatedFile, out: &mut impl Write) -> io::Result<()> {
    let notes = annotated.notes();
    let page = StaticPage {
        title: &annotated.file,
        notes: &notes,
    };
    page.write(out, |out| {
        for device in annotated.devices() {
            let Some(table) = annotated.table(device) else {
                continue;
            };
            writeln!(out, "<section class=\"annotated\"><h2>{device}</h2>")?;
            html_table(&table, None, out)?;
            writeln!(out, "</section>")?;
        }
        Ok(())
    })
}
