//! Tests `memprobe top`: every process with CUDA memory, live and as a printed table.

use std::fs;
use std::process::Command;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::PATIENT;
use memprobe_tests::process::{Background, wait_until};
use memprobe_tests::pytorch::PyTorch;
use memprobe_tests::terminal::Terminal;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Processes with a shared simulated driver, and a memprobe that can query it.
struct Stage<'a> {
    environment: &'a TestEnvironment,
    shared: TempDir,
}

impl<'a> Stage<'a> {
    fn set(environment: &'a TestEnvironment) -> Self {
        let shared = tempfile::tempdir().expect("a folder");
        Self {
            environment,
            shared,
        }
    }

    /// Returns a command that holds `mib` MiB on each of `devices` devices.
    fn target(&self, pytorch: &PyTorch, mib: u64, devices: u32) -> Command {
        let mut command = pytorch.command();
        command
            .env("CUDASIM_SHARED", self.shared.path())
            .env("CUDASIM_DEVICES", "2")
            .args(["hold.py", "--mib", &mib.to_string()])
            .args(["--devices", &devices.to_string()]);
        command
    }

    /// Returns a memprobe command that uses the same driver as the processes.
    fn memprobe(&self) -> Command {
        let mut command = self.environment.memprobe();
        command
            .env("CUDASIM_SHARED", self.shared.path())
            .env("CUDASIM_DEVICES", "2");
        if let Some(folder) = self.environment.pytorch().simulated_libraries() {
            command.env("LD_LIBRARY_PATH", folder);
        }
        command
    }

    /// Returns the rows of `top --once`.
    fn printed(&self) -> Vec<Value> {
        let mut command = self.memprobe();
        let printed = Background::start(command.args(["top", "--once", "--format", "json"]))
            .finish()
            .succeeded();
        let document: Value = serde_json::from_str(&printed.stdout).expect("it is JSON");
        let rows = document["processes"].as_array().expect("rows");
        rows.clone()
    }

    fn row(&self, pid: u32) -> Value {
        let rows = self.printed();
        let row = rows.iter().find(|row| row["pid"] == pid);
        row.unwrap_or_else(|| panic!("{pid} has no row: {rows:?}"))
            .clone()
    }
}

fn ready(command: &mut Command) -> Background {
    let mut process = Background::start(command);
    process.wait_for("READY");
    process
}

/// Accepted totals: the held bytes, with or without the block of 1 MiB that comes and goes.
fn about(mib: u64) -> [Value; 2] {
    [mib, mib + 1].map(|mib| Value::from(mib * MIB))
}

#[test]
fn a_row_shows_the_totals_of_allocator_and_driver() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    if !environment.pytorch().has_devices(2) {
        return;
    }
    let stage = Stage::set(&environment);
    let held = ready(
        stage
            .target(environment.pytorch(), 96, 2)
            .env("RANK", "3")
            .env("WORLD_SIZE", "8"),
    );
    let row = stage.row(held.pid());
    assert_eq!(row["state"], "probed", "{row}");
    assert!(about(2 * 96).contains(&row["allocated"]), "{row}");
    let of_devices: u64 = row["devices"]
        .as_array()
        .expect("devices")
        .iter()
        .map(|device| device["allocated"].as_u64().expect("bytes"))
        .sum();
    assert_eq!(row["allocated"], of_devices);
    assert_eq!(
        (&row["rank"], &row["world_size"]),
        (&Value::from(3), &Value::from(8))
    );
    assert_eq!(row["user"], "root");
    assert!(row["command"].as_str().expect("text").contains("hold.py"));
    let driver = row["driver"].as_u64().expect("the driver says");
    let reserved = row["reserved"].as_u64().expect("bytes");
    assert!(driver >= reserved, "{row}");
    assert_eq!(row["driver_devices"].as_array().expect("devices").len(), 2);
}

#[test]
fn a_process_in_a_namespace_of_its_own_has_both_its_numbers() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let stage = Stage::set(&environment);
    let mut inner = stage.target(environment.pytorch(), 64, 1);
    // The simulated driver knows processes by the PID they report, which differs in another
    // namespace.
    inner.env_remove("CUDASIM_SHARED");
    let mut outer = Command::new("unshare");
    outer.args(["--pid", "--mount-proc", "--fork", "--kill-child"]);
    outer.arg(inner.get_program()).args(inner.get_args());
    outer.current_dir(inner.get_current_dir().expect("the workloads"));
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    let outer = ready(&mut outer);
    let rows = stage.printed();
    let inside = rows.iter().find(|row| row["pid_inside"] == 1);
    let inside = inside.unwrap_or_else(|| panic!("nobody is 1 inside: {rows:?}"));
    assert_ne!(inside["pid"], outer.pid());
    assert!(about(64).contains(&inside["allocated"]), "{inside}");
}

