//! Screens of modules and layers of one process: module trees with live memory, or with memory in an
//! iteration.

mod rows;
#[cfg(test)]
mod screens;
mod subject;

use super::Command;
use super::bars::Tab;
use super::context::{AttributionQuery, ProcessContext};
use super::input::InputEvent;
use super::table_screen::{
    Content, Note, Query, Reaction, RowOf, ScreenParts, ScreenRequest, TableOf, TableScreen,
    TableState,
};
use crate::attribution::tables::{Category, IterationChoice, Layer, Pass, Sums};
use crate::event::Bytes;
use crate::view::table::{Cell, Column};
use crate::view::{
    Alike, ByCategory, LayerCells, ModuleCells, ModuleTreeCells, OfModule, RECOMPUTE, clean, count,
    layer_columns, module_columns,
};
use rows::{ModuleData, ModuleKey};
use subject::{ModuleFigures, ModuleTables};

/// Live memory of modules, by the pass that allocated it.
const NOW: [Column<ModuleData>; 30] = module_columns();

/// Memory of modules at the peak of an iteration, by category.
const THEN: [Column<ModuleData>; 33] = layer_columns();

impl ModuleData {
    /// Returns the name, with the number of modules if the row stands for several.
    fn name_and_count(&self) -> String {
        match self.count {
            1 => self.name.clone(),
            several => format!("{} ({})", self.name, count(several)),
        }
    }
}

impl ModuleTreeCells for ModuleData {
    fn name(&self) -> Cell<'_> {
        self.name_and_count().into()
    }
}

impl ModuleCells for ModuleData {
    fn sums(&self) -> Option<OfModule<&Sums>> {
        match &self.figures {
            Some(OfModule {
                total: ModuleFigures::Now(total),
                own: ModuleFigures::Now(own),
            }) => Some(OfModule { total, own }),
            _ => None,
        }
    }

    fn live(&self) -> Cell<'_> {
        self.live.into()
    }

    fn at_peak(&self) -> Cell<'_> {
        self.at_peak.into()
    }

    fn live_blocks(&self) -> Cell<'_> {
        (self.sums()).map(|sums| sums.total.all.live_blocks).into()
    }

    fn own_live(&self) -> Cell<'_> {
        self.own_bytes()
    }

    fn own_at_peak(&self) -> Cell<'_> {
        self.figures.map(|figures| figures.own.at_peak()).into()
    }

    fn own_live_blocks(&self) -> Cell<'_> {
        (self.sums()).map(|sums| sums.own.all.live_blocks).into()
    }

    fn share(&self) -> Cell<'_> {
        Cell::Share(self.live, self.allocated)
    }

    fn own(&self) -> Cell<'_> {
        self.own_bytes()
    }

    fn pass(&self, pass: Pass) -> Cell<'_> {
        (self.sums()).map(|sums| sums.total.pass(pass).live).into()
    }
}

impl ModuleData {
    fn own_bytes(&self) -> Cell<'static> {
        self.figures.map(|figures| figures.own.bytes()).into()
    }
}

impl ByCategory for ModuleData {
    fn bytes(&self, category: Category) -> Cell<'static> {
        let figures = self.figures.as_ref();
        figures
            .and_then(|figures| figures.total.of(category))
            .map(Bytes)
            .into()
    }
}

impl LayerCells for ModuleData {
    fn layers(&self) -> Option<OfModule<&Layer>> {
        match &self.figures {
            Some(OfModule {
                total: ModuleFigures::Then(total),
                own: ModuleFigures::Then(own),
            }) => Some(OfModule { total, own }),
            _ => None,
        }
    }

    fn total(&self) -> Cell<'_> {
        self.live.into()
    }

    fn own_total(&self) -> Cell<'_> {
        self.own_bytes()
    }

    fn share(&self) -> Cell<'_> {
        ModuleCells::share(self)
    }
}

#[derive(Default)]
pub struct ModuleList {
    /// Iteration shown; `None` for live memory.
    iteration: Option<IterationChoice>,
    alike: Alike,
    subject: Option<ModuleTables>,
    is_recomputed: bool,
    /// True after the first table, which opens the only root module.
    has_rows: bool,
}

