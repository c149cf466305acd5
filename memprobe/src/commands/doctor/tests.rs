use super::process::{Library, ProbeFinding};
use super::*;

/// A machine and a process, of which some is well and some is not.
fn examination() -> Examination {
    let machine = vec![
        Finding::ok("kernel", "Linux 6.1.0-40-amd64 on x86_64").with("release", "6.1.0-40-amd64"),
        Finding::warn(
            "bpf_jit",
            "net.core.bpf_jit_enable is 0",
            "sudo sysctl net.core.bpf_jit_enable=1",
        ),
        Finding::fail("programs", "the kernel refuses", "Please report it."),
    ];
    let library = Library {
        finding: Finding::note("library", "/opt/libc10.so was deleted"),
        name: "libc10.so".to_owned(),
        path: "/opt/libc10.so".to_owned(),
        build_id: Some("0123456789abcdef0123".to_owned()),
        device: "fe:10".to_owned(),
        inode: 77,
        deleted: true,
        opened_as: Some("/proc/7/map_files/7f00-7f01".to_owned()),
    };
    let placed = ProbeFinding {
        finding: Finding::ok("probe", "in libc10.so"),
        function: "c10::reportMemoryUsageToProfiler".to_owned(),
        library: Some("/opt/libc10.so".to_owned()),
        symbol: Some("_ZN3c10".to_owned()),
        demangled: Some("c10::reportMemoryUsageToProfiler(void*, long)".to_owned()),
        address: Some(0x7f12_3456_7890),
        offset: Some(7),
        instruction: Some("push r14".to_owned()),
        kind: Some("emulated"),
    };
    let unplaced = ProbeFinding {
        finding: Finding::note("probe", "libcudart is not mapped yet"),
        function: "cudaMalloc".to_owned(),
        library: None,
        symbol: None,
        demangled: None,
        address: None,
        offset: None,
        instruction: None,
        kind: None,
    };
    Examination {
        memprobe: "0.0.0",
        fit: false,
        machine,
        process: Some(ExaminedProcess {
            pid: 1234,
            inner_pid: Some(7),
            command: "python train.py \x1b[31m".to_owned(),
            findings: vec![Finding::ok("process", "PID 1234 (in its own namespace 7)")],
            libraries: vec![library],
            probes: vec![placed, unplaced],
        }),
    }
}

#[test]
fn the_text_is_aligned_and_says_what_to_do() {
    insta::assert_snapshot!(render(&examination(), Colour::Plain));
}

#[test]
fn the_json_has_all_of_it_under_names_that_stay() {
    let json = serde_json::to_string_pretty(&examination()).expect("JSON");
    insta::assert_snapshot!(json);
}

#[test]
fn colours_are_only_where_they_are_wanted() {
    let examination = examination();
    assert!(render(&examination, Colour::Ansi).contains("\x1b[1;31mFAIL\x1b[0m"));
    // The target's own escapes never pass.
    assert!(!render(&examination, Colour::Plain).contains('\x1b'));
}

#[test]
fn an_ended_process_is_the_only_finding() {
    let process = ExaminedProcess::examine(Tgid(u32::MAX));
    let findings: Vec<_> = process.findings().collect();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].level, Level::Fail);
}

#[test]
fn a_process_without_python_is_reported_and_its_memory_is_read() {
    let process = ExaminedProcess::examine(Tgid(std::process::id()));
    let level = |check| {
        let found = process.findings().find(|finding| finding.check == check);
        found.map(|finding| finding.level)
    };
    assert_eq!(level("process"), Some(Level::Ok));
    assert_eq!(level("memory"), Some(Level::Ok));
    assert_eq!(level("python"), Some(Level::Fail));
    assert_eq!(level("pytorch"), Some(Level::Note));
}
