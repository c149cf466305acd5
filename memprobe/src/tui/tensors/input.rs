//! Input of the screen of tensors: as on the screen of lines, plus a key to read again.

use crossterm::event::{Event, KeyCode};

use super::super::input::{self, Focus, InputEvent, plain_key};

/// Input event of the screen of tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorWanted {
    /// Input shared with the screen of lines.
    Common(InputEvent),
    /// Read the process again.
    Refresh,
}

/// Translates a terminal event; `None` if it has no meaning here.
pub fn wanted(event: &Event, focus: Focus) -> Option<TensorWanted> {
    let key = plain_key(event, focus);
    if matches!(key, Some(KeyCode::Char('R') | KeyCode::F(5))) {
        return Some(TensorWanted::Refresh);
    }
    input::wanted(event, focus).map(TensorWanted::Common)
}

#[cfg(test)]
mod tests {
    use crossterm::event::{KeyEvent, KeyModifiers};

    use super::*;

    #[test]
    fn a_capital_r_reads_again_and_a_small_one_turns_the_order() {
        let press = |letter, focus| {
            let key = KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE);
            wanted(&Event::Key(key), focus)
        };
        assert_eq!(press('R', Focus::Table), Some(TensorWanted::Refresh));
        let reverse = TensorWanted::Common(InputEvent::Reverse);
        assert_eq!(press('r', Focus::Table), Some(reverse));
        let typed = TensorWanted::Common(InputEvent::Type('R'));
        assert_eq!(press('R', Focus::Prompt), Some(typed));
    }
}
