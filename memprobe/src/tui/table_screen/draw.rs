//! Drawing of a table screen.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::text::Line;

use super::super::bars::{
    Prompt, Tab, draw_device_tabs, draw_key_list, draw_prompt, draw_tabs, draw_title,
};
use super::super::input::Focus;
use super::super::overlay::{draw_box, draw_too_small, draw_words, entry};
use super::super::theme::Theme;
use super::columns::{ColumnPosition, amount, cell_text, places, tone_style};
use super::layout::cut_at;
use super::search::{is_scrolled, scrolled};
use super::state::{OverlayKind, PromptKind};
use super::{Content, Fold, KeyHint, RowOf, ScreenContext, ScreenLayout, TableScreen};
use crate::view::table::{Align, Column, Cut, SortOrder};
use crate::view::{clean, counted, fit, fit_end, fit_middle, percent, width};

const MARK: u16 = 2;
/// Deepest level that is indented, to keep names on the screen.
const DEEPEST_INDENT: usize = 8;
/// Minimum cells of the text beside a name.
const MIN_ASIDE: usize = 14;
/// Minimum width of names and the text beside them; a narrower table has names alone.
const MIN_NAME_AND_ASIDE: usize = 44;

const HELP: &str = "\
/ or F4     filter by regular expression     Esc  clear it
n N         search without filtering: next, previous; F3 another pattern
Shift+arrow scroll names sideways; so do ( and )
C           copy file:line    e  open it in $EDITOR, as you and not as root
< > or F6   sort by another column; 1 to 9, or a click on its head
r           reverse the order
f           freeze the order: rows stay where they are; f lets them move
Shift+mouse select text, as the terminal does without memprobe
";

/// Draws a text in the first line of an area, cut to its width.
pub fn draw_text(buffer: &mut Buffer, area: Rect, text: &str, style: Style, theme: &Theme) {
    if !area.is_empty() {
        let available = usize::from(area.width);
        let text = fit(text, available, theme.glyphs.cut);
        buffer.set_stringn(area.x, area.y, text, available, style);
    }
}

/// Shortens texts in the middle, and differently where two that differ would look equal.
fn fit_apart(texts: &[String], wide: usize, cut: &str) -> Vec<String> {
    let shortened = texts.iter().map(|text| fit_middle(text, wide, cut));
    let mut shortened: Vec<String> = shortened.collect();
    for shorten in [fit, fit_end] {
        let looks_equal = |at: &usize| {
            let mut others = shortened.iter().zip(texts);
            others.any(|(short, text)| *short == shortened[*at] && *text != texts[*at])
        };
        let equal: Vec<usize> = (0..texts.len()).filter(looks_equal).collect();
        for at in equal {
            shortened[at] = shorten(&texts[at], wide, cut);
        }
    }
    shortened
}

/// Returns the text of a cell, shortened to a width.
fn fitted<R>(column: &Column<R>, row: &R, wide: usize, theme: &Theme) -> String {
    let text = cell_text(&(column.value)(row), column.screen_precision(), wide, theme);
    match column.cut {
        Cut::End => fit(&text, wide, theme.glyphs.cut),
        Cut::Middle => fit_middle(&text, wide, theme.glyphs.cut),
    }
}

/// Returns the text of a cell in whole.
fn whole<R>(column: &Column<R>, row: &R, theme: &Theme) -> String {
    cell_text(&(column.value)(row), column.screen_precision(), 0, theme)
}

fn draw_cell<R>(buffer: &mut Buffer, area: Rect, column: &Column<R>, text: &str, style: Style) {
    let wide = usize::from(area.width);
    let before = match column.align {
        Align::Left | Align::Trail => 0,
        Align::Right => wide.saturating_sub(width(text)) as u16,
    };
    buffer.set_stringn(area.x + before, area.y, text, wide, style);
}

fn indent(depth: usize) -> u16 {
    2 * depth.min(DEEPEST_INDENT) as u16
}

