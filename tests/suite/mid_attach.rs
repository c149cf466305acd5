//! Attaching to a running training loop, at any moment.

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::partial_recordings::PartialRecordings;

/// Number of attaches.
const ATTACHED: usize = 20;

#[test]
fn attached_twenty_times_at_random_moments_memprobe_agrees_with_pytorch() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let recordings = PartialRecordings::take(&environment, environment.pytorch(), ATTACHED)
        .unwrap_or_else(|refusal| panic!("memprobe refuses: {refusal}"));
    let compared = recordings
        .compare()
        .unwrap_or_else(|difference| panic!("{difference}"));
    println!(
        "steady.py  python {}  attached {ATTACHED} times  {} events  {} checkpoints",
        recordings.reference.python, compared.events, compared.checkpoints
    );
    assert!(
        compared.checkpoints >= ATTACHED,
        "too few checkpoints fell into them"
    );
}
