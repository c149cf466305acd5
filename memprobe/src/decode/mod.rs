//! Decodes ring-buffer bytes into records and checks every length and kind.

use std::mem::offset_of;

use memprobe_common::{
    BLOCK_STACK_COPY, CodeRecord, CudaRecord, FrameRecord, MAX_WALKED, MarkRecord, MemoryRecord,
    NodeEnteredRecord, NodeMadeRecord, ProcessRecord, STACK_COPY, ShapeRecord, StackHead, Stretch,
    ThreadStack, record, stack_state,
};
use zerocopy::FromBytes;

use crate::event::Tgid;

/// One record. Tensors stay bytes of the input, so that a record is small enough to be passed from function to function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// An event of the allocator or of autograd's engine, with the reason for the memory.
    Memory(MemoryKind, MemoryRecord, PurposeHint<'a>),
    /// A call into CUDA that succeeded or found no memory, with a copy of the stack if the thread runs no Python.
    Cuda(Box<CudaRecord>, Option<Box<StackCopy>>),
    Stack(StackHead, Vec<FrameRecord>),
    CodeFreed(Box<FreedCode>),
    NodeMade(NodeMadeRecord),
    /// An autograd node starts to be evaluated.
    NodeEntered(NodeEnteredRecord),
    Mark(Box<MarkRecord>),
    Process(ProcessEvent, ProcessRecord),
}

impl Record<'_> {
    pub fn tgid(&self) -> Tgid {
        Tgid(match self {
            Self::Memory(_, memory, _) => memory.tgid,
            Self::Cuda(call, _) => call.tgid,
            Self::Stack(head, _) => head.tgid,
            Self::CodeFreed(freed) => freed.tgid,
            Self::NodeMade(node) => node.tgid,
            Self::NodeEntered(node) => node.tgid,
            Self::Mark(mark) => mark.tgid,
            Self::Process(_, process) => process.tgid,
        })
    }

    /// True for a CUDA block that was handed out with neither a tensor nor a stack copy. If stack copies are
    /// recorded, the ring buffer had no room for this one (`memprobe-ebpf/src/stack.rs`).
    /// `stack_state::UNREADABLE` is excluded: such threads may lack the scratch memory that a copy needs.
    pub fn is_block_without_reason(&self) -> bool {
        let Self::Memory(MemoryKind::Block, memory, PurposeHint::None) = self else {
            return false;
        };
        memory.size > 0 && memory.stack_state != stack_state::UNREADABLE
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    Forked,
    Executed,
    Exited,
    /// The dynamic loader of the process maps libraries.
    LibraryMapped,
    /// The process used a probed library for the first time.
    Found,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreedCode {
    pub tgid: u32,
    pub code: u64,
    /// Copies of process memory at the time of the free, as address and bytes.
    pub memory: [(u64, Vec<u8>); 4],
}

/// The kernel's information on the purpose of a memory record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PurposeHint<'a> {
    None,
    /// The tensor that the thread had started to create.
    Tensor(EncodedShape<'a>),
    /// The thread was creating no tensor; a copy of its stack, return address first.
    Stack(Box<StackCopy>),
}

/// Bytes of a [`ShapeRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedShape<'a>(&'a [u8; size_of::<ShapeRecord>()]);

impl EncodedShape<'_> {
    pub fn read(self) -> ShapeRecord {
        zerocopy::transmute!(*self.0)
    }
}

/// A copy of a thread's stack with the registers that unwinding needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackCopy {
    /// The stack pointer, which is the address of the first byte.
    pub address: u64,
    pub frame_pointer: u64,
    /// The innermost part of the stack.
    pub bytes: Vec<u8>,
}

impl StackCopy {
    /// Returns the word at an address; `None` if the copy does not have all of it.
    pub fn word_at(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.address)?).ok()?;
        let word = self.bytes.get(at..)?.first_chunk();
        word.copied().map(u64::from_ne_bytes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The caching allocator handed out a block or took it back.
    Block,
    CpuBlock,
    CpuFree,
    OutOfMemory,
    /// The thread entered autograd's engine.
    Backward,
}

