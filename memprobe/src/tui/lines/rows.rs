//! Rows of the table of lines, built from a snapshot of one device.

use std::collections::HashSet;
use std::sync::Arc;

use super::super::table_screen::{Fold, Query, Row, RowOf, TableOf};
use super::Lines;
use super::callers::{self, Branch, Direction, End};
use crate::event::{Bytes, Frame};
use crate::ledger::snapshot::{DeviceSnapshot, LineRow, Site};
use crate::view::{BEFORE_ATTACH, UNACCOUNTED, named_site, whole_frame};

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
    pub blocks: Option<u64>,
    pub rate: Option<f64>,
}

/// Subject of a row.
#[derive(Clone, PartialEq, Debug)]
pub enum Subject {
    Site(Site),
    /// Branch: its chain, the reason of its end, and its number of forks.
    Branch(Direction, Vec<Frame>, Option<End>, usize),
    Frame(Direction, Frame),
    /// Memory from before attach, with the reason if its blocks are unknown.
    BeforeAttach(Option<Arc<str>>),
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

/// Figures and subject of a row.
#[derive(Clone, PartialEq, Debug)]
pub struct LineData {
    pub figures: Figures,
    pub subject: Subject,
}

impl LineData {
    /// Returns false for a closed chain of several frames, which has no single source line.
    pub fn shows_source(&self, fold: Fold) -> bool {
        match &self.subject {
            Subject::Branch(_, chain, ..) => chain.len() == 1 || fold == Fold::Open,
            _ => true,
        }
    }
}

/// Builds the table of one device.
pub fn table(device: &DeviceSnapshot, lines: &Lines, query: &Query<RowKey>) -> TableOf<Lines> {
    let of_lines = device.lines.iter();
    let of_lines = of_lines.map(|line| (line_row(line, query), Some(line)));
    let others = other_rows(device).into_iter().map(|row| (row, None));
    let mut entries: Vec<(RowOf<Lines>, Option<&LineRow>)> = of_lines.chain(others).collect();
    // Ties are broken by name, so that the order is stable across snapshots.
    entries.sort_by_cached_key(|(_, line)| line.map(|line| lines.names.site(&line.site)));
    // Directories can be filtered too, although they are not shown.
    let searched = |row: &RowOf<Lines>| match &row.data.subject {
        Subject::Site(site) => named_site(site, whole_frame),
        Subject::BeforeAttach(_) => BEFORE_ATTACH.to_owned(),
        _ => UNACCOUNTED.to_owned(),
    };
    let live = |row: &RowOf<Lines>| row.data.figures.live.unwrap_or(0);
    query.table(lines, entries, live, searched, |row, line| {
        let mut rows = Vec::new();
        if let Some(line) = line.filter(|_| row.fold == Fold::Open) {
            push_branches(&mut rows, line, query);
        }
        rows
    })
}

/// Returns the rows beside the lines: memory from before attach, and unaccounted memory.
fn other_rows(device: &DeviceSnapshot) -> Vec<RowOf<Lines>> {
    let before = &device.before_attach;
    let mut rows = Vec::new();
    let mut push = |key, subject, live: i128, blocks| {
        let figures = Figures {
            live: Some(live),
            blocks,
            ..Figures::default()
        };
        if live != 0 {
            rows.push(Row::leaf(key, LineData { figures, subject }));
        }
    };
    push(
        RowKey::BeforeAttach,
        Subject::BeforeAttach(before.unread.clone()),
        before.live.0.into(),
        before.live_blocks(),
    );
    push(
        RowKey::Unaccounted,
        Subject::Unaccounted,
        device.unaccounted.into(),
        None,
    );
    rows
}

fn line_row(line: &LineRow, query: &Query<RowKey>) -> RowOf<Lines> {
    let key = RowKey::Site(line.site.clone());
    let has_others = |frames: &[Frame]| {
        let own = usize::from(!matches!(line.site, Site::NoLine { .. }));
        frames.len() > own
    };
    let mut stacks = line.stacks.iter().map(|row| &row.stack);
    let has_frames = stacks.any(|stack| stack.truncated || has_others(&stack.frames));
    Row {
        fold: query.fold(has_frames, &key),
        key,
        depth: 0,
        data: LineData {
            figures: Figures {
                live: Some(line.live.0.into()),
                peak: Some(line.peak),
                blocks: Some(line.live_blocks),
                rate: Some(line.allocs_per_second),
            },
            subject: Subject::Site(line.site.clone()),
        },
    }
}

fn push_branches(rows: &mut Vec<RowOf<Lines>>, line: &LineRow, query: &Query<RowKey>) {
    for direction in [Direction::Callees, Direction::Callers] {
        for branch in callers::tree(line, direction) {
            let mut trail = Trail {
                line,
                direction,
                frames: Vec::new(),
                depth: 1,
            };
            push_branch(rows, &branch, &mut trail, query);
        }
    }
}

/// Path from a line to a branch.
struct Trail<'a> {
    line: &'a LineRow,
    direction: Direction,
    frames: Vec<Frame>,
    depth: usize,
}

