//! The location of a thread's own `PyThreadState`: the result of `PyGILState_GetThisThreadState()`, which is
//! valid whether the thread holds the GIL or not.

use hashbrown::{HashMap, HashSet};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use super::threads::ThreadState;
use crate::process::memory::{ReadMemory, ReadResult};

/// The storage of `pthread_setspecific` values in glibc (`struct pthread` in `nptl/descr.h`; x86-64, where
/// `pthread_self()` is fsbase). It is the same from 2.27 to 2.43; libc describes it in its data symbols
/// `_thread_db_pthread_specific` and `_thread_db_sizeof_pthread_key_data`.
mod glibc {
    /// `specific_1stblock`: the first 32 keys, in `struct pthread` itself.
    pub(super) const FIRST_BLOCK: i32 = 0x310;
    /// `specific`: pointers to the blocks of 32 keys each.
    pub(super) const BLOCKS: i32 = 0x510;
    /// `PTHREAD_KEY_2NDLEVEL_SIZE`.
    pub(super) const KEYS_PER_BLOCK: i32 = 32;
    /// `sizeof(struct pthread_key_data)`.
    pub(super) const ENTRY: i32 = 16;
    /// `pthread_key_data.data`.
    pub(super) const DATA: i32 = 8;
    /// `PTHREAD_KEYS_MAX`.
    pub(super) const MAX_KEYS: u32 = 1024;
    /// `header.dtv` (`tcbhead_t` in `sysdeps/x86_64/nptl/tls.h`): the pointer to the thread's TLS blocks by module ID.
    pub(super) const LIBRARIES: i32 = 8;
    /// `sizeof(dtv_t)`, which starts with the block's address (`sysdeps/generic/dl-dtv.h`).
    pub(super) const LIBRARY_ENTRY: i32 = 16;
    /// `TLS_DTV_UNALLOCATED`: replaces the address of a block that the thread has not used.
    pub(super) const UNALLOCATED: u64 = u64::MAX;
    /// The highest TLS module ID that is accepted.
    pub(super) const MAX_LIBRARIES: u64 = 1 << 16;
}

/// Bytes below a thread pointer that are searched for the thread's state.
const SEARCHED: usize = 4096;

/// The path from a thread pointer to the word that holds the thread's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatePath {
    steps: [i32; 3],
    count: usize,
}

impl StatePath {
    /// Returns the path to the value of a pthread key; `None` if glibc has no such key.
    pub fn to_key(number: u32) -> Option<Self> {
        use glibc::{BLOCKS, DATA, ENTRY, FIRST_BLOCK, KEYS_PER_BLOCK, MAX_KEYS};
        let number = i32::try_from(number).ok().filter(|_| number < MAX_KEYS)?;
        let slot = |key| ENTRY * key + DATA;
        Some(if number < KEYS_PER_BLOCK {
            Self::of(&[FIRST_BLOCK + slot(number)])
        } else {
            let block = BLOCKS + 8 * (number / KEYS_PER_BLOCK);
            Self::of(&[block, slot(number % KEYS_PER_BLOCK)])
        })
    }

    pub fn to_variable(distance: i32) -> Self {
        Self::of(&[distance])
    }

    /// Returns the path to a variable in the TLS block of the module with this ID; `None` for an invalid ID.
    pub fn to_library_variable(library: u64, offset: i32) -> Option<Self> {
        let is_valid = (1..glibc::MAX_LIBRARIES).contains(&library);
        let number = i32::try_from(library).ok().filter(|_| is_valid)?;
        let entry = glibc::LIBRARY_ENTRY * number;
        Some(Self::of(&[glibc::LIBRARIES, entry, offset]))
    }

    fn of(steps: &[i32]) -> Self {
        let mut all = [0; 3];
        all[..steps.len()].copy_from_slice(steps);
        Self {
            steps: all,
            count: steps.len(),
        }
    }

    /// Returns the offsets: the first from the thread pointer, each further one from the word read there.
    pub fn steps(&self) -> &[i32] {
        &self.steps[..self.count]
    }

    /// Returns the word at the end of the path for the thread with this `pthread_self()`; 0 without one.
    pub fn value(&self, memory: &impl ReadMemory, thread_id: u64) -> ReadResult<u64> {
        let mut at = thread_id;
        for (number, &step) in self.steps().iter().enumerate() {
            if number > 0 && (at == 0 || at == glibc::UNALLOCATED) {
                return Ok(0);
            }
            at = memory.read_u64(at.wrapping_add_signed(step.into()))?;
        }
        Ok(at)
    }
}