/// A record that cannot be decoded: from another version, or damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

pub fn decode(bytes: &[u8]) -> Result<Record<'_>, Malformed> {
    let kind = match *bytes.first().ok_or(Malformed)? {
        record::BLOCK => MemoryKind::Block,
        record::OUT_OF_MEMORY => MemoryKind::OutOfMemory,
        record::CPU_BLOCK => MemoryKind::CpuBlock,
        record::CPU_FREE => MemoryKind::CpuFree,
        record::BACKWARD => MemoryKind::Backward,
        record::BLOCK_WITH_STACK => {
            let (memory, stack) = head(bytes)?;
            let reason = PurposeHint::Stack(Box::new(thread_stack::<BLOCK_STACK_COPY>(stack)?));
            return Ok(Record::Memory(MemoryKind::Block, memory, reason));
        }
        record::CUDA_CALL => return Ok(Record::Cuda(Box::new(whole(bytes)?), None)),
        record::CUDA_CALL_WITH_STACK => {
            let (call, stack) = head(bytes)?;
            let copy = thread_stack::<STACK_COPY>(stack)?;
            return Ok(Record::Cuda(Box::new(call), Some(Box::new(copy))));
        }
        record::STACK => return stack(bytes),
        record::NODE_MADE => return Ok(Record::NodeMade(whole(bytes)?)),
        record::NODE_ENTERED => return Ok(Record::NodeEntered(whole(bytes)?)),
        record::MARK => return Ok(Record::Mark(Box::new(whole(bytes)?))),
        record::CODE_FREED => return freed_code(bytes),
        record::FORKED => return process(ProcessEvent::Forked, bytes),
        record::EXECUTED => return process(ProcessEvent::Executed, bytes),
        record::EXITED => return process(ProcessEvent::Exited, bytes),
        record::LIBRARY_MAPPED => return process(ProcessEvent::LibraryMapped, bytes),
        record::FOUND => return process(ProcessEvent::Found, bytes),
        _ => return Err(Malformed),
    };
    let (memory, shape) = head(bytes)?;
    let reason = match (shape, kind) {
        ([], _) => PurposeHint::None,
        (shape, MemoryKind::Block | MemoryKind::CpuBlock | MemoryKind::OutOfMemory) => {
            PurposeHint::Tensor(EncodedShape(shape.try_into().map_err(|_| Malformed)?))
        }
        (_, MemoryKind::Backward | MemoryKind::CpuFree) => return Err(Malformed),
    };
    Ok(Record::Memory(kind, memory, reason))
}

fn process(event: ProcessEvent, bytes: &[u8]) -> Result<Record<'static>, Malformed> {
    Ok(Record::Process(event, whole(bytes)?))
}

/// Decodes a stack copy; only the bytes that the kernel could read are kept.
fn thread_stack<const N: usize>(bytes: &[u8]) -> Result<StackCopy, Malformed> {
    if bytes.len() != size_of::<ThreadStack<N>>() {
        return Err(Malformed);
    }
    let (thread, bytes) = head::<ThreadStack<0>>(bytes)?;
    let length = usize::try_from(thread.stack.length).unwrap_or(N);
    Ok(StackCopy {
        address: thread.stack.address,
        frame_pointer: thread.frame_pointer,
        bytes: bytes[..length.min(N)].to_vec(),
    })
}

fn stack(bytes: &[u8]) -> Result<Record<'static>, Malformed> {
    let (start, frames) = head::<StackHead>(bytes)?;
    let count = usize::from(start.count);
    if count > MAX_WALKED || frames.len() != count * size_of::<FrameRecord>() {
        return Err(Malformed);
    }
    let frames = frames.chunks_exact(size_of::<FrameRecord>()).map(whole);
    Ok(Record::Stack(start, frames.collect::<Result<_, _>>()?))
}

