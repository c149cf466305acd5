//! Tests of the ledger, each from a short stream of events.

use std::sync::Arc;

use super::snapshot::{DeviceSnapshot, LineRow, Site, TargetState};
use super::*;
use crate::event::{
    Address, Bytes, Context, Frame, NoStack, ProbeStatus, PurposeId, Stack, StackId, StackKind,
    Tgid, Tid, Totals,
};

const SECOND: u64 = 1_000_000_000;

/// A ledger and a simulated allocator, whose true totals the events carry.
struct Scene {
    ledger: Ledger,
    allocated: u64,
    time: u64,
}

impl Scene {
    /// The target had `allocated` bytes at attach.
    fn attached_at(allocated: u64) -> Self {
        Self::with_caps(allocated, Caps::default())
    }

    fn with_caps(allocated: u64, caps: Caps) -> Self {
        let mut ledger = Ledger::with_caps(Target::default(), TimeNs(0), caps);
        for id in 1..=3 {
            ledger.apply(&Event::Stack(StackId(id), stack(id)));
        }
        ledger.apply(&Event::Thread(Tid(7), "worker".into()));
        Self {
            ledger,
            allocated,
            time: 0,
        }
    }

    /// The target had exactly these blocks at attach.
    fn found(blocks: &[(u64, u64)]) -> Self {
        let mut scene = Self::attached_at(blocks.iter().map(|(_, size)| size).sum());
        scene.find(blocks);
        scene
    }

    fn find(&mut self, blocks: &[(u64, u64)]) {
        self.ledger.apply(&Event::AtAttach(self.at_attach()));
        for (addr, size) in blocks {
            let event = self.event(Action::Held, *addr, *size, 0);
            self.ledger.apply(&Event::Memory(event));
        }
    }

    fn at_attach(&self) -> AtAttach {
        AtAttach {
            time: TimeNs(self.time),
            tgid: Tgid(1),
            device: Some(DeviceIndex(0)),
            totals: self.totals(),
            peak: Totals {
                allocated: Bytes(8192),
                reserved: Bytes(1 << 21),
            },
            unread: None,
        }
    }

    fn event(&self, action: Action, addr: u64, size: u64, stack: u32) -> MemoryEvent {
        MemoryEvent {
            time: TimeNs(self.time),
            tgid: Tgid(1),
            tid: Tid(7),
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: Some(DeviceIndex(0)),
            totals: Some(self.totals()),
            stack: StackId(stack),
            shape: PurposeId::NONE,
            call: None,
        }
    }

    fn totals(&self) -> Totals {
        Totals {
            allocated: Bytes(self.allocated),
            reserved: Bytes(1 << 21),
        }
    }

    fn apply(&mut self, action: Action, addr: u64, size: u64, stack: u32) -> Change {
        self.time += 1_000;
        let event = self.event(action, addr, size, stack);
        self.ledger.apply(&Event::Memory(event))
    }

    fn alloc(&mut self, addr: u64, size: u64, stack: u32) -> Change {
        self.allocated += size;
        self.apply(Action::Alloc, addr, size, stack)
    }

    fn free(&mut self, addr: u64, size: u64) -> Change {
        self.allocated -= size;
        self.apply(Action::Free, addr, size, 0)
    }

    /// Frees a known block; returns its bytes, and the number of its stack.
    fn free_known(&mut self, addr: u64, size: u64) -> (u64, StackRef) {
        match self.free(addr, size) {
            Change::Freed(Freed::Known(id)) => {
                let block = self.ledger.block(id);
                (block.size.0, block.stack)
            }
            other => panic!("not a known block: {other:?}"),
        }
    }

    fn stack(&self, id: u32) -> StackRef {
        self.ledger.stack_ref(StackId(id))
    }

    fn miss_alloc(&mut self, size: u64) {
        self.allocated += size;
    }

    fn miss_free(&mut self, size: u64) {
        self.allocated -= size;
    }

    fn report_lost(&mut self, events: u64) {
        self.ledger.apply(&Event::Loss(Losses {
            events,
            ..Losses::default()
        }));
    }

    fn snapshot(&self) -> Snapshot {
        self.ledger.snapshot(TimeNs(self.time), Grouping::User)
    }

