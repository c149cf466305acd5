//! Functions that a program has rewritten in its own memory: the first bytes differ from the file's.
//!
//! Hooks do that: UCX puts a jump over the first 5 or 12 bytes of libcuda's functions (src/ucm/bistro/bistro_x86_64.c,
//! openucx/ucx). The kernel takes a probed instruction from the file: a probe upon rewritten bytes runs code that the
//! program has replaced, or puts its breakpoint into the middle of another instruction. When the probe goes, the kernel
//! writes the file's byte back, which damages the hook for good.

use std::borrow::Cow;

use iced_x86::{Code as Opcode, Decoder, DecoderOptions, OpKind};

use super::prologue::{ProbePlace, SEARCHED};
use crate::event::Tgid;
use crate::process::maps::{MappedFile, Maps};
use crate::process::memory::{Piece, ProcessMemory, ReadMemory as _};

/// `INT3`, which the kernel puts in the place of a probed instruction (`UPROBE_SWBP_INSN`,
/// arch/x86/include/asm/uprobes.h@v6.18), as debuggers do.
pub(super) const BREAKPOINT: u8 = 0xcc;

/// The call by which Linux 6.18 replaces a 5-byte `nop` that is probed (`arch_uprobe_optimize`,
/// arch/x86/kernel/uprobes.c@v6.18), and that `nop`.
const CALL: u8 = 0xe8;
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// First bytes of a function in its file, up to its end, and the place of the probe in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCode {
    /// Offset of the function in the file, in bytes.
    pub offset: u64,
    /// Its first bytes, [`SEARCHED`] at most.
    bytes: Vec<u8>,
    place: ProbePlace,
}

/// State of a function's first bytes in the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// Equal to the file, apart from breakpoints.
    AsInFile,
    /// Rewritten, but only before the probed instruction: a probe there is safe. It sees the calls
    /// that the new code passes on to the old.
    PatchedBefore(Patch),
    /// Rewritten at the probed instruction or behind it: no probe may be there.
    PatchedOver(Patch),
    /// Equal to the file, in memory that the process may write: the kernel puts no probe there, and
    /// reports no error (`valid_vma`, kernel/events/uprobes.c@v6.18).
    Writable,
}

/// Code that stands in the place of a function's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Destination, if the new code begins with a jump that can be followed.
    pub target: Option<u64>,
    /// A breakpoint is where the probed instruction was: the kernel has put a probe into the new code.
    pub holds_breakpoint: bool,
}

/// Consequences of a patch where a probe is or would be, and the advice, for people.
pub(super) const LEFT_ALONE: &str = "memprobe puts no probe there and does not see calls of it";
pub(super) const WRITABLE: &str =
    "the kernel puts no probe into memory that a process may write, so calls of it are not seen";
pub(super) const BROKEN: &str = "this happened while memprobe's probes were there, and the kernel has put them into the new \
     code; calls may fail. Start the process again, and give memprobe --no-driver";
pub const REMEDY: &str = "memprobe leaves the function alone, and does not see its calls: start the process without that hook \
     (for UCX: UCX_MEM_CUDA_HOOK_MODE=none or =reloc), if they matter.";

impl FileCode {
    /// Code of the function at a file offset, where `bytes` begin; `size` is its length in bytes, 0 if unknown.
    pub fn new(offset: u64, mut bytes: Vec<u8>, size: u64, place: ProbePlace) -> Self {
        // What follows a function's end is another's, and may be rewritten for itself.
        let own = if size == 0 { place.end() } else { size };
        bytes.truncate(usize::try_from(own).unwrap_or(SEARCHED).min(SEARCHED));
        Self {
            offset,
            bytes,
            place,
        }
    }

