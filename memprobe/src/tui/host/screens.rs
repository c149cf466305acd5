//! Every screen of the host as text, and what must hold on all of them.

use std::sync::Arc;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use super::super::input::Wanted;
use super::super::theme::{ASCII, Ink, Theme, UNICODE};
use super::input::HostWanted;
use super::sort::Column;
use super::state::HostState;
use super::{HostCommand, samples, view};
use crate::event::Tgid;
use crate::model::snapshot::host::{HostSnapshot, ProcessState};

const COLOUR: Theme = Theme {
    ink: Ink::Colour,
    glyphs: UNICODE,
};

const SMALL: (u16, u16) = (80, 24);
const MEDIUM: (u16, u16) = (100, 24);
const LARGE: (u16, u16) = (140, 30);

fn drawn(state: &HostState, size: (u16, u16), theme: &Theme) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal
        .draw(|frame| {
            if let Some(cursor) = view::draw(frame.buffer_mut(), state, theme) {
                frame.set_cursor_position(cursor);
            }
        })
        .unwrap();
    terminal.backend().clone()
}

fn state(snapshot: HostSnapshot, size: (u16, u16), wanted: &[Wanted]) -> HostState {
    let mut state = HostState::new(Arc::new(snapshot), size, "memprobe top".to_owned());
    for wanted in wanted {
        let command = state.handle(HostWanted::Common(*wanted));
        assert_ne!(command, Some(HostCommand::Quit));
    }
    state
}

fn screen(snapshot: HostSnapshot, size: (u16, u16), wanted: &[Wanted]) -> TestBackend {
    drawn(&state(snapshot, size, wanted), size, &COLOUR)
}

fn typed(pattern: &str) -> Vec<Wanted> {
    std::iter::once(Wanted::Filter)
        .chain(pattern.chars().map(Wanted::Type))
        .collect()
}

#[test]
fn a_busy_host() {
    insta::assert_snapshot!("busy_80x24", screen(samples::busy(), SMALL, &[]));
    insta::assert_snapshot!("busy_100x24", screen(samples::busy(), MEDIUM, &[]));
    insta::assert_snapshot!("busy_140x30", screen(samples::busy(), LARGE, &[]));
}

#[test]
fn processes_that_hold_nothing_are_shown_where_they_are_asked_for() {
    let mut state = state(samples::busy(), MEDIUM, &[]);
    let shown = state.order.len();
    state.handle(HostWanted::Extent);
    assert_eq!(state.order.len(), shown + 1);
    insta::assert_snapshot!("all", drawn(&state, MEDIUM, &COLOUR));
}

#[test]
fn a_busy_host_on_a_terminal_without_unicode() {
    let theme = Theme {
        ink: Ink::Plain,
        glyphs: ASCII,
    };
    let screen = drawn(
        &state(samples::busy(), LARGE, &[Wanted::Move(1)]),
        LARGE,
        &theme,
    );
    assert!(screen.to_string().is_ascii(), "{screen}");
    insta::assert_snapshot!("busy_ascii", screen);
}

#[test]
fn a_driver_that_cannot_be_asked() {
    insta::assert_snapshot!("alone", screen(samples::alone(), MEDIUM, &[]));
}

#[test]
fn a_host_without_cuda() {
    insta::assert_snapshot!("empty", screen(samples::empty(), SMALL, &[]));
}

#[test]
fn more_than_there_is_room_for() {
    insta::assert_snapshot!("crowded", screen(samples::crowded(), SMALL, &[]));
    let end = [Wanted::Last];
    insta::assert_snapshot!("crowded_end", screen(samples::crowded(), MEDIUM, &end));
}

#[test]
fn the_filter() {
    let prompt = typed("python3");
    insta::assert_snapshot!("prompt", screen(samples::busy(), SMALL, &prompt));
    let kept = [prompt, vec![Wanted::Accept]].concat();
    insta::assert_snapshot!("filtered", screen(samples::busy(), SMALL, &kept));
    insta::assert_snapshot!(
        "filtered_all",
        screen(samples::busy(), SMALL, &typed("nowhere"))
    );
}

#[test]
fn help() {
    insta::assert_snapshot!("help", screen(samples::busy(), SMALL, &[Wanted::Help]));
}

