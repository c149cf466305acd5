//! On a kernel that is too old memprobe says so, and what would do.

use std::fs;

use memprobe_tests::ground::Ground;
use memprobe_tests::process::Background;

/// The oldest kernel that memprobe works on, as its README says.
const OLDEST: (u32, u32) = (5, 15);

#[test]
fn a_kernel_that_is_too_old_is_refused_with_words() {
    let Some(ground) = Ground::take() else { return };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    if version >= (Some(OLDEST.0), Some(OLDEST.1)) {
        println!("skipped: {} is not too old", release.trim());
        return;
    }
    let mut command = ground.pytorch().command();
    let mut target = Background::start(command.args(["steady.py", "--seconds", "600"]));
    target.wait_for("PID ");
    let pid = target.pid().to_string();
    for verb in [&["record", "-o", "/dev/null"][..], &["attach"]] {
        let error = ground
            .run(&[verb, &["--pid", &pid]].concat())
            .one_clear_error();
        for words in [release.trim(), "needs Linux 5.15 or newer"] {
            assert!(error.contains(words), "{words:?} is not in: {error}");
        }
        println!("{}: {}", verb[0], error.replace('\n', " "));
    }
    assert!(!target.has_ended());
}