#[test]
fn without_a_terminal_the_table_is_printed_once() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let stage = Stage::set(&environment);
    let held = ready(&mut stage.target(environment.pytorch(), 64, 1));
    let printed = Background::start(stage.memprobe().arg("top"))
        .finish()
        .succeeded();
    let row = printed
        .stdout
        .lines()
        .find(|line| line.trim_start().starts_with(&held.pid().to_string()));
    let row = row.unwrap_or_else(|| panic!("no row: {}", printed.stdout));
    assert!(
        row.contains("64.0 MiB") || row.contains("65.0 MiB"),
        "{row}"
    );
    assert!(printed.stdout.contains("TOP LINE") && !printed.stdout.contains('\x1b'));
}

#[test]
fn without_a_driver_the_column_is_empty_with_a_reason() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    if environment.pytorch().simulated_libraries().is_none() {
        println!("skipped: this machine has a driver");
        return;
    }
    let stage = Stage::set(&environment);
    let held = ready(&mut stage.target(environment.pytorch(), 64, 1));
    let mut memprobe = environment.memprobe();
    let printed = Background::start(memprobe.args(["top", "--once", "--format", "json"]));
    let printed = printed.finish().succeeded();
    let document: Value = serde_json::from_str(&printed.stdout).expect("it is JSON");
    let reason = document["driver"].as_str().expect("a reason");
    assert!(reason.contains("libnvidia-ml.so.1"), "{reason}");
    let rows = document["processes"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["pid"] == held.pid());
    let row = row.expect("it has a row all the same");
    assert!(
        row["driver"].is_null() && about(64).contains(&row["allocated"]),
        "{row}"
    );
}

#[test]
fn the_screen_sorts_filters_opens_a_process_and_comes_back() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let stage = Stage::set(&environment);
    let pytorches = &environment.pytorches;
    let small = ready(&mut stage.target(&pytorches[0], 64, 1));
    let large = ready(&mut stage.target(&pytorches[pytorches.len() - 1], 512, 1));
    let mut screen = Terminal::start(stage.memprobe().arg("top"));
    screen.wait_for("512 MiB");
    let (small_pid, large_pid) = (small.pid().to_string(), large.pid().to_string());
    screen.wait_for(&small_pid);
    // Other processes on this machine may hold memory too.
    screen.press("/hold\\.py\r");
    let places = |text: &str| {
        let line = |pid: &str| text.lines().position(|line| line.contains(pid));
        (line(&large_pid), line(&small_pid))
    };
    let (large_at, small_at) = places(&screen.wait_for("shown 2 of"));
    assert!(large_at < small_at, "the largest comes first");
    screen.press("r");
    wait_until("the other order", || {
        let (large_at, small_at) = places(&screen.text());
        (small_at < large_at && small_at.is_some()).then_some(())
    });
    screen.press("r");
    wait_until("the order of before", || {
        let (large_at, small_at) = places(&screen.text());
        (large_at < small_at && large_at.is_some()).then_some(())
    });
    screen.press("\r");
    let shown = screen.wait_for("Esc back");
    assert!(shown.contains(&format!("PID {large_pid}")), "{shown}");
    screen.wait_for("hold.py:");
    screen.press("\x1b");
    screen.wait_for("memprobe top");
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));
    let (mut small, mut large) = (small, large);
    assert!(!small.has_ended() && !large.has_ended());
}