#[test]
fn a_process_that_cannot_be_probed_says_why_and_does_not_open() {
    let mut state = state(samples::busy(), SMALL, &typed("5120"));
    state.handle(HostWanted::Common(Wanted::Accept));
    assert_eq!(state.handle(HostWanted::Common(Wanted::Toggle)), None);
    insta::assert_snapshot!("refused", drawn(&state, SMALL, &COLOUR));
}

#[test]
fn very_small_terminals() {
    insta::assert_snapshot!("tiny_16x3", screen(samples::busy(), (16, 3), &[]));
    insta::assert_snapshot!("tiny_24x4", screen(samples::busy(), (24, 4), &[]));
    insta::assert_snapshot!("tiny_40x12", screen(samples::busy(), (40, 12), &[]));
}

#[test]
fn a_hostile_host() {
    let screen = screen(samples::hostile(), LARGE, &[Wanted::Move(2)]);
    let text = screen.to_string();
    assert!(
        !text
            .chars()
            .any(|letter| letter.is_control() && letter != '\n')
    );
    insta::assert_snapshot!("hostile", screen);
}

#[test]
fn enter_asks_for_the_selected_process() {
    let mut state = state(samples::busy(), SMALL, &[Wanted::Move(1)]);
    let command = state.handle(HostWanted::Common(Wanted::Toggle));
    assert_eq!(command, Some(HostCommand::Open(Tgid(6001))));
}

#[test]
fn a_click_on_a_head_sorts_and_a_second_click_on_a_row_opens_it() {
    let mut state = state(samples::busy(), SMALL, &[]);
    let layout = state.layout().unwrap();
    let mut click = |x, y| state.handle(HostWanted::Common(Wanted::Click(x, y)));
    assert_eq!(click(5, layout.head.y), None);
    assert_eq!(click(30, layout.rows.y + 1), None);
    let opened = click(30, layout.rows.y + 1);
    assert_eq!(opened, Some(HostCommand::Open(Tgid(2001))));
    assert_eq!(click(30, layout.rows.bottom() - 1), None);
    assert_eq!(state.sort.column, Column::Pid);
}

#[test]
fn the_selection_follows_its_process_and_moves_on_when_that_is_gone() {
    let mut state = state(samples::busy(), SMALL, &[Wanted::Move(1)]);
    state.handle(HostWanted::SortBy(Column::Pid));
    assert_eq!(state.selected().unwrap().tgid, Tgid(6001));
    let mut later = samples::busy();
    later.processes.retain(|row| row.tgid != Tgid(6001));
    let cursor = state.cursor;
    state.update(Arc::new(later));
    assert_eq!(state.cursor, cursor);
    assert_ne!(state.selected().unwrap().tgid, Tgid(6001));
}

#[test]
fn a_paused_screen_stands_still_and_then_catches_up() {
    let mut state = state(samples::busy(), SMALL, &[Wanted::Pause]);
    state.update(Arc::new(samples::empty()));
    assert!(drawn(&state, SMALL, &COLOUR).to_string().contains("PAUSED"));
    assert_eq!(state.order.len(), samples::busy().processes.len() - 1);
    state.handle(HostWanted::Common(Wanted::Pause));
    assert!(state.order.is_empty());
}

#[test]
fn what_is_shown_adds_up_to_what_the_processes_hold() {
    for snapshot in [samples::busy(), samples::alone(), samples::crowded()] {
        let rows = snapshot.processes.iter();
        let sum: u64 = rows
            .flat_map(|row| &row.devices)
            .map(|device| device.totals.allocated.0)
            .sum();
        let state = state(snapshot, SMALL, &[]);
        assert_eq!(state.sums.totals.allocated.0, sum);
        assert_eq!(state.sums.totals, state.all.totals);
    }
}

fn all_samples() -> Vec<HostSnapshot> {
    vec![
        samples::busy(),
        samples::alone(),
        samples::empty(),
        samples::crowded(),
        samples::hostile(),
    ]
}

/// Each at which a part of the screen comes or goes, and its neighbours.
const HEIGHTS: [u16; 13] = [0, 1, 3, 4, 5, 6, 7, 9, 10, 12, 16, 17, 25];

