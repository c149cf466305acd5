//! Appearance: colours, emphasis, and glyphs.
//!
//! Colour and emphasis only repeat what a word, a glyph or a position says, so that nothing is lost on a
//! terminal without them.

use std::ffi::OsString;

use ratatui::style::{Color, Modifier, Style};

use super::palette::{Background, ColourDepth, Fill, Palette};

/// Colours that the user asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ThemeChoice {
    /// By the environment (`NO_COLOR`, `COLORFGBG`, `TERM`), and by the terminal's answer about its background.
    #[default]
    Auto,
    Dark,
    Light,
    /// No colour, only emphasis.
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ink {
    Colour(&'static Palette),
    /// Bold, dim and reverse, no colour.
    Emphasis,
    Plain,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Glyphs {
    /// Fill of one cell in eighths, empty to full, from the bottom.
    pub rising: [&'static str; 9],
    /// Fill of one cell in eighths, empty to full, from the left.
    pub growing: [&'static str; 9],
    /// Dotted line through one cell at four heights, lowest first.
    pub dotted: [&'static str; 4],
    /// Fold mark of a closed row.
    pub closed: &'static str,
    /// Fold mark of an open row.
    pub open: &'static str,
    pub cursor: &'static str,
    pub cut: &'static str,
    pub caller: &'static str,
    pub callee: &'static str,
    /// Sort arrow: largest or last first.
    pub falling: &'static str,
    /// Sort arrow: smallest or first first.
    pub climbing: &'static str,
    /// Cell of a graph that is filled for a part of the time.
    pub swing: &'static str,
    /// Horizontal line through a graph.
    pub level: &'static str,
    /// Vertical line through a graph.
    pub moment: &'static str,
    pub rule: &'static str,
    /// Mark on a rule.
    pub tick: &'static str,
    pub wall: &'static str,
    /// Separator between parts of a sentence.
    pub dot: &'static str,
    /// Name of the keys that move up and down.
    pub arrows: &'static str,
}

pub const UNICODE: Glyphs = Glyphs {
    rising: [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    growing: [" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"],
    dotted: ["⣀", "⠤", "⠒", "⠉"],
    closed: "▸",
    open: "▾",
    cursor: ">",
    cut: "…",
    caller: "←",
    callee: "→",
    falling: "↓",
    climbing: "↑",
    swing: "▒",
    level: "╌",
    moment: "┊",
    rule: "─",
    tick: "┴",
    wall: "│",
    dot: "·",
    arrows: "↑↓",
};

pub const ASCII: Glyphs = Glyphs {
    rising: [" ", " ", " ", " ", "#", "#", "#", "#", "#"],
    growing: [" ", " ", " ", " ", "#", "#", "#", "#", "#"],
    dotted: ["_", "-", "-", "~"],
    closed: "+",
    open: "-",
    cursor: ">",
    cut: "~",
    caller: "<-",
    callee: "->",
    falling: "v",
    climbing: "^",
    swing: ":",
    level: "=",
    moment: "'",
    rule: "-",
    tick: "+",
    wall: "|",
    dot: "|",
    arrows: "Up/Down",
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Theme {
    pub ink: Ink,
    pub glyphs: Glyphs,
}

impl Theme {
    /// Selects a theme by the user's choice and the variables `NO_COLOR` (no-color.org), `COLORFGBG`, `COLORTERM`, `TERM`
    /// and the locale, which `variable` looks up.
    pub fn of_environment(
        choice: ThemeChoice,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let text = |name: &str| {
            variable(name)
                .map(|value| value.to_string_lossy().into_owned())
                .filter(|value| !value.is_empty())
        };
        let term = text("TERM").unwrap_or_default();
        let depth = depth(&term, text("COLORTERM").is_some());
        let background = match choice {
            ThemeChoice::Dark => Background::Dark,
            ThemeChoice::Light => Background::Light,
            ThemeChoice::Auto | ThemeChoice::None => background(text("COLORFGBG").as_deref()),
        };
        let is_asked = matches!(choice, ThemeChoice::Dark | ThemeChoice::Light);
        let ink = if term == "dumb" {
            Ink::Plain
        } else if choice == ThemeChoice::None || (!is_asked && text("NO_COLOR").is_some()) {
            Ink::Emphasis
        } else {
            depth.map_or(Ink::Emphasis, |depth| {
                Ink::Colour(Palette::of(depth, background))
            })
        };
        // Containers often set no locale, but their terminals draw Unicode.
        let locale = text("LC_ALL")
            .or_else(|| text("LC_CTYPE"))
            .or_else(|| text("LANG"));
        let unicode = locale.is_none_or(|name| {
            let name = name.to_ascii_lowercase();
            name.contains("utf-8") || name.contains("utf8")
        });
        let glyphs = if unicode && term != "dumb" && term != "linux" {
            UNICODE
        } else {
            ASCII
        };
        Self { ink, glyphs }
    }

    /// True if the theme depends on the terminal's background, and the terminal can be asked for it.
    pub fn asks_for_background(
        choice: ThemeChoice,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> bool {
        let term = variable("TERM").unwrap_or_default();
        let term = term.to_string_lossy();
        // GNU screen, Eterm and old Linux consoles do not know the question, and may print it.
        let knows = !["linux", "screen", "Eterm"]
            .iter()
            .any(|name| term.starts_with(name));
        let theme = Self::of_environment(choice, variable);
        choice == ThemeChoice::Auto && knows && matches!(theme.ink, Ink::Colour(_))
    }

    /// The same theme on a background that the terminal has named.
    pub fn on(self, background: Background) -> Self {
        match self.ink {
            Ink::Colour(palette) if background != Background::Unknown => Self {
                ink: Ink::Colour(palette.on(background)),
                ..self
            },
            _ => self,
        }
    }

    fn style(&self, colour: impl Fn(&Palette) -> Color) -> Style {
        match self.ink {
            Ink::Colour(palette) => Style::new().fg(colour(palette)),
            Ink::Emphasis | Ink::Plain => Style::new(),
        }
    }

    fn emphasis(&self, emphasis: Modifier) -> Style {
        match self.ink {
            Ink::Plain => Style::new(),
            Ink::Colour(_) | Ink::Emphasis => Style::new().add_modifier(emphasis),
        }
    }

    /// Text that must be seen, on a background of its own.
    fn word(&self, fill: impl Fn(&Palette) -> Fill) -> Style {
        match self.ink {
            Ink::Colour(palette) => filled(fill(palette)),
            Ink::Emphasis | Ink::Plain => self.bar_strong(),
        }
    }

    pub fn strong(&self) -> Style {
        self.emphasis(Modifier::BOLD)
    }

    pub fn faint(&self) -> Style {
        match self.ink {
            Ink::Colour(Palette {
                faint: Some(colour),
                ..
            }) => Style::new().fg(*colour),
            _ => self.emphasis(Modifier::DIM),
        }
    }

    /// Bars across the screen.
    pub fn bar(&self) -> Style {
        self.emphasis(Modifier::REVERSED)
    }

    pub fn bar_strong(&self) -> Style {
        self.emphasis(Modifier::REVERSED | Modifier::BOLD)
    }

    /// The selected row.
    pub fn selected(&self) -> Style {
        match self.ink {
            Ink::Colour(Palette {
                selected: Some(fill),
                ..
            }) => filled(*fill),
            _ => self.bar(),
        }
    }

    pub fn allocated(&self) -> Style {
        self.style(|palette| palette.allocated)
    }

    pub fn reserved(&self) -> Style {
        self.style(|palette| palette.reserved)
    }

    /// Line of the device's capacity.
    pub fn capacity(&self) -> Style {
        self.style(|palette| palette.capacity)
    }

    pub fn good(&self) -> Style {
        self.word(|palette| palette.good)
    }

    /// Waiting or paused.
    pub fn still(&self) -> Style {
        self.word(|palette| palette.still)
    }

    /// Loss, error or end.
    pub fn bad(&self) -> Style {
        self.word(|palette| palette.bad)
    }

    /// Letter of the portion at this place of [`crate::attribution::tables::Portion::ALL`].
    pub fn portion(&self, at: usize) -> Style {
        match self.ink {
            Ink::Colour(palette) => palette
                .portions
                .get(at)
                .copied()
                .map_or_else(Style::new, filled),
            Ink::Emphasis | Ink::Plain => Style::new(),
        }
    }
}

fn filled(fill: Fill) -> Style {
    Style::new().fg(fill.text).bg(fill.background)
}

/// Returns the colours of a terminal by its name; `None` if it has none. `is_modern` if it says so in `COLORTERM`.
fn depth(term: &str, is_modern: bool) -> Option<ColourDepth> {
    let starts = |names: &[&str]| names.iter().any(|name| term.starts_with(name));
    let is_monochrome = starts(&["vt", "xterm-mono", "ansi-m", "linux-m"])
        || term.ends_with("-m")
        || term.ends_with("-mono");
    // Names of terminals that have the 256 colours without saying so.
    let own = [
        "alacritty",
        "contour",
        "foot",
        "ghostty",
        "konsole",
        "rio",
        "st",
        "wezterm",
        "xterm-ghostty",
        "xterm-kitty",
    ];
    if is_monochrome {
        None
    } else if is_modern || term.contains("256color") || term.contains("direct") || starts(&own) {
        Some(ColourDepth::Indexed)
    } else {
        Some(ColourDepth::Sixteen)
    }
}

/// Returns the background by `COLORFGBG`, such as `15;0` or `0;default;15`: the last number is one of sixteen colours.
fn background(colours: Option<&str>) -> Background {
    let background = colours.and_then(|colours| colours.rsplit(';').next()?.parse().ok());
    match background {
        Some(0..=6 | 8) => Background::Dark,
        Some(7 | 9..=15) => Background::Light,
        _ => Background::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(choice: ThemeChoice, variables: &[(&str, &str)]) -> Theme {
        Theme::of_environment(choice, |name| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.into())
        })
    }

    fn theme(variables: &[(&str, &str)]) -> Theme {
        chosen(ThemeChoice::Auto, variables)
    }

    fn ink(depth: ColourDepth, background: Background) -> Ink {
        Ink::Colour(Palette::of(depth, background))
    }

    #[test]
    fn colours_are_used_where_nothing_speaks_against_them() {
        assert_eq!(
            theme(&[("TERM", "xterm-256color"), ("LANG", "en_US.UTF-8")]),
            Theme {
                ink: ink(ColourDepth::Indexed, Background::Unknown),
                glyphs: UNICODE
            }
        );
        let sixteen = ink(ColourDepth::Sixteen, Background::Unknown);
        assert_eq!(theme(&[("NO_COLOR", ""), ("TERM", "screen")]).ink, sixteen);
        assert_eq!(theme(&[("TERM", "xterm")]).ink, sixteen);
        let modern = theme(&[("TERM", "xterm"), ("COLORTERM", "truecolor")]);
        assert_eq!(modern.ink, ink(ColourDepth::Indexed, Background::Unknown));
    }

    #[test]
    fn the_terminal_may_say_its_background() {
        for (colours, background) in [
            ("15;0", Background::Dark),
            ("0;15", Background::Light),
            ("0;default;15", Background::Light),
            ("7;8", Background::Dark),
            ("0;default", Background::Unknown),
            ("", Background::Unknown),
            ("15;99", Background::Unknown),
        ] {
            let theme = theme(&[("TERM", "xterm-256color"), ("COLORFGBG", colours)]);
            assert_eq!(
                theme.ink,
                ink(ColourDepth::Indexed, background),
                "{colours}"
            );
        }
    }

    #[test]
    fn the_terminal_is_asked_for_its_background_where_that_matters() {
        let asks = |choice, variables: &[(&str, &str)]| {
            Theme::asks_for_background(choice, |name| {
                let mut variables = variables.iter();
                let found = variables.find(|(key, _)| *key == name);
                found.map(|(_, value)| value.into())
            })
        };
        let xterm = ("TERM", "xterm-256color");
        assert!(asks(ThemeChoice::Auto, &[xterm]));
        assert!(asks(ThemeChoice::Auto, &[xterm, ("COLORFGBG", "15;0")]));
        assert!(!asks(ThemeChoice::Auto, &[xterm, ("NO_COLOR", "1")]));
        for choice in [ThemeChoice::Dark, ThemeChoice::Light, ThemeChoice::None] {
            assert!(!asks(choice, &[xterm]), "{choice:?}");
        }
        for term in ["dumb", "linux", "screen.xterm-256color", "vt100"] {
            assert!(!asks(ThemeChoice::Auto, &[("TERM", term)]), "{term}");
        }
    }

    #[test]
    fn an_answer_about_the_background_changes_the_colours_alone() {
        for (term, depth) in [
            ("xterm-256color", ColourDepth::Indexed),
            ("xterm", ColourDepth::Sixteen),
        ] {
            let before = theme(&[("TERM", term), ("COLORFGBG", "15;0")]);
            for background in [Background::Light, Background::Dark] {
                let after = before.on(background);
                assert_eq!(after.ink, ink(depth, background));
                assert_eq!(after.glyphs, before.glyphs);
            }
            assert_eq!(before.on(Background::Unknown), before);
        }
        let plain = theme(&[("TERM", "dumb")]);
        assert_eq!(plain.on(Background::Light), plain);
    }

    #[test]
    fn the_choice_of_the_user_comes_first() {
        let variables = [
            ("TERM", "xterm-256color"),
            ("COLORFGBG", "15;0"),
            ("NO_COLOR", "1"),
        ];
        let light = chosen(ThemeChoice::Light, &variables);
        assert_eq!(light.ink, ink(ColourDepth::Indexed, Background::Light));
        let dark = chosen(ThemeChoice::Dark, &variables);
        assert_eq!(dark.ink, ink(ColourDepth::Indexed, Background::Dark));
        assert_eq!(chosen(ThemeChoice::Auto, &variables).ink, Ink::Emphasis);
        let none = chosen(ThemeChoice::None, &variables[..2]);
        assert_eq!(none.ink, Ink::Emphasis);
        assert_eq!(
            chosen(ThemeChoice::Dark, &[("TERM", "dumb")]).ink,
            Ink::Plain
        );
    }

    #[test]
    fn no_color_and_monochrome_terminals_keep_emphasis_alone() {
        assert_eq!(
            theme(&[("NO_COLOR", "1"), ("TERM", "xterm")]).ink,
            Ink::Emphasis
        );
        assert_eq!(theme(&[("TERM", "vt220")]).ink, Ink::Emphasis);
        let bare = theme(&[("NO_COLOR", "1")]);
        assert_eq!(bare.allocated().fg, None);
        assert_eq!((bare.bad().fg, bare.selected().bg), (None, None));
    }

    #[test]
    fn a_dumb_terminal_gets_plain_letters() {
        let dumb = theme(&[("TERM", "dumb"), ("LANG", "en_US.UTF-8")]);
        assert_eq!(
            dumb,
            Theme {
                ink: Ink::Plain,
                glyphs: ASCII
            }
        );
        assert_eq!(dumb.bar(), Style::new());
    }

    #[test]
    fn a_locale_without_unicode_gets_ascii() {
        assert_eq!(
            theme(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]).glyphs,
            ASCII
        );
        assert_eq!(theme(&[("LANG", "de_DE.ISO-8859-1")]).glyphs, ASCII);
        assert_eq!(theme(&[]).glyphs, UNICODE);
    }
}