    fn device(&self) -> DeviceSnapshot {
        self.snapshot().devices.remove(0)
    }

    /// Bytes before attach, unaccounted bytes, live bytes of all lines.
    fn parts(&self) -> (u64, i64, u64) {
        let device = self.device();
        let live = device.lines.iter().map(|line| line.live.0).sum();
        (device.before_attach.live.0, device.unaccounted, live)
    }

    fn line(&self, file: &str) -> LineRow {
        let lines = self.device().lines.into_iter();
        let mut lines =
            lines.filter(|row| matches!(&row.site, Site::Line(frame) if &*frame.file == file));
        lines.next().expect("the line has a row")
    }

    fn no_line(&self) -> (Arc<str>, &'static str) {
        let lines = self.device().lines.into_iter();
        let mut lines = lines.filter_map(|row| match row.site {
            Site::NoLine { thread, reason } => Some((thread, reason)),
            _ => None,
        });
        lines.next().expect("there is a row without a line")
    }
}

fn frame(file: &str, line: u32) -> Frame {
    Frame {
        file: file.into(),
        line,
        function: "forward".into(),
        library: None,
    }
}

/// Stacks 1 and 2 end in different lines of torch below the same line of the user.
fn stack(id: u32) -> Arc<Stack> {
    let torch = frame(
        "/usr/lib/python3.11/site-packages/torch/nn/functional.py",
        id,
    );
    let user = if id < 3 {
        frame("model.py", 10)
    } else {
        frame("train.py", 20)
    };
    Arc::new(Stack {
        kind: StackKind::Python,
        frames: vec![torch, user],
        truncated: false,
        context: Context::default(),
    })
}

/// Blocks that an allocation replaced, and true if the ledger tracks it.
fn allocated(change: Change) -> (Vec<BlockId>, bool) {
    match change {
        Change::Allocated {
            replaced,
            is_tracked,
            ..
        } => (replaced, is_tracked),
        other => panic!("not an allocation: {other:?}"),
    }
}

#[test]
fn what_was_there_at_attach_is_a_row_of_its_own() {
    let mut scene = Scene::attached_at(4096);
    assert_eq!(allocated(scene.alloc(0, 512, 1)), (Vec::new(), true));
    assert_eq!(scene.parts(), (4096, 0, 512));
    let unseen = Change::Freed(Freed::BeforeAttach(None));
    assert_eq!(scene.free(1 << 20, 1024), unseen);
    assert_eq!(scene.parts(), (3072, 0, 512));
    assert_eq!(scene.free_known(0, 512), (512, scene.stack(1)));
    assert_eq!(scene.parts(), (3072, 0, 0));
}

#[test]
fn a_free_as_the_first_event_comes_out_of_what_was_there_at_attach() {
    let mut scene = Scene::attached_at(4096);
    assert_eq!(
        scene.free(0, 1024),
        Change::Freed(Freed::BeforeAttach(None))
    );
    assert_eq!(scene.parts(), (3072, 0, 0));
    assert_eq!(scene.device().peak.allocated, Bytes(4096));
}

#[test]
fn blocks_that_were_found_at_attach_leave_their_row_one_by_one() {
    let mut scene = Scene::found(&[(0, 512), (1024, 1024)]);
    let before = |scene: &Scene| {
        let before = scene.device().before_attach;
        (before.live.0, before.live_blocks())
    };
    assert_eq!(scene.parts(), (1536, 0, 0));
    assert_eq!(before(&scene), (1536, Some(2)));
    assert_eq!(scene.snapshot().health.events, 0);
    scene.alloc(4096, 512, 1);
    assert!(matches!(
        scene.free(1024, 1024),
        Change::Freed(Freed::BeforeAttach(Some(_)))
    ));
    assert_eq!(before(&scene), (512, Some(1)));
    assert_eq!(scene.device().live_blocks, 2);
    assert!(matches!(
        scene.free(0, 512),
        Change::Freed(Freed::BeforeAttach(Some(_)))
    ));
    assert_eq!(before(&scene), (0, Some(0)));
    assert_eq!(scene.parts(), (0, 0, 512));
    assert_eq!(scene.snapshot().health.disagreements, 0);
}

