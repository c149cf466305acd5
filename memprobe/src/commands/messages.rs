//! Standard error, and the only place that writes to it. Errors, progress and warnings may contain names from a target:
//! each is cleaned here, wherever it comes from.

use std::io::{IsTerminal as _, Write as _};

use crate::view::clean_message;

/// Control sequence that clears the line of the cursor.
const CLEAR: &str = "\r\x1b[K";

/// True if messages go to a terminal.
pub fn go_to_a_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Event without which a process has nothing to watch; follows "it".
pub(super) const FIRST_USE: &str = "imported PyTorch or loaded CUDA's driver";

/// Prints a message with the name of the program in front.
pub fn print(text: &str) {
    write(&format!("memprobe: {}\n", clean_message(text)));
}

/// Prints a line as it is, but cleaned.
pub fn print_line(text: &str) {
    write(&format!("{}\n", clean_message(text)));
}

/// Asks a question; true for `y` or `yes`.
pub(super) fn ask(question: &str) -> std::io::Result<bool> {
    write(question);
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Replaces the line of the cursor.
pub(super) fn replace_line(text: &str) {
    write(&format!("{CLEAR}{}", clean_message(text)));
}

/// Writes to standard error. A terminal that is gone must not end a recording.
fn write(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
