use super::*;
use crate::recording::samples::{recording, story};

/// Exports the sample recording; returns it with the notes on it.
fn exported(format: ExportFormat, moment: ExportMoment) -> (Vec<u8>, Vec<String>) {
    let recording = recording(&story());
    let reader = Reader::new(&recording[..]).expect("a recording");
    let mut out = Vec::new();
    let progress = AtomicU64::new(0);
    let notes = write_export(reader, format, moment, &progress, &mut out).expect("an export");
    assert!(progress.into_inner() > 10);
    (out, notes)
}

fn text(format: ExportFormat, moment: ExportMoment) -> String {
    let (out, notes) = exported(format, moment);
    let out = String::from_utf8(out).expect("UTF-8");
    format!("{out}\n{}", notes.join("\n"))
}

#[test]
fn folded_stacks_at_the_end_have_memory_from_before_attach_and_backward_passes() {
    insta::assert_snapshot!(text(ExportFormat::Folded, ExportMoment::End));
}

#[test]
fn folded_stacks_at_the_peak_are_of_each_device_at_its_own() {
    insta::assert_snapshot!(text(ExportFormat::Folded, ExportMoment::Peak));
}

#[test]
fn a_failed_request_is_one_moment_of_all_devices() {
    insta::assert_snapshot!(text(ExportFormat::Folded, ExportMoment::OutOfMemory));
}

#[test]
fn speedscope_gets_a_profile_of_each_device() {
    insta::assert_snapshot!(text(ExportFormat::Speedscope, ExportMoment::Peak));
}

#[test]
fn a_recording_without_a_failed_request_says_so_and_what_to_give_instead() {
    let mut events = story();
    events.retain(|event| !matches!(event, crate::event::Event::Memory(it) if it.addr.0 == 0));
    let recording = recording(&events);
    let reader = Reader::new(&recording[..]).expect("a recording");
    let progress = AtomicU64::new(0);
    let failed = write_export(
        reader,
        ExportFormat::Folded,
        ExportMoment::OutOfMemory,
        &progress,
        &mut Vec::new(),
    );
    let error = failed.expect_err("no such moment").to_string();
    assert!(error.ends_with("or give --at peak"), "{error}");
}
