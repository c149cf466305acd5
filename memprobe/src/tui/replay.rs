//! Keys and texts of a replay: the screens of a recording, at a moment that the user moves.

use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::bars::Tab;
use super::table_screen::KeyHint;
use crate::event::TimeNs;
use crate::ledger::snapshot::{ReplayMoment, ReplayUnit, Snapshot, TargetState};
use crate::view::{REPLAY_PLACES, ReplayPlace, clean, count};

/// Steps of a key with Shift.
const MANY: isize = 10;

/// Longest text of a prompt, in characters.
const MAX_TEXT: usize = 40;

/// Movement of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplaySeek {
    To(ReplayPlace),
    /// Steps of the unit, forward or back.
    Step(isize),
    /// Change the unit of steps.
    NextUnit,
    /// Set the mark at the moment shown, or remove it.
    ToggleMark,
}

/// Reaction to a key of a replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ReplayInput {
    Seek(ReplaySeek),
    /// Ask for a place.
    Prompt,
    /// The key has no meaning in a recording.
    Refused(&'static str),
}

/// Returns the moment of a replay; `None` for a live process.
pub(super) fn moment(snapshot: &Snapshot) -> Option<&ReplayMoment> {
    match &snapshot.health.state {
        TargetState::Replay(moment) => Some(moment),
        _ => None,
    }
}

/// Translates a key that moves a replay.
pub(super) fn wanted(event: &Event) -> Option<ReplayInput> {
    let Event::Key(key) = event else { return None };
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let is_control = key
        .modifiers
        .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
    if is_control {
        return None;
    }
    let steps = match key.modifiers.contains(KeyModifiers::SHIFT) {
        true => MANY,
        false => 1,
    };
    let to = |place| ReplayInput::Seek(ReplaySeek::To(place));
    Some(match key.code {
        KeyCode::Left => ReplayInput::Seek(ReplaySeek::Step(-steps)),
        KeyCode::Right => ReplayInput::Seek(ReplaySeek::Step(steps)),
        KeyCode::Home => to(ReplayPlace::Start),
        KeyCode::End => to(ReplayPlace::End),
        KeyCode::Char('P') => to(ReplayPlace::Peak),
        KeyCode::Char('O') => to(ReplayPlace::OutOfMemory),
        KeyCode::Char('u') => ReplayInput::Seek(ReplaySeek::NextUnit),
        KeyCode::Char('b') => ReplayInput::Seek(ReplaySeek::ToggleMark),
        KeyCode::Char(':') => ReplayInput::Prompt,
        KeyCode::Char(' ') => ReplayInput::Refused("a replay stands still until you move it"),
        KeyCode::Char('z') => ReplayInput::Refused(
            "peaks of a replay count from the begin of the recording: b compares two moments",
        ),
        KeyCode::Char('w') => {
            ReplayInput::Refused("this is a recording already: `memprobe export` converts it")
        }
        _ => return None,
    })
}

/// Prompt for a place.
#[derive(Clone, Debug, Default)]
pub(super) struct PlacePrompt(String);

/// State of a prompt after an event.
pub(super) enum PlaceAnswer {
    Typing,
    Cancelled,
    Place(ReplayPlace),
    Wrong(String),
    /// The event is none of the prompt.
    Foreign,
}

impl PlacePrompt {
    pub(super) fn text(&self) -> String {
        format!("go to: {}_   ({REPLAY_PLACES})", clean(&self.0))
    }

    pub(super) fn handle(&mut self, event: &Event) -> PlaceAnswer {
        let Event::Key(KeyEvent {
            code,
            modifiers,
            kind,
            ..
        }) = event
        else {
            return PlaceAnswer::Foreign;
        };
        if *kind == KeyEventKind::Release {
            return PlaceAnswer::Typing;
        }
        match code {
            _ if modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => {
                return PlaceAnswer::Foreign;
            }
            KeyCode::Char(letter) if self.0.len() < MAX_TEXT => self.0.push(*letter),
            KeyCode::Backspace => drop(self.0.pop()),
            KeyCode::Esc => return PlaceAnswer::Cancelled,
            KeyCode::Enter => {
                return match self.0.parse() {
                    Ok(place) => PlaceAnswer::Place(place),
                    Err(error) => PlaceAnswer::Wrong(error),
                };
            }
            _ => {}
        }
        PlaceAnswer::Typing
    }
}

