//! The HTML file: its text, and the compressed data with the scripts that show it.
//!
//! Texts from the target stand in the markup only escaped, and otherwise in the compressed data. The policy of the page
//! allows its own script and style, by their hashes, and no connection.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use sha2::{Digest as _, Sha256};

use super::columns::Columns;
use super::facts::{PageFacts, colour_of};
use super::replay::PageReplay;
use super::{PageOptions, PagePaths};
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::report::explain::{ExplanationSource, MemoryPart, OwnedBy, RecordedMoment};
use crate::view::{clean, device_name, escaped, percent};

const TEMPLATE: &str = include_str!("page.html");
pub(super) const STYLE: &str = include_str!("page.css");
const SCRIPTS: [&str; 9] = [
    include_str!("scripts/data.js"),
    include_str!("scripts/moments.js"),
    include_str!("scripts/format.js"),
    include_str!("scripts/timeline.js"),
    include_str!("scripts/table.js"),
    include_str!("scripts/flame.js"),
    include_str!("scripts/map.js"),
    include_str!("scripts/page.js"),
    include_str!("scripts/source.js"),
];

/// Bytes of a line of the data.
const LINE: usize = 4096;

/// Rows of the page without scripts.
const MAX_ROWS: usize = 20;

/// Width of the bar in its own units.
const BAR: u64 = 10_000;

/// Writes the file.
pub(super) fn write(
    replay: &PageReplay,
    facts: &PageFacts,
    columns: &Columns,
    options: &PageOptions<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    let script = SCRIPTS.concat();
    let mut rest = TEMPLATE;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        out.write_all(before.as_bytes())?;
        rest = after;
        match name {
            "title" => write!(out, "{}", escaped(&file_name(options)))?,
            "script_hash" => write!(out, "sha256-{}", hash(&script))?,
            "style_hash" => write!(out, "sha256-{}", hash(STYLE))?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "script" => out.write_all(script.as_bytes())?,
            "target" => write_target(replay, options, out)?,
            "verdict" => write!(out, "{}", escaped(&replay.explanation.verdict()))?,
            "failed" => write_failed(facts, out)?,
            "notes" => write_notes(replay, facts, out)?,
            "card" => write_card(replay, out)?,
            "measures" => write_measures(replay, out)?,
            "rows" => write_rows(replay, out)?,
            "data" => write_data(facts, columns, out)?,
            _ => {}
        }
    }
    out.write_all(rest.as_bytes())
}

pub(super) fn hash(text: &str) -> String {
    BASE64.encode(Sha256::digest(text))
}

fn file_name(options: &PageOptions<'_>) -> String {
    let name = options.file.rsplit('/').next().unwrap_or(options.file);
    clean(name)
}

/// Process, extent and warnings of the recording, as a report begins.
fn write_target(
    replay: &PageReplay,
    options: &PageOptions<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    let lines = replay.recording.beginning();
    for (at, line) in lines.iter().enumerate() {
        let class = match line.strip_prefix("warning: ") {
            Some(_) => "warning",
            None => "fact",
        };
        let line = match (at, options.paths) {
            (0, PagePaths::Short) => "(command left out)",
            _ => line,
        };
        if !line.is_empty() {
            writeln!(out, "<p class=\"{class}\">{}</p>", escaped(line))?;
        }
    }
    Ok(())
}

fn write_notes(replay: &PageReplay, facts: &PageFacts, out: &mut impl Write) -> io::Result<()> {
    // The lines of the target name these two already.
    let known = replay.explanation.notes.len();
    for note in facts.notes.iter().skip(known) {
        writeln!(out, "<p class=\"warning\">warning: {}</p>", escaped(note))?;
    }
    Ok(())
}

/// The last failed request of each device.
fn write_failed(facts: &PageFacts, out: &mut impl Write) -> io::Result<()> {
    for device in &facts.devices {
        let Some(failed) = device.failed.last() else {
            continue;
        };
        let iteration = device.iteration_at(failed.event);
        let iteration = iteration.map(|name| format!(", in iteration {name}"));
        let text = format!(
            "The last failed request on {}{}: {}, with {} allocated and {} reserved, by {}.",
            device.name,
            iteration.unwrap_or_default(),
            human(Bytes(failed.size)),
            human(failed.totals.allocated),
            human(failed.totals.reserved),
            failed.stack
        );
        writeln!(out, "<p class=\"failed\">{}</p>", escaped(&text))?;
    }
    Ok(())
}

