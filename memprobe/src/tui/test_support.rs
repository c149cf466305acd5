//! Shared helpers of the tests of all screens.

use std::io;
use std::ops::Deref;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Color, Modifier};

use super::input::InputEvent;
use super::palette::vision::{contrast, rgb};
use super::palette::{Background, ColourDepth, Palette};
use super::table_screen::{
    Content, SMALLEST, ScreenHandle, ScreenLayout, ScreenRequest, TableScreen,
};
use super::terminal::TerminalDevice;
use super::theme::{ASCII, Ink, Theme, UNICODE};

/// Terminal with colour and Unicode.
pub const COLOUR: Theme = Theme {
    ink: Ink::Colour(Palette::of(ColourDepth::Indexed, Background::Dark)),
    glyphs: UNICODE,
};

/// Terminal without colour and Unicode.
pub const BARE: Theme = Theme {
    ink: Ink::Plain,
    glyphs: ASCII,
};

/// Columns and rows of a terminal.
pub type ScreenSize = (u16, u16);

/// Default size of terminals.
pub const SMALL: ScreenSize = (80, 24);

/// Draws on a test terminal of this size.
pub fn drawn(size: ScreenSize, draw: impl FnOnce(&mut Buffer) -> Option<Position>) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal
        .draw(|frame| {
            if let Some(cursor) = draw(frame.buffer_mut()) {
                frame.set_cursor_position(cursor);
            }
        })
        .unwrap();
    terminal.backend().clone()
}

/// Terminal that stays memprobe's; keeps what was copied.
#[derive(Default)]
pub struct TestDevice {
    pub copied: Vec<String>,
    pub lent: u32,
}

impl TerminalDevice for TestDevice {
    fn check(&self) -> anyhow::Result<()> {
        Ok(())
    }

    fn copy(&mut self, text: &str) -> io::Result<()> {
        self.copied.push(text.to_owned());
        Ok(())
    }

    fn lend(&mut self, work: &mut dyn FnMut()) -> io::Result<()> {
        self.lent += 1;
        work();
        Ok(())
    }
}

/// Screen with the state around it.
pub struct Shown<C: Content> {
    screen: TableScreen<C>,
    pub context: C::Context,
}

impl<C: Content> Shown<C> {
    pub fn new(content: C, context: C::Context, size: ScreenSize) -> Self {
        let mut screen = TableScreen::new(content, &context);
        screen.resize(size.0, size.1, &context);
        Self { screen, context }
    }

    /// Handles inputs, which all stay on the screen.
    pub fn with(mut self, events: &[InputEvent]) -> Self {
        for event in events {
            let request = self.handle(*event);
            let leaves = [ScreenRequest::Quit, ScreenRequest::Leave];
            assert!(!request.is_some_and(|request| leaves.contains(&request)));
        }
        self
    }

    pub fn content(&self) -> &C {
        &self.screen.content
    }

    pub fn handle(&mut self, event: InputEvent) -> Option<ScreenRequest> {
        let request = self.screen.handle(event, &mut self.context);
        self.screen.catch_up(&self.context);
        request
    }

    /// Changes the state around the screen.
    pub fn update(&mut self, change: impl FnOnce(&mut C::Context)) {
        change(&mut self.context);
        self.screen.rebuild(&self.context);
    }

    pub fn areas(&self) -> ScreenLayout {
        self.screen.layout(&self.context).unwrap()
    }

    pub fn draw(&self, buffer: &mut Buffer, theme: &Theme) -> Option<Position> {
        self.screen.draw(buffer, &self.context, theme)
    }

    pub fn drawn(&self, size: ScreenSize, theme: &Theme) -> TestBackend {
        drawn(size, |buffer| self.draw(buffer, theme))
    }

    /// Asserts that the areas fill screens of all sizes without overlapping.
    pub fn assert_filled(&mut self) {
        for (width, height) in [40, 79, 80, 111, 149, 150, 255]
            .into_iter()
            .flat_map(|width| (SMALLEST.1..90).map(move |height| (width, height)))
        {
            self.handle(InputEvent::Resize(width, height));
            let l = self.areas();
            let parts = [
                l.header, l.tabs, l.devices, l.totals, l.graph, l.head, l.rows, l.sum, l.second,
                l.detail, l.source, l.status, l.keys,
            ];
            let area: u32 = parts.iter().map(|part| part.area()).sum();
            assert_eq!(
                area,
                u32::from(width) * u32::from(height),
                "{width}x{height}"
            );
            assert!(l.rows.height >= 1, "{width}x{height}");
            for (at, part) in parts.iter().enumerate() {
                assert!(part.right() <= width && part.bottom() <= height);
                assert!(parts[at + 1..].iter().all(|other| !part.intersects(*other)));
            }
        }
    }
}

