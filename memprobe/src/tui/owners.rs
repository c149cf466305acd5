//! Screen of owners: the memory of the process on a device, from the driver's count down to the allocator's rounding.

#[cfg(test)]
pub(super) mod samples;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::bars::Tab;
use super::context::ProcessContext;
use super::table_screen::{
    Content, Fold, Needs, Note, Query, RowOf, ScreenContext as _, ScreenParts, SourcePlace,
    TableOf, TableRow, TableScreen,
};
use crate::attribution::tables::{
    AllocationTag, CommunicatorCall, OwnerKind, OwnerRow, PoolOfStream, Waterfall,
};
use crate::event::bytes::human;
use crate::event::{CudaMemoryKind, DeviceIndex};
use crate::ledger::snapshot::Site;
use crate::view::{OWNER_COLUMNS, OwnerEntry, clean, counted, owner_account, owner_notes, wrap};

/// Lines of notes below the table.
const NOTES: usize = 2;
/// Height from which the notes are shown.
const TALL: u16 = 16;

/// Facts that identify a row of one owner.
type OwnerIdentity = (
    OwnerKind,
    Option<Arc<str>>,
    Option<DeviceIndex>,
    Option<CudaMemoryKind>,
    Option<AllocationTag>,
    Option<CommunicatorCall>,
    Option<PoolOfStream>,
    Option<Site>,
);

/// Key of a row: an owner, and one of its parts or lines.
type OwnerKey = (OwnerIdentity, Option<OwnerIdentity>);

#[derive(Default)]
pub struct OwnerList {
    /// Owners that were there: new ones are opened at first.
    opened: HashSet<OwnerKey>,
    notes: Vec<String>,
}

static PARTS: ScreenParts<OwnerEntry> = ScreenParts {
    tab: Some(Tab::Owners),
    columns: &OWNER_COLUMNS,
    searched: "owners, their parts and lines",
    keys: &[("Enter", "parts", 2), ("*", "open all", 5)],
    help: "\
Enter       the parts of the allocator, or the lines that got the memory
*           the parts and lines of all owners
",
    terms: "\
BYTES       bytes now; all owners add up to the driver's count of the process
SHARE       share of the driver's count
not seen    the count minus all known memory: what CUDA and libraries got before
            attach
perhaps     a library that was in use at attach; its bytes are not known
asleep      reserved by the allocator, but given back to CUDA: counts negative
",
};

impl Content for OwnerList {
    type Key = OwnerKey;
    type Data = OwnerEntry;
    type Context = ProcessContext;

    const FIRST_SORT: &'static str = "BYTES";