impl<C: Content> TableScreen<C> {
    pub(super) fn draw_screen(
        &self,
        buffer: &mut Buffer,
        context: &C::Context,
        theme: &Theme,
    ) -> Option<Position> {
        let area = buffer.area;
        let Some(layout) = self.layout(context).filter(|layout| layout.is_within(area)) else {
            draw_too_small(buffer, &context.number());
            return None;
        };
        let title = context.title(self.content.parts().tab);
        draw_title(buffer, layout.header, &title, theme);
        if let Some(tab) = self.content.parts().tab {
            let tab = match self.state.overlay {
                Some(shown) if shown.kind == OverlayKind::Probes => Tab::Probes,
                _ => tab,
            };
            draw_tabs(buffer, layout.tabs, tab, theme);
        }
        let devices = self.content.devices(context);
        draw_device_tabs(buffer, layout.devices, &devices, theme);
        if self.table.all > 0 || self.content.total(context).is_some() {
            self.draw_head(buffer, layout.head, theme);
        }
        self.draw_rows(buffer, layout.rows, theme);
        self.draw_sum(buffer, layout.sum, context, theme);
        if let Some([first, second]) = C::nothing(self, context) {
            let rows = layout.rows.height.min(self.table.rows.len() as u16);
            let (_, free) = cut_at(layout.rows, rows);
            draw_words(buffer, free, &first, &second, theme);
        }
        let account = self.content.account(context).unwrap_or_default();
        draw_text(buffer, layout.totals, &account, theme.allocated(), theme);
        C::draw_around(self, buffer, &layout, context, theme);
        self.draw_detail(buffer, layout.detail, theme);
        let mut status = self.content.status(context, theme);
        status.text = self.state.note.as_deref().map(clean).or(status.text);
        status.draw(buffer, layout.status, theme);
        let cursor = self.draw_keys(buffer, &layout, context, theme);
        self.draw_overlay(buffer, layout.body(), context, theme);
        cursor
    }

    fn draw_head(&self, buffer: &mut Buffer, area: Rect, theme: &Theme) {
        if area.is_empty() {
            return;
        }
        buffer.set_style(area, theme.bar());
        let mut end = area.x;
        for place in places(&self.content, area.width) {
            let (column, on) = (&self.content.parts().columns[place.column], place.on);
            let sort = self.state.query.sort;
            let head = self.content.head(column);
            let (arrow, style) = match sort.order {
                _ if sort.column != place.column || head.is_empty() => ("", theme.bar()),
                SortOrder::Falling => (theme.glyphs.falling, theme.bar_strong()),
                SortOrder::Climbing => (theme.glyphs.climbing, theme.bar_strong()),
            };
            let (start, right) = (area.x + place.start, area.x + place.start + place.wide);
            let (least, is_right) = match column.align {
                // An arrow may extend into the gap before a column.
                Align::Right => (start.saturating_sub(1), true),
                _ if on.is_name => (start + MARK, false),
                _ => (start, false),
            };
            let least = least.max(end).min(right);
            let available = usize::from(right - least);
            let text = fit(&format!("{arrow}{head}"), available, theme.glyphs.cut);
            let start = if is_right {
                right - width(&text) as u16
            } else {
                least
            };
            buffer.set_stringn(start, area.y, &text, available, style);
            end = start + width(&text) as u16;
        }
        let hint = match self.state.query.frozen {
            Some(_) => Some("order frozen (f) ".to_owned()),
            None => self.content.hint(),
        };
        let hint = hint.unwrap_or_default();
        let start = area.right().saturating_sub(width(&hint) as u16);
        if start > end + 3 {
            buffer.set_string(start, area.y, hint, theme.bar());
        }
    }