impl ModuleList {
    pub fn of_iterations() -> Self {
        Self {
            iteration: Some(IterationChoice::default()),
            ..Self::default()
        }
    }

    pub const fn explains(&self) -> AttributionQuery {
        match self.iteration {
            None => AttributionQuery::Modules,
            Some(choice) => AttributionQuery::Layers(choice),
        }
    }

    fn allocated(&self) -> i128 {
        let subject = self.subject.as_ref();
        subject.map_or(0, |subject| subject.allocated.0.into())
    }

    /// Goes to another iteration. Going to the last one follows the latest from then on.
    fn go_iteration(&mut self, by: isize, state: &mut TableState<ModuleKey>) -> Reaction {
        let subject = self.subject.as_ref();
        let Some(moment) = subject.and_then(|subject| subject.moment.as_ref()) else {
            return Reaction::Done;
        };
        let (Some(iteration), Some((first, last))) = (&moment.iteration, moment.whole) else {
            return Reaction::Note("no iteration has ended yet".into());
        };
        let number = iteration.number.saturating_add_signed(by as i64);
        self.iteration = Some(match number {
            _ if number >= last => IterationChoice::Latest,
            _ => IterationChoice::Numbered(number.max(first)),
        });
        if number < first {
            state.note = Some("older iterations are gone: `memprobe record` keeps all".into());
        }
        Reaction::Request(ScreenRequest::Send(Command::Explain(self.explains())))
    }
}

static NOW_PARTS: ScreenParts<ModuleData> = ScreenParts {
    tab: Some(Tab::Modules),
    columns: &NOW,
    searched: "paths of modules",
    keys: &[
        ("Enter", "open", 2),
        ("*", "open all", 5),
        ("i", "alike", 5),
    ],
    help: KEYS,
    terms: "\
LIVE        live bytes of the module and its submodules
OWN         of these, without submodules
PEAK        largest LIVE; unknown for several modules in one row
AT PEAK     bytes at the device's peak since attach or opening
FORWARD     live bytes allocated in forward passes
RECOMPUTE   live bytes of recomputation (activation checkpointing)
BACKWARD    live bytes of backward passes, by forward module
SHARE       share of all allocated bytes
outside     parameters are made outside of calls: t lists them
",
};

static THEN_PARTS: ScreenParts<ModuleData> = ScreenParts {
    tab: Some(Tab::Layers),
    columns: &THEN,
    searched: "paths of modules",
    keys: &[
        ("Enter", "open", 2),
        ("*", "open all", 5),
        ("i", "alike", 5),
        ("[]", "iteration", 2),
    ],
    help: KEYS,
    terms: "\
[ ]         previous and next iteration; the last one is live
AT PEAK     bytes at the device's peak in the iteration
OWN         of these, without submodules
ACTIVATIONS activations saved for the backward pass
WEIGHTS     parameters and buffers; t shows their modules
GRADIENTS   of parameters
INTERMED.   intermediate gradients: those of activations
OPTIMIZER   optimizer state
OTHER       temporaries, workspaces and unknown
inferred    every category, by the rules on c, until t reads the tensors
",
};

const KEYS: &str = "\
Enter       open the row, or close it; so does a click on it
Right Left  open; close or go up the tree    *  open all beneath
i           modules that differ only in a number: one row, or each
";

impl Content for ModuleList {
    type Key = ModuleKey;
    type Data = ModuleData;
    type Context = ProcessContext;

    /// Peaks do not swing within an iteration, so rows stay in their places.
    const FIRST_SORT: &'static str = "PEAK";
    const NOTHING_BENEATH: &'static str = "nothing beneath: no submodule allocated memory";

