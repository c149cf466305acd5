//! Page of a directory of recordings: its ranks by iteration, and what one has more of than another. It has no script.

use std::io::{self, Write};

use super::static_page::StaticPage;
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::report::{RankComparison, RankDevice, RankRow, rank_label};
use crate::view::escaped;
use crate::view::table::{MarkupColumn, html_table};

/// Size of the chart in its own units.
const WIDTH: u64 = 1000;
const HEIGHT: u64 = 240;

/// Points of a line at most; each is the highest of its iterations.
const MAX_POINTS: u64 = 1000;

/// Lines with a colour of their own; further ones share the last.
const COLOURS: usize = 8;

/// Heads of the tables, in their order.
const TABLES: [&str; 3] = ["By line", "By module", "By category"];

/// Writes the page of a comparison; `name` is the directory's.
pub fn write_rank_page(
    comparison: &RankComparison<'_>,
    name: &str,
    out: &mut impl Write,
) -> io::Result<()> {
    let warnings = comparison.warnings.iter();
    let warnings: Vec<String> = warnings.map(|it| format!("warning: {it}")).collect();
    let page = StaticPage {
        title: name,
        notes: &warnings,
    };
    page.write(out, |out| {
        writeln!(
            out,
            "<section id=\"verdict\" aria-label=\"Verdict\">\n<p class=\"verdict\">{}</p>",
            escaped(&comparison.verdict())
        )?;
        html_table(&comparison.ranks_table(), None, out)?;
        writeln!(
            out,
            "</section>\n<section id=\"time\">\n<h2>Allocated bytes at the peak of each iteration</h2>"
        )?;
        write_chart(&comparison.ranks, out)?;
        writeln!(out, "</section>\n<section id=\"imbalance\">\n<h2>Imbalance</h2>")?;
        write_moment(comparison, out)?;
        write_differences(comparison, out)?;
        writeln!(out, "</section>")
    })
}

fn write_moment(comparison: &RankComparison<'_>, out: &mut impl Write) -> io::Result<()> {
    let spread = comparison.spread().unwrap_or_default();
    let text = format!("{} {spread}", comparison.moment());
    writeln!(out, "<p class=\"fact\">{}</p>", escaped(text.trim_end()))
}

fn write_differences(comparison: &RankComparison<'_>, out: &mut impl Write) -> io::Result<()> {
    if comparison.ranks.len() < 2 {
        return writeln!(out, "<p class=\"fact\">There is only one rank.</p>");
    }
    let bars = |row: &RankRow| bars(row, &comparison.ranks);
    for (head, table) in TABLES.iter().zip(comparison.differences()) {
        writeln!(out, "<h3>{head}</h3>")?;
        let extra = MarkupColumn {
            head: "EACH RANK",
            value: &bars,
        };
        html_table(&table, Some(extra), out)?;
    }
    writeln!(
        out,
        "<p class=\"fact\">Categories are inferred from when memory was allocated and freed.</p>"
    )
}

/// A bar for each rank, as high as its bytes beside the most of a rank.
fn bars(row: &RankRow, ranks: &[RankDevice]) -> String {
    let most = row.ranks.most().bytes.max(1);
    let width = 6 * row.ranks.bytes.len();
    let mut svg = format!(
        "<svg class=\"bars\" width=\"{width}\" height=\"18\" role=\"img\" aria-label=\"bytes of each rank\">"
    );
    for (at, (bytes, rank)) in row.ranks.bytes.iter().zip(ranks).enumerate() {
        let height = (u128::from(*bytes) * 18).div_ceil(u128::from(most));
        svg += &format!(
            "<rect class=\"r{}\" x=\"{}\" y=\"{}\" width=\"5\" height=\"{height}\"><title>{}: {}</title></rect>",
            at.min(COLOURS - 1),
            6 * at,
            18 - height,
            escaped(&rank_label(rank)),
            human(Bytes(*bytes))
        );
    }
    svg + "</svg>"
}

/// Extent of a chart: numbers of iterations, and bytes.
struct Extent {
    first: u64,
    last: u64,
    most: u64,
}

impl Extent {
    /// Returns `None` without iterations.
    fn of(ranks: &[RankDevice]) -> Option<Self> {
        let numbers = || ranks.iter().flat_map(|rank| rank.iterations.keys());
        let bytes = ranks.iter().flat_map(|rank| rank.iterations.values());
        Some(Self {
            first: *numbers().min()?,
            last: *numbers().max()?,
            most: (*bytes.max()?).max(1),
        })
    }

