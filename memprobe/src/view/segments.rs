//! Text for the allocator's segments and pools, and their table.

use super::table::{Cell, Column, Data, SortOrder, Tone, columns};
use crate::attribution::tables::{
    PoolOfStream, SegmentBlock, SegmentBlockState, SegmentMap, SegmentRow,
};
use crate::event::{Address, Bytes, DeviceIndex, Pool, PoolOwner, PrivatePoolState};

/// Name of a pool that events alone do not tell.
const NOT_READ: &str = "(pool not read yet)";

/// A segment, a pool with the sums of its segments, or bytes that are in no known segment.
#[derive(Clone, Default)]
pub struct SegmentEntry {
    pub device: Option<DeviceIndex>,
    pub kind: &'static str,
    pub name: String,
    pub addr: Option<Address>,
    pub pool: Option<Pool>,
    pub stream: Option<u64>,
    pub is_expandable: Option<bool>,
    pub segments: Option<u64>,
    pub size: Cell<'static>,
    /// By [`SegmentBlockState::ALL`].
    pub bytes: Option<[Bytes; 4]>,
    pub largest_free: Option<Bytes>,
    pub returnable: Option<Bytes>,
    /// Free bytes in blocks that are too small for a request.
    pub unusable: Option<Bytes>,
    pub blocks: Option<u64>,
    pub pieces: Vec<SegmentBlock>,
}

/// Segments with one pool and stream, in the order of their addresses.
pub struct PoolSegments<'a> {
    pub name: String,
    pub rows: Vec<&'a SegmentRow>,
}

pub fn segment_columns() -> Vec<Column<SegmentEntry>> {
    SEGMENT_COLUMNS.into()
}

pub const SEGMENT_COLUMNS: [Column<SegmentEntry>; 20] = columns![|row: SegmentEntry|
    data("device") => row.device,
    data("kind") => row.kind,
    data("address") => row.addr,
    data("pool") => row.pool.map(|pool| pool.size.as_str()),
    data("pool_owner") => row.pool.map(|pool| owner(pool.owner)),
    data("pool_id") => row.pool.and_then(pool_id),
    data("freeable") => row.pool.and_then(freeable),
    data("stream") => row.stream.map(Address),
    data("expandable") => row.is_expandable,
    number("size", "SIZE").screen(11, 0).tone(Tone::Strong) => row.size.clone(),
    number("live", "LIVE").screen(11, 0).tone(Tone::Graph) => state(row, 0),
    number("awaiting_event", "AWAITING").priority(3).screen(11, 118) => state(row, 1),
    number("cached", "CACHED").screen(11, 56) => state(row, 2),
    number("inactive_split", "SPLIT").screen(11, 68) => state(row, 3),
    number("largest_free", "LARGEST").priority(1).screen(11, 80) => row.largest_free,
    number("unusable", "UNUSABLE").only(Data::Sparse) => row.unusable,
    number("empty_cache", "RETURNED").priority(2).screen(11, 104) => row.returnable,
    number("live_blocks", "BLOCKS").priority(1).screen(8, 92) => row.blocks,
    text("name", "POOL AND SEGMENT").name(0).order(Some(SortOrder::Climbing)) => &row.name,
    json("blocks") => blocks(row),
];

fn state(row: &SegmentEntry, at: usize) -> Cell<'static> {
    row.bytes.map(|bytes| bytes[at]).into()
}

fn blocks(row: &SegmentEntry) -> Cell<'static> {
    if row.pieces.is_empty() {
        return Cell::Absent;
    }
    let block = |piece: &SegmentBlock| {
        Cell::Object(vec![
            ("address", piece.addr.into()),
            ("size", piece.size.into()),
            ("state", piece.state.into_str().into()),
        ])
    };
    Cell::list(row.pieces.iter().map(block))
}

pub(super) fn owner(owner: PoolOwner) -> &'static str {
    match owner {
        PoolOwner::Default => "default",
        PoolOwner::Private { id, .. } if id.is_of_graph() => "graph",
        PoolOwner::Private { .. } => "private",
    }
}

pub(super) fn pool_id(pool: Pool) -> Option<Cell<'static>> {
    match pool.owner {
        PoolOwner::Default => None,
        PoolOwner::Private { id, .. } => Some(Cell::list([id.0, id.1].map(Cell::Number))),
    }
}

