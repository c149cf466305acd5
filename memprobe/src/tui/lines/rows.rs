//! Rows of the table of lines, built from a snapshot of one device.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::super::table_screen::{Fold, Query, RowOf, TableOf, TableRow};
use super::callers::{self, Branch, BranchEnd};
use super::{LineList, baseline};
use crate::event::{Bytes, Frame};
use crate::ledger::snapshot::{
    BaselineKind, BaselineOwner, DeviceSnapshot, GrowthRate, LineRow, Site,
};
use crate::view::table::{Cell, Direction};
use crate::view::{
    BEFORE_ATTACH, FileNames, LineCells, UNACCOUNTED, baseline_kind, baseline_owner, named_site,
    whole_frame,
};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LineKey {
    /// Line, or the reason why there is none.
    Site(Site),
    /// Branch of a line's tree, by the frames up to its first.
    Branch(Site, Direction, Vec<Frame>, Option<BranchEnd>),
    /// One frame of a branch's chain.
    Frame(Site, Direction, Vec<Frame>, usize),
    BeforeAttach,
    /// Memory from before attach of one kind.
    BaselineKind(BaselineKind),
    BaselineOwner(BaselineKind, Arc<BaselineOwner>),
    /// The allocator's total less the known blocks.
    Unaccounted,
}

/// Figures of a row; `None` if unknown.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LineFigures {
    /// Live bytes; negative only if the ledger has more than the allocator.
    pub live: Option<i128>,
    pub peak: Option<Bytes>,
    pub blocks: Option<u64>,
    pub rate: Option<f64>,
    pub growth: Option<GrowthRate>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum LineSubject {
    Site(Site),
    /// Branch: its chain, the reason of its end, and its number of forks.
    Branch(Direction, Vec<Frame>, Option<BranchEnd>, usize),
    Frame(Direction, Frame),
    /// Memory from before attach, with the reason if its blocks are unknown.
    BeforeAttach(Option<Arc<str>>),
    BaselineKind(BaselineKind),
    BaselineOwner(BaselineKind, Arc<BaselineOwner>),
    Unaccounted,
}

impl LineSubject {
    pub fn frame(&self) -> Option<&Frame> {
        match self {
            Self::Site(site) => site.frame(),
            Self::Frame(_, frame) => Some(frame),
            Self::Branch(_, chain, ..) => chain.first(),
            Self::BeforeAttach(_)
            | Self::BaselineKind(_)
            | Self::BaselineOwner(..)
            | Self::Unaccounted => None,
        }
    }
}

impl LineSubject {
    fn name(&self, fold: Fold, names: &FileNames) -> Cell<'static> {
        let (direction, chain, end, forks) = match self {
            Self::Site(site) => return names.site(site).into(),
            Self::BeforeAttach(_) => return Cell::Note(BEFORE_ATTACH.into()),
            Self::BaselineKind(kind) => return baseline_kind(*kind).into(),
            Self::BaselineOwner(_, owner) => return baseline_owner(owner).into(),
            Self::Unaccounted => return Cell::Note(UNACCOUNTED.into()),
            Self::Frame(direction, frame) => {
                return Cell::Path(*direction, vec![names.frame(frame)]);
            }
            Self::Branch(direction, chain, end, forks) => (direction, chain, end, *forks),
        };
        let is_open = fold == Fold::Open;
        let shown = if is_open { 1 } else { chain.len() };
        let frames = chain.iter().take(shown);
        let mut steps: Vec<String> = frames.map(|frame| names.frame(frame)).collect();
        let note = match end {
            _ if forks > 0 && is_open => None,
            _ if forks > 0 => Some(format!("({forks} branches)")),
            Some(BranchEnd::Truncated) => Some("(more frames, not recorded)".to_owned()),
            Some(BranchEnd::NotKept) => Some("(stacks not recorded)".to_owned()),
            Some(BranchEnd::Outermost) if chain.is_empty() => Some("(no caller)".to_owned()),
            Some(BranchEnd::Innermost) if chain.is_empty() => Some("(the line itself)".to_owned()),
            _ => None,
        };
        steps.extend(note);
        Cell::Path(*direction, steps)
    }
}