#[test]
fn a_launcher_is_watched_with_the_processes_that_it_makes_and_nobody_else() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let stage = Stage::set(&environment);
    let stranger = ready(&mut stage.target(environment.pytorch(), 128, 1));
    let program = "import os, subprocess, sys, time\n\
        hold = lambda mib: subprocess.Popen([sys.executable, 'hold.py', '--mib', str(mib)])\n\
        workers = [hold(64)]\n\
        while not os.path.exists(sys.argv[1]): time.sleep(0.02)\n\
        workers.append(hold(512))\n\
        for worker in workers: worker.wait()\n";
    let go = stage.shared.path().join("go");
    let mut command = environment.pytorch().command();
    command.env("CUDASIM_SHARED", stage.shared.path());
    let mut launcher = Background::start(command.args(["-c", program]).arg(&go));
    launcher.wait_for("READY");
    let launcher_pid = launcher.pid().to_string();
    let mut attach = stage.memprobe();
    let mut screen = Terminal::start(attach.args(["attach", "--children", "--pid", &launcher_pid]));
    screen.wait_for(&format!("memprobe attach --children --pid {launcher_pid}"));
    // One process that already runs, and one that starts later.
    screen.wait_for(" 64.0 MiB");
    fs::write(&go, "").expect("written");
    let shown = screen.wait_for(" 512 MiB");
    assert!(
        !shown.contains(&format!(" {} root", stranger.pid())),
        "{shown}"
    );
    screen.press("\r");
    screen.wait_for("Esc back");
    screen.wait_for("hold.py:");
    screen.press("\x1b");
    screen.wait_for("memprobe attach --children");
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));
    assert!(!launcher.has_ended());
    // Nothing but a signal ends the launcher's workers.
    let workers = format!("/proc/{launcher_pid}/task/{launcher_pid}/children");
    for worker in fs::read_to_string(workers)
        .expect("workers")
        .split_whitespace()
    {
        let worker = worker.parse().ok().and_then(rustix::process::Pid::from_raw);
        let ended = rustix::process::kill_process(worker.expect("a PID"), Signal::KILL);
        ended.expect("it runs");
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn an_opened_process_has_its_modules_categories_layers_and_tensors() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let stage = Stage::set(&environment);
    let until = stage.shared.path().join("until");
    let program = "import subprocess, sys\n\
        steady = ['steady.py', '--seconds', '400', '--layers', '4', '--until', sys.argv[1]]\n\
        sys.exit(subprocess.call([sys.executable, *steady]))\n";
    let mut command = environment.pytorch().command();
    command.env("CUDASIM_SHARED", stage.shared.path());
    let mut launcher = Background::start(command.args(["-c", program]).arg(&until));
    launcher.wait_for("PID ");
    let pid = launcher.pid().to_string();
    let family = ["attach", "--children", "--detail", "tensors", "--pid", &pid];
    for (arguments, title) in [
        (&family[..], "memprobe attach --children"),
        (&["top", "--graph", "--max-overhead", "off"], "memprobe top"),
    ] {
        let mut screen = Terminal::start(stage.memprobe().args(arguments).args(PATIENT));
        screen.wait_for(title);
        screen.press("/python steady\r");
        // Wait until the launcher is filtered out.
        screen.wait_for(" shown 1 of");
        screen.wait_for("(allocated before");
        screen.press("\r");
        look_at_each_screen(&mut screen);
        screen.press("\x1b");
        // A second Esc in the same read would be one with the first.
        screen.wait_for("[lines]");
        screen.press("\x1b");
        screen.wait_for(title);
        // Results are kept for a later visit of the process.
        screen.press("\r");
        screen.wait_for("Esc back");
        screen.press("c");
        let shown = screen.wait_for(" ago: ");
        assert!(shown.contains("memprobe categories"), "{shown}");
        screen.press("q");
        assert_eq!(screen.finish_restored().code(), Some(0));
    }
    assert!(!launcher.has_ended());
    fs::write(&until, "").expect("written");
    launcher.finish().succeeded();
}

