//! Copies of native stacks, unwound through the libraries of this process.

use std::cell::RefCell;

use memprobe::decode::StackCopy;
use memprobe::event::Tgid;
use memprobe::symbolize::native::NativeCode;

/// Unwinds a stack: a return address, a frame pointer, the address of the stack, and its bytes. Addresses count from
/// the code of this program, or from the stack.
pub fn read(data: &[u8]) {
    thread_local! {
        static CODE: RefCell<NativeCode> = RefCell::new(NativeCode::of(Tgid(std::process::id())));
    }
    let Some((head, bytes)) = data.split_first_chunk::<24>() else {
        return;
    };
    let word = |at: usize| {
        let word = head[at..at + 8].iter().rev();
        word.fold(0_u64, |word, byte| word << 8 | u64::from(*byte))
    };
    let code = read as *const () as u64;
    let copy = StackCopy {
        address: word(16),
        frame_pointer: word(8),
        bytes: bytes.to_vec(),
    };
    let _ = CODE.with_borrow_mut(|native| native.unwind(code.wrapping_add(word(0)), &copy));
}