pub struct LineData {
    pub figures: LineFigures,
    pub subject: LineSubject,
    pub name: Cell<'static>,
    pub allocated: i128,
    /// Live bytes less those at the marked moment of a replay; `None` without a mark.
    pub change: Option<i64>,
    /// `None` if growth is shown per minute.
    pub iterations_per_minute: Option<f64>,
}

impl LineData {
    /// Makes data without a name, for rows that may not be shown.
    pub(super) fn new(figures: LineFigures, subject: LineSubject) -> Self {
        Self {
            figures,
            subject,
            name: Cell::default(),
            allocated: 0,
            change: None,
            iterations_per_minute: None,
        }
    }

    pub fn growth(&self) -> Option<Cell<'static>> {
        let growth = self.figures.growth?;
        let bytes = match self.iterations_per_minute {
            Some(iterations) => growth.per_iteration(iterations),
            None => growth.per_minute,
        };
        Some(Cell::Growth(bytes, growth.is_steady))
    }

    /// Returns false for a closed chain of several frames, which has no single source line.
    pub fn shows_source(&self, fold: Fold) -> bool {
        match &self.subject {
            LineSubject::Branch(_, chain, ..) => chain.len() == 1 || fold == Fold::Open,
            _ => true,
        }
    }
}

impl LineCells for LineData {
    fn live(&self) -> Cell<'_> {
        self.figures.live.into()
    }

    fn change(&self) -> Cell<'_> {
        self.change.into()
    }

    fn peak(&self) -> Cell<'_> {
        self.figures.peak.into()
    }

    fn blocks(&self) -> Option<u64> {
        self.figures.blocks
    }

    fn rate(&self) -> Option<f64> {
        self.figures.rate
    }

    fn share(&self) -> Cell<'_> {
        let live = self.figures.live;
        live.map(|live| Cell::Share(live, self.allocated)).into()
    }

    fn growth(&self) -> Cell<'_> {
        self.growth().into()
    }

    fn bar(&self) -> Cell<'_> {
        Cell::Bar(self.figures.live.unwrap_or(0), self.allocated)
    }

    fn name(&self) -> Cell<'_> {
        self.name.clone()
    }
}

pub fn table(
    device: &DeviceSnapshot,
    lines: &LineList,
    names: &FileNames,
    query: &Query<LineKey>,
) -> TableOf<LineList> {
    let complete = |row: &mut RowOf<LineList>| {
        row.data.name = row.data.subject.name(row.fold, names);
        row.data.allocated = device.totals.allocated.0.into();
        row.data.iterations_per_minute = device.iterations_per_minute;
    };
    let marked = lines.marked_live();
    let of_lines = device.lines.iter();
    let of_lines = of_lines.map(|line| (line_row(line, query), Some(line)));
    let others = other_rows(device, query).into_iter().map(|row| (row, None));
    let mut entries: Vec<(RowOf<LineList>, Option<&LineRow>)> = of_lines.chain(others).collect();
    entries.iter_mut().for_each(|(row, _)| {
        complete(row);
        if let Some(marked) = &marked {
            let before = marked.get(&row.key).copied().unwrap_or(0);
            let change = row.data.figures.live.unwrap_or(0) - before;
            row.data.change = i64::try_from(change).ok();
        }
    });
    // Ties are broken by name, so that the order is stable across snapshots.
    let name = |row: &RowOf<LineList>| match &row.data.name {
        Cell::Text(name) => Some(name.clone()),
        _ => None,
    };
    entries.sort_by_cached_key(|(row, _)| name(row));
    // Directories can be filtered too, although they are not shown.
    let searched = |row: &RowOf<LineList>| match &row.data.subject {
        LineSubject::Site(site) => named_site(site, whole_frame),
        LineSubject::BeforeAttach(_) => BEFORE_ATTACH.to_owned(),
        _ => UNACCOUNTED.to_owned(),
    };
    let live = |row: &RowOf<LineList>| row.data.figures.live.unwrap_or(0);
    query.table(lines, entries, live, searched, |row, line| {
        let mut rows = Vec::new();
        match line {
            _ if row.fold != Fold::Open => {}
            Some(line) => push_branches(&mut rows, line, query),
            None => rows = baseline::rows(&device.before_attach, query),
        }
        rows.iter_mut().for_each(complete);
        rows
    })
}

