//! Estimate of a run on a GPU from a run on the CPU. The blocks of PyTorch's CPU allocator are
//! replayed, in order, on a simulation of its GPU allocator ([`CachingAllocator`]). Blocks that a
//! GPU would not have are left out, and blocks that only a GPU has are added, as far as they are
//! known.
//!
//! At any moment: `allocated == bytes of the CPU + all [`Difference`]s`.

mod accounting;
mod allocator;
mod lines;
mod origin;
mod replay;
mod translation;
pub mod what_if;

#[cfg(test)]
mod tests;

pub use allocator::settings::{AllocatorSettings, SettingsError};
pub use allocator::{CachingAllocator, GpuBlock, OutOfMemory, PoolPlace, Ties};
pub use origin::EstimatePhase;

use strum::VariantArray;

use crate::attribution::size::Sizes;
use crate::attribution::view::Coverage;
use crate::event::{Action, Bytes, DeviceIndex, Event, Frame, Totals};
use crate::ledger::snapshot::Site;
use accounting::{Accounting, AccountingMoment};
use translation::Translation;

/// Default cuBLAS workspace of PyTorch: `CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8`, in KiB and counts
/// (`getChosenWorkspaceSize`, aten/src/ATen/cuda/CublasHandlePool.cpp@v2.15.0). Up to 2.14 a thread
/// keeps one for each stream; 2.15 allocates it for each matrix product.
pub const WORKSPACE: Bytes = Bytes((4096 * 2 + 16 * 8) << 10);

pub const WORKSPACE_OF_HOPPER: Bytes = Bytes((4096 * 8) << 10);

/// Most events that wait for the settings of an optimizer.
const MAX_WAITING: usize = 1 << 18;

/// Line whose blocks stay in host memory, given by the end of its file's path and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnHost {
    /// Such as `data.py` or `loaders/data.py`.
    pub file: String,
    pub line: u32,
}

impl OnHost {
    fn names(&self, frame: &Frame) -> bool {
        let rest = frame.file.strip_suffix(self.file.as_str());
        self.line == frame.line && rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    }
}

/// Reason for a difference between the GPU's allocator and the CPU's, in display order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, VariantArray)]
pub enum Difference {
    /// Memory that is on the host in a GPU run too: samples before collation, scalars, lines named
    /// by the user.
    OnHost,
    /// Copies and buffers of the CPU's kernels, which belong to no tensor.
    Scratch,
    /// Dropout masks take one byte an element on a GPU.
    Mask,
    /// On a GPU an optimizer step handles all parameters at once by default (`foreach`), so its
    /// temporary tensors coexist. On the CPU it handles one after the other.
    Together,
    /// GPU blocks are multiples of 512 bytes, and small remainders are not split off.
    Rounding,
}

impl Difference {
    pub const ALL: &'static [Self] = Self::VARIANTS;
}

