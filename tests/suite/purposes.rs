//! What memprobe infers that memory is for, block by block, beside what the process itself says of each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::Path;

use memprobe::event::{Action, DeviceIndex, Event, MemoryEvent};
use memprobe::model::Model;
use memprobe::model::why::WhyLedger;
use memprobe::model::why::category::{Category, CategoryRule};
use memprobe::recording::Reader;
use serde::Deserialize;

const GPU: DeviceIndex = DeviceIndex(0);

/// Blocks of so many bytes are marks: the CPU's allocator does not count what it hands out.
const MARK: u64 = 4099;

/// What `workloads/purposes.py` writes. Where it speaks of the CPU, numbers of blocks are those of marks.
#[derive(Deserialize)]
struct Written {
    /// Whose memory it speaks of: the GPU's if it does not say.
    #[serde(default)]
    device: String,
    /// Blocks handed out by then, the address, and what for.
    sightings: Vec<(u64, u64, String)>,
    /// Blocks handed out when modules were called from outside, and when that ended.
    calls: Vec<(u64, Option<u64>)>,
    /// Address, bytes and category of each block, by torch.profiler.
    profiled: Option<Vec<(u64, u64, Option<String>)>>,
}

/// A block of the recording: what memprobe says of it, and what the process says.
struct Block {
    addr: u64,
    size: u64,
    rule: Option<CategoryRule>,
    /// Blocks that were freed before it; `None` where it is live at the end.
    freed: Option<u64>,
    seen: BTreeSet<String>,
    profiled: Option<String>,
}

/// What a block is for, by the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Truth {
    Parameter,
    Gradient,
    OptimizerState,
    /// Saved for a backward pass, and made by modules.
    Saved,
    /// Given to a module; it may be saved too.
    Given,
    /// PyTorch made no tensor for it.
    NoTensor,
    /// Made in a backward pass, and nothing of the above.
    OfBackward,
    /// Nothing of the above. torch.profiler calls it temporary, activation, input or nothing at all.
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

    /// Whether it is right to say so. What is freed at once has no category in PyTorch: there any that says so is right.
    fn is(self, category: Category, saved: bool) -> bool {
        use Category::{Input, IntermediateGradient, Temporary, Workspace};
        match self {
            Self::Parameter => category == Category::Parameter,
            Self::Gradient => category == Category::Gradient,
            Self::OptimizerState => category == Category::OptimizerState,
            // Targets are given to a loss that is no module.
            Self::Saved => matches!(category, Category::Activation | Input),
            Self::Given => category == Input || saved && category == Category::Activation,
            Self::NoTensor => category == Workspace,
            Self::OfBackward => matches!(category, IntermediateGradient | Temporary),
            Self::Other => matches!(category, IntermediateGradient | Temporary | Workspace),
        }
    }
}

/// Bytes of which something right, nothing or something wrong was said; each block counts once.
#[derive(Clone, Debug, Default)]
pub struct Share {
    /// The category is right.
    pub right: u64,
    /// It was said that nobody knows.
    pub unknown: u64,
    /// The category is wrong.
    pub wrong: u64,
    /// What was wrong, by what it is and what was said.
    mistakes: BTreeMap<String, u64>,
}

impl Share {
    fn add(&mut self, other: &Self) {
        self.right += other.right;
        self.unknown += other.unknown;
        self.wrong += other.wrong;
    }

    /// Of all bytes.
    pub fn all(&self) -> u64 {
        self.right + self.unknown + self.wrong
    }

    /// What is right, unknown and wrong, in percent.
    pub fn percent(&self) -> [f64; 3] {
        [self.right, self.unknown, self.wrong].map(|bytes| 100.0 * bytes as f64 / self.all() as f64)
    }
}

/// How what was inferred of a workload compares with the truth.
pub struct Purposes {
    /// By the truth in words.
    pub shares: BTreeMap<String, Share>,
    blocks: Vec<Block>,
    marks: Option<Vec<Mark>>,
}

/// A moment that the process marked.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Blocks that had been handed out before.
    handed_out: u64,
    /// And taken back.
    taken_back: u64,
}