/// Returns the path by which `PyGILState_GetThisThreadState()` reaches a thread-local variable, decoded from
/// its instructions `code` at `address`. The function only returns the variable (`Python/pystate.c`@v3.15.2),
/// in one of the forms of "ELF Handling For Thread-Local Storage" (x86-64). `None` for other instructions.
pub fn way_of_function(memory: &impl ReadMemory, code: &[u8], address: u64) -> Option<StatePath> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut known = Held::Nothing;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        match instruction.mnemonic() {
            Mnemonic::Ret => return None,
            Mnemonic::Lea if instruction.is_ip_rel_memory_operand() => {
                known = Held::Address(instruction.ip_rel_memory_address());
            }
            Mnemonic::Call => known = known.after_call(memory)?,
            Mnemonic::Mov if instruction.op1_kind() == OpKind::Memory => {
                let displacement = instruction.memory_displacement64() as i32;
                let in_thread = instruction.segment_prefix() == Register::FS;
                match (instruction.memory_base(), in_thread, known) {
                    (Register::None, true, _) => return Some(StatePath::to_variable(displacement)),
                    (Register::RIP, false, _) => {
                        let word = memory.read_u64(instruction.ip_rel_memory_address()).ok()?;
                        known = Held::Distance(i32::try_from(word as i64).ok()?);
                    }
                    (_, true, Held::Distance(distance)) => {
                        let distance = distance.checked_add(displacement)?;
                        return Some(StatePath::to_variable(distance));
                    }
                    (_, false, Held::Block { library, offset }) => {
                        let offset = offset.checked_add(displacement)?;
                        return StatePath::to_library_variable(library, offset);
                    }
                    _ => return None,
                }
            }
            Mnemonic::Push | Mnemonic::Pop | Mnemonic::Sub | Mnemonic::Add => {}
            Mnemonic::Mov | Mnemonic::Nop | Mnemonic::Endbr64 => {}
            _ => return None,
        }
    }
    None
}

/// The value of the relevant register after the instructions so far.
#[derive(Clone, Copy)]
enum Held {
    Nothing,
    /// An IP-relative address, expected to be that of a `tls_index`.
    Address(u64),
    Distance(i32),
    Block {
        library: u64,
        offset: i32,
    },
}

impl Held {
    /// Returns the result of `__tls_get_addr` for a `tls_index`, a module ID and an offset.
    fn after_call(self, memory: &impl ReadMemory) -> Option<Self> {
        let Self::Address(index) = self else {
            return None;
        };
        Some(Self::Block {
            library: memory.read_u64(index).ok()?,
            offset: i32::try_from(memory.read_u64(index.wrapping_add(8)).ok()?).ok()?,
        })
    }
}

/// Searches all pthread keys for one whose value in every thread is the thread's own state. The lowest counts: an
/// extension may store the same value under a key that it created later.
pub fn find_key(memory: &impl ReadMemory, states: &[ThreadState]) -> Option<StatePath> {
    let mut paths: Vec<_> = (0..glibc::MAX_KEYS).filter_map(StatePath::to_key).collect();
    for (thread_id, own) in by_thread(states) {
        let holds = |value: u64| own.contains(&value);
        paths.retain(|way| way.value(memory, thread_id).is_ok_and(holds));
    }
    paths.first().copied()
}

/// Searches the words below the thread pointers for one that holds every thread's own state. Empty if there
/// is none; several if they cannot be told apart.
pub fn find_variables(memory: &impl ReadMemory, states: &[ThreadState]) -> Vec<StatePath> {
    let mut found: Option<Vec<StatePath>> = None;
    for (thread_id, own) in by_thread(states) {
        let Ok(bytes) = memory.read_array::<SEARCHED>(thread_id.wrapping_sub(SEARCHED as u64))
        else {
            continue;
        };
        let is_own = |word: &[u8; 8]| own.contains(&u64::from_le_bytes(*word));
        match &mut found {
            Some(found) => found.retain(|way| {
                let at = SEARCHED.wrapping_add_signed(way.steps[0] as isize);
                bytes.as_chunks().0.get(at / 8).is_some_and(is_own)
            }),
            None => {
                let words = bytes.as_chunks().0.iter().enumerate();
                let own = words.filter(|(_, word)| is_own(word));
                let offsets = own.map(|(at, _)| (8 * at) as i32 - SEARCHED as i32);
                found = Some(offsets.map(StatePath::to_variable).collect());
            }
        }
    }
    found.unwrap_or_default()
}

