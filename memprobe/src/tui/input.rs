//! Keys and mouse, translated to input events.

use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

use super::sort::Column;

/// Input event of a screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// Quit memprobe.
    Quit,
    /// Suspend memprobe (Ctrl-Z).
    Suspend,
    /// Close the topmost overlay, prompt, filter or source view; leave the screen if none is open.
    Back,
    /// Move the selection by rows.
    Move(isize),
    /// Move the selection by pages.
    Page(isize),
    /// Go to the first row, and stay there as rows change.
    First,
    Last,
    /// Open or close the selected row.
    Toggle,
    Open,
    /// Close the selected row, or go to its parent.
    Close,
    /// Open everything beneath the selected line.
    OpenAll,
    /// Open the filter prompt.
    Filter,
    /// Sort by the column so many places to the right.
    SortStep(isize),
    SortBy(Column),
    /// Reverse the sort order.
    Reverse,
    /// Select the device so many places further.
    Device(isize),
    /// Pause or resume.
    Pause,
    /// Change the grouping.
    Regroup,
    /// Show or hide the source text.
    Source,
    /// Show or hide the probes.
    Probes,
    /// Show or hide CUDA memory outside the caching allocator.
    Outside,
    /// Open the screen of tensors, or return from it.
    Tensors,
    /// Open the screen of modules, or return from it.
    Modules,
    /// Open the screen of categories, or return from it.
    Categories,
    /// Open the screen of layers, or return from it.
    Layers,
    /// Go to the iteration so many later.
    Iteration(isize),
    /// Show or hide help.
    Help,
    /// Click on a cell: column, row.
    Click(u16, u16),
    /// New size of the terminal: columns, rows.
    Resize(u16, u16),
    /// Redraw the whole screen.
    Redraw,
    /// Character typed into the prompt.
    Type(char),
    /// Delete the last character of the prompt.
    Erase,
    /// Delete the last word of the prompt.
    EraseWord,
    /// Clear the prompt.
    EraseAll,
    /// Accept the prompt's pattern.
    Accept,
}

/// Receiver of key events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// The table, or an overlay on it.
    Table,
    /// The prompt.
    Prompt,
}

/// Translates a terminal event; `None` if it has no meaning here.
pub fn wanted(event: &Event, focus: Focus) -> Option<Wanted> {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Release => None,
        Event::Key(key) if is_control(key, 'c') => Some(Wanted::Quit),
        Event::Key(key) if is_control(key, 'l') => Some(Wanted::Redraw),
        Event::Key(key) if is_control(key, 'z') => Some(Wanted::Suspend),
        Event::Key(key) => match focus {
            Focus::Table => in_table(key),
            Focus::Prompt => in_prompt(key),
        },
        Event::Mouse(mouse) => with_mouse(mouse),
        Event::Resize(width, height) => Some(Wanted::Resize(*width, *height)),
        Event::FocusGained | Event::FocusLost | Event::Paste(_) => None,
    }
}

/// Returns a key pressed in the table without Ctrl or Alt.
pub(super) fn plain_key(event: &Event, focus: Focus) -> Option<KeyCode> {
    let Event::Key(key) = event else { return None };
    let held = KeyModifiers::CONTROL | KeyModifiers::ALT;
    let is_plain = key.kind != KeyEventKind::Release && !key.modifiers.intersects(held);
    (is_plain && focus == Focus::Table).then_some(key.code)
}

fn is_control(key: &KeyEvent, letter: char) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char(letter)
}

