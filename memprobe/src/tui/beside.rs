//! What the screens beside that of lines have in common.

use std::sync::Arc;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::header::draw_title;
use super::input::Wanted;
use super::state::State;
use super::status::draw_status;
use super::theme::Theme;
use crate::event::DeviceIndex;
use crate::label::{clock, process};
use crate::model::snapshot::why::{DeviceCategories, DeviceModules, IterationLayers, Which};

/// What is told of why memory is there. To make the tables costs time, so only what is shown is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Explain {
    /// Nothing.
    #[default]
    Nothing,
    /// The modules of each device.
    Modules,
    /// What memory is for on each device, and iterations.
    Categories,
    /// What the modules of each device held in an iteration.
    Layers(Which),
}

/// What the caller answers to [`super::Command::Explain`], anew with each snapshot.
#[derive(Clone, Debug, Default)]
pub enum Reasons {
    /// Nothing yet.
    #[default]
    Nothing,
    /// One for each device.
    Modules(Arc<Vec<DeviceModules>>),
    /// One for each device.
    Categories(Arc<Vec<DeviceCategories>>),
    /// One for each device.
    Layers(Arc<Vec<IterationLayers>>),
}

impl Reasons {
    /// Whether nothing has come since `other`.
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

/// What a screen asks of whoever holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// End.
    Quit,
    /// Lead back to the screen of lines.
    Leave,
    /// Do as on the screen of lines: devices and pauses are one for all screens.
    AsOnLines(Wanted),
    /// Have this told.
    Explain(Explain),
}

/// The first line of a screen beside that of lines.
pub fn draw_title_of(buffer: &mut Buffer, area: Rect, name: &str, lines: &State, theme: &Theme) {
    let snapshot = &lines.shown;
    let mut right: Vec<String> = process(&snapshot.target).into_iter().collect();
    let time = snapshot.now.0.saturating_sub(snapshot.started.0);
    right.push(clock(Duration::from_nanos(time)));
    right.extend(lines.device().map(|device| device.index.to_string()));
    draw_title(buffer, area, name, &snapshot.target, &right, theme);
}

/// How the measurement is doing, or what is to be said of the last key.
pub fn draw_note(
    buffer: &mut Buffer,
    area: Rect,
    note: Option<&'static str>,
    lines: &State,
    theme: &Theme,
) {
    draw_status(buffer, area, lines, note.or(lines.note), theme);
}

/// What the caller told of each device, and which of them is shown.
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
    /// Takes what came from the caller.
    pub fn update(&mut self, news: Arc<Vec<T>>) {
        self.news = Some(news);
    }

    /// Shows another device; says whether it is another.
    pub fn show(&mut self, device: Option<DeviceIndex>) -> bool {
        std::mem::replace(&mut self.device, device) != device
    }

    /// What was told of the device shown; `None` where nothing came of it.
    pub fn shown(&self) -> Option<&T> {
        let mut devices = self.news.as_ref()?.iter();
        match self.device {
            Some(index) => devices.find(|told| told.device() == index),
            None => devices.next(),
        }
    }

    /// Whether anything came from the caller.
    pub fn is_told(&self) -> bool {
        self.news.is_some()
    }

    /// Of how many devices something was told.
    pub fn count(&self) -> usize {
        self.news.as_ref().map_or(0, |news| news.len())
    }
}

/// What is told of one device.
pub trait OnDevice {
    /// Which.
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
