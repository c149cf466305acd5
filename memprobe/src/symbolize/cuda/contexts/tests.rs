use super::*;

const THREAD: Tid = Tid(1);
const OTHER: Tid = Tid(2);

fn on(device: u8, context: ContextHandle) -> ThreadContext {
    ThreadContext {
        device: Some(DeviceIndex(device)),
        context,
    }
}

/// The device of a call of the runtime, and of one of the driver.
fn devices(contexts: &CudaContexts, tid: Tid) -> (Option<u8>, Option<u8>) {
    let device = |caller| contexts.of(tid, caller).device.map(|device| device.0);
    (device(CallerKind::Runtime), device(CallerKind::Other))
}

/// A process in which `cudaSetDevice` has bound 0xc0 for device 0 and 0xc1 for device 1, on [`THREAD`].
fn two_devices() -> CudaContexts {
    let mut contexts = CudaContexts::default();
    contexts.set_device(THREAD, 0, Bound::Context(0xc0));
    contexts.set_device(THREAD, 1, Bound::Context(0xc1));
    contexts
}

#[test]
fn a_thread_is_on_device_0_of_the_runtime_only_if_it_was_watched_from_the_start() {
    let watched = CudaContexts::from_the_start();
    assert_eq!(devices(&watched, THREAD), (Some(0), None));
    assert_eq!(devices(&CudaContexts::default(), THREAD), (None, None));
}

#[test]
fn each_thread_has_its_own_device() {
    let mut contexts = CudaContexts::from_the_start();
    contexts.set_device(THREAD, 3, Bound::Nothing);
    assert_eq!(devices(&contexts, THREAD), (Some(3), None));
    assert_eq!(devices(&contexts, OTHER), (Some(0), None));
}

#[test]
fn contexts_are_a_stack() {
    let mut contexts = CudaContexts::from_the_start();
    let at = |contexts: &CudaContexts| contexts.of(THREAD, CallerKind::Other);
    contexts.create(THREAD, 0xc1, 1);
    assert_eq!(at(&contexts), on(1, Some(0xc1)));
    contexts.create(THREAD, 0xc2, 2);
    contexts.pop(THREAD, Some(0xc2));
    assert_eq!(at(&contexts), on(1, Some(0xc1)));
    contexts.push(THREAD, 0xc2);
    contexts.destroy(THREAD, 0xc2);
    assert_eq!(at(&contexts), on(1, Some(0xc1)));
    contexts.set_context(THREAD, 0, CallerKind::Other);
    assert_eq!(devices(&contexts, THREAD), (Some(0), None));
    contexts.set_context(THREAD, 0, CallerKind::Other);
    assert_eq!(devices(&contexts, THREAD), (Some(0), None), "a no-op");
}

#[test]
fn what_is_beneath_the_contexts_that_were_seen_is_not_known() {
    let mut contexts = CudaContexts::default();
    contexts.create(THREAD, 0xc1, 1);
    contexts.set_device(THREAD, 2, Bound::Context(0xc2));
    assert_eq!(devices(&contexts, THREAD), (Some(2), Some(2)));
    contexts.pop(THREAD, Some(0xc2));
    assert_eq!(devices(&contexts, THREAD), (None, None));
    contexts.set_device(OTHER, 2, Bound::Nothing);
    contexts.push(OTHER, 0xc1);
    contexts.pop(OTHER, None);
    assert_eq!(devices(&contexts, OTHER), (Some(2), None));
    contexts.pop(OTHER, None);
    assert_eq!(devices(&contexts, OTHER), (None, None));
}

#[test]
fn a_stack_that_is_too_deep_has_an_unknown_bottom() {
    let mut contexts = CudaContexts::from_the_start();
    for context in 1..=65 {
        contexts.create(THREAD, context, 1);
    }
    for _ in 0..64 {
        assert_eq!(devices(&contexts, THREAD), (Some(1), Some(1)));
        contexts.pop(THREAD, None);
    }
    assert_eq!(devices(&contexts, THREAD), (None, None));
}