/// Returns the facts of the status line, each with its drop rank.
pub(super) fn facts(moment: &ReplayMoment) -> Vec<(u8, String)> {
    let since = |time: TimeNs| seconds(time.0.saturating_sub(moment.start.0));
    let mut facts = vec![(
        0,
        format!("{} of {}", since(moment.time), since(moment.end)),
    )];
    if moment.all_iterations > 0 {
        let number = moment.iteration.map_or("-".to_owned(), count);
        let all = count(moment.all_iterations);
        facts.push((1, format!("iteration {number} of {all}")));
    }
    if let Some(percent) = moment.percent_read {
        facts.push((1, format!("iterations, categories: {percent} % read")));
    }
    let (events, all) = (count(moment.events), count(moment.all_events));
    let rank = match moment.unit {
        ReplayUnit::Event => 1,
        ReplayUnit::Iteration | ReplayUnit::Second => 3,
    };
    facts.push((rank, format!("event {events} of {all}")));
    if let Some(mark) = &moment.mark {
        facts.push((1, format!("B at {} (b removes it)", since(mark.time))));
    }
    let unit = match moment.unit {
        ReplayUnit::Iteration => "iteration",
        ReplayUnit::Second => "second",
        ReplayUnit::Event => "event",
    };
    facts.push((2, format!("steps by {unit} (u)")));
    facts
}

/// Formats a time since the start with three decimals.
fn seconds(nanoseconds: u64) -> String {
    format!("{:.3} s", Duration::from_nanos(nanoseconds).as_secs_f64())
}

pub(super) const KEYS: [KeyHint; 5] = [
    ("Left Right", "move", 0),
    ("u", "unit", 3),
    ("b", "compare", 2),
    ("P O", "peak, OOM", 4),
    (":", "go to", 3),
];

/// Help on the keys of a replay, which has no tensors to read.
pub(super) fn help() -> String {
    let keys = Tab::keys(|tab| tab != Tab::Tensors);
    format!(
        "\
Left Right  one step back or forward in time; with Shift ten steps
u           size of a step: iteration, second, event
Home End    first and last moment of the recording
P  O        the peak; the next out-of-memory error
:           go to a time, an iteration, an event
b           mark this moment as B: CHANGE is the difference to it; b again
            removes it
mouse       click into the graph, or drag, to go to a moment
Tab or d    next device                      D  previous device
{keys:<11} the other screens; the same key or Esc leads back to lines
Esc         close what is open; back to lines; never quits
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode, modifiers: KeyModifiers) -> Event {
        Event::Key(KeyEvent::new(code, modifiers))
    }

    #[test]
    fn arrows_step_and_shift_takes_ten() {
        let step = |code, modifiers| wanted(&key(code, modifiers));
        let seek = |by| Some(ReplayInput::Seek(ReplaySeek::Step(by)));
        assert_eq!(step(KeyCode::Left, KeyModifiers::NONE), seek(-1));
        assert_eq!(step(KeyCode::Right, KeyModifiers::SHIFT), seek(10));
        assert_eq!(step(KeyCode::Left, KeyModifiers::CONTROL), None);
    }

    #[test]
    fn the_share_that_is_read_stands_in_the_status_line() {
        let mut moment = match crate::tui::samples::replay().health.state {
            TargetState::Replay(moment) => moment,
            other => panic!("{other:?}"),
        };
        let read = |moment: &ReplayMoment| {
            let facts = facts(moment).into_iter();
            facts
                .map(|(_, text)| text)
                .find(|text| text.contains("read"))
        };
        assert_eq!(read(&moment), None);
        moment.percent_read = Some(34);
        let expected = "iterations, categories: 34 % read";
        assert_eq!(read(&moment).as_deref(), Some(expected));
    }

    #[test]
    fn the_keys_of_the_screens_are_not_those_of_a_replay() {
        for letter in Tab::keys(|_| true).chars() {
            let event = key(KeyCode::Char(letter), KeyModifiers::NONE);
            assert_eq!(wanted(&event), None, "{letter}");
        }
    }

    #[test]
    fn a_prompt_takes_a_place_and_names_the_others() {
        let mut prompt = PlacePrompt::default();
        for letter in "iteration 4x".chars() {
            prompt.handle(&key(KeyCode::Char(letter), KeyModifiers::NONE));
        }
        assert!(prompt.text().starts_with("go to: iteration 4x_"));
        let enter = key(KeyCode::Enter, KeyModifiers::NONE);
        let PlaceAnswer::Wrong(error) = prompt.handle(&enter) else {
            panic!("4x is a number");
        };
        assert!(error.contains("12.5s"), "{error}");
        prompt.handle(&key(KeyCode::Backspace, KeyModifiers::NONE));
        let answer = prompt.handle(&enter);
        assert!(matches!(
            answer,
            PlaceAnswer::Place(ReplayPlace::Iteration(4))
        ));
    }
}
