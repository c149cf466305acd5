use std::process::Command;

use super::*;
use crate::event::Tgid;
use crate::symbolize::native::NativeCode;

/// Functions with frames of many shapes. `capture` copies the stack and the registers of its caller, and has
/// libgcc unwind the same stack.
const FRAMES: &str = r#"
    #define _GNU_SOURCE
    #include <alloca.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdint.h>
    #include <string.h>
    #include <unwind.h>

    struct capture {
        uint64_t returns, stack_pointer, frame_pointer, size, callers;
        uint64_t caller[128];
        unsigned char *bytes;
    };

    static _Unwind_Reason_Code add(struct _Unwind_Context *context, void *argument) {
        struct capture *to = argument;
        int before = 0;
        uint64_t address = _Unwind_GetIPInfo(context, &before);
        if (address && to->callers < 128) to->caller[to->callers++] = address + before;
        return _URC_NO_REASON;
    }

    __attribute__((used, visibility("hidden"))) void fill(struct capture *to) {
        pthread_attr_t attributes;
        void *start;
        size_t size;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &start, &size);
        pthread_attr_destroy(&attributes);
        uint64_t left = (uint64_t)start + size - to->stack_pointer;
        if (left < to->size) to->size = left;
        memcpy(to->bytes, (void *)to->stack_pointer, to->size);
        _Unwind_Backtrace(add, to);
    }

    __asm__(
        "capture:\n"
        "mov (%rsp), %rax\n mov %rax, 0(%rdi)\n"
        "lea 8(%rsp), %rax\n mov %rax, 8(%rdi)\n"
        "mov %rbp, 16(%rdi)\n"
        "jmp fill\n");
    void capture(struct capture *);

    #define FRAME __attribute__((noinline))
    static struct capture *in_signal;

    FRAME static void plain(struct capture *to) { capture(to); __asm__ volatile(""); }

    FRAME static void of_any_size(struct capture *to) {
        volatile char *bytes = alloca(to->size % 100 + 50);
        bytes[0] = 1;
        plain(to);
        bytes[1] = 2;
    }

    FRAME static void aligned(struct capture *to) {
        volatile char bytes[64] __attribute__((aligned(64)));
        bytes[0] = 1;
        of_any_size(to);
        bytes[1] = 2;
    }

    FRAME static void aligned_of_any_size(struct capture *to) {
        volatile char bytes[64] __attribute__((aligned(64)));
        volatile char *more = alloca(to->size % 100 + 50);
        more[0] = bytes[0] = 1;
        aligned(to);
        more[1] = bytes[1] = 2;
    }

    FRAME static void saves_registers(struct capture *to) {
        __asm__ volatile("" ::: "rbx", "r12", "r13", "r14", "r15");
        aligned_of_any_size(to);
        __asm__ volatile("xor %%r12, %%r12" ::: "rbx", "r12", "r13", "r14", "r15");
    }

    FRAME void nested(struct capture *to) { saves_registers(to); __asm__ volatile(""); }

    static void handle(int signal) { plain(in_signal); __asm__ volatile(""); }

    FRAME void interrupted(struct capture *to) {
        struct sigaction action, before;
        memset(&action, 0, sizeof action);
        action.sa_handler = handle;
        in_signal = to;
        sigaction(SIGUSR2, &action, &before);
        raise(SIGUSR2);
        sigaction(SIGUSR2, &before, 0);
    }

    /* A frame with a frame pointer, without an unwind table. */
    __asm__(
        "without_table:\n"
        "push %rbp\n mov %rsp, %rbp\n"
        "call capture\n"
        "pop %rbp\n ret\n");
    void without_table(struct capture *);

    FRAME void through_unknown(struct capture *to) {
        without_table(to);
        __asm__ volatile("");
    }
"#;

#[repr(C)]
struct Capture {
    returns: u64,
    stack_pointer: u64,
    frame_pointer: u64,
    size: u64,
    callers: u64,
    caller: [u64; 128],
    bytes: *mut u8,
}

/// A stack that was captured, and its bytes.
struct Captured {
    head: Capture,
    bytes: Vec<u8>,
    _library: libloading::Library,
}