    fn draw_rows(&self, buffer: &mut Buffer, area: Rect, theme: &Theme) {
        let selection = &self.state.selection;
        let places = places(&self.content, area.width);
        let rows = self.table.rows.iter().enumerate();
        let rows: Vec<_> = rows
            .skip(selection.offset)
            .take(usize::from(area.height))
            .collect();
        let name = places.iter().find(|place| place.on.is_name);
        let asides = name.map(|name| self.asides(&rows, *name, theme));
        let (mut asides, start) = asides.unwrap_or_default();
        let sideways = self.state.sideways;
        // A scrolled name takes the text beside it along.
        let after_name = if sideways > 0 {
            std::mem::take(&mut asides)
        } else {
            Vec::new()
        };
        let apart: Vec<_> = places
            .iter()
            .map(|place| self.texts_apart(&rows, *place, theme))
            .collect();
        let mut shown = 0..;
        for (((at, row), aside), y) in rows
            .iter()
            .zip(asides.iter().chain(std::iter::repeat(&None)))
            .zip(area.y..)
        {
            let line = Rect::new(area.x, y, area.width, 1);
            let at_screen = shown.next().unwrap_or_default();
            let is_selected = *at == selection.cursor;
            if is_selected {
                buffer.set_style(line, theme.selected());
                buffer.set_string(line.x, y, theme.glyphs.cursor, theme.strong());
            }
            // Within the selected row all text has its colours, so that it is legible.
            let own = |style: Style| if is_selected { Style::new() } else { style };
            let mark = self.content.mark(row, theme);
            let row_style = mark.as_ref().map_or(Style::new(), |mark| mark.style);
            if let Some(mark) = &mark {
                buffer.set_string(line.x + 1, y, &mark.content, own(mark.style));
            }
            for (place, apart) in places.iter().zip(&apart) {
                let (column, on) = (&self.content.parts().columns[place.column], place.on);
                let mut area = Rect::new(line.x + place.start, y, place.wide, 1);
                if on.is_name {
                    area = self.draw_before_name(buffer, area, row, theme);
                    if let Some(text) = aside {
                        let start = (line.x + start).max(area.x);
                        let wide = area.right().saturating_sub(start);
                        let aside = Rect::new(start, y, wide, 1);
                        draw_text(buffer, aside, text, own(theme.faint()), theme);
                        area.width = (start - area.x).saturating_sub(1);
                    }
                }
                let style = own(row_style.patch(tone_style(on.tone, theme)));
                // A continuation has a name alone.
                if row.fold != Fold::Part || on.is_name {
                    let wide = usize::from(area.width);
                    let text = match apart {
                        _ if sideways > 0 && is_scrolled(column) => {
                            let mut text = whole(column, &row.data, theme);
                            let aside = after_name.get(at_screen).filter(|_| on.is_name);
                            if let Some(Some(aside)) = aside {
                                text = format!("{text}  {aside}");
                            }
                            let text = scrolled(&text, sideways, theme.glyphs.cut);
                            fit(&text, wide, theme.glyphs.cut)
                        }
                        Some(texts) => texts[at_screen].clone(),
                        None => fitted(column, &row.data, wide, theme),
                    };
                    draw_cell(buffer, area, column, &text, style);
                }
            }
        }
    }

    /// Returns the texts of a column of names of equal width, so that different ones look different.
    fn texts_apart(
        &self,
        rows: &[(usize, &RowOf<C>)],
        place: ColumnPosition,
        theme: &Theme,
    ) -> Option<Vec<String>> {
        let column = &self.content.parts().columns[place.column];
        if place.on.is_name || column.cut != Cut::Middle {
            return None;
        }
        let wide = usize::from(place.wide);
        let text = |(_, row): &(usize, &RowOf<C>)| {
            let cell = (column.value)(&row.data);
            cell_text(&cell, column.screen_precision(), wide, theme)
        };
        let texts: Vec<String> = rows.iter().map(text).collect();
        Some(fit_apart(&texts, wide, theme.glyphs.cut))
    }

    /// Draws indentation, fold mark and letter. Returns the rest of the area.
    fn draw_before_name(
        &self,
        buffer: &mut Buffer,
        area: Rect,
        row: &RowOf<C>,
        theme: &Theme,
    ) -> Rect {
        let mark = match row.fold {
            Fold::Leaf | Fold::Part => " ",
            Fold::Closed => theme.glyphs.closed,
            Fold::Open => theme.glyphs.open,
        };
        let mut start = area.x + indent(row.depth).min(area.width);
        let mut left = area.right() - start;
        buffer.set_stringn(start, area.y, mark, usize::from(left), theme.strong());
        let mut skip = |cells: u16| {
            start += cells.min(left);
            left = area.right() - start;
            (start, left)
        };
        let (start, left) = match (skip(MARK), self.content.badge(row, theme)) {
            (at, None) => at,
            ((start, left), Some(badge)) => {
                buffer.set_span(start, area.y, &badge, left);
                skip(MARK)
            }
        };
        Rect::new(start, area.y, left, area.height)
    }
}

/// Texts beside the names of visible rows, and the cell where they start.
type Asides = (Vec<Option<String>>, u16);

