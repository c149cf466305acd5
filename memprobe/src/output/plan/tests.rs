use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn record(path: &Path, text: &str) -> OutputFile {
    let mut file = OutputPlan::check(path).unwrap().create().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn a_new_file_is_created_when_recording_starts_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    let plan = OutputPlan::check(&path).unwrap();
    assert!(!path.exists());
    let file = plan.create().unwrap();
    assert_eq!(file.lies_at(), Some(&*path));
    assert_eq!(file.commit().unwrap(), Some(path));
}

#[test]
fn a_new_file_can_appear_only_when_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    let mut file = OutputPlan::check(&path).unwrap().create_partial().unwrap();
    file.write_all(b"whole").unwrap();
    assert!(!path.exists());
    assert_eq!(file.commit().unwrap(), Some(path.clone()));
    assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_file_that_was_there_stays_until_the_new_recording_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let file = record(&path, "new");
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(
        file.lies_at().unwrap(),
        dir.path().join("trace.json.partial")
    );
    assert_eq!(
        file.commit().unwrap().unwrap(),
        fs::canonicalize(&path).unwrap()
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o640
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_unfinished_recording_stays_next_to_the_old_one_and_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    fs::write(&path, "old").unwrap();
    let first = record(&path, "first").lies_at().unwrap().to_owned();
    let second = record(&path, "second").lies_at().unwrap().to_owned();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(fs::read_to_string(first).unwrap(), "first");
    assert_eq!(fs::read_to_string(second).unwrap(), "second");
}

#[test]
fn a_link_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("real.json"), dir.path().join("link.json"));
    fs::write(&path, "old").unwrap();
    symlink(&path, &link).unwrap();
    let error = OutputPlan::check(&link).unwrap_err().to_string();
    assert!(
        error.contains("it is a symbolic link; name what it points to"),
        "{error}"
    );
    assert!(error.contains("real.json"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn a_link_that_comes_after_the_check_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("precious"), "old").unwrap();
    for whole in [false, true] {
        let name = if whole { "whole.json" } else { "stream.json" };
        let plan = OutputPlan::check(&at(name)).unwrap();
        symlink(at("precious"), at(name)).unwrap();
        let opened = if whole {
            plan.create_partial()
        } else {
            plan.create()
        };
        let error = opened.unwrap_err().to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }
    let mut file = OutputPlan::check(&at("late.json"))
        .unwrap()
        .create_partial()
        .unwrap();
    file.write_all(b"new").unwrap();
    symlink(at("precious"), at("late.json")).unwrap();
    let error = file.commit().unwrap_err().to_string();
    assert!(error.contains("late.json.partial"), "{error}");
    assert_eq!(fs::read_to_string(at("precious")).unwrap(), "old");
    assert_eq!(fs::read_to_string(at("late.json.partial")).unwrap(), "new");
}

#[test]
fn a_link_in_the_place_of_an_unfinished_file_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("precious"), "old").unwrap();
    symlink(at("precious"), at("a.json.partial")).unwrap();
    let plan = OutputPlan::check(&at("a.json")).unwrap();
    assert_eq!(plan.write(b"new").unwrap(), Some(at("a.json")));
    assert_eq!(fs::read_to_string(at("precious")).unwrap(), "old");
    assert_eq!(fs::read_to_string(at("a.json")).unwrap(), "new");
}

#[test]
fn directories_on_the_way_may_be_links_of_ones_own() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("disk/runs")).unwrap();
    symlink("disk", at("data")).unwrap();
    symlink(at("data"), at("absolute")).unwrap();
    for (way, name) in [("data/runs", "a"), ("absolute/../disk/runs", "b")] {
        let path = at(way).join(name);
        record(&path, "new").commit().unwrap();
        assert_eq!(
            fs::read_to_string(at("disk/runs").join(name)).unwrap(),
            "new"
        );
    }
    symlink("circle", at("circle")).unwrap();
    let error = OutputPlan::check(&at("circle/a.json")).unwrap_err();
    assert!(
        error.to_string().contains("too many symbolic links"),
        "{error}"
    );
}

#[test]
fn new_files_are_for_their_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (stream, whole) = (dir.path().join("a.json"), dir.path().join("b.json"));
    record(&stream, "new");
    OutputPlan::check(&whole).unwrap().write(b"new").unwrap();
    assert_eq!((mode(&stream), mode(&whole)), (0o600, 0o600));
}

#[test]
fn descriptors_of_the_shell_are_written_to() {
    use std::io::{Read as _, Seek as _};
    use std::os::fd::AsRawFd as _;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"before ").unwrap();
    for folder in ["/dev/fd", "/proc/self/fd"] {
        let name = format!("{folder}/{}", file.as_raw_fd());
        record(Path::new(&name), "x").commit().unwrap();
    }
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before xx");
    assert!(
        OutputPlan::check(Path::new("/dev/stdout"))
            .unwrap()
            .is_stdout()
    );
    let closed = OutputPlan::check(Path::new("/dev/fd/99999")).unwrap_err();
    assert!(closed.to_string().contains("not open"), "{closed}");
}

#[test]
fn a_fifo_is_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let reader = std::thread::spawn({
        let path = path.clone();
        move || fs::read_to_string(path).unwrap()
    });
    record(&path, "new").commit().unwrap();
    assert_eq!(reader.join().unwrap(), "new");
}

#[test]
fn a_file_that_somebody_creates_meanwhile_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    let plan = OutputPlan::check(&path).unwrap();
    fs::write(&path, "theirs").unwrap();
    let mut file = plan.create().unwrap();
    file.write_all(b"ours").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
}

#[test]
fn devices_are_written_directly() {
    let file = OutputPlan::check(Path::new("/dev/null"))
        .unwrap()
        .create()
        .unwrap();
    assert_eq!(file.commit().unwrap().unwrap(), Path::new("/dev/null"));
    assert!(OutputPlan::check(Path::new("-")).unwrap().is_stdout());
}

#[test]
fn what_cannot_work_is_said_before_recording_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let text = OutputPlan::check(dir.path()).unwrap_err().to_string();
    assert!(
        text.contains("it is a directory; name a file in it, such as"),
        "{text}"
    );
    let text = OutputPlan::check(&dir.path().join("a/b.json"))
        .unwrap_err()
        .to_string();
    assert!(text.contains("there is no directory"), "{text}");
    assert!(text.contains("mkdir -p"), "{text}");
}
