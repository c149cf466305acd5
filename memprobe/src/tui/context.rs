//! State that all screens of a process share: its snapshot and other data, the device shown, the pause.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ratatui::style::Style;
use ratatui::text::Line;

use super::bars::{StatusLine, Tab};
use super::input::InputEvent;
use super::lines::Capacity;
use super::overlay;
use super::replay;
use super::saving::Saving;
use super::table_screen::{DeviceTabs, KeyHint, Needs, Note, ScreenContext, ScreenTitle, further};
use super::tensors::Tensors;
use super::terminal::StageStep;
use super::theme::Theme;
use crate::attribution::tables::{
    Breakdown, DeviceBreakdown, DeviceCategories, DeviceModules, IterationChoice, IterationLayers,
    SegmentMap, Waterfall,
};
use crate::event::bytes::human;
use crate::event::{Detail, DeviceIndex, ProbeStatus, Target};
use crate::ledger::snapshot::{DeviceSnapshot, Health, Snapshot, SoftwareLayer, TargetState};
use crate::tensors::TensorTable;
use crate::view::{
    budget_fact, clean, clock, count, counted, device_name, fit, process, rate, short_command,
};

/// Snapshots of a caller; a pause keeps one on the screen.
#[derive(Debug)]
pub struct Feed<T> {
    pub shown: Arc<T>,
    latest: Arc<T>,
    is_paused: bool,
}

impl<T> Feed<T> {
    pub fn new(first: Arc<T>) -> Self {
        Self {
            shown: Arc::clone(&first),
            latest: first,
            is_paused: false,
        }
    }

    pub const fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Takes a new snapshot, if it is another one; shows it unless paused.
    pub fn update(&mut self, latest: Arc<T>) -> bool {
        let is_new = !Arc::ptr_eq(&latest, &self.latest);
        self.latest = latest;
        if !self.is_paused {
            self.shown = Arc::clone(&self.latest);
        }
        is_new
    }

    pub fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        self.update(Arc::clone(&self.latest));
    }
}

#[derive(Debug)]
pub struct ProcessContext {
    pub feed: Feed<Snapshot>,
    /// Step on leaving the screen of lines: [`StageStep::Back`] to the host screen, or another one if there is none.
    pub way_back: StageStep,
    device: Option<DeviceIndex>,
    pub modules: Option<Arc<Vec<DeviceModules>>>,
    pub layers: Option<Arc<Vec<IterationLayers>>>,
    pub categories: Option<Arc<Vec<DeviceCategories>>>,
    pub breakdowns: BTreeMap<Breakdown, Arc<Vec<DeviceBreakdown>>>,
    pub segments: Option<Arc<Vec<SegmentMap>>>,
    pub owners: Option<Arc<Vec<Waterfall>>>,
    attribution: AttributionTables,
    pub tensors: Tensors,
    pub tensor_table: Option<Arc<TensorTable>>,
    pub saving: Saving,
}