#[test]
fn a_device_is_shown_as_it_was_found_before_anything_happens_on_it() {
    let scene = Scene::found(&[(0, 512)]);
    let device = scene.device();
    assert_eq!(device.totals.allocated, Bytes(512));
    assert_eq!(device.totals.reserved, Bytes(1 << 21));
    assert_eq!(device.peak.allocated, Bytes(8192), "the allocator's own");
    assert_eq!(scene.snapshot().started, TimeNs(0));
}

#[test]
fn a_block_that_was_missed_at_attach_is_added_before_the_first_event_only() {
    let mut scene = Scene::found(&[(0, 512)]);
    scene.allocated += 1024;
    scene.find(&[(4096, 1024)]);
    assert_eq!(scene.parts(), (1536, 0, 0));
    assert_eq!(scene.device().before_attach.live_blocks(), Some(2));
    scene.free(4096, 1024);
    assert_eq!(scene.parts(), (512, 0, 0));
    scene.allocated += 1024;
    scene.find(&[(4096, 1024)]);
    assert_eq!(scene.parts(), (512, 0, 0), "its first event was seen");
}

#[test]
fn unreadable_blocks_leave_a_row_with_the_reason() {
    let mut scene = Scene::attached_at(1536);
    scene.ledger.apply(&Event::AtAttach(AtAttach {
        unread: Some("torn".into()),
        ..scene.at_attach()
    }));
    scene.free(0, 512);
    let before = scene.device().before_attach;
    assert_eq!((before.live, before.live_blocks()), (Bytes(1024), None));
    assert_eq!(before.unread.as_deref(), Some("torn"));
}

#[test]
fn an_impossible_block_found_at_attach_is_not_tracked() {
    let mut scene = Scene::found(&[(0, 512), (1024, 1024)]);
    for (addr, size) in [(8192, 512), (1024, 0), (256, 0)] {
        let applied = scene.apply(Action::Held, addr, size, 0);
        assert_eq!(applied, Change::Held(None), "{addr}");
    }
    assert_eq!(scene.parts(), (1536, 0, 0));
}

#[test]
fn found_blocks_beyond_the_cap_stay_in_the_row() {
    let caps = Caps {
        blocks: 1,
        ..Caps::default()
    };
    let mut scene = Scene::with_caps(1536, caps);
    scene.find(&[(0, 512), (1024, 1024)]);
    let before = scene.device().before_attach;
    assert_eq!((before.live, before.live_blocks()), (Bytes(1536), None));
    scene.free(1024, 1024);
    scene.free(0, 512);
    assert_eq!(scene.parts(), (0, 0, 0));
}

#[test]
fn a_missed_alloc_is_unaccounted_until_its_free() {
    let mut scene = Scene::attached_at(4096);
    scene.alloc(0, 512, 1);
    scene.report_lost(1);
    scene.miss_alloc(2048);
    scene.alloc(512, 512, 1);
    assert_eq!(scene.parts(), (4096, 2048, 1024));
    assert_eq!(scene.free(1 << 20, 2048), Change::Freed(Freed::Unknown));
    assert_eq!(scene.parts(), (4096, 0, 1024));
    assert_eq!(scene.snapshot().health.disagreements, 0);
}

#[test]
fn a_block_larger_than_what_is_unaccounted_was_there_at_attach() {
    let mut scene = Scene::attached_at(4096);
    scene.alloc(0, 512, 1);
    scene.report_lost(1);
    scene.miss_alloc(512);
    scene.alloc(512, 512, 1);
    let unseen = Change::Freed(Freed::BeforeAttach(None));
    assert_eq!(scene.free(1 << 20, 1024), unseen);
    assert_eq!(scene.parts(), (3072, 512, 1024));
}

#[test]
fn a_missed_free_shows_until_its_address_is_used_again() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 1024, 1);
    scene.report_lost(1);
    scene.miss_free(1024);
    scene.alloc(4096, 512, 1);
    assert_eq!(scene.parts(), (0, -1024, 1536));
    let stack = scene.stack(1);
    let (replaced, is_tracked) = allocated(scene.alloc(512, 512, 3));
    let stale = replaced.iter().map(|id| {
        let block = scene.ledger.block(*id);
        (block.addr, block.size, block.stack)
    });
    assert_eq!(
        stale.collect::<Vec<_>>(),
        [(Address(0), Bytes(1024), stack)]
    );
    assert!(is_tracked);
    assert_eq!(scene.parts(), (0, 0, 1024));
    assert_eq!(scene.line("model.py").live, Bytes(512));
    assert_eq!(scene.snapshot().health.disagreements, 0);
}

