//! Tables for the terminal and for Markdown.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Output format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Aligned columns.
    Terminal,
    Markdown,
}

/// A table; the first column holds text, the others numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
    samples: Vec<Value>,
}

impl Table {
    /// Creates a table without rows.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            title: title.into(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
            samples: Vec::new(),
        }
    }

    /// Keeps the measurements from which the rows are made.
    pub fn samples(&mut self, samples: impl IntoIterator<Item = Value>) {
        self.samples.extend(samples);
    }

    /// Returns the title and the measurements.
    pub fn raw(&self) -> Value {
        json!({ "title": self.title, "samples": self.samples })
    }

    pub fn title(&self) -> &str {
        &self.title
    }

    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the cell of a row, by its first cell, below a heading.
    pub fn cell(&self, row: &str, column: &str) -> Option<&str> {
        let row = self.rows.iter().find(|cells| cells[0] == row)?;
        let at = self.columns.iter().position(|name| name == column)?;
        row.get(at).map(String::as_str)
    }

    /// Returns the table of these rows, by their first cells, and these columns; an empty list means all.
    pub fn chosen(&self, rows: &[&str], columns: &[&str]) -> Self {
        let is_in = |list: &[&str], name: &str| list.is_empty() || list.contains(&name);
        let cells = |cells: &Vec<String>| {
            let with_names = cells.iter().zip(&self.columns);
            let chosen = with_names.filter(|(_, name)| is_in(columns, name));
            chosen.map(|(cell, _)| cell.clone()).collect()
        };
        let chosen = self.rows.iter().filter(|row| is_in(rows, &row[0]));
        Self {
            rows: chosen.map(cells).collect(),
            columns: cells(&self.columns),
            ..self.clone()
        }
    }

    /// Adds a row with one cell per column.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.columns.len(), "a cell for every column");
        self.rows.push(cells.into());
    }

    /// Adds a line below the table.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Formats the table as text.
    pub fn render(&self, style: Style) -> String {
        let mut text = String::new();
        let mut lines = self.lines(style);
        let mut above = match style {
            Style::Terminal => vec![format!("{}:", self.title)],
            Style::Markdown => vec![format!("**{}**", self.title), String::new()],
        };
        if style == Style::Markdown && !self.notes.is_empty() {
            lines.push(String::new());
        }
        above.append(&mut lines);
        for line in above.iter().chain(&self.notes) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }

    /// Formats the headings and rows.
    pub fn lines(&self, style: Style) -> Vec<String> {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = self.rows.iter().chain([&self.columns]);
                cells
                    .map(|cells| cells[column].chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut lines = vec![self.line(&self.columns, &widths, style)];
        if style == Style::Markdown {
            lines.push(ruler(&widths));
        }
        lines.extend(self.rows.iter().map(|row| self.line(row, &widths, style)));
        lines
    }

    fn line(&self, cells: &[String], widths: &[usize], style: Style) -> String {
        let padded = cells
            .iter()
            .zip(widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                if column == 0 {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        match style {
            Style::Terminal => format!("  {}", padded.collect::<Vec<_>>().join("  ")),
            Style::Markdown => format!("| {} |", padded.collect::<Vec<_>>().join(" | ")),
        }
    }
}

/// Returns Markdown's delimiter row; number columns are right-aligned.
fn ruler(widths: &[usize]) -> String {
    let cells = widths.iter().enumerate().map(|(column, width)| {
        if column == 0 {
            format!(":{}", "-".repeat(width.saturating_sub(1)))
        } else {
            format!("{}:", "-".repeat(width.saturating_sub(1)))
        }
    });
    format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("Speed", &["what", "µs"]);
        table.row(["nothing".to_owned(), "5.0".to_owned()]);
        table.row(["all".to_owned(), "125.0".to_owned()]);
        table.note("Medians.");
        table
    }

    #[test]
    fn columns_of_numbers_are_aligned_to_the_right() {
        let text = "Speed:\n  what        µs\n  nothing    5.0\n  all      125.0\nMedians.\n";
        assert_eq!(table().render(Style::Terminal), text);
    }

    #[test]
    fn markdown_has_a_ruler_that_aligns_numbers_to_the_right() {
        let text = "\
**Speed**

| what    |    µs |
| :------ | ----: |
| nothing |   5.0 |
| all     | 125.0 |

Medians.
";
        assert_eq!(table().render(Style::Markdown), text);
    }
}