impl ProcessContext {
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            feed: Feed::new(snapshot),
            way_back: StageStep::Draw,
            device: None,
            modules: None,
            layers: None,
            categories: None,
            breakdowns: BTreeMap::new(),
            segments: None,
            owners: None,
            attribution: AttributionTables::default(),
            tensors: Tensors::default(),
            tensor_table: None,
            saving: Saving::default(),
        }
    }

    /// Returns the device shown; `None` before any device was used.
    pub fn device(&self) -> Option<&DeviceSnapshot> {
        let devices = &self.feed.shown.devices;
        let mut chosen = devices.iter();
        chosen
            .find(|device| Some(device.index) == self.device)
            .or_else(|| devices.first())
    }

    /// Returns the memory of the device shown; `None` if it is unknown.
    pub fn capacity(&self) -> Option<Capacity> {
        let gpu = self.feed.shown.target.gpu(self.device()?.index)?;
        Some(Capacity {
            bytes: gpu.memory?,
            is_inferred: gpu.source.is_inferred(),
        })
    }

    pub fn of_device<'a, T>(
        &self,
        all: Option<&'a Arc<Vec<T>>>,
        device: fn(&T) -> DeviceIndex,
    ) -> Option<&'a T> {
        let mut all = all?.iter();
        match self.device() {
            Some(shown) => all.find(|element| device(element) == shown.index),
            None => all.next(),
        }
    }

    /// Takes new attribution tables, unless paused; returns true if there are any.
    pub fn take_attribution(&mut self, tables: AttributionTables) -> bool {
        if self.feed.is_paused() || tables.is(&self.attribution) {
            return false;
        }
        match &tables {
            AttributionTables::Nothing => {}
            AttributionTables::Modules(tables) => self.modules = Some(Arc::clone(tables)),
            AttributionTables::Layers(tables) => self.layers = Some(Arc::clone(tables)),
            AttributionTables::Categories(tables) => self.categories = Some(Arc::clone(tables)),
            AttributionTables::Breakdown(breakdown, tables) => {
                self.breakdowns.insert(*breakdown, Arc::clone(tables));
            }
            AttributionTables::Segments(maps) => self.segments = Some(Arc::clone(maps)),
            AttributionTables::Owners(owners) => self.owners = Some(Arc::clone(owners)),
        }
        self.attribution = tables;
        true
    }

    /// Takes the progress or result of a reading of tensors; returns true if it is new.
    pub fn take_tensors(&mut self, tensors: Tensors) -> bool {
        if let Tensors::Taken(table) = &tensors {
            self.tensor_table = Some(Arc::clone(table));
        }
        let is_new = !tensors.is(&self.tensors);
        self.tensors = tensors;
        is_new
    }

    pub fn lacks_tensors(&self) -> bool {
        self.tensor_table.is_none() && !matches!(self.tensors, Tensors::Taking(_))
    }

    fn go_device(&mut self, by: isize) -> Option<Note> {
        let devices = self.feed.shown.devices.iter();
        let all: Vec<DeviceIndex> = devices.map(|device| device.index).collect();
        if all.len() < 2 {
            return Some("only one device has been used so far".into());
        }
        let shown = self.device().map(|device| device.index);
        self.device = shown.and_then(|shown| further(&all, shown, by));
        None
    }
}

impl ScreenContext for ProcessContext {
    fn handle(&mut self, event: InputEvent) -> Option<Note> {
        match event {
            InputEvent::Device(by) => self.go_device(by),
            InputEvent::Pause => {
                self.feed.pause();
                None
            }
            InputEvent::Iteration(_) => Some("iterations are on the screen of layers: L".into()),
            InputEvent::GraphWindow | InputEvent::GraphAxis => {
                Some("x and y change the graph of lines: Esc leads back".into())
            }
            InputEvent::Source | InputEvent::Regroup | InputEvent::ResetPeaks => {
                Some("this key works on the screen of lines: Esc leads back".into())
            }
            _ => None,
        }
    }