fn in_table(key: &KeyEvent) -> Option<Wanted> {
    if key
        .modifiers
        .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
    {
        return match key.code {
            KeyCode::Char('d' | 'f') => Some(Wanted::Page(1)),
            KeyCode::Char('u' | 'b') => Some(Wanted::Page(-1)),
            KeyCode::Char('n') => Some(Wanted::Move(1)),
            KeyCode::Char('p') => Some(Wanted::Move(-1)),
            _ => None,
        };
    }
    Some(match key.code {
        KeyCode::Up | KeyCode::Char('k') => Wanted::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Wanted::Move(1),
        KeyCode::PageUp => Wanted::Page(-1),
        KeyCode::PageDown => Wanted::Page(1),
        KeyCode::Home | KeyCode::Char('g') => Wanted::First,
        KeyCode::End | KeyCode::Char('G') => Wanted::Last,
        KeyCode::Enter => Wanted::Toggle,
        KeyCode::Right | KeyCode::Char('l' | '+') => Wanted::Open,
        KeyCode::Left | KeyCode::Char('-') => Wanted::Close,
        KeyCode::Char('*') => Wanted::OpenAll,
        KeyCode::Char('/') => Wanted::Filter,
        KeyCode::Char('<' | ',') => Wanted::SortStep(-1),
        KeyCode::Char('>' | '.') | KeyCode::F(6) => Wanted::SortStep(1),
        KeyCode::Char(digit @ '1'..='6') => {
            Wanted::SortBy(Column::ALL[digit as usize - '1' as usize])
        }
        KeyCode::Char('r' | 'R') => Wanted::Reverse,
        KeyCode::Tab | KeyCode::Char('d') => Wanted::Device(1),
        KeyCode::BackTab | KeyCode::Char('D') => Wanted::Device(-1),
        KeyCode::Char(' ') => Wanted::Pause,
        KeyCode::Char('i') => Wanted::Regroup,
        KeyCode::Char('s') => Wanted::Source,
        KeyCode::Char('p') => Wanted::Probes,
        KeyCode::Char('o') => Wanted::Outside,
        KeyCode::Char('t') => Wanted::Tensors,
        KeyCode::Char('m') => Wanted::Modules,
        KeyCode::Char('c') => Wanted::Categories,
        KeyCode::Char('L') => Wanted::Layers,
        KeyCode::Char('[') => Wanted::Iteration(-1),
        KeyCode::Char(']') => Wanted::Iteration(1),
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => Wanted::Help,
        KeyCode::Char('q' | 'Q') | KeyCode::F(10) => Wanted::Quit,
        KeyCode::Esc => Wanted::Back,
        _ => return None,
    })
}

fn in_prompt(key: &KeyEvent) -> Option<Wanted> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('u') if control => Wanted::EraseAll,
        KeyCode::Char('w') if control => Wanted::EraseWord,
        KeyCode::Char('h') if control => Wanted::Erase,
        KeyCode::Char(letter) if !control => Wanted::Type(letter),
        KeyCode::Backspace => Wanted::Erase,
        KeyCode::Enter => Wanted::Accept,
        KeyCode::Esc => Wanted::Back,
        KeyCode::Up => Wanted::Move(-1),
        KeyCode::Down => Wanted::Move(1),
        KeyCode::PageUp => Wanted::Page(-1),
        KeyCode::PageDown => Wanted::Page(1),
        _ => return None,
    })
}

fn with_mouse(mouse: &MouseEvent) -> Option<Wanted> {
    match mouse.kind {
        MouseEventKind::Down(MouseButton::Left) => Some(Wanted::Click(mouse.column, mouse.row)),
        MouseEventKind::ScrollUp => Some(Wanted::Move(-3)),
        MouseEventKind::ScrollDown => Some(Wanted::Move(3)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(code: KeyCode, modifiers: KeyModifiers, focus: Focus) -> Option<Wanted> {
        wanted(&Event::Key(KeyEvent::new(code, modifiers)), focus)
    }

    fn plain(letter: char, focus: Focus) -> Option<Wanted> {
        press(KeyCode::Char(letter), KeyModifiers::NONE, focus)
    }

    #[test]
    fn letters_are_commands_in_the_table_and_text_in_the_prompt() {
        assert_eq!(plain('q', Focus::Table), Some(Wanted::Quit));
        assert_eq!(plain('q', Focus::Prompt), Some(Wanted::Type('q')));
        assert_eq!(plain('6', Focus::Table), Some(Wanted::SortBy(Column::Line)));
        assert_eq!(plain('7', Focus::Table), None);
    }

    #[test]
    fn control_c_quits_everywhere() {
        for focus in [Focus::Table, Focus::Prompt] {
            let pressed = press(KeyCode::Char('c'), KeyModifiers::CONTROL, focus);
            assert_eq!(pressed, Some(Wanted::Quit));
        }
    }

    #[test]
    fn control_letters_are_not_typed_into_the_prompt() {
        let pressed = |letter| press(KeyCode::Char(letter), KeyModifiers::CONTROL, Focus::Prompt);
        assert_eq!(pressed('u'), Some(Wanted::EraseAll));
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
        assert_eq!(mouse(left), Some(Wanted::Click(7, 9)));
        assert_eq!(mouse(MouseEventKind::ScrollDown), Some(Wanted::Move(3)));
        assert_eq!(mouse(MouseEventKind::Moved), None);
    }
}
