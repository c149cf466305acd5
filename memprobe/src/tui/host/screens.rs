//! Snapshots and invariants of the host screen.

use std::sync::Arc;

use ratatui::backend::TestBackend;

use super::super::input::InputEvent;
use super::super::table_screen::ScreenRequest;
use super::super::test_support::{
    BARE, COLOUR, Dice, SMALL, ScreenSize, Shown, all_sizes, assert_legible,
    assert_the_same_without_colour, blank, typed,
};
use super::super::theme::Theme;
use super::processes::{HostContext, Processes};
use super::samples;
use crate::event::Tgid;
use crate::ledger::snapshot::host::{HostSnapshot, ProcessRow, ProcessState};

const MEDIUM: ScreenSize = (100, 24);
const LARGE: ScreenSize = (140, 30);

fn drawn(state: &Shown<Processes>, size: ScreenSize, theme: &Theme) -> TestBackend {
    state.drawn(size, theme)
}

fn state(snapshot: HostSnapshot, size: ScreenSize, wanted: &[InputEvent]) -> Shown<Processes> {
    let snapshot = Arc::new(snapshot);
    let context = HostContext::new(Arc::clone(&snapshot), "memprobe top".to_owned());
    Shown::new(Processes::new(snapshot), context, size).with(wanted)
}

fn selected(state: &Shown<Processes>) -> &ProcessRow {
    state.selected().unwrap().data.process()
}

fn screen(snapshot: HostSnapshot, size: ScreenSize, wanted: &[InputEvent]) -> TestBackend {
    drawn(&state(snapshot, size, wanted), size, &COLOUR)
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
    let shown = state.table.rows.len();
    state.handle(InputEvent::Extent);
    assert_eq!(state.table.rows.len(), shown + 1);
    insta::assert_snapshot!("all", drawn(&state, MEDIUM, &COLOUR));
}

#[test]
fn a_busy_host_on_a_terminal_without_unicode() {
    let screen = drawn(
        &state(samples::busy(), LARGE, &[InputEvent::Move(1)]),
        LARGE,
        &BARE,
    );
    assert!(screen.to_string().is_ascii(), "{screen}");
    insta::assert_snapshot!("busy_ascii", screen);
}

#[test]
fn a_driver_that_cannot_be_asked() {
    insta::assert_snapshot!("alone", screen(samples::alone(), MEDIUM, &[]));
}

#[test]
fn a_driver_that_does_not_say_everything() {
    insta::assert_snapshot!("reticent", screen(samples::reticent(), LARGE, &[]));
}

#[test]
fn a_host_without_cuda() {
    insta::assert_snapshot!("empty", screen(samples::empty(), SMALL, &[]));
}

#[test]
fn more_than_fits() {
    insta::assert_snapshot!("crowded", screen(samples::crowded(), SMALL, &[]));
    let end = [InputEvent::Last];
    insta::assert_snapshot!("crowded_end", screen(samples::crowded(), MEDIUM, &end));
}

#[test]
fn the_filter() {
    let prompt = typed("python3");
    insta::assert_snapshot!("prompt", screen(samples::busy(), SMALL, &prompt));
    let accepted = [prompt, vec![InputEvent::Accept]].concat();
    insta::assert_snapshot!("filtered", screen(samples::busy(), SMALL, &accepted));
    insta::assert_snapshot!(
        "filtered_all",
        screen(samples::busy(), SMALL, &typed("nowhere"))
    );
}

#[test]
fn help() {
    insta::assert_snapshot!("help", screen(samples::busy(), SMALL, &[InputEvent::Help]));
}

#[test]
fn a_process_that_cannot_be_probed_shows_the_reason_and_does_not_open() {
    let mut state = state(samples::busy(), SMALL, &typed("5120"));
    state.handle(InputEvent::Accept);
    assert_eq!(state.handle(InputEvent::Toggle), None);
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
    let screen = screen(samples::hostile(), LARGE, &[InputEvent::Move(2)]);
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
    let mut state = state(samples::busy(), SMALL, &[InputEvent::Move(1)]);
    let command = state.handle(InputEvent::Toggle);
    assert_eq!(command, Some(ScreenRequest::Open(Tgid(6001))));
}