    fn title(&self, tab: Option<Tab>) -> ScreenTitle {
        let snapshot = &self.feed.shown;
        let Target { python, torch, .. } = &snapshot.target;
        let version = |name: &str, version: &Option<String>, wide| {
            let version = version.as_deref().map(clean);
            version.map(|version| format!("{name} {}", fit(&version, wide, "")))
        };
        let wide_only = ScreenTitle::WIDE_ONLY;
        let versions = [version("Python", python, 12), version("torch", torch, 20)];
        let versions = versions.into_iter().flatten();
        let mut facts: Vec<(u8, String)> = versions.map(|text| (wide_only, text)).collect();
        facts.extend(process(&snapshot.target).map(|process| (1, process)));
        facts.extend(match snapshot.cuda.layer {
            SoftwareLayer::Runtime | SoftwareLayer::Driver | SoftwareLayer::Tracepoints => {
                Some((4, snapshot.cuda.layer.as_str().to_owned()))
            }
            SoftwareLayer::Allocator | SoftwareLayer::None => None,
        });
        let since = match snapshot.health.state {
            TargetState::Recording => "recorded",
            TargetState::Replay(_) => "at",
            TargetState::Waiting(_) => "waiting",
            TargetState::Running | TargetState::Exited => "attached",
        };
        let time = Duration::from_nanos(snapshot.now.0.saturating_sub(snapshot.started.0));
        facts.push((3, format!("{since} {}", clock(time))));
        // These screens are not about the device shown on the others.
        if !matches!(tab, Some(Tab::Tensors | Tab::Outside)) {
            let device = self.device().map(|device| device.index);
            let name = device.map(|device| device_name(&snapshot.target, device));
            facts.extend(name.map(|name| (2, name)));
        }
        ScreenTitle {
            name: match tab {
                None | Some(Tab::Lines) => "memprobe".to_owned(),
                Some(tab) => format!("memprobe {}", tab.name()),
            },
            text: clean(&short_command(&snapshot.target.command)),
            facts,
        }
    }

    fn devices(&self) -> DeviceTabs {
        let devices = &self.feed.shown.devices;
        let shown = self.device().map(|device| device.index);
        let target = &self.feed.shown.target;
        let tab = |device: &DeviceSnapshot| {
            let name = device_name(target, device.index);
            format!("{name} {}", human(device.totals.allocated))
        };
        DeviceTabs {
            tabs: devices.iter().map(tab).collect(),
            shown: devices
                .iter()
                .position(|device| Some(device.index) == shown)
                .unwrap_or(0),
        }
    }

    fn status(&self, theme: &Theme) -> StatusLine {
        let health = &self.feed.shown.health;
        StatusLine {
            word: word(health, self.feed.is_paused(), theme),
            losses: health.losses,
            text: None,
            facts: {
                let mut facts = facts(health, self.feed.is_paused());
                facts.extend(self.saving.fact().map(|fact| (0, fact)));
                facts
            },
        }
    }

    fn needs(&self, height: u16) -> Needs {
        let when = |enough: bool| u16::from(enough);
        Needs {
            tabs: 1,
            devices: when(height >= 12 && self.feed.shown.devices.len() > 1),
            totals: when(height >= 8),
            detail: when(height >= 12),
            ..Needs::default()
        }
    }

    fn keys(&self) -> Vec<KeyHint> {
        if replay::moment(&self.feed.shown).is_some() {
            return replay::KEYS.to_vec();
        }
        let mut keys = vec![("Space", "pause", 5)];
        if self.way_back == StageStep::Back {
            keys.push(("Esc", "back", 1));
        }
        keys
    }

    fn help(&self) -> Cow<'static, str> {
        if replay::moment(&self.feed.shown).is_some() {
            return replay::help().into();
        }
        let keys = Tab::keys(|_| true);
        format!(
            "\
Tab or d    next device                      D  previous device
Space       pause the screen; memprobe goes on counting
w           save: a recording from now on, with what is live; w ends it
{keys:<11} the other screens; the same key or Esc leads back to lines
Esc         close what is open; back to lines; never quits
q Ctrl-C    quit and print a summary; the process runs on
"
        )
        .into()
    }

    fn number(&self) -> String {
        let allocated = self.device().map(|device| device.totals.allocated);
        allocated.map_or_else(|| "-".to_owned(), human)
    }

    fn probes(&self, theme: &Theme) -> Vec<Line<'static>> {
        overlay::probes(&self.feed.shown.health, theme)
    }
}

fn word(health: &Health, is_paused: bool, theme: &Theme) -> (&'static str, Style) {
    match &health.state {
        _ if is_paused => ("PAUSED", theme.still()),
        TargetState::Waiting(_) | TargetState::Running if health.stopped.is_some() => {
            ("STOPPED", theme.still())
        }
        TargetState::Waiting(_) => ("WAITING", theme.still()),
        TargetState::Running => ("LIVE", theme.good()),
        TargetState::Exited => ("TARGET GONE", theme.bad()),
        TargetState::Recording => ("RECORDING", theme.good()),
        TargetState::Replay(_) => ("REPLAY", theme.good()),
    }
}