#[test]
fn a_stale_block_found_long_after_a_loss_is_no_new_disagreement() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 1024, 1);
    scene.report_lost(1);
    scene.miss_free(1024);
    scene.alloc(4096, 512, 1);
    scene.time += 60 * SECOND;
    scene.alloc(0, 512, 1);
    assert_eq!(scene.snapshot().health.disagreements, 0);
}

#[test]
fn a_difference_without_a_loss_is_a_disagreement() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 1024, 1);
    scene.miss_alloc(512);
    scene.alloc(4096, 512, 1);
    scene.alloc(8192, 512, 1);
    assert_eq!(scene.snapshot().health.disagreements, 1);
    assert_eq!(scene.parts(), (0, 512, 2048));
}

#[test]
fn a_loss_reported_after_the_difference_explains_it() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 1024, 1);
    scene.miss_alloc(512);
    scene.alloc(4096, 512, 1);
    scene.report_lost(1);
    assert_eq!(scene.snapshot().health.disagreements, 0);
}

#[test]
fn where_a_free_gives_another_size_the_allocator_is_right() {
    let mut scene = Scene::attached_at(4096);
    scene.alloc(0, 1024, 1);
    assert_eq!(scene.free_known(0, 512), (1024, scene.stack(1)));
    assert_eq!(scene.parts(), (4096, 512, 0));
    assert_eq!(scene.snapshot().health.disagreements, 1);
}

#[test]
fn an_out_of_memory_error_is_counted_on_its_device() {
    let mut scene = Scene::attached_at(4096);
    assert_eq!(
        scene.apply(Action::OutOfMemory, 0, 1 << 40, 1),
        Change::OutOfMemory
    );
    assert_eq!(scene.device().ooms, 1);
    assert_eq!(scene.parts(), (4096, 0, 0));
    assert_eq!(scene.snapshot().health.disagreements, 0);
}

#[test]
fn segments_are_events_but_not_blocks() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 512, 1);
    let mut event = scene.event(Action::SegmentAlloc, 0, 1 << 21, 1);
    (event.device, event.totals) = (None, None);
    assert_eq!(scene.ledger.apply(&Event::Memory(event)), Change::Segment);
    assert_eq!(scene.parts(), (0, 0, 512));
    assert_eq!(scene.snapshot().health.events, 2);
}

#[test]
fn devices_have_ledgers_of_their_own() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 512, 1);
    let mut event = scene.event(Action::Alloc, 0, 1024, 3);
    event.device = Some(DeviceIndex(2));
    event.totals = Some(Totals {
        allocated: Bytes(9216),
        reserved: Bytes(1 << 30),
    });
    scene.ledger.apply(&Event::Memory(event));
    let devices = scene.snapshot().devices;
    let found: Vec<_> = devices
        .iter()
        .map(|device| {
            (
                device.index.0,
                device.before_attach.live.0,
                device.live_blocks,
                device.lines.len(),
            )
        })
        .collect();
    assert_eq!(found, [(0, 0, 1, 1), (2, 8192, 1, 1)]);
}

#[test]
fn peaks_are_those_of_the_line_in_each_grouping_and_of_each_stack() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 512, 1);
    scene.free(0, 512);
    scene.alloc(0, 512, 2);
    scene.alloc(512, 512, 1);
    scene.free(0, 512);
    let line = scene.line("model.py");
    let figures = (
        line.live.0,
        line.peak.0,
        line.live_blocks,
        line.allocs,
        line.alloc_bytes.0,
    );
    assert_eq!(figures, (512, 1024, 1, 3, 1536));
    let stacks: Vec<_> = line
        .stacks
        .iter()
        .map(|row| (row.live.0, row.peak.0))
        .collect();
    assert_eq!(stacks, [(512, 512), (0, 512)]);
    let innermost = scene
        .ledger
        .snapshot(TimeNs(0), Grouping::Innermost)
        .devices
        .remove(0)
        .lines;
    let peaks: Vec<_> = innermost
        .iter()
        .map(|row| (row.live.0, row.peak.0))
        .collect();
    assert_eq!(peaks, [(512, 512), (0, 512)]);
}

