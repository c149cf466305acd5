//! Screens of modules and layers of one process: module trees with live memory, or with memory in an
//! iteration.

mod rows;
#[cfg(test)]
mod screens;
mod subject;
mod text;

use super::Command;
use super::attribution::AttributionQuery;
use super::context::ProcessContext;
use super::input::InputEvent;
use super::table_screen::{
    Cell, Column, Content, Cut, KeyHint, Query, Reaction, RowOf, ScreenRequest, TableOf,
    TableScreen, TableState,
};
use super::tabs::Tab;
use super::theme::Theme;
use crate::attribution::tables::{Category, IterationChoice, Pass, Sums};
use crate::event::Bytes;
use crate::view::{clean, count};
use rows::{ModuleData, RowKey};
use subject::{Figures, Subject};

/// Grouping of modules that differ only in their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Alike {
    /// One row for all.
    #[default]
    Together,
    /// One row each.
    Apart,
}

/// Kind of data shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ModulesView {
    /// Live memory of modules, by the pass that allocated it.
    #[default]
    Now,
    /// Memory of modules at the peak of an iteration, by category.
    Then,
}

type ModuleColumn = Column<Modules>;

const NOW: [ModuleColumn; 10] = [
    ModuleColumn::number("LIVE", 9, 0, |_, row| Cell::ShortBytes(row.data.live))
        .styled(Theme::strong),
    ModuleColumn::number("OWN", 8, 60, own),
    ModuleColumn::number("PEAK", 8, 44, |_, row| sums(row, |sums| sums.all.peak)),
    ModuleColumn::number("AT PEAK", 8, 96, |_, row| {
        Cell::ShortBytes(row.data.at_peak)
    }),
    ModuleColumn::number("FORWARD", 8, 70, |_, row| pass(row, Pass::Forward)),
    ModuleColumn::number(RECOMPUTE, 9, 88, |_, row| pass(row, Pass::Recompute)),
    ModuleColumn::number("BACKWARD", 8, 70, |_, row| pass(row, Pass::Backward)),
    ModuleColumn::number("SHARE", 6, 78, share),
    ModuleColumn::number("BLOCKS", 8, 110, |_, row| match &row.data.figures {
        Some((_, Figures::Now(sums))) => Cell::Count(sums.all.live_blocks),
        _ => Cell::Unknown,
    }),
    ModuleColumn::name("MODULE", 0, Cut::Middle, name),
];

const THEN: [ModuleColumn; 11] = [
    ModuleColumn::number("AT PEAK", 9, 0, |_, row| Cell::ShortBytes(row.data.live))
        .styled(Theme::strong),
    ModuleColumn::number("OWN", 8, 130, own),
    ModuleColumn::number("ACTIVATIONS", 11, 40, |_, row| {
        of(row, &[Category::Activation])
    }),
    ModuleColumn::number("WEIGHTS", 8, 54, |_, row| of(row, &[Category::Parameter])),
    ModuleColumn::number("GRADIENTS", 9, 64, |_, row| of(row, &[Category::Gradient])),
    ModuleColumn::number("INTERMED.", 9, 74, |_, row| {
        of(row, &[Category::IntermediateGradient])
    }),
    ModuleColumn::number("OPTIMIZER", 9, 92, |_, row| {
        of(row, &[Category::OptimizerState])
    }),
    ModuleColumn::number("INPUTS", 8, 112, |_, row| of(row, &[Category::Input])),
    ModuleColumn::number("OTHER", 8, 102, |_, row| of(row, &UNNAMED)),
    ModuleColumn::number("SHARE", 6, 122, share),
    ModuleColumn::name("MODULE", 0, Cut::Middle, name),
];

/// Head of the column that is shown only if memory was recomputed.
const RECOMPUTE: &str = "RECOMPUTE";

/// Categories without a column.
const UNNAMED: [Category; 3] = [Category::Temporary, Category::Workspace, Category::Unknown];

fn own(_: &Modules, row: &RowOf<Modules>) -> Cell {
    let own = row.data.figures.as_ref().map(|(own, _)| own.bytes());
    Cell::short_bytes(own)
}

