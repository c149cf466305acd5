//! The whole stacks of a row, for the pane over the table.

use ratatui::text::Line;

use super::super::table_screen::RowOf;
use super::super::theme::Theme;
use super::rows::{LineKey, LineSubject};
use super::{LineList, LineTable};
use crate::event::Frame;
use crate::event::bytes::human;
use crate::ledger::snapshot::{LineRow, StackRow};
use crate::view::{counted, fit, named_stack, whole_frame, width};

/// Most stacks in the pane, those with most live bytes first.
const MAX_STACKS: usize = 50;
/// Columns of a line in the pane.
const COLUMNS: usize = 74;

/// Returns the stacks that a row stands for, innermost frame first, each frame with its source text.
pub fn lines(list: &LineList, row: &RowOf<LineList>, theme: &Theme) -> Vec<Line<'static>> {
    let line = list
        .shown
        .as_ref()
        .and_then(|shown| line_of(shown, &row.key));
    let Some(line) = line else {
        let text = match &row.data.subject {
            LineSubject::BeforeAttach(_)
            | LineSubject::BaselineKind(_)
            | LineSubject::BaselineOwner(..) => " No stack is known: allocated before attach.",
            _ => " No stack is known of this row.",
        };
        return vec![Line::from(text)];
    };
    let stacks: Vec<&StackRow> = line
        .stacks
        .iter()
        .filter(|stack| passes(stack, &row.key))
        .collect();
    let mut lines = Vec::new();
    for (number, stack) in stacks.iter().take(MAX_STACKS).enumerate() {
        if number > 0 {
            lines.push(Line::default());
        }
        let (live, blocks) = (human(stack.live), counted(stack.live_blocks, "block"));
        let head = format!(
            " stack {} of {}: {live} in {blocks}",
            number + 1,
            stacks.len()
        );
        lines.push(Line::styled(head, theme.strong()));
        push_frames(&mut lines, list, stack, theme);
    }
    let more = stacks.len().saturating_sub(MAX_STACKS);
    if more > 0 {
        let text = format!(" {more} more, with fewer bytes");
        lines.push(Line::styled(text, theme.faint()));
    }
    if stacks.is_empty() {
        lines.push(Line::from(" No stack is kept of this row."));
    }
    lines
}

fn push_frames(lines: &mut Vec<Line<'static>>, list: &LineList, row: &StackRow, theme: &Theme) {
    let stack = &row.stack;
    for frame in &stack.frames {
        let place = folded(&whole_frame(frame), COLUMNS - 4).into_iter();
        lines.extend(place.map(|text| Line::from(format!("   {text}"))));
        if let Some(source) = list.source_of(frame) {
            let source = fit(&source, COLUMNS - 8, theme.glyphs.cut);
            lines.push(Line::styled(format!("       {source}"), theme.faint()));
        }
    }
    if stack.truncated {
        lines.push(Line::styled(
            "   (more frames, not recorded)",
            theme.faint(),
        ));
    }
    if stack.frames.is_empty() {
        let text = named_stack(stack, 0, whole_frame);
        lines.push(Line::from(format!("   {text}")));
    }
}

/// Folds a text that is wider than the pane, within words too: a path has no spaces.
fn folded(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for letter in text.chars() {
        let letter = letter.encode_utf8(&mut [0; 4]).to_owned();
        match lines.last_mut() {
            Some(line) if width(line) + width(&letter) <= columns => line.push_str(&letter),
            _ => lines.push(format!("  {letter}")),
        }
    }
    lines
}

fn line_of<'a>(shown: &'a LineTable, key: &LineKey) -> Option<&'a LineRow> {
    let (LineKey::Site(site) | LineKey::Branch(site, ..) | LineKey::Frame(site, ..)) = key else {
        return None;
    };
    let lines = &shown.snapshot.devices.get(shown.device)?.lines;
    lines.iter().find(|line| line.site == *site)
}

/// True if a stack has all frames from the line to the row.
fn passes(stack: &StackRow, key: &LineKey) -> bool {
    let frames: &[Frame] = match key {
        LineKey::Branch(_, _, frames, _) | LineKey::Frame(_, _, frames, _) => frames,
        LineKey::Site(_)
        | LineKey::BeforeAttach
        | LineKey::BaselineKind(_)
        | LineKey::BaselineOwner(..)
        | LineKey::Unaccounted => &[],
    };
    let has = |frame: &Frame| stack.stack.frames.contains(frame);
    frames.iter().all(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_folded_and_nothing_of_it_is_lost() {
        let path = "/opt/venv/lib/python3.13/site-packages/torch/optim/adam.py:550 step";
        let lines = folded(path, 30);
        assert!(lines.iter().all(|line| width(line) <= 30), "{lines:?}");
        let parts = lines
            .iter()
            .map(|line| line.strip_prefix("  ").unwrap_or(line));
        let joined: String = parts.collect();
        assert_eq!(joined, path);
        assert_eq!(folded("train.py:1 main", 30), ["train.py:1 main"]);
    }
}
