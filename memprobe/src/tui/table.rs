//! Rows of the table of lines, built from a snapshot of one device.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use super::callers::{self, Branch, Direction, End};
use super::filter::Filter;
use super::sort::{Column, Sort};
use crate::event::{Bytes, Frame};
use crate::ledger::snapshot::{BeforeAttach, DeviceSnapshot, LineRow, Site};
use crate::view::{BEFORE_ATTACH, FileNames, UNACCOUNTED, named_site, whole_frame};

/// Key of a row across snapshots.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RowKey {
    /// Line, or the reason why there is none.
    Site(Site),
    /// Branch of a line's tree, by the frames up to its first.
    Branch(Site, Direction, Vec<Frame>, Option<End>),
    /// One frame of a branch's chain.
    Frame(Site, Direction, Vec<Frame>, usize),
    /// Memory from before attach.
    BeforeAttach,
    /// The allocator's total less the known blocks.
    Unaccounted,
}

/// Figures of a row; `None` if unknown.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Figures {
    /// Live bytes; negative only if the ledger has more than the allocator.
    pub live: Option<i128>,
    /// Peak of `live`.
    pub peak: Option<Bytes>,
    /// Live blocks.
    pub blocks: Option<u64>,
    /// Allocations per second.
    pub rate: Option<f64>,
}

/// Subject of a row.
#[derive(Clone, PartialEq, Debug)]
pub enum Subject {
    /// Line, or the reason why there is none.
    Site(Site),
    /// Branch: its chain, the reason of its end, and its number of forks.
    Branch(Direction, Vec<Frame>, Option<End>, usize),
    /// One frame of a branch's chain.
    Frame(Direction, Frame),
    /// Memory from before attach, with the reason if its blocks are unknown.
    BeforeAttach(Option<Arc<str>>),
    /// The allocator's total less the known blocks.
    Unaccounted,
}

impl Subject {
    /// Returns the source line of the row, if it has one.
    pub fn frame(&self) -> Option<&Frame> {
        match self {
            Self::Site(site) => site.frame(),
            Self::Frame(_, frame) => Some(frame),
            Self::Branch(_, chain, ..) => chain.first(),
            Self::BeforeAttach(_) | Self::Unaccounted => None,
        }
    }
}

/// Fold state of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fold {
    /// No rows beneath.
    Leaf,
    /// Rows beneath are hidden.
    Closed,
    /// Rows beneath are shown.
    Open,
}

/// Row of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Key across snapshots.
    pub key: RowKey,
    /// 0 for lines, 1 for their branches, and so on.
    pub depth: usize,
    pub fold: Fold,
    pub figures: Figures,
    pub subject: Subject,
}

/// Table with its sums.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    /// Visible rows, in order.
    pub rows: Vec<Row>,
    /// Lines that match the filter, and rows beside the lines that match.
    pub shown: usize,
    /// All lines, and the rows beside them.
    pub all: usize,
    /// Bytes of the rows that match.
    pub shown_live: i128,
    /// Bytes of all rows, which are exactly the allocator's total.
    pub all_live: i128,
}

/// Sort order, filter and open rows of the table.
pub struct TableOptions<'a> {
    /// Sort order of the lines.
    pub sort: Sort,
    /// Filter of the lines.
    pub filter: &'a Filter,
    /// Open rows.
    pub open: &'a HashSet<RowKey>,
    /// Short names of files.
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

    /// Returns the text that the filter matches, with the whole path, so that directories can be filtered
    /// too.
    fn name(&self) -> String {
        match self {
            Self::Line(line) => named_site(&line.site, whole_frame),
            Self::BeforeAttach(_) => BEFORE_ATTACH.to_owned(),
            Self::Unaccounted(_) => UNACCOUNTED.to_owned(),
        }
    }
}

/// Builds the table of one device.
pub fn table(device: &DeviceSnapshot, wish: &TableOptions) -> Table {
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

/// Compares two entries. Rows that are not lines are ordered by bytes, or come last if another column sorts.
fn compare(a: &Entry, b: &Entry, wish: &TableOptions) -> Ordering {
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

/// Returns true if a stack has frames besides that of its line.
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

/// Path from a line to a branch.
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
    // The end distinguishes branches without frames.
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

/// Tree levels opened by one key press; deeper ones are opened from there.
const LEVELS_AT_ONCE: usize = 32;

/// Returns the keys of all rows that can be opened at and beneath a line, down to [`LEVELS_AT_ONCE`] levels.
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
        let wish = TableOptions {
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
