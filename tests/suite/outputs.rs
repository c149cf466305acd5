//! Files that memprobe writes as root: for whom they are, and attacks on them by another user of the machine.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use memprobe_tests::confinement::{NOBODY, with_sudo};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use tempfile::TempDir;

/// UID of the user `daemon`, who is neither root nor the caller.
const STRANGER: u32 = 1;

/// Each verb with an option for a file, up to the file. The process does not exist: what cannot be written is said
/// before that.
fn verbs(recording: &str) -> Vec<Vec<&str>> {
    vec![
        vec!["doctor", "--verifier-log"],
        vec!["estimate", recording, "-o"],
        vec!["estimate", "-o"],
        vec!["export", recording, "--format", "folded", "-o"],
        vec!["snapshot", "--pid", "4194304", "-o"],
        vec!["record", "--pid", "4194304", "-o"],
    ]
}

/// A directory of root's, which every user may enter.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    set_mode(folder.path(), 0o755);
    folder
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
}

fn give(path: &Path, uid: u32) {
    chown(path, Some(uid), Some(uid)).expect("given");
}

/// Returns a command that runs memprobe as `nobody` does with sudo.
fn sudo_run(environment: &TestEnvironment, arguments: &[&str]) -> Command {
    let mut command = with_sudo(environment);
    command.args(arguments);
    command
}

/// Records a program on the CPU, for `estimate`.
fn recording(environment: &TestEnvironment, folder: &Path) -> PathBuf {
    let file = folder.join("cpu.json");
    let name = file.to_str().expect("UTF-8");
    let mut command = environment.memprobe();
    command.args(["record", "-q", "--cpu", "-o", name, "--"]);
    command.arg(environment.pytorch().python());
    command.args(["-c", "import torch; x = torch.zeros(1 << 20)"]);
    environment.pytorch().settle(&mut command);
    Background::start(&mut command).finish().succeeded();
    file
}

/// Tries every verb on `output`; each must refuse it with `words`.
fn all_refuse(environment: &TestEnvironment, recording: &Path, output: &Path, words: &[&str]) {
    let recording = recording.to_str().expect("UTF-8");
    let output = output.to_str().expect("UTF-8");
    for verb in verbs(recording) {
        let mut arguments = verb.clone();
        arguments.push(output);
        if verb == ["estimate", "-o"] {
            arguments.extend(["--", "true"]);
        }
        let error = Background::start(&mut sudo_run(environment, &arguments))
            .finish()
            .one_clear_error();
        for word in words {
            assert!(
                error.contains(word),
                "{arguments:?}: {word:?} is missing in: {error}"
            );
        }
    }
}

#[test]
fn links_and_files_of_others_are_refused_by_every_verb() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = folder();
    let recording = recording(&environment, folder.path());
    let refuse = |output: &Path, words: &[&str]| {
        all_refuse(&environment, &recording, output, words);
    };
    let at = |name: &str| folder.path().join(name);
    fs::write(at("precious"), "old").expect("written");
    symlink(at("precious"), at("link")).expect("a link");
    symlink(at("missing"), at("dangling")).expect("a link");
    let linked = at("precious");
    refuse(
        &at("link"),
        &[
            "symbolic link",
            "name what it points to",
            linked.to_str().unwrap(),
        ],
    );
    refuse(&at("dangling"), &["symbolic link"]);
    assert!(!at("missing").exists(), "a dangling link was followed");

    fs::write(at("strange"), "old").expect("written");
    give(&at("strange"), STRANGER);
    refuse(&at("strange"), &["belongs to user daemon", "name another"]);

    fs::create_dir(at("strangers")).expect("a directory");
    give(&at("strangers"), STRANGER);
    refuse(
        &at("strangers/a"),
        &["belongs to user daemon", "directory of yours"],
    );

    fs::create_dir(at("open")).expect("a directory");
    set_mode(&at("open"), 0o777);
    refuse(&at("open/a"), &["every user can exchange", "chmod +t"]);

    let way = at("way");
    symlink(folder.path(), &way).expect("a link");
    std::os::unix::fs::lchown(&way, Some(STRANGER), Some(STRANGER)).expect("given");
    refuse(&at("way/a"), &["symbolic link of user daemon"]);

    for name in ["precious", "strange"] {
        assert_eq!(fs::read_to_string(at(name)).expect("kept"), "old");
    }
    let left = ["strangers", "open"].map(|name| fs::read_dir(at(name)).expect("read").count());
    assert_eq!(left, [0, 0], "something was written");
    assert!(!at("a").exists(), "something was written");
}