/// Decodes a freed code object. Each stretch has an address and the bytes that the kernel could read.
fn freed_code(bytes: &[u8]) -> Result<Record<'static>, Malformed> {
    const STRETCHES: [usize; 4] = [
        offset_of!(CodeRecord, code),
        offset_of!(CodeRecord, file),
        offset_of!(CodeRecord, name),
        offset_of!(CodeRecord, lines),
    ];
    if bytes.len() != size_of::<CodeRecord>() {
        return Err(Malformed);
    }
    let (tgid, _) = head(&bytes[offset_of!(CodeRecord, tgid)..])?;
    let mut memory: [(u64, Vec<u8>); 4] = Default::default();
    let ends = STRETCHES.into_iter().skip(1).chain([bytes.len()]);
    for ((start, end), copy) in STRETCHES.into_iter().zip(ends).zip(&mut memory) {
        let (stretch, bytes) = head::<Stretch<0>>(&bytes[start..end])?;
        let length = usize::try_from(stretch.length).unwrap_or(0);
        *copy = (stretch.address, bytes[..length.min(bytes.len())].to_vec());
    }
    Ok(Record::CodeFreed(Box::new(FreedCode {
        tgid,
        code: memory[0].0,
        memory,
    })))
}

/// Reads a record that makes up all of `bytes`.
fn whole<T: FromBytes>(bytes: &[u8]) -> Result<T, Malformed> {
    T::read_from_bytes(bytes).map_err(|_| Malformed)
}

