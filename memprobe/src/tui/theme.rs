//! Appearance: the terminal's own colours, emphasis, and glyphs.
//!
//! Colour and emphasis only repeat what a word, a glyph or a position says, so that nothing is lost on a
//! terminal without them.

use std::ffi::OsString;

use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ink {
    /// The terminal's sixteen colours, which suit its background.
    Colour,
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
    pub rule: &'static str,
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
    rule: "─",
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
    rule: "-",
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
    /// Selects a theme by the variables `NO_COLOR` (no-color.org), `TERM` and the locale, which `variable` looks up.
    pub fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |name: &str| {
            variable(name)
                .map(|value| value.to_string_lossy().into_owned())
                .filter(|value| !value.is_empty())
        };
        let term = text("TERM").unwrap_or_default();
        let monochrome = ["vt", "xterm-mono", "ansi-m", "linux-m"]
            .iter()
            .any(|kind| term.starts_with(kind))
            || term.ends_with("-m")
            || term.ends_with("-mono");
        let ink = if term == "dumb" {
            Ink::Plain
        } else if monochrome || text("NO_COLOR").is_some() {
            Ink::Emphasis
        } else {
            Ink::Colour
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

    fn style(&self, colour: Option<Color>, emphasis: Modifier) -> Style {
        let style = Style::new();
        match (self.ink, colour) {
            (Ink::Plain, _) => style,
            (Ink::Colour, Some(colour)) => style.fg(colour).add_modifier(emphasis),
            _ => style.add_modifier(emphasis),
        }
    }

    pub fn strong(&self) -> Style {
        self.style(None, Modifier::BOLD)
    }

    pub fn faint(&self) -> Style {
        self.style(None, Modifier::DIM)
    }

    /// Bars across the screen, and the selected row.
    pub fn bar(&self) -> Style {
        self.style(None, Modifier::REVERSED)
    }

    pub fn bar_strong(&self) -> Style {
        self.style(None, Modifier::REVERSED | Modifier::BOLD)
    }

    pub fn allocated(&self) -> Style {
        self.style(Some(Color::Cyan), Modifier::empty())
    }

    pub fn reserved(&self) -> Style {
        self.style(Some(Color::Magenta), Modifier::empty())
    }

    pub fn good(&self) -> Style {
        self.style(Some(Color::Green), Modifier::BOLD | Modifier::REVERSED)
    }

    /// Waiting or paused.
    pub fn still(&self) -> Style {
        self.style(Some(Color::Yellow), Modifier::BOLD | Modifier::REVERSED)
    }

    /// Loss, error or end.
    pub fn bad(&self) -> Style {
        self.style(Some(Color::Red), Modifier::BOLD | Modifier::REVERSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn theme(variables: &[(&str, &str)]) -> Theme {
        Theme::of_environment(|name| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.into())
        })
    }

    #[test]
    fn colours_are_used_where_nothing_speaks_against_them() {
        assert_eq!(
            theme(&[("TERM", "xterm-256color"), ("LANG", "en_US.UTF-8")]),
            Theme {
                ink: Ink::Colour,
                glyphs: UNICODE
            }
        );
        assert_eq!(
            theme(&[("NO_COLOR", ""), ("TERM", "screen")]).ink,
            Ink::Colour
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
        assert_eq!(bare.bad().fg, None);
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