#[test]
fn a_directory_of_recordings_is_no_link_and_nobody_elses() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let refused = |output: &Path, word: &str| {
        let output = output.to_str().expect("UTF-8");
        let arguments = ["record", "--pid", "4194304", "-o", output];
        let error = Background::start(&mut sudo_run(&environment, &arguments))
            .finish()
            .one_clear_error();
        assert!(error.contains(word), "{word:?} is missing in: {error}");
    };
    fs::create_dir(at("real")).expect("a directory");
    symlink(at("real"), at("link")).expect("a link");
    for name in ["link", "link/"] {
        refused(&at(name), "symbolic link");
    }
    fs::create_dir(at("strangers")).expect("a directory");
    give(&at("strangers"), STRANGER);
    refused(&at("strangers/"), "belongs to user daemon");
    fs::create_dir(at("open")).expect("a directory");
    set_mode(&at("open"), 0o777);
    refused(&at("open/"), "chmod +t");
    fs::create_dir(at("taken")).expect("a directory");
    symlink(at("precious"), at("taken/index.json")).expect("a link");
    refused(&at("taken/"), "earlier recording");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn what_is_written_belongs_to_the_caller_alone() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = folder();
    give(folder.path(), NOBODY);
    let source = tempfile::tempdir().expect("a folder");
    let recording = recording(&environment, source.path());
    let recording = recording.to_str().expect("UTF-8");
    let python = environment.pytorch().python().to_str().expect("UTF-8");
    let at = |name: &str| folder.path().join(name);
    let run = |arguments: &[&str]| {
        let mut command = sudo_run(&environment, arguments);
        environment.pytorch().settle(&mut command);
        Background::start(&mut command).finish().succeeded();
    };
    let name = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let private = |path: &Path, mode: u32| {
        let there = fs::symlink_metadata(path).expect("written");
        assert_eq!((there.uid(), there.gid()), (NOBODY, NOBODY), "{path:?}");
        assert_eq!(there.mode() & 0o777, mode, "{path:?}");
    };
    run(&["doctor", "--verifier-log", &name(&at("log"))]);
    run(&["estimate", recording, "-o", &name(&at("need.json"))]);
    let script = "import torch; x = torch.zeros(1 << 20, device='cuda')";
    let run_name = name(&at("run/"));
    run(&[
        "record",
        "-q",
        "-o",
        &run_name,
        "--as-root",
        "--",
        python,
        "-c",
        script,
    ]);
    private(&at("log"), 0o600);
    private(&at("need.json"), 0o600);
    private(&at("run"), 0o700);
    let mut written = 0;
    for entry in fs::read_dir(at("run")).expect("a directory") {
        private(&entry.expect("an entry").path(), 0o600);
        written += 1;
    }
    assert_eq!(written, 2, "one recording and the index");
    // A file of the caller is replaced, and stays as open as the caller made it.
    set_mode(&at("need.json"), 0o644);
    run(&["estimate", recording, "-o", &name(&at("need.json"))]);
    private(&at("need.json"), 0o644);
}

#[test]
fn variables_of_sudo_that_do_not_fit_are_an_error() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let folder = folder();
    let file = folder.path().join("log");
    let name = file.to_str().expect("UTF-8");
    for (variable, value) in [("SUDO_UID", "-1"), ("SUDO_GID", "0"), ("SUDO_USER", "root")] {
        let mut command = sudo_run(&environment, &["doctor", "--verifier-log", name]);
        let error = Background::start(command.env(variable, value))
            .finish()
            .one_clear_error();
        assert!(
            error.contains("SUDO_") && error.contains("env -u"),
            "{error}"
        );
    }
    assert!(!file.exists());
}