    fn parts(&self) -> &'static ScreenParts<OwnerEntry> {
        &PARTS
    }

    fn build(&mut self, query: &mut Query<OwnerKey>, context: &ProcessContext) -> TableOf<Self> {
        let Some(waterfall) = shown(context) else {
            self.notes = Vec::new();
            return TableOf::<Self>::default();
        };
        self.notes = owner_notes(waterfall, context.feed.shown.now);
        let entries = OwnerEntry::all(waterfall);
        let owners = owners(&entries);
        for (owner, below) in &owners {
            let key = (identity(&owner.row), None);
            if !below.is_empty() && self.opened.insert(key.clone()) {
                query.open.insert(key);
            }
        }
        let mut texts: HashMap<OwnerKey, String> = HashMap::new();
        let row = |(owner, below): (&OwnerEntry, &'_ [OwnerEntry])| {
            let key = (identity(&owner.row), None);
            let names = std::iter::once(owner).chain(below);
            let names: Vec<&str> = names.map(|entry| entry.name.as_str()).collect();
            texts.insert(key.clone(), names.join("\n"));
            let fold = query.fold(!below.is_empty(), &key);
            TableRow::leaf(key, owner.clone()).at(0, fold)
        };
        let rows: Vec<RowOf<Self>> = owners.iter().copied().map(row).collect();
        let below = owners.iter().map(|(_, below)| *below);
        let entries = rows.into_iter().zip(below).collect();
        let bytes = |row: &RowOf<Self>| i128::from(row.data.row.bytes);
        let searched = |row: &RowOf<Self>| texts.get(&row.key).cloned().unwrap_or_default();
        query.table(self, entries, bytes, searched, |row, below| {
            let below = below.iter().filter(|_| row.fold == Fold::Open);
            let part = |entry: &OwnerEntry| {
                let key = (row.key.0.clone(), Some(identity(&entry.row)));
                TableRow::leaf(key, entry.clone()).at(1, Fold::Leaf)
            };
            let mut parts: Vec<RowOf<Self>> = below.map(part).collect();
            query.arrange(self, &mut parts, |row| row);
            parts
        })
    }

    fn keys_beneath(&self, _row: &RowOf<Self>, context: &ProcessContext) -> Vec<OwnerKey> {
        let rows = shown(context).map_or(&[][..], |waterfall| &waterfall.rows);
        let owners = rows.iter().filter(|row| row.depth == 1);
        owners.map(|row| (identity(row), None)).collect()
    }

    fn place(&self, row: &RowOf<Self>) -> Option<SourcePlace> {
        SourcePlace::of(row.data.row.site.as_ref()?.frame()?)
    }

    fn needs(&self, _width: u16, height: u16, context: &ProcessContext) -> Needs {
        let needs = context.needs(height);
        if height < TALL {
            return needs;
        }
        Needs {
            detail: needs.detail.max(1 + NOTES as u16),
            ..needs
        }
    }

    fn account(&self, context: &ProcessContext) -> Option<String> {
        Some(format!("  {}", owner_account(shown(context)?)))
    }

    fn nothing(screen: &TableScreen<Self>, _context: &ProcessContext) -> Option<[Note; 2]> {
        Some(match screen.table.all {
            _ if screen.table.shown > 0 => return None,
            0 => [
                "No memory of a GPU is known yet.".into(),
                "The driver is asked once a second while memory changes.".into(),
            ],
            _ => [
                "No owner matches the filter.".into(),
                "Esc shows all owners.".into(),
            ],
        })
    }

    fn total(&self, context: &ProcessContext) -> Option<(i128, &'static str)> {
        let waterfall = shown(context)?;
        let whole = i128::from(waterfall.rows.first()?.bytes);
        let counted = waterfall.driver.and_then(|driver| driver.process);
        Some(match counted {
            Some(counted) if i128::from(counted.0) == whole => {
                (whole, "this process, as the driver counts it")
            }
            Some(_) => (whole, "this process, since the driver's count"),
            None => (whole, "known memory of this process"),
        })
    }

    fn detail(&self, row: &RowOf<Self>, wide: usize, cut: &str) -> Vec<String> {
        let OwnerEntry {
            row: owner, name, ..
        } = &row.data;
        let mut facts = vec![name.clone()];
        facts.extend(owner.library.as_deref().map(clean));
        facts.extend(owner.blocks.map(|blocks| counted(blocks, "block")));
        facts.extend(owner.peak.map(|peak| format!("at most {}", human(peak))));
        let mut lines = vec![facts.join("  ")];
        let mut notes = wrap(&self.notes.join(" "), wide);
        if notes.len() > NOTES {
            notes.truncate(NOTES);
            notes[NOTES - 1].push_str(&format!(" {cut}"));
        }
        lines.extend(notes);
        lines
    }
}

/// Rows of each owner, with those below it.
fn owners(entries: &[OwnerEntry]) -> Vec<(&OwnerEntry, &[OwnerEntry])> {
    let chunks = entries.chunk_by(|_, next| next.row.depth > 1);
    let owners = chunks.filter_map(<[OwnerEntry]>::split_first);
    owners.filter(|(owner, _)| owner.row.depth == 1).collect()
}

fn identity(row: &OwnerRow) -> OwnerIdentity {
    (
        row.id,
        row.library.clone(),
        row.library_device,
        row.kind,
        row.tag.clone(),
        row.communicator.clone(),
        row.pool,
        row.site.clone(),
    )
}

fn shown(context: &ProcessContext) -> Option<&Waterfall> {
    context.of_device(context.owners.as_ref(), |waterfall| waterfall.index)
}

#[cfg(test)]
mod tests {
    use super::super::input::InputEvent;
    use super::super::test_support::{COLOUR, SMALL, Shown, typed};
    use super::*;

