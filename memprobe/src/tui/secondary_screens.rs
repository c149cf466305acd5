//! Shared parts of the secondary screens: modules, layers and categories.

use std::sync::Arc;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::header::draw_title;
use super::input::InputEvent;
use super::state::State;
use super::status::draw_status;
use super::theme::Theme;
use crate::attribution::tables::{
    DeviceCategories, DeviceModules, IterationChoice, IterationLayers,
};
use crate::event::DeviceIndex;
use crate::view::{clock, process};

/// Attribution table that a screen needs. Tables are costly to build, so only the one on screen is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AttributionQuery {
    #[default]
    Nothing,
    /// Modules of each device.
    Modules,
    /// Categories of each device, and iterations.
    Categories,
    /// Memory by module at the peak of an iteration, for each device.
    Layers(IterationChoice),
}

/// Answer to [`super::Command::Explain`], renewed with each snapshot.
#[derive(Clone, Debug, Default)]
pub enum AttributionTables {
    /// No answer yet.
    #[default]
    Nothing,
    /// One element a device.
    Modules(Arc<Vec<DeviceModules>>),
    /// One element a device.
    Categories(Arc<Vec<DeviceCategories>>),
    /// One element a device.
    Layers(Arc<Vec<IterationLayers>>),
}

impl AttributionTables {
    /// Returns true if both are the same answer.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) => true,
            (Self::Modules(one), Self::Modules(other)) => Arc::ptr_eq(one, other),
            (Self::Categories(one), Self::Categories(other)) => Arc::ptr_eq(one, other),
            (Self::Layers(one), Self::Layers(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// Request from a screen to its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScreenRequest {
    /// End the program.
    Quit,
    /// Return to the screen of lines.
    Leave,
    /// Handle the input as the screen of lines does: devices and pauses apply to all screens.
    AsOnLines(InputEvent),
    /// Request this attribution table.
    Explain(AttributionQuery),
}

/// Draws the title line of a secondary screen: name, process, time and device.
pub fn draw_title_of(buffer: &mut Buffer, area: Rect, name: &str, lines: &State, theme: &Theme) {
    let snapshot = &lines.shown;
    let mut right: Vec<String> = process(&snapshot.target).into_iter().collect();
    let time = snapshot.now.0.saturating_sub(snapshot.started.0);
    right.push(clock(Duration::from_nanos(time)));
    right.extend(lines.device().map(|device| device.index.to_string()));
    draw_title(buffer, area, name, &snapshot.target, &right, theme);
}

/// Draws the status line, or `note` about the last key in its place.
pub fn draw_note(
    buffer: &mut Buffer,
    area: Rect,
    note: Option<&'static str>,
    lines: &State,
    theme: &Theme,
) {
    draw_status(buffer, area, lines, note.or(lines.note), theme);
}

/// Data of all devices, and the device shown.
#[derive(Debug)]
pub struct OfDevices<T> {
    news: Option<Arc<Vec<T>>>,
    device: Option<DeviceIndex>,
}

impl<T> Default for OfDevices<T> {
    fn default() -> Self {
        Self {
            news: None,
            device: None,
        }
    }
}

impl<T: OnDevice> OfDevices<T> {
    /// Stores a new answer.
    pub fn update(&mut self, news: Arc<Vec<T>>) {
        self.news = Some(news);
    }

    /// Selects a device; returns true if it changed.
    pub fn show(&mut self, device: Option<DeviceIndex>) -> bool {
        std::mem::replace(&mut self.device, device) != device
    }

    /// Returns the data of the device shown; `None` if there is none.
    pub fn shown(&self) -> Option<&T> {
        let mut devices = self.news.as_ref()?.iter();
        match self.device {
            Some(index) => devices.find(|answer| answer.device() == index),
            None => devices.next(),
        }
    }

    /// Returns true once any answer has arrived.
    pub fn has_data(&self) -> bool {
        self.news.is_some()
    }

    /// Returns the number of devices with an answer.
    pub fn count(&self) -> usize {
        self.news.as_ref().map_or(0, |news| news.len())
    }
}

/// Answer that belongs to one device.
pub trait OnDevice {
    fn device(&self) -> DeviceIndex;
}

impl OnDevice for DeviceModules {
    fn device(&self) -> DeviceIndex {
        self.index
    }
}

impl OnDevice for DeviceCategories {
    fn device(&self) -> DeviceIndex {
        self.index
    }
}

impl OnDevice for IterationLayers {
    fn device(&self) -> DeviceIndex {
        self.index
    }
}
