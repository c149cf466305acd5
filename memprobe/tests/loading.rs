//! Loads the programs for either kind of links, and follows a program from its start to its end with each.

use std::process::Command;

use memprobe::decode::{ProcessEvent, Record, decode};
use memprobe::event::Tgid;
use memprobe::probe::kernel::TaskOffsets;
use memprobe::probe::loader::{Loader, MAX_FOLLOWED, Reach, UprobeLinks, Watch};
use memprobe::process::elf::ElfImage;
use memprobe::process::maps::Maps;
use memprobe_common::{ProcessConfig, process_flag};

const RING_BYTES: u32 = 1 << 20;

/// Function of the dynamic loader that each start of a program calls.
const LIBRARIES_MAPPED: &str = "_dl_debug_state";

/// Runs `true` under the programs that follow processes and loaders. Returns what they report of it, in order.
fn life_of_a_program(links: UprobeLinks) -> Vec<ProcessEvent> {
    let offsets = TaskOffsets::of_this_kernel().expect("the kernel's types");
    let loaded = Loader::with_links(&offsets, Watch::Family, RING_BYTES, links);
    let mut loader = loaded.expect("the programs load");
    loader.load_on_demand().expect("the others load too");
    let followed = loader.followed().expect("a kernel that counts");
    assert!(followed < MAX_FOLLOWED, "{followed}");
    let own = Tgid(std::process::id());
    let config = ProcessConfig {
        flags: process_flag::CHILDREN,
        ..ProcessConfig::default()
    };
    assert!(loader.admit(own, config).expect("a new process"));
    assert!(!loader.admit(own, config).expect("a known process"));
    let maps = Maps::of(own).expect("own mappings");
    let file = maps.library("ld-linux-x86-64.so").expect("a loader");
    let image = ElfImage::open(&file.path).expect("an image");
    let function = image.symbol(LIBRARIES_MAPPED).expect("readable");
    let offset = image.file_offset_of(function.expect("exported").vaddr);
    let offset = offset.expect("code of the file");
    let probe = loader.attach("library_mapped", &file.path, offset, None, Reach::Everyone);
    let _probe = probe.expect("a probe");
    let mut records = loader.take_records().expect("the ring buffer");
    let mut child = Command::new("true").spawn().expect("a program");
    let tgid = child.id();
    assert!(child.wait().expect("its end").success());
    let mut life = Vec::new();
    while let Some(bytes) = records.next() {
        match decode(&bytes).expect("a record") {
            Record::Process(event, process) if process.tgid == tgid => life.push(event),
            _ => {}
        }
    }
    let runs = loader.run_times().len();
    assert!((2..loader.programs()).contains(&runs), "{runs}");
    life
}

#[test]
fn a_program_is_followed_with_links_of_many_functions_and_with_perf_events() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loading programs needs root");
        return;
    }
    for links in [UprobeLinks::Best, UprobeLinks::PerfEvents] {
        let mut life = life_of_a_program(links);
        life.dedup();
        let expected = [
            ProcessEvent::Forked,
            ProcessEvent::Executed,
            ProcessEvent::LibraryMapped,
            ProcessEvent::Exited,
        ];
        assert_eq!(life, expected, "{links:?}");
    }
}
