//! Standard output of tables and documents.

use std::io::{self, BufWriter, IsTerminal as _, StdoutLock, Write as _};

use crate::view::PrintableWriter;

/// Standard output, buffered.
pub type Stdout = PrintableWriter<BufWriter<StdoutLock<'static>>>;

/// Format of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputContent {
    /// Text for people, cleaned where it is made.
    Text,
    /// JSON or CSV, with names of the target as they are.
    Document,
}

/// Opens standard output. A terminal gets no character of a document that it would interpret.
pub fn open(content: OutputContent) -> Stdout {
    let out = BufWriter::new(io::stdout().lock());
    PrintableWriter::new(out, needs_cleaning(content))
}

/// True if standard output is a terminal that would interpret the content.
pub fn needs_cleaning(content: OutputContent) -> bool {
    content == OutputContent::Document && is_terminal()
}

/// Writes what others have printed to standard output.
pub fn flush() -> io::Result<()> {
    io::stdout().flush()
}

/// True if standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// True if standard input is a terminal, so that a user can press keys.
pub fn has_keyboard() -> bool {
    io::stdin().is_terminal()
}
