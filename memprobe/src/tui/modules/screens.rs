//! Snapshots and invariants of the screens of modules and layers.

use std::sync::Arc;

use ratatui::backend::TestBackend;

use super::super::Command;
use super::super::context::AttributionQuery;
use super::super::context::ProcessContext;
use super::super::input::InputEvent;
use super::super::samples;
use super::super::table_screen::ScreenRequest;
use super::super::test_support::{BARE, COLOUR, SMALL, ScreenSize, Shown, sizes, typed};
use super::super::theme::Theme;
use super::ModuleList;
use crate::attribution::tables::samples::{layers, module, modules, silent};
use crate::attribution::tables::{DeviceModules, IterationChoice, IterationLayers};

fn drawn(state: &Shown<ModuleList>, size: ScreenSize, theme: &Theme) -> TestBackend {
    state.drawn(size, theme)
}

fn waiting(content: ModuleList, size: ScreenSize) -> Shown<ModuleList> {
    let context = ProcessContext::new(Arc::new(samples::normal()));
    Shown::new(content, context, size)
}

fn state(
    news: Arc<Vec<DeviceModules>>,
    size: ScreenSize,
    wanted: &[InputEvent],
) -> Shown<ModuleList> {
    let mut state = waiting(ModuleList::default(), size);
    state.update(|context| context.modules = Some(news));
    state.with(wanted)
}

fn screen(size: ScreenSize, wanted: &[InputEvent]) -> TestBackend {
    drawn(&state(modules(), size, wanted), size, &COLOUR)
}

fn names(state: &Shown<ModuleList>) -> Vec<&str> {
    let rows = state.table.rows.iter();
    rows.map(|row| row.data.name.as_str()).collect()
}

#[test]
fn the_modules_of_a_program_that_trains() {
    insta::assert_snapshot!("normal_80x24", screen(SMALL, &[]));
    insta::assert_snapshot!("normal_140x20", screen((140, 20), &[InputEvent::OpenAll]));
    insta::assert_snapshot!("normal_40x12", screen((40, 12), &[]));
}

#[test]
fn a_terminal_without_unicode() {
    let screen = drawn(
        &state(modules(), SMALL, &[InputEvent::OpenAll]),
        SMALL,
        &BARE,
    );
    assert!(screen.to_string().is_ascii(), "{screen}");
}

fn layers_state(
    news: Arc<Vec<IterationLayers>>,
    size: ScreenSize,
    wanted: &[InputEvent],
) -> Shown<ModuleList> {
    let mut state = waiting(ModuleList::of_iterations(), size);
    state.update(|context| context.layers = Some(news));
    state.with(wanted)
}

#[test]
fn what_layers_held_in_an_iteration_by_what_it_was_for() {
    let screen = |size, wanted: &[InputEvent]| {
        let state = layers_state(layers(IterationChoice::Latest), size, wanted);
        drawn(&state, size, &COLOUR)
    };
    insta::assert_snapshot!("layers_80x24", screen(SMALL, &[]));
    insta::assert_snapshot!("layers_140x20", screen((140, 20), &[InputEvent::OpenAll]));
    insta::assert_snapshot!("layers_help", screen((80, 28), &[InputEvent::Help]));
    for which in [
        IterationChoice::Latest,
        IterationChoice::Numbered(1),
        IterationChoice::Numbered(7),
    ] {
        let state = layers_state(layers(which), SMALL, &[InputEvent::OpenAll]);
        let peak = state
            .content
            .subject
            .as_ref()
            .map(|subject| i128::from(subject.allocated.0));
        assert!(peak > Some(0), "{which:?}");
        assert_eq!(Some(state.table.all_bytes), peak);
    }
}

#[test]
fn brackets_lead_from_iteration_to_iteration_and_the_last_goes_on() {
    let asks = |which, by| {
        let mut state = layers_state(layers(which), SMALL, &[]);
        state.handle(InputEvent::Iteration(by))
    };
    let layers_of = |which| {
        let query = AttributionQuery::Layers(which);
        Some(ScreenRequest::Send(Command::Explain(query)))
    };
    assert_eq!(
        asks(IterationChoice::Latest, -1),
        layers_of(IterationChoice::Numbered(11))
    );
    assert_eq!(
        asks(IterationChoice::Numbered(11), 1),
        layers_of(IterationChoice::Latest)
    );
    assert_eq!(
        asks(IterationChoice::Numbered(4), 1),
        layers_of(IterationChoice::Numbered(5))
    );
    assert_eq!(
        asks(IterationChoice::Numbered(1), -1),
        layers_of(IterationChoice::Numbered(1))
    );
    let mut waiting = layers_state(Arc::new(Vec::new()), SMALL, &[]);
    assert_eq!(waiting.handle(InputEvent::Iteration(-1)), None);
    assert_eq!(waiting.handle(InputEvent::Back), Some(ScreenRequest::Leave));
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
    let waiting = waiting(ModuleList::default(), SMALL);
    let waiting = drawn(&waiting, SMALL, &COLOUR).to_string();
    assert!(waiting.contains("Waiting for the first table"), "{waiting}");
}