impl Captured {
    /// Calls a function of the library, which captures its stack.
    fn of(function: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (source, path) = (folder.path().join("f.c"), folder.path().join("f.so"));
        std::fs::write(&source, FRAMES).expect("written");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-shared", "-fPIC", "-pthread", "-o"]);
        assert!(cc.arg(&path).arg(&source).status().expect("cc").success());
        // SAFETY: the library was compiled here, and has no initializers.
        let library = unsafe { libloading::Library::new(&path) }.expect("loaded");
        let mut bytes = vec![0; 64 << 10];
        let mut head = Capture {
            returns: 0,
            stack_pointer: 0,
            frame_pointer: 0,
            size: bytes.len() as u64,
            callers: 0,
            caller: [0; 128],
            bytes: bytes.as_mut_ptr(),
        };
        // SAFETY: the source defines the function; it writes a structure of this layout, and the bytes.
        unsafe {
            let function = library.get::<extern "C" fn(*mut Capture)>(function.as_bytes());
            function.expect("exported")(&raw mut head);
        }
        bytes.truncate(head.size as usize);
        Self {
            head,
            bytes,
            _library: library,
        }
    }

    /// Returns the callers that libgcc found, from the one that called `capture` outwards.
    fn callers(&self) -> &[u64] {
        &self.head.caller[1..self.head.callers as usize]
    }

    /// Returns the callers by the first bytes of the copy, and if some may be missing.
    fn unwound(&self, code: &mut NativeCode, bytes: usize) -> (Vec<u64>, bool) {
        let stack = StackCopy {
            address: self.head.stack_pointer,
            frame_pointer: self.head.frame_pointer,
            bytes: self.bytes[..bytes].to_vec(),
        };
        let mut callers = Vec::new();
        let truncated = code.walk(self.head.returns, &stack, |_, address| {
            callers.push(address);
            callers.len() < 128
        });
        (callers, truncated)
    }
}

fn here() -> NativeCode {
    NativeCode::of(Tgid(std::process::id()))
}

#[test]
fn frames_of_every_shape_have_the_callers_that_libgcc_finds() {
    for function in ["nested", "interrupted"] {
        let capture = Captured::of(function);
        assert!(capture.callers().len() > 6, "{:x?}", capture.callers());
        let (callers, truncated) = capture.unwound(&mut here(), capture.bytes.len());
        assert_eq!(callers, capture.callers(), "{function}");
        assert!(
            !truncated,
            "{function}: the thread's first frame was reached"
        );
    }
}

#[test]
fn a_copy_that_ends_early_has_a_part_of_the_callers_and_never_another() {
    let capture = Captured::of("nested");
    let mut code = here();
    let mut most = 0;
    for bytes in (0..capture.bytes.len().min(4096)).step_by(8) {
        let (callers, truncated) = capture.unwound(&mut code, bytes);
        assert!(
            capture.callers().starts_with(&callers),
            "{bytes}: {callers:x?}"
        );
        assert!(
            truncated || callers.len() == capture.callers().len(),
            "{bytes}"
        );
        most = most.max(callers.len());
    }
    assert!(most > 6, "{most} callers in the first 4 KiB");
    let (callers, _) = capture.unwound(&mut code, capture.bytes.len());
    assert_eq!(callers, capture.callers(), "after the short copies");
}

#[test]
fn a_function_without_a_table_has_no_caller_though_it_keeps_a_frame_pointer() {
    let capture = Captured::of("through_unknown");
    let (callers, truncated) = capture.unwound(&mut here(), capture.bytes.len());
    assert_eq!(callers, [capture.head.returns]);
    assert!(truncated);
}

fn table_of_libc() -> UnwindTable {
    let maps = crate::process::maps::Maps::of(Tgid(std::process::id())).expect("maps");
    let mut files = maps.files().into_iter();
    let libc = files
        .find(|file| file.path.ends_with("libc.so.6"))
        .expect("mapped");
    let image = ElfImage::open(&libc.path).expect("an ELF file");
    UnwindTable::of(&image, &libc.mappings, 128 << 20).expect("a table")
}