    fn parts(&self) -> &'static ScreenParts<ModuleData> {
        match self.iteration {
            None => &NOW_PARTS,
            Some(_) => &THEN_PARTS,
        }
    }

    fn shows(&self, column: &Column<ModuleData>) -> bool {
        self.is_recomputed || column.head != RECOMPUTE
    }

    fn build(&mut self, query: &mut Query<ModuleKey>, context: &ProcessContext) -> TableOf<Self> {
        let subject = match self.iteration {
            None => {
                let device = context.of_device(context.modules.as_ref(), |device| device.index);
                device.map(|device| ModuleTables::now(device, self.alike))
            }
            Some(_) => {
                let device = context.of_device(context.layers.as_ref(), |device| device.index);
                device.map(|device| ModuleTables::then(device, self.alike))
            }
        };
        self.is_recomputed = subject.as_ref().is_some_and(rows::is_recomputed);
        self.subject = subject;
        let Some(subject) = &self.subject else {
            return TableOf::<Self>::default();
        };
        if let ([only], false) = (&subject.modules[..], self.has_rows) {
            // A model is one root module: open it to show its submodules.
            query.open.insert(ModuleKey::Module(clean(&only.name)));
        }
        self.has_rows |= !subject.modules.is_empty();
        rows::table(self, subject, query)
    }

    fn keys_beneath(&self, row: &RowOf<Self>, _context: &ProcessContext) -> Vec<ModuleKey> {
        let path = match &row.key {
            ModuleKey::Module(path) => path.as_str(),
            _ => "",
        };
        let modules = self.subject.as_ref().map(|subject| &subject.modules[..]);
        rows::keys_beneath(modules.unwrap_or_default(), path)
    }

    fn handle(
        &mut self,
        event: InputEvent,
        state: &mut TableState<ModuleKey>,
        _context: &ProcessContext,
    ) -> Reaction {
        match event {
            InputEvent::Iteration(by) if self.iteration.is_some() => {
                return self.go_iteration(by, state);
            }
            InputEvent::Regroup => {
                self.alike = match self.alike {
                    Alike::Folded => Alike::Each,
                    Alike::Each => Alike::Folded,
                };
            }
            _ => return Reaction::Ignored,
        }
        Reaction::Done
    }

    fn account(&self, _context: &ProcessContext) -> Option<String> {
        let subject = self.subject.as_ref()?;
        let mut text = subject::account(subject);
        if self.alike == Alike::Each && subject.knows_modules != Some(false) {
            text.push_str("   one by one (i)");
        }
        Some(text)
    }

    fn nothing(screen: &TableScreen<Self>, context: &ProcessContext) -> Option<[Note; 2]> {
        let ModuleList {
            iteration, subject, ..
        } = &screen.content;
        let has_data = match iteration {
            None => context.modules.is_some(),
            Some(_) => context.layers.is_some(),
        };
        let filter = &screen.state.query.filter;
        let (first, second) = match subject {
            None if !has_data => ("Waiting for the first table of modules.", ""),
            None => (
                "No modules on this device.",
                "They exist for PyTorch's allocators, not for calls into CUDA.",
            ),
            Some(_) if filter.is_active() && screen.table.rows.is_empty() => {
                let second = format!("/{}/   Esc shows all modules.", clean(filter.pattern()));
                return Some(["No module matches the filter.".into(), second.into()]);
            }
            Some(subject) if subject.knows_modules == Some(false) => (
                "No call of a torch.nn.Module was seen.",
                "The program makes none, or memprobe cannot see its modules.",
            ),
            Some(subject) => match &subject.moment {
                Some(then) if then.iteration.is_none() => (
                    "No iteration yet.",
                    "An optimizer step ends one, or zero_grad() or a batch starts one.",
                ),
                Some(then) if !then.is_stored => (
                    "The memory of modules in this iteration is gone.",
                    "] leads to later ones.",
                ),
                _ => return None,
            },
        };
        Some([first.into(), second.into()])
    }

    fn total(&self, _context: &ProcessContext) -> Option<(i128, &'static str)> {
        let subject = self.subject.as_ref()?;
        match &subject.moment {
            None => Some((self.allocated(), "allocated")),
            Some(then) if then.is_stored => {
                Some((self.allocated(), "allocated at the peak of the iteration"))
            }
            // An iteration no longer kept has no sum.
            Some(_) => None,
        }
    }

    fn detail(&self, row: &RowOf<Self>, _wide: usize, _cut: &str) -> Vec<String> {
        vec![subject::summary(row)]
    }
}
