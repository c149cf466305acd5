//! Names from a target that hold control sequences: a terminal never gets them, in whichever message they stand.

use std::path::Path;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::{Background, Finished};
use memprobe_tests::terminal::Terminal;
use rustix::process::Signal;

/// A window title, and a change of the writing direction.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{202e}\u{9b}31m";

/// Maps damaged libraries of PyTorch and CUDA in a folder with such a name, and takes such a name itself.
const SCRIPT: &str = "
import ctypes, mmap, os, sys, time
folder = sys.argv[1]
os.makedirs(folder)
mapped = []
for name in sys.argv[2].split():
    path = os.path.join(folder, name)
    with open(path, 'wb') as file:
        file.write(b'\\x7fELF' + bytes(8192))
    descriptor = os.open(path, os.O_RDONLY)
    prot = mmap.PROT_READ | mmap.PROT_EXEC
    mapped.append(mmap.mmap(descriptor, 4096, flags=mmap.MAP_PRIVATE, prot=prot))
ctypes.CDLL(None).prctl(15, b'a\\x1b[31mb', 0, 0, 0)
print('up', flush=True)
time.sleep(600)
";

const LIBRARIES: &str =
    "libc10_cuda.so libc10.so libtorch_cpu.so libtorch_python.so libcudart.so.12 libcuda.so.1";

/// Starts the target; its command line has the hostile name too.
fn target(environment: &TestEnvironment, folder: &Path, libraries: &str) -> Background {
    let mut command = environment.pytorch().command();
    command.args(["-c", SCRIPT]).arg(folder.join(HOSTILE));
    command.arg(libraries);
    let mut target = Background::start(&mut command);
    target.wait_for("up");
    target
}

fn is_harmless(printed: &Finished, arguments: &[&str]) {
    for text in [&printed.stdout, &printed.stderr] {
        let harmful = text.chars().find(|letter| {
            let is_control = letter.is_control() && *letter != '\n';
            is_control || *letter == '\u{202e}'
        });
        assert_eq!(harmful, None, "memprobe {arguments:?} printed {text:?}");
    }
}

#[test]
fn no_message_has_a_control_sequence_of_the_target() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let (file, run) = (file.to_str().expect("UTF-8"), folder.path().join("run/"));
    let run = run.to_str().expect("UTF-8");
    let damaged = target(&environment, &folder.path().join("damaged"), LIBRARIES);
    let pid = damaged.pid().to_string();
    let mut shown = 0;
    for verb in [
        &["record", "--duration", "1s", "-o", file][..],
        &["record", "--duration", "1s", "-o", run],
        &["record", "--children", "--duration", "1s", "-o", run],
        &["snapshot"],
        &["snapshot", "--nonblocking"],
        &["doctor"],
    ] {
        let arguments = [verb, &["--pid", &pid]].concat();
        let printed = environment.run(&arguments);
        is_harmless(&printed, &arguments);
        shown += usize::from(printed.stderr.contains("\\u{1b}]0;owned\\u{7}"));
    }
    assert!(shown > 0, "no message has the name of the library");
    is_harmless(&environment.run(&["top", "--once"]), &["top", "--once"]);
    let waiting = target(&environment, &folder.path().join("waiting"), "");
    let pid = waiting.pid().to_string();
    for output in [file, run] {
        let arguments = ["record", "--names", "-o", output, "--pid", &pid];
        let mut memprobe = Background::start(environment.memprobe().args(arguments));
        memprobe.wait_for("waiting for");
        memprobe.signal(Signal::INT);
        is_harmless(&memprobe.finish(), &arguments);
    }
}

/// Writes a recording whose function has a hostile name.
fn hostile_recording(file: &Path) {
    let short = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/recording/short");
    let text = std::fs::read_to_string(short).expect("a recording");
    let name = "\\u001b]0;owned\\u0007\u{9b}31m\u{202e}the-name";
    let hostile = text.replace("<module>", name);
    assert_ne!(hostile, text);
    std::fs::write(file, hostile).expect("it is written");
}

#[test]
fn documents_on_a_terminal_have_no_control_sequence_and_files_keep_the_name() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    hostile_recording(&file);
    let file = file.to_str().expect("UTF-8");
    let name = "\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}the-name";
    for format in ["json", "jsonl", "csv"] {
        let arguments = ["report", file, "--format", format];
        let terminal = Terminal::start(environment.memprobe().args(arguments));
        let shown = terminal.output_until("the-name");
        let harmful = shown.chars().find(|letter| {
            let is_control = letter.is_control() && !matches!(letter, '\r' | '\n');
            is_control || *letter == '\u{202e}'
        });
        assert_eq!(harmful, None, "{format}: {shown:?}");
        let piped = environment.run(&arguments).stdout;
        match format {
            "csv" => assert!(piped.contains(name), "{piped:?}"),
            // JSON escapes the first two control characters always.
            _ => assert!(piped.contains("\u{9b}31m\u{202e}the-name"), "{piped:?}"),
        }
        if format == "json" {
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
            assert_eq!(value(&shown), value(&piped));
        }
    }
    let refused = Terminal::start(
        environment
            .memprobe()
            .args(["record", "-o", "-", "--", "true"]),
    );
    refused.output_until("standard output is a terminal");
}
