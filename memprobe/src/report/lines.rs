//! Table of lines.

use std::cmp::Reverse;

use super::ReportOptions;
use super::before_attach;
use super::cells::total_name;
use super::document::{TableReport, budget, damage};
use super::held::{self, HeldRow};
use super::outside;
use super::preamble::push_devices;
use super::replay::RecordingReplay;
use crate::event::{DeviceIndex, Frame};
use crate::ledger::grouping::{CodeOwner, origin_of};
use crate::ledger::snapshot::{DeviceSnapshot, LineRow, Site, Snapshot};
use crate::view::table::{Cell, Column, Output, Page, Table};
use crate::view::{FileNames, gpu_fields, line_columns};

pub(super) struct LineReport<'a> {
    pub(super) replay: &'a RecordingReplay,
    pub(super) options: &'a ReportOptions,
}

impl<'a> TableReport for LineReport<'a> {
    type Row = HeldRow<'a>;

    fn text(&self, page: &mut Page) {
        let devices = self.replay.snapshot.devices.iter().zip(self.tables());
        push_devices(page, self.replay, devices, |page, table| {
            page.table(&table);
        });
        outside::push(page, &self.replay.snapshot.cuda, self.options);
    }

    fn document(&self) -> Cell<'_> {
        let snapshot = &self.replay.snapshot;
        let (target, health) = (&snapshot.target, &snapshot.health);
        let end = self.replay.end.as_ref();
        let devices = snapshot.devices.iter().map(|device| self.device(device));
        // Process id in its own PID namespace, if that differs.
        let inner_pid = target.inner_tgid.map(|tgid| tgid.0);
        Cell::Object(vec![
            ("memprobe", (&*self.replay.header.version).into()),
            ("command", (&*target.command).into()),
            ("pid", target.tgid.map(|tgid| tgid.0).into()),
            ("inner_pid", Cell::if_known(inner_pid)),
            ("container", Cell::if_known(target.container.as_deref())),
            ("python", target.python.as_deref().into()),
            ("torch", target.torch.as_deref().into()),
            ("start_ns", snapshot.started.0.into()),
            ("wall_start_ms", self.replay.header.wall_start_ms.into()),
            ("duration_ns", self.replay.duration().into()),
            ("end", end.map(|end| end.reason.as_str()).into()),
            ("truncated", self.replay.truncated.into()),
            ("damage", damage(self.replay)),
            ("events", health.events.into()),
            ("lost_events", health.losses.events.into()),
            ("lost_stacks", health.losses.stacks.into()),
            ("lost_uses", health.losses.uses.into()),
            ("malformed", health.losses.malformed.into()),
            ("disagreements", health.disagreements.into()),
            ("budget", budget(health, snapshot.now)),
            // Layer of software behind the lines.
            ("layer", snapshot.cuda.layer.as_str().into()),
            ("devices", Cell::list(devices)),
            // CUDA memory outside the caching allocator.
            ("cuda", outside::table(&snapshot.cuda, self.options).into()),
        ])
    }

    fn columns(&self) -> Vec<Column<HeldRow<'a>>> {
        line_columns().into()
    }

    fn tables(&self) -> impl Iterator<Item = Table<HeldRow<'a>>> {
        let devices = self.replay.snapshot.devices.iter();
        devices.map(|device| self.table(device))
    }
}

