//! Screen of segments: the caching allocator's pools and segments, and a drawing of the selected one.

use super::bars::Tab;
use super::context::ProcessContext;
use super::table_screen::{
    Content, Fold, Needs, Note, Query, RowOf, ScreenContext as _, ScreenParts, TableOf, TableRow,
    TableScreen,
};
use crate::attribution::tables::{SegmentBlockState, SegmentMap};
use crate::event::bytes::human;
use crate::view::{
    MapGlyphs, PoolSegments, SEGMENT_COLUMNS, SegmentEntry, clean, counted, drawing, pools,
};

/// A pool by its name, or one of its segments by address.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SegmentKey {
    Pool(String),
    Segment(u64),
    Rest,
}

/// Lines of the drawing.
const DRAWN: usize = 3;
/// Height from which the drawing is shown.
const TALL: u16 = 20;

#[derive(Default)]
pub struct SegmentList {
    /// Pools that were there: new ones are opened at first.
    opened: std::collections::HashSet<SegmentKey>,
}

static PARTS: ScreenParts<SegmentEntry> = ScreenParts {
    tab: Some(Tab::Segments),
    columns: &SEGMENT_COLUMNS,
    searched: "pool",
    keys: &[("*", "open all", 5)],
    help: "",
    terms: "\
SIZE        bytes from CUDA; all rows add up to reserved
AWAITING    freed blocks that another stream may still use
CACHED      free, and in no segment with a live block
SPLIT       free beside live blocks: cannot be returned
LARGEST     largest free block: a larger request needs a new segment
RETURNED    bytes that torch.cuda.empty_cache() would return
",
};

impl Content for SegmentList {
    type Key = SegmentKey;
    type Data = SegmentEntry;
    type Context = ProcessContext;

    const FIRST_SORT: &'static str = "SIZE";