fn freeable(pool: Pool) -> Option<bool> {
    match pool.owner {
        PoolOwner::Default => None,
        PoolOwner::Private { state, .. } => Some(state == PrivatePoolState::Freeable),
    }
}

/// Names a pool: `large`, `small, graph pool (1, 0)`, with its stream and kind of segments.
pub fn pool_name(of: PoolOfStream) -> String {
    let Some(pool) = of.pool else {
        return NOT_READ.to_owned();
    };
    let mut name = pool.size.as_str().to_owned();
    if let PoolOwner::Private { id, state } = pool.owner {
        let of = if id.is_of_graph() { "graph" } else { "private" };
        name.push_str(&format!(", {of} pool ({}, {})", id.0, id.1));
        if state == PrivatePoolState::Freeable {
            name.push_str(", unused");
        }
    }
    match of.stream {
        None | Some(0) => name.push_str(", default stream"),
        Some(stream) => name.push_str(&format!(", stream {stream:#x}")),
    }
    if of.is_expandable {
        name.push_str(", expandable");
    }
    name
}

/// Groups the segments of a device by pool and stream, the largest group first.
pub fn pools(map: &SegmentMap) -> Vec<PoolSegments<'_>> {
    let mut pools: Vec<PoolSegments<'_>> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for row in &map.segments {
        let place = *places
            .entry((row.pool, row.stream, row.is_expandable))
            .or_insert_with(|| {
                pools.push(PoolSegments {
                    name: pool_name(PoolOfStream::of(row)),
                    rows: Vec::new(),
                });
                pools.len() - 1
            });
        pools[place].rows.push(row);
    }
    let size = |pool: &PoolSegments<'_>| pool.rows.iter().map(|row| row.size.0).sum::<u64>();
    pools.sort_by_key(|pool| (std::cmp::Reverse(size(pool)), pool.name.clone()));
    pools
}

/// Free bytes in blocks below `request`, which is rounded up to the allocator's 512 bytes.
fn unusable(row: &SegmentRow, request: Bytes) -> Bytes {
    let request = request.0.next_multiple_of(512);
    Bytes(
        row.free()
            .filter(|free| free.0 < request)
            .map(|free| free.0)
            .sum(),
    )
}

impl SegmentEntry {
    pub fn of_segment(row: &SegmentRow, device: DeviceIndex, request: Option<Bytes>) -> Self {
        Self {
            device: Some(device),
            kind: "segment",
            name: format!("{:#x}", row.addr.0),
            addr: Some(row.addr),
            pool: row.pool,
            stream: row.stream,
            is_expandable: Some(row.is_expandable),
            segments: None,
            size: row.size.into(),
            bytes: Some(SegmentBlockState::ALL.map(|state| row.bytes(state))),
            largest_free: Some(row.largest_free()),
            returnable: Some(row.returnable),
            unusable: request.map(|request| unusable(row, request)),
            blocks: Some(row.live_blocks()),
            pieces: row.pieces.clone(),
        }
    }

    /// The sums of a pool.
    pub fn of_pool(pool: &PoolSegments<'_>, device: DeviceIndex, request: Option<Bytes>) -> Self {
        let sum = |of: &dyn Fn(&SegmentRow) -> u64| pool.rows.iter().map(|row| of(row)).sum();
        let largest = pool.rows.iter().map(|row| row.largest_free()).max();
        let first = pool.rows.first();
        Self {
            device: Some(device),
            kind: "pool",
            name: pool.name.clone(),
            addr: None,
            pool: first.and_then(|row| row.pool),
            stream: first.and_then(|row| row.stream),
            is_expandable: first.map(|row| row.is_expandable),
            segments: Some(pool.rows.len() as u64),
            size: Cell::Bytes(sum(&|row| row.size.0)),
            bytes: Some(SegmentBlockState::ALL.map(|state| Bytes(sum(&|row| row.bytes(state).0)))),
            largest_free: largest,
            returnable: Some(Bytes(sum(&|row| row.returnable.0))),
            unusable: request.map(|request| Bytes(sum(&|row| unusable(row, request).0))),
            blocks: Some(sum(&|row| row.live_blocks())),
            pieces: Vec::new(),
        }
    }

