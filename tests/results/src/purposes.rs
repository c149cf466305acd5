//! Compares the inferred purpose of each block with the process's own account.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::Path;

use memprobe::attribution::AttributionLedger;
use memprobe::attribution::category::{Category, CategoryRule};
use memprobe::event::{Action, DeviceIndex, Event, MemoryEvent};
use memprobe::ledger::AnalyzedLedger;
use memprobe::recording::Reader;
use serde::Deserialize;

const GPU: DeviceIndex = DeviceIndex(0);

/// Size in bytes of blocks that serve as marks. The CPU's allocator does not count its allocations,
/// so marks take the place of block numbers.
const MARK: u64 = 4099;

/// Output of `workloads/purposes.py`. On the CPU, block numbers count marks.
#[derive(Deserialize)]
struct Written {
    /// Device of the blocks; empty means the GPU.
    #[serde(default)]
    device: String,
    /// Number of blocks allocated so far, address, and purpose.
    sightings: Vec<(u64, u64, String)>,
    /// Number of blocks allocated before the start and the end of each outermost module call;
    /// `None` if it did not end.
    calls: Vec<(u64, Option<u64>)>,
    /// Number of blocks allocated in all; a recording that began late has the last ones.
    handed_out: Option<u64>,
    /// Address, bytes and category of each block, according to torch.profiler.
    profiled: Option<Vec<(u64, u64, Option<String>)>>,
}

impl Written {
    /// Counts blocks from the first one of a recording that has this many, the last ones.
    fn keep_last(&mut self, recorded: usize) {
        let all = self.handed_out.unwrap_or(recorded as u64);
        let missed = all.checked_sub(recorded as u64);
        let missed = missed.expect("no more blocks than were handed out");
        for (handed_out, ..) in &mut self.sightings {
            *handed_out = handed_out.saturating_sub(missed);
        }
        for (from, to) in &mut self.calls {
            *from = from.saturating_sub(missed);
            *to = to.map(|to| to.saturating_sub(missed));
        }
        if let Some(profiled) = &mut self.profiled {
            profiled.drain(..usize::try_from(missed).expect("as many as there are"));
        }
    }
}

/// A block of the recording, with memprobe's inference and the process's account.
struct Block {
    addr: u64,
    size: u64,
    rule: Option<CategoryRule>,
    /// Number of blocks freed before it; `None` if it is live at the end.
    freed: Option<u64>,
    seen: BTreeSet<String>,
    profiled: Option<String>,
    /// True if torch.profiler looked on: it then says of every block without a tensor that it has
    /// none.
    is_profiled: bool,
    /// True if an outermost call of a module allocated it: a backward pass did not.
    is_of_a_call: bool,
}

/// Purpose of a block according to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Truth {
    Parameter,
    Gradient,
    OptimizerState,
    /// Created by a module and saved for a backward pass.
    Saved,
    /// Passed to a module; may also be saved.
    Given,
    /// In a cache of keys and values.
    Cached,
    /// Block without a tensor.
    NoTensor,
    /// Created in a backward pass, and none of the above.
    OfBackward,
    /// None of the above. torch.profiler calls it temporary, activation, input, or leaves it out.
    Other,
}

impl Truth {
    fn of(block: &Block) -> Self {
        let seen = |kind| block.seen.contains(kind);
        let profiled = block.profiled.as_deref();
        if seen("parameter") || seen("buffer") || profiled == Some("parameter") {
            Self::Parameter
        } else if seen("optimizer_state") || profiled == Some("optimizer_state") {
            Self::OptimizerState
        } else if seen("gradient") || profiled == Some("gradient") {
            Self::Gradient
        } else if seen("cached") {
            Self::Cached
        } else if seen("given") {
            Self::Given
        } else if seen("saved") {
            Self::Saved
        } else if profiled == Some("no_tensor") {
            Self::NoTensor
        } else if profiled == Some("autograd_detail") {
            Self::OfBackward
        } else {
            Self::Other
        }
    }

    /// True if `category` is correct. PyTorch gives no category to blocks freed at once, so `Other`
    /// accepts every short-lived category that the rest of the account does not exclude.
    fn is(self, category: Category, block: &Block) -> bool {
        use Category::{Input, IntermediateGradient, Temporary, Workspace};
        let saved = block.seen.contains("saved");
        match self {
            Self::Parameter => category == Category::Parameter,
            Self::Gradient => category == Category::Gradient,
            Self::OptimizerState => category == Category::OptimizerState,
            // Targets are input of a loss that is not a module.
            Self::Saved => matches!(category, Category::Activation | Input),
            Self::Given => category == Input || saved && category == Category::Activation,
            Self::Cached => category == Category::KvCache,
            Self::NoTensor => category == Workspace,
            Self::OfBackward => matches!(category, IntermediateGradient | Temporary),
            Self::Other => match category {
                Temporary => true,
                Workspace => !block.is_profiled,
                IntermediateGradient => !block.is_of_a_call,
                _ => false,
            },
        }
    }
}