fn share(modules: &Modules, row: &RowOf<Modules>) -> Cell {
    Cell::Share(row.data.live, modules.allocated())
}

/// Returns the name of a row, with the number of modules if it stands for several.
fn name(_: &Modules, row: &RowOf<Modules>) -> Cell {
    let ModuleData {
        name, count: of, ..
    } = &row.data;
    Cell::Text(match of {
        1 => name.clone(),
        several => format!("{name} ({})", count(*several)),
    })
}

fn sums(row: &RowOf<Modules>, figure: impl Fn(&Sums) -> Option<Bytes>) -> Cell {
    match &row.data.figures {
        Some((_, Figures::Now(sums))) => Cell::short_bytes(figure(sums)),
        _ => Cell::Unknown,
    }
}

fn pass(row: &RowOf<Modules>, pass: Pass) -> Cell {
    sums(row, |sums| Some(sums.pass(pass).live))
}

/// Returns the bytes of categories in an iteration.
fn of(row: &RowOf<Modules>, categories: &[Category]) -> Cell {
    let total = row.data.figures.as_ref().map(|(_, total)| total);
    let bytes = total.and_then(|total| {
        let bytes = categories.iter().map(|category| total.of(*category));
        bytes.sum::<Option<u64>>()
    });
    Cell::short_bytes(bytes.map(Bytes))
}

/// Modules of the device shown.
#[derive(Default)]
pub struct Modules {
    view: ModulesView,
    /// Iteration shown.
    which: IterationChoice,
    alike: Alike,
    subject: Option<Subject>,
    /// True if memory was recomputed.
    is_recomputed: bool,
    /// True after the first table, which opens the only root module.
    has_rows: bool,
}

impl Modules {
    /// Creates the content of the screen of layers.
    pub fn of_iterations() -> Self {
        Self {
            view: ModulesView::Then,
            ..Self::default()
        }
    }

    /// Returns the attribution table that the screen needs.
    pub const fn explains(&self) -> AttributionQuery {
        match self.view {
            ModulesView::Now => AttributionQuery::Modules,
            ModulesView::Then => AttributionQuery::Layers(self.which),
        }
    }

    fn allocated(&self) -> i128 {
        let subject = self.subject.as_ref();
        subject.map_or(0, |subject| subject.allocated.0.into())
    }

    /// Goes to another iteration. Going to the last one follows the latest from then on.
    fn go_iteration(&mut self, by: isize, state: &mut TableState<RowKey>) -> Reaction {
        let subject = self.subject.as_ref();
        let Some(moment) = subject.and_then(|subject| subject.moment.as_ref()) else {
            return Reaction::Done;
        };
        let (Some(iteration), Some((first, last))) = (&moment.iteration, moment.whole) else {
            return Reaction::Note("no iteration has ended yet".into());
        };
        let number = iteration.number.saturating_add_signed(by as i64);
        self.which = match number {
            _ if number >= last => IterationChoice::Latest,
            _ => IterationChoice::Numbered(number.max(first)),
        };
        if number < first {
            state.note = Some("older iterations are gone: `memprobe record` keeps all".into());
        }
        Reaction::Request(ScreenRequest::Send(Command::Explain(self.explains())))
    }
}

impl Content for Modules {
    type Key = RowKey;
    type Data = ModuleData;
    type Context = ProcessContext;

    const SEARCHED: &'static str = "paths of modules";
    const NOTHING_BENEATH: &'static str = "nothing beneath: no submodule allocated memory";

    fn tab(&self) -> Option<Tab> {
        Some(match self.view {
            ModulesView::Now => Tab::Modules,
            ModulesView::Then => Tab::Layers,
        })
    }