    /// Row that completes the sums to the allocator's totals: segments and live bytes that the last reading lacks.
    pub fn rest(map: &SegmentMap) -> Option<Self> {
        if map.unplaced == 0 && map.outside.0 == 0 {
            return None;
        }
        let live = [map.outside, Bytes(0), Bytes(0), Bytes(0)];
        Some(Self {
            device: Some(map.index),
            kind: "not_read",
            name: "(segments not read yet)".to_owned(),
            size: map.unplaced.into(),
            bytes: (map.outside.0 > 0).then_some(live),
            ..Self::default()
        })
    }
}

/// Glyphs of the drawing of a segment, by [`SegmentBlockState::ALL`], and for cells with live and free bytes.
pub struct MapGlyphs {
    pub states: [char; 4],
    pub mixed: char,
}

impl MapGlyphs {
    pub const UNICODE: Self = Self {
        states: ['█', '◆', '░', '·'],
        mixed: '▒',
    };
    pub const ASCII: Self = Self {
        states: ['#', 'w', '.', '-'],
        mixed: '+',
    };

    /// Names the glyphs.
    pub fn legend(&self) -> String {
        let [live, awaiting, cached, split] = self.states;
        format!(
            "{live} live  {} live and free  {awaiting} awaits an event  {cached} cached  {split} inactive split",
            self.mixed
        )
    }
}

/// Draws the blocks of a segment in `cells` characters of equal bytes.
pub fn drawing(pieces: &[SegmentBlock], cells: usize, glyphs: &MapGlyphs) -> String {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
        return String::new();
    };
    let start = first.addr.0;
    let size = u128::from(last.addr.0 + last.size.0 - start).max(1);
    let edge = |cell: usize| (size * cell as u128 / cells.max(1) as u128) as u64;
    let mut text = String::new();
    let mut next = 0;
    for cell in 0..cells {
        let (from, to) = (
            start + edge(cell),
            start + edge(cell + 1).max(edge(cell) + 1),
        );
        let mut bytes = [0_u64; 4];
        while pieces
            .get(next)
            .is_some_and(|piece| piece.addr.0 + piece.size.0 <= from)
        {
            next += 1;
        }
        let here = pieces[next..].iter().take_while(|piece| piece.addr.0 < to);
        for piece in here {
            let end = (piece.addr.0 + piece.size.0).min(to);
            let part = end.saturating_sub(piece.addr.0.max(from));
            let place = SegmentBlockState::ALL
                .iter()
                .position(|state| *state == piece.state);
            bytes[place.unwrap_or(0)] += part;
        }
        text.push(cell_glyph(bytes, glyphs));
    }
    text
}

fn cell_glyph(bytes: [u64; 4], glyphs: &MapGlyphs) -> char {
    let [live, awaiting, cached, split] = bytes;
    let free = cached + split;
    if live > 0 && free > 0 {
        return glyphs.mixed;
    }
    let largest = [live, awaiting, cached, split].into_iter().max();
    let place = bytes.iter().position(|bytes| Some(*bytes) == largest);
    glyphs.states[place.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(addr: u64, size: u64, state: SegmentBlockState) -> SegmentBlock {
        SegmentBlock {
            addr: Address(addr),
            size: Bytes(size),
            state,
        }
    }

    #[test]
    fn each_cell_shows_its_part_of_the_segment() {
        let pieces = [
            piece(0x1000, 40, SegmentBlockState::Live),
            piece(0x1028, 20, SegmentBlockState::InactiveSplit),
            piece(0x103c, 20, SegmentBlockState::AwaitingEvent),
            piece(0x1050, 20, SegmentBlockState::InactiveSplit),
        ];
        let draw = |cells| drawing(&pieces, cells, &MapGlyphs::ASCII);
        assert_eq!(draw(10), "####--ww--");
        assert_eq!(draw(5), "##-w-");
        assert_eq!(draw(2), "+-");
        assert_eq!(draw(0), "");
        assert_eq!(drawing(&[], 5, &MapGlyphs::ASCII), "");
    }

    #[test]
    fn a_segment_of_fewer_bytes_than_cells_is_drawn() {
        let pieces = [piece(0, 2, SegmentBlockState::Cached)];
        assert_eq!(drawing(&pieces, 4, &MapGlyphs::ASCII), "....");
    }
}