/// Bytes with correct, unknown and wrong categories; each block counts once.
#[derive(Clone, Debug, Default)]
pub struct Share {
    /// Bytes with the correct category.
    pub right: u64,
    /// Bytes that memprobe reports as unknown.
    pub unknown: u64,
    /// Bytes with a wrong category.
    pub wrong: u64,
    /// Wrong bytes, by true and reported category.
    mistakes: BTreeMap<String, u64>,
}

impl Share {
    fn add(&mut self, other: &Self) {
        self.right += other.right;
        self.unknown += other.unknown;
        self.wrong += other.wrong;
    }

    /// Returns the bytes of all three kinds.
    pub fn all(&self) -> u64 {
        self.right + self.unknown + self.wrong
    }

    /// Returns the percentages of correct, unknown and wrong bytes.
    pub fn percent(&self) -> [f64; 3] {
        [self.right, self.unknown, self.wrong].map(|bytes| 100.0 * bytes as f64 / self.all() as f64)
    }
}

/// Inferred purposes of a workload, compared with the truth.
pub struct Purposes {
    /// Shares by true purpose.
    pub shares: BTreeMap<String, Share>,
    blocks: Vec<Block>,
    marks: Option<Vec<Mark>>,
}

/// A point in time marked by the process.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Blocks allocated before it.
    handed_out: u64,
    /// Blocks freed before it.
    taken_back: u64,
}

impl Purposes {
    /// Compares a recording with the output of `purposes.py`.
    ///
    /// # Panics
    ///
    /// If the blocks do not match.
    pub fn compare(recording: &Path, written: &Path) -> Self {
        let written = std::fs::read(written).expect("the workload has written it");
        let written: Written = serde_json::from_slice(&written).expect("sightings");
        let is_cpu = written.device == "cpu";
        let device = if is_cpu { DeviceIndex::CPU } else { GPU };
        let (mut blocks, marks) = judged(recording, device);
        let marks = is_cpu.then_some(marks);
        attach_truth(&mut blocks, written, marks.as_deref());
        let mut shares: BTreeMap<String, Share> = BTreeMap::new();
        let is_own = |block: &&Block| !(is_cpu && block.size == MARK);
        for block in blocks.iter().filter(is_own) {
            let truth = Truth::of(block);
            let share = shares.entry(format!("{truth:?}")).or_default();
            let rule = block.rule.expect("every block of the recording is known");
            match rule.category() {
                Category::Unknown => share.unknown += block.size,
                it if truth.is(it, block) => share.right += block.size,
                _ => {
                    share.wrong += block.size;
                    *share.mistakes.entry(format!("{rule:?}")).or_default() += block.size;
                }
            }
        }
        Self {
            shares,
            blocks,
            marks,
        }
    }

    /// Like [`Self::live`], at a mark.
    ///
    /// # Panics
    ///
    /// If there is no such mark.
    pub fn live_at_mark(&self, number: u64, category: Category) -> u64 {
        let marks = self.marks.as_deref().expect("the CPU has marks");
        let mark = mark(marks, number);
        self.live(mark.handed_out, mark.taken_back, category)
    }

    /// Returns the live bytes of a category, after `handed_out` allocations and `taken_back` frees.
    /// Uses the final category of each block.
    pub fn live(&self, handed_out: u64, taken_back: u64, category: Category) -> u64 {
        let handed_out = usize::try_from(handed_out).expect("as many as there are");
        let live = self.blocks[..handed_out]
            .iter()
            .filter(|block| block.freed.is_none_or(|freed| freed >= taken_back));
        live.filter(|block| block.rule.map(CategoryRule::category) == Some(category))
            .map(|block| block.size)
            .sum()
    }

    /// Returns the sum without tensorless blocks, which would outweigh all others.
    pub fn of_tensors(&self) -> Share {
        let shares = self.shares.iter();
        let mut all = Share::default();
        shares
            .filter(|(truth, _)| *truth != "NoTensor")
            .for_each(|(_, share)| all.add(share));
        all
    }