    fn columns(&self) -> &'static [Column<Self>] {
        match self.view {
            ModulesView::Now => &NOW,
            ModulesView::Then => &THEN,
        }
    }

    fn shows(&self, column: &Column<Self>) -> bool {
        self.is_recomputed || column.head != RECOMPUTE
    }

    fn build(&mut self, query: &mut Query<RowKey>, context: &ProcessContext) -> TableOf<Self> {
        let subject = match self.view {
            ModulesView::Now => {
                let device = context.of_device(&context.modules, |device| device.index);
                device.map(|device| Subject::now(device, self.alike))
            }
            ModulesView::Then => {
                let device = context.of_device(&context.layers, |device| device.index);
                device.map(|device| Subject::then(device, self.alike))
            }
        };
        self.is_recomputed = subject.as_ref().is_some_and(rows::is_recomputed);
        self.subject = subject;
        let Some(subject) = &self.subject else {
            return TableOf::<Self>::default();
        };
        if let ([only], false) = (&subject.modules[..], self.has_rows) {
            // A model is one root module: open it to show its submodules.
            query.open.insert(RowKey::Module(clean(&only.name)));
        }
        self.has_rows |= !subject.modules.is_empty();
        rows::table(self, subject, query)
    }

    fn keys_beneath(&self, row: &RowOf<Self>, _context: &ProcessContext) -> Vec<RowKey> {
        let path = match &row.key {
            RowKey::Module(path) => path.as_str(),
            _ => "",
        };
        let modules = self.subject.as_ref().map(|subject| &subject.modules[..]);
        rows::keys_beneath(modules.unwrap_or_default(), path)
    }

    fn handle(
        &mut self,
        event: InputEvent,
        state: &mut TableState<RowKey>,
        _context: &ProcessContext,
    ) -> Reaction {
        match event {
            InputEvent::Iteration(by) if self.view == ModulesView::Then => {
                return self.go_iteration(by, state);
            }
            InputEvent::Regroup => {
                self.alike = match self.alike {
                    Alike::Together => Alike::Apart,
                    Alike::Apart => Alike::Together,
                };
            }
            _ => return Reaction::Ignored,
        }
        Reaction::Done
    }

    fn account(&self, _context: &ProcessContext) -> Option<String> {
        let subject = self.subject.as_ref()?;
        let mut text = text::account(subject);
        if self.alike == Alike::Apart && subject.knows_modules != Some(false) {
            text.push_str("   one by one (i)");
        }
        Some(text)
    }

    fn nothing(screen: &TableScreen<Self>, context: &ProcessContext) -> Option<(String, String)> {
        let Modules { view, subject, .. } = &screen.content;
        let has_data = match view {
            ModulesView::Now => context.modules.is_some(),
            ModulesView::Then => context.layers.is_some(),
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
                return Some(("No module matches the filter.".to_owned(), second));
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
        Some((first.to_owned(), second.to_owned()))
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
        vec![text::summary(row)]
    }

    fn own_keys(&self) -> &'static [KeyHint] {
        match self.view {
            ModulesView::Now => &OWN_KEYS[..3],
            ModulesView::Then => &OWN_KEYS,
        }
    }

    fn help(&self) -> [&'static str; 2] {
        match self.view {
            ModulesView::Now => [KEYS, NOW_TERMS],
            ModulesView::Then => [KEYS, THEN_TERMS],
        }
    }
}

const OWN_KEYS: [KeyHint; 4] = [
    ("Enter", "open", 2),
    ("*", "open all", 5),
    ("i", "alike", 5),
    ("[]", "iteration", 2),
];

const KEYS: &str = "\
Enter       open the row, or close it; so does a click on it
Right Left  open; close or go up the tree    *  open all beneath
i           modules that differ only in a number: one row, or each
";

const NOW_TERMS: &str = "\
LIVE        live bytes of the module and its submodules
OWN         of these, without submodules
PEAK        largest LIVE; unknown for several modules in one row
AT PEAK     bytes at the device's peak since attach or opening
FORWARD     live bytes allocated in forward passes
RECOMPUTE   live bytes of recomputation (activation checkpointing)
BACKWARD    live bytes of backward passes, by forward module
SHARE       share of all allocated bytes
outside     parameters are made outside of calls: t lists them
";

const THEN_TERMS: &str = "\
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
";
