//! Pages without a script.

use std::io::{self, Write};

use super::page::{STYLE, hash};
use crate::view::{clean, escaped};

const TEMPLATE: &str = include_str!("static_page.html");

/// A page whose body is markup.
pub(super) struct StaticPage<'a> {
    pub title: &'a str,
    /// Sentences below the title. Those that begin with `warning: ` stand out.
    pub notes: &'a [String],
}

impl StaticPage<'_> {
    /// Writes the page; `body` writes its markup.
    pub(super) fn write<W: Write>(
        &self,
        out: &mut W,
        body: impl Fn(&mut W) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut rest = TEMPLATE;
        while let Some((before, after)) = rest.split_once("{{") {
            let (slot, after) = after.split_once("}}").unwrap_or((after, ""));
            out.write_all(before.as_bytes())?;
            rest = after;
            match slot {
                "title" => write!(out, "{}", escaped(&clean(self.title)))?,
                "style_hash" => write!(out, "sha256-{}", hash(STYLE))?,
                "style" => out.write_all(STYLE.as_bytes())?,
                "notes" => self.write_notes(out)?,
                _ => body(out)?,
            }
        }
        out.write_all(rest.as_bytes())?;
        out.flush()
    }

    fn write_notes(&self, out: &mut impl Write) -> io::Result<()> {
        for note in self.notes {
            let class = if note.starts_with("warning: ") {
                "warning"
            } else {
                "fact"
            };
            writeln!(out, "<p class=\"{class}\">{}</p>", escaped(note))?;
        }
        Ok(())
    }
}
