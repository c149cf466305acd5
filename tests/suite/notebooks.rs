//! The magics of IPython, in a notebook that runs without a browser.

use std::path::{Path, PathBuf};

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use serde_json::Value;

/// Environment variable with the folder of ipykernel and nbclient. `cargo xtask test` sets it.
const PACKAGES: &str = "MEMPROBE_TEST_NOTEBOOK_PACKAGES";

/// Builds the wheel from a copy of its sources, and installs it below `folder`, as pip does for users.
fn install_wheel(environment: &TestEnvironment, folder: &Path) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let (copy, wheels) = (folder.join("sources"), folder.join("wheels"));
    std::fs::create_dir_all(copy.join("memprobe")).expect("made");
    for part in ["", "memprobe"] {
        let entries = std::fs::read_dir(sources.join(part)).expect("sources");
        for entry in entries.map(|entry| entry.expect("a file")) {
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                std::fs::copy(entry.path(), copy.join(part).join(entry.file_name()))
                    .expect("copied");
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
    let wheel = std::fs::read_dir(wheels).expect("a folder").next();
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

/// Outputs of the cells of `notebook_cells.py`; `None` without the packages of notebooks.
fn outputs(environment: &TestEnvironment) -> Option<Vec<Vec<String>>> {
    let packages = std::env::var_os(PACKAGES).filter(|folder| !folder.is_empty());
    let Some(packages) = packages.map(PathBuf::from) else {
        println!("skipped: {PACKAGES} names no packages of notebooks; run `cargo xtask test`");
        return None;
    };
    let ours = tempfile::tempdir().expect("a folder");
    install_wheel(environment, ours.path());
    let installed = ours.path().join("installed");
    let paths = std::env::join_paths([packages, installed]).expect("folders");
    let mut command = environment.pytorch().command();
    command
        .arg("notebook_cells.py")
        .env("PYTHONPATH", paths)
        .env("MEMPROBE_BIN", environment.memprobe().get_program());
    let finished = Background::start(&mut command).finish().succeeded();
    let last = finished.stdout.lines().last().expect("a line");
    Some(serde_json::from_str(last).expect("JSON"))
}

#[test]
fn a_recorded_cell_shows_what_each_of_its_lines_allocated_to_the_byte() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let Some(outputs) = outputs(&environment) else {
        return;
    };
    let [_, _, recorded, printed, line, failed, missing] = &outputs[..] else {
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
}