impl<C: Content> TableScreen<C> {
    /// Returns the texts beside names: they start after the longest visible name, if space remains.
    fn asides(&self, rows: &[(usize, &RowOf<C>)], name: ColumnPosition, theme: &Theme) -> Asides {
        let available = usize::from(name.wide);
        if available < MIN_NAME_AND_ASIDE {
            return Asides::default();
        }
        let texts: Vec<_> = rows
            .iter()
            .map(|(_, row)| self.content.aside(row))
            .collect();
        let column = &self.content.parts().columns[name.column];
        let named = |(_, row): &(usize, &RowOf<C>)| {
            let cell = (column.value)(&row.data);
            let text = cell_text(&cell, column.screen_precision(), available, theme);
            usize::from(indent(row.depth) + MARK) + width(&text)
        };
        let with_text = rows.iter().zip(&texts).filter(|(_, text)| text.is_some());
        let longest = with_text.map(|(row, _)| named(row)).max().unwrap_or(0);
        let names = longest.min(available * 2 / 3);
        if available < names + 2 + MIN_ASIDE {
            return Asides::default();
        }
        (texts, name.start + names as u16 + 2)
    }

    pub(super) fn is_fold_mark(&self, row: usize, x: u16, width: u16) -> bool {
        let Some(row) = self.table.rows.get(row) else {
            return false;
        };
        let places = places(&self.content, width);
        let name = places.iter().find(|place| place.on.is_name);
        let marks = name.map(|name| name.start + indent(row.depth));
        matches!(row.fold, Fold::Open | Fold::Closed)
            && marks.is_some_and(|start| (start..start + MARK).contains(&x))
    }

    /// Draws the sum of the table, its difference to the total, and the place of the selected row.
    fn draw_sum(&self, buffer: &mut Buffer, area: Rect, context: &C::Context, theme: &Theme) {
        let table = &self.table;
        let (filter, dot) = (&self.state.query.filter, theme.glyphs.dot);
        let rows = counted(table.all as u64, "row");
        let own = self.content.sum(table, filter.is_active());
        let total = self.content.total(context);
        let all = amount(table.all_bytes);
        let (text, style) = match (own, total) {
            (None, None) => return,
            (own, _) if filter.is_active() => {
                let shown = own.unwrap_or_else(|| {
                    let share = percent(table.shown_bytes, table.all_bytes);
                    let shown = amount(table.shown_bytes);
                    format!(
                        "shown {shown} of {all} ({share}) {dot} {} of {rows}",
                        table.shown
                    )
                });
                let pattern = clean(filter.pattern());
                let text = format!("{shown} {dot} filter /{pattern}/ (Esc: all)");
                (text, theme.strong())
            }
            (Some(own), _) => (own, theme.faint()),
            (None, Some((total, name))) if total == table.all_bytes => {
                (format!("sum {all} = {name} {dot} {rows}"), theme.faint())
            }
            (None, Some((total, _))) => {
                let off = amount(total - table.all_bytes);
                let text = format!("sum {all} is not what is allocated: {off} off");
                (text, theme.bad())
            }
        };
        let text = format!("  {text}");
        draw_text(buffer, area, &text, style, theme);
        let rows = table.rows.len();
        let visible = self.layout(context).map_or(0, |layout| layout.rows.height);
        let below = rows.saturating_sub(self.state.selection.offset + usize::from(visible));
        let mut place = format!("{} of {rows} ", self.state.selection.cursor + 1);
        let left = usize::from(area.width).saturating_sub(width(&text) + 2);
        let more = format!(
            "{} of {rows}, {below} below ",
            self.state.selection.cursor + 1
        );
        if below > 0 && left >= more.len() {
            place = more;
        }
        if rows > usize::from(visible) && left >= place.len() && !area.is_empty() {
            let start = area.right() - place.len() as u16;
            buffer.set_string(start, area.y, place, theme.faint());
        }
    }

    fn draw_detail(&self, buffer: &mut Buffer, area: Rect, theme: &Theme) {
        let Some(row) = self.selected() else { return };
        let wide = area.width.saturating_sub(2);
        let texts = self
            .content
            .detail(row, usize::from(wide), theme.glyphs.cut);
        for (text, y) in texts.iter().zip(area.y..area.bottom()) {
            let line = Rect::new(area.x + 2, y, wide, 1);
            draw_text(buffer, line, text, theme.faint(), theme);
        }
    }

