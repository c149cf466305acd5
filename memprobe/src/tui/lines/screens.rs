//! Snapshots of the screen of lines, and invariants of all of them.

use std::sync::Arc;

use ratatui::backend::TestBackend;

use super::super::Command;
use super::super::context::ProcessContext;
use super::super::input::InputEvent;
use super::super::outside::Outside;
use super::super::samples::{self, Sources};
use super::super::table_screen::{RowOf, ScreenRequest};
use super::super::test_support::{
    BARE, COLOUR, Dice, SMALL, ScreenSize, Shown, all_sizes, assert_legible,
    assert_the_same_without_colour, blank, typed,
};
use super::super::theme::Theme;
use super::rows::LineKey;
use super::{LineList, column};
use crate::event::Bytes;
use crate::ledger::snapshot::{Grouping, GrowthRate, Snapshot};

fn drawn(state: &Shown<LineList>, size: ScreenSize, theme: &Theme) -> TestBackend {
    state.drawn(size, theme)
}

fn state(snapshot: Snapshot, size: ScreenSize, wanted: &[InputEvent]) -> Shown<LineList> {
    let context = ProcessContext::new(Arc::new(snapshot));
    Shown::new(LineList::new(Box::new(Sources)), context, size).with(wanted)
}

fn screen(snapshot: Snapshot, size: ScreenSize, wanted: &[InputEvent]) -> TestBackend {
    drawn(&state(snapshot, size, wanted), size, &COLOUR)
}

const MEDIUM: ScreenSize = (100, 24);
const LARGE: ScreenSize = (200, 60);

#[test]
fn a_running_target() {
    insta::assert_snapshot!("normal_80x24", screen(samples::normal(), SMALL, &[]));
    insta::assert_snapshot!("normal_100x24", screen(samples::normal(), MEDIUM, &[]));
    insta::assert_snapshot!("normal_200x60", screen(samples::normal(), LARGE, &[]));
}

#[test]
fn a_moment_of_a_recording_compared_with_another_one() {
    insta::assert_snapshot!("replay_120x30", screen(samples::replay(), (120, 30), &[]));
    let state = state(samples::replay(), SMALL, &[]);
    let ascii = drawn(&state, SMALL, &BARE);
    assert!(ascii.to_string().is_ascii(), "{ascii}");
    insta::assert_snapshot!("replay_ascii", ascii);
}

#[test]
fn a_running_target_on_a_terminal_without_unicode() {
    let state = state(samples::normal(), SMALL, &[InputEvent::Open]);
    let screen = drawn(&state, SMALL, &BARE);
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
    let outside = |snapshot: Snapshot| {
        let context = ProcessContext::new(Arc::new(snapshot));
        Shown::new(Outside::default(), context, SMALL).drawn(SMALL, &COLOUR)
    };
    insta::assert_snapshot!("outside_open", outside(shown));
    insta::assert_snapshot!("outside_none", outside(samples::normal()));
}

