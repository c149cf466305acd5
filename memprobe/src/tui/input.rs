//! Keys and mouse, translated to input events.

use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

use super::bars::Tab;
use super::table_screen::PromptKind;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputEvent {
    Quit,
    Suspend,
    /// Close the topmost overlay, prompt, filter or source view; leave the screen if none is open.
    Back,
    Move(isize),
    Page(isize),
    /// Go to the first row, and stay there as rows change.
    First,
    Last,
    Toggle,
    Open,
    /// Close the selected row, or go to its parent.
    Close,
    OpenAll,
    Filter,
    /// Ask for a pattern to go to, without hiding other rows.
    Search,
    /// Go to the next row that matches the pattern, or to the one before.
    SearchNext(isize),
    /// Scroll long names so many steps to the right.
    Sideways(isize),
    /// Show the whole stacks of the selected row, or hide them.
    Stacks,
    /// Copy the file and line of the selected row.
    CopyPlace,
    /// Open the file and line of the selected row in the user's editor.
    Edit,
    /// Save what is known to a file, or end what is being saved.
    Save,
    /// Sort by the column so many places to the right.
    SortStep(isize),
    /// Sort by the column of this place among those that the table can be sorted by.
    SortBy(usize),
    Reverse,
    /// Keep rows in their places, or let them move again.
    Freeze,
    /// Count peaks and growth from now on.
    ResetPeaks,
    /// Read the process again; reverse the sort order on screens that do not read.
    Refresh,
    /// Show or hide processes that hold no memory.
    Extent,
    Device(isize),
    Pause,
    Regroup,
    /// Show another span of time in the graph.
    GraphWindow,
    /// Begin the vertical axis of the graph elsewhere.
    GraphAxis,
    Source,
    Probes,
    Screen(Tab),
    Iteration(isize),
    Help,
    /// Click on a cell: column, row.
    Click(u16, u16),
    /// New size of the terminal: columns, rows.
    Resize(u16, u16),
    Redraw,
    Type(char),
    Erase,
    EraseWord,
    EraseAll,
    Accept,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// The table, or an overlay on it.
    Table,
    Prompt(PromptKind),
}

/// Translates a terminal event; `None` if it has no meaning here.
pub fn wanted(event: &Event, focus: Focus) -> Option<InputEvent> {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Release => None,
        Event::Key(key) if is_control(key, 'c') => Some(InputEvent::Quit),
        Event::Key(key) if is_control(key, 'l') => Some(InputEvent::Redraw),
        Event::Key(key) if is_control(key, 'z') => Some(InputEvent::Suspend),
        Event::Key(key) => match focus {
            Focus::Table => in_table(key),
            Focus::Prompt(_) => in_prompt(key),
        },
        Event::Mouse(mouse) => with_mouse(mouse),
        Event::Resize(width, height) => Some(InputEvent::Resize(*width, *height)),
        Event::FocusGained | Event::FocusLost | Event::Paste(_) => None,
    }
}

fn is_control(key: &KeyEvent, letter: char) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char(letter)
}

fn in_table(key: &KeyEvent) -> Option<InputEvent> {
    if key
        .modifiers
        .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
    {
        return match key.code {
            KeyCode::Char('d' | 'f') => Some(InputEvent::Page(1)),
            KeyCode::Char('u' | 'b') => Some(InputEvent::Page(-1)),
            KeyCode::Char('n') => Some(InputEvent::Move(1)),
            KeyCode::Char('p') => Some(InputEvent::Move(-1)),
            _ => None,
        };
    }
    if key.modifiers.contains(KeyModifiers::SHIFT) {
        match key.code {
            KeyCode::Left => return Some(InputEvent::Sideways(-1)),
            KeyCode::Right => return Some(InputEvent::Sideways(1)),
            KeyCode::F(3) => return Some(InputEvent::SearchNext(-1)),
            _ => {}
        }
    }
    Some(match key.code {
        KeyCode::Up | KeyCode::Char('k') => InputEvent::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => InputEvent::Move(1),
        KeyCode::PageUp => InputEvent::Page(-1),
        KeyCode::PageDown => InputEvent::Page(1),
        KeyCode::Home | KeyCode::Char('g') => InputEvent::First,
        KeyCode::End | KeyCode::Char('G') => InputEvent::Last,
        KeyCode::Enter => InputEvent::Toggle,
        KeyCode::Right | KeyCode::Char('l' | '+') => InputEvent::Open,
        KeyCode::Left | KeyCode::Char('-') => InputEvent::Close,
        KeyCode::Char('*') => InputEvent::OpenAll,
        KeyCode::Char('/') | KeyCode::F(4) => InputEvent::Filter,
        KeyCode::F(3) => InputEvent::Search,
        KeyCode::Char('n') => InputEvent::SearchNext(1),
        KeyCode::Char('N') => InputEvent::SearchNext(-1),
        KeyCode::Char(')') => InputEvent::Sideways(1),
        KeyCode::Char('(') => InputEvent::Sideways(-1),
        KeyCode::Char('S') => InputEvent::Stacks,
        KeyCode::Char('C') => InputEvent::CopyPlace,
        KeyCode::Char('e') => InputEvent::Edit,
        KeyCode::Char('w') => InputEvent::Save,
        KeyCode::Char('<' | ',') => InputEvent::SortStep(-1),
        KeyCode::Char('>' | '.') | KeyCode::F(6) => InputEvent::SortStep(1),
        KeyCode::Char(digit @ '1'..='9') => InputEvent::SortBy(digit as usize - '1' as usize),
        KeyCode::Char('f') => InputEvent::Freeze,
        KeyCode::Char('z') => InputEvent::ResetPeaks,
        KeyCode::Char('r') => InputEvent::Reverse,
        KeyCode::Char('R') | KeyCode::F(5) => InputEvent::Refresh,
        KeyCode::Char('a') => InputEvent::Extent,
        KeyCode::Tab | KeyCode::Char('d') => InputEvent::Device(1),
        KeyCode::BackTab | KeyCode::Char('D') => InputEvent::Device(-1),
        KeyCode::Char(' ') => InputEvent::Pause,
        KeyCode::Char('i') => InputEvent::Regroup,
        KeyCode::Char('x') => InputEvent::GraphWindow,
        KeyCode::Char('y') => InputEvent::GraphAxis,
        KeyCode::Char('s') => InputEvent::Source,
        KeyCode::Char('p') => InputEvent::Probes,
        KeyCode::Char('[') => InputEvent::Iteration(-1),
        KeyCode::Char(']') => InputEvent::Iteration(1),
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => InputEvent::Help,
        KeyCode::Char('q' | 'Q') | KeyCode::F(10) => InputEvent::Quit,
        KeyCode::Esc => InputEvent::Back,
        KeyCode::Char(letter) => InputEvent::Screen(Tab::of_key(letter)?),
        _ => return None,
    })
}