    /// Draws the key hints, or the prompt. Returns the position of the prompt's cursor.
    fn draw_keys(
        &self,
        buffer: &mut Buffer,
        layout: &ScreenLayout,
        context: &C::Context,
        theme: &Theme,
    ) -> Option<Position> {
        let mut keys: Vec<KeyHint> = vec![(theme.glyphs.arrows, "move", 6)];
        keys.extend(self.content.parts().keys);
        keys.extend([
            ("/", "filter", 3),
            ("<>", "sort", 4),
            ("r", "reverse", 9),
            ("f", "freeze", 10),
        ]);
        if self.content.devices(context).tabs.len() > 1 {
            keys.push(("d", "device", 5));
        }
        keys.extend(context.keys());
        keys.extend([("?", "help", 0), ("q", "quit", 0)]);
        if self.state.focus == Focus::Table || layout.keys.is_empty() {
            draw_key_list(buffer, layout.keys, keys, theme);
            return None;
        }
        let prompt = match self.state.focus {
            Focus::Prompt(PromptKind::Search) => Prompt {
                kind: PromptKind::Search,
                filter: &self.state.search,
                looks_in: "the texts of the rows",
                shown: self.matches().len(),
                all: self.table.rows.len(),
            },
            Focus::Prompt(PromptKind::Filter) | Focus::Table => Prompt {
                kind: PromptKind::Filter,
                filter: &self.state.query.filter,
                looks_in: self.content.parts().searched,
                shown: self.table.shown,
                all: self.table.all,
            },
        };
        Some(draw_prompt(buffer, layout.keys, &prompt, theme))
    }

    fn draw_overlay(&self, buffer: &mut Buffer, area: Rect, context: &C::Context, theme: &Theme) {
        let Some(overlay) = self.state.overlay else {
            return;
        };
        let (title, lines) = match (overlay.kind, self.selected()) {
            (OverlayKind::Help, _) => (" Help ", self.help(context, theme)),
            (OverlayKind::Probes, _) => (" Probes ", context.probes(theme)),
            (OverlayKind::Detail, Some(row)) => self.content.full_detail(row, theme),
            (OverlayKind::Detail, None) => return,
        };
        let end = draw_box(buffer, area, title, &lines, overlay.scroll, theme);
        self.state.overlay_end.set(end);
    }

    /// Returns the help: keys of this screen, of all tables and of the context, then the terms.
    fn help(&self, context: &C::Context, theme: &Theme) -> Vec<Line<'static>> {
        let parts = self.content.parts();
        let moves = "or j k, PgUp PgDn, Home End, wheel: move";
        let mut entries = vec![(theme.glyphs.arrows, moves.to_owned())];
        let text = [parts.help, HELP, &context.help(), "\n", parts.terms].concat();
        for line in text.lines() {
            let (key, text) = line.split_at_checked(12).unwrap_or_default();
            match (key.trim_end(), entries.last_mut()) {
                // The texts are wrapped in the source: a line without a key goes on.
                ("", Some((_, before))) if !text.is_empty() => {
                    before.push(' ');
                    before.push_str(text);
                }
                (key, _) => entries.push((key, text.to_owned())),
            }
        }
        let entries = entries.iter();
        entries.map(|(key, text)| entry(key, text, theme)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_look_different() {
        let names = [
            "Adam.exp_avg[encoder.layers.0.weight]",
            "Adam.exp_avg_sq[encoder.layers.0.weight]",
            "a.very.long.path.that.begins.alike.and.ends.in.one.way.or.other.first.weight",
            "a.very.long.path.that.begins.alike.and.ends.in.one.way.or.other.second.weight",
            "short",
        ];
        let names = names.map(str::to_owned);
        let shown = fit_apart(&names, 20, "~");
        for (at, name) in shown.iter().enumerate() {
            assert!(width(name) <= 20, "{name}");
            assert!(!shown[..at].contains(name), "{shown:?}");
        }
        let equal = vec!["the same name of two rows".to_owned(); 2];
        let shown = fit_apart(&equal, 10, "~");
        assert_eq!(shown[0], shown[1]);
    }
}
