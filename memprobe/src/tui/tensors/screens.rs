//! Snapshots and invariants of the screen of tensors.

use std::rc::Rc;
use std::sync::Arc;

use ratatui::backend::TestBackend;

use super::super::Command;
use super::super::context::ProcessContext;
use super::super::input::InputEvent;
use super::super::samples;
use super::super::table_screen::ScreenRequest;
use super::super::test_support::{BARE, COLOUR, SMALL, ScreenSize, Shown, sizes, typed};
use super::super::theme::Theme;
use super::{TensorList, Tensors};
use crate::tensors::samples::{graph, later, training};
use crate::tensors::{TensorTable, explain};

const LARGE: ScreenSize = (160, 40);

fn table() -> Arc<TensorTable> {
    Arc::new(explain(training()))
}

fn drawn(state: &Shown<TensorList>, size: ScreenSize, theme: &Theme) -> TestBackend {
    state.drawn(size, theme)
}

fn state(news: Tensors, size: ScreenSize, wanted: &[InputEvent]) -> Shown<TensorList> {
    let mut context = ProcessContext::new(Arc::new(samples::normal()));
    context.take_tensors(news);
    Shown::new(TensorList::default(), context, size).with(wanted)
}

fn take(state: &mut Shown<TensorList>, news: Tensors) {
    state.update(|context| {
        context.take_tensors(news);
    });
}

fn screen(size: ScreenSize, wanted: &[InputEvent]) -> TestBackend {
    let state = state(Tensors::Taken(table()), size, wanted);
    drawn(&state, size, &COLOUR)
}

#[test]
fn the_tensors_of_a_training_step() {
    insta::assert_snapshot!("normal_80x24", screen(SMALL, &[]));
    insta::assert_snapshot!("normal_160x40", screen(LARGE, &[]));
    insta::assert_snapshot!("normal_40x12", screen((40, 12), &[]));
}

#[test]
fn rows_are_made_anew_for_another_choice_or_reading_only() {
    let mut state = state(Tensors::Taken(table()), SMALL, &[]);
    let rows_of = |state: &Shown<TensorList>| Rc::clone(state.content().shown.as_ref().unwrap());
    let first = rows_of(&state);
    for kept in [InputEvent::Move(1), InputEvent::Toggle, InputEvent::Last] {
        state.handle(kept);
        assert!(Rc::ptr_eq(&first, &rows_of(&state)), "{kept:?}");
    }
    let mut last = first;
    for changing in [
        InputEvent::Reverse,
        InputEvent::Regroup,
        InputEvent::SortStep(1),
        InputEvent::Filter,
        InputEvent::Type('a'),
    ] {
        state.handle(changing);
        let rows = rows_of(&state);
        // The prompt of the filter is still empty.
        let is_same = changing == InputEvent::Filter;
        assert_eq!(Rc::ptr_eq(&last, &rows), is_same, "{changing:?}");
        last = rows;
    }
    take(&mut state, Tensors::Taken(table()));
    assert!(!Rc::ptr_eq(&last, &rows_of(&state)));
}

#[test]
fn a_terminal_without_unicode() {
    let state = state(Tensors::Taken(table()), SMALL, &[]);
    let screen = drawn(&state, SMALL, &BARE);
    assert!(screen.to_string().is_ascii(), "{screen}");
}

#[test]
fn all_that_is_known_of_a_tensor() {
    let below = |rows: isize| [InputEvent::Move(rows), InputEvent::Toggle];
    // A group, the first tensor of a shared storage, one that shares it, a block.
    insta::assert_snapshot!("detail_group", screen(SMALL, &below(1)));
    insta::assert_snapshot!("detail_shared", screen(SMALL, &below(9)));
    insta::assert_snapshot!("detail_sharing", screen(SMALL, &below(10)));
    insta::assert_snapshot!("detail_block", screen(SMALL, &below(21)));
}

#[test]
fn what_other_rows_answer_for_comes_last() {
    let news = Tensors::Taken(Arc::new(explain(graph())));
    let state = state(news, SMALL, &[InputEvent::Last]);
    let screen = drawn(&state, SMALL, &COLOUR).to_string();
    let end: Vec<&str> = screen.lines().filter(|line| line.contains("0 B")).collect();
    assert!(end[0].contains("40 * (64, 64)"), "{screen}");
    assert!(end[1].contains("40 * (32, 64)"), "{screen}");
    // The last row is selected.
    assert!(end[1].starts_with("\">"), "{screen}");
}