impl LineList {
    /// Returns the live bytes of each row at the marked moment of a replay; `None` without a mark.
    fn marked_live(&self) -> Option<HashMap<LineKey, i128>> {
        let device = self.shown.as_ref()?.marked()?;
        let lines = device.into_iter().flat_map(|device| &device.lines);
        let lines = lines.map(|line| (LineKey::Site(line.site.clone()), line.live.0.into()));
        let others = device.into_iter().flat_map(|device| {
            let before = (LineKey::BeforeAttach, device.before_attach.live.0.into());
            [before, (LineKey::Unaccounted, device.unaccounted.into())]
        });
        Some(lines.chain(others).collect())
    }
}

/// Returns the rows beside the lines: memory from before attach, and unaccounted memory.
fn other_rows(device: &DeviceSnapshot, query: &Query<LineKey>) -> Vec<RowOf<LineList>> {
    let before = &device.before_attach;
    let mut rows = Vec::new();
    let mut push = |key: LineKey, subject, live: i128, peak, blocks| {
        let figures = LineFigures {
            live: Some(live),
            peak,
            blocks,
            ..LineFigures::default()
        };
        if live != 0 {
            let is_labeled = key == LineKey::BeforeAttach && before.labeled.is_some();
            let fold = query.fold(is_labeled, &key);
            rows.push(TableRow::leaf(key, LineData::new(figures, subject)).at(0, fold));
        }
    };
    push(
        LineKey::BeforeAttach,
        LineSubject::BeforeAttach(before.unread.clone()),
        before.live.0.into(),
        Some(before.peak),
        before.live_blocks(),
    );
    push(
        LineKey::Unaccounted,
        LineSubject::Unaccounted,
        device.unaccounted.into(),
        None,
        None,
    );
    rows
}

fn line_row(line: &LineRow, query: &Query<LineKey>) -> RowOf<LineList> {
    let key = LineKey::Site(line.site.clone());
    let has_others = |frames: &[Frame]| {
        let own = usize::from(!matches!(line.site, Site::NoLine { .. }));
        frames.len() > own
    };
    let mut stacks = line.stacks.iter().map(|row| &row.stack);
    let has_frames = stacks.any(|stack| stack.truncated || has_others(&stack.frames));
    let fold = query.fold(has_frames, &key);
    let figures = LineFigures {
        live: Some(line.live.0.into()),
        peak: Some(line.peak),
        blocks: Some(line.live_blocks),
        rate: Some(line.allocs_per_second),
        growth: line.growth,
    };
    let data = LineData::new(figures, LineSubject::Site(line.site.clone()));
    TableRow::leaf(key, data).at(0, fold)
}

fn push_branches(rows: &mut Vec<RowOf<LineList>>, line: &LineRow, query: &Query<LineKey>) {
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

struct Trail<'a> {
    line: &'a LineRow,
    direction: Direction,
    frames: Vec<Frame>,
    depth: usize,
}

