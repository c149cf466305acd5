//! Trees of the stacks of one line: its callers outwards, its callees inwards.
//!
//! Each tree divides the line's memory: the bytes of its branches add up to those of the line.

use std::collections::HashMap;

use crate::event::{Bytes, Frame};
use crate::ledger::snapshot::{LineRow, Site, StackRow};
use crate::view::table::Direction;

/// Most frames of a path; deeper stacks are shown as truncated. Bounds the recursion too.
const DEEPEST: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BranchEnd {
    /// The outermost frame of the stack was reached.
    Outermost,
    /// The innermost frame was reached: the line itself allocated.
    Innermost,
    /// The stack has more frames than were kept.
    Truncated,
    /// The stacks of this memory were not kept individually.
    NotKept,
}

/// Branch: a chain of frames without a fork, and the branches that it forks into.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// The chain, nearest to the line first. Empty if stacks end at the fork.
    pub chain: Vec<Frame>,
    /// Reason of the end; `None` if the branch forks.
    pub end: Option<BranchEnd>,
    pub live: Bytes,
    /// Peak of `live`; `None` for several stacks, whose peaks need not coincide.
    pub peak: Option<Bytes>,
    pub live_blocks: u64,
    /// Sum of the peaks of its stacks: the order of branches, since it does not swing as `live` does.
    pub stack_peaks: u64,
    /// Branches after the chain, largest first.
    pub forks: Vec<Branch>,
}

struct Path<'a> {
    frames: Vec<&'a Frame>,
    end: BranchEnd,
    row: &'a StackRow,
}

/// Builds the tree of a line in one direction. Empty if no stack has a frame in that direction.
pub fn tree(line: &LineRow, direction: Direction) -> Vec<Branch> {
    let paths: Vec<Path> = line
        .stacks
        .iter()
        .map(|row| path(&line.site, row, direction))
        .collect();
    if paths
        .iter()
        .all(|path| path.frames.is_empty() && path.end != BranchEnd::Truncated)
    {
        return Vec::new();
    }
    let mut branches = merge(paths, 0);
    let sum = |number: fn(&StackRow) -> u64| sum(line.stacks.iter().map(number));
    let with_stack = sum(|row| row.live.0);
    if line.live.0 > with_stack {
        let blocks = sum(|row| row.live_blocks);
        branches.push(Branch {
            chain: Vec::new(),
            end: Some(BranchEnd::NotKept),
            live: Bytes(line.live.0 - with_stack),
            peak: None,
            live_blocks: line.live_blocks.saturating_sub(blocks),
            stack_peaks: 0,
            forks: Vec::new(),
        });
        sort(&mut branches);
    }
    branches
}

fn path<'a>(site: &Site, row: &'a StackRow, direction: Direction) -> Path<'a> {
    let frames = &row.stack.frames;
    let own = site
        .frame()
        .and_then(|line| frames.iter().position(|frame| frame == line));
    let (inner, outer) = match own {
        Some(at) => (&frames[..at], &frames[at + 1..]),
        None => (&frames[..0], &frames[..]),
    };
    let (mut frames, mut end): (Vec<&Frame>, BranchEnd) = match direction {
        Direction::Callers if row.stack.truncated => (outer.iter().collect(), BranchEnd::Truncated),
        Direction::Callers => (outer.iter().collect(), BranchEnd::Outermost),
        Direction::Callees => (inner.iter().rev().collect(), BranchEnd::Innermost),
    };
    if frames.len() > DEEPEST {
        frames.truncate(DEEPEST);
        end = BranchEnd::Truncated;
    }
    Path { frames, end, row }
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Merges paths that agree on their first `at` frames.
fn merge(paths: Vec<Path>, at: usize) -> Vec<Branch> {
    let mut places: HashMap<Result<&Frame, BranchEnd>, usize> = HashMap::new();
    let mut groups: Vec<Vec<Path>> = Vec::new();
    for path in paths {
        let next = path.frames.get(at).copied().ok_or(path.end);
        let place = *places.entry(next).or_insert(groups.len());
        if place == groups.len() {
            groups.push(Vec::new());
        }
        groups[place].push(path);
    }
    let mut branches: Vec<Branch> = groups.into_iter().map(|group| branch(group, at)).collect();
    sort(&mut branches);
    branches
}

/// Builds one branch of paths that agree on frame `at` and all frames before it.
fn branch(group: Vec<Path>, at: usize) -> Branch {
    let sum = |number: fn(&StackRow) -> u64| sum(group.iter().map(|path| number(path.row)));
    let live = Bytes(sum(|row| row.live.0));
    let live_blocks = sum(|row| row.live_blocks);
    let stack_peaks = sum(|row| row.peak.0);
    let peak = match group.as_slice() {
        [path] => Some(path.row.peak),
        _ => None,
    };
    let first = &group[0];
    let agree = |step: usize| {
        let frame = first.frames.get(step);
        frame.is_some() && group.iter().all(|path| path.frames.get(step) == frame)
    };
    let length = (at..).take_while(|step| agree(*step)).count();
    let chain: Vec<Frame> = first.frames[at..at + length]
        .iter()
        .map(|frame| (*frame).clone())
        .collect();
    let reach = at + length;
    let end = first.end;
    let ended = group
        .iter()
        .all(|path| path.frames.len() == reach && path.end == end);
    let (end, forks) = if ended {
        (Some(end), Vec::new())
    } else {
        (None, merge(group, reach))
    };
    Branch {
        chain,
        end,
        live,
        peak,
        live_blocks,
        stack_peaks,
        forks,
    }
}