/// Returns the states of each thread. In an embedding program it may have several, the first its own.
pub(super) fn by_thread(states: &[ThreadState]) -> HashMap<u64, HashSet<u64>> {
    let mut of_thread: HashMap<u64, HashSet<u64>> = HashMap::new();
    for state in states.iter().filter(|state| state.thread_id != 0) {
        let own = of_thread.entry(state.thread_id).or_default();
        own.insert(state.address);
    }
    of_thread
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::memory::fake::FakeMemory;

    const THREAD: u64 = 0x7_0000;
    const STATE: u64 = 0x2_0000;

    fn steps(number: u32) -> Vec<i32> {
        StatePath::to_key(number).unwrap().steps().to_vec()
    }

    fn word(memory: &mut FakeMemory, at: u64, value: u64) {
        memory.write(at, &value.to_le_bytes());
    }

    fn threads(count: u64) -> (FakeMemory, Vec<ThreadState>) {
        let mut memory = FakeMemory::default();
        let state = |number| ThreadState {
            address: STATE + 0x100 * number,
            thread_id: THREAD + 0x1_0000 * number,
            native_thread_id: 100 + number,
        };
        let states: Vec<_> = (0..count).map(state).collect();
        for state in &states {
            memory.map(state.thread_id - 0x1000, vec![0; 0x2000]);
        }
        (memory, states)
    }

    #[test]
    fn the_way_to_a_key_is_that_of_glibc() {
        assert_eq!(steps(0), [0x318]);
        assert_eq!(steps(31), [0x508]);
        assert_eq!(steps(32), [0x518, 8]);
        assert_eq!(steps(1023), [0x608, 504]);
        assert_eq!(StatePath::to_key(1024), None);
    }

    #[test]
    fn a_library_variable_that_a_thread_has_not_used_is_nothing() {
        let way = StatePath::to_library_variable(2, 0x28).unwrap();
        assert_eq!(way.steps(), [8, 32, 0x28]);
        let (mut memory, _) = threads(1);
        memory.map(0x9_0000, vec![0; 0x100]);
        word(&mut memory, THREAD + 8, 0x9_0000);
        for (block, value) in [(u64::MAX, Some(0)), (0, Some(0)), (0x9_0040, Some(STATE))] {
            word(&mut memory, 0x9_0020, block);
            word(&mut memory, 0x9_0068, STATE);
            assert_eq!(way.value(&memory, THREAD).ok(), value);
        }
        assert_eq!(StatePath::to_library_variable(0, 8), None);
        assert_eq!(StatePath::to_library_variable(u64::MAX, 8), None);
    }

    #[test]
    fn every_form_of_the_function_is_read() {
        let mut memory = FakeMemory::default();
        memory.map(0x1_0000, vec![0; 0x100]);
        word(&mut memory, 0x1_0000, 3);
        word(&mut memory, 0x1_0008, 0x10);
        word(&mut memory, 0x1_0010, -0x28_i64 as u64);
        let way = |code: &[u8]| way_of_function(&memory, code, 0x9000);
        // endbr64; mov rax, fs:-0x28; ret (Debian's python3.15)
        let local = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x64, 0x48, 0x8b, 0x04, 0x25, 0xd8, 0xff, 0xff, 0xff, 0xc3,
        ];
        assert_eq!(way(&local), Some(StatePath::to_variable(-0x28)));
        // push rbp; mov rbp, rsp; lea rdi, [rip+0x6ff5]; call …; pop rbp; mov rax, [rax+0x28]; ret
        // (Debian's libpython3.15)
        let library = [
            &[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5][..],
            &[0x48, 0x8d, 0x3d, 0xf1, 0x6f, 0, 0],
            &[0xe8, 0x5c, 0x9d, 0xcf, 0xff, 0x5d],
            &[0x48, 0x8b, 0x80, 0x28, 0, 0, 0, 0xc3],
        ]
        .concat();
        assert_eq!(way(&library), StatePath::to_library_variable(3, 0x38));
        // mov rax, [rip+0x7009]; mov rax, fs:[rax]; ret
        let early = [
            0x48, 0x8b, 0x05, 0x09, 0x70, 0, 0, 0x64, 0x48, 0x8b, 0, 0xc3,
        ];
        assert_eq!(way(&early), Some(StatePath::to_variable(-0x28)));
    }

    #[test]
    fn a_function_that_does_something_else_is_left() {
        let memory = FakeMemory::default();
        for code in [
            &[0xc3][..],
            &[],
            &[0x48, 0x8b, 0x05, 0x09, 0x70, 0, 0, 0xc3],
            &[0x31, 0xc0, 0xc3],
            &[0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0, 0xc3],
        ] {
            assert_eq!(way_of_function(&memory, code, 0x9000), None);
        }
    }

    #[test]
    fn the_oldest_key_under_which_every_thread_has_its_state_is_found() {
        let (mut memory, states) = threads(3);
        for state in &states {
            word(&mut memory, state.thread_id + 0x318 + 16 * 5, state.address);
            word(&mut memory, state.thread_id + 0x318 + 16 * 7, state.address);
        }
        word(&mut memory, states[0].thread_id + 0x318, states[0].address);
        assert_eq!(find_key(&memory, &states), StatePath::to_key(5));
        word(&mut memory, states[1].thread_id + 0x318 + 16 * 5, 0);
        assert_eq!(find_key(&memory, &states), StatePath::to_key(7));
        word(&mut memory, states[2].thread_id + 0x318 + 16 * 7, 0);
        assert_eq!(find_key(&memory, &states), None);
    }

    #[test]
    fn variables_that_hold_the_state_of_every_thread_are_found() {
        let (mut memory, states) = threads(3);
        assert_eq!(find_variables(&memory, &states), []);
        for state in &states {
            word(&mut memory, state.thread_id - 0x28, state.address);
        }
        word(&mut memory, states[0].thread_id - 0x20, states[0].address);
        assert_eq!(
            find_variables(&memory, &states),
            [StatePath::to_variable(-0x28)]
        );
        assert_eq!(find_variables(&memory, &states[..1]).len(), 2);
    }
}