fn screen_of(news: Arc<Vec<DeviceModules>>) -> TestBackend {
    drawn(&state(news, SMALL, &[]), SMALL, &COLOUR)
}

#[test]
fn help_says_what_the_keys_do() {
    insta::assert_snapshot!("help", screen((80, 28), &[InputEvent::Help]));
}

#[test]
fn the_rows_add_up_to_what_is_allocated_however_they_are_shown() {
    for wanted in [
        vec![],
        vec![InputEvent::OpenAll],
        vec![InputEvent::Regroup, InputEvent::OpenAll],
    ] {
        let state = state(modules(), SMALL, &wanted);
        let allocated = state.content.subject.as_ref().unwrap().allocated.0;
        assert_eq!(state.table.all_bytes, i128::from(allocated));
        let outermost = state.table.rows.iter().filter(|row| row.depth == 0);
        let sum: i128 = outermost.map(|row| row.data.live).sum();
        assert_eq!(sum, i128::from(allocated));
    }
}

#[test]
fn enter_opens_a_module_and_left_closes_what_it_lies_in() {
    let find = |state: &Shown<ModuleList>| names(state).iter().position(|name| *name == "layers");
    let mut state = state(modules(), SMALL, &[]);
    let at = find(&state).expect("the only model is open");
    state.handle(InputEvent::Move(
        at as isize - state.state.selection.cursor as isize,
    ));
    let closed = state.table.rows.len();
    state.handle(InputEvent::Toggle);
    assert_eq!(names(&state)[at + 1], "0..3");
    state.handle(InputEvent::Move(1));
    state.handle(InputEvent::Close);
    assert_eq!(
        (state.state.selection.cursor, state.table.rows.len()),
        (at, closed + 1)
    );
    state.handle(InputEvent::Close);
    assert_eq!(
        (state.state.selection.cursor, state.table.rows.len()),
        (at, closed)
    );
    state.handle(InputEvent::Open);
    assert_eq!(state.table.rows.len(), closed + 1);
}

#[test]
fn modules_alike_are_one_row_until_i_takes_them_apart() {
    let state = |wanted: &[InputEvent]| state(modules(), (80, 60), wanted);
    let together = state(&[InputEvent::OpenAll]);
    assert!(names(&together).contains(&"0..3"));
    let apart = state(&[InputEvent::OpenAll, InputEvent::Regroup]);
    assert!(!names(&apart).contains(&"0..3"));
    assert!(
        ["0", "1", "2", "3"]
            .iter()
            .all(|name| names(&apart).contains(name))
    );
}

#[test]
fn names_and_figures_order_siblings() {
    let by_name = state(modules(), SMALL, &[InputEvent::SortStep(-2)]);
    let outermost: Vec<&str> = by_name
        .table
        .rows
        .iter()
        .filter(|row| row.depth == 0)
        .map(|row| row.data.name.as_str())
        .collect();
    assert!(outermost.is_sorted(), "{outermost:?}");
    let mut by_live = state(modules(), SMALL, &[InputEvent::SortBy(0)]);
    let live = |state: &Shown<ModuleList>| -> Vec<i128> {
        let rows = state.table.rows.iter().filter(|row| row.depth == 0);
        rows.map(|row| row.data.live).collect()
    };
    assert!(live(&by_live).is_sorted_by(|one, other| one >= other));
    by_live.handle(InputEvent::Reverse);
    assert!(live(&by_live).is_sorted());
}

#[test]
fn the_selected_module_stays_selected_in_the_next_table() {
    let mut state = state(modules(), SMALL, &[InputEvent::Move(2)]);
    let before = state.selected().map(|row| row.key.clone());
    state.handle(InputEvent::Reverse);
    state.update(|context| context.modules = Some(modules()));
    assert_eq!(state.selected().map(|row| row.key.clone()), before);
}

#[test]
fn escape_leads_back_and_pauses_are_those_of_all_screens() {
    let mut state = state(modules(), SMALL, &typed("mlp"));
    assert_eq!(state.handle(InputEvent::Back), None);
    assert_eq!(state.handle(InputEvent::Back), Some(ScreenRequest::Leave));
    state.handle(InputEvent::Pause);
    assert!(state.context.feed.is_paused());
    state.update(|context| context.modules = Some(Arc::new(Vec::new())));
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
        InputEvent::Last,
        InputEvent::Toggle,
        InputEvent::OpenAll,
        InputEvent::Page(1),
        InputEvent::Close,
        InputEvent::First,
        InputEvent::Regroup,
        InputEvent::Move(-3),
        InputEvent::Click(5, 4),
        InputEvent::Click(5, 2),
        InputEvent::SortStep(3),
        InputEvent::SortStep(isize::MIN),
        InputEvent::Help,
        InputEvent::Move(isize::MAX),
    ];
    for size in sizes() {
        let mut state = state(modules(), size, &[]);
        for key in keys {
            state.handle(key);
            drawn(&state, size, &COLOUR);
        }
    }
}

#[test]
fn the_areas_fill_every_screen() {
    state(modules(), SMALL, &[]).assert_filled();
}
