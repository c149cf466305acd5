//! Colours of the live screen.
//!
//! Colours of the 256-colour palette have fixed values, so their contrast is known and tested. The first sixteen are the
//! terminal's own: they serve terminals that have no others. A meaning is never in a colour alone.

use ratatui::style::Color;

/// Background of the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Background {
    Dark,
    Light,
    /// Not known: the colours are legible on both.
    Unknown,
}

/// Number of colours of the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColourDepth {
    Sixteen,
    Indexed,
}

/// Text on a background of its own colour, whatever the terminal's background is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    pub text: Color,
    pub background: Color,
}

const BLACK: Color = Color::Indexed(16);
const WHITE: Color = Color::Indexed(231);

/// Black text on an indexed colour.
const fn black_on(background: u8) -> Fill {
    Fill {
        text: BLACK,
        background: Color::Indexed(background),
    }
}

/// White text on an indexed colour.
const fn white_on(background: u8) -> Fill {
    Fill {
        text: WHITE,
        background: Color::Indexed(background),
    }
}

const fn on(text: Color, background: Color) -> Fill {
    Fill { text, background }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Palette {
    depth: ColourDepth,
    pub allocated: Color,
    pub reserved: Color,
    /// Line of the device's capacity.
    pub capacity: Color,
    /// Less important text; `None` if the terminal dims it.
    pub faint: Option<Color>,
    /// Selected row; `None` if the terminal's colours are exchanged.
    pub selected: Option<Fill>,
    pub good: Fill,
    /// Waiting or paused.
    pub still: Fill,
    pub bad: Fill,
    /// One for each of [`crate::attribution::tables::Portion::ALL`].
    pub portions: [Fill; 12],
}

/// Fills of the 256-colour palette. They serve all backgrounds, because their text lies on the fill.
const FILLS: Palette = Palette {
    depth: ColourDepth::Indexed,
    allocated: Color::Reset,
    reserved: Color::Reset,
    capacity: Color::Reset,
    faint: None,
    selected: Some(white_on(25)),
    good: black_on(79),
    still: black_on(226),
    bad: white_on(160),
    portions: [
        black_on(245),
        black_on(33),
        white_on(91),
        black_on(142),
        black_on(115),
        black_on(38),
        black_on(81),
        black_on(184),
        white_on(130),
        white_on(89),
        white_on(242),
        white_on(88),
    ],
};

const ON_DARK: Palette = Palette {
    allocated: Color::Indexed(87),
    reserved: Color::Indexed(213),
    capacity: Color::Indexed(214),
    faint: Some(Color::Indexed(247)),
    ..FILLS
};

const ON_LIGHT: Palette = Palette {
    allocated: Color::Indexed(26),
    reserved: Color::Indexed(90),
    capacity: Color::Indexed(94),
    faint: Some(Color::Indexed(242)),
    ..FILLS
};

const ON_BOTH: Palette = Palette {
    allocated: Color::Indexed(33),
    reserved: Color::Indexed(199),
    capacity: Color::Indexed(166),
    faint: Some(Color::Indexed(243)),
    ..FILLS
};

const SIXTEEN: Palette = Palette {
    depth: ColourDepth::Sixteen,
    allocated: Color::Cyan,
    reserved: Color::Magenta,
    capacity: Color::Yellow,
    faint: None,
    selected: None,
    good: on(Color::Black, Color::Green),
    still: on(Color::Black, Color::Yellow),
    bad: on(Color::White, Color::Red),
    portions: [
        on(Color::Black, Color::Gray),
        on(Color::White, Color::Blue),
        on(Color::White, Color::Magenta),
        on(Color::Black, Color::Yellow),
        on(Color::Black, Color::Green),
        on(Color::Black, Color::Cyan),
        on(Color::Black, Color::LightCyan),
        on(Color::Black, Color::LightYellow),
        on(Color::Black, Color::LightRed),
        on(Color::Black, Color::LightMagenta),
        on(Color::Black, Color::DarkGray),
        on(Color::White, Color::Red),
    ],
};

const SIXTEEN_ON_LIGHT: Palette = Palette {
    allocated: Color::Blue,
    capacity: Color::Red,
    ..SIXTEEN
};

impl Palette {
    pub const fn of(depth: ColourDepth, background: Background) -> &'static Self {
        match (depth, background) {
            (ColourDepth::Indexed, Background::Dark) => &ON_DARK,
            (ColourDepth::Indexed, Background::Light) => &ON_LIGHT,
            (ColourDepth::Indexed, Background::Unknown) => &ON_BOTH,
            (ColourDepth::Sixteen, Background::Light) => &SIXTEEN_ON_LIGHT,
            (ColourDepth::Sixteen, Background::Dark | Background::Unknown) => &SIXTEEN,
        }
    }

    /// Returns the palette of as many colours for another background.
    pub const fn on(&self, background: Background) -> &'static Self {
        Self::of(self.depth, background)
    }
}

