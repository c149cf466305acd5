//! What a run on the CPU says of the same run on a GPU: the blocks of PyTorch's CPU allocator are handed, in order, to
//! its GPU allocator as [`CachingAllocator`] has it, less those that a GPU does not have and with those that only
//! a GPU has, as far as that is known.
//!
//! At any moment: `allocated == bytes of the CPU + all [`Difference`]s`.

mod allocator;
mod books;
mod lines;
mod origin;
mod retold;
mod translation;

#[cfg(test)]
mod tests;

pub use allocator::{BlockId, CachingAllocator, OutOfMemory, Ties};
pub use origin::Phase;

use crate::event::{Action, Bytes, DeviceIndex, Event, Frame, Totals};
use crate::model::snapshot::Site;
use crate::model::why::size::Sizes;
use crate::model::why::view::Hearsay;
use books::{Books, Moment};
use translation::Translation;

/// The workspace that PyTorch gives cuBLAS where nothing else is asked for: `CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8`,
/// in KiB and numbers (`getChosenWorkspaceSize`, aten/src/ATen/cuda/CublasHandlePool.cpp@v2.15.0). Up to 2.14 a thread keeps one for
/// each stream, 2.15 asks for it with each product of matrices.
pub const WORKSPACE: Bytes = Bytes((4096 * 2 + 16 * 8) << 10);

/// The same where the GPU is a Hopper.
pub const WORKSPACE_OF_HOPPER: Bytes = Bytes((4096 * 8) << 10);

/// What is known of the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// Bytes that the allocator can get of CUDA; `None` where nobody asks whether a run fits.
    pub memory: Option<Bytes>,
}

/// A line whose blocks stay in the host's memory, by the end of its file's path and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnHost {
    /// Such as `data.py` or `loaders/data.py`.
    pub file: String,
    /// Such as 12.
    pub line: u32,
}

impl OnHost {
    /// Whether it is the line of a frame.
    fn names(&self, frame: &Frame) -> bool {
        let rest = frame.file.strip_suffix(self.file.as_str());
        self.line == frame.line && rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    }
}

/// Why a GPU's allocator has more or less than the CPU's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Difference {
    /// Blocks are multiples of 512 bytes, and small ends are not cut off.
    Rounding,
    /// A step of the optimizer takes all parameters at once (`foreach`), where the CPU takes one after the other: its
    /// temporary tensors exist together.
    Together,
    /// Masks of dropout have a byte an element.
    Mask,
    /// Copies and buffers of the CPU's kernels, for no tensor.
    Scratch,
    /// It is the host's in a run on a GPU too: examples before they are a batch, numbers, lines that were named.
    OnHost,
}

impl Difference {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 5] = [
        Self::OnHost,
        Self::Scratch,
        Self::Mask,
        Self::Together,
        Self::Rounding,
    ];
}

/// Whether a run fits into a device's memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Fit {
    /// It does.
    Whole,
    /// It does because cached segments are given back to CUDA and asked for anew, which is slow.
    WithoutCache {
        /// How often.
        flushes: u64,
    },
    /// It does not.
    Not {
        /// The first request for which there is no room.
        requested: Bytes,
        /// Where that is made.
        site: Site,
    },
}

/// What a line has to do with the peak.
#[derive(Clone, Debug, PartialEq)]
pub struct LineAtPeak {
    /// The line.
    pub site: Site,
    /// Bytes that it held when most was allocated, as the GPU's allocator counts.
    pub held: Bytes,
    /// In so many blocks.
    pub blocks: u64,
    /// Bytes that it had saved for the backward pass for which most was saved.
    pub saved: Bytes,
}

/// What could not be taken into account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Blocks that there was no room for.
    pub blocks: u64,
    /// Stacks that there was no room for.
    pub stacks: u64,
    /// Temporary tensors of optimizers whose steps on a GPU nobody has looked at.
    pub steps: u64,
    /// Events of memory of GPUs.
    pub on_gpu: u64,
    /// Events that were lost.
    pub lost: u64,
    /// What the CPU's allocator had given out before is not known.
    pub past: bool,
}