impl Purposes {
    /// Compares a recording with what `purposes.py` wrote.
    ///
    /// # Panics
    ///
    /// Where the two do not speak of the same blocks.
    pub fn compare(recording: &Path, written: &Path) -> Self {
        let written = std::fs::read(written).expect("the workload has written it");
        let written: Written = serde_json::from_slice(&written).expect("sightings");
        let is_cpu = written.device == "cpu";
        let device = if is_cpu { DeviceIndex::CPU } else { GPU };
        let (mut blocks, marks) = judged(recording, device);
        let marks = is_cpu.then_some(marks);
        attach_truth(&mut blocks, &written, marks.as_deref());
        let mut shares: BTreeMap<String, Share> = BTreeMap::new();
        let is_own = |block: &&Block| !(is_cpu && block.size == MARK);
        for block in blocks.iter().filter(is_own) {
            let truth = Truth::of(block);
            let share = shares.entry(format!("{truth:?}")).or_default();
            let rule = block.rule.expect("every block of the recording is known");
            match rule.category() {
                Category::Unknown => share.unknown += block.size,
                it if truth.is(it, block.seen.contains("saved")) => share.right += block.size,
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

    /// As [`Self::live`], at the moment of a mark.
    ///
    /// # Panics
    ///
    /// Where there is no such mark.
    pub fn live_at_mark(&self, number: u64, category: Category) -> u64 {
        let marks = self.marks.as_deref().expect("the CPU has marks");
        let mark = mark(marks, number);
        self.live(mark.handed_out, mark.taken_back, category)
    }

    /// Bytes of what turned out to be of a category, at the moment when so many blocks had been handed out and taken back.
    pub fn live(&self, handed_out: u64, taken_back: u64, category: Category) -> u64 {
        let handed_out = usize::try_from(handed_out).expect("as many as there are");
        let live = self.blocks[..handed_out]
            .iter()
            .filter(|block| block.freed.is_none_or(|freed| freed >= taken_back));
        live.filter(|block| block.rule.map(CategoryRule::category) == Some(category))
            .map(|block| block.size)
            .sum()
    }

    /// All together; without blocks that are for no tensor, which would outweigh all else.
    pub fn of_tensors(&self) -> Share {
        let shares = self.shares.iter();
        let mut all = Share::default();
        shares
            .filter(|(truth, _)| *truth != "NoTensor")
            .for_each(|(_, share)| all.add(share));
        all
    }

    /// The table.
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

/// The mark of a number, of which the first is 1.
fn mark(marks: &[Mark], number: u64) -> Mark {
    let at = number
        .checked_sub(1)
        .and_then(|at| usize::try_from(at).ok());
    *at.and_then(|at| marks.get(at))
        .expect("as many marks as were set")
}

/// Every block of a recording on a device in order, with what memprobe says that it was for; and those that are marks, if there are any.
fn judged(recording: &Path, of: DeviceIndex) -> (Vec<Block>, Vec<Mark>) {
    let mut reader = Reader::open(recording).expect("a recording");
    let header = reader.header();
    let mut model = Model::new(header.target.clone(), header.start);
    let mut ledger = WhyLedger::new(None);
    let mut blocks: Vec<Block> = Vec::new();
    let (mut live, mut freed) = (HashMap::new(), 0);
    let mut marks = Vec::new();
    for event in reader.by_ref() {
        let event = event.expect("whole");
        let applied = model.apply(&event);
        ledger.apply(&event, &applied);
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
                });
            }
            Event::Memory(MemoryEvent {
                action: Action::Free,
                addr,
                device: Some(device),
                ..
            }) if device == of => {
                if let Some(number) = live.remove(&addr) {
                    (blocks[number].rule, blocks[number].freed) = (ledger.ended(), Some(freed));
                }
                freed += 1;
            }
            _ => {}
        }
    }
    for (addr, number) in live {
        blocks[number].rule = ledger.rule_of(of, addr);
    }
    (blocks, marks)
}

/// Tells each block what the process says of it.
fn attach_truth(blocks: &mut [Block], written: &Written, marks: Option<&[Mark]>) {
    if let Some(profiled) = &written.profiled {
        assert_eq!(
            profiled.len(),
            blocks.len(),
            "blocks of the profiler and of memprobe"
        );
        for (block, (addr, size, category)) in blocks.iter_mut().zip(profiled) {
            assert_eq!((block.addr, block.size), (*addr, *size));
            block.profiled.clone_from(category);
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

/// What a network made and a loss is given is no input.
fn is_made_in_a_call(number: u64, calls: &[(u64, Option<u64>)]) -> bool {
    let behind = calls.partition_point(|(from, _)| *from <= number);
    let call = behind.checked_sub(1).map(|last| calls[last]);
    call.is_some_and(|(_, to)| to.is_none_or(|to| number < to))
}
