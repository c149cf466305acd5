//! Every screen and state as text, and what must hold on all of them.

use std::sync::Arc;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

use super::input::Wanted;
use super::samples::{self, Sources};
use super::sort::Column;
use super::state::State;
use super::theme::{ASCII, Ink, Theme, UNICODE};
use super::{Command, view};
use crate::event::Bytes;
use crate::model::snapshot::{Grouping, Snapshot};

const COLOUR: Theme = Theme {
    ink: Ink::Colour,
    glyphs: UNICODE,
};

fn drawn(state: &State, size: (u16, u16), theme: &Theme) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal
        .draw(|frame| {
            if let Some(cursor) = view::draw(frame.buffer_mut(), state, &mut Sources, theme) {
                frame.set_cursor_position(cursor);
            }
        })
        .unwrap();
    terminal.backend().clone()
}

fn state(snapshot: Snapshot, size: (u16, u16), wanted: &[Wanted]) -> State {
    let mut state = State::new(Arc::new(snapshot), size);
    for wanted in wanted {
        assert_ne!(state.handle(*wanted), Some(Command::Quit));
    }
    state
}

fn screen(snapshot: Snapshot, size: (u16, u16), wanted: &[Wanted]) -> TestBackend {
    drawn(&state(snapshot, size, wanted), size, &COLOUR)
}

fn typed(pattern: &str) -> Vec<Wanted> {
    std::iter::once(Wanted::Filter)
        .chain(pattern.chars().map(Wanted::Type))
        .collect()
}

const SMALL: (u16, u16) = (80, 24);
const MEDIUM: (u16, u16) = (100, 24);
const LARGE: (u16, u16) = (200, 60);

#[test]
fn a_running_target() {
    insta::assert_snapshot!("normal_80x24", screen(samples::normal(), SMALL, &[]));
    insta::assert_snapshot!("normal_100x24", screen(samples::normal(), MEDIUM, &[]));
    insta::assert_snapshot!("normal_200x60", screen(samples::normal(), LARGE, &[]));
}

#[test]
fn a_running_target_on_a_terminal_without_unicode() {
    let theme = Theme {
        ink: Ink::Plain,
        glyphs: ASCII,
    };
    let state = state(samples::normal(), SMALL, &[Wanted::Open]);
    let screen = drawn(&state, SMALL, &theme);
    assert!(screen.to_string().is_ascii(), "{screen}");
    insta::assert_snapshot!("normal_ascii", screen);
}

#[test]
fn a_target_that_has_not_allocated_yet() {
    insta::assert_snapshot!("empty", screen(samples::empty(), SMALL, &[]));
    let mut unread = samples::empty();
    unread.health.unread_at_attach = Some("the allocator in use is cudaMallocAsync".into());
    insta::assert_snapshot!("empty_unread", screen(unread, SMALL, &[]));
}

#[test]
fn a_target_that_has_not_imported_torch_yet() {
    insta::assert_snapshot!("waiting", screen(samples::waiting(), SMALL, &[]));
}

#[test]
fn memory_outside_the_caching_allocator() {
    let shown = samples::with_memory_outside();
    insta::assert_snapshot!("outside_100x24", screen(shown.clone(), MEDIUM, &[]));
    insta::assert_snapshot!(
        "outside_open",
        screen(shown.clone(), SMALL, &[Wanted::Outside])
    );
    let none = samples::normal();
    insta::assert_snapshot!("outside_none", screen(none, SMALL, &[Wanted::Outside]));
}

#[test]
fn several_devices() {
    insta::assert_snapshot!(
        "devices_first",
        screen(samples::several_devices(), SMALL, &[])
    );
    insta::assert_snapshot!(
        "devices_next",
        screen(samples::several_devices(), SMALL, &[Wanted::Device(1)])
    );
}

#[test]
fn losses_are_seen() {
    insta::assert_snapshot!("lossy", screen(samples::lossy(), SMALL, &[]));
    insta::assert_snapshot!("lossy_40x12", screen(samples::lossy(), (40, 12), &[]));
}

#[test]
fn a_target_that_has_ended() {
    insta::assert_snapshot!("gone", screen(samples::gone(), SMALL, &[]));
}

