//! The rows of the table of lines, made from a snapshot of one device.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use super::callers::{self, Branch, Direction, End};
use super::filter::Filter;
use super::sort::{Column, Sort};
use crate::event::{Bytes, Frame};
use crate::label::{BEFORE_ATTACH, FileNames, UNACCOUNTED, named_site, whole_frame};
use crate::model::snapshot::{BeforeAttach, DeviceSnapshot, LineRow, Site};

/// Names a row across snapshots.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RowKey {
    /// A line, or why there is none.
    Site(Site),
    /// A branch of a line's tree, by the frames that lead to its first.
    Branch(Site, Direction, Vec<Frame>, Option<End>),
    /// One frame of the chain of a branch.
    Frame(Site, Direction, Vec<Frame>, usize),
    /// Memory from before attach.
    BeforeAttach,
    /// The allocator's total less what is known.
    Unaccounted,
}

/// What a row says about its memory; `None` where it cannot say it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Figures {
    /// Bytes now live; negative only where the ledger has more than the allocator.
    pub live: Option<i128>,
    /// The highest that `live` has been.
    pub peak: Option<Bytes>,
    /// Blocks now live.
    pub blocks: Option<u64>,
    /// Allocations per second.
    pub rate: Option<f64>,
}

/// What a row is about.
#[derive(Clone, PartialEq, Debug)]
pub enum Subject {
    /// A line, or why there is none.
    Site(Site),
    /// A branch: its chain, why it ends, and into how many it forks.
    Branch(Direction, Vec<Frame>, Option<End>, usize),
    /// One frame of the chain above.
    Frame(Direction, Frame),
    /// Memory from before attach, and why its blocks are not known.
    BeforeAttach(Option<Arc<str>>),
    /// The allocator's total less what is known.
    Unaccounted,
}

impl Subject {
    /// The line of source that the row stands for.
    pub fn frame(&self) -> Option<&Frame> {
        match self {
            Self::Site(site) => site.frame(),
            Self::Frame(_, frame) => Some(frame),
            Self::Branch(_, chain, ..) => chain.first(),
            Self::BeforeAttach(_) | Self::Unaccounted => None,
        }
    }
}

/// Whether a row has rows beneath it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fold {
    /// None.
    Leaf,
    /// Some, hidden.
    Closed,
    /// Some, shown.
    Open,
}

/// One row.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Names it across snapshots.
    pub key: RowKey,
    /// 0 for lines, 1 for their branches, and so on.
    pub depth: usize,
    /// Whether it has rows beneath it.
    pub fold: Fold,
    /// What it says about its memory.
    pub figures: Figures,
    /// What it is about.
    pub subject: Subject,
}

/// The table: its rows, and what they add up to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    /// The rows shown, in order.
    pub rows: Vec<Row>,
    /// Lines that pass the filter, and rows that stand beside them.
    pub shown: usize,
    /// All of them.
    pub all: usize,
    /// Bytes of those shown.
    pub shown_live: i128,
    /// Bytes of all: the allocator's total exactly.
    pub all_live: i128,
}

/// How a person wants the table.
pub struct Wish<'a> {
    /// The order of lines.
    pub sort: Sort,
    /// Which lines.
    pub filter: &'a Filter,
    /// Which rows are open.
    pub open: &'a HashSet<RowKey>,
    /// How files are called.
    pub names: &'a FileNames,
}

enum Entry<'a> {
    Line(&'a LineRow),
    BeforeAttach(&'a BeforeAttach),
    Unaccounted(i64),
}

impl Entry<'_> {
    fn live(&self) -> i128 {
        match self {
            Self::Line(line) => line.live.0.into(),
            Self::BeforeAttach(before) => before.live.0.into(),
            Self::Unaccounted(bytes) => (*bytes).into(),
        }
    }

    /// What the filter looks at: the whole path, so that folders can be filtered too.
    fn name(&self) -> String {
        match self {
            Self::Line(line) => named_site(&line.site, whole_frame),
            Self::BeforeAttach(_) => BEFORE_ATTACH.to_owned(),
            Self::Unaccounted(_) => UNACCOUNTED.to_owned(),
        }
    }
}

/// The table of one device.
pub fn table(device: &DeviceSnapshot, wish: &Wish) -> Table {
    let mut entries: Vec<Entry> = device.lines.iter().map(Entry::Line).collect();
    if device.before_attach.live.0 != 0 {
        entries.push(Entry::BeforeAttach(&device.before_attach));
    }
    if device.unaccounted != 0 {
        entries.push(Entry::Unaccounted(device.unaccounted));
    }
    let live = |entries: &[Entry]| entries.iter().map(Entry::live).sum();
    let mut table = Table {
        all: entries.len(),
        all_live: live(&entries),
        ..Table::default()
    };
    if wish.filter.is_active() {
        entries.retain(|entry| wish.filter.shows(&entry.name()));
    }
    table.shown = entries.len();
    table.shown_live = live(&entries);
    entries.sort_by(|a, b| compare(a, b, wish));
    for entry in &entries {
        push_entry(&mut table.rows, entry, wish.open);
    }
    table
}