impl<'a> LineReport<'a> {
    fn device(&self, device: &'a DeviceSnapshot) -> Cell<'a> {
        let before = &device.before_attach;
        let unread = Cell::if_known(before.unread.as_deref());
        let mut fields = vec![("device", device.index.into())];
        fields.extend(gpu_fields(&self.replay.snapshot.target, device.index));
        fields.extend(vec![
            ("allocated", device.totals.allocated.into()),
            ("reserved", device.totals.reserved.into()),
            ("peak_allocated", device.peak.allocated.into()),
            ("peak_reserved", device.peak.reserved.into()),
            ("before_attach", before.live.into()),
            // Number of blocks in `before_attach`; null unless all are known.
            ("before_attach_blocks", before.live_blocks().into()),
            // Frees since attach of blocks that were unknown.
            ("unseen_frees", before.unseen_frees.into()),
            // Reason that the blocks could not be read at attach.
            ("before_attach_unread", unread),
            // Kinds and owners of `before_attach`, if the process's objects were read.
            ("before_attach_parts", before_attach::cell(before)),
            ("unaccounted", device.unaccounted.into()),
            ("live_blocks", device.live_blocks.into()),
            ("ooms", device.ooms.into()),
            ("lines", self.table(device).into()),
        ]);
        Cell::Object(fields)
    }

    fn table(&self, device: &'a DeviceSnapshot) -> Table<HeldRow<'a>> {
        device_table(device, &self.replay.snapshot, self.options)
    }
}

/// Returns the lines of a device, with the rows that complete them to its total.
pub(super) fn device_table<'a>(
    device: &'a DeviceSnapshot,
    snapshot: &Snapshot,
    options: &ReportOptions,
) -> Table<HeldRow<'a>> {
    let (index, allocated) = (device.index, device.totals.allocated);
    let mut table = lines(index, &device.lines, options);
    let before = &device.before_attach;
    let before = (before.live, before.live_blocks());
    held::push_remainders(&mut table, Output::Flat, before, device.unaccounted);
    before_attach::push_parts(&mut table, &device.before_attach);
    let all: Vec<HeldRow<'_>> = device.lines.iter().map(HeldRow::of_line).collect();
    let total = HeldRow {
        live: allocated.into(),
        peak: Some(device.peak.allocated),
        blocks: device.all_live_blocks(&snapshot.health.losses),
        ..held::sum(&all, total_name(index, snapshot.cuda.layer))
    };
    table.push(Output::Text, total);
    let names = names(&table);
    held::complete(&mut table, index, allocated.0, names);
    table
}

/// The first lines in the order of the options, and the sum of the others.
pub(super) fn lines<'a>(
    device: DeviceIndex,
    lines: &'a [LineRow],
    options: &ReportOptions,
) -> Table<HeldRow<'a>> {
    let mut shown: Vec<&LineRow> = lines.iter().collect();
    shown.sort_by_cached_key(|row| {
        let figures = [row.peak.0, row.live.0, row.live_blocks, row.allocs];
        (Reverse(options.sort.rank(figures)), words(&row.site))
    });
    let rows = shown.into_iter().map(HeldRow::of_line).collect();
    let mut table = Table::new(line_columns());
    held::push_top(&mut table, rows, options.top.of(lines.len()), "other line");
    held::complete(&mut table, device, 0, FileNames::default());
    table
}

/// Short names for the files of lines and their callers.
fn names(table: &Table<HeldRow<'_>>) -> FileNames {
    let lines = table.rows.iter().filter_map(|entry| entry.row.line);
    let frames = lines.flat_map(|row| row.site.frame().into_iter().chain(shown_callers(row)));
    FileNames::of(frames.map(|frame| &frame.file))
}

/// Sort key of equal rows, for an order that is the same in every run.
fn words(site: &Site) -> (u8, &str, u32, &str, &str) {
    match site {
        Site::Line(frame) => (0, &frame.file, frame.line, &frame.function, ""),
        Site::Backward(frame) => (1, &frame.file, frame.line, &frame.function, ""),
        Site::Node { forward, name } => (2, &forward.file, forward.line, &forward.function, name),
        Site::NoLine { thread, reason } => (3, thread, 0, reason, ""),
    }
}

/// Callers worth showing. Beside a line of the user's own code these are only the user's callers,
/// if there are any; otherwise all.
pub(super) fn shown_callers(row: &LineRow) -> Vec<&Frame> {
    let is_own = |frame: &&Frame| origin_of(frame) == CodeOwner::User;
    let all = callers(row);
    let own: Vec<_> = all.iter().filter(is_own).collect();
    let line_is_own = row.site.frame().is_some_and(|line| is_own(&line));
    if line_is_own && !own.is_empty() {
        own
    } else {
        all.iter().collect()
    }
}

/// Callers of a row's line, nearest first, on its stack that holds most. A line of the forward pass
/// has the callers of its forward stack, not those of `backward()`.
pub(super) fn callers(row: &LineRow) -> &[Frame] {
    let stack = row.stacks.first().map(|row| &*row.stack);
    let node = stack.and_then(|stack| stack.context.node.as_ref());
    let stack = match (&row.site, node.and_then(|node| node.forward.as_ref())) {
        (Site::Node { .. }, Some(forward)) => Some(&**forward),
        _ => stack,
    };
    let stack = stack.map(|stack| &*stack.frames).unwrap_or_default();
    let line = row.site.frame();
    let at = line.and_then(|line| stack.iter().position(|frame| frame == line));
    at.map_or(&[], |at| &stack[at + 1..])
}
