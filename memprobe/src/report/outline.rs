//! Tree of modules as rows of text, each below its parent.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::attribution::modules::{Additive, ModuleRow};
use crate::report::{ReportOptions, RowLimit};
use crate::view::{OfModule, clean, counted, folded};

const DEEPEST_INDENT: usize = 16;

pub(super) struct OutlineRow<S> {
    /// 0 for an outermost module.
    pub(super) depth: usize,
    /// Such as `GPT.layers.0..23`.
    pub(super) path: String,
    /// Indented name within its parent, for text.
    pub(super) name: String,
    pub(super) own: S,
    pub(super) total: S,
}

impl<S: Copy> OutlineRow<S> {
    pub(super) fn figures(&self) -> OfModule<S> {
        OfModule {
            total: self.total,
            own: self.own,
        }
    }

    pub(super) fn other(name: String, said: S) -> Self {
        Self {
            depth: 0,
            path: String::new(),
            name,
            own: said,
            total: said,
        }
    }
}

/// Returns one row per module, in the order of the model.
pub(super) fn each<S: Copy>(
    modules: Vec<ModuleRow<S>>,
    options: &ReportOptions,
) -> Vec<OutlineRow<S>> {
    let mut all = Vec::new();
    push(modules, 0, "", options, &mut all);
    all
}

fn push<S: Copy>(
    rows: Vec<ModuleRow<S>>,
    depth: usize,
    path: &str,
    options: &ReportOptions,
    into: &mut Vec<OutlineRow<S>>,
) {
    if options.depth.is_some_and(|most| depth > most) {
        return;
    }
    for row in rows {
        let between = if path.is_empty() { "" } else { "." };
        let name = clean(&row.name);
        let path = format!("{path}{between}{name}");
        let indent = "  ".repeat(depth.min(DEEPEST_INDENT));
        into.push(OutlineRow {
            depth,
            path: path.clone(),
            name: match row.count {
                1 => format!("{indent}{name}"),
                count => format!("{indent}{name} ({count})"),
            },
            own: row.own,
            total: row.total,
        });
        push(row.parts, depth + 1, &path, options, into);
    }
}

/// Rows for text: the highest-ranked modules in the order of the model, then one row with the own
/// bytes of the others.
pub(super) fn for_people<S, R>(
    modules: Vec<ModuleRow<S>>,
    options: &ReportOptions,
    rank: impl Fn(&S) -> R,
) -> Vec<OutlineRow<S>>
where
    S: Copy + Default + Additive,
    R: Ord,
{
    let all = each(folded(modules, options.alike), options);
    let mut ranked: Vec<usize> = (0..all.len()).collect();
    ranked.sort_by_key(|at| Reverse(rank(&all[*at].total)));
    if let RowLimit::Rows(most) = options.top {
        ranked.truncate(most);
    }
    let top: HashSet<usize> = ranked.into_iter().collect();
    let (shown, hidden): (Vec<_>, Vec<_>) = all
        .into_iter()
        .enumerate()
        .partition(|(at, _)| top.contains(at));
    let mut shown: Vec<OutlineRow<S>> = shown.into_iter().map(|(_, module)| module).collect();
    if !hidden.is_empty() {
        let modules = counted(hidden.len() as u64, "other module");
        let own = hidden.iter().map(|(_, module)| &module.own);
        let own = own.fold(S::default(), S::and);
        shown.push(OutlineRow::other(
            format!("({modules}, without their submodules)"),
            own,
        ));
    }
    shown
}
