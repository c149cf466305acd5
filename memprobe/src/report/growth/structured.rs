//! What grows, for other programs. Numbers are bytes; unknown is null (or empty).

use serde::Serialize;

use super::OnDevice;
use crate::event::DeviceIndex;
use crate::model::why::growth::{Growth, Rate, Step, Suspect};
use crate::model::why::parts::Part;
use crate::report::peak::place_name;
use crate::report::structured::{Where, known_device, place_kind, what_kind};

#[derive(Serialize)]
pub(super) struct Device<'a> {
    device: Option<DeviceIndex>,
    /// What rates are by: `iteration` or `second`.
    per: &'static str,
    /// Iterations, or seconds, a step.
    step: f64,
    /// Steps that were looked at; with fewer than `needed_steps` nobody is named.
    steps: usize,
    /// Those before, which were left out.
    left_out: usize,
    needed_steps: usize,
    /// What somebody must have gained to be named.
    least_growth: u64,
    suspects: Vec<Row<'a>>,
}

/// One row. `by` is `total`, `line`, `module` or `tensor`: each is the same memory, told apart in another way. What else is known of a suspect
/// is that of its part which gained most.
#[derive(Default, Serialize)]
pub(super) struct Row<'a> {
    device: Option<DeviceIndex>,
    by: &'static str,
    per: &'static str,
    bytes: f64,
    blocks: Option<f64>,
    /// In which share of the steps it grew, from 0 to 1.
    grew: f64,
    first: u64,
    last: u64,
    kind: Option<&'static str>,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
    reason: Option<&'a str>,
    /// The node of autograd's graph, for `backward_of`.
    node: Option<&'a str>,
    module: Option<String>,
    shape: Option<String>,
    dtype: Option<String>,
    r#use: Option<String>,
}

pub(super) const HEADINGS: [&str; 18] = [
    "device", "by", "per", "bytes", "blocks", "grew", "first", "last", "kind", "file", "line",
    "function", "reason", "node", "module", "shape", "dtype", "use",
];

/// A device in a document.
pub(super) fn device<'a>(on: &'a OnDevice<'a>) -> Device<'a> {
    let growth = &on.growth;
    Device {
        device: known_device(on.device.index),
        per: per(growth),
        step: match growth.step {
            Step::Iterations(iterations) => iterations,
            Step::Window(nanoseconds) => nanoseconds as f64 / 1e9,
        },
        steps: growth.steps,
        left_out: growth.left_out,
        needed_steps: growth.needed,
        least_growth: growth.least.0,
        suspects: rows(on),
    }
}

fn per(growth: &Growth) -> &'static str {
    match growth.step {
        Step::Iterations(_) => "iteration",
        Step::Window(_) => "second",
    }
}

/// The rows of a device.
pub(super) fn rows<'a>(on: &'a OnDevice<'a>) -> Vec<Row<'a>> {
    let OnDevice { device, growth } = on;
    let row = |by, rate: &Rate| bare(device.index, by, per(growth), rate);
    let total = growth.total.iter().map(|rate| Row {
        blocks: None,
        ..row("total", rate)
    });
    let lines = growth.lines.iter();
    let lines = lines.map(|it| named(it, row("line", &it.rate)));
    let modules = growth.modules.iter();
    let modules = modules.map(|it| named(it, row("module", &it.rate)));
    let tensors = growth.tensors.iter();
    let tensors = tensors.map(|it| named(it, row("tensor", &it.rate)));
    total.chain(lines).chain(modules).chain(tensors).collect()
}

fn named<'a, K>(suspect: &'a Suspect<K>, row: Row<'a>) -> Row<'a> {
    let Part { origin, what } = &suspect.part;
    let at = Where::of(&origin.site);
    let place = place_kind(&origin.place);
    Row {
        kind: Some(match row.by {
            "line" => origin.site.as_str(),
            "module" => place,
            _ => what_kind(what),
        }),
        file: at.file,
        line: at.line,
        function: at.function,
        reason: at.reason,
        node: at.node,
        module: (place == "module").then(|| place_name(&origin.place)),
        shape: what.shape().map(ToString::to_string),
        dtype: what.shape().map(|shape| shape.dtype.to_string()),
        r#use: what.purpose().map(ToString::to_string),
        ..row
    }
}

fn bare<'a>(device: DeviceIndex, by: &'static str, per: &'static str, rate: &Rate) -> Row<'a> {
    Row {
        device: known_device(device),
        by,
        per,
        bytes: rate.bytes,
        blocks: Some(rate.blocks),
        grew: rate.grew,
        first: rate.first.0,
        last: rate.last.0,
        ..Row::default()
    }
}