impl<C: Content> Deref for Shown<C> {
    type Target = TableScreen<C>;

    fn deref(&self) -> &TableScreen<C> {
        &self.screen
    }
}

/// Returns a buffer to draw on without a terminal.
pub fn blank(size: ScreenSize) -> Buffer {
    Buffer::empty(Rect::new(0, 0, size.0, size.1))
}

/// Returns the inputs that type a filter.
pub fn typed(pattern: &str) -> Vec<InputEvent> {
    std::iter::once(InputEvent::Filter)
        .chain(pattern.chars().map(InputEvent::Type))
        .collect()
}

/// Sizes at which a screen has all of its parts, some, or none.
pub fn sizes() -> impl Iterator<Item = ScreenSize> {
    let widths = [0, 1, 23, 24, 40, 79, 120, 200];
    let heights = [0, 1, 4, 5, 8, 12, 24, 60];
    widths
        .into_iter()
        .flat_map(move |width| heights.map(|height| (width, height)))
}

/// Many more sizes, at and around the thresholds of the layouts.
pub fn all_sizes() -> Vec<ScreenSize> {
    // Thresholds at which a part of a screen appears or disappears, and their neighbours.
    let heights = [
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 19, 24, 25,
    ];
    let widths = [
        39, 40, 56, 59, 60, 64, 72, 79, 80, 96, 100, 112, 140, 149, 150, 200,
    ];
    let widths = (0..30).chain(widths);
    let sizes = widths.flat_map(|width| heights.map(move |height| (width, height)));
    sizes.chain([(1000, 300), (3, 2000), (5000, 4)]).collect()
}

/// Asserts that a screen has the same text without colour, and then no colours.
pub fn assert_the_same_without_colour(draw: impl Fn(&Theme) -> TestBackend) {
    let coloured = draw(&COLOUR).to_string();
    for ink in [Ink::Emphasis, Ink::Plain] {
        let bare = draw(&Theme { ink, ..COLOUR });
        assert_eq!(bare.to_string(), coloured);
        for cell in &bare.buffer().content {
            assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
            assert!(ink == Ink::Emphasis || cell.modifier == Modifier::empty());
        }
    }
}

/// Asserts that text on a ground of its own has a colour of its own, with enough contrast, and is not dimmed.
pub fn assert_legible(buffer: &Buffer) {
    for cell in &buffer.content {
        let has_background = cell.bg != Color::Reset;
        assert!(!has_background || cell.fg != Color::Reset, "{cell:?}");
        let ratio = contrast(rgb(cell.fg), rgb(cell.bg));
        assert!(!has_background || ratio >= 4.5, "{cell:?}: {ratio:.2}");
        let is_bar = has_background || cell.modifier.contains(Modifier::REVERSED);
        assert!(
            !is_bar || !cell.modifier.contains(Modifier::DIM),
            "{cell:?}"
        );
        assert!(
            !has_background || !cell.modifier.contains(Modifier::REVERSED),
            "{cell:?}"
        );
    }
}

/// Deterministic pseudo-random numbers (xorshift).
pub struct Dice(u64);

impl Dice {
    pub fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns a number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    /// Returns a random input.
    pub fn wanted(&mut self) -> InputEvent {
        let letters = ['a', '(', '.', '*', '\u{1b}', '模', ' '];
        match self.roll(31) {
            0 | 1 => InputEvent::Move(self.roll(7) as isize - 3),
            2 => InputEvent::Page(self.roll(3) as isize - 1),
            3 => InputEvent::First,
            4 => InputEvent::Last,
            5 | 6 => InputEvent::Toggle,
            7 => InputEvent::Open,
            8 => InputEvent::Close,
            9 => InputEvent::OpenAll,
            10 => InputEvent::Filter,
            11 => InputEvent::SortStep(1),
            12 => InputEvent::SortStep(-1),
            13 => InputEvent::SortBy(self.roll(9) as usize),
            14 => InputEvent::Reverse,
            15 => InputEvent::Device(self.roll(3) as isize - 1),
            16 => InputEvent::Pause,
            17 => InputEvent::Regroup,
            18 => InputEvent::Source,
            19 => InputEvent::Probes,
            20 => InputEvent::Help,
            21 => InputEvent::Click(self.roll(120) as u16, self.roll(40) as u16),
            22 => InputEvent::Resize(self.roll(130) as u16, self.roll(50) as u16),
            23 => InputEvent::Type(letters[self.roll(letters.len() as u64) as usize]),
            24 => InputEvent::Erase,
            25 => InputEvent::Accept,
            26 => InputEvent::Freeze,
            27 => InputEvent::ResetPeaks,
            28 => InputEvent::GraphWindow,
            29 => InputEvent::GraphAxis,
            _ => InputEvent::Back,
        }
    }
}