/// Visits the other screens of a running training loop.
fn look_at_each_screen(screen: &mut Terminal) {
    screen.wait_for("Esc back");
    let has_all = |screen: &Terminal, words: &[&str]| {
        screen.wait_until(&format!("{words:?}"), |shown| {
            words.iter().all(|word| shown.contains(word))
        });
    };
    screen.press("m");
    let sum = "= allocated";
    has_all(screen, &["memprobe modules", "Sequential", sum]);
    screen.press("c");
    let before = "(live before opening)";
    has_all(screen, &["memprobe categories", "temporary", before, sum]);
    screen.press("L");
    has_all(
        screen,
        &["memprobe layers", "Sequential", "iteration ", sum],
    );
    screen.press("t");
    has_all(
        screen,
        &["memprobe tensors", "AdamW.exp_avg", "paused for "],
    );
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn processes_come_and_go_on_the_screen() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let stage = Stage::set(&environment);
    let mut top = stage.memprobe();
    let mut screen =
        Terminal::start(top.args(["top", "--keep-ended", "10s", "--max-overhead", "off"]));
    screen.wait_for("memprobe top");
    let mut late = stage.target(environment.pytorch(), 64, 1);
    let late = ready(late.arg("--anew"));
    let row = format!(" {} root", late.pid());
    screen.wait_for(&row);
    screen.press("/hold\\.py\r");
    // On a busy machine its probes may come after its first allocation; it allocates all of it again.
    screen.wait_for("hold.py:");
    late.signal(Signal::KILL);
    screen.wait_for("ended");
    wait_until("the row of a process that has ended to go", || {
        (!screen.text().contains(&row)).then_some(())
    });
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn workers_that_hold_nothing_are_left_out_until_they_are_asked_for() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let stage = Stage::set(&environment);
    let until = stage.shared.path().join("until");
    let program = "import os, sys, time, torch\n\
        held = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')\n\
        worker = os.fork()\n\
        while not os.path.exists(sys.argv[1]):\n\
        \x20   time.sleep(0.02)\n\
        \x20   if worker:\n\
        \x20       breath = torch.empty(1 << 20, dtype=torch.uint8, device='cuda'); del breath\n\
        \x20       print('READY' if held is not None else '', worker, flush=True)\n";
    let mut command = environment.pytorch().command();
    command.env("CUDASIM_SHARED", stage.shared.path());
    let mut parent = Background::start(command.args(["-c", program]).arg(&until));
    let line = parent.wait_for("READY");
    let worker: u32 = line
        .split_whitespace()
        .last()
        .and_then(|word| word.parse().ok())
        .expect("a number");
    let rows = |options: &[&str]| -> Vec<Value> {
        let mut command = stage.memprobe();
        command
            .args(["top", "--once", "--format", "json"])
            .args(options);
        let printed = Background::start(&mut command).finish().succeeded();
        let document: Value = serde_json::from_str(&printed.stdout).expect("it is JSON");
        document["processes"].as_array().expect("rows").clone()
    };
    let has = |rows: &[Value], pid: u32| rows.iter().any(|row| row["pid"] == pid);
    let holders = rows(&[]);
    assert!(
        has(&holders, parent.pid()) && !has(&holders, worker),
        "{holders:?}"
    );
    assert!(has(&rows(&["--all"]), worker));
    fs::write(&until, "").expect("written");
    parent.finish().succeeded();
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn each_rank_shows_the_gpus_that_it_uses() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    if environment.pytorch().simulated_libraries().is_none() {
        println!("skipped: this machine may have fewer than four GPUs");
        return;
    }
    let stage = Stage::set(&environment);
    let on_four = |mut command: Command, visible: &str| {
        command
            .env("CUDASIM_DEVICES", "4")
            .env("CUDA_VISIBLE_DEVICES", visible);
        command
    };
    let permuted = stage.target(environment.pytorch(), 96, 2);
    let permuted = ready(&mut on_four(permuted, "3,1"));
    // The environment that the process was started with is not the one that CUDA reads, nor the last one.
    let program = "import os, runpy, sys\n\
        os.environ['CUDA_VISIBLE_DEVICES'] = 'GPU-02,0'\n\
        import torch; torch.zeros(1, device='cuda')\n\
        os.environ['CUDA_VISIBLE_DEVICES'] = '0,3'\n\
        sys.argv = ['hold.py', '--mib', '64', '--devices', '2']\n\
        runpy.run_path('hold.py', run_name='__main__')\n";
    let mut changing = environment.pytorch().command();
    changing
        .env("CUDASIM_SHARED", stage.shared.path())
        .args(["-c", program]);
    let changing = ready(&mut on_four(changing, "1,3"));
    let mut top = stage.memprobe();
    top.env("CUDASIM_DEVICES", "4");
    let printed = Background::start(top.args(["top", "--once", "--format", "json"])).finish();
    let document: Value = serde_json::from_str(&printed.succeeded().stdout).expect("it is JSON");
    let rows = document["processes"].as_array().expect("rows");
    for (process, gpus) in [(&permuted, [3, 1]), (&changing, [2, 0])] {
        let row = rows.iter().find(|row| row["pid"] == process.pid());
        let row = row.unwrap_or_else(|| panic!("no row: {rows:?}"));
        let devices = row["devices"].as_array().expect("devices");
        assert_eq!(devices.len(), 2, "{row}");
        for (device, gpu) in devices.iter().zip(gpus) {
            assert_eq!(device["gpu"], gpu, "{row}");
            assert_eq!(device["gpu_source"], "properties", "{row}");
            assert!(
                device["driver"].as_u64() >= device["reserved"].as_u64(),
                "{row}"
            );
        }
    }
    let mut snapshot = stage.memprobe();
    snapshot.env("CUDASIM_DEVICES", "4");
    let pid = changing.pid().to_string();
    let taken = Background::start(snapshot.args(["snapshot", "--pid", &pid])).finish();
    let text = taken.succeeded().stdout;
    assert!(text.contains("cuda:0 is GPU 2  GPU-025a5a5a-"), "{text}");
    assert!(text.contains("cuda:1 is GPU 0  GPU-005a5a5a-"), "{text}");
}
