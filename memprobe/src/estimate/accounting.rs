//! Accounting of the estimate: memory of the CPU and of the simulated GPU at each moment.

use super::allocator::{CachingAllocator, GpuBlock};
use super::lines::Lines;
use super::origin::EstimatePhase;
use super::replay::{OnGpu, Replay, Request};
use super::{DeviceFit, Difference, WORKSPACE};
use crate::event::{Bytes, TimeNs, Totals};
use crate::ledger::SiteRef;
use crate::ledger::snapshot::{Grouping, Site};

/// Block of the CPU, and its counterpart on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockPair {
    /// Bytes requested from the CPU's allocator.
    pub(super) cpu: u64,
    /// Bytes requested from a GPU's allocator; `None` if there is no counterpart.
    pub(super) gpu: Option<u64>,
    pub(super) difference: Option<Difference>,
    pub(super) line: SiteRef,
    pub(super) phase: EstimatePhase,
    pub(super) asked: Request,
}

/// Identifies a live [`Piece`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PieceId(usize);

/// Figures of one moment: `cpu` plus all `differences` equals `allocated`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct AccountingMoment {
    pub(super) allocated: u64,
    pub(super) cpu: u64,
    pub(super) differences: [i64; Difference::ALL.len()],
    /// `allocated`, by the phase of the allocation.
    pub(super) phases: [u64; EstimatePhase::ALL.len()],
    /// Phase and line of the last allocation; set for the peak only.
    pub(super) phase: EstimatePhase,
    pub(super) line: SiteRef,
}

#[derive(Debug, Default)]
pub(super) struct SimulatedDevice {
    pub(super) allocator: CachingAllocator,
    /// By piece.
    blocks: Vec<Option<GpuBlock>>,
    /// First request that did not fit on the device.
    refused: Option<(SiteRef, u64)>,
}

#[derive(Debug)]
pub(super) struct Accounting {
    pieces: Vec<Option<BlockPair>>,
    vacant: Vec<usize>,
    /// Unlimited device: the source of the reported figures.
    pub(super) plain: SimulatedDevice,
    /// Unlimited device with a permanent cuBLAS workspace.
    pub(super) working: SimulatedDevice,
    /// Like `working`, with the memory of a given device.
    bounded: Option<SimulatedDevice>,
    pub(super) now: AccountingMoment,
    pub(super) peak: AccountingMoment,
    /// Totals at the last start of a forward pass or data loading after a backward pass or a step.
    pub(super) between_iterations: Option<Totals>,
    pub(super) lines: Lines,
    pub(super) replay: Replay,
}

impl SimulatedDevice {
    /// Allocates the piece; returns its rounded size.
    fn begin(&mut self, at: usize, bytes: u64, line: SiteRef) -> u64 {
        if self.blocks.len() <= at {
            self.blocks.resize(at + 1, None);
        }
        let block = self.allocator.malloc(Bytes(bytes)).ok();
        self.blocks[at] = block;
        match block {
            Some(block) => self.allocator.size(block).0,
            None => {
                self.refused.get_or_insert((line, bytes));
                0
            }
        }
    }

    pub(super) fn block(&self, PieceId(at): PieceId) -> Option<OnGpu> {
        let block = (*self.blocks.get(at)?)?;
        Some(OnGpu {
            addr: self.allocator.addr(block),
            size: self.allocator.size(block),
        })
    }

    /// Frees the piece; returns its rounded size.
    fn end(&mut self, at: usize) -> u64 {
        let Some(block) = self.blocks.get_mut(at).and_then(Option::take) else {
            return 0;
        };
        let size = self.allocator.size(block).0;
        self.allocator.free(block);
        size
    }
}

impl Accounting {
    pub(super) fn new(memory: Option<Bytes>) -> Self {
        let mut books = Self {
            pieces: Vec::new(),
            vacant: Vec::new(),
            plain: SimulatedDevice::default(),
            working: SimulatedDevice::default(),
            bounded: memory.map(|memory| SimulatedDevice {
                allocator: CachingAllocator::with_capacity(memory),
                ..SimulatedDevice::default()
            }),
            now: AccountingMoment::default(),
            peak: AccountingMoment::default(),
            between_iterations: None,
            lines: Lines::default(),
            replay: Replay::new(TimeNs(0)),
        };
        // Nothing frees it, so its id is not needed.
        for trial in std::iter::once(&mut books.working).chain(&mut books.bounded) {
            if trial.allocator.malloc(WORKSPACE).is_err() {
                trial.refused = Some((SiteRef::UNKNOWN, WORKSPACE.0));
            }
        }
        books
    }