    /// Formats the shares as a table.
    pub fn table(&self, name: &str) -> String {
        let mut text = format!("{name}: bytes of all blocks, and what was said of them\n");
        let sum = ("(of tensors)".to_owned(), self.of_tensors());
        for (truth, share) in self.shares.clone().into_iter().chain([sum]) {
            let [right, unknown, wrong] = share.percent();
            let all = share.all();
            let mistakes = &share.mistakes;
            writeln!(
                text,
                "  {truth:16} {all:>12}  right {right:5.1} %  unknown {unknown:5.1} %  wrong {wrong:5.1} %  {mistakes:?}"
            )
            .expect("a string has room");
        }
        text
    }
}

/// Returns the mark with this number, counted from 1.
fn mark(marks: &[Mark], number: u64) -> Mark {
    let at = number
        .checked_sub(1)
        .and_then(|at| usize::try_from(at).ok());
    *at.and_then(|at| marks.get(at))
        .expect("as many marks as were set")
}

/// Returns every block of a device in order, with memprobe's inference, and the marks among the
/// blocks.
fn judged(recording: &Path, of: DeviceIndex) -> (Vec<Block>, Vec<Mark>) {
    let mut reader = Reader::open(recording).expect("a recording");
    let header = reader.header();
    let attribution = AttributionLedger::new(None);
    let mut ledgers = AnalyzedLedger::new(header.target.clone(), header.start, attribution);
    let mut blocks: Vec<Block> = Vec::new();
    let (mut live, mut freed) = (HashMap::new(), 0);
    let mut marks = Vec::new();
    for event in reader.by_ref() {
        let event = event.expect("whole");
        ledgers.apply(&event);
        match event {
            Event::Memory(MemoryEvent {
                action: Action::Alloc,
                addr,
                size,
                device: Some(device),
                ..
            }) if device == of => {
                if size.0 == MARK {
                    marks.push(Mark {
                        handed_out: blocks.len() as u64,
                        taken_back: freed,
                    });
                }
                live.insert(addr, blocks.len());
                blocks.push(Block {
                    addr: addr.0,
                    size: size.0,
                    rule: None,
                    freed: None,
                    seen: BTreeSet::new(),
                    profiled: None,
                    is_profiled: false,
                    is_of_a_call: false,
                });
            }
            Event::Memory(MemoryEvent {
                action: Action::Free,
                addr,
                device: Some(device),
                ..
            }) if device == of => {
                if let Some(number) = live.remove(&addr) {
                    (blocks[number].rule, blocks[number].freed) =
                        (ledgers.analyses.ended, Some(freed));
                }
                freed += 1;
            }
            _ => {}
        }
    }
    for (addr, number) in live {
        blocks[number].rule = ledgers
            .ledger
            .block_at(of, addr)
            .and_then(|block| ledgers.analyses.rule_of(block));
    }
    (blocks, marks)
}

/// Adds the process's account to each block.
fn attach_truth(blocks: &mut [Block], mut written: Written, marks: Option<&[Mark]>) {
    written.keep_last(blocks.len());
    if let Some(profiled) = &written.profiled {
        assert_eq!(
            profiled.len(),
            blocks.len(),
            "blocks of the profiler and of memprobe"
        );
        for (block, (addr, size, category)) in blocks.iter_mut().zip(profiled) {
            assert_eq!((block.addr, block.size), (*addr, *size));
            block.profiled.clone_from(category);
            block.is_profiled = true;
        }
    }
    if marks.is_none() {
        for (number, block) in blocks.iter_mut().enumerate() {
            block.is_of_a_call = is_made_in_a_call(number as u64, &written.calls);
        }
    }
    let mut by_addr: HashMap<u64, Vec<usize>> = HashMap::new();
    for (number, block) in blocks.iter().enumerate() {
        by_addr.entry(block.addr).or_default().push(number);
    }
    for (handed_out, addr, kind) in &written.sightings {
        let handed_out = match marks {
            Some(marks) => mark(marks, *handed_out).handed_out,
            None => *handed_out,
        };
        let at = by_addr.get(addr).map_or(&[][..], Vec::as_slice);
        let number = at.partition_point(|number| (*number as u64) < handed_out);
        if let Some(number) = number.checked_sub(1).map(|last| at[last])
            && (kind != "given" || !is_made_in_a_call(number as u64, &written.calls))
        {
            blocks[number].seen.insert(kind.clone());
        }
    }
}

/// True if the block was allocated during an outermost module call. A network's output that goes
/// into a loss does not count as input.
fn is_made_in_a_call(number: u64, calls: &[(u64, Option<u64>)]) -> bool {
    let behind = calls.partition_point(|(from, _)| *from <= number);
    let call = behind.checked_sub(1).map(|last| calls[last]);
    call.is_some_and(|(_, to)| to.is_none_or(|to| number < to))
}
