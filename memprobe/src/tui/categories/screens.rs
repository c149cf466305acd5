//! Snapshots and invariants of the screen of categories.

use std::sync::Arc;

use ratatui::backend::TestBackend;

use super::super::context::ProcessContext;
use super::super::input::InputEvent;
use super::super::samples;
use super::super::table_screen::{RowOf, ScreenRequest};
use super::super::test_support::{BARE, COLOUR, SMALL, ScreenSize, Shown, sizes, typed};
use super::super::theme::Theme;
use super::{Categories, shown};
use crate::attribution::tables::samples::{categories, silent};
use crate::attribution::tables::{Category, DeviceCategories, Portion};

fn drawn(state: &Shown<Categories>, size: ScreenSize, theme: &Theme) -> TestBackend {
    state.drawn(size, theme)
}

fn state(
    news: Arc<Vec<DeviceCategories>>,
    size: ScreenSize,
    wanted: &[InputEvent],
) -> Shown<Categories> {
    let mut context = ProcessContext::new(Arc::new(samples::normal()));
    context.categories = Some(news);
    Shown::new(Categories, context, size).with(wanted)
}

fn screen(size: ScreenSize, wanted: &[InputEvent]) -> TestBackend {
    drawn(&state(categories(), size, wanted), size, &COLOUR)
}

#[test]
fn what_the_memory_of_a_program_that_trains_is_for() {
    insta::assert_snapshot!("normal_80x24", screen(SMALL, &[]));
    insta::assert_snapshot!("normal_140x40", screen((140, 40), &[InputEvent::OpenAll]));
    insta::assert_snapshot!("normal_40x12", screen((40, 12), &[]));
}

#[test]
fn without_unicode_and_colour_categories_have_letters() {
    let screen = drawn(&state(categories(), SMALL, &[]), SMALL, &BARE).to_string();
    assert!(screen.is_ascii(), "{screen}");
    assert!(
        screen.contains("PPP") && screen.contains("P parameter"),
        "{screen}"
    );
}

#[test]
fn where_nothing_marks_iterations_the_screen_says_so() {
    let silent = state(silent().1, SMALL, &[]);
    insta::assert_snapshot!("silent", drawn(&silent, SMALL, &COLOUR));
    let unread = state(Arc::new(Vec::new()), SMALL, &[]);
    insta::assert_snapshot!("unread", drawn(&unread, SMALL, &COLOUR));
}

#[test]
fn help_says_what_the_keys_do() {
    insta::assert_snapshot!("help", screen((80, 30), &[InputEvent::Help]));
}

#[test]
fn the_categories_add_up_to_what_is_allocated_now_and_at_the_peak() {
    let state = state(categories(), SMALL, &[InputEvent::OpenAll]);
    let device = shown(&state.context).unwrap();
    let whole = || {
        state
            .table
            .rows
            .iter()
            .filter(|row| row.data.rule.is_none())
    };
    let (live, at_peak): (i64, i64) = whole().fold((0, 0), |(live, at_peak), row| {
        (live + row.data.live, at_peak + row.data.at_peak)
    });
    assert_eq!(live as u64, device.totals.allocated.0);
    assert_eq!(at_peak as u64, device.peak.0);
    for row in whole().filter(|row| !row.data.rules.is_empty()) {
        let portion = row.data.portion;
        let of =
            |rule: &&RowOf<Categories>| rule.data.rule.is_some() && rule.data.portion == portion;
        let rules = state.table.rows.iter().filter(of);
        let rules: i64 = rules.map(|rule| rule.data.live).sum();
        assert_eq!(rules, row.data.live, "{portion:?}");
    }
}

#[test]
fn a_filter_finds_categories_by_name_and_by_rule() {
    let shown = |pattern: &str| state(categories(), SMALL, &typed(pattern)).table.shown;
    assert_eq!(shown("^parameter"), 1);
    assert!(shown("forward") > 0);
    assert_eq!(shown("zzz"), 0);
}

#[test]
fn enter_shows_the_rules_of_a_category_and_left_hides_them() {
    let mut state = state(categories(), SMALL, &[]);
    let closed = state.table.rows.len();
    let parameters = |row: &RowOf<Categories>| row.data.portion == Portion::Of(Category::Parameter);
    let at = state.table.rows.iter().position(parameters).unwrap();
    state.handle(InputEvent::Move(at as isize));
    state.handle(InputEvent::Toggle);
    assert!(state.table.rows.len() > closed);
    state.handle(InputEvent::Move(1));
    state.handle(InputEvent::Close);
    state.handle(InputEvent::Close);
    assert_eq!(
        (state.table.rows.len(), state.state.selection.cursor),
        (closed, at)
    );
}

#[test]
fn c_and_escape_lead_back_and_help_closes_first() {
    let mut state = state(categories(), SMALL, &[InputEvent::Help]);
    assert_eq!(state.handle(InputEvent::Back), None);
    assert_eq!(state.handle(InputEvent::Back), Some(ScreenRequest::Leave));
    assert_eq!(state.handle(InputEvent::Pause), None);
    assert!(state.context.feed.is_paused());
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
        InputEvent::Move(-3),
        InputEvent::Click(5, 4),
        InputEvent::Click(5, 9),
        InputEvent::SortStep(3),
        InputEvent::SortStep(isize::MIN),
        InputEvent::Help,
        InputEvent::Move(isize::MAX),
    ];
    for size in sizes() {
        let mut state = state(categories(), size, &[]);
        for key in keys {
            state.handle(key);
            drawn(&state, size, &COLOUR);
        }
    }
}

#[test]
fn the_areas_fill_every_screen() {
    state(categories(), SMALL, &[]).assert_filled();
}