fn push_branch(
    rows: &mut Vec<RowOf<LineList>>,
    branch: &Branch,
    trail: &mut Trail,
    query: &Query<LineKey>,
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
    let key = LineKey::Branch(site(), trail.direction, lead.clone(), end);
    let fold = query.fold(branch.chain.len() > 1 || !branch.forks.is_empty(), &key);
    let subject = LineSubject::Branch(
        trail.direction,
        branch.chain.clone(),
        branch.end,
        branch.forks.len(),
    );
    let figures = LineFigures {
        live: Some(branch.live.0.into()),
        peak: branch.peak,
        blocks: Some(branch.live_blocks),
        rate: None,
        growth: None,
    };
    let data = LineData::new(figures, subject);
    rows.push(TableRow::leaf(key, data).at(trail.depth, fold));
    if fold != Fold::Open {
        return;
    }
    for (place, frame) in branch.chain.iter().enumerate().skip(1) {
        let key = LineKey::Frame(site(), trail.direction, lead.clone(), place);
        let subject = LineSubject::Frame(trail.direction, frame.clone());
        let data = LineData::new(LineFigures::default(), subject);
        rows.push(TableRow::leaf(key, data).at(trail.depth, Fold::Part));
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
pub fn keys_beneath(line: &LineRow) -> HashSet<LineKey> {
    let mut query = Query {
        open: HashSet::from([LineKey::Site(line.site.clone())]),
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
    use super::super::super::table_screen::TableSort;
    use super::super::column;
    use super::*;
    use crate::view::table::SortOrder;

    /// Returns the first order of the screen.
    fn by_live() -> TableSort {
        TableSort {
            column: column("LIVE"),
            ..TableSort::default()
        }
    }

    fn shown(
        device: &DeviceSnapshot,
        sort: TableSort,
        pattern: &str,
        open: &HashSet<LineKey>,
    ) -> TableOf<LineList> {
        let query = Query {
            sort,
            filter: Filter::new(pattern),
            open: open.clone(),
            frozen: None,
        };
        let lines = LineList::new(Box::new(Sources));
        table(device, &lines, &FileNames::default(), &query)
    }

    fn place(table: &TableOf<LineList>, key: &LineKey) -> Option<usize> {
        table.rows.iter().position(|row| row.key == *key)
    }

    #[test]
    fn what_is_no_line_takes_its_place_by_bytes() {
        let device = device(0, lines(), 1126, -7);
        let table = shown(&device, by_live(), "", &HashSet::new());
        assert_eq!(place(&table, &LineKey::BeforeAttach), Some(3));
        assert_eq!(place(&table, &LineKey::Unaccounted), Some(7));
    }

    #[test]
    fn what_is_no_line_stands_last_where_it_has_no_figure_to_sort_by() {
        let device = device(0, lines(), 1126, 1 << 40);
        for column in ["BLOCKS", "ALLOC/s", "LINE"].map(column) {
            for order in [SortOrder::Falling, SortOrder::Climbing] {
                let sort = TableSort { column, order };
                let table = shown(&device, sort, "", &HashSet::new());
                assert!(place(&table, &LineKey::BeforeAttach) >= Some(6), "{sort:?}");
                assert!(place(&table, &LineKey::Unaccounted) >= Some(6), "{sort:?}");
            }
        }
    }

    #[test]
    fn blocks_from_before_attach_are_counted_where_they_are_known() {
        let blocks = |device: &DeviceSnapshot| {
            let table = shown(device, by_live(), "", &HashSet::new());
            let at = place(&table, &LineKey::BeforeAttach).unwrap();
            table.rows[at].data.figures.blocks
        };
        let mut device = device(0, lines(), 1126, 0);
        assert_eq!(blocks(&device), None);
        device.before_attach.unknown = Bytes(0);
        device.before_attach.known_blocks = 312;
        assert_eq!(blocks(&device), Some(312));
    }

    #[test]
    fn memory_from_before_attach_has_its_bytes_at_attach_as_peak() {
        let mut device = device(0, lines(), 1126, 0);
        device.before_attach.live = Bytes(7);
        let table = shown(&device, by_live(), "", &HashSet::new());
        let at = place(&table, &LineKey::BeforeAttach).unwrap();
        let figures = table.rows[at].data.figures;
        assert_eq!(
            (figures.live, figures.peak),
            (Some(7), Some(device.before_attach.peak))
        );
    }

    #[test]
    fn nothing_from_before_attach_needs_no_row() {
        let table = shown(&device(0, lines(), 0, 0), by_live(), "", &HashSet::new());
        assert_eq!(place(&table, &LineKey::BeforeAttach), None);
        assert_eq!(place(&table, &LineKey::Unaccounted), None);
    }

    #[test]
    fn folders_can_be_filtered_although_they_are_not_shown() {
        let device = device(0, lines(), 1126, 0);
        let table = shown(&device, by_live(), "/ada/.*train", &HashSet::new());
        assert_eq!((table.shown, table.all), (2, 7));
        assert_eq!(table.all_bytes, i128::from(device.totals.allocated.0));
        assert!(table.shown_bytes < table.all_bytes);
    }

    #[test]
    fn the_rows_beneath_a_line_add_up_to_it_at_every_level() {
        let device = device(0, lines(), 0, 0);
        let open = keys_beneath(&device.lines[0]);
        let table = shown(&device, by_live(), "", &open);
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
        let table = shown(&after, by_live(), "", &open);
        assert_eq!(table.rows[1].fold, Fold::Open);
    }
}