#[derive(Clone, Debug, PartialEq)]
pub enum DeviceFit {
    Whole,
    /// Fits only if cached segments are released to CUDA and requested again, which is slow.
    WithoutCache {
        flushes: u64,
    },
    Not {
        requested: Bytes,
        site: Site,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct LineAtPeak {
    pub site: Site,
    /// Bytes held when most was allocated, as the GPU's allocator counts them.
    pub held: Bytes,
    pub blocks: u64,
    /// Bytes saved for the backward pass with most saved bytes.
    pub saved: Bytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    pub blocks: u64,
    pub stacks: u64,
    /// Temporary tensors of optimizers whose steps on a GPU are not modelled.
    pub steps: u64,
    /// Temporary tensors of optimizers of which some parameter groups are handled at once, others
    /// not; they count as by default.
    pub mixed_groups: u64,
    pub on_gpu: u64,
    pub lost: u64,
    /// True if earlier allocations of the CPU's allocator are unknown.
    pub past: bool,
}

#[derive(Clone, Debug)]
pub struct Estimate {
    /// Events of the CPU's memory behind the estimate.
    pub events: u64,
    /// Highest value of each total; they may be at different moments.
    pub peak: Totals,
    /// The same with [`WORKSPACE`] held from the start, which gives an upper bound of allocated
    /// bytes.
    pub with_workspace: Totals,
    /// Memory kept between iterations: totals at the last start of other work after a backward pass
    /// or a step. `None` if nothing followed one.
    pub between_iterations: Option<Totals>,
    /// Bytes of the CPU's allocator when most is allocated on the GPU.
    pub cpu_at_peak: Bytes,
    pub cpu_peak: Bytes,
    /// Differences that lead from `cpu_at_peak` to the highest allocated bytes, in the order of
    /// [`Difference::ALL`].
    pub differences: Vec<(Difference, i64)>,
    /// Highest allocated bytes by the phase of the allocation, in the order of [`Phase::ALL`].
    pub phases: Vec<(EstimatePhase, Bytes)>,
    pub peak_in: EstimatePhase,
    pub peak_at: Site,
    /// Most bytes saved for a backward pass: allocated before it and freed during it.
    pub saved: Bytes,
    /// Lines that held or saved memory, largest first. The sum of `held` is the highest allocated
    /// bytes.
    pub lines: Vec<LineAtPeak>,
    /// Size of the model on the GPU: parameters and buffers, and tensors made in one iteration.
    /// `None` if nothing was allocated.
    pub sizes: Option<Sizes>,
    /// Information available in the event stream, for the notes under tables.
    pub heard: Coverage,
    pub fit: Option<DeviceFit>,
    pub missing: Missing,
}

#[derive(Debug)]
pub struct Estimator {
    /// Events from the first step of an optimizer with unknown settings on.
    waiting: Vec<Event>,
    /// True once an optimizer's settings are awaited no more: it counts as by default.
    is_default: bool,
    translation: Translation,
    books: Accounting,
    events: u64,
    cpu_peak: u64,
}

impl Estimator {
    /// `memory` is what the allocator can get from CUDA, in bytes; `None` if no fit is checked.
    pub fn new(memory: Option<Bytes>, on_host: Vec<OnHost>) -> Self {
        Self {
            waiting: Vec::new(),
            is_default: false,
            translation: Translation::new(on_host),
            books: Accounting::new(memory),
            events: 0,
            cpu_peak: 0,
        }
    }

    /// Handles an event. The settings of optimizers may stand behind their first steps: events wait
    /// for them, [`MAX_WAITING`] at most.
    pub fn apply(&mut self, event: &Event) {
        if let Event::BlockLabels(names) = event
            && !names.optimizers.is_empty()
        {
            self.translation.optimizers.clone_from(&names.optimizers);
            self.handle_waiting();
        }
        let is_waiting = !self.waiting.is_empty()
            || !self.is_default && self.translation.lacks_settings(event, &self.books);
        if !is_waiting {
            return self.handle(event);
        }
        self.waiting.push(event.clone());
        if self.waiting.len() == MAX_WAITING {
            self.is_default = true;
            self.handle_waiting();
        }
    }

    /// Handles waiting events, up to the next one that lacks settings.
    fn handle_waiting(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        while let Some(event) = waiting.next() {
            if !self.is_default && self.translation.lacks_settings(&event, &self.books) {
                self.waiting = std::iter::once(event).chain(waiting).collect();
                return;
            }
            self.handle(&event);
        }
    }

    fn handle(&mut self, event: &Event) {
        let Self {
            translation, books, ..
        } = self;
        match event {
            Event::Stack(id, _) => {
                books.replay.pass(event);
                translation.define_stack(*id, books);
            }
            Event::BlockPurpose(..) => books.replay.pass(event),
            Event::PhaseMark(mark) => {
                // Memory that a step held is freed before the next begins.
                translation.mark(mark, books);
                books.replay.pass(event);
            }
            Event::BlockLabels(names) => {
                let find = |addr| books.plain.block(translation.piece_at(addr, books)?);
                let named = names
                    .blocks
                    .iter()
                    .filter_map(|block| Some((block, find(block.addr)?)));
                let named = named.collect();
                books.replay.name(names, named);
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
                let change = books.replay.apply(event);
                translation.apply(event, &change, books);
                self.cpu_peak = self.cpu_peak.max(self.books.now.cpu);
            }
            Event::Memory(event)
                if matches!(event.action, Action::Alloc | Action::CudaAlloc)
                    && event.size.0 > 0 =>
            {
                translation.missing.on_gpu += 1;
            }
            Event::Memory(_)
            | Event::AtAttach(_)
            | Event::BaselineLabels(_)
            | Event::Segments(_)
            | Event::Driver(_)
            | Event::Thread(..)
            | Event::Capture(_) => {}
        }
    }

    pub fn is_empty(&self) -> bool {
        self.events == 0 && self.waiting.is_empty()
    }

    pub fn finish(mut self) -> Estimate {
        self.is_default = true;
        self.handle_waiting();
        self.translation.finish(&mut self.books);
        let books = &self.books;
        let at_peak: AccountingMoment = books.peak;
        let difference = |kind: &Difference| (*kind, at_peak.differences[*kind as usize]);
        Estimate {
            events: self.events,
            peak: books.plain.allocator.peak,
            with_workspace: books.working.allocator.peak,
            between_iterations: books.between_iterations,
            cpu_at_peak: Bytes(at_peak.cpu),
            cpu_peak: Bytes(self.cpu_peak),
            differences: Difference::ALL.iter().map(difference).collect(),
            phases: EstimatePhase::ALL
                .map(|phase| (phase, Bytes(at_peak.phases[phase as usize])))
                .to_vec(),
            peak_in: at_peak.phase,
            peak_at: books.site(at_peak.line),
            saved: books.lines.saved(),
            lines: books.lines.rows(&books.replay.ledger),
            sizes: books.replay.attribution.sizes(),
            heard: books.replay.attribution.coverage(),
            fit: books.fit(),
            missing: self.translation.missing,
        }
    }
}