    fn parts(&self) -> &'static ScreenParts<SegmentEntry> {
        &PARTS
    }

    fn build(&mut self, query: &mut Query<SegmentKey>, context: &ProcessContext) -> TableOf<Self> {
        let Some(map) = shown(context) else {
            return TableOf::<Self>::default();
        };
        let pools = pools(map);
        for pool in &pools {
            let key = SegmentKey::Pool(pool.name.clone());
            if self.opened.insert(key.clone()) {
                query.open.insert(key);
            }
        }
        let rest = SegmentEntry::rest(map);
        let rest = rest.map(|entry| (TableRow::leaf(SegmentKey::Rest, entry), None));
        let entries = pools.iter().map(|pool| {
            let key = SegmentKey::Pool(pool.name.clone());
            let fold = query.fold(true, &key);
            let entry = SegmentEntry::of_pool(pool, map.index, None);
            (TableRow::leaf(key, entry).at(0, fold), Some(pool))
        });
        let entries: Vec<(RowOf<Self>, Option<&PoolSegments<'_>>)> = entries.chain(rest).collect();
        let size = |row: &RowOf<Self>| row.data.size.rank();
        let searched = |row: &RowOf<Self>| row.data.name.clone();
        query.table(self, entries, size, searched, |row, pool| {
            let rows = pool.filter(|_| row.fold == Fold::Open);
            let rows = rows.iter().flat_map(|pool| &pool.rows);
            let mut rows: Vec<RowOf<Self>> = rows
                .map(|segment| {
                    let entry = SegmentEntry::of_segment(segment, map.index, None);
                    let key = SegmentKey::Segment(segment.addr.0);
                    TableRow::leaf(key, entry).at(1, Fold::Leaf)
                })
                .collect();
            query.arrange(self, &mut rows, |row| row);
            rows
        })
    }

    fn keys_beneath(&self, row: &RowOf<Self>, context: &ProcessContext) -> Vec<SegmentKey> {
        match (&row.key, shown(context)) {
            (SegmentKey::Pool(_), Some(map)) => pools(map)
                .into_iter()
                .map(|pool| SegmentKey::Pool(pool.name))
                .collect(),
            _ => Vec::new(),
        }
    }

    fn needs(&self, _width: u16, height: u16, context: &ProcessContext) -> Needs {
        let needs = context.needs(height);
        if height < TALL {
            return needs;
        }
        Needs {
            detail: needs.detail.max(DRAWN as u16 + 2),
            ..needs
        }
    }

    fn nothing(screen: &TableScreen<Self>, context: &ProcessContext) -> Option<[Note; 2]> {
        let unread = shown(context).and_then(|map| map.unread.as_deref());
        Some(match screen.table.all {
            _ if screen.table.shown > 0 => return None,
            0 => match unread {
                Some(reason) => ["The segments are not known:".into(), clean(reason).into()],
                None => [
                    "No segment was read yet.".into(),
                    "The allocator's tables are read once a second.".into(),
                ],
            },
            _ => [
                "No pool matches the filter.".into(),
                "Esc shows all pools.".into(),
            ],
        })
    }

    fn total(&self, context: &ProcessContext) -> Option<(i128, &'static str)> {
        let map = shown(context)?;
        Some((map.totals.reserved.0.into(), "reserved"))
    }

    fn detail(&self, row: &RowOf<Self>, wide: usize, cut: &str) -> Vec<String> {
        let data = &row.data;
        let segments = data.segments.map(|count| counted(count, "segment"));
        let mut facts = vec![data.name.clone()];
        facts.extend(segments);
        facts.extend(data.blocks.map(|blocks| counted(blocks, "live block")));
        if let Some(bytes) = data.bytes {
            let part = |state: SegmentBlockState, words: &str| {
                let place = SegmentBlockState::ALL
                    .iter()
                    .position(|one| *one == state)?;
                (bytes[place].0 > 0).then(|| format!("{} {words}", human(bytes[place])))
            };
            facts.extend(part(SegmentBlockState::AwaitingEvent, "awaiting an event"));
        }
        let largest = data.largest_free.filter(|largest| largest.0 > 0);
        facts.extend(largest.map(|largest| format!("largest free block {}", human(largest))));
        let returned = data.returnable.filter(|returned| returned.0 > 0);
        facts.extend(returned.map(|it| format!("empty_cache() returns {}", human(it))));
        let mut lines = vec![facts.join("  ")];
        if !data.pieces.is_empty() {
            let glyphs = if cut.is_ascii() {
                MapGlyphs::ASCII
            } else {
                MapGlyphs::UNICODE
            };
            let map: Vec<char> = drawing(&data.pieces, wide * DRAWN, &glyphs)
                .chars()
                .collect();
            let rows = map.chunks(wide.max(1));
            lines.extend(rows.map(|row| row.iter().collect::<String>()));
            lines.push(glyphs.legend());
        }
        lines
    }
}

fn shown(context: &ProcessContext) -> Option<&SegmentMap> {
    context.of_device(context.segments.as_ref(), |map| map.index)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::input::InputEvent;
    use super::super::samples;
    use super::super::test_support::{COLOUR, SMALL, Shown};
    use super::*;

    fn screen(wanted: &[InputEvent]) -> Shown<SegmentList> {
        let mut context = ProcessContext::new(Arc::new(samples::normal()));
        context.segments = Some(samples::segments());
        Shown::new(SegmentList::default(), context, SMALL).with(wanted)
    }

    #[test]
    fn the_selected_segment_is_drawn_beneath_its_pools() {
        insta::assert_snapshot!(screen(&[InputEvent::Move(1)]).drawn(SMALL, &COLOUR));
    }

    #[test]
    fn the_pools_add_up_to_what_is_reserved() {
        let screen = screen(&[]);
        let pools = screen.table.rows.iter().filter(|row| row.depth == 0);
        let size: i128 = pools.map(|row| row.data.size.rank()).sum();
        let total = screen.content.total(&screen.context);
        assert_eq!(Some((size, "reserved")), total);
    }
}
