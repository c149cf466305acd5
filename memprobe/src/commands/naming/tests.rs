use super::*;
use crate::event::tensors::TensorKind;
use crate::event::{Address, Bytes, DeviceIndex, MarkedPhase, PhaseMark, StackId, Tid};
use crate::torch::tensors::SnapshotError;

const TGID: Tgid = Tgid(7);

fn event(item: HostItem) -> HostEvent {
    HostEvent { tgid: TGID, item }
}

fn step(time: u64) -> HostEvent {
    let mark = PhaseMark {
        time: TimeNs(time),
        tgid: TGID,
        tid: Tid(7),
        phase: MarkedPhase::Step,
        class: "Adam".into(),
        stack: StackId::NONE,
    };
    event(HostItem::Event(Event::PhaseMark(mark)))
}

fn parameter() -> LabeledBlock {
    LabeledBlock {
        kind: Some(TensorKind::Parameter),
        ..LabeledBlock::unlabeled(Address(512), Bytes(512), DeviceIndex::CPU)
    }
}

fn read_at(time: u64, blocks: Vec<LabeledBlock>) -> Reading {
    let names = BlockLabels {
        time: TimeNs(time),
        tgid: TGID,
        blocks,
        optimizers: Vec::new(),
        tags: Vec::new(),
    };
    (TGID, Ok((names, Consistency::Running)))
}

/// One that reads the process already.
fn reading() -> NameReader {
    let mut reader = NameReader::new(
        Naming::NowAndThen,
        Allocators::CudaAndCpu,
        CaptureMode::Paused,
    );
    reader.held.insert(TGID, Held::default());
    reader
}

/// Times of marks, 0 for names, and 1 for the end.
fn times_of(events: &[HostEvent]) -> Vec<u64> {
    let time = |event: &HostEvent| match event.item {
        HostItem::Ended => 1,
        _ => time_of(event).map_or(0, |time| time.0),
    };
    events.iter().map(time).collect()
}

fn placed(reader: &mut NameReader, is_settled: bool) -> Placed {
    let mut placed = reader.place(|_| is_settled, |_, _| {});
    assert_eq!(placed.len(), 1);
    placed.remove(0)
}

#[test]
fn names_stand_between_what_was_before_and_what_was_after_their_moment() {
    let mut reader = reading();
    for time in [10, 20, 30] {
        assert!(matches!(reader.pass(step(time)), Passed::Held));
    }
    assert!(reader.take(read_at(20, vec![parameter()])).is_none());
    let placed = placed(&mut reader, false);
    assert!(placed.said.starts_with("1 block named"), "{}", placed.said);
    assert_eq!(times_of(&placed.events), [10, 20, 0, 30]);
    assert!(matches!(reader.pass(step(40)), Passed::On(_)));
}

#[test]
fn names_wait_for_what_was_before_their_moment() {
    let mut reader = reading();
    reader.pass(step(10));
    reader.take(read_at(20, vec![parameter()]));
    assert!(reader.place(|_| false, |_, _| {}).is_empty());
    reader.pass(step(15));
    assert_eq!(times_of(&placed(&mut reader, true).events), [10, 15, 0]);
}

#[test]
fn what_was_read_of_a_process_that_has_ended_meanwhile_stands_before_its_end() {
    let mut reader = reading();
    reader.pass(step(10));
    assert!(matches!(reader.pass(event(HostItem::Ended)), Passed::Held));
    reader.take(read_at(20, vec![parameter()]));
    assert_eq!(times_of(&placed(&mut reader, false).events), [10, 0, 1]);
    assert!(!reader.is_reading() && reader.courses.is_empty());
}

#[test]
fn a_process_that_ended_too_soon_gets_advice() {
    let mut reader = reading();
    reader.pass(event(HostItem::Ended));
    reader.take((TGID, Err(anyhow::anyhow!("it has ended"))));
    let placed = placed(&mut reader, false);
    assert_eq!(times_of(&placed.events), [1]);
    assert!(placed.said.contains("more steps"), "{}", placed.said);
}