/// Reads the record at the beginning of `bytes`, and returns the bytes after it.
fn head<T: FromBytes>(bytes: &[u8]) -> Result<(T, &[u8]), Malformed> {
    T::read_from_prefix(bytes).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use memprobe_common::{MARK_NAME, grad_mode};

    use super::*;

    fn memory_bytes(kind: u8) -> Vec<u8> {
        let mut bytes = vec![kind, 1, 2, 0];
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(9u32.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        for word in [11u64, 0x7000, (-512i64).cast_unsigned(), 1024, 2048, 77] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_memory_record_keeps_every_field() {
        let Ok(Record::Memory(kind, memory, PurposeHint::None)) =
            decode(&memory_bytes(record::BLOCK))
        else {
            panic!("not decoded");
        };
        assert_eq!(kind, MemoryKind::Block);
        assert_eq!(
            (memory.device, memory.stack_state, memory.tid, memory.tgid),
            (1, 2, 7, 9)
        );
        assert_eq!(
            (memory.time_ns, memory.addr, memory.size),
            (11, 0x7000, -512)
        );
        assert_eq!(
            (memory.allocated, memory.reserved, memory.stack),
            (1024, 2048, 77)
        );
    }

    #[test]
    fn a_shape_follows_the_event_that_it_belongs_to() {
        let mut bytes = memory_bytes(record::BLOCK);
        bytes.extend([2, 1, 6, 0]);
        bytes.extend(2u32.to_ne_bytes());
        for word in [99u64, 3, 33, 0, 0, 0, 0, 0, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        let Ok(Record::Memory(MemoryKind::Block, _, PurposeHint::Tensor(shape))) = decode(&bytes)
        else {
            panic!("not decoded");
        };
        let shape = shape.read();
        assert_eq!((shape.layout, shape.device_type, shape.dtype), (2, 1, 6));
        assert_eq!((shape.dimensions, shape.extent), (2, 99));
        assert_eq!(shape.sizes[..2], [3, 33]);
        assert_eq!(decode(&bytes[..bytes.len() - 1]), Err(Malformed));
        bytes[0] = record::BACKWARD;
        assert_eq!(decode(&bytes), Err(Malformed), "no tensor is made there");
    }

    #[test]
    fn a_block_without_a_tensor_and_without_a_stack_has_no_purpose() {
        let handed_out = |size: i64, state, reason| {
            let memory = MemoryRecord {
                size,
                stack_state: state,
                ..MemoryRecord::default()
            };
            Record::Memory(MemoryKind::Block, memory, reason).is_block_without_reason()
        };
        let python = stack_state::PYTHON;
        assert!(handed_out(512, python, PurposeHint::None));
        assert!(
            !handed_out(-512, python, PurposeHint::None),
            "it was taken back"
        );
        assert!(!handed_out(512, stack_state::UNREADABLE, PurposeHint::None));
        let shape = PurposeHint::Tensor(EncodedShape(&[0; size_of::<ShapeRecord>()]));
        assert!(!handed_out(512, python, shape));
    }

    #[test]
    fn a_block_for_no_tensor_brings_the_stack_as_far_as_it_was_read() {
        let mut bytes = memory_bytes(record::BLOCK_WITH_STACK);
        for word in [0xf0u64, 0x7ffc_0000, 1024] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend([7; BLOCK_STACK_COPY]);
        let Ok(Record::Memory(MemoryKind::Block, memory, PurposeHint::Stack(copy))) =
            decode(&bytes)
        else {
            panic!("not decoded");
        };
        assert_eq!((memory.addr, memory.stack), (0x7000, 77));
        assert_eq!((copy.address, copy.frame_pointer), (0x7ffc_0000, 0xf0));
        assert_eq!(copy.bytes, [7; 1024]);
        assert_eq!(decode(&bytes[..bytes.len() - 1]), Err(Malformed));
        assert_eq!(decode(&bytes[..64]), Err(Malformed), "no stack");
        bytes[64 + 16..64 + 24].copy_from_slice(&u64::MAX.to_ne_bytes());
        let Ok(Record::Memory(_, _, PurposeHint::Stack(copy))) = decode(&bytes) else {
            panic!("not decoded");
        };
        assert_eq!(copy.bytes.len(), BLOCK_STACK_COPY, "no more than there is");
        bytes.push(0);
        assert_eq!(decode(&bytes), Err(Malformed));
    }

    #[test]
    fn a_stack_record_gives_its_frames() {
        let mut bytes = vec![record::STACK, 1, 2, grad_mode::DISABLED];
        bytes.extend(9u32.to_ne_bytes());
        let words = [
            77,
            0x7fff_aaaa_0000,
            0x0300_7fff_1234_5678,
            42,
            0x8000_7fff_bbbb_0010,
            43,
        ];
        bytes.extend(words.into_iter().flat_map(u64::to_ne_bytes));
        let Ok(Record::Stack(head, frames)) = decode(&bytes) else {
            panic!("not decoded")
        };
        assert_eq!((head.truncated, head.tgid, head.hash), (1, 9, 77));
        assert_eq!(head.grad, grad_mode::DISABLED);
        let [plain, call] = [frames[0], frames[1]];
        assert_eq!(
            (plain.code(&head), plain.owner(), plain.instr),
            (0x7fff_1234_5678, 3, 42)
        );
        assert_eq!(plain.module(), None);
        assert_eq!(
            (call.code(&head), call.owner(), call.instr),
            (0x7fff_aaaa_0000, 0, 43)
        );
        assert_eq!(call.module(), Some(0x7fff_bbbb_0010));
    }

    #[test]
    fn nodes_of_the_graph_keep_every_field() {
        let mut bytes = vec![record::NODE_MADE, 1, 0, 0];
        for number in [7u32, 9, 0] {
            bytes.extend(number.to_ne_bytes());
        }
        for word in [0x7f10u64, 21, 77] {
            bytes.extend(word.to_ne_bytes());
        }
        let Ok(Record::NodeMade(made)) = decode(&bytes) else {
            panic!("not decoded")
        };
        assert_eq!((made.stack_state, made.tid, made.tgid), (1, 7, 9));
        assert_eq!((made.node, made.identity, made.stack), (0x7f10, 21, 77));
        assert_eq!(decode(&bytes[..39]), Err(Malformed));
        bytes[0] = record::NODE_ENTERED;
        assert_eq!(decode(&bytes), Err(Malformed), "that one is longer");
        bytes[12] = 5;
        for word in [0x8000u64, 0x8100] {
            bytes.extend(word.to_ne_bytes());
        }
        let Ok(Record::NodeEntered(entered)) = decode(&bytes) else {
            panic!("not decoded")
        };
        assert_eq!((entered.tid, entered.tgid, entered.number), (7, 9, 5));
        assert_eq!((entered.node, entered.identity), (0x7f10, 21));
        assert_eq!(
            (entered.table, entered.python_types),
            (77, [0x8000, 0x8100])
        );
    }

    #[test]
    fn a_memory_record_names_the_node_that_its_thread_evaluates() {
        let mut bytes = memory_bytes(record::BLOCK);
        bytes[12] = 5;
        let Ok(Record::Memory(_, memory, _)) = decode(&bytes) else {
            panic!("not decoded")
        };
        assert_eq!(memory.node, 5);
    }

    #[test]
    fn a_mark_keeps_its_name() {
        let mut bytes = vec![record::MARK, 1, 0, 0];
        for number in [7u32, 9, 0] {
            bytes.extend(number.to_ne_bytes());
        }
        for word in [11u64, 77] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend([b'a'; MARK_NAME]);
        let Ok(Record::Mark(mark)) = decode(&bytes) else {
            panic!("not decoded")
        };
        assert_eq!((mark.tid, mark.tgid, mark.time_ns), (7, 9, 11));
        assert_eq!((mark.stack, mark.name), (77, [b'a'; MARK_NAME]));
        bytes.push(0);
        assert_eq!(decode(&bytes), Err(Malformed));
    }

    #[test]
    fn a_freed_code_object_brings_the_memory_that_it_pointed_to() {
        let mut bytes = vec![0; size_of::<CodeRecord>()];
        bytes[0] = record::CODE_FREED;
        bytes[4..8].copy_from_slice(&9u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&0x7f00u64.to_ne_bytes());
        bytes[16..24].copy_from_slice(&208u64.to_ne_bytes());
        bytes[24] = 0xaa;
        let lines = offset_of!(CodeRecord, lines);
        bytes[lines..lines + 8].copy_from_slice(&0x8f00u64.to_ne_bytes());
        bytes[lines + 8..lines + 16].copy_from_slice(&u64::MAX.to_ne_bytes());
        bytes[lines + 16] = 0xbb;
        let name = offset_of!(CodeRecord, name);
        bytes[name + 8..name + 16].copy_from_slice(&3u64.to_ne_bytes());
        let Ok(Record::CodeFreed(freed)) = decode(&bytes) else {
            panic!("not decoded")
        };
        assert_eq!((freed.tgid, freed.code), (9, 0x7f00));
        assert_eq!((freed.memory[0].0, freed.memory[0].1[0]), (0x7f00, 0xaa));
        assert_eq!((freed.memory[3].0, freed.memory[3].1[0]), (0x8f00, 0xbb));
        let lengths = freed.memory.each_ref().map(|(_, bytes)| bytes.len());
        assert_eq!(lengths, [208, 0, 3, 2048], "no more than there is room for");
        assert_eq!(decode(&bytes[..lines]), Err(Malformed));
    }

    #[test]
    fn records_of_the_wrong_length_or_kind_are_refused() {
        let good = memory_bytes(record::OUT_OF_MEMORY);
        for length in 0..good.len() {
            assert_eq!(decode(&good[..length]), Err(Malformed), "{length} bytes");
        }
        assert_eq!(decode(&memory_bytes(200)), Err(Malformed));
        let mut stack = vec![record::STACK, 0, 255, 0];
        stack.resize(24, 0);
        assert_eq!(decode(&stack), Err(Malformed));
    }
}
