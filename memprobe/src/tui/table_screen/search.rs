//! Search that moves to matching rows without hiding the others, and sideways scrolling of long names.

use super::super::filter::Filter;
use super::super::input::{Focus, InputEvent};
use super::state::{PromptKind, TableScreen};
use super::{Content, Reaction, RowOf};
use crate::view::table::{Align, Column};
use crate::view::{clean, width};

/// Cells by which one key press scrolls.
const STEP: isize = 8;
/// Cells of the longest name that stay on the screen.
const LEFT_OVER: usize = 8;

/// True for a column of text that is as wide as the screen allows.
pub fn is_scrolled<R>(column: &Column<R>) -> bool {
    let is_long = column
        .screen
        .is_some_and(|screen| screen.is_name || screen.wide == 0);
    is_long && column.align == Align::Left
}

/// Returns the text from a cell on, with a mark in place of what is left of it.
pub fn scrolled(text: &str, by: usize, mark: &str) -> String {
    if by == 0 || text.is_empty() {
        return text.to_owned();
    }
    let mut letters = text.chars();
    let mut left = by + width(mark);
    while left > 0
        && let Some(letter) = letters.next()
    {
        left = left.saturating_sub(width(letter.encode_utf8(&mut [0; 4])).max(1));
    }
    format!("{mark}{}", letters.as_str())
}

impl<C: Content> TableScreen<C> {
    /// Opens the prompt of the search.
    pub(super) fn begin_search(&mut self) {
        let state = &mut self.state;
        (state.overlay, state.focus) = (None, Focus::Prompt(PromptKind::Search));
        state.search = Filter::default();
        state.search_from = state.selection.cursor;
    }

    /// Edits the pattern of the search, and goes to the first match from the row where it began.
    pub(super) fn edit_search(&mut self, event: InputEvent) -> bool {
        let Some(search) = self.state.search.edited(event) else {
            return false;
        };
        self.state.search = search;
        let matches = self.matches();
        let from = self.state.search_from;
        let next = matches.iter().find(|at| **at >= from).or(matches.first());
        self.state.selection.cursor = next.copied().unwrap_or(from);
        self.keep_selected();
        true
    }

    /// Leaves the search where it began.
    pub(super) fn abandon_search(&mut self) {
        self.state.search = Filter::default();
        self.state.selection.cursor = self.state.search_from;
        self.keep_selected();
    }

    /// Goes to the next match after the selected row, or to the one before it; asks for a pattern if there is none.
    pub(super) fn search_next(&mut self, by: isize) -> Reaction {
        if !self.state.search.is_active() {
            self.begin_search();
            return Reaction::Done;
        }
        let matches = self.matches();
        let pattern = clean(self.state.search.pattern());
        let cursor = self.state.selection.cursor;
        let next = match by {
            0.. => matches.iter().find(|at| **at > cursor).or(matches.first()),
            _ => {
                let mut before = matches.iter().rev();
                before.find(|at| **at < cursor).or(matches.last())
            }
        };
        let Some(next) = next.copied() else {
            return Reaction::Note(format!("no row matches {pattern}").into());
        };
        self.state.selection.cursor = next;
        self.keep_selected();
        let number = matches.partition_point(|at| *at < next) + 1;
        Reaction::Note(format!("match {number} of {} for {pattern}", matches.len()).into())
    }

    /// Returns the indices of the rows that match the search.
    pub(super) fn matches(&self) -> Vec<usize> {
        if !self.state.search.is_active() {
            return Vec::new();
        }
        let rows = self.table.rows.iter().enumerate();
        let matching = rows.filter(|(_, row)| self.state.search.shows(&self.shown_text(row)));
        matching.map(|(at, _)| at).collect()
    }

    /// Returns the text of the columns of text, as the screen has room for it or not.
    fn shown_text(&self, row: &RowOf<C>) -> String {
        let columns = self.content.parts().columns.iter();
        let texts = columns.filter(|column| column.screen.is_some() && column.align == Align::Left);
        let texts = texts.map(|column| (column.value)(&row.data).text(column.screen_precision()));
        texts.collect::<Vec<_>>().join(" ")
    }

    /// Scrolls long names sideways, until the last cells of the longest one.
    pub(super) fn scroll_sideways(&mut self, by: isize) {
        let columns = self.content.parts().columns;
        let scrolls = columns.iter().filter(|column| is_scrolled(column));
        let scrolls: Vec<_> = scrolls.collect();
        let longest = self.table.rows.iter().flat_map(|row| {
            let texts = scrolls
                .iter()
                .map(|column| (column.value)(&row.data).text(column.screen_precision()));
            let aside = self.content.aside(row).map_or(0, |text| width(&text) + 2);
            texts.map(move |text| width(&text) + aside)
        });
        let most = longest.max().unwrap_or(0).saturating_sub(LEFT_OVER);
        let scrolled = self
            .state
            .sideways
            .saturating_add_signed(by.saturating_mul(STEP));
        self.state.sideways = scrolled.min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrolled_text_begins_with_a_mark() {
        assert_eq!(scrolled("encoder.layers", 0, "…"), "encoder.layers");
        assert_eq!(scrolled("encoder.layers", 7, "…"), "…layers");
        assert_eq!(scrolled("encoder.layers", 90, "…"), "…");
        assert_eq!(scrolled("", 3, "…"), "");
        assert_eq!(scrolled("模型.weight", 1, "…"), "…型.weight");
    }
}
