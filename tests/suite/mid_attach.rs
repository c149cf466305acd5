//! Attaching to a running training loop, at any moment.

use memprobe_tests::excerpt::Excerpts;
use memprobe_tests::ground::Ground;

/// Number of attaches.
const ATTACHED: usize = 20;

#[test]
fn attached_twenty_times_at_random_moments_memprobe_tells_the_same_story_as_pytorch() {
    let Some(ground) = Ground::take() else { return };
    let excerpts = Excerpts::take(&ground, ground.pytorch(), ATTACHED)
        .unwrap_or_else(|refusal| panic!("memprobe refuses: {refusal}"));
    let compared = excerpts
        .compare()
        .unwrap_or_else(|difference| panic!("{difference}"));
    println!(
        "steady.py  python {}  attached {ATTACHED} times  {} events  {} checkpoints",
        excerpts.reference.python, compared.events, compared.checkpoints
    );
    assert!(
        compared.checkpoints >= ATTACHED,
        "too few checkpoints fell into them"
    );
}