/// What a run on a GPU is expected to need.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Events of the CPU's memory that it is made of.
    pub events: u64,
    /// The highest that each total is. They need not be so at the same moment.
    pub peak: Totals,
    /// The same with [`WORKSPACE`], held from the beginning: what is allocated then is the most that it can be.
    pub with_workspace: Totals,
    /// Kept from one iteration to the next: at the last beginning of something new after a backward pass or a step.
    /// `None` where nothing followed on one.
    pub kept: Option<Totals>,
    /// Bytes of the CPU's allocator when most is allocated on a GPU.
    pub cpu_at_peak: Bytes,
    /// The most that the CPU's allocator had given out at once.
    pub cpu_peak: Bytes,
    /// What makes of `cpu_at_peak` the highest allocated: all of [`Difference::ALL`] in their order.
    pub differences: Vec<(Difference, i64)>,
    /// Allocated at the peak, by what the program was doing when it was: all of [`Phase::ALL`] in their order.
    pub phases: Vec<(Phase, Bytes)>,
    /// What the program was doing when most was allocated.
    pub peak_in: Phase,
    /// And where.
    pub peak_at: Site,
    /// The most that was saved for a backward pass: made before it, and given back while it ran.
    pub saved: Bytes,
    /// Lines that held or saved something, the largest first. `held` adds up to the highest allocated.
    pub lines: Vec<LineAtPeak>,
    /// How large the model is on the GPU: what its modules keep, and what they make in one iteration. `None` where nothing was made.
    pub sizes: Option<Sizes>,
    /// What the stream said at all: tables tell what they miss.
    pub heard: Hearsay,
    /// Whether there is room for it; `None` where nobody asked.
    pub fit: Option<Fit>,
    /// What could not be taken into account.
    pub missing: Missing,
}

/// Makes an [`Estimate`] of the events of one process.
#[derive(Debug)]
pub struct Estimator {
    translation: Translation,
    books: Books,
    events: u64,
    cpu_peak: u64,
}

impl Estimator {
    /// Nothing has happened yet.
    pub fn new(hardware: Hardware, on_host: Vec<OnHost>) -> Self {
        Self {
            translation: Translation::new(on_host),
            books: Books::new(hardware),
            events: 0,
            cpu_peak: 0,
        }
    }

    /// Takes the next event of the stream.
    pub fn apply(&mut self, event: &Event) {
        let Self {
            translation, books, ..
        } = self;
        match event {
            Event::Stack(id, stack) => {
                books.retold.pass(event);
                translation.define_stack(*id, stack, books);
            }
            Event::Use(id, is) => {
                books.retold.pass(event);
                translation.define_use(*id, is);
            }
            Event::Mark(mark) => {
                // What a step held is given back before the next begins.
                translation.mark(mark, books);
                books.retold.pass(event);
            }
            Event::Names(names) => {
                let find = |addr| books.on_gpu(translation.piece_at(addr)?);
                let named = names
                    .blocks
                    .iter()
                    .filter_map(|block| Some((block, find(block.addr)?)));
                let named = named.collect();
                books.retold.name(names, named);
            }
            Event::AtAttach(found) if found.device == Some(DeviceIndex::CPU) => {
                translation.missing.past |= found.unread.is_some();
            }
            Event::Loss(losses) => {
                let lost = &mut translation.missing.lost;
                *lost = losses.events.max(*lost);
            }
            Event::Memory(event) if event.device == Some(DeviceIndex::CPU) => {
                self.events += 1;
                books.retold.go_on(event);
                match event.action {
                    Action::Alloc => translation.alloc(event, books),
                    Action::Free => translation.free(event.addr, books),
                    _ => {}
                }
                self.cpu_peak = self.cpu_peak.max(self.books.now().cpu);
            }
            Event::Memory(event) if matches!(event.action, Action::Alloc | Action::CudaAlloc) => {
                translation.missing.on_gpu += 1;
            }
            Event::Memory(_) | Event::AtAttach(_) | Event::Thread(..) => {}
        }
    }

    /// Whether there is anything to estimate by.
    pub fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// What all of that comes to.
    pub fn finish(mut self) -> Estimate {
        self.translation.finish(&mut self.books);
        let books = &self.books;
        let at_peak: Moment = books.peak();
        let difference = |why: Difference| (why, at_peak.differences[why as usize]);
        Estimate {
            events: self.events,
            peak: books.totals(),
            with_workspace: books.with_workspace(),
            kept: books.kept(),
            cpu_at_peak: Bytes(at_peak.cpu),
            cpu_peak: Bytes(self.cpu_peak),
            differences: Difference::ALL.map(difference).to_vec(),
            phases: Phase::ALL
                .map(|phase| (phase, Bytes(at_peak.phases[phase as usize])))
                .to_vec(),
            peak_in: at_peak.phase,
            peak_at: books.lines.site(at_peak.line),
            saved: books.lines.saved(),
            lines: books.lines.rows(),
            sizes: books.retold.sizes(),
            heard: books.retold.heard(),
            fit: books.fit(),
            missing: self.translation.missing,
        }
    }
}