fn in_prompt(key: &KeyEvent) -> Option<InputEvent> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('u') if control => InputEvent::EraseAll,
        KeyCode::Char('w') if control => InputEvent::EraseWord,
        KeyCode::Char('h') if control => InputEvent::Erase,
        KeyCode::Char(letter) if !control => InputEvent::Type(letter),
        KeyCode::Backspace => InputEvent::Erase,
        KeyCode::Enter => InputEvent::Accept,
        KeyCode::Esc => InputEvent::Back,
        KeyCode::Up => InputEvent::Move(-1),
        KeyCode::Down => InputEvent::Move(1),
        KeyCode::PageUp => InputEvent::Page(-1),
        KeyCode::PageDown => InputEvent::Page(1),
        _ => return None,
    })
}

fn with_mouse(mouse: &MouseEvent) -> Option<InputEvent> {
    match mouse.kind {
        MouseEventKind::Down(MouseButton::Left) => Some(InputEvent::Click(mouse.column, mouse.row)),
        MouseEventKind::ScrollUp => Some(InputEvent::Move(-3)),
        MouseEventKind::ScrollDown => Some(InputEvent::Move(3)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: Focus = Focus::Prompt(PromptKind::Filter);

    fn press(code: KeyCode, modifiers: KeyModifiers, focus: Focus) -> Option<InputEvent> {
        wanted(&Event::Key(KeyEvent::new(code, modifiers)), focus)
    }

    fn plain(letter: char, focus: Focus) -> Option<InputEvent> {
        press(KeyCode::Char(letter), KeyModifiers::NONE, focus)
    }

    #[test]
    fn letters_are_commands_in_the_table_and_text_in_the_prompt() {
        assert_eq!(plain('q', Focus::Table), Some(InputEvent::Quit));
        assert_eq!(plain('q', PROMPT), Some(InputEvent::Type('q')));
        assert_eq!(plain('6', Focus::Table), Some(InputEvent::SortBy(5)));
        assert_eq!(plain('6', PROMPT), Some(InputEvent::Type('6')));
        assert_eq!(plain('0', Focus::Table), None);
        assert_eq!(plain('R', Focus::Table), Some(InputEvent::Refresh));
        assert_eq!(plain('R', PROMPT), Some(InputEvent::Type('R')));
    }

    #[test]
    fn the_letter_of_every_screen_opens_it() {
        for letter in Tab::keys(|tab| tab != Tab::Probes).chars() {
            let tab = Tab::of_key(letter).unwrap();
            assert_eq!(plain(letter, Focus::Table), Some(InputEvent::Screen(tab)));
        }
        assert_eq!(plain('p', Focus::Table), Some(InputEvent::Probes));
    }

    #[test]
    fn control_c_quits_everywhere() {
        for focus in [Focus::Table, PROMPT] {
            let pressed = press(KeyCode::Char('c'), KeyModifiers::CONTROL, focus);
            assert_eq!(pressed, Some(InputEvent::Quit));
        }
    }

    #[test]
    fn control_letters_are_not_typed_into_the_prompt() {
        let pressed = |letter| press(KeyCode::Char(letter), KeyModifiers::CONTROL, PROMPT);
        assert_eq!(pressed('u'), Some(InputEvent::EraseAll));
        assert_eq!(pressed('x'), None);
    }

    #[test]
    fn a_key_that_is_let_go_asks_for_nothing() {
        let mut key = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        key.kind = KeyEventKind::Release;
        assert_eq!(wanted(&Event::Key(key), Focus::Table), None);
    }

    #[test]
    fn the_mouse_clicks_and_turns_its_wheel() {
        let mouse = |kind| {
            let mouse = MouseEvent {
                kind,
                column: 7,
                row: 9,
                modifiers: KeyModifiers::NONE,
            };
            wanted(&Event::Mouse(mouse), Focus::Table)
        };
        let left = MouseEventKind::Down(MouseButton::Left);
        assert_eq!(mouse(left), Some(InputEvent::Click(7, 9)));
        assert_eq!(mouse(MouseEventKind::ScrollDown), Some(InputEvent::Move(3)));
        assert_eq!(mouse(MouseEventKind::Moved), None);
    }
}