#[test]
fn an_allocation_whose_stack_was_lost_names_its_thread() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 512, 99);
    assert_eq!(scene.no_line(), ("worker".into(), NoStack::Lost.as_str()));
    assert_eq!(scene.free_known(0, 512), (512, StackRef::UNKNOWN));
}

#[test]
fn a_redefined_stack_counts_for_later_allocations_only() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 512, 1);
    scene.ledger.apply(&Event::Stack(StackId(1), stack(3)));
    scene.alloc(512, 1024, 1);
    assert_eq!(scene.line("model.py").live, Bytes(512));
    assert_eq!(scene.line("train.py").live, Bytes(1024));
}

#[test]
fn blocks_beyond_the_cap_are_unaccounted_and_counted() {
    let mut scene = Scene::with_caps(
        0,
        Caps {
            blocks: 1,
            ..Caps::default()
        },
    );
    scene.alloc(0, 512, 1);
    assert_eq!(allocated(scene.alloc(512, 1024, 1)), (Vec::new(), false));
    assert_eq!(scene.parts(), (0, 1024, 512));
    assert_eq!(scene.ledger.refused().blocks, 1);
    assert_eq!(scene.free(512, 1024), Change::Freed(Freed::Unknown));
    scene.free(0, 512);
    assert_eq!(allocated(scene.alloc(0, 512, 1)), (Vec::new(), true));
    assert_eq!(scene.parts(), (0, 0, 512));
    assert_eq!(scene.snapshot().health.disagreements, 0);
}

#[test]
fn stacks_beyond_the_cap_share_a_row_that_says_so() {
    for caps in [
        Caps {
            stacks: 2,
            ..Caps::default()
        },
        Caps {
            frames: 4,
            ..Caps::default()
        },
        Caps {
            holders: 1,
            ..Caps::default()
        },
    ] {
        let mut scene = Scene::with_caps(0, caps);
        scene.alloc(0, 512, 1);
        scene.alloc(512, 512, 3);
        assert_eq!(scene.no_line(), ("".into(), "too many stacks"), "{caps:?}");
        assert_eq!(scene.ledger.refused().stacks, 1, "{caps:?}");
        assert_eq!(scene.parts(), (0, 0, 1024));
    }
}

#[test]
fn threads_beyond_the_cap_are_called_by_their_number() {
    let mut scene = Scene::with_caps(
        0,
        Caps {
            threads: 0,
            ..Caps::default()
        },
    );
    scene.alloc(0, 512, 99);
    assert_eq!(scene.no_line(), ("thread 7".into(), NoStack::Lost.as_str()));
    assert_eq!(scene.ledger.refused().threads, 1);
}

#[test]
fn impossible_numbers_change_nothing_and_count_as_malformed() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 512, 1);
    let before = scene.parts();
    assert_eq!(
        scene.apply(Action::Alloc, u64::MAX, 512, 1),
        Change::Malformed
    );
    assert_eq!(scene.apply(Action::Free, 0, u64::MAX, 1), Change::Malformed);
    let mut event = scene.event(Action::Alloc, 1024, 512, 1);
    event.device = None;
    assert_eq!(scene.ledger.apply(&Event::Memory(event)), Change::Malformed);
    assert_eq!(scene.parts(), before);
    assert_eq!(scene.snapshot().health.losses.malformed, 3);
}