#[test]
fn a_process_whose_model_is_gone_keeps_the_names_that_it_had() {
    let mut reader = reading();
    reader.course(TGID).has_names = true;
    reader.take(read_at(20, Vec::new()));
    let placed = placed(&mut reader, true);
    assert!(placed.events.is_empty());
    assert!(placed.said.contains("no live block"), "{}", placed.said);
    let unnamed = LabeledBlock {
        kind: None,
        ..parameter()
    };
    reader.course(TGID).has_names = false;
    reader.held.insert(TGID, Held::default());
    reader.take(read_at(20, vec![unnamed]));
    let said = self::placed(&mut reader, true).said;
    assert!(said.contains("no tensor had one of its 1 block"), "{said}");
}

#[test]
fn a_process_is_read_at_the_first_call_and_the_second_step_and_ever_more_seldom_after_it() {
    let mut course = Course {
        has_called: true,
        ..Course::BEGINNING
    };
    let mut due = Vec::new();
    for number in 0..=1100 {
        course.steps = number;
        if course.is_due(Instant::now()) {
            course.is_read();
            due.push(number);
        }
    }
    assert_eq!(due, [0, 2, 16, 128, 1024]);
}

fn failed(error: SnapshotError) -> Reading {
    (TGID, Err(NotTaken { tgid: TGID, error }.into()))
}

#[test]
fn a_reading_that_failed_for_now_is_tried_again_ever_more_seldom_and_not_for_ever() {
    let slow = || failed(SnapshotError::Torn);
    let mut reader = reading();
    for wait in [10, 40, 160] {
        reader.take(slow());
        let wait = Duration::from_secs(wait);
        assert_eq!(placed(&mut reader, true).retry, Some(wait));
        let now = Instant::now();
        assert_eq!(reader.due_retries(now), []);
        assert_eq!(reader.due_retries(now + wait), [TGID]);
        let course = reader.course(TGID);
        assert!(!course.is_due(now) && course.is_due(now + wait));
        course.is_read();
        assert_eq!(reader.due_retries(now + wait), []);
        reader.held.insert(TGID, Held::default());
    }
    reader.take(slow());
    assert_eq!(placed(&mut reader, true).retry, None);
    assert_eq!(reader.course(TGID).retry, None);
    // One that succeeds begins anew.
    reader.held.insert(TGID, Held::default());
    reader.take(read_at(20, vec![parameter()]));
    placed(&mut reader, true);
    reader.held.insert(TGID, Held::default());
    reader.take(slow());
    assert_eq!(placed(&mut reader, true).retry, Some(RETRY));
}

#[test]
fn a_reading_that_cannot_succeed_and_one_after_the_recording_are_not_tried_again() {
    let mut reader = reading();
    reader.take(failed(SnapshotError::NoTorch));
    assert_eq!(placed(&mut reader, true).retry, None);
    reader.held.insert(TGID, Held::default());
    reader.naming = Naming::Off;
    reader.take(failed(SnapshotError::Torn));
    let placed = placed(&mut reader, true);
    assert_eq!(placed.retry, None);
    assert!(placed.said.starts_with("its tensors have no names: "));
    assert_eq!(reader.course(TGID).retry, None);
}

#[test]
fn the_line_says_how_far_the_reading_is() {
    let mut reader = reading();
    let of_one = reader.progress_line(1);
    let running = "reading names: PID 7: finding what to copy, the process runs";
    assert_eq!(of_one.as_deref(), Some(running));
    let of_three = reader.progress_line(3);
    let running = "reading names: 2 of 3 processes, PID 7: finding what to copy, the process runs";
    assert_eq!(of_three.as_deref(), Some(running));
    reader.take(read_at(20, vec![parameter()]));
    let waiting = reader.progress_line(1);
    let for_events = "reading names: waiting for the last events";
    assert_eq!(waiting.as_deref(), Some(for_events));
    placed(&mut reader, true);
    assert_eq!(reader.progress_line(1), None);
}

#[test]
fn without_being_asked_nothing_is_read() {
    let mut reader = NameReader::new(Naming::Off, Allocators::Cuda, CaptureMode::Paused);
    for time in 0..9 {
        reader.pass(event(HostItem::SnapshotPoint(SnapshotPoint::Step)));
        assert!(matches!(reader.pass(step(time)), Passed::On(_)));
    }
    reader.begin_last([TGID].into_iter());
    assert!(!reader.is_reading());
}
