use super::*;
use crate::process::memory::fake::{FakeMemory, SharedMemory};

const AT: u64 = 0x10_0000;

fn memory() -> FakeMemory {
    let mut memory = FakeMemory::default();
    // One chunk and a half.
    memory.map(AT, (0..24 << 10).map(|byte| (byte / 7) as u8).collect());
    memory
}

#[test]
fn a_closed_image_serves_cached_memory_only() {
    let memory = memory();
    let image = Image::of(&memory, 1 << 20);
    assert_eq!(image.read_u64(AT + 8), memory.read_u64(AT + 8));
    image.close();
    assert_eq!(image.read_u64(AT + 0x3000), memory.read_u64(AT + 0x3000));
    assert_eq!(image.extent().missed, 0);
    assert_eq!(
        image.read_u64(AT + 0x4000).unwrap_err().cause,
        Cause::NotKept
    );
    assert_eq!(image.extent().missed, 1);
}

#[test]
fn a_range_over_chunks_is_one_range() {
    let memory = memory();
    let image = Image::of(&memory, 1 << 20);
    assert_eq!(
        image.read_bytes(AT + 100, 20_000, 1 << 20),
        memory.read_bytes(AT + 100, 20_000, 1 << 20)
    );
}

#[test]
fn of_a_chunk_that_is_mapped_in_part_that_part_is_read() {
    let memory = memory();
    let image = Image::of(&memory, 1 << 20);
    let last = AT + (24 << 10) - 8;
    assert_eq!(image.read_u64(last), memory.read_u64(last));
    let error = image.read_u64(last + 8).unwrap_err();
    assert_eq!(error.cause, Cause::NotMapped);
    assert_eq!(
        image.read_u64(u64::MAX).unwrap_err().cause,
        Cause::NotMapped
    );
}

#[test]
fn it_keeps_no_more_than_it_may() {
    let memory = memory();
    let image = Image::of(&memory, CHUNK);
    image.fetch([AT..AT + (24 << 10), 0..u64::MAX]);
    assert_eq!(
        image.extent(),
        ImageExtent {
            bytes: CHUNK,
            missed: 0,
            full: true
        }
    );
    assert_eq!(
        image.read_u64(AT + 0x4000).unwrap_err().cause,
        Cause::NotKept
    );
}

#[test]
fn reserved_memory_is_left_to_later_reads() {
    let memory = memory();
    let image = Image::of(&memory, 2 * CHUNK);
    let read = |address| image.read_u64(address).map_err(|error| error.cause);
    let chunks = [AT, AT + 0x4000, AT + 0x8000];
    let cut = image.reserving(CHUNK, || chunks.map(read));
    assert_eq!(cut.map(|word| word.is_ok()), [true, false, false]);
    assert!(image.extent().full);
    assert_eq!(
        chunks.map(read).map(|word| word.is_ok()),
        [true, true, false]
    );
    image.forget_use();
    assert_eq!(chunks.map(read)[2], Err(Cause::NotKept));
    assert!(image.extent().full);
}

#[test]
fn what_was_only_peeked_at_is_not_copied_again_nor_missed() {
    let memory = memory();
    let image = Image::of(&memory, 1 << 20);
    let (read, peeked) = (AT + 8, AT + 0x1000);
    let mut word = [0; 8];
    assert_eq!(image.peek(peeked, &mut word), Ok(()));
    assert_eq!(Ok(u64::from_le_bytes(word)), memory.read_u64(peeked));
    image.read_u64(read).unwrap();
    image.renew();
    image.close();
    let lost = image.peek(peeked, &mut word);
    assert_eq!(lost.map_err(|error| error.cause), Err(Cause::NotKept));
    assert_eq!(image.peek(read, &mut word), Ok(()));
    assert_eq!(image.extent().missed, 0);
    // Half of the room is for memory that is needed.
    let small = Image::of(&memory, CHUNK);
    assert!(small.peek(read, &mut word).is_err());
    assert_eq!(small.read_u64(read), memory.read_u64(read));
}

#[test]
fn only_marked_chunks_stay() {
    let memory = memory();
    let image = Image::of(&memory, 1 << 20);
    let (other, marked) = (AT + 8, AT + 0x4000);
    image.read_u64(other).unwrap();
    image.marking(|| image.read_u64(marked)).unwrap();
    image.close();
    image.keep_marked();
    assert_eq!(image.read_u64(marked), memory.read_u64(marked));
    assert_eq!(image.extent().missed, 0);
    let lost = image.read_u64(other);
    assert_eq!(lost.map_err(|error| error.cause), Err(Cause::NotKept));
    // Opened, it reads the chunk again.
    image.open();
    assert_eq!(image.read_u64(other), memory.read_u64(other));
}

#[test]
fn a_page_that_was_followed_and_has_changed_is_known() {
    let memory = RefCell::new(memory());
    let image = Image::of(SharedMemory(&memory), 1 << 20);
    let (other, followed) = (AT + 8, AT + 0x2000);
    image.read_u64(other).unwrap();
    image.following(|| image.read_u64(followed)).unwrap();
    image.renew();
    assert!(!image.has_followed_changed());
    memory.borrow_mut().write(other, &[0xff; 8]);
    image.renew();
    assert!(!image.has_followed_changed());
    memory.borrow_mut().write(followed, &[0xff; 8]);
    image.renew();
    assert!(image.has_followed_changed());
    image.forget_use();
    assert!(!image.has_followed_changed());
}

#[test]
fn a_page_that_was_never_read_may_have_changed() {
    let memory = memory();
    let image = Image::of(&memory, 1 << 20);
    image.read_u64(AT).unwrap();
    image.renew();
    assert!(!image.may_have_changed(AT, 8));
    // In the same chunk, but outside of what was read.
    assert!(image.may_have_changed(AT + 0x2000, 8));
    assert!(image.may_have_changed(AT, 0x2001));
}

#[test]
fn renewed_it_shows_what_the_memory_has_become() {
    let memory = RefCell::new(memory());
    let image = Image::of(SharedMemory(&memory), 1 << 20);
    image.read_u64(AT).unwrap();
    memory.borrow_mut().write(AT, &[0xff; 8]);
    memory.borrow_mut().write(AT + 0x1000, &[0xff; 8]);
    assert_ne!(image.read_u64(AT), Ok(u64::MAX));
    image.renew();
    assert_eq!(image.read_u64(AT), Ok(u64::MAX));
    // A page that nobody looked at is read on demand.
    assert_eq!(image.read_u64(AT + 0x1000), Ok(u64::MAX));
    image.close();
    assert_eq!(
        image.read_u64(AT + 0x2000).unwrap_err().cause,
        Cause::NotKept
    );
}