#[test]
fn the_line_that_leaks_grows_steadily_and_others_do_not() {
    let mut scene = Scene::attached_at(0);
    for tick in 0..100 {
        scene.ledger.tick(TimeNs(tick * SECOND / 5));
        // The leak of each step, and its temporary memory.
        scene.alloc(tick * 512, 512, 3);
        scene.alloc(1 << 30, 1 << 20, 1);
        scene.free(1 << 30, 1 << 20);
    }
    scene.ledger.tick(TimeNs(20 * SECOND));
    let leak = scene.line("train.py").growth.expect("it is known");
    assert!(leak.is_steady, "{leak:?}");
    assert_eq!(leak.per_minute, 5 * 60 * 512);
    let swing = scene.line("model.py").growth.expect("it is known");
    assert_eq!((swing.per_minute, swing.is_steady), (0, false));
    assert_eq!(scene.device().growth, Some(leak));
    scene.ledger.health.state = TargetState::Exited;
    scene.ledger.tick(TimeNs(90 * SECOND));
    assert_eq!(scene.line("train.py").growth, Some(leak));
}

#[test]
fn after_a_reset_peaks_and_growth_count_from_then_on() {
    let mut scene = Scene::attached_at(1024);
    scene.alloc(0, 4096, 1);
    scene.free(0, 4096);
    scene.alloc(0, 512, 1);
    for tick in 0..50 {
        scene.ledger.tick(TimeNs(tick * SECOND / 5));
    }
    assert_eq!(scene.line("model.py").peak, Bytes(4096));
    assert!(scene.line("model.py").growth.is_some());
    scene.ledger.reset_peaks(TimeNs(10 * SECOND));
    let line = scene.line("model.py");
    assert_eq!((line.peak, line.growth), (Bytes(512), None));
    assert_eq!(line.stacks[0].peak, Bytes(512));
    let device = scene.device();
    assert_eq!(device.peak, device.totals);
    scene.alloc(512, 1024, 1);
    assert_eq!(scene.line("model.py").peak, Bytes(1536));
}

#[test]
fn blocks_are_counted_only_if_all_are_known() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 512, 1);
    let blocks = |scene: &Scene| {
        let losses = scene.snapshot().health.losses;
        scene.device().all_live_blocks(&losses)
    };
    assert_eq!(blocks(&scene), Some(1));
    scene.report_lost(1);
    assert_eq!(blocks(&scene), None);
    let mut late = Scene::attached_at(1024);
    late.alloc(4096, 512, 1);
    assert_eq!(blocks(&late), None);
}

#[test]
fn rates_count_what_happens_between_ticks() {
    let mut scene = Scene::attached_at(0);
    scene.alloc(0, 512, 3);
    for tick in 0..50 {
        scene.ledger.tick(TimeNs(tick * SECOND / 5));
        for _ in 0..10 {
            scene.alloc(512, 512, 1);
            scene.free(512, 512);
        }
    }
    scene.ledger.tick(TimeNs(10 * SECOND));
    let rate = scene.line("model.py").allocs_per_second;
    assert!((rate - 50.0).abs() < 0.1, "{rate}");
    assert_eq!(scene.line("train.py").allocs_per_second, 0.0);
    let events = scene.snapshot().health.events_per_second;
    assert!((events - 100.0).abs() < 0.2, "{events}");
}

#[test]
fn an_event_before_attach_moves_the_start() {
    let mut ledger = Ledger::new(Target::default(), TimeNs(50));
    let mut event = Scene::attached_at(0).event(Action::Alloc, 0, 512, 1);
    event.time = TimeNs(20);
    ledger.apply(&Event::Memory(event));
    let snapshot = ledger.snapshot(TimeNs(60), Grouping::User);
    assert_eq!(snapshot.started, TimeNs(20));
    assert_eq!(snapshot.devices[0].timeline.all.start, TimeNs(20));
    assert_eq!(ledger.last_event(), Some(TimeNs(20)));
}

#[test]
fn target_state_and_probes_are_shown_as_they_were_set() {
    let mut ledger = Ledger::new(Target::default(), TimeNs(0));
    let target = Target {
        tgid: Some(Tgid(3)),
        ..Target::default()
    };
    let probe = ProbeStatus {
        function: "f".into(),
        library: "libc10.so".into(),
        offset: 7,
        emulated: true,
    };
    ledger.target = target.clone();
    ledger.health.state = TargetState::Exited;
    ledger.health.probes = vec![probe.clone()];
    let snapshot = ledger.snapshot(TimeNs(0), Grouping::User);
    assert_eq!(snapshot.target, target);
    assert_eq!(snapshot.health.state, TargetState::Exited);
    assert_eq!(snapshot.health.probes, [probe]);
}