#[test]
fn a_table_gives_the_same_rules_without_its_search_table() {
    let mut table = table_of_libc();
    let libc = libc::getpid as *const () as u64;
    let addresses = (0..200).map(|step| libc + step * 1_009);
    let rules = |table: &UnwindTable| {
        let rule = |address| format!("{:?}", table.rule_at(address, &mut UnwindContext::new()));
        addresses.clone().map(rule).collect::<Vec<_>>()
    };
    let sorted = rules(&table);
    assert!(table.search.take().is_some());
    assert_eq!(rules(&table), sorted);
    let known = sorted.iter().filter(|rule| *rule != "None").count();
    assert!(known > 100, "{known} of 200 addresses of libc have a rule");
}

/// A search table of the format of linkers, with these pairs of distances from its address.
fn search_table(format: [u8; 4], count: u32, pairs: &[[i32; 2]]) -> Option<SearchTable> {
    let mut bytes = format.to_vec();
    bytes.extend([0; 4]);
    bytes.extend(count.to_le_bytes());
    bytes.extend(
        pairs
            .as_flattened()
            .iter()
            .flat_map(|half| half.to_le_bytes()),
    );
    let address = 0x1000;
    SearchTable::of(TableSection { address, bytes })
}

#[test]
fn a_search_table_gives_the_last_entry_that_begins_at_or_before_an_address() {
    let pairs = [[-16, 100], [0, 200], [32, 300]];
    let table = search_table(SearchTable::FORMAT, 3, &pairs).expect("a table");
    assert_eq!(table.entry_of(0x1000 - 17), None);
    assert_eq!(table.entry_of(0x1000 - 16), Some(0x1000 + 100));
    assert_eq!(table.entry_of(0x1000 + 31), Some(0x1000 + 200));
    assert_eq!(table.entry_of(u64::MAX), Some(0x1000 + 300));
}

#[test]
fn a_search_table_that_ends_early_or_leads_below_zero_has_no_entry() {
    let table = search_table(SearchTable::FORMAT, 3, &[[0, 100], [32, 200]]).expect("a table");
    assert_eq!(table.entry_of(0x1000), None);
    let table = search_table(SearchTable::FORMAT, 1, &[[0, i32::MIN]]).expect("a table");
    assert_eq!(table.entry_of(0x1000), None);
}

#[test]
fn a_search_table_of_another_format_is_not_used() {
    assert!(search_table([1, 0x1b, 0x03, 0x3c], 1, &[[0, 0]]).is_none());
    let bytes = SearchTable::FORMAT.to_vec();
    assert!(SearchTable::of(TableSection { address: 0, bytes }).is_none());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_damaged_table_and_any_stack_give_a_caller_or_none(
        damages in proptest::collection::vec((0_usize..64, proptest::num::u8::ANY), 0..4),
        function in 0_usize..4_000,
        within in 0_u64..64,
        stack in proptest::collection::vec(proptest::num::u8::ANY, 0..512),
        frame_pointer in 0_u64..1_024,
        low in proptest::bool::ANY,
    ) {
        std::thread_local! {
            static TABLE: std::cell::RefCell<UnwindTable> = table_of_libc().into();
        }
        TABLE.with_borrow_mut(|table| {
            // The entries of .eh_frame_hdr: pairs of four bytes from its start, sorted by address.
            let SearchTable(search) = table.search.as_ref().expect("libc has one");
            let pairs = &search.bytes[SearchTable::HEAD..];
            let pair = &pairs[function % (pairs.len() / 8) * 8..][..8];
            let [start, entry] = [&pair[..4], &pair[4..]].map(|half| {
                let distance = i32::from_le_bytes(half.try_into().expect("four bytes"));
                search.address.wrapping_add_signed(distance.into())
            });
            let address = start.wrapping_add(within);
            let at = entry.wrapping_sub(table.entries.address) as usize;
            let before = table.entries.clone();
            for (place, byte) in damages {
                if let Some(target) = table.entries.bytes.get_mut(at + place) {
                    *target = byte;
                }
            }
            let address = address.wrapping_add(table.bias);
            let rule = table.rule_at(address, &mut UnwindContext::new());
            let start = if low { 0 } else { u64::MAX - 1_024 };
            let stack = StackCopy {
                address: start,
                frame_pointer: start + frame_pointer,
                bytes: stack,
            };
            if let Some(rule) = rule {
                let mut registers = Registers::of(&stack);
                let _ = rule.unwind(table, &mut registers, &stack);
                assert!(registers.stack_pointer >= stack.address);
            }
            table.entries = before;
        });
    }
}
