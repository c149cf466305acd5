//! Documents (JSON, CSV) on a terminal.

use std::io::{self, Write};
use std::str::from_utf8;

use super::text::is_invisible;

/// Writer that replaces the characters that a terminal would interpret by `\uXXXX`. JSON means the same text by it.
/// Lines stay. Tables of text are cleaned where they are made, and bring colours.
#[derive(Debug)]
pub struct PrintableWriter<W> {
    out: W,
    is_on: bool,
    /// First bytes of a character whose others have not come yet.
    begun: Vec<u8>,
}

impl<W: Write> PrintableWriter<W> {
    /// Replaces characters only if `is_on`.
    pub fn new(out: W, is_on: bool) -> Self {
        Self {
            out,
            is_on,
            begun: Vec::new(),
        }
    }

    /// Returns the inner writer. A character that was only begun is lost.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Write for PrintableWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_on {
            return self.out.write(bytes);
        }
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut text = String::with_capacity(all.len());
        let mut rest = &all[..];
        loop {
            let (valid, broken) = match from_utf8(rest) {
                Ok(valid) => (valid, None),
                Err(error) => {
                    let valid = from_utf8(&rest[..error.valid_up_to()]).unwrap_or_default();
                    (valid, Some(error.error_len()))
                }
            };
            escape(valid, &mut text);
            rest = &rest[valid.len()..];
            match broken {
                None => break,
                Some(None) => {
                    self.begun = rest.to_vec();
                    break;
                }
                Some(Some(length)) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[length..];
                }
            }
        }
        self.out.write_all(text.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn escape(text: &str, into: &mut String) {
    for letter in text.chars() {
        let is_layout = matches!(letter, '\n' | '\t');
        if !is_layout && (letter.is_control() || is_invisible(letter)) {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                into.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            into.push(letter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}b\u{e0041}\u{7f}\rz größe 🐍\n";

    fn written(text: &str, is_on: bool, piece: usize) -> String {
        let mut out = PrintableWriter::new(Vec::new(), is_on);
        for piece in text.as_bytes().chunks(piece) {
            out.write_all(piece).unwrap();
        }
        String::from_utf8(out.into_inner()).unwrap()
    }

    #[test]
    fn nothing_that_a_terminal_acts_upon_gets_through() {
        let expected =
            "a\\u001b]0;owned\\u0007\\u009b31m\\u202eb\\udb40\\udc41\\u007f\\u000dz größe 🐍\n";
        // However the bytes come.
        for piece in [1, 2, 3, 1000] {
            assert_eq!(written(HOSTILE, true, piece), expected);
        }
        assert_eq!(written(HOSTILE, false, 3), HOSTILE);
    }

    #[test]
    fn json_is_read_back_as_the_same_text() {
        let json = serde_json::to_string(HOSTILE).unwrap();
        let shown = written(&json, true, 5);
        assert!(!shown.contains(char::is_control), "{shown:?}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), HOSTILE);
    }

    #[test]
    fn bytes_of_no_character_are_replaced() {
        let mut out = PrintableWriter::new(Vec::new(), true);
        out.write_all(b"a\xff\x9bb\xc3").unwrap();
        out.write_all(b"(").unwrap();
        assert_eq!(out.into_inner(), "a\u{fffd}\u{fffd}b\u{fffd}(".as_bytes());
    }
}
