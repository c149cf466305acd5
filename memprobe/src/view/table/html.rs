//! Tables as HTML, with the columns and rows of text.

use std::io::{self, Write};

use super::{Align, Column, Output, Table};
use crate::view::escaped;

/// Column of markup behind the others, such as a picture of a row.
pub struct MarkupColumn<'a, R> {
    pub head: &'static str,
    pub value: &'a dyn Fn(&R) -> String,
}

/// Writes a table. A cell's title is its exact value.
pub fn html_table<R>(
    table: &Table<R>,
    extra: Option<MarkupColumn<'_, R>>,
    out: &mut impl Write,
) -> io::Result<()> {
    let rows = table.rows.iter();
    let rows = rows.filter(|entry| entry.output != Output::Data);
    let rows: Vec<&R> = rows.map(|entry| &entry.row).collect();
    let is_shown = |column: &&Column<R>| {
        let is_empty = |row: &&R| (column.value)(row).is_empty();
        column.in_text && (column.priority == 0 || !rows.iter().all(is_empty))
    };
    let columns: Vec<&Column<R>> = table.columns.iter().filter(is_shown).collect();
    writeln!(out, "<table class=\"figures\"><thead><tr>")?;
    for column in &columns {
        writeln!(
            out,
            "<th{}>{}</th>",
            class(column.align),
            escaped(column.head)
        )?;
    }
    if let Some(extra) = &extra {
        writeln!(out, "<th>{}</th>", escaped(extra.head))?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    for row in rows {
        write!(out, "<tr>")?;
        for column in &columns {
            let cell = (column.value)(row);
            let (text, exact) = (cell.text(column.precision), cell.csv());
            write!(out, "<td{}", class(column.align))?;
            if *exact != *text && !exact.is_empty() {
                write!(out, " title=\"{}\"", escaped(&exact))?;
            }
            write!(out, ">{}</td>", escaped(&text))?;
        }
        if let Some(extra) = &extra {
            write!(out, "<td>{}</td>", (extra.value)(row))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody></table>")
}

const fn class(align: Align) -> &'static str {
    match align {
        Align::Right => " class=\"number\"",
        Align::Left | Align::Trail => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Bytes;
    use crate::view::table::columns;

    struct Named {
        bytes: u64,
        name: &'static str,
    }

    #[test]
    fn a_cell_has_its_exact_value_and_names_are_no_markup() {
        let columns: Vec<Column<Named>> = columns![|row: Named|
            number("bytes", "BYTES") => Bytes(row.bytes),
            data("hidden") => row.bytes,
            label("NAME") => row.name,
        ]
        .into();
        let mut table = Table::new(columns);
        let name = "<b>train</b>";
        table.push(Output::All, Named { bytes: 1536, name });
        table.push(Output::Data, Named { bytes: 1, name });
        let extra = MarkupColumn {
            head: "",
            value: &|row: &Named| format!("<i>{}</i>", row.bytes),
        };
        let mut out = Vec::new();
        html_table(&table, Some(extra), &mut out).expect("written");
        let html = String::from_utf8(out).expect("UTF-8");
        assert!(
            html.contains("<td class=\"number\" title=\"1536\">1.50 KiB</td>"),
            "{html}"
        );
        assert!(
            html.contains("&lt;b&gt;train") && html.contains("<i>1536</i>"),
            "{html}"
        );
        assert_eq!(html.matches("<tr>").count(), 2, "{html}");
    }
}