/// Sorts largest first; equal branches by name, so that the order is stable across snapshots.
fn sort(branches: &mut [Branch]) {
    let name = |branch: &Branch| {
        let first = branch.chain.first();
        first.map(|frame| (frame.file.clone(), frame.line))
    };
    branches.sort_by(|a, b| {
        let order = b.stack_peaks.cmp(&a.stack_peaks);
        order.then_with(|| name(a).cmp(&name(b)))
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::event::{Context, Stack, StackKind};

    fn frame(line: u32) -> Frame {
        Frame {
            file: "train.py".into(),
            line,
            function: "f".into(),
            library: None,
        }
    }

    fn stack(lines: &[u32], live: u64) -> StackRow {
        StackRow {
            stack: Arc::new(Stack {
                kind: StackKind::Python,
                frames: lines.iter().map(|line| frame(*line)).collect(),
                truncated: false,
                context: Context::default(),
            }),
            live: Bytes(live),
            peak: Bytes(live * 2),
            live_blocks: 1,
            allocs: 1,
        }
    }

    fn line(site: u32, stacks: Vec<StackRow>) -> LineRow {
        let live = stacks.iter().map(|row| row.live.0).sum();
        LineRow {
            site: Site::Line(frame(site)),
            live: Bytes(live),
            peak: Bytes(live),
            live_blocks: stacks.len() as u64,
            allocs: 1,
            alloc_bytes: Bytes(live),
            growth: None,
            allocs_per_second: 0.0,
            stacks,
        }
    }

    fn lines(branch: &Branch) -> Vec<u32> {
        branch.chain.iter().map(|frame| frame.line).collect()
    }

    #[test]
    fn callers_without_a_fork_are_one_chain() {
        let tree = tree(&line(1, vec![stack(&[1, 2, 3], 8)]), Direction::Callers);
        assert_eq!(tree.len(), 1);
        assert_eq!(lines(&tree[0]), [2, 3]);
        assert_eq!((tree[0].live, tree[0].peak), (Bytes(8), Some(Bytes(16))));
        assert_eq!(tree[0].end, Some(BranchEnd::Outermost));
    }

    #[test]
    fn common_callers_are_merged_and_forks_sorted_by_bytes() {
        let stacks = vec![
            stack(&[1, 2, 3, 9], 4),
            stack(&[1, 2, 4, 9], 8),
            stack(&[1, 7], 1),
        ];
        let tree = tree(&line(1, stacks), Direction::Callers);
        assert_eq!(
            tree.iter().map(lines).collect::<Vec<_>>(),
            [vec![2], vec![7]]
        );
        assert_eq!(
            (tree[0].live, tree[0].peak, tree[0].end),
            (Bytes(12), None, None)
        );
        assert_eq!(
            tree[0].forks.iter().map(lines).collect::<Vec<_>>(),
            [vec![4, 9], vec![3, 9]]
        );
    }

    #[test]
    fn a_stack_that_ends_where_others_go_on_is_a_branch_of_its_own() {
        let tree = tree(
            &line(1, vec![stack(&[1, 2], 4), stack(&[1, 2, 3], 8)]),
            Direction::Callers,
        );
        assert_eq!(lines(&tree[0]), [2]);
        let forks = &tree[0].forks;
        assert_eq!((lines(&forks[0]), forks[0].live), (vec![3], Bytes(8)));
        assert_eq!(
            (lines(&forks[1]), forks[1].end, forks[1].live),
            (vec![], Some(BranchEnd::Outermost), Bytes(4))
        );
    }

    #[test]
    fn callees_lead_inwards_next_to_the_line_itself() {
        let line = line(5, vec![stack(&[1, 2, 5, 9], 8), stack(&[5, 9], 4)]);
        let tree = tree(&line, Direction::Callees);
        assert_eq!(
            tree.iter().map(lines).collect::<Vec<_>>(),
            [vec![2, 1], vec![]]
        );
        assert_eq!(tree[1].end, Some(BranchEnd::Innermost));
    }

    #[test]
    fn a_line_that_calls_nothing_has_no_tree_of_callees() {
        assert!(tree(&line(5, vec![stack(&[5, 9], 4)]), Direction::Callees).is_empty());
    }

    #[test]
    fn branches_add_up_to_the_line_without_all_stacks() {
        let mut line = line(1, vec![stack(&[1, 2], 4)]);
        line.live = Bytes(10);
        let tree = tree(&line, Direction::Callers);
        assert_eq!(tree.iter().map(|branch| branch.live.0).sum::<u64>(), 10);
        // Its peak is unknown.
        assert_eq!(tree[1].end, Some(BranchEnd::NotKept));
    }

    #[test]
    fn endless_stacks_are_cut() {
        let deep: Vec<u32> = (1..100_000).collect();
        let tree = tree(&line(1, vec![stack(&deep, 4)]), Direction::Callers);
        assert_eq!(
            (tree[0].chain.len(), tree[0].end),
            (DEEPEST, Some(BranchEnd::Truncated))
        );
    }

    #[test]
    fn a_fork_at_every_frame_does_not_end_the_program() {
        let deep: Vec<u32> = (1..600).collect();
        let stacks = (2..600).map(|length| stack(&deep[..length], 1)).collect();
        let mut level = tree(&line(1, stacks), Direction::Callers);
        let mut depth = 0;
        while let Some(branch) = level.into_iter().find(|branch| !branch.chain.is_empty()) {
            level = branch.forks;
            depth += 1;
        }
        assert!((500..=DEEPEST).contains(&depth), "{depth}");
    }

    #[test]
    fn recursion_through_the_line_itself_counts_from_the_innermost() {
        let tree = tree(&line(1, vec![stack(&[1, 1, 1, 2], 4)]), Direction::Callers);
        assert_eq!(lines(&tree[0]), [1, 1, 2]);
    }
}
