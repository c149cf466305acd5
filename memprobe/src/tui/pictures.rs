//! Pictures of the screens for the guide, as SVG.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::gallery::exhibits;
use super::palette::vision::{Rgb, rgb};
use super::palette::{Background, ColourDepth, Palette};
use super::test_support::{ScreenSize, blank};
use super::theme::{Ink, Theme, UNICODE};

/// Variable that asks to write the pictures instead of comparing them.
const WRITE: &str = "MEMPROBE_TEST_WRITE_PICTURES";

const SIZES: [ScreenSize; 2] = [(80, 24), (160, 50)];

/// Pixels of a cell: those of DejaVu Sans Mono at 15 pixels.
const WIDE: usize = 9;
const HIGH: usize = 18;
const BASELINE: usize = 14;
/// Pixels around the screen.
const MARGIN: usize = 8;

/// Colours of the terminal in a picture.
#[derive(Clone, Copy)]
struct Terminal {
    name: &'static str,
    background: Background,
    fill: Rgb,
    text: Rgb,
}

const TERMINALS: [Terminal; 2] = [
    Terminal {
        name: "dark",
        background: Background::Dark,
        fill: 0x1e_1e1e,
        text: 0xd4_d4d4,
    },
    Terminal {
        name: "light",
        background: Background::Light,
        fill: 0xff_ffff,
        text: 0x1f_2328,
    },
];

/// Look of a cell, after reversal.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Look {
    text: Rgb,
    fill: Rgb,
    is_bold: bool,
    is_dim: bool,
}

impl Terminal {
    const fn theme(self) -> Theme {
        Theme {
            ink: Ink::Colour(Palette::of(ColourDepth::Indexed, self.background)),
            glyphs: UNICODE,
        }
    }

    fn look(self, cell: &Cell) -> Look {
        let value = |colour, default| match colour {
            Color::Reset => default,
            colour => rgb(colour),
        };
        let (text, fill) = (value(cell.fg, self.text), value(cell.bg, self.fill));
        let has = |modifier| cell.modifier.contains(modifier);
        let (text, fill) = if has(Modifier::REVERSED) {
            (fill, text)
        } else {
            (text, fill)
        };
        Look {
            text,
            fill,
            is_bold: has(Modifier::BOLD),
            is_dim: has(Modifier::DIM),
        }
    }
}

/// Parts of a cell that a glyph fills, as left, top, width and height in eighths; `None` for a letter.
fn blocks(glyph: &str) -> Option<Vec<[usize; 4]>> {
    let place = |glyphs: &[&str]| glyphs.iter().position(|one| *one == glyph);
    let dots = |top| vec![[1, top, 2, 1], [5, top, 2, 1]];
    if let Some(eighths) = place(&UNICODE.rising) {
        Some(vec![[0, 8 - eighths, 8, eighths]])
    } else if let Some(eighths) = place(&UNICODE.growing) {
        Some(vec![[0, 0, eighths, 8]])
    } else {
        let height = place(&UNICODE.dotted)?;
        Some(dots([6, 4, 3, 1][height]))
    }
}

/// Returns a picture of a screen.
fn picture(buffer: &Buffer, terminal: Terminal, title: &str) -> String {
    let (columns, rows) = (
        usize::from(buffer.area.width),
        usize::from(buffer.area.height),
    );
    let (width, height) = (columns * WIDE + 2 * MARGIN, rows * HIGH + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#{:06x}\"/>\n\
         <g transform=\"translate({MARGIN} {MARGIN})\" xml:space=\"preserve\" font-size=\"15\" \
         font-family=\"DejaVu Sans Mono,Menlo,Consolas,monospace\">\n",
        escaped(title),
        terminal.fill
    );
    for (y, cells) in buffer.content().chunks(columns.max(1)).enumerate() {
        let cells: Vec<(Look, &str)> = cells
            .iter()
            .map(|cell| (terminal.look(cell), cell.symbol()))
            .collect();
        let mut start = 0;
        for run in cells.chunk_by(|(one, _), (other, _)| one == other) {
            draw_run(&mut svg, start, y, run, terminal);
            start += run.len();
        }
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// Draws cells of the same look.
fn draw_run(svg: &mut String, start: usize, y: usize, run: &[(Look, &str)], terminal: Terminal) {
    let look = run[0].0;
    let (x, top) = (start * WIDE, y * HIGH);
    if look.fill != terminal.fill {
        rectangle(svg, [x, top, run.len() * WIDE, HIGH], look.fill);
    }
    let mut at = start;
    for glyphs in run.chunk_by(|(_, one), (_, other)| {
        is_block(one) == is_block(other) && (!is_block(one) || one == other)
    }) {
        let glyph = glyphs[0].1;
        match blocks(glyph).filter(|_| is_block(glyph)) {
            Some(parts) => draw_blocks(svg, [at, top], glyphs.len(), &parts, look.text),
            None => draw_text(svg, at, top + BASELINE, glyphs, look),
        }
        at += glyphs.len();
    }
}

fn is_block(glyph: &str) -> bool {
    glyph != " " && blocks(glyph).is_some()
}

fn draw_blocks(
    svg: &mut String,
    [at, top]: [usize; 2],
    cells: usize,
    parts: &[[usize; 4]],
    colour: Rgb,
) {
    for [left, from, wide, high] in parts {
        // A part that fills the width joins its neighbours.
        let (repeats, wide) = match wide {
            8 => (1, 8 * cells),
            wide => (cells, *wide),
        };
        for cell in at..at + repeats {
            let area = [cell * WIDE + left * WIDE / 8, top + from * HIGH / 8];
            let size = [wide * WIDE / 8, (high * HIGH).div_ceil(8)];
            rectangle(
                svg,
                [area[0], area[1], size[0].max(1), size[1].min(HIGH)],
                colour,
            );
        }
    }
}

fn rectangle(svg: &mut String, [x, y, width, height]: [usize; 4], colour: Rgb) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#{colour:06x}\"/>"
    );
}