/// Rows that are no lines take their place by bytes, and the end where another column orders.
fn compare(a: &Entry, b: &Entry, wish: &Wish) -> Ordering {
    match (a, b) {
        (Entry::Line(a), Entry::Line(b)) => wish.sort.compare(a, b, wish.names),
        _ if matches!(wish.sort.column, Column::Live | Column::Share) => {
            wish.sort.directed(a.live().cmp(&b.live()))
        }
        (Entry::Line(_), _) => Ordering::Less,
        (_, Entry::Line(_)) => Ordering::Greater,
        _ => Ordering::Equal,
    }
}

fn push_entry(rows: &mut Vec<Row>, entry: &Entry, open: &HashSet<RowKey>) {
    let live = Some(entry.live());
    match entry {
        Entry::Line(line) => push_line(rows, line, open),
        Entry::BeforeAttach(before) => rows.push(Row {
            key: RowKey::BeforeAttach,
            depth: 0,
            fold: Fold::Leaf,
            figures: Figures {
                live,
                blocks: before.live_blocks(),
                ..Figures::default()
            },
            subject: Subject::BeforeAttach(before.unread.clone()),
        }),
        Entry::Unaccounted(_) => rows.push(Row {
            key: RowKey::Unaccounted,
            depth: 0,
            fold: Fold::Leaf,
            figures: Figures {
                live,
                ..Figures::default()
            },
            subject: Subject::Unaccounted,
        }),
    }
}

fn push_line(rows: &mut Vec<Row>, line: &LineRow, open: &HashSet<RowKey>) {
    let key = RowKey::Site(line.site.clone());
    let has_frames = line
        .stacks
        .iter()
        .any(|row| row.stack.truncated || has_others(&line.site, &row.stack.frames));
    let fold = fold(has_frames, &key, open);
    rows.push(Row {
        key,
        depth: 0,
        fold,
        figures: Figures {
            live: Some(line.live.0.into()),
            peak: Some(line.peak),
            blocks: Some(line.live_blocks),
            rate: Some(line.allocs_per_second),
        },
        subject: Subject::Site(line.site.clone()),
    });
    if fold == Fold::Open {
        for direction in [Direction::Callees, Direction::Callers] {
            for branch in callers::tree(line, direction) {
                push_branch(
                    rows,
                    &branch,
                    &mut Trail {
                        line,
                        direction,
                        frames: Vec::new(),
                        depth: 1,
                    },
                    open,
                );
            }
        }
    }
}

/// Whether a stack has frames besides that of its line.
fn has_others(site: &Site, frames: &[Frame]) -> bool {
    let own = usize::from(!matches!(site, Site::NoLine { .. }));
    frames.len() > own
}

fn fold(has_beneath: bool, key: &RowKey, open: &HashSet<RowKey>) -> Fold {
    match has_beneath {
        false => Fold::Leaf,
        true if open.contains(key) => Fold::Open,
        true => Fold::Closed,
    }
}

/// How a branch is reached.
struct Trail<'a> {
    line: &'a LineRow,
    direction: Direction,
    frames: Vec<Frame>,
    depth: usize,
}

fn push_branch(rows: &mut Vec<Row>, branch: &Branch, trail: &mut Trail, open: &HashSet<RowKey>) {
    let before = trail.frames.len();
    let site = || trail.line.site.clone();
    let mut lead = trail.frames.clone();
    lead.extend(branch.chain.first().cloned());
    // The end tells branches apart that have no frame of their own.
    let end = if branch.chain.is_empty() {
        branch.end
    } else {
        None
    };
    let key = RowKey::Branch(site(), trail.direction, lead.clone(), end);
    let fold = fold(
        branch.chain.len() > 1 || !branch.forks.is_empty(),
        &key,
        open,
    );
    rows.push(Row {
        key,
        depth: trail.depth,
        fold,
        figures: Figures {
            live: Some(branch.live.0.into()),
            peak: branch.peak,
            blocks: Some(branch.live_blocks),
            rate: None,
        },
        subject: Subject::Branch(
            trail.direction,
            branch.chain.clone(),
            branch.end,
            branch.forks.len(),
        ),
    });
    if fold != Fold::Open {
        return;
    }
    for (place, frame) in branch.chain.iter().enumerate().skip(1) {
        rows.push(Row {
            key: RowKey::Frame(site(), trail.direction, lead.clone(), place),
            depth: trail.depth,
            fold: Fold::Leaf,
            figures: Figures::default(),
            subject: Subject::Frame(trail.direction, frame.clone()),
        });
    }
    trail.frames.extend(branch.chain.iter().cloned());
    trail.depth += 1;
    for fork in &branch.forks {
        push_branch(rows, fork, trail, open);
    }
    trail.depth -= 1;
    trail.frames.truncate(before);
}

