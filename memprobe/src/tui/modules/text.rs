//! Texts about the modules of a device: totals, and a summary of each row.

use super::super::table_screen::RowOf;
use super::ModuleList;
use super::rows::ModuleKey;
use super::subject::{IterationShown, ModuleFigures, ModuleTables};
use crate::attribution::tables::{Category, CoverageStart, Layer, ModuleScope, Pass, Sums};
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::view::{count, counted, iteration, iterations_by, peak, percent};

pub fn account(subject: &ModuleTables) -> String {
    match &subject.moment {
        None => now(subject),
        Some(then) => iteration_of(then, subject),
    }
}

fn now(subject: &ModuleTables) -> String {
    let allocated = subject.allocated;
    if subject.knows_modules == Some(false) {
        return format!(
            "  allocated {}   no call of a module was seen",
            human(allocated)
        );
    }
    let rows = subject.modules.iter();
    let modules: u64 = rows.map(|row| row.total.bytes().0).sum();
    format!(
        "  allocated {}   by modules {} ({})   {} {}",
        human(allocated),
        human(Bytes(modules)),
        percent(modules.into(), allocated.0.into()),
        peak(subject.since),
        human(subject.peak),
    )
}

/// Describes the iteration: number, epoch, peak, and bytes at its end.
fn iteration_of(then: &IterationShown, subject: &ModuleTables) -> String {
    let Some(row) = &then.iteration else {
        return format!("  {}", iterations_by(then.source));
    };
    let mut text = format!("  iteration {}", iteration(row.number, row.kind));
    if let Some((first, last)) = then.whole {
        text.push_str(&format!(" of {first} to {last}"));
    }
    if let Some(epoch) = row.epoch {
        text.push_str(&format!(", epoch {epoch}"));
    }
    text.push_str(&format!(
        "   peak {}   at its end {}, cached {}",
        human(subject.peak),
        human(row.end.allocated),
        human(row.end.cached()),
    ));
    text
}

pub fn summary(row: &RowOf<ModuleList>) -> String {
    let what = match &row.key {
        ModuleKey::Module(path) => path.clone(),
        ModuleKey::Before(CoverageStart::Opening) => {
            return "live when the process was opened: t reads its category".into();
        }
        ModuleKey::Before(CoverageStart::Attach) => {
            return "live when memprobe attached: its modules are unknown".into();
        }
        ModuleKey::Unaccounted => {
            return "the allocator's total less all known blocks: events were lost".into();
        }
        ModuleKey::Other(ModuleScope::Outside) => {
            "outside module calls: parameters, optimizers, losses".to_owned()
        }
        ModuleKey::Other(ModuleScope::BackwardUnknown) => {
            "backward, through operations of unknown modules".to_owned()
        }
        ModuleKey::Other(_) => row.data.name.clone(),
    };
    match &row.data.figures {
        None => what,
        Some((ModuleFigures::Now(own), ModuleFigures::Now(total))) => {
            summary_now(what, row, own, total)
        }
        Some((own, ModuleFigures::Then(total))) => summary_then(what, own.bytes(), total),
        // Impossible: both figures are of the same kind.
        Some((ModuleFigures::Then(_), ModuleFigures::Now(_))) => what,
    }
}

fn summary_now(what: String, row: &RowOf<ModuleList>, own: &Sums, total: &Sums) -> String {
    let mut facts = vec![what, format!("own {}", human(own.all.live))];
    facts.push(match total.all.peak {
        Some(peak) => format!("peak {}", human(peak)),
        None => format!("{} in one row: no common peak", count(row.data.count)),
    });
    let then = total.all.at_peak;
    facts.push(format!("{} at the device's peak", human(then)));
    let again = total.pass(Pass::Recompute).live;
    if again > Bytes(0) {
        facts.push(format!("{} computed again", human(again)));
    }
    facts.push(counted(total.all.live_blocks, "block"));
    facts.join("   ")
}

/// Lists all categories with bytes, whether or not they have a column.
fn summary_then(what: String, own: Bytes, total: &Layer) -> String {
    let mut facts = vec![what, format!("own {}", human(own))];
    let held = Category::ALL.iter();
    let held = held.map(|category| (category.as_str(), total.of(*category)));
    let held = held.filter(|(_, bytes)| *bytes > 0);
    facts.extend(held.map(|(name, bytes)| format!("{name} {}", human(Bytes(bytes)))));
    facts.join("   ")
}