#[test]
fn a_click_on_a_head_sorts_and_a_second_click_on_a_row_opens_it() {
    let mut state = state(samples::busy(), SMALL, &[]);
    let layout = state.areas();
    let mut click = |x, y| state.handle(InputEvent::Click(x, y));
    assert_eq!(click(5, layout.head.y), None);
    assert_eq!(click(30, layout.rows.y + 1), None);
    let opened = click(30, layout.rows.y + 1);
    assert_eq!(opened, Some(ScreenRequest::Open(Tgid(2001))));
    assert_eq!(click(30, layout.rows.bottom() - 1), None);
    assert_eq!(state.state.query.sort.column, 0);
}

#[test]
fn the_selection_follows_its_process_and_moves_on_when_that_is_gone() {
    let mut state = state(samples::busy(), SMALL, &[InputEvent::Move(1)]);
    state.handle(InputEvent::SortBy(0));
    assert_eq!(selected(&state).tgid, Tgid(6001));
    let mut later = samples::busy();
    later.processes.retain(|row| row.tgid != Tgid(6001));
    let cursor = state.state.selection.cursor;
    state.update(|context| {
        context.feed.update(Arc::new(later));
    });
    assert_eq!(state.state.selection.cursor, cursor);
    assert_ne!(selected(&state).tgid, Tgid(6001));
}

#[test]
fn a_paused_screen_stands_still_and_then_catches_up() {
    let mut state = state(samples::busy(), SMALL, &[InputEvent::Pause]);
    state.update(|context| {
        context.feed.update(Arc::new(samples::empty()));
    });
    assert!(drawn(&state, SMALL, &COLOUR).to_string().contains("PAUSED"));
    assert_eq!(state.table.rows.len(), samples::busy().processes.len() - 1);
    state.handle(InputEvent::Pause);
    assert!(state.table.rows.is_empty());
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
        assert_eq!(state.content.sums.totals.allocated.0, sum);
        assert_eq!(state.content.sums.totals, state.content.all.totals);
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

#[test]
fn no_size_of_terminal_breaks_the_screen() {
    for snapshot in all_samples() {
        for wishes in [
            vec![],
            vec![InputEvent::Help, InputEvent::Move(1000)],
            typed("a("),
        ] {
            let mut state = state(snapshot.clone(), (0, 0), &wishes);
            for size in all_sizes() {
                let resize = InputEvent::Resize(size.0, size.1);
                state.handle(resize);
                state.draw(&mut blank(size), &COLOUR);
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

fn asked(dice: &mut Dice) -> InputEvent {
    match dice.roll(15) {
        0 => InputEvent::Extent,
        _ => dice.wanted(),
    }
}

#[test]
fn no_order_of_keys_and_snapshots_breaks_the_screen() {
    let samples: Vec<Arc<HostSnapshot>> = all_samples().into_iter().map(Arc::new).collect();
    let mut dice = Dice::new();
    let mut state = state((*samples[0]).clone(), SMALL, &[]);
    for _ in 0..4000 {
        if let Some(ScreenRequest::Open(tgid)) = state.handle(asked(&mut dice)) {
            let row = selected(&state);
            assert_eq!(row.tgid, tgid);
            assert!(!matches!(row.state, ProcessState::Refused(_)));
        }
        if dice.roll(5) == 0 {
            let sample = &samples[dice.roll(samples.len() as u64) as usize];
            state.update(|context| {
                context.feed.update(Arc::clone(sample));
            });
        }
        assert!(state.state.selection.cursor < state.table.rows.len().max(1));
        assert!(state.state.selection.offset <= state.state.selection.cursor);
        state.draw(&mut blank((90, 30)), &COLOUR);
    }
}

#[test]
fn without_colour_no_colour_is_used_and_the_text_is_the_same() {
    for snapshot in all_samples() {
        let state = state(snapshot, SMALL, &[]);
        assert_the_same_without_colour(|theme| drawn(&state, SMALL, theme));
    }
}

#[test]
fn every_text_has_enough_contrast() {
    for snapshot in all_samples() {
        assert_legible(screen(snapshot, SMALL, &[]).buffer());
    }
}

#[test]
fn the_areas_fill_every_screen() {
    for snapshot in [samples::empty(), samples::busy(), samples::crowded()] {
        state(snapshot, SMALL, &[]).assert_filled();
    }
}

#[test]
fn the_status_line_says_how_many_processes_were_looked_at() {
    let mut host = samples::busy();
    let all = host.processes.len();
    host.processes[0].state = ProcessState::Found;
    let text = screen(host, LARGE, &[]).to_string();
    let expected = format!("looking at processes: {} of {all}", all - 1);
    assert!(text.contains(&expected), "{text}");
    let text = screen(samples::busy(), LARGE, &[]).to_string();
    assert!(!text.contains("looking at"), "{text}");
}