/// How many levels of a tree are opened at once; deeper ones are opened from there.
const LEVELS_AT_ONCE: usize = 32;

/// The keys of all that can be opened at and beneath a line.
pub fn keys_beneath(line: &LineRow) -> HashSet<RowKey> {
    let mut keys = HashSet::from([RowKey::Site(line.site.clone())]);
    for _ in 0..LEVELS_AT_ONCE {
        let mut rows = Vec::new();
        push_line(&mut rows, line, &keys);
        let open = keys.len();
        keys.extend(
            rows.into_iter()
                .filter(|row| row.fold == Fold::Closed)
                .map(|row| row.key),
        );
        if keys.len() == open {
            break;
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::super::samples::{device, frame, line, lines, stack};
    use super::*;

    fn shown(device: &DeviceSnapshot, sort: Sort, pattern: &str, open: &HashSet<RowKey>) -> Table {
        let filter = Filter::new(pattern);
        let names = FileNames::default();
        let wish = Wish {
            sort,
            filter: &filter,
            open,
            names: &names,
        };
        table(device, &wish)
    }

    fn place(table: &Table, key: &RowKey) -> Option<usize> {
        table.rows.iter().position(|row| row.key == *key)
    }

    #[test]
    fn what_is_no_line_takes_its_place_by_bytes() {
        let device = device(0, lines(), 1126, -7);
        let table = shown(&device, Sort::default(), "", &HashSet::new());
        assert_eq!(place(&table, &RowKey::BeforeAttach), Some(3));
        assert_eq!(place(&table, &RowKey::Unaccounted), Some(7));
    }

    #[test]
    fn what_is_no_line_stands_last_where_it_has_no_figure_to_sort_by() {
        let device = device(0, lines(), 1126, 1 << 40);
        for column in [Column::Peak, Column::Blocks, Column::Rate, Column::Line] {
            let sort = Sort::default().by(column);
            for sort in [sort, sort.reversed()] {
                let table = shown(&device, sort, "", &HashSet::new());
                assert!(place(&table, &RowKey::BeforeAttach) >= Some(6), "{sort:?}");
                assert!(place(&table, &RowKey::Unaccounted) >= Some(6), "{sort:?}");
            }
        }
    }

    #[test]
    fn blocks_from_before_attach_are_counted_where_they_are_known() {
        let blocks = |device: &DeviceSnapshot| {
            let table = shown(device, Sort::default(), "", &HashSet::new());
            let at = place(&table, &RowKey::BeforeAttach).unwrap();
            table.rows[at].figures.blocks
        };
        let mut device = device(0, lines(), 1126, 0);
        assert_eq!(blocks(&device), None);
        device.before_attach.unknown = Bytes(0);
        device.before_attach.known_blocks = 312;
        assert_eq!(blocks(&device), Some(312));
    }

    #[test]
    fn nothing_from_before_attach_needs_no_row() {
        let table = shown(
            &device(0, lines(), 0, 0),
            Sort::default(),
            "",
            &HashSet::new(),
        );
        assert_eq!(place(&table, &RowKey::BeforeAttach), None);
        assert_eq!(place(&table, &RowKey::Unaccounted), None);
    }

    #[test]
    fn folders_can_be_filtered_although_they_are_not_shown() {
        let device = device(0, lines(), 1126, 0);
        let table = shown(&device, Sort::default(), "/ada/.*train", &HashSet::new());
        assert_eq!((table.shown, table.all), (2, 7));
        assert_eq!(table.all_live, i128::from(device.totals.allocated.0));
        assert!(table.shown_live < table.all_live);
    }

    #[test]
    fn the_rows_beneath_a_line_add_up_to_it_at_every_level() {
        let device = device(0, lines(), 0, 0);
        let open = keys_beneath(&device.lines[0]);
        let table = shown(&device, Sort::default(), "", &open);
        let live_at = |depth: usize| -> i128 {
            let rows = table.rows.iter().filter(|row| row.depth == depth);
            rows.filter_map(|row| row.figures.live).sum()
        };
        assert_eq!(live_at(1), i128::from(device.lines[0].live.0));
        assert_eq!(table.rows[1].figures.live, Some(live_at(2)));
    }

    #[test]
    fn an_open_branch_stays_open_when_a_new_stack_forks_it() {
        let frames: Vec<Frame> = (1..=4).map(|at| frame("a.py", at, "f")).collect();
        let site = Site::Line(frames[0].clone());
        let before = device(
            0,
            vec![line(site.clone(), 0.0, vec![stack(&frames, 5, 1)])],
            0,
            0,
        );
        let open = keys_beneath(&before.lines[0]);
        let other = [&frames[..2], &[frame("b.py", 9, "g")]].concat();
        let stacks = vec![stack(&frames, 5, 1), stack(&other, 3, 1)];
        let after = device(0, vec![line(site, 0.0, stacks)], 0, 0);
        let table = shown(&after, Sort::default(), "", &open);
        assert_eq!(table.rows[1].fold, Fold::Open);
    }
}