#[test]
fn a_primary_context_is_the_devices_own() {
    let mut contexts = CudaContexts::from_the_start();
    contexts.retain_primary(0xaa, 1);
    contexts.set_context(THREAD, 0xaa, CallerKind::Other);
    assert_eq!(contexts.of(THREAD, CallerKind::Other), on(1, None));
    contexts.retain_primary(0xaa, 1);
    assert_eq!(contexts.release_primary(1), None);
    assert_eq!(contexts.release_primary(1), Some(DeviceIndex(1)));
    assert_eq!(contexts.release_primary(1), None);
    contexts.set_context(THREAD, 0xbb, CallerKind::Other);
    assert_eq!(devices(&contexts, THREAD), (None, None), "a stranger");
}

#[test]
fn a_primary_context_that_others_may_hold_is_not_gone_with_the_last_reference_that_was_seen() {
    let mut attached_late = CudaContexts::default();
    attached_late.retain_primary(0xaa, 1);
    assert_eq!(attached_late.release_primary(1), None);
    attached_late.set_context(THREAD, 0xaa, CallerKind::Other);
    assert_eq!(devices(&attached_late, THREAD), (None, None), "it may be");

    let mut set_before = CudaContexts::from_the_start();
    set_before.set_context(THREAD, 0xaa, CallerKind::Other);
    set_before.retain_primary(0xaa, 1);
    assert_eq!(set_before.release_primary(1), None);

    let mut held_by_runtime = two_devices();
    held_by_runtime.retain_primary(0xc1, 1);
    assert_eq!(held_by_runtime.release_primary(1), None);
    held_by_runtime.set_context(OTHER, 0xc1, CallerKind::Other);
    assert_eq!(devices(&held_by_runtime, OTHER), (Some(1), Some(1)));
}

#[test]
fn a_context_is_learned_from_the_call_that_sets_the_device() {
    let mut contexts = two_devices();
    contexts.set_context(OTHER, 0xc0, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (Some(0), Some(0)));
    contexts.push(OTHER, 0xc1);
    assert_eq!(devices(&contexts, OTHER), (Some(1), Some(1)));
}

#[test]
fn a_context_is_learned_from_a_call_of_a_thread_whose_device_is_known() {
    let mut contexts = CudaContexts::default();
    contexts.run(OTHER, Bound::Context(0xc2));
    assert_eq!(devices(&contexts, OTHER), (None, None));
    contexts.set_device(THREAD, 2, Bound::Nothing);
    contexts.run(THREAD, Bound::Context(0xc2));
    assert_eq!(devices(&contexts, THREAD), (Some(2), Some(2)));
    assert_eq!(devices(&contexts, OTHER), (Some(2), Some(2)));
}

#[test]
fn until_the_runtime_binds_its_device_the_driver_works_in_the_context_before() {
    let mut contexts = two_devices();
    contexts.set_device(THREAD, 0, Bound::Nothing);
    assert_eq!(devices(&contexts, THREAD), (Some(0), None));
    contexts.run(THREAD, Bound::Context(0xc0));
    assert_eq!(devices(&contexts, THREAD), (Some(0), Some(0)));
}

#[test]
fn a_thread_whose_context_was_set_by_others_is_where_that_is() {
    let mut contexts = two_devices();
    contexts.set_context(THREAD, 0xc0, CallerKind::Other);
    assert_eq!(devices(&contexts, THREAD), (Some(0), Some(0)));
    contexts.run(THREAD, Bound::Nothing);
    assert_eq!(devices(&contexts, THREAD), (Some(0), Some(0)));
    contexts.set_context(THREAD, 0xdd, CallerKind::Other);
    contexts.run(THREAD, Bound::Nothing);
    assert_eq!(devices(&contexts, THREAD), (None, None));
}