#[test]
fn a_paused_screen_stands_still_and_then_catches_up() {
    let mut state = state(samples::normal(), SMALL, &[Wanted::Pause]);
    state.update(Arc::new(samples::lossy()));
    insta::assert_snapshot!("paused", drawn(&state, SMALL, &COLOUR));
    state.handle(Wanted::Pause);
    assert!(
        drawn(&state, SMALL, &COLOUR)
            .to_string()
            .contains("LOST 1,204 events")
    );
}

#[test]
fn the_filter_prompt() {
    insta::assert_snapshot!("prompt_empty", screen(samples::normal(), SMALL, &typed("")));
    insta::assert_snapshot!(
        "prompt_typed",
        screen(samples::normal(), SMALL, &typed("model\\.py"))
    );
    insta::assert_snapshot!(
        "prompt_invalid",
        screen(samples::normal(), SMALL, &typed("model["))
    );
}

#[test]
fn a_filter_that_was_kept() {
    let kept = |pattern: &str| [typed(pattern), vec![Wanted::Accept]].concat();
    insta::assert_snapshot!("filtered", screen(samples::normal(), SMALL, &kept("train")));
    insta::assert_snapshot!(
        "filtered_all",
        screen(samples::normal(), SMALL, &kept("nowhere"))
    );
}

#[test]
fn help() {
    insta::assert_snapshot!("help", screen(samples::normal(), SMALL, &[Wanted::Help]));
    insta::assert_snapshot!(
        "help_end",
        screen(samples::normal(), SMALL, &[Wanted::Help, Wanted::Move(99)])
    );
}

#[test]
fn the_probes() {
    insta::assert_snapshot!("probes", screen(samples::lossy(), SMALL, &[Wanted::Probes]));
}

#[test]
fn what_is_missing_is_told_with_the_probes() {
    let told = screen(samples::lacking(), SMALL, &[Wanted::Probes]).to_string();
    assert!(told.contains("1 MISSING (p)"), "{told}");
    assert!(
        told.contains("missing: the verifier of this kernel"),
        "{told}"
    );
}

#[test]
fn callers_of_a_line() {
    let opened = [Wanted::Toggle];
    insta::assert_snapshot!("callers", screen(samples::normal(), MEDIUM, &opened));
    insta::assert_snapshot!(
        "callers_all",
        screen(samples::normal(), (120, 30), &[Wanted::OpenAll])
    );
}

#[test]
fn what_a_line_calls_in_a_library() {
    let opened = [Wanted::Move(1), Wanted::Open];
    insta::assert_snapshot!("callees", screen(samples::normal(), MEDIUM, &opened));
}

#[test]
fn source_text() {
    insta::assert_snapshot!(
        "source_beneath",
        screen(samples::normal(), MEDIUM, &[Wanted::Source])
    );
    insta::assert_snapshot!(
        "source_beside",
        screen(samples::normal(), LARGE, &[Wanted::Source])
    );
    // A frame of the library beneath the optimizer's line, whose file is not there.
    let unread = [
        Wanted::Source,
        Wanted::Move(1),
        Wanted::Open,
        Wanted::Move(1),
    ];
    insta::assert_snapshot!("source_unread", screen(samples::normal(), MEDIUM, &unread));
}

#[test]
fn very_small_terminals() {
    insta::assert_snapshot!("tiny_16x3", screen(samples::normal(), (16, 3), &[]));
    insta::assert_snapshot!("tiny_24x4", screen(samples::normal(), (24, 4), &[]));
    insta::assert_snapshot!("tiny_40x10", screen(samples::normal(), (40, 10), &[]));
}

#[test]
fn a_hostile_target() {
    let wanted = [Wanted::OpenAll, Wanted::Source];
    let screen = screen(samples::hostile(), MEDIUM, &wanted);
    assert!(
        !screen
            .to_string()
            .chars()
            .any(|letter| letter.is_control() && letter != '\n')
    );
    insta::assert_snapshot!("hostile", screen);
}

fn all_samples() -> Vec<Snapshot> {
    vec![
        samples::normal(),
        samples::empty(),
        samples::waiting(),
        samples::lossy(),
        samples::gone(),
        samples::several_devices(),
        samples::hostile(),
    ]
}

/// Screens that between them draw everything there is.
fn all_wishes() -> Vec<Vec<Wanted>> {
    vec![
        vec![],
        vec![Wanted::OpenAll, Wanted::Source, Wanted::Last],
        vec![Wanted::Help, Wanted::Move(1000)],
        vec![Wanted::Probes, Wanted::Page(5)],
        typed("a("),
    ]
}

