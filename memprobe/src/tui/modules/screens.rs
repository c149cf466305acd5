//! Snapshots and invariants of the screens of modules and layers.

use std::sync::Arc;

use ratatui::backend::TestBackend;

use super::super::beside::{Asked, Explain};
use super::super::input::Wanted;
use super::super::samples;
use super::super::state::State;
use super::super::theme::Theme;
use super::super::trial::{self, BARE, COLOUR, SMALL, Size, sizes, typed};
use super::{ModulesState, draw};
use crate::event::DeviceIndex;
use crate::model::snapshot::why::samples::{layers, module, modules, silent};
use crate::model::snapshot::why::{DeviceModules, IterationLayers, Which};

fn drawn(state: &ModulesState, size: Size, theme: &Theme) -> TestBackend {
    let lines = State::new(Arc::new(samples::normal()), size);
    trial::drawn(size, |buffer| draw(buffer, state, &lines, theme))
}

fn state(news: Arc<Vec<DeviceModules>>, size: Size, wanted: &[Wanted]) -> ModulesState {
    let mut state = ModulesState::default();
    state.resize(size.0, size.1);
    state.update(news);
    for wanted in wanted {
        assert_eq!(state.handle(*wanted), None);
    }
    state
}

fn screen(size: Size, wanted: &[Wanted]) -> TestBackend {
    drawn(&state(modules(), size, wanted), size, &COLOUR)
}

fn names(state: &ModulesState) -> Vec<&str> {
    state
        .table
        .rows
        .iter()
        .map(|row| row.name.as_str())
        .collect()
}

#[test]
fn the_modules_of_a_program_that_trains() {
    insta::assert_snapshot!("normal_80x24", screen(SMALL, &[]));
    insta::assert_snapshot!("normal_140x20", screen((140, 20), &[Wanted::OpenAll]));
    insta::assert_snapshot!("normal_40x12", screen((40, 12), &[]));
}

#[test]
fn a_terminal_without_unicode() {
    let screen = drawn(&state(modules(), SMALL, &[Wanted::OpenAll]), SMALL, &BARE);
    assert!(screen.to_string().is_ascii(), "{screen}");
}

fn layers_state(news: Arc<Vec<IterationLayers>>, size: Size, wanted: &[Wanted]) -> ModulesState {
    let mut state = ModulesState::of_iterations();
    state.resize(size.0, size.1);
    state.update_then(news);
    for wanted in wanted {
        assert_eq!(state.handle(*wanted), None);
    }
    state
}

#[test]
fn what_layers_held_in_an_iteration_by_what_it_was_for() {
    let screen = |size, wanted: &[Wanted]| {
        let state = layers_state(layers(Which::Latest), size, wanted);
        drawn(&state, size, &COLOUR)
    };
    insta::assert_snapshot!("layers_80x24", screen(SMALL, &[]));
    insta::assert_snapshot!("layers_140x20", screen((140, 20), &[Wanted::OpenAll]));
    insta::assert_snapshot!("layers_help", screen((80, 28), &[Wanted::Help]));
    for which in [Which::Latest, Which::Numbered(1), Which::Numbered(7)] {
        let state = layers_state(layers(which), SMALL, &[Wanted::OpenAll]);
        let peak = state
            .subject
            .as_ref()
            .map(|subject| i128::from(subject.allocated.0));
        assert!(peak > Some(0), "{which:?}");
        assert_eq!(Some(state.table.all_live), peak);
    }
}

#[test]
fn brackets_lead_from_iteration_to_iteration_and_the_last_goes_on() {
    let asks = |which, by| {
        let mut state = layers_state(layers(which), SMALL, &[]);
        state.handle(Wanted::Iteration(by))
    };
    let told = |which| Some(Asked::Explain(Explain::Layers(which)));
    assert_eq!(asks(Which::Latest, -1), told(Which::Numbered(11)));
    assert_eq!(asks(Which::Numbered(11), 1), told(Which::Latest));
    assert_eq!(asks(Which::Numbered(4), 1), told(Which::Numbered(5)));
    assert_eq!(asks(Which::Numbered(1), -1), told(Which::Numbered(1)));
    let mut waiting = layers_state(Arc::new(Vec::new()), SMALL, &[]);
    assert_eq!(waiting.handle(Wanted::Iteration(-1)), None);
    assert_eq!(waiting.handle(Wanted::Layers), Some(Asked::Leave));
}

#[test]
fn a_filter_opens_the_way_to_what_it_matches_and_says_what_that_holds() {
    insta::assert_snapshot!("filter", screen(SMALL, &typed(r"mlp")));
    insta::assert_snapshot!("filter_nothing", screen(SMALL, &typed("zzz")));
    let state = state(modules(), SMALL, &typed("outside"));
    assert_eq!(names(&state), ["(outside modules)"]);
}

#[test]
fn where_nothing_is_known_of_modules_the_screen_says_so() {
    insta::assert_snapshot!("silent", screen_of(silent().0));
    insta::assert_snapshot!("unread", screen_of(Arc::new(Vec::new())));
    let mut waiting = ModulesState::default();
    waiting.resize(80, 24);
    let waiting = drawn(&waiting, SMALL, &COLOUR).to_string();
    assert!(waiting.contains("Waiting for the first table"), "{waiting}");
}