#[cfg(test)]
pub mod vision;

#[cfg(test)]
mod tests {
    use super::vision::{Rgb, VISIONS, contrast, distance, rgb};
    use super::*;
    use crate::attribution::tables::Portion;

    /// Backgrounds of terminals: black, VS Code, One Dark, Solarized dark, Ubuntu.
    const DARK: [Rgb; 5] = [0x00_0000, 0x1e_1e1e, 0x28_2c34, 0x00_2b36, 0x30_0a24];
    /// White, Solarized light, and a light grey.
    const LIGHT: [Rgb; 3] = [0xff_ffff, 0xfd_f6e3, 0xee_eeee];

    /// Least contrast of text (WCAG 2.2, success criterion 1.4.3).
    const TEXT: f64 = 4.5;
    /// Least contrast of graphs, and of large text (success criterion 1.4.11).
    const GRAPH: f64 = 3.0;

    fn least_contrast(colour: Color, backgrounds: &[Rgb]) -> f64 {
        let ratios = backgrounds
            .iter()
            .map(|background| contrast(rgb(colour), *background));
        ratios.fold(f64::INFINITY, f64::min)
    }

    fn lines(palette: &Palette) -> [Color; 4] {
        let faint = palette.faint.unwrap_or(Color::Reset);
        [palette.allocated, palette.reserved, palette.capacity, faint]
    }

    #[test]
    fn text_is_legible_on_a_background_that_is_known() {
        for (palette, backgrounds) in [(&ON_DARK, &DARK[..]), (&ON_LIGHT, &LIGHT[..])] {
            for colour in lines(palette) {
                let ratio = least_contrast(colour, backgrounds);
                assert!(ratio >= TEXT, "{colour:?}: {ratio:.2}");
            }
        }
    }

    #[test]
    fn without_a_known_background_lines_are_legible_on_all() {
        for colour in lines(&ON_BOTH) {
            let ratio = least_contrast(colour, &[&DARK[..], &LIGHT[..]].concat());
            assert!(ratio >= GRAPH, "{colour:?}: {ratio:.2}");
        }
    }

    #[test]
    fn text_on_fills_is_legible() {
        for palette in [&ON_DARK, &ON_LIGHT, &ON_BOTH] {
            let words = [palette.good, palette.still, palette.bad];
            let fills = words.into_iter().chain(palette.portions);
            for fill in fills.chain(palette.selected) {
                let ratio = contrast(rgb(fill.text), rgb(fill.background));
                assert!(ratio >= TEXT, "{fill:?}: {ratio:.2}");
            }
        }
    }

    #[test]
    fn the_sixteen_colours_of_xterm_are_legible_too() {
        for palette in [&SIXTEEN, &SIXTEEN_ON_LIGHT] {
            let words = [palette.good, palette.still, palette.bad];
            for fill in words.into_iter().chain(palette.portions) {
                let ratio = contrast(rgb(fill.text), rgb(fill.background));
                assert!(ratio >= TEXT, "{fill:?}: {ratio:.2}");
            }
        }
    }

    #[test]
    fn the_selected_row_stands_out_on_every_background() {
        let selected = FILLS.selected.expect("a fill");
        let ratio = least_contrast(selected.background, &[&DARK[..], &LIGHT[..]].concat());
        // A mark at the left says it too.
        assert!(ratio >= 2.0, "{ratio:.2}");
    }

    /// Asserts that people with normal, protan and deutan vision tell these colours apart.
    fn assert_apart(colours: &[Color], least: f64) {
        for (at, one) in colours.iter().enumerate() {
            for other in &colours[..at] {
                for vision in VISIONS {
                    let apart = distance(rgb(*one), rgb(*other), vision);
                    assert!(apart >= least, "{one:?} {other:?} {vision:?}: {apart:.1}");
                }
            }
        }
    }

    #[test]
    fn colours_with_different_meanings_look_different_to_colour_blind_people() {
        for palette in [&ON_DARK, &ON_LIGHT, &ON_BOTH] {
            assert_apart(&lines(palette), 10.0);
            let words = [palette.good, palette.still, palette.bad];
            assert_apart(&words.map(|fill| fill.background), 15.0);
            assert_apart(&palette.portions.map(|fill| fill.background), 10.0);
        }
    }

    #[test]
    fn every_portion_has_a_colour() {
        assert_eq!(FILLS.portions.len(), Portion::ALL.len());
    }
}
