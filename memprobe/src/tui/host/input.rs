//! Keys and the mouse on the screen of the host: as on that of one process, but for the columns.

use crossterm::event::{Event, KeyCode};

use super::super::input::{self, Focus, Wanted, plain_key};
use super::sort::Column;

/// What a person asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostWanted {
    /// As on the screen of one process.
    Common(Wanted),
    /// Sort by a column.
    SortBy(Column),
    /// Show processes that hold nothing, or hide them.
    Extent,
}

/// The columns that digits sort by, from 1.
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

/// What an event of the terminal asks for, if anything.
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
        let typed = HostWanted::Common(Wanted::Type('9'));
        assert_eq!(press('9', Focus::Prompt), Some(typed));
        assert_eq!(press('a', Focus::Table), Some(HostWanted::Extent));
        let filter = HostWanted::Common(Wanted::Filter);
        assert_eq!(press('/', Focus::Table), Some(filter));
    }
}