#[test]
fn no_size_of_terminal_breaks_the_screen() {
    let widths = [0, 1, 8, 23, 24, 39, 40, 56, 64, 72, 80, 96, 112, 140, 300].into_iter();
    let sizes = widths.flat_map(|width| HEIGHTS.map(move |height| (width, height)));
    let sizes: Vec<(u16, u16)> = sizes.chain([(1000, 300), (3, 2000), (5000, 4)]).collect();
    for snapshot in all_samples() {
        for wishes in [vec![], vec![Wanted::Help, Wanted::Move(1000)], typed("a(")] {
            let mut state = state(snapshot.clone(), (0, 0), &wishes);
            for (width, height) in &sizes {
                let resize = Wanted::Resize(*width, *height);
                state.handle(HostWanted::Common(resize));
                let area = Rect::new(0, 0, *width, *height);
                view::draw(&mut Buffer::empty(area), &state, &COLOUR);
            }
        }
    }
}

#[test]
fn a_terminal_that_shrank_unnoticed_does_not_break_the_screen() {
    for snapshot in all_samples() {
        let state = state(snapshot, LARGE, &[]);
        for size in [(0, 0), (1, 1), (80, 24), (139, 30), (140, 29)] {
            drawn(&state, size, &COLOUR);
        }
    }
}

/// Numbers that look random and are the same on each run (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn wanted(&mut self) -> HostWanted {
        let letters = ['a', '(', '.', '*', '\u{1b}', '模', ' '];
        HostWanted::Common(match self.roll(19) {
            0 | 1 => Wanted::Move(self.roll(7) as isize - 3),
            2 => Wanted::Page(self.roll(3) as isize - 1),
            3 => Wanted::First,
            4 => Wanted::Last,
            5 => Wanted::Toggle,
            6 => Wanted::Filter,
            7 => Wanted::SortStep(1),
            8 => Wanted::SortStep(-1),
            9 => return HostWanted::SortBy(Column::ALL[self.roll(12) as usize]),
            10 => Wanted::Reverse,
            11 => Wanted::Pause,
            12 => Wanted::Help,
            13 => Wanted::Click(self.roll(120) as u16, self.roll(40) as u16),
            14 => Wanted::Resize(self.roll(130) as u16, self.roll(50) as u16),
            15 => Wanted::Type(letters[self.roll(letters.len() as u64) as usize]),
            16 => Wanted::Erase,
            17 => Wanted::Accept,
            _ => Wanted::Back,
        })
    }
}

#[test]
fn no_order_of_keys_and_snapshots_breaks_the_screen() {
    let samples: Vec<Arc<HostSnapshot>> = all_samples().into_iter().map(Arc::new).collect();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut state = HostState::new(samples[0].clone(), SMALL, "memprobe top".to_owned());
    for _ in 0..4000 {
        if let Some(HostCommand::Open(tgid)) = state.handle(dice.wanted()) {
            let row = state.selected().unwrap();
            assert_eq!(row.tgid, tgid);
            assert!(!matches!(row.state, ProcessState::Refused(_)));
        }
        if dice.roll(5) == 0 {
            state.update(samples[dice.roll(samples.len() as u64) as usize].clone());
        }
        assert!(state.cursor < state.order.len().max(1));
        assert!(state.offset <= state.cursor);
        let area = Rect::new(0, 0, 90, 30);
        view::draw(&mut Buffer::empty(area), &state, &COLOUR);
    }
}

#[test]
fn without_colour_no_colour_is_used_and_the_text_is_the_same() {
    for snapshot in all_samples() {
        let state = state(snapshot, SMALL, &[]);
        let coloured = drawn(&state, SMALL, &COLOUR);
        for cell in &coloured.buffer().content {
            assert_eq!(cell.bg, Color::Reset);
        }
        for ink in [Ink::Emphasis, Ink::Plain] {
            let theme = Theme {
                ink,
                glyphs: UNICODE,
            };
            let bare = drawn(&state, SMALL, &theme);
            assert_eq!(bare.to_string(), coloured.to_string());
            for cell in &bare.buffer().content {
                assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
                assert!(ink == Ink::Emphasis || cell.modifier == Modifier::empty());
            }
        }
    }
}