#[test]
fn the_groupings() {
    for (name, times) in [("shape", 1), ("kind", 2), ("module", 3), ("line", 4)] {
        let wanted = vec![InputEvent::Regroup; times];
        insta::assert_snapshot!(format!("by_{name}"), screen((110, 18), &wanted));
    }
}

#[test]
fn the_host_has_a_table_of_its_own() {
    insta::assert_snapshot!("host", screen(SMALL, &[InputEvent::Device(1)]));
}

#[test]
fn a_filter_leaves_what_it_matches_and_says_what_that_is() {
    insta::assert_snapshot!("filter", screen(SMALL, &typed("lstm")));
    insta::assert_snapshot!("filter_nothing", screen(SMALL, &typed("zzz")));
}

#[test]
fn an_arrow_marks_the_order() {
    insta::assert_snapshot!(
        "by_name_reversed",
        screen(SMALL, &[InputEvent::SortStep(-1), InputEvent::Reverse])
    );
}

#[test]
fn help_says_what_the_keys_do() {
    insta::assert_snapshot!("help", screen(SMALL, &[InputEvent::Help]));
}

#[test]
fn what_is_waited_for_and_what_failed_is_said() {
    let taking = state(
        Tensors::Taking("reading 312,000 of 1,200,000 objects, the process runs again".into()),
        SMALL,
        &[],
    );
    insta::assert_snapshot!("taking", drawn(&taking, SMALL, &COLOUR));
    let reason = "no torch in this process.\nGive a process that has imported it.";
    let mut failed = state(Tensors::Failed(reason.into()), SMALL, &[]);
    assert!(failed.context.lacks_tensors());
    insta::assert_snapshot!("failed", drawn(&failed, SMALL, &COLOUR));
    take(&mut failed, Tensors::Taken(table()));
    take(&mut failed, Tensors::Failed("it has ended".into()));
    insta::assert_snapshot!("failed_later", drawn(&failed, SMALL, &COLOUR));
}

#[test]
fn the_selected_tensor_stays_selected_when_the_process_is_read_again() {
    let mut state = state(Tensors::Taken(table()), SMALL, &[InputEvent::Move(8)]);
    let name = |state: &Shown<TensorList>| {
        let row = state.selected().unwrap().data.texts().first();
        row.name().unwrap().text.clone()
    };
    let before = name(&state);
    take(&mut state, Tensors::Taken(Arc::new(explain(later()))));
    assert_eq!(name(&state), before);
}

#[test]
fn escape_closes_what_is_open_and_then_leads_back() {
    let wanted = [InputEvent::Toggle, InputEvent::Back];
    let mut state = state(Tensors::Taken(table()), SMALL, &wanted);
    assert_eq!(state.handle(InputEvent::Back), Some(ScreenRequest::Leave));
    let take_again = ScreenRequest::Send(Command::TakeTensors);
    assert_eq!(state.handle(InputEvent::Refresh), Some(take_again));
    take(&mut state, Tensors::Taking("the process is paused".into()));
    assert_eq!(state.handle(InputEvent::Refresh), None);
}

#[test]
fn no_size_of_the_screen_and_no_key_makes_it_fail() {
    let keys = [
        InputEvent::Last,
        InputEvent::Toggle,
        InputEvent::Page(1),
        InputEvent::First,
        InputEvent::Back,
        InputEvent::Regroup,
        InputEvent::Move(-3),
        InputEvent::Click(5, 4),
        InputEvent::Click(5, 4),
        InputEvent::Device(-1),
        InputEvent::SortStep(3),
        InputEvent::Help,
    ];
    for size in sizes() {
        let mut state = state(Tensors::Taken(table()), size, &[]);
        for key in keys {
            state.handle(key);
            drawn(&state, size, &COLOUR);
        }
    }
}

#[test]
fn the_areas_fill_every_screen() {
    state(Tensors::Taken(table()), SMALL, &[]).assert_filled();
}