    /// Compares the file's bytes with those of a process's memory, which begin at `address`.
    fn compare(&self, memory: &[u8], address: u64) -> EntryState {
        let place = usize::try_from(self.place.offset).unwrap_or(usize::MAX);
        let is_optimized = self
            .bytes
            .get(place..)
            .is_some_and(|code| code.starts_with(&NOP5) && memory.get(place) == Some(&CALL));
        let differs = |at: &usize| {
            let is_probe = is_optimized && (place..place + NOP5.len()).contains(at);
            memory[*at] != self.bytes[*at] && memory[*at] != BREAKPOINT && !is_probe
        };
        let common = self.bytes.len().min(memory.len());
        let Some(last) = (0..common).rev().find(differs) else {
            return EntryState::AsInFile;
        };
        let patch = Patch {
            target: jump_target(memory, address),
            holds_breakpoint: memory.get(place) == Some(&BREAKPOINT),
        };
        if last >= place {
            EntryState::PatchedOver(patch)
        } else {
            EntryState::PatchedBefore(patch)
        }
    }
}

/// The target of a jump that `code` begins with: near, through the pointer behind it, or through a
/// register that it loads with a constant.
fn jump_target(code: &[u8], address: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let first = decoder.decode();
    if first.is_jmp_short_or_near() {
        return Some(first.near_branch_target());
    }
    if first.is_jmp_near_indirect() && first.is_ip_rel_memory_operand() {
        let pointer = first.ip_rel_memory_address().checked_sub(address)?;
        let pointer = usize::try_from(pointer).ok()?;
        let bytes = code.get(pointer..)?.first_chunk()?;
        return Some(u64::from_le_bytes(*bytes));
    }
    if first.code() == Opcode::Mov_r64_imm64 {
        let second = decoder.decode();
        let through_it = second.is_jmp_near_indirect()
            && second.op0_kind() == OpKind::Register
            && second.op0_register() == first.op0_register();
        return through_it.then(|| first.immediate64());
    }
    None
}

/// The state of functions of one file in the memory of a process; [`Entry::AsInFile`] for those whose
/// memory cannot be read, which the process cannot run either.
pub fn entries<'a>(
    tgid: Tgid,
    mapped: &MappedFile,
    functions: impl Iterator<Item = &'a FileCode>,
) -> Vec<EntryState> {
    let functions: Vec<_> = functions
        .map(|code| (code, mapped.address_of(code.offset)))
        .collect();
    let mut buffers = vec![[0; SEARCHED]; functions.len()];
    let pieces = functions.iter().zip(&mut buffers);
    let mut pieces: Vec<_> = pieces
        .map(|((code, address), buffer)| {
            Piece::of(address.unwrap_or(0), &mut buffer[..code.bytes.len().max(1)])
        })
        .collect();
    ProcessMemory::new(tgid).read_each(&mut pieces);
    let readable: Vec<_> = pieces.iter().map(|piece| piece.outcome.is_ok()).collect();
    let is_writable = |code: &FileCode| {
        let mapping = mapped.code_mapping(code.offset);
        mapping.is_some_and(|mapping| mapping.perms.write)
    };
    functions
        .iter()
        .zip(buffers.iter().zip(readable))
        .map(|((code, address), (memory, readable))| match address {
            Some(address) if readable => match code.compare(memory, *address) {
                EntryState::AsInFile if is_writable(code) => EntryState::Writable,
                entry => entry,
            },
            _ => EntryState::AsInFile,
        })
        .collect()
}

/// Comparisons of a process that maps and unmaps while it is looked at.
const ATTEMPTS: usize = 3;

/// The state of functions, as [`entries`], and the mappings of the process, if one of them is not as in the file. The
/// file is still mapped where it was read: memory that has become another file's is not the process's new code.
pub fn changed_entries<'a>(
    tgid: Tgid,
    mapped: &MappedFile,
    functions: impl Iterator<Item = &'a FileCode> + Clone,
) -> Option<(Vec<EntryState>, Maps)> {
    let mut mapped = Cow::Borrowed(mapped);
    for _ in 0..ATTEMPTS {
        let entries = entries(tgid, &mapped, functions.clone());
        if entries.iter().all(|entry| *entry == EntryState::AsInFile) {
            return None;
        }
        let maps = Maps::of(tgid).ok()?;
        let current = maps.again(&mapped)?;
        if current == *mapped {
            return Some((entries, maps));
        }
        mapped = Cow::Owned(current);
    }
    None
}

