//! Input of the host screen: as on a process's screen, except for the columns.

use crossterm::event::{Event, KeyCode};

use super::super::input::{self, Focus, InputEvent, plain_key};
use super::sort::Column;

/// Input event of the host screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostWanted {
    /// Input shared with a process's screen.
    Common(InputEvent),
    SortBy(Column),
    /// Show or hide processes that hold no memory.
    Extent,
}

/// Sort columns of the digit keys, from 1.
const BY_DIGIT: [Column; 9] = [
    Column::Pid,
    Column::User,
    Column::Rank,
    Column::Allocated,
    Column::Reserved,
    Column::Driver,
    Column::Peak,
    Column::Trend,
    Column::Command,
];

/// Translates a terminal event; `None` if it has no meaning here.
pub fn wanted(event: &Event, focus: Focus) -> Option<HostWanted> {
    if let Some(key) = plain_key(event, focus) {
        match key {
            KeyCode::Char(digit @ '1'..='9') => {
                let column = BY_DIGIT[digit as usize - '1' as usize];
                return Some(HostWanted::SortBy(column));
            }
            KeyCode::Char('a') => return Some(HostWanted::Extent),
            _ => {}
        }
    }
    input::wanted(event, focus).map(HostWanted::Common)
}

#[cfg(test)]
mod tests {
    use crossterm::event::{KeyEvent, KeyModifiers};

    use super::*;

    #[test]
    fn digits_sort_in_the_table_and_are_text_in_the_prompt() {
        let press = |letter, focus| {
            let key = KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE);
            wanted(&Event::Key(key), focus)
        };
        let sort = HostWanted::SortBy(Column::Command);
        assert_eq!(press('9', Focus::Table), Some(sort));
        let typed = HostWanted::Common(InputEvent::Type('9'));
        assert_eq!(press('9', Focus::Prompt), Some(typed));
        assert_eq!(press('a', Focus::Table), Some(HostWanted::Extent));
        let filter = HostWanted::Common(InputEvent::Filter);
        assert_eq!(press('/', Focus::Table), Some(filter));
    }
}