/// Each at which a part of the screen comes or goes, and its neighbours.
const HEIGHTS: [u16; 17] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 18, 19, 24];

#[test]
fn no_size_of_terminal_breaks_the_screen() {
    let widths = (0..30).chain([39, 40, 59, 60, 79, 80, 100, 149, 150, 200]);
    let sizes = widths.flat_map(|width| HEIGHTS.map(move |height| (width, height)));
    let sizes: Vec<(u16, u16)> = sizes.chain([(1000, 300), (3, 2000), (5000, 4)]).collect();
    for snapshot in all_samples() {
        for wishes in all_wishes() {
            let mut state = state(snapshot.clone(), (0, 0), &wishes);
            for (width, height) in &sizes {
                state.handle(Wanted::Resize(*width, *height));
                let area = ratatui::layout::Rect::new(0, 0, *width, *height);
                view::draw(&mut Buffer::empty(area), &state, &mut Sources, &COLOUR);
            }
        }
    }
}

#[test]
fn a_terminal_that_shrank_unnoticed_does_not_break_the_screen() {
    for snapshot in all_samples() {
        let state = state(snapshot, LARGE, &[Wanted::Source]);
        for size in [(0, 0), (1, 1), (80, 24), (199, 60), (200, 59)] {
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

    fn wanted(&mut self) -> Wanted {
        let letters = ['a', '(', '.', '*', '\u{1b}', '模', ' '];
        match self.roll(26) {
            0 | 1 => Wanted::Move(self.roll(7) as isize - 3),
            2 => Wanted::Page(self.roll(3) as isize - 1),
            3 => Wanted::First,
            4 => Wanted::Last,
            5 | 6 => Wanted::Toggle,
            7 => Wanted::Open,
            8 => Wanted::Close,
            9 => Wanted::OpenAll,
            10 => Wanted::Filter,
            11 => Wanted::SortStep(1),
            12 => Wanted::SortStep(-1),
            13 => Wanted::SortBy(Column::ALL[self.roll(6) as usize]),
            14 => Wanted::Reverse,
            15 => Wanted::Device(self.roll(3) as isize - 1),
            16 => Wanted::Pause,
            17 => Wanted::Regroup,
            18 => Wanted::Source,
            19 => Wanted::Probes,
            20 => Wanted::Help,
            21 => Wanted::Click(self.roll(120) as u16, self.roll(40) as u16),
            22 => Wanted::Resize(self.roll(130) as u16, self.roll(50) as u16),
            23 => Wanted::Type(letters[self.roll(letters.len() as u64) as usize]),
            24 => Wanted::Erase,
            _ => Wanted::Back,
        }
    }
}

#[test]
fn no_order_of_keys_and_snapshots_breaks_the_screen() {
    let samples: Vec<Arc<Snapshot>> = all_samples().into_iter().map(Arc::new).collect();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut state = State::new(samples[0].clone(), SMALL);
    for _ in 0..4000 {
        state.handle(dice.wanted());
        if dice.roll(5) == 0 {
            state.update(samples[dice.roll(samples.len() as u64) as usize].clone());
        }
        assert!(state.cursor < state.table.rows.len().max(1));
        assert!(state.offset <= state.cursor);
        view::draw(
            &mut Buffer::empty(ratatui::layout::Rect::new(0, 0, 90, 30)),
            &state,
            &mut Sources,
            &COLOUR,
        );
    }
}

#[test]
fn without_colour_no_colour_is_used_and_the_text_is_the_same() {
    for snapshot in all_samples() {
        let state = state(snapshot, SMALL, &[Wanted::Open]);
        let coloured = drawn(&state, SMALL, &COLOUR);
        for ink in [Ink::Emphasis, Ink::Plain] {
            let bare = drawn(
                &state,
                SMALL,
                &Theme {
                    ink,
                    glyphs: UNICODE,
                },
            );
            assert_eq!(bare.to_string(), coloured.to_string());
            for cell in &bare.buffer().content {
                assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
                assert!(ink == Ink::Emphasis || cell.modifier == Modifier::empty());
            }
        }
    }
}

#[test]
fn colours_are_the_terminals_own_and_never_its_background() {
    for snapshot in all_samples() {
        let screen = screen(snapshot, SMALL, &[]);
        for cell in &screen.buffer().content {
            let own = matches!(
                cell.fg,
                Color::Reset
                    | Color::Cyan
                    | Color::Magenta
                    | Color::Green
                    | Color::Yellow
                    | Color::Red
            );
            assert!(own && cell.bg == Color::Reset, "{cell:?}");
        }
    }
}

#[test]
fn the_table_adds_up_to_what_is_allocated() {
    for snapshot in all_samples() {
        let state = state(snapshot, SMALL, &[]);
        let allocated = state
            .device()
            .map_or(0, |device| i128::from(device.totals.allocated.0));
        assert_eq!(state.table.all_live, allocated);
    }
}

#[test]
fn a_sum_that_is_not_what_is_allocated_is_said() {
    let mut snapshot = samples::normal();
    snapshot.devices[0].totals.allocated = Bytes(1 << 30);
    let text = screen(snapshot, SMALL, &[]).to_string();
    assert!(text.contains("is not what is allocated"), "{text}");
}

#[test]
fn the_selection_follows_its_line_when_the_order_changes() {
    let mut state = state(samples::normal(), SMALL, &[Wanted::Move(2)]);
    let key = state.selected().unwrap().key.clone();
    state.handle(Wanted::Reverse);
    assert_eq!(state.selected().unwrap().key, key);
    assert_ne!(state.cursor, 2);
}

#[test]
fn the_selection_stays_at_the_top_until_it_is_moved() {
    let mut state = state(samples::normal(), SMALL, &[]);
    state.handle(Wanted::SortBy(Column::Rate));
    assert_eq!(state.cursor, 0);
}

#[test]
fn left_closes_a_branch_and_then_goes_up_to_its_line() {
    let mut state = state(samples::normal(), LARGE, &[Wanted::Open]);
    let open = state.table.rows.len();
    state.handle(Wanted::Move(1));
    state.handle(Wanted::Close);
    assert_eq!(state.cursor, 0);
    state.handle(Wanted::Close);
    assert!(state.table.rows.len() < open);
}

#[test]
fn a_click_on_a_head_sorts_and_a_click_on_a_row_selects_then_opens() {
    let mut state = state(samples::normal(), SMALL, &[]);
    let layout = state.layout().unwrap();
    state.handle(Wanted::Click(20, layout.head.y));
    assert_eq!(state.sort.column, Column::Peak);
    let rows = state.table.rows.len();
    state.handle(Wanted::Click(60, layout.rows.y + 1));
    assert_eq!((state.cursor, state.table.rows.len()), (1, rows));
    state.handle(Wanted::Click(60, layout.rows.y + 1));
    assert!(state.table.rows.len() > rows);
}

#[test]
fn a_click_on_a_device_shows_it() {
    let mut state = state(samples::several_devices(), SMALL, &[]);
    let y = state.layout().unwrap().devices.y;
    let text = drawn(&state, SMALL, &COLOUR).to_string();
    let line = text.lines().nth(usize::from(y)).unwrap();
    // The display of the backend puts a quotation mark before each line.
    let x = line.find("cuda:2").unwrap() as u16 - 1;
    state.handle(Wanted::Click(x, y));
    assert_eq!(state.device().unwrap().index.0, 2);
}

#[test]
fn grouping_is_asked_of_the_caller() {
    let mut state = state(samples::normal(), SMALL, &[]);
    assert_eq!(
        state.handle(Wanted::Regroup),
        Some(Command::SetGrouping(Grouping::Innermost))
    );
    assert_eq!(
        state.handle(Wanted::Regroup),
        Some(Command::SetGrouping(Grouping::User))
    );
    state.handle(Wanted::Pause);
    assert_eq!(state.handle(Wanted::Regroup), None);
}

#[test]
fn escape_closes_step_by_step_and_quits_last() {
    let wanted = [
        vec![Wanted::Source],
        typed("train"),
        vec![Wanted::Accept, Wanted::Help],
    ]
    .concat();
    let mut state = state(samples::normal(), SMALL, &wanted);
    for _ in 0..3 {
        assert_eq!(state.handle(Wanted::Back), None);
    }
    assert!(!state.source && state.filter.pattern().is_empty());
    assert_eq!(state.handle(Wanted::Back), Some(Command::Quit));
}