impl Patch {
    fn library(self, maps: &Maps) -> Option<String> {
        let mapping = maps.find(self.target?)?;
        let name = mapping.path.file_name()?.to_string_lossy();
        mapping.is_file().then(|| name.into_owned())
    }

    /// The patch in words: `rewritten in memory, jumps into libucm_cuda.so.0`.
    pub fn described(self, maps: &Maps) -> String {
        let rewritten = "rewritten in memory";
        match (self.library(maps), self.target) {
            (Some(library), _) => format!("{rewritten}, jumps into {library}"),
            (None, Some(_)) => format!("{rewritten}, jumps to code that is no file's"),
            (None, None) => format!("{rewritten}, by code that memprobe cannot name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cmp dword ptr [rip+0x1234], imm32; jne +16; jmp [rip]`, as libcuda's functions begin.
    const TRAMPOLINE: [u8; 18] = [
        0x81, 0x3d, 0x34, 0x12, 0, 0, 0x78, 0x56, 0x34, 0x12, 0x75, 0x10, 0xff, 0x25, 0, 0, 0, 0,
    ];
    /// `push rbp; mov rbp, rsp; push r15; push r14; push r13; push r12; nop`.
    const PUSH: [u8; 14] = [
        0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x90, 0x90,
    ];
    const ADDRESS: u64 = 0x7000_0000_1000;

    fn code(bytes: &[u8]) -> FileCode {
        let place = ProbePlace::find(bytes, &[]);
        FileCode::new(0, bytes.to_vec(), bytes.len() as u64, place)
    }

    /// `code` with `patch` over its first bytes.
    fn patched(code: &[u8], patch: &[u8]) -> Vec<u8> {
        let mut memory = code.to_vec();
        memory[..patch.len()].copy_from_slice(patch);
        memory
    }

    fn near_jump(target: u64) -> Vec<u8> {
        let distance = target.wrapping_sub(ADDRESS + 5) as u32;
        [&[0xe9], distance.to_le_bytes().as_slice()].concat()
    }

    /// `movabs r11, target; jmp r11`.
    fn far_jump(target: u64) -> Vec<u8> {
        [
            &[0x49, 0xbb],
            target.to_le_bytes().as_slice(),
            &[0x41, 0xff, 0xe3],
        ]
        .concat()
    }

    fn jumps_to(target: u64) -> Patch {
        Patch {
            target: Some(target),
            holds_breakpoint: false,
        }
    }

    #[test]
    fn distinguishes_original_code_from_code_with_a_breakpoint() {
        let function = code(&TRAMPOLINE);
        assert_eq!(function.compare(&TRAMPOLINE, ADDRESS), EntryState::AsInFile);
        let mut probed = TRAMPOLINE;
        probed[10] = BREAKPOINT;
        assert_eq!(function.compare(&probed, ADDRESS), EntryState::AsInFile);
    }

    #[test]
    fn a_short_patch_leaves_the_branch_of_a_trampoline_and_a_long_one_does_not() {
        let target = ADDRESS + 0x5000;
        let function = code(&TRAMPOLINE);
        let short = patched(&TRAMPOLINE, &near_jump(target));
        let before = EntryState::PatchedBefore(jumps_to(target));
        assert_eq!(function.compare(&short, ADDRESS), before);
        let long = patched(&TRAMPOLINE, &far_jump(target));
        let over = EntryState::PatchedOver(jumps_to(target));
        assert_eq!(function.compare(&long, ADDRESS), over);
    }

    #[test]
    fn every_patch_of_a_function_that_begins_with_push_lies_over_the_probe() {
        let target = ADDRESS - 0x12_3456;
        let function = code(&PUSH);
        for patch in [near_jump(target), far_jump(target)] {
            let entry = function.compare(&patched(&PUSH, &patch), ADDRESS);
            assert_eq!(entry, EntryState::PatchedOver(jumps_to(target)));
        }
    }

    #[test]
    fn a_patch_with_a_breakpoint_in_it_is_still_a_patch() {
        let function = code(&TRAMPOLINE);
        let mut memory = patched(&TRAMPOLINE, &far_jump(0x1234));
        memory[10] = BREAKPOINT;
        let entry = function.compare(&memory, ADDRESS);
        let holds_breakpoint =
            matches!(entry, EntryState::PatchedOver(patch) if patch.holds_breakpoint);
        assert!(holds_breakpoint, "{entry:?}");
    }

    #[test]
    fn a_jump_through_the_pointer_behind_it_is_followed() {
        let patch = [
            &[0xff, 0x25, 0, 0, 0, 0],
            0xabcd_u64.to_le_bytes().as_slice(),
        ]
        .concat();
        assert_eq!(jump_target(&patch, ADDRESS), Some(0xabcd));
        // Its pointer lies elsewhere.
        assert_eq!(jump_target(&[0xff, 0x25, 0, 1, 0, 0], ADDRESS), None);
        assert_eq!(jump_target(&PUSH, ADDRESS), None);
        assert_eq!(jump_target(&[], ADDRESS), None);
    }

    #[test]
    fn the_next_function_s_bytes_are_not_compared() {
        let function = FileCode::new(
            0,
            TRAMPOLINE.to_vec(),
            12,
            ProbePlace::find(&TRAMPOLINE, &[]),
        );
        let mut memory = TRAMPOLINE;
        memory[12..17].copy_from_slice(&near_jump(ADDRESS));
        assert_eq!(function.compare(&memory, ADDRESS), EntryState::AsInFile);
    }

    #[test]
    fn the_kernel_s_own_call_in_the_place_of_a_nop_is_no_patch() {
        let nop = [&NOP5, PUSH.as_slice()].concat();
        let place = ProbePlace {
            offset: 0,
            length: 5,
            emulated: true,
        };
        let function = FileCode::new(0, nop.clone(), 0, place);
        let call = patched(&nop, &[CALL, 1, 2, 3, 4]);
        assert_eq!(function.compare(&call, ADDRESS), EntryState::AsInFile);
    }

    /// A function of the C library in this process, and the library.
    fn own_getpid() -> (Tgid, MappedFile, FileCode) {
        use crate::process::elf::ElfImage;
        let tgid = Tgid(std::process::id());
        let maps = Maps::of(tgid).expect("our own mappings");
        let library = maps.library("libc.so").expect("libc is mapped");
        let image =
            ElfImage::from_file(library.open(tgid).expect("opened").0).expect("an ELF file");
        let symbol = image.symbol("getpid").expect("readable").expect("exported");
        let bytes = image.bytes_at(symbol.vaddr, SEARCHED).expect("its code");
        let offset = image.file_offset_of(symbol.vaddr).expect("in the file");
        let place = ProbePlace::find(&bytes, &[]);
        (
            tgid,
            library,
            FileCode::new(offset, bytes, symbol.size, place),
        )
    }

    #[test]
    fn own_code_is_as_in_its_file() {
        let (tgid, library, mut function) = own_getpid();
        let state = |function: &FileCode| entries(tgid, &library, std::iter::once(function));
        assert_eq!(state(&function), [EntryState::AsInFile]);
        function.bytes[0] ^= 0x40;
        assert!(!matches!(state(&function)[..], [EntryState::AsInFile]));
    }

    #[test]
    fn memory_that_the_file_has_left_is_not_taken_for_rewritten_code() {
        let (tgid, library, function) = own_getpid();
        let changed = |mapped: &MappedFile, function: &FileCode| {
            changed_entries(tgid, mapped, std::iter::once(function)).is_some()
        };
        // The addresses that the file had before: its code is elsewhere by now.
        let mut stale = library.clone();
        for mapping in &mut stale.mappings {
            mapping.start += 0x40;
            mapping.end += 0x40;
        }
        let unconfirmed = entries(tgid, &stale, std::iter::once(&function));
        assert_ne!(unconfirmed, [EntryState::AsInFile]);
        assert!(!changed(&stale, &function));
        let mut rewritten = function.clone();
        rewritten.bytes[0] ^= 0x40;
        assert!(changed(&stale, &rewritten), "found where it is mapped now");
        stale.inode = u64::MAX;
        assert!(!changed(&stale, &rewritten), "unmapped");
    }
}