    pub(super) fn begin(&mut self, piece: BlockPair) -> PieceId {
        let at = match self.vacant.pop() {
            Some(at) => at,
            None => {
                self.pieces.push(None);
                self.pieces.len() - 1
            }
        };
        self.pieces[at] = Some(piece);
        self.now.cpu = self.now.cpu.saturating_add(piece.cpu);
        self.differ(piece.difference, -signed(piece.cpu));
        if let Some(bytes) = piece.gpu {
            for device in std::iter::once(&mut self.working).chain(&mut self.bounded) {
                device.begin(at, bytes, piece.line);
            }
            let size = self.plain.begin(at, bytes, piece.line);
            if let Some(block) = self.plain.block(PieceId(at)) {
                let totals = self.plain.allocator.totals;
                self.replay.begin(block, totals, piece.asked);
            }
            self.differ(piece.difference, signed(bytes));
            self.differ(Some(Difference::Rounding), signed(size) - signed(bytes));
            let phase = &mut self.now.phases[piece.phase as usize];
            *phase = phase.saturating_add(size);
            self.now.allocated = self.now.allocated.saturating_add(size);
            self.lines.take(piece.line, size);
            if self.now.allocated > self.peak.allocated {
                self.peak = AccountingMoment {
                    phase: piece.phase,
                    line: piece.line,
                    ..self.now
                };
                self.lines.is_peak();
            }
        }
        PieceId(at)
    }

    /// Records a free on the CPU of a block that a GPU would still hold.
    pub(super) fn end_on_cpu(&mut self, id: PieceId, difference: Difference) {
        let Some(piece) = self.pieces.get_mut(id.0).and_then(Option::as_mut) else {
            return;
        };
        let (cpu, before) = (piece.cpu, piece.difference);
        let gpu = piece.gpu.unwrap_or(0);
        piece.cpu = 0;
        piece.difference = Some(difference);
        self.now.cpu = self.now.cpu.saturating_sub(cpu);
        self.differ(before, signed(cpu) - signed(gpu));
        self.differ(Some(difference), signed(gpu));
    }

    /// Removes a piece; returns it with the bytes freed on the GPU.
    pub(super) fn end(&mut self, id: PieceId) -> Option<(BlockPair, u64)> {
        let piece = self.pieces.get_mut(id.0)?.take()?;
        self.vacant.push(id.0);
        self.now.cpu = self.now.cpu.saturating_sub(piece.cpu);
        self.differ(piece.difference, signed(piece.cpu));
        let Some(bytes) = piece.gpu else {
            return Some((piece, 0));
        };
        for device in std::iter::once(&mut self.working).chain(&mut self.bounded) {
            device.end(id.0);
        }
        let block = self.plain.block(id);
        let size = self.plain.end(id.0);
        if let Some(block) = block {
            self.replay.end(block, self.plain.allocator.totals);
        }
        self.differ(piece.difference, -signed(bytes));
        self.differ(Some(Difference::Rounding), signed(bytes) - signed(size));
        let phase = &mut self.now.phases[piece.phase as usize];
        *phase = phase.saturating_sub(size);
        self.now.allocated = self.now.allocated.saturating_sub(size);
        self.lines.give_back(piece.line, size);
        Some((piece, size))
    }

    pub(super) fn is_over(&mut self, phase: EstimatePhase) {
        if matches!(phase, EstimatePhase::Backward | EstimatePhase::Step) {
            self.between_iterations = Some(self.plain.allocator.totals);
        }
    }

    /// Result for the given device, with a cuBLAS workspace; `None` without a device.
    pub(super) fn fit(&self) -> Option<DeviceFit> {
        let bounded = self.bounded.as_ref()?;
        Some(match bounded.refused {
            Some((line, bytes)) => DeviceFit::Not {
                requested: Bytes(bytes),
                site: self.site(line),
            },
            None if bounded.allocator.flushes > 0 => DeviceFit::WithoutCache {
                flushes: bounded.allocator.flushes,
            },
            None => DeviceFit::Whole,
        })
    }

    pub(super) fn site(&self, line: SiteRef) -> Site {
        self.replay.ledger.site_of(line, Grouping::User).clone()
    }

    fn differ(&mut self, difference: Option<Difference>, by: i64) {
        // A piece without a reason has equal sizes on both. Should they differ, the difference
        // shows as rounding.
        let difference = difference.unwrap_or(Difference::Rounding) as usize;
        self.now.differences[difference] = self.now.differences[difference].saturating_add(by);
    }
}

/// Bytes as a signed difference. Saturates, at a size that no device has.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