    /// Points of the line of a rank.
    fn points(&self, rank: &RankDevice) -> String {
        let length = self.last - self.first;
        let step = length.div_ceil(MAX_POINTS).max(1);
        let mut highest: Vec<(u64, u64)> = Vec::new();
        for (number, bytes) in &rank.iterations {
            let place = (number - self.first) / step * step;
            match highest.last_mut() {
                Some((last, most)) if *last == place => *most = (*most).max(*bytes),
                _ => highest.push((place, *bytes)),
            }
        }
        let scaled = |value: u64, whole: u64, length: u64| {
            (u128::from(value) * u128::from(length) / u128::from(whole.max(1))) as u64
        };
        let height = |bytes: u64| HEIGHT - scaled(bytes, self.most, HEIGHT);
        let point = |(place, bytes): &(u64, u64)| {
            format!("{},{}", scaled(*place, length, WIDTH), height(*bytes))
        };
        let mut points: Vec<String> = highest.iter().map(point).collect();
        // A line needs two points.
        if let [(_, bytes)] = highest[..] {
            points.push(format!("{WIDTH},{}", height(bytes)));
        }
        points.join(" ")
    }
}

/// A line for each rank over the numbers of iterations.
fn write_chart(ranks: &[RankDevice], out: &mut impl Write) -> io::Result<()> {
    let Some(extent) = Extent::of(ranks) else {
        return writeln!(out, "<p class=\"fact\">The ranks have no iterations.</p>");
    };
    writeln!(
        out,
        "<p class=\"fact\">Iterations {} to {}, from 0 to {}.</p>\n\
         <svg class=\"lines\" viewBox=\"-4 -4 {} {}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"Peak of each iteration by rank\">",
        extent.first,
        extent.last,
        human(Bytes(extent.most)),
        WIDTH + 8,
        HEIGHT + 8
    )?;
    for (at, rank) in ranks.iter().enumerate() {
        writeln!(
            out,
            "<polyline class=\"r{}\" points=\"{}\"><title>{}</title></polyline>",
            at.min(COLOURS - 1),
            extent.points(rank),
            escaped(&rank_label(rank))
        )?;
    }
    writeln!(out, "</svg>\n<ul class=\"parts\">")?;
    for (at, rank) in ranks.iter().enumerate() {
        writeln!(
            out,
            "<li><i class=\"key r{}\"></i>{}</li>",
            at.min(COLOURS - 1),
            escaped(&rank_label(rank))
        )?;
    }
    writeln!(out, "</ul>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::allocation_groups::samples::learning_for;
    use crate::recording::Reader;
    use crate::recording::samples::compact_recording;
    use crate::report::{NamedRecording, ReportOptions};

    /// Page of a rank that keeps nothing, and one that keeps a block in each iteration.
    fn page() -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let ranks = [learning_for(8, |_| false), learning_for(8, |_| true)];
        let names = ["rank0-7-train.mprb", "rank1-8-<b>.mprb"];
        for (name, program) in names.iter().zip(&ranks) {
            let recording = compact_recording(&program.events);
            std::fs::write(folder.path().join(name), recording).expect("written");
        }
        let recordings = names.iter().map(|name| NamedRecording {
            name,
            reader: Reader::open(&folder.path().join(name)).expect("a recording"),
        });
        let options = ReportOptions::default();
        let recordings = recordings.collect();
        let (comparison, _) =
            RankComparison::read(recordings, None, &options).expect("a comparison");
        let mut out = Vec::new();
        write_rank_page(&comparison, "run/<i>", &mut out).expect("written");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn the_page_has_a_line_for_each_rank_and_no_markup_of_names() {
        let page = page();
        assert!(!page.contains("{{") && !page.contains("<script"));
        assert!(!page.contains("<b>") && !page.contains("run/<i>"), "{page}");
        assert_eq!(page.matches("<polyline").count(), 2);
        let points = page.split("points=\"").nth(1).expect("a line");
        let points = points.split('"').next().expect("points");
        assert!(points.split(' ').count() >= 4, "{points}");
        assert!(page.contains("No rank ran out of memory. rank 1 (cuda:0) reserved most"));
        assert!(page.contains("By line") && page.contains("By category"));
        assert!(page.contains("<title>rank 1 (cuda:0): "));
    }
}