#[test]
fn several_devices() {
    insta::assert_snapshot!(
        "devices_first",
        screen(samples::several_devices(), SMALL, &[])
    );
    insta::assert_snapshot!(
        "devices_next",
        screen(samples::several_devices(), SMALL, &[InputEvent::Device(1)])
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
    let mut state = state(samples::normal(), SMALL, &[InputEvent::Pause]);
    state.update(|context| {
        context.feed.update(Arc::new(samples::lossy()));
    });
    insta::assert_snapshot!("paused", drawn(&state, SMALL, &COLOUR));
    state.handle(InputEvent::Pause);
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
fn an_accepted_filter() {
    let accepted = |pattern: &str| [typed(pattern), vec![InputEvent::Accept]].concat();
    insta::assert_snapshot!(
        "filtered",
        screen(samples::normal(), SMALL, &accepted("train"))
    );
    insta::assert_snapshot!(
        "filtered_all",
        screen(samples::normal(), SMALL, &accepted("nowhere"))
    );
}

#[test]
fn help() {
    insta::assert_snapshot!(
        "help",
        screen(samples::normal(), SMALL, &[InputEvent::Help])
    );
    insta::assert_snapshot!(
        "help_end",
        screen(
            samples::normal(),
            SMALL,
            &[InputEvent::Help, InputEvent::Move(99)]
        )
    );
}

#[test]
fn the_probes() {
    insta::assert_snapshot!(
        "probes",
        screen(samples::lossy(), SMALL, &[InputEvent::Probes])
    );
}

#[test]
fn missing_data_is_listed_with_the_probes() {
    let text = screen(samples::lacking(), SMALL, &[InputEvent::Probes]).to_string();
    assert!(text.contains("1 MISSING (p)"), "{text}");
    assert!(
        text.contains("missing: the verifier of this kernel"),
        "{text}"
    );
}

#[test]
fn callers_of_a_line() {
    let opened = [InputEvent::Toggle];
    insta::assert_snapshot!("callers", screen(samples::normal(), MEDIUM, &opened));
    insta::assert_snapshot!(
        "callers_all",
        screen(samples::normal(), (120, 30), &[InputEvent::OpenAll])
    );
}

#[test]
fn what_a_line_calls_in_a_library() {
    let opened = [InputEvent::Move(1), InputEvent::Open];
    insta::assert_snapshot!("callees", screen(samples::normal(), MEDIUM, &opened));
}

#[test]
fn source_text() {
    insta::assert_snapshot!(
        "source_beneath",
        screen(samples::normal(), MEDIUM, &[InputEvent::Source])
    );
    insta::assert_snapshot!(
        "source_beside",
        screen(samples::normal(), LARGE, &[InputEvent::Source])
    );
    // A library frame beneath the optimizer's line, without a source file.
    let unread = [
        InputEvent::Source,
        InputEvent::Move(1),
        InputEvent::Open,
        InputEvent::Move(1),
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
    let wanted = [InputEvent::OpenAll, InputEvent::Source];
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

/// Returns inputs that together draw every part of the screen.
fn all_wishes() -> Vec<Vec<InputEvent>> {
    vec![
        vec![],
        vec![InputEvent::OpenAll, InputEvent::Source, InputEvent::Last],
        vec![InputEvent::Help, InputEvent::Move(1000)],
        vec![InputEvent::Probes, InputEvent::Page(5)],
        typed("a("),
    ]
}

#[test]
fn no_size_of_terminal_breaks_the_screen() {
    for snapshot in all_samples() {
        for wishes in all_wishes() {
            let mut state = state(snapshot.clone(), (0, 0), &wishes);
            for size in all_sizes() {
                state.handle(InputEvent::Resize(size.0, size.1));
                state.draw(&mut blank(size), &COLOUR);
            }
        }
    }
}

#[test]
fn a_terminal_that_shrank_unnoticed_does_not_break_the_screen() {
    for snapshot in all_samples() {
        let state = state(snapshot, LARGE, &[InputEvent::Source]);
        for size in [(0, 0), (1, 1), (80, 24), (199, 60), (200, 59)] {
            drawn(&state, size, &COLOUR);
        }
    }
}

#[test]
fn no_order_of_keys_and_snapshots_breaks_the_screen() {
    let samples: Vec<Arc<Snapshot>> = all_samples().into_iter().map(Arc::new).collect();
    let mut dice = Dice::new();
    let mut state = state((*samples[0]).clone(), SMALL, &[]);
    for _ in 0..4000 {
        state.handle(dice.wanted());
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
        let state = state(snapshot, SMALL, &[InputEvent::Open]);
        assert_the_same_without_colour(|theme| drawn(&state, SMALL, theme));
    }
}

#[test]
fn every_text_has_enough_contrast() {
    for snapshot in all_samples() {
        for wanted in [InputEvent::Open, InputEvent::Last] {
            let screen = screen(snapshot.clone(), SMALL, &[wanted]);
            assert_legible(screen.buffer());
        }
    }
}

#[test]
fn the_table_adds_up_to_what_is_allocated() {
    for snapshot in all_samples() {
        let state = state(snapshot, SMALL, &[]);
        let allocated = state
            .context
            .device()
            .map_or(0, |device| i128::from(device.totals.allocated.0));
        assert_eq!(state.table.all_bytes, allocated);
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
    let mut state = state(samples::normal(), SMALL, &[InputEvent::Move(2)]);
    let key = state.selected().unwrap().key.clone();
    state.handle(InputEvent::Reverse);
    assert_eq!(state.selected().unwrap().key, key);
    assert_ne!(state.state.selection.cursor, 2);
}

/// Names of the visible rows.
fn row_keys(state: &Shown<LineList>) -> Vec<LineKey> {
    let rows = state.table.rows.iter();
    rows.map(|row| row.key.clone()).collect()
}

/// A snapshot in which the live bytes of lines have swung: the largest is now the smallest.
fn swung(mut snapshot: Snapshot) -> Snapshot {
    let lines = &mut snapshot.devices[0].lines;
    let mut live: Vec<Bytes> = lines.iter().map(|line| line.live).collect();
    live.sort();
    lines.sort_by_key(|line| std::cmp::Reverse(line.live));
    for (line, live) in lines.iter_mut().zip(live) {
        line.live = live;
    }
    snapshot
}

#[test]
fn rows_stay_in_their_places_when_live_bytes_swing() {
    let mut state = state(samples::normal(), LARGE, &[]);
    let before = row_keys(&state);
    state.update(|context| {
        context.feed.update(Arc::new(swung(samples::normal())));
    });
    assert_eq!(row_keys(&state), before);
    // The order by LIVE would have changed.
    state.handle(InputEvent::SortBy(0));
    assert_ne!(row_keys(&state), before);
}

#[test]
fn a_frozen_order_stays_and_new_rows_go_to_the_end() {
    let mut snapshot = samples::normal();
    let mut later = swung(samples::normal());
    let missing = snapshot.devices[0].lines.pop().unwrap();
    later.devices[0]
        .lines
        .retain(|line| line.site != missing.site);
    later.devices[0].lines.push(missing.clone());
    let mut state = state(
        snapshot,
        LARGE,
        &[InputEvent::SortBy(0), InputEvent::Freeze],
    );
    let frozen = row_keys(&state);
    state.update(|context| {
        context.feed.update(Arc::new(later));
    });
    let after = row_keys(&state);
    assert_eq!(after[..frozen.len()], frozen);
    assert_eq!(after.last(), Some(&LineKey::Site(missing.site)));
    let text = drawn(&state, LARGE, &COLOUR).to_string();
    assert!(text.contains("order frozen (f)"), "{text}");
    state.handle(InputEvent::Freeze);
    assert_ne!(row_keys(&state), after);
}

#[test]
fn growth_is_a_column_and_a_steady_one_is_marked() {
    let mut snapshot = samples::normal();
    let growth = |per_minute, is_steady| {
        Some(GrowthRate {
            per_minute,
            is_steady,
        })
    };
    let device = &mut snapshot.devices[0];
    device.growth = growth(1 << 30, true);
    device.lines[0].growth = growth(0, false);
    device.lines[1].growth = growth(-(5 << 20), false);
    device.lines[2].growth = growth(300 << 20, true);
    let by_growth = [InputEvent::SortBy(5)];
    let text = screen(snapshot.clone(), SMALL, &by_growth).to_string();
    for shown in [
        "grows 1.00 GiB/min",
        "+300 MiB↑",
        "-5.00 MiB",
        "↓GROWTH/min",
    ] {
        assert!(text.contains(shown), "{shown:?}: {text}");
    }
    snapshot.devices[0].iterations_per_minute = Some(100.0);
    let text = screen(snapshot.clone(), SMALL, &by_growth).to_string();
    for shown in [
        "grows 10.2 MiB/it ",
        "+3.00 MiB↑",
        "-51.2 KiB",
        "↓GROWTH/it ",
    ] {
        assert!(text.contains(shown), "{shown:?}: {text}");
    }
    let site = snapshot.devices[0].lines[2].site.clone();
    let state = state(snapshot, SMALL, &by_growth);
    assert_eq!(state.table.rows[0].key, LineKey::Site(site));
}

#[test]
fn memory_from_before_attach_opens_into_kinds_and_owners() {
    let mut state = state(samples::labeled(), SMALL, &[]);
    let at = |state: &Shown<LineList>| {
        let mut rows = state.table.rows.iter();
        rows.position(|row| row.key == LineKey::BeforeAttach)
    };
    let place = at(&state).expect("the row");
    state.handle(InputEvent::Move(
        isize::try_from(place).expect("a small number"),
    ));
    state.handle(InputEvent::OpenAll);
    insta::assert_snapshot!("before_attach_open", drawn(&state, SMALL, &COLOUR));
    let rows = &state.table.rows[place..];
    let live = |row: &&RowOf<LineList>| row.data.figures.live;
    let of = |depth| rows.iter().filter(move |row| row.depth == depth);
    let kinds: i128 = of(1).filter_map(|row| live(&row)).sum();
    assert_eq!(Some(kinds), live(&&rows[0]));
    state.handle(InputEvent::Close);
    assert_eq!(
        state.table.rows.iter().filter(|row| row.depth > 0).count(),
        0
    );
}

#[test]
fn a_reset_is_asked_of_the_caller() {
    let mut state = state(samples::normal(), SMALL, &[]);
    assert_eq!(
        state.handle(InputEvent::ResetPeaks),
        Some(ScreenRequest::Send(Command::ResetPeaks))
    );
    let text = drawn(&state, SMALL, &COLOUR).to_string();
    assert!(text.contains("count from now on"), "{text}");
}

#[test]
fn numbers_that_losses_make_unknown_are_not_shown() {
    let text = screen(samples::lossy(), SMALL, &[]).to_string();
    assert!(text.contains("? live blocks"), "{text}");
    assert!(!text.contains("LEDGER OFF"), "losses explain it: {text}");
    for mut wrong in [samples::lossy(), samples::normal()] {
        // Only what losses do not explain is counted.
        wrong.health.disagreements = 1;
        let text = screen(wrong, SMALL, &[]).to_string();
        assert!(text.contains("LEDGER OFF 1x"), "{text}");
    }
    let mut known = samples::normal();
    known.devices[0].before_attach.unknown = Bytes(0);
    let text = screen(known, SMALL, &[]).to_string();
    assert!(text.contains("553 live blocks"), "{text}");
}

#[test]
fn the_selection_stays_at_the_top_until_it_is_moved() {
    let mut state = state(samples::normal(), SMALL, &[]);
    state.handle(InputEvent::SortBy(3));
    assert_eq!(state.state.selection.cursor, 0);
}

#[test]
fn left_closes_a_branch_and_then_goes_up_to_its_line() {
    let mut state = state(samples::normal(), LARGE, &[InputEvent::Open]);
    let open = state.table.rows.len();
    state.handle(InputEvent::Move(1));
    state.handle(InputEvent::Close);
    assert_eq!(state.state.selection.cursor, 0);
    state.handle(InputEvent::Close);
    assert!(state.table.rows.len() < open);
}

#[test]
fn a_click_on_a_head_sorts_and_a_click_on_a_row_selects_then_opens() {
    let mut state = state(samples::normal(), SMALL, &[]);
    let layout = state.areas();
    state.handle(InputEvent::Click(8, layout.head.y));
    assert_eq!(state.state.query.sort.column, column("LIVE"));
    let rows = state.table.rows.len();
    state.handle(InputEvent::Click(60, layout.rows.y + 1));
    assert_eq!(
        (state.state.selection.cursor, state.table.rows.len()),
        (1, rows)
    );
    state.handle(InputEvent::Click(60, layout.rows.y + 1));
    assert!(state.table.rows.len() > rows);
}

#[test]
fn a_click_on_a_device_shows_it() {
    let mut state = state(samples::several_devices(), SMALL, &[]);
    let y = state.areas().devices.y;
    let text = drawn(&state, SMALL, &COLOUR).to_string();
    let line = text.lines().nth(usize::from(y)).unwrap();
    // The backend's display puts a quotation mark before each line.
    let x = line.find("cuda:2").unwrap() as u16 - 1;
    state.handle(InputEvent::Click(x, y));
    assert_eq!(state.context.device().unwrap().index.0, 2);
}

#[test]
fn grouping_is_asked_of_the_caller() {
    let mut state = state(samples::normal(), SMALL, &[]);
    assert_eq!(
        state.handle(InputEvent::Regroup),
        Some(ScreenRequest::Send(Command::SetGrouping(
            Grouping::Innermost
        )))
    );
    assert_eq!(
        state.handle(InputEvent::Regroup),
        Some(ScreenRequest::Send(Command::SetGrouping(Grouping::User)))
    );
    state.handle(InputEvent::Pause);
    assert_eq!(state.handle(InputEvent::Regroup), None);
}

#[test]
fn escape_closes_step_by_step_and_leaves_last() {
    let wanted = [
        vec![InputEvent::Source],
        typed("train"),
        vec![InputEvent::Accept, InputEvent::Help],
    ]
    .concat();
    let mut state = state(samples::normal(), SMALL, &wanted);
    for _ in 0..3 {
        assert_eq!(state.handle(InputEvent::Back), None);
    }
    assert!(!state.content.source && state.state.query.filter.pattern().is_empty());
    assert_eq!(state.handle(InputEvent::Back), Some(ScreenRequest::Leave));
}

#[test]
fn the_areas_fill_every_screen() {
    for snapshot in [samples::normal(), samples::several_devices()] {
        for wanted in [&[][..], &[InputEvent::Source]] {
            state(snapshot.clone(), SMALL, wanted).assert_filled();
        }
    }
    let small = state(samples::normal(), SMALL, &[]);
    assert!(small.areas().rows.height >= 10);
}

#[test]
fn names_sort_alphabetically_with_other_rows_last() {
    let state = state(samples::normal(), SMALL, &[InputEvent::SortBy(6)]);
    assert_eq!(state.state.query.sort.column, column("LINE"));
    let text = drawn(&state, SMALL, &COLOUR).to_string();
    assert!(text.contains("↑LINE"), "{text}");
}

#[test]
fn a_search_goes_to_matching_rows_and_hides_none() {
    let before = state(samples::normal(), SMALL, &[]);
    let rows = before.table.rows.len();
    let mut events = vec![InputEvent::SearchNext(1)];
    events.extend("step".chars().map(InputEvent::Type));
    events.push(InputEvent::Accept);
    let state = before.with(&events);
    assert_eq!(state.table.rows.len(), rows);
    let row = state.selected().unwrap();
    let name = row.data.name.text(crate::view::table::Precision::Exact);
    assert_eq!(name, "train.py:29 step");
    let cursor = state.state.selection.cursor;
    let again = state.with(&[InputEvent::SearchNext(1), InputEvent::SearchNext(-1)]);
    assert_eq!(again.state.selection.cursor, cursor);
}

#[test]
fn a_search_that_is_given_up_leads_back() {
    let down = [InputEvent::Move(2)];
    let state = state(samples::normal(), SMALL, &down);
    let mut events = vec![InputEvent::Search];
    events.extend("adamw".chars().map(InputEvent::Type));
    events.push(InputEvent::Back);
    assert_eq!(state.with(&events).state.selection.cursor, 2);
}

#[test]
fn the_prompt_of_a_search() {
    let mut events = vec![InputEvent::Search];
    events.extend("model".chars().map(InputEvent::Type));
    let state = state(samples::normal(), SMALL, &events);
    insta::assert_snapshot!(drawn(&state, SMALL, &COLOUR));
}

#[test]
fn long_names_scroll_sideways_and_numbers_stay() {
    let right = [InputEvent::Sideways(1), InputEvent::Sideways(1)];
    let state = state(samples::normal(), SMALL, &right);
    insta::assert_snapshot!(drawn(&state, SMALL, &COLOUR));
    let back = state.with(&[InputEvent::Back]);
    assert_eq!(back.state.sideways, 0);
}

#[test]
fn the_whole_stacks_of_a_row() {
    let state = state(samples::normal(), SMALL, &[InputEvent::Stacks]);
    insta::assert_snapshot!(drawn(&state, SMALL, &COLOUR));
}
