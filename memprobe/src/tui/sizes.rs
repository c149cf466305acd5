//! Tests of all screens at many sizes: nothing panics, texts do not overlap, and the way out is always shown.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::gallery::{AnyScreen, exhibits};
use super::input::InputEvent;
use super::table_screen::{SMALLEST, ScreenRequest};
use super::test_support::{BARE, COLOUR, ScreenSize, assert_legible, blank};
use super::theme::{Theme, UNICODE};

/// Sizes from 1x1 to 200x60, with the neighbours of all thresholds.
fn sizes() -> impl Iterator<Item = ScreenSize> {
    let widths = [
        1, 7, 16, 24, 39, 40, 44, 56, 60, 70, 80, 100, 120, 150, 160, 200,
    ];
    let heights = [1, 3, 4, 5, 6, 7, 9, 12, 16, 20, 24, 32, 60];
    widths
        .into_iter()
        .flat_map(move |width| heights.map(|height| (width, height)))
}

const fn is_large_enough((width, height): ScreenSize) -> bool {
    width >= SMALLEST.0 && height >= SMALLEST.1
}

fn text(buffer: &Buffer, area: Rect) -> String {
    let cell = |x| buffer.cell((x, area.y)).map_or("", |cell| cell.symbol());
    (area.x..area.right()).map(cell).collect()
}

fn last_line(buffer: &Buffer) -> String {
    let area = buffer.area;
    text(buffer, Rect::new(0, area.bottom() - 1, area.width, 1))
}

/// Draws each screen at each size.
fn for_each_size(theme: &Theme, check: impl Fn(&str, &dyn AnyScreen, &Buffer, ScreenSize)) {
    for mut exhibit in exhibits() {
        for size in sizes() {
            exhibit.screen.resize(size);
            let mut buffer = blank(size);
            exhibit.screen.draw(&mut buffer, theme);
            check(exhibit.name, exhibit.screen.as_ref(), &buffer, size);
        }
    }
}

#[test]
fn the_footer_keeps_the_keys_of_help_and_quit() {
    for_each_size(&COLOUR, |name, screen, buffer, size| {
        assert_eq!(
            screen.areas().is_some(),
            is_large_enough(size),
            "{name} {size:?}"
        );
        if is_large_enough(size) && name != "filter" {
            let keys = last_line(buffer);
            assert!(keys.contains(" ? help "), "{name} {size:?}: {keys}");
            assert!(keys.contains(" q quit "), "{name} {size:?}: {keys}");
        }
    });
}

#[test]
fn a_screen_that_is_too_small_says_so_in_one_line_and_q_quits() {
    for mut exhibit in exhibits() {
        for size in sizes().filter(|size| !is_large_enough(*size)) {
            exhibit.screen.resize(size);
            let mut buffer = blank(size);
            exhibit.screen.draw(&mut buffer, &COLOUR);
            let first = text(&buffer, Rect::new(0, 0, size.0, 1));
            let first = first.trim_end();
            assert!(first.contains('q'), "{size:?}: {first}");
            if size.0 >= 20 {
                assert!(
                    first.contains("40x6") && first.contains("q quits"),
                    "{first}"
                );
            }
        }
        if !exhibit.has_prompt {
            let asked = exhibit.screen.handle(InputEvent::Quit);
            assert_eq!(asked, Some(ScreenRequest::Quit));
        }
    }
}

/// Returns words of a head line other than heads: overlapping texts, or a text cut without a mark.
fn foreign_words(line: &str, heads: &[&str], hint: &str) -> Vec<String> {
    let known: Vec<&str> = heads
        .iter()
        .flat_map(|head| head.split(' '))
        .chain(hint.split(' '))
        .collect();
    let words = line.split_whitespace();
    let bare = words.map(|word| {
        word.trim_start_matches(
            [UNICODE.falling, UNICODE.climbing].map(|arrow| arrow.chars().next().unwrap_or(' ')),
        )
    });
    let is_foreign = |word: &&str| !known.contains(word) && !word.ends_with(UNICODE.cut);
    bare.filter(is_foreign).map(str::to_owned).collect()
}