#[test]
fn the_runtime_keeps_its_device_whichever_context_it_sets_itself() {
    let mut contexts = two_devices();
    contexts.set_context(THREAD, 0xc0, CallerKind::Runtime);
    assert_eq!(devices(&contexts, THREAD), (Some(1), None));
    contexts.set_context(THREAD, 0xc1, CallerKind::Runtime);
    assert_eq!(devices(&contexts, THREAD), (Some(1), Some(1)));
    contexts.set_context(THREAD, 0xc7, CallerKind::Runtime);
    contexts.set_context(OTHER, 0xc7, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (None, None), "not learned");
}

#[test]
fn a_context_that_two_devices_are_said_to_have_is_unknown_until_it_is_said_anew() {
    let mut contexts = two_devices();
    contexts.set_context(OTHER, 0xc1, CallerKind::Other);
    contexts.set_device(THREAD, 0, Bound::Context(0xc1));
    assert_eq!(devices(&contexts, THREAD), (Some(0), None));
    assert_eq!(devices(&contexts, OTHER), (None, None));
    contexts.set_device(THREAD, 0, Bound::Context(0xc1));
    contexts.set_context(OTHER, 0xc1, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (Some(0), Some(0)));
    contexts.set_context(OTHER, 0xc0, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (None, None), "one a device");
}

#[test]
fn a_call_that_binds_a_context_of_another_device_leaves_both_unknown() {
    let mut contexts = two_devices();
    contexts.run(THREAD, Bound::Context(0xc0));
    assert_eq!(devices(&contexts, THREAD), (None, None));
    contexts.set_context(OTHER, 0xc0, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (None, None));

    let mut contexts = two_devices();
    contexts.run(THREAD, Bound::Context(0xc5));
    contexts.set_context(OTHER, 0xc5, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (None, None), "1 has 0xc1");
    contexts.set_context(OTHER, 0xc1, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (None, None), "or 0xc5");
}

#[test]
fn the_runtime_working_on_its_device_shows_that_the_current_context_is_another() {
    let mut contexts = two_devices();
    contexts.set_device(THREAD, 0, Bound::Nothing);
    contexts.run(THREAD, Bound::Nothing);
    assert_eq!(devices(&contexts, THREAD), (Some(0), None));
    contexts.set_context(OTHER, 0xc1, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (None, None));
}

#[test]
fn a_primary_context_that_was_learned_otherwise_is_what_the_driver_says() {
    let mut contexts = two_devices();
    contexts.set_context(OTHER, 0xc1, CallerKind::Other);
    contexts.retain_primary(0xc1, 0);
    assert_eq!(devices(&contexts, THREAD), (None, None));
    assert_eq!(devices(&contexts, OTHER), (None, None));
    contexts.set_context(OTHER, 0xc1, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (Some(0), Some(0)));
    contexts.set_context(OTHER, 0xc0, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (None, None), "one a device");
}

#[test]
fn an_unexpected_context_on_top_makes_the_whole_stack_unknown() {
    let mut contexts = two_devices();
    contexts.push(THREAD, 0xc0);
    contexts.push(THREAD, 0xc1);
    contexts.pop(THREAD, Some(0xc0));
    assert_eq!(devices(&contexts, THREAD), (None, None));
    contexts.pop(THREAD, None);
    assert_eq!(devices(&contexts, THREAD), (None, None));

    let mut contexts = CudaContexts::from_the_start();
    contexts.pop(THREAD, None);
    assert_eq!(devices(&contexts, THREAD), (None, None), "it had one");
    assert_eq!(devices(&contexts, OTHER), (Some(0), None));
}