/// Draws words, each pinned to its cells: fonts differ in their width.
fn draw_text(svg: &mut String, start: usize, y: usize, glyphs: &[(Look, &str)], look: Look) {
    let text: String = glyphs.iter().map(|(_, glyph)| *glyph).collect();
    let mut at = start;
    for part in text.split_inclusive("  ") {
        let columns = part.chars().count();
        let shown = part.trim_end();
        let words = shown.trim_start();
        let before = shown.chars().count() - words.chars().count();
        if !words.is_empty() {
            let (x, length) = ((at + before) * WIDE, words.chars().count() * WIDE);
            let bold = if look.is_bold {
                " font-weight=\"bold\""
            } else {
                ""
            };
            let dim = if look.is_dim { " opacity=\".6\"" } else { "" };
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{y}\" textLength=\"{length}\" fill=\"#{:06x}\"{bold}{dim}>{}</text>",
                look.text,
                escaped(words)
            );
        }
        at += columns;
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/src/screens")
}

/// Returns the name and text of every picture.
fn pictures() -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    for mut exhibit in exhibits().into_iter().filter(|exhibit| !exhibit.has_prompt) {
        for size in SIZES {
            exhibit.screen.resize(size);
            for terminal in TERMINALS {
                let mut buffer = blank(size);
                exhibit.screen.draw(&mut buffer, &terminal.theme());
                let name = format!(
                    "{}-{}x{}-{}.svg",
                    exhibit.name, size.0, size.1, terminal.name
                );
                pictures.push((name, picture(&buffer, terminal, &exhibit.title)));
            }
        }
    }
    pictures
}

/// `cargo xtask screens --pictures` writes them.
#[test]
fn the_pictures_of_the_guide_are_those_of_the_screens() {
    let (folder, pictures) = (folder(), pictures());
    let names: BTreeSet<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
    let is_written = std::env::var_os(WRITE).is_some();
    if is_written {
        fs::create_dir_all(&folder).expect("a folder");
    }
    let there = fs::read_dir(&folder).expect("the pictures");
    let there = there.map(|entry| {
        entry
            .expect("an entry")
            .file_name()
            .into_string()
            .expect("UTF-8")
    });
    let mut stale: Vec<String> = there
        .filter(|name| !names.contains(name.as_str()))
        .collect();
    for (name, text) in &pictures {
        let path = folder.join(name);
        if fs::read_to_string(&path).ok().as_ref() != Some(text) {
            stale.push(name.clone());
        }
    }
    if !is_written {
        assert!(
            stale.is_empty(),
            "the screens have changed: run `cargo xtask screens --pictures` and look at {stale:?}"
        );
        return;
    }
    for name in stale {
        let path = folder.join(&name);
        match pictures.iter().find(|(other, _)| *other == name) {
            Some((_, text)) => fs::write(&path, text).expect("written"),
            None => fs::remove_file(&path).expect("removed"),
        }
    }
}

#[test]
fn a_picture_has_the_text_and_colours_of_its_cells() {
    let mut buffer = blank((12, 1));
    let [dark, _] = TERMINALS;
    buffer.set_string(0, 0, "a<b", dark.theme().bad());
    buffer.set_string(4, 0, "██▄", dark.theme().allocated());
    buffer.set_string(9, 0, "end", dark.theme().strong());
    let svg = picture(&buffer, dark, "A & B");
    for part in [
        "<title>A &amp; B</title>",
        "fill=\"#d70000\"",
        ">a&lt;b</text>",
        "<rect x=\"36\" y=\"0\" width=\"18\" height=\"18\" fill=\"#5fffff\"/>",
        "<rect x=\"54\" y=\"9\" width=\"9\" height=\"9\" fill=\"#5fffff\"/>",
        "font-weight=\"bold\">end</text>",
    ] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
}
