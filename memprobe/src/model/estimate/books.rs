//! What a GPU would hold at each moment, and what of that the CPU holds.

use super::allocator::{BlockId, CachingAllocator};
use super::lines::{LineId, Lines};
use super::origin::Phase;
use super::retold::{Asked, OnGpu, Retold};
use super::{Difference, Fit, Hardware, WORKSPACE};
use crate::event::{Bytes, TimeNs, Totals};

/// A block of the CPU, and what stands for it on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Bytes that the CPU's allocator was asked for.
    pub(super) cpu: u64,
    /// Bytes that a GPU's allocator is asked for; `None` where it is not.
    pub(super) gpu: Option<u64>,
    /// Why these differ.
    pub(super) why: Option<Difference>,
    pub(super) line: LineId,
    pub(super) phase: Phase,
    pub(super) asked: Asked,
}

/// Names a [`Piece`] that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PieceId(usize);

/// How the figures of a moment come about: `cpu`, and all that is added to it or taken away, make up what is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Moment {
    pub(super) allocated: u64,
    pub(super) cpu: u64,
    pub(super) differences: [i64; Difference::ALL.len()],
    /// Allocated, by what the program was doing when it was.
    pub(super) phases: [u64; Phase::ALL.len()],
    /// What the program was doing, and where.
    pub(super) phase: Phase,
    pub(super) line: LineId,
}

/// One allocator that is tried.
#[derive(Debug)]
struct Trial {
    allocator: CachingAllocator,
    /// By piece.
    blocks: Vec<Option<BlockId>>,
    /// The request that the device had no room for first.
    refused: Option<(LineId, u64)>,
}

/// The books of a run.
#[derive(Debug)]
pub(super) struct Books {
    pieces: Vec<Option<Piece>>,
    vacant: Vec<usize>,
    /// A device with room for everything: what the figures are about.
    plain: Trial,
    /// The same, with a workspace of cuBLAS that is never given back.
    working: Trial,
    /// As `working`, with the room of a certain device.
    bounded: Option<Trial>,
    now: Moment,
    peak: Moment,
    /// What was there when a backward pass or a step was over and the program began with something new.
    kept: Option<Totals>,
    pub(super) lines: Lines,
    pub(super) retold: Retold,
}

impl Trial {
    fn new(allocator: CachingAllocator) -> Self {
        Self {
            allocator,
            blocks: Vec::new(),
            refused: None,
        }
    }

    /// Bytes that the allocator made of them.
    fn begin(&mut self, at: usize, bytes: u64, line: LineId) -> u64 {
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

    fn block(&self, at: usize) -> Option<OnGpu> {
        let block = (*self.blocks.get(at)?)?;
        Some(OnGpu {
            addr: self.allocator.addr(block),
            size: self.allocator.size(block),
        })
    }

    /// Bytes that are given back.
    fn end(&mut self, at: usize) -> u64 {
        let Some(block) = self.blocks.get_mut(at).and_then(Option::take) else {
            return 0;
        };
        let size = self.allocator.size(block).0;
        self.allocator.free(block);
        size
    }
}

impl Books {
    pub(super) fn new(hardware: Hardware) -> Self {
        let mut books = Self {
            pieces: Vec::new(),
            vacant: Vec::new(),
            plain: Trial::new(CachingAllocator::new()),
            working: Trial::new(CachingAllocator::new()),
            bounded: hardware
                .memory
                .map(|memory| Trial::new(CachingAllocator::with_capacity(memory))),
            now: Moment::default(),
            peak: Moment::default(),
            kept: None,
            lines: Lines::default(),
            retold: Retold::new(TimeNs(0)),
        };
        // Nobody frees it, so its name need not be kept.
        for trial in std::iter::once(&mut books.working).chain(&mut books.bounded) {
            if trial.allocator.malloc(WORKSPACE).is_err() {
                trial.refused = Some((LineId::NONE, WORKSPACE.0));
            }
        }
        books
    }