/// Returns the status facts, each with its drop rank: the highest is dropped first where space is short.
fn facts(health: &Health, is_paused: bool) -> Vec<(u8, String)> {
    let mut facts = Vec::new();
    if is_paused {
        facts.push((1, "Space: continue".to_owned()));
    }
    facts.extend(health.stopped.as_deref().map(|reason| (0, clean(reason))));
    match &health.state {
        TargetState::Waiting(event) => facts.push((0, format!("for {}", clean(event)))),
        TargetState::Running => facts.push((3, format!("{} ev/s", rate(health.events_per_second)))),
        TargetState::Exited => facts.push((4, "last state shown".to_owned())),
        TargetState::Recording => {}
        TargetState::Replay(moment) => facts.extend(replay::facts(moment)),
    }
    if !matches!(health.state, TargetState::Replay(_)) {
        facts.push((5, counted(health.events, "event")));
    }
    facts.extend((!health.losses.any()).then(|| (2, "lost 0".to_owned())));
    if health.disagreements > 0 {
        facts.push((0, format!("LEDGER OFF {}x", count(health.disagreements))));
    }
    facts.extend((health.budget.as_ref()).map(|budget| (1, budget_fact(budget))));
    if health.capture.detail > Detail::Lines {
        facts.push((4, format!("detail {}", health.capture.detail.as_str())));
    }
    facts.extend(probes(health));
    facts
}

fn probes(health: &Health) -> Option<(u8, String)> {
    if health.state != TargetState::Running {
        return None;
    }
    let is_slow = |probe: &&ProbeStatus| !probe.emulated && probe.is_busy();
    let stepped = health.probes.iter().filter(is_slow).count();
    let missing = health.missing.len();
    Some(match (health.probes.len(), stepped) {
        (0, _) => (0, "NO PROBES".to_owned()),
        (1, 0) if missing == 0 => (4, "1 probe ok".to_owned()),
        (all, 0) if missing > 0 => (1, format!("{all} probes, {missing} MISSING (p)")),
        (all, 0) => (4, format!("{all} probes ok")),
        (all, _) => (1, format!("{all} probes, {stepped} SLOW (p)")),
    })
}

/// Attribution table that a screen needs. Tables are costly to build, so only the one on screen is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AttributionQuery {
    #[default]
    Nothing,
    Modules,
    Categories,
    Layers(IterationChoice),
    Breakdown(Breakdown),
    Segments,
    Owners,
}

/// Answer to [`super::Command::Explain`], renewed with each snapshot.
#[derive(Clone, Debug, Default)]
pub enum AttributionTables {
    #[default]
    Nothing,
    Modules(Arc<Vec<DeviceModules>>),
    Categories(Arc<Vec<DeviceCategories>>),
    Layers(Arc<Vec<IterationLayers>>),
    Breakdown(Breakdown, Arc<Vec<DeviceBreakdown>>),
    Segments(Arc<Vec<SegmentMap>>),
    Owners(Arc<Vec<Waterfall>>),
}

impl AttributionTables {
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) => true,
            (Self::Modules(one), Self::Modules(other)) => Arc::ptr_eq(one, other),
            (Self::Categories(one), Self::Categories(other)) => Arc::ptr_eq(one, other),
            (Self::Layers(one), Self::Layers(other)) => Arc::ptr_eq(one, other),
            (Self::Breakdown(kind, one), Self::Breakdown(other_kind, other)) => {
                kind == other_kind && Arc::ptr_eq(one, other)
            }
            (Self::Segments(one), Self::Segments(other)) => Arc::ptr_eq(one, other),
            (Self::Owners(one), Self::Owners(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}