/// The parts of the device of the verdict, as a bar and a list: at its last failed request, or at its peak.
fn write_card(replay: &PageReplay, out: &mut impl Write) -> io::Result<()> {
    let Some(device) = replay.explanation.devices.first() else {
        return writeln!(out, "<p>No allocator of PyTorch has memory here.</p>");
    };
    let failed = device.failed.as_ref().map_or(0, |failed| failed.size.0);
    let moment = match &replay.explanation.source {
        ExplanationSource::Recording {
            moment: RecordedMoment::OutOfMemory,
            ..
        } => "at the last failed request",
        ExplanationSource::Recording {
            moment: RecordedMoment::Requested,
            ..
        } => "at the request of the dump",
        _ => "at its peak",
    };
    let parts = &device.parts;
    let whole: u64 = parts.iter().map(|part| part.bytes.0).sum();
    let scale = whole.saturating_add(failed).max(1);
    let units = |bytes: u64| (u128::from(bytes) * u128::from(BAR) / u128::from(scale)) as u64;
    let caption = format!(
        "{} {moment}: {} {}",
        device_name(&replay.explanation.target, device.index),
        human(Bytes(whole)),
        match device.gpu {
            Some(_) => "of the GPU",
            None => "reserved",
        }
    );
    writeln!(out, "<p class=\"caption\">{}</p>", escaped(&caption))?;
    writeln!(
        out,
        "<svg class=\"bar\" viewBox=\"0 0 {BAR} 100\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"Parts of the memory of {}\">",
        device.index
    )?;
    writeln!(
        out,
        "<defs><pattern id=\"hatch\" width=\"60\" height=\"12\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(35)\"><rect class=\"hatch\" width=\"30\" height=\"12\"/></pattern></defs>"
    )?;
    let mut at = 0_u64;
    for part in parts {
        let (x, end) = (units(at), units(at.saturating_add(part.bytes.0)));
        at = at.saturating_add(part.bytes.0);
        let (words, _) = part.id.words();
        writeln!(
            out,
            "<rect class=\"c-{}\" x=\"{x}\" y=\"0\" width=\"{}\" height=\"100\"><title>{words}: {}</title></rect>",
            colour_of(part.id),
            end - x,
            human(part.bytes)
        )?;
    }
    if failed > 0 {
        let (x, width) = (units(whole), units(failed).max(20));
        writeln!(
            out,
            "<rect fill=\"url(#hatch)\" x=\"{x}\" y=\"0\" width=\"{width}\" height=\"100\"><title>failed request: \
             {}</title></rect><rect class=\"limit\" x=\"{x}\" y=\"0\" width=\"16\" height=\"100\"/>",
            human(Bytes(failed))
        )?;
    }
    writeln!(out, "</svg>")?;
    write_parts(parts, whole, failed, out)
}

fn write_parts(
    parts: &[MemoryPart],
    whole: u64,
    failed: u64,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "<ul class=\"parts\">")?;
    for MemoryPart { id, bytes } in parts {
        let (words, _) = id.words();
        writeln!(
            out,
            "<li><i class=\"key c-{}\"></i>{words} <b>{}</b> {}</li>",
            colour_of(*id),
            human(*bytes),
            percent(bytes.0.into(), whole.into())
        )?;
    }
    if failed > 0 {
        let failed = human(Bytes(failed));
        writeln!(
            out,
            "<li><i class=\"key hatched\"></i>failed request <b>{failed}</b> beyond what was reserved</li>"
        )?;
    }
    writeln!(out, "</ul>")
}

/// Measures against a full GPU, for the device of the verdict.
fn write_measures(replay: &PageReplay, out: &mut impl Write) -> io::Result<()> {
    let devices = &replay.explanation.devices;
    let measures = devices.first().map_or(&[][..], |it| &it.measures);
    if measures.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>Would give back</h2>\n<ul class=\"measures\">")?;
    for measure in measures {
        let most = if measure.at_most { "at most " } else { "" };
        writeln!(
            out,
            "<li><b>{most}{}</b> <code>{}</code> {}</li>",
            human(measure.bytes),
            escaped(&clean(&measure.action)),
            escaped(measure.because)
        )?;
    }
    writeln!(out, "</ul>")
}

/// The largest lines of each device as text, for browsers without scripts.
fn write_rows(replay: &PageReplay, out: &mut impl Write) -> io::Result<()> {
    for device in &replay.explanation.devices {
        writeln!(
            out,
            "<h2>{}: {}</h2>\n<table><tr><th>bytes</th><th>line</th></tr>",
            device.index,
            match device.owned {
                OwnedBy::LiveLine => "lines at that moment",
                _ => "lines at the peak",
            }
        )?;
        for owner in device.owners.iter().take(MAX_ROWS) {
            let name = owner.name.as_deref().unwrap_or_default();
            let bytes = human(owner.bytes);
            writeln!(out, "<tr><td>{bytes}</td><td>{}</td></tr>", escaped(name))?;
        }
        let named = device.owners.iter().take(MAX_ROWS).map(|it| it.bytes.0);
        let rest = device.totals.allocated.0.saturating_sub(named.sum());
        let (rest, total) = (human(Bytes(rest)), human(device.totals.allocated));
        writeln!(
            out,
            "<tr><td>{rest}</td><td>(everything else)</td></tr>\n\
             <tr><td>{total}</td><td>allocated</td></tr></table>"
        )?;
    }
    Ok(())
}

/// Compressed data: the length of the facts, the facts as JSON, the columns.
fn write_data(facts: &PageFacts, columns: &Columns, out: &mut impl Write) -> io::Result<()> {
    let facts = serde_json::to_vec(facts)?;
    let length = u32::try_from(facts.len()).map_err(io::Error::other)?;
    let mut data = DeflateEncoder::new(Vec::new(), Compression::best());
    data.write_all(&length.to_le_bytes())?;
    data.write_all(&facts)?;
    data.write_all(&columns.data)?;
    let data = data.finish()?;
    // A line encodes a whole number of groups of three bytes.
    for line in data.chunks(LINE / 4 * 3) {
        out.write_all(BASE64.encode(line).as_bytes())?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_do_not_end_their_element_and_use_no_markup_from_data() {
        let script = SCRIPTS.concat();
        let forbidden = [
            "</script",
            "<!--",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "fetch(",
            "import ",
            "XMLHttpRequest",
            "http:",
            "https:",
        ];
        for word in forbidden {
            assert!(!script.contains(word), "{word}");
            assert!(word == "</script" || !STYLE.contains(word), "{word}");
        }
        assert!(!STYLE.contains("</style") && !STYLE.contains("url("));
    }
}
