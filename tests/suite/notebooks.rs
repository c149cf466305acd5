//! The magics of IPython, in a notebook that runs without a browser, as a user with sudo.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use memprobe_tests::confinement::{NOBODY, readable_by_all};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use serde_json::Value;

/// Environment variable with the folder of ipykernel and nbclient. `cargo xtask test` sets it.
const PACKAGES: &str = "MEMPROBE_TEST_NOTEBOOK_PACKAGES";

/// Builds the wheel from a copy of its sources, and installs it below `folder`, as pip does for users.
fn install_wheel(environment: &TestEnvironment, folder: &Path) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let (copy, wheels) = (folder.join("sources"), folder.join("wheels"));
    fs::create_dir_all(copy.join("memprobe")).expect("made");
    for part in ["", "memprobe"] {
        let entries = fs::read_dir(sources.join(part)).expect("sources");
        for entry in entries.map(|entry| entry.expect("a file")) {
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                fs::copy(entry.path(), copy.join(part).join(entry.file_name())).expect("copied");
            }
        }
    }
    let pip = |arguments: &[&str]| {
        let mut command = environment.pytorch().command();
        command
            .args(["-m", "pip", "--disable-pip-version-check", "--quiet"])
            .args(arguments);
        Background::start(&mut command).finish().succeeded();
    };
    // setuptools comes with PyTorch: nothing is downloaded.
    let [copy, wheels] = [&copy, &wheels].map(|path| path.to_str().expect("UTF-8"));
    pip(&[
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        wheels,
        copy,
    ]);
    let wheel = fs::read_dir(wheels).expect("a folder").next();
    let wheel = wheel.expect("a wheel").expect("a file").path();
    assert!(
        wheel.to_string_lossy().ends_with("-py3-none-any.whl"),
        "{wheel:?}"
    );
    let installed = folder.join("installed");
    pip(&[
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        installed.to_str().expect("UTF-8"),
        wheel.to_str().expect("UTF-8"),
    ]);
    assert!(installed.join("memprobe/magics.py").exists());
}

/// A sudo that asks for no password: `$1` is a program that becomes root.
const SUDO: &str = "#!/bin/sh
test \"$1 $2\" = '-n --' || exit 9
shift 2
exec AS_ROOT --reuid=0 --regid=0 --clear-groups -- \\
    /usr/bin/env SUDO_UID=65534 SUDO_GID=65534 SUDO_USER=nobody \"$@\"
";

const REFUSING_SUDO: &str = "#!/bin/sh
echo 'sudo: a password is required' >&2
exit 1
";

/// A user of the notebook: `nobody` with a stand-in for sudo, or root where the machine has no such user.
struct NotebookUser {
    folder: PathBuf,
    is_root: bool,
}

impl NotebookUser {
    fn new(environment: &TestEnvironment, folder: &Path) -> Self {
        let (bin, home) = (folder.join("bin"), folder.join("home"));
        for made in [&bin, &home] {
            fs::create_dir(made).expect("a folder");
            chown(made, Some(NOBODY), Some(NOBODY)).expect("given away");
            // Nobody else becomes root here.
            set_mode(made, 0o700);
        }
        set_mode(folder, 0o755);
        let as_root = bin.join("as-root");
        fs::copy("/usr/bin/setpriv", &as_root).expect("copied");
        set_mode(&as_root, 0o4755);
        write_script(&bin.join("sudo"), &SUDO.replace("AS_ROOT", text(&as_root)));
        let refused = home.join("kept.mprb.refused");
        fs::create_dir(&refused).expect("a folder");
        write_script(&refused.join("sudo"), REFUSING_SUDO);
        let closed = home.join("kept.mprb.closed");
        write_script(&closed, "");
        set_mode(&closed, 0o750);
        let mut user = Self {
            folder: folder.to_owned(),
            is_root: false,
        };
        let mut trial = Command::new("sudo");
        trial
            .args(["-n", "--"])
            .arg(environment.memprobe().get_program())
            .arg("--version");
        let mut trial = user.command(environment, &trial);
        let tried = Background::start(&mut trial).finish();
        if !tried.status.success() {
            println!(
                "skipped in part: no user but root can run a notebook here: {}",
                tried.stderr.trim()
            );
            user.is_root = true;
        }
        user
    }

    /// The file that a cell records.
    fn recording(&self) -> PathBuf {
        self.folder.join("home/kept.mprb")
    }