#[test]
fn a_destroyed_context_stays_with_other_threads_but_is_not_known_any_more() {
    let mut contexts = CudaContexts::from_the_start();
    contexts.create(THREAD, 0xc1, 1);
    contexts.set_context(OTHER, 0xc1, CallerKind::Other);
    contexts.destroy(THREAD, 0xc1);
    assert_eq!(devices(&contexts, THREAD), (Some(0), None));
    contexts.create(THREAD, 0xc1, 2);
    assert_eq!(devices(&contexts, OTHER), (None, None));
    assert_eq!(devices(&contexts, THREAD), (Some(2), Some(2)));
    contexts.destroy(OTHER, 0xc1);
    assert_eq!(devices(&contexts, OTHER), (None, None));
    assert_eq!(
        contexts.of(THREAD, CallerKind::Other),
        ThreadContext::default()
    );
}

#[test]
fn a_reset_device_has_another_primary_context_from_then_on() {
    let mut contexts = two_devices();
    contexts.set_context(OTHER, 0xc1, CallerKind::Other);
    assert_eq!(
        contexts.reset_device(THREAD),
        (Some(DeviceIndex(1)), vec![0xc1])
    );
    assert_eq!(devices(&contexts, THREAD), (Some(1), None));
    assert_eq!(devices(&contexts, OTHER), (None, None));
    contexts.create(THREAD, 0xc1, 0);
    assert_eq!(devices(&contexts, OTHER), (None, None), "not the new one");

    let mut contexts = two_devices();
    assert_eq!(contexts.reset_device(OTHER), (None, vec![]));
    contexts.set_context(OTHER, 0xc0, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (None, None), "any may be gone");
}

#[test]
fn a_context_is_detached_as_often_as_it_was_attached() {
    let mut contexts = CudaContexts::from_the_start();
    contexts.create(THREAD, 0xc1, 1);
    contexts.attach(0xc1);
    assert!(!contexts.detach(THREAD, 0xc1));
    assert_eq!(devices(&contexts, THREAD), (Some(1), Some(1)));
    assert!(contexts.detach(THREAD, 0xc1));
    assert_eq!(devices(&contexts, THREAD), (Some(0), None));

    let mut contexts = two_devices();
    assert!(!contexts.detach(THREAD, 0xc9));
    assert_eq!(devices(&contexts, THREAD), (None, None));
}

#[test]
fn a_green_context_is_a_part_of_the_primary_one() {
    let mut contexts = CudaContexts::from_the_start();
    contexts.retain_primary(0xc1, 1);
    contexts.create_green(0x60, 1);
    contexts.convert_green(0xc6, 0x60);
    contexts.push(THREAD, 0xc6);
    contexts.set_context(OTHER, 0xc1, CallerKind::Other);
    assert_eq!(contexts.of(THREAD, CallerKind::Other), on(1, None));
    assert_eq!(contexts.destroy_green(0x60), None);
    assert_eq!(devices(&contexts, THREAD), (None, None));
    assert_eq!(devices(&contexts, OTHER), (Some(1), Some(1)));
    assert_eq!(contexts.destroy_green(0x60), None, "gone already");
    assert_eq!(contexts.release_primary(1), Some(DeviceIndex(1)));
    contexts.convert_green(0xc1, 0x61);
    contexts.set_context(OTHER, 0xc1, CallerKind::Other);
    assert_eq!(devices(&contexts, OTHER), (None, None), "of one unseen");
}

#[test]
fn more_threads_than_are_remembered_are_not_taken_to_be_at_their_beginning() {
    let mut contexts = CudaContexts::from_the_start();
    for tid in 0..=u32::try_from(THREADS).expect("a number") {
        contexts.set_device(Tid(tid), 1, Bound::Nothing);
    }
    assert_eq!(devices(&contexts, Tid(0)), (None, None));
}

#[test]
fn a_device_has_a_small_ordinal() {
    assert_eq!(device(3 | 7 << 32), Some(DeviceIndex(3)));
    for ordinal in [254, 255, 256, u64::MAX] {
        assert_eq!(device(ordinal), None);
    }
    let mut contexts = two_devices();
    contexts.set_device(THREAD, u64::MAX, Bound::Context(0xc0));
    assert_eq!(devices(&contexts, THREAD), (None, None));
}