#[test]
fn heads_never_overlap() {
    const HINTS: &str = "your code (i) innermost by tensor shape kind module line retainer no fold order frozen (f) \
                         of iteration";
    for_each_size(&COLOUR, |name, screen, buffer, size| {
        let Some(areas) = screen.areas().filter(|areas| !areas.head.is_empty()) else {
            return;
        };
        // An overlay may cover the heads.
        if matches!(name, "help" | "probes" | "tensor") {
            return;
        }
        let line = text(buffer, areas.head);
        let foreign = foreign_words(&line, &screen.heads(), HINTS);
        assert!(foreign.is_empty(), "{name} {size:?}: {foreign:?} in {line}");
    });
}

#[test]
fn the_title_keeps_its_facts_apart() {
    for_each_size(&COLOUR, |name, screen, buffer, size| {
        let Some(areas) = screen.areas() else { return };
        let line = text(buffer, areas.header);
        assert!(line.starts_with(" memprobe"), "{name} {size:?}: {line}");
        // The text comes first, then facts as whole words, each behind two spaces.
        for fact in ["PID 1234", "attached 00:12:31", "cuda:0"] {
            let word = fact.split(' ').next().unwrap_or(fact);
            if line.contains(&format!(" {word}")) {
                assert!(
                    line.contains(&format!("  {fact}")),
                    "{name} {size:?}: {line}"
                );
            }
        }
    });
}

#[test]
fn the_script_is_seen_on_narrow_screens() {
    let lines = &mut exhibits()[0].screen;
    for width in [160, 80, 60, 40] {
        lines.resize((width, 20));
        let mut buffer = blank((width, 20));
        lines.draw(&mut buffer, &COLOUR);
        let title = text(&buffer, Rect::new(0, 0, width, 1));
        assert!(title.starts_with(" memprobe  train.py"), "{title}");
        assert!(title.contains("PID 1234"), "{title}");
        assert_eq!(title.contains("--seconds 600"), width >= 60, "{title}");
    }
}

#[test]
fn every_text_is_legible_on_every_screen() {
    for_each_size(&COLOUR, |_, _, buffer, _| assert_legible(buffer));
}

#[test]
fn letters_alone_serve_all_sizes() {
    for_each_size(&BARE, |name, _, buffer, size| {
        let is_ascii = |cell: &ratatui::buffer::Cell| cell.symbol().is_ascii();
        assert!(buffer.content().iter().all(is_ascii), "{name} {size:?}");
    });
}

#[test]
fn help_is_complete_at_every_width() {
    let exhibits = exhibits();
    let help = exhibits.into_iter().find(|exhibit| exhibit.name == "help");
    let mut help = help.expect("it is in the gallery").screen;
    for width in [40, 60, 80, 200] {
        help.resize((width, 12));
        let mut seen = String::new();
        help.handle(InputEvent::First);
        for _ in 0..200 {
            let mut buffer = blank((width, 12));
            help.draw(&mut buffer, &COLOUR);
            let rows = (0..12).map(|y| text(&buffer, Rect::new(0, y, width, 1)));
            seen.extend(rows.map(|row| row.replace('│', " ") + "\n"));
            help.handle(InputEvent::Move(1));
        }
        let words: std::collections::HashSet<&str> = seen.split_whitespace().collect();
        for word in [
            "single-stepped:",
            "reset:",
            "frame",
            "graph",
            "ten",
            "terminal",
            "memprobe",
        ] {
            assert!(
                words.contains(word),
                "{word} is not seen at {width} columns"
            );
        }
        // The end is reached, and one key leads away from it.
        let mut buffer = blank((width, 12));
        help.draw(&mut buffer, &COLOUR);
        let end = buffer.clone();
        help.handle(InputEvent::Move(-1));
        help.draw(&mut buffer, &COLOUR);
        assert_ne!(buffer, end, "{width}");
    }
}