    /// The same command as this user.
    fn command(&self, environment: &TestEnvironment, command: &Command) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut own = Command::new("setpriv");
        if !self.is_root {
            own.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        own.arg("--")
            .arg(command.get_program())
            .args(command.get_args());
        let mut own = readable_by_all(environment.pytorch(), &own);
        environment.pytorch().settle(&mut own);
        own.env("HOME", self.folder.join("home"));
        own.env(
            "PATH",
            format!("{}:{path}", self.folder.join("bin").display()),
        );
        own
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
}

fn write_script(path: &Path, script: &str) {
    fs::write(path, script).expect("written");
    set_mode(path, 0o755);
}

/// Outputs of the cells of `notebook_cells.py`.
fn outputs(
    environment: &TestEnvironment,
    packages: PathBuf,
    user: &NotebookUser,
) -> Vec<Vec<String>> {
    install_wheel(environment, &user.folder);
    let installed = user.folder.join("installed");
    let paths = std::env::join_paths([packages, installed]).expect("folders");
    let mut command = environment.pytorch().command();
    command.arg("notebook_cells.py");
    let mut command = user.command(environment, &command);
    command
        .env("PYTHONPATH", paths)
        .env("MEMPROBE_BIN", environment.memprobe().get_program())
        .env("RECORDED_CELL", user.recording());
    let finished = Background::start(&mut command).finish().succeeded();
    let last = finished.stdout.lines().last().expect("a line");
    serde_json::from_str(last).expect("JSON")
}

#[test]
fn a_recorded_cell_shows_what_each_of_its_lines_allocated_to_the_byte() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let packages = std::env::var_os(PACKAGES).filter(|folder| !folder.is_empty());
    let Some(packages) = packages.map(PathBuf::from) else {
        println!("skipped: {PACKAGES} names no packages of notebooks; run `cargo xtask test`");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let user = NotebookUser::new(&environment, folder.path());
    let outputs = outputs(&environment, packages, &user);
    let [
        _,
        _,
        recorded,
        printed,
        line,
        failed,
        missing,
        closed,
        without,
        refused,
    ] = &outputs[..]
    else {
        panic!("{outputs:?}");
    };
    let html = recorded.iter().find(|it| it.contains("<table"));
    let html = html.unwrap_or_else(|| panic!("{recorded:?}"));
    for expected in [
        "In[3]",
        "second = torch.empty",
        "other code",
        "helper",
        "4.00 MiB",
    ] {
        assert!(html.contains(expected), "{expected}: {html}");
    }

    let facts: Value = serde_json::from_str(&printed[0]).expect("JSON");
    let number = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("{facts}"));
    let sum = |key: &str| -> i64 {
        let of = facts[key].as_object().expect("a dict");
        of.values().map(number).sum()
    };
    // Lines and other code are all that the cell holds; `kept` is from before it.
    let live = number(&facts["live"]);
    assert_eq!(sum("lines") + sum("elsewhere"), live);
    let freed = number(&facts["before"][0]) - number(&facts["before"][1]);
    assert_eq!(freed, 4096, "{facts}");
    assert_eq!(live - freed, number(&facts["change"]), "{facts}");
    assert_eq!(facts["lines"]["2"], 0, "{facts}");
    assert_eq!(facts["lines"]["3"], 1 << 20, "{facts}");
    assert_eq!(facts["blocks"]["6"], 100, "{facts}");

    assert!(line.concat().contains("fifth = torch.empty"), "{line:?}");
    // The error of the cell is shown, and its table too.
    let failed = failed.concat();
    assert!(failed.contains("ZeroDivisionError"), "{failed}");
    assert!(failed.contains("<table"), "{failed}");
    let missing = missing.concat();
    assert!(
        missing.contains("no program /missing: install memprobe"),
        "{missing}"
    );
    let recording = fs::metadata(user.recording()).expect("recorded");
    let owner = if user.is_root { 0 } else { NOBODY };
    assert_eq!(recording.uid(), owner);
    if !user.is_root {
        assert_errors_say_what_to_do(&closed.concat(), &without.concat(), &refused.concat());
    }
}

/// Errors of a program that the user may not run, of no sudo, and of one that asks for a password.
fn assert_errors_say_what_to_do(closed: &str, without: &str, refused: &str) {
    assert!(closed.contains("nobody may not run"), "{closed}");
    assert!(closed.contains("usermod -aG root nobody"), "{closed}");
    assert!(
        without.contains("there is no sudo on PATH: install sudo"),
        "{without}"
    );
    assert!(
        refused.contains("sudo visudo -f /etc/sudoers.d/memprobe"),
        "{refused}"
    );
    assert!(
        refused.contains("nobody ALL=(root) NOPASSWD: /"),
        "{refused}"
    );
}
