//! Frames of source text.

use super::MAX_STRING;
use super::varint::{VarintReader, push, push_bytes};
use crate::recording::SourceExcerpt;

/// Longest text of one excerpt, in bytes.
pub(in crate::recording) const MAX_EXCERPT: usize = 1 << 20;

const WHOLE: u64 = 1;

/// Appends an excerpt to a payload.
pub(super) fn encode(excerpt: &SourceExcerpt, payload: &mut Vec<u8>) {
    push_bytes(payload, excerpt.file.as_bytes());
    push(payload, u64::from(excerpt.is_whole) * WHOLE);
    push(payload, excerpt.first_line.into());
    push(payload, excerpt.modified_ms.is_some().into());
    if let Some(modified) = excerpt.modified_ms {
        push(payload, modified);
    }
    push_bytes(payload, excerpt.text.as_bytes());
}

/// Decodes a payload. An error describes the fault in a few words.
pub(super) fn decode(payload: &[u8]) -> Result<Vec<SourceExcerpt>, &'static str> {
    let mut reader = VarintReader(payload);
    let mut excerpts = Vec::new();
    while !reader.is_empty() {
        let file = text(&mut reader, MAX_STRING)?.into();
        let flags = reader.number()?;
        let first_line = reader.u32()?;
        let modified_ms = match reader.number()? {
            0 => None,
            _ => Some(reader.number()?),
        };
        excerpts.push(SourceExcerpt {
            file,
            first_line,
            is_whole: flags & WHOLE != 0,
            modified_ms,
            text: text(&mut reader, MAX_EXCERPT)?.to_owned(),
        });
    }
    Ok(excerpts)
}

fn text<'a>(reader: &mut VarintReader<'a>, most: usize) -> Result<&'a str, &'static str> {
    let bytes = reader.bytes()?;
    if bytes.len() > most {
        return Err("a source text of too many bytes");
    }
    std::str::from_utf8(bytes).map_err(|_| "a source text that is no UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_come_back_and_cut_ones_are_refused() {
        let excerpts = [
            SourceExcerpt {
                file: "/a/träin.py".into(),
                first_line: 1,
                is_whole: true,
                modified_ms: Some(1 << 40),
                text: "import torch\n".to_owned(),
            },
            SourceExcerpt {
                file: "/b.py".into(),
                first_line: 77,
                is_whole: false,
                modified_ms: None,
                text: String::new(),
            },
        ];
        let mut payload = Vec::new();
        excerpts.iter().for_each(|it| encode(it, &mut payload));
        assert_eq!(decode(&payload).unwrap(), excerpts);
        let mut whole = 0;
        for end in 0..payload.len() {
            whole += usize::from(decode(&payload[..end]).is_ok());
        }
        // Nothing at all, and the first one alone.
        assert_eq!(whole, 2);
    }
}
