//! Lines of text around tables.

pub(super) use super::preamble::{NO_CALLS_INTO_CUDA, NO_MODULES};
use super::replay::Replay;
use super::{Colour, ReportOptions};
use crate::ledger::snapshot::DeviceSnapshot;
use crate::view::table::Page;
pub(super) use crate::view::table::Style;
pub(super) use crate::view::wrap;

pub(super) fn beginning(replay: &Replay, options: &ReportOptions) -> String {
    let mut page = Page::new(options.width, options.colour);
    super::preamble::push_beginning(&mut page, replay);
    page.into_text()
}

pub(super) fn push_totals(text: &mut String, device: &DeviceSnapshot, options: &ReportOptions) {
    let mut page = Page::new(options.width, options.colour);
    super::preamble::push_totals(&mut page, device);
    text.push_str(&page.into_text());
}

pub(super) fn push_note(text: &mut String, note: &str, width: usize) {
    for line in wrap(note, width) {
        push_line(text, &line);
    }
}

pub(super) fn push_line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

pub(super) fn strong(colour: Colour, text: &str) -> String {
    Style(colour).strong(text)
}

pub(super) fn warning(colour: Colour, text: &str) -> String {
    Style(colour).warning(text)
}

pub(super) fn weak(colour: Colour, text: &str) -> String {
    Style(colour).weak(text)
}