fn push_branch(
    rows: &mut Vec<RowOf<Lines>>,
    branch: &Branch,
    trail: &mut Trail,
    query: &Query<RowKey>,
) {
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
    let fold = query.fold(branch.chain.len() > 1 || !branch.forks.is_empty(), &key);
    let subject = Subject::Branch(
        trail.direction,
        branch.chain.clone(),
        branch.end,
        branch.forks.len(),
    );
    let figures = Figures {
        live: Some(branch.live.0.into()),
        peak: branch.peak,
        blocks: Some(branch.live_blocks),
        rate: None,
    };
    rows.push(Row {
        key,
        depth: trail.depth,
        fold,
        data: LineData { figures, subject },
    });
    if fold != Fold::Open {
        return;
    }
    for (place, frame) in branch.chain.iter().enumerate().skip(1) {
        rows.push(Row {
            key: RowKey::Frame(site(), trail.direction, lead.clone(), place),
            depth: trail.depth,
            fold: Fold::Part,
            data: LineData {
                figures: Figures::default(),
                subject: Subject::Frame(trail.direction, frame.clone()),
            },
        });
    }
    trail.frames.extend(branch.chain.iter().cloned());
    trail.depth += 1;
    for fork in &branch.forks {
        push_branch(rows, fork, trail, query);
    }
    trail.depth -= 1;
    trail.frames.truncate(before);
}

/// Tree levels opened by one key press; deeper ones are opened from there.
const LEVELS_AT_ONCE: usize = 32;

/// Returns the keys of all rows that can be opened at and beneath a line, down to [`LEVELS_AT_ONCE`] levels.
pub fn keys_beneath(line: &LineRow) -> HashSet<RowKey> {
    let mut query = Query {
        open: HashSet::from([RowKey::Site(line.site.clone())]),
        ..Query::default()
    };
    for _ in 0..LEVELS_AT_ONCE {
        let mut rows = Vec::new();
        push_branches(&mut rows, line, &query);
        let open = query.open.len();
        let closed = rows.into_iter().filter(|row| row.fold == Fold::Closed);
        query.open.extend(closed.map(|row| row.key));
        if query.open.len() == open {
            break;
        }
    }
    query.open
}

#[cfg(test)]
mod tests {
    use super::super::super::filter::Filter;
    use super::super::super::samples::{Sources, device, frame, line, lines, stack};
    use super::super::super::table_screen::{Order, Sort};
    use super::super::LINE;
    use super::*;

    fn shown(
        device: &DeviceSnapshot,
        sort: Sort,
        pattern: &str,
        open: &HashSet<RowKey>,
    ) -> TableOf<Lines> {
        let query = Query {
            sort,
            filter: Filter::new(pattern),
            open: open.clone(),
        };
        table(device, &Lines::new(Box::new(Sources)), &query)
    }

    fn place(table: &TableOf<Lines>, key: &RowKey) -> Option<usize> {
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
        for column in [1, 2, 3, LINE] {
            for order in [Order::Falling, Order::Climbing] {
                let sort = Sort { column, order };
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
            table.rows[at].data.figures.blocks
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
        assert_eq!(table.all_bytes, i128::from(device.totals.allocated.0));
        assert!(table.shown_bytes < table.all_bytes);
    }

    #[test]
    fn the_rows_beneath_a_line_add_up_to_it_at_every_level() {
        let device = device(0, lines(), 0, 0);
        let open = keys_beneath(&device.lines[0]);
        let table = shown(&device, Sort::default(), "", &open);
        let live_at = |depth: usize| -> i128 {
            let rows = table.rows.iter().filter(|row| row.depth == depth);
            rows.filter_map(|row| row.data.figures.live).sum()
        };
        assert_eq!(live_at(1), i128::from(device.lines[0].live.0));
        assert_eq!(table.rows[1].data.figures.live, Some(live_at(2)));
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