fn screen_of(news: Arc<Vec<DeviceModules>>) -> TestBackend {
    drawn(&state(news, SMALL, &[]), SMALL, &COLOUR)
}

#[test]
fn help_says_what_the_keys_do() {
    insta::assert_snapshot!("help", screen((80, 28), &[Wanted::Help]));
}

#[test]
fn the_rows_add_up_to_what_is_allocated_however_they_are_shown() {
    for wanted in [
        vec![],
        vec![Wanted::OpenAll],
        vec![Wanted::Regroup, Wanted::OpenAll],
    ] {
        let state = state(modules(), SMALL, &wanted);
        let allocated = state.subject.as_ref().unwrap().allocated.0;
        assert_eq!(state.table.all_live, i128::from(allocated));
        let outermost = state.table.rows.iter().filter(|row| row.depth == 0);
        let sum: i128 = outermost.map(|row| row.live).sum();
        assert_eq!(sum, i128::from(allocated));
    }
}

#[test]
fn enter_opens_a_module_and_left_closes_what_it_lies_in() {
    let find = |state: &ModulesState| names(state).iter().position(|name| *name == "layers");
    let mut state = state(modules(), SMALL, &[]);
    let at = find(&state).expect("the only model is open");
    state.handle(Wanted::Move(at as isize - state.selection.cursor as isize));
    let closed = state.table.rows.len();
    state.handle(Wanted::Toggle);
    assert_eq!(names(&state)[at + 1], "0..3");
    state.handle(Wanted::Move(1));
    state.handle(Wanted::Close);
    assert_eq!(
        (state.selection.cursor, state.table.rows.len()),
        (at, closed + 1)
    );
    state.handle(Wanted::Close);
    assert_eq!(
        (state.selection.cursor, state.table.rows.len()),
        (at, closed)
    );
    state.handle(Wanted::Open);
    assert_eq!(state.table.rows.len(), closed + 1);
}

#[test]
fn modules_alike_are_one_row_until_i_takes_them_apart() {
    let state = |wanted: &[Wanted]| state(modules(), (80, 60), wanted);
    let together = state(&[Wanted::OpenAll]);
    assert!(names(&together).contains(&"0..3"));
    let apart = state(&[Wanted::OpenAll, Wanted::Regroup]);
    assert!(!names(&apart).contains(&"0..3"));
    assert!(
        ["0", "1", "2", "3"]
            .iter()
            .all(|name| names(&apart).contains(name))
    );
}

#[test]
fn names_and_figures_order_siblings() {
    let by_name = state(modules(), SMALL, &[Wanted::SortStep(-1)]);
    let outermost: Vec<&str> = by_name
        .table
        .rows
        .iter()
        .filter(|row| row.depth == 0)
        .map(|row| row.name.as_str())
        .collect();
    assert!(outermost.is_sorted(), "{outermost:?}");
    let mut by_live = state(modules(), SMALL, &[]);
    let live = |state: &ModulesState| -> Vec<i128> {
        let rows = state.table.rows.iter().filter(|row| row.depth == 0);
        rows.map(|row| row.live).collect()
    };
    assert!(live(&by_live).is_sorted_by(|one, other| one >= other));
    by_live.handle(Wanted::Reverse);
    assert!(live(&by_live).is_sorted());
}

#[test]
fn the_selected_module_stays_selected_in_the_next_table() {
    let mut state = state(modules(), SMALL, &[Wanted::Move(2)]);
    let before = state.selected().map(|row| row.key.clone());
    state.handle(Wanted::Reverse);
    state.update(modules());
    assert_eq!(state.selected().map(|row| row.key.clone()), before);
}

#[test]
fn m_and_escape_lead_back_and_devices_and_pauses_are_those_of_all_screens() {
    let mut state = state(modules(), SMALL, &typed("mlp"));
    assert_eq!(state.handle(Wanted::Back), None);
    assert_eq!(state.handle(Wanted::Back), Some(Asked::Leave));
    assert_eq!(state.handle(Wanted::Modules), Some(Asked::Leave));
    for wanted in [Wanted::Device(1), Wanted::Pause] {
        assert_eq!(state.handle(wanted), Some(Asked::AsOnLines(wanted)));
    }
    state.show(Some(DeviceIndex(7)));
    assert!(state.table.rows.is_empty());
}

#[test]
fn names_of_the_target_are_cleaned() {
    let screen = screen_of(module("Net\u{1b}[31m.\u{202e}evil\n"));
    let text = screen.to_string();
    assert!(
        !text.contains('\u{1b}') && !text.contains('\u{202e}'),
        "{text}"
    );
}

#[test]
fn no_size_of_the_screen_and_no_key_makes_it_fail() {
    let keys = [
        Wanted::Last,
        Wanted::Toggle,
        Wanted::OpenAll,
        Wanted::Page(1),
        Wanted::Close,
        Wanted::First,
        Wanted::Regroup,
        Wanted::Move(-3),
        Wanted::Click(5, 4),
        Wanted::Click(5, 2),
        Wanted::SortStep(3),
        Wanted::SortStep(isize::MIN),
        Wanted::Help,
        Wanted::Move(isize::MAX),
    ];
    for size in sizes() {
        let mut state = state(modules(), size, &[]);
        for key in keys {
            state.handle(key);
            drawn(&state, size, &COLOUR);
        }
    }
}