    /// A block came into being.
    pub(super) fn begin(&mut self, piece: Piece) -> PieceId {
        let at = match self.vacant.pop() {
            Some(at) => at,
            None => {
                self.pieces.push(None);
                self.pieces.len() - 1
            }
        };
        self.pieces[at] = Some(piece);
        self.now.cpu = self.now.cpu.saturating_add(piece.cpu);
        self.differ(piece.why, -signed(piece.cpu));
        if let Some(bytes) = piece.gpu {
            self.working.begin(at, bytes, piece.line);
            if let Some(bounded) = &mut self.bounded {
                bounded.begin(at, bytes, piece.line);
            }
            let size = self.plain.begin(at, bytes, piece.line);
            if let Some(block) = self.plain.block(at) {
                let totals = self.plain.allocator.totals();
                self.retold.begin(block, totals, piece.asked);
            }
            self.differ(piece.why, signed(bytes));
            self.differ(Some(Difference::Rounding), signed(size) - signed(bytes));
            let phase = &mut self.now.phases[piece.phase as usize];
            *phase = phase.saturating_add(size);
            self.now.allocated = self.now.allocated.saturating_add(size);
            self.lines.take(piece.line, size);
            if self.now.allocated > self.peak.allocated {
                self.peak = Moment {
                    phase: piece.phase,
                    line: piece.line,
                    ..self.now
                };
                self.lines.is_peak();
            }
        }
        PieceId(at)
    }

    /// The CPU has given a block back, and a GPU would not yet.
    pub(super) fn end_on_cpu(&mut self, id: PieceId, why: Difference) {
        let Some(piece) = self.pieces.get_mut(id.0).and_then(Option::as_mut) else {
            return;
        };
        let (cpu, before) = (piece.cpu, piece.why);
        let gpu = piece.gpu.unwrap_or(0);
        piece.cpu = 0;
        piece.why = Some(why);
        self.now.cpu = self.now.cpu.saturating_sub(cpu);
        self.differ(before, signed(cpu) - signed(gpu));
        self.differ(Some(why), signed(gpu));
    }

    /// A block is given back. Bytes that a GPU's allocator gets by it.
    pub(super) fn end(&mut self, id: PieceId) -> Option<(Piece, u64)> {
        let piece = self.pieces.get_mut(id.0)?.take()?;
        self.vacant.push(id.0);
        self.now.cpu = self.now.cpu.saturating_sub(piece.cpu);
        self.differ(piece.why, signed(piece.cpu));
        let Some(bytes) = piece.gpu else {
            return Some((piece, 0));
        };
        self.working.end(id.0);
        if let Some(bounded) = &mut self.bounded {
            bounded.end(id.0);
        }
        let block = self.plain.block(id.0);
        let size = self.plain.end(id.0);
        if let Some(block) = block {
            self.retold.end(block, self.plain.allocator.totals());
        }
        self.differ(piece.why, -signed(bytes));
        self.differ(Some(Difference::Rounding), signed(bytes) - signed(size));
        let phase = &mut self.now.phases[piece.phase as usize];
        *phase = phase.saturating_sub(size);
        self.now.allocated = self.now.allocated.saturating_sub(size);
        self.lines.give_back(piece.line, size);
        Some((piece, size))
    }

    /// What stands for a block on the GPU.
    pub(super) fn on_gpu(&self, id: PieceId) -> Option<OnGpu> {
        self.plain.block(id.0)
    }

    /// What is there now.
    pub(super) fn now(&self) -> Moment {
        self.now
    }

    /// The moment at which most was allocated.
    pub(super) fn peak(&self) -> Moment {
        self.peak
    }

    /// The program goes on with something else; `phase` is over.
    pub(super) fn is_over(&mut self, phase: Phase) {
        if matches!(phase, Phase::Backward | Phase::Step) {
            self.kept = Some(self.plain.allocator.totals());
        }
    }

    /// What was kept from one iteration to the next; `None` where there was one at most.
    pub(super) fn kept(&self) -> Option<Totals> {
        self.kept
    }

    /// The highest that each of the allocator's own totals was.
    pub(super) fn totals(&self) -> Totals {
        self.plain.allocator.peak()
    }

    /// The highest totals with a workspace of cuBLAS.
    pub(super) fn with_workspace(&self) -> Totals {
        self.working.allocator.peak()
    }

    /// Whether the run, with a workspace, has room on the device that was asked for.
    pub(super) fn fit(&self) -> Option<Fit> {
        let bounded = self.bounded.as_ref()?;
        Some(match bounded.refused {
            Some((line, bytes)) => Fit::Not {
                requested: Bytes(bytes),
                site: self.lines.site(line),
            },
            None if bounded.allocator.flushes() > 0 => Fit::WithoutCache {
                flushes: bounded.allocator.flushes(),
            },
            None => Fit::Whole,
        })
    }

    fn differ(&mut self, why: Option<Difference>, by: i64) {
        // What stands for itself is as large on both; the books say so if it is not.
        let why = why.unwrap_or(Difference::Rounding) as usize;
        self.now.differences[why] = self.now.differences[why].saturating_add(by);
    }
}

/// Bytes as a difference. No device has as many as do not fit.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