    fn screen(events: &[InputEvent]) -> Shown<OwnerList> {
        let mut context = ProcessContext::new(Arc::new(super::super::samples::normal()));
        context.owners = Some(samples::owners());
        Shown::new(OwnerList::default(), context, SMALL).with(events)
    }

    #[test]
    fn owners_have_their_parts_and_lines() {
        insta::assert_snapshot!(screen(&[InputEvent::Move(1)]).drawn(SMALL, &COLOUR));
    }

    #[test]
    fn memory_from_before_attach_has_the_libraries_that_may_have_a_part_of_it() {
        let mut screen = screen(&[]);
        screen.update(|context| context.owners = Some(samples::late_owners()));
        insta::assert_snapshot!(screen.drawn(SMALL, &COLOUR));
    }

    #[test]
    fn the_rows_add_up_to_the_count_of_the_driver() {
        let screen = screen(&[]);
        let owners = screen.table.rows.iter().filter(|row| row.depth == 0);
        let sum: i128 = owners.map(|row| i128::from(row.data.row.bytes)).sum();
        let total = screen.content.total(&screen.context);
        let count = screen.context.owners.as_ref().and_then(|all| all[0].driver);
        let count = count
            .and_then(|driver| driver.process)
            .map(|count| i128::from(count.0));
        assert_eq!(total.map(|(total, _)| total), Some(sum));
        assert_eq!(count, Some(sum));
    }

    #[test]
    fn an_owner_that_was_closed_stays_closed_and_new_ones_open() {
        let mut screen = screen(&[InputEvent::Close]);
        let depths = |screen: &Shown<OwnerList>| {
            let rows = screen.table.rows.iter();
            rows.filter(|row| row.depth > 0).count()
        };
        let parts = depths(&screen);
        screen.update(|context| {
            let mut waterfall = samples::owners()[0].clone();
            let mut library = waterfall.rows.iter().find(|row| row.library.is_some());
            let mut new: Vec<OwnerRow> = library.take().into_iter().cloned().collect();
            new[0].library = Some("/v/libnew.so".into());
            new.extend(
                waterfall
                    .rows
                    .iter()
                    .find(|row| row.id == OwnerKind::Line)
                    .cloned(),
            );
            waterfall.rows.extend(new);
            context.owners = Some(Arc::new(vec![waterfall]));
        });
        assert_eq!(depths(&screen), parts + 1);
    }

    #[test]
    fn a_library_on_a_known_and_an_unknown_device_has_two_rows_to_select() {
        let mut screen = screen(&[]);
        screen.update(|context| {
            let mut waterfall = samples::owners()[0].clone();
            let is_nccl = |row: &&OwnerRow| row.library.is_some();
            let known = waterfall.rows.iter().find(is_nccl).cloned();
            let known = known.expect("a library");
            let unknown = OwnerRow {
                library_device: None,
                ..known.clone()
            };
            assert_ne!(known.library_device, None);
            waterfall.rows = vec![waterfall.rows[0].clone(), known, unknown];
            context.owners = Some(Arc::new(vec![waterfall]));
        });
        let keys = screen.table.rows.iter().map(|row| &row.key);
        assert_eq!(keys.collect::<HashSet<_>>().len(), 2);
        let text = screen.drawn(SMALL, &COLOUR).to_string();
        assert!(text.contains("memory on cuda:?"), "{text}");
    }

    #[test]
    fn a_filter_finds_the_parts_of_owners() {
        let screen = screen(&typed("inactive split"));
        let rows = screen.table.rows.iter().filter(|row| row.depth == 0);
        let ids: Vec<OwnerKind> = rows.map(|row| row.data.row.id).collect();
        assert_eq!(ids, [OwnerKind::Reserved]);
    }

    #[test]
    fn a_process_without_a_gpu_says_so() {
        let mut screen = screen(&[]);
        screen.update(|context| context.owners = Some(Arc::new(Vec::new())));
        let text = screen.drawn(SMALL, &COLOUR).to_string();
        assert!(text.contains("No memory of a GPU is known yet."), "{text}");
    }
}
