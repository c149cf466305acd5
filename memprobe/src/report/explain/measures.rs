//! Measures against a full GPU, each with the bytes that it would give back.

use super::{DeviceExplanation, OwnedBy, PartId};
use crate::estimate::what_if::WhatIfDevice;
use crate::event::Bytes;

/// Fewest bytes that make a measure worth a line, as a fraction of what the process reserved: 1/200.
const LEAST_SHARE: u64 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum MeasureId {
    EmptyCache,
    DropRetainer,
    FreeGradients,
    ExpandableSegments,
}

impl MeasureId {
    /// Key in JSON.
    pub const fn key(self) -> &'static str {
        self.into_str()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    pub id: MeasureId,
    pub bytes: Bytes,
    /// True if it may give back less.
    pub at_most: bool,
    /// Action of the user.
    pub action: String,
    /// Limits of the figure.
    pub because: &'static str,
}

/// Classes whose contents a program may drop: modules and optimizers need theirs.
const CONTAINERS: [&str; 7] = [
    "OrderedDict",
    "defaultdict",
    "deque",
    "dict",
    "list",
    "set",
    "tuple",
];

/// Computes the measures, most bytes first.
pub(super) fn measures(device: &DeviceExplanation) -> Vec<Measure> {
    let mut measures = vec![empty_cache(device)];
    // Of a peak nothing is known of what keeps it alive.
    if device.owned == OwnedBy::Retainer {
        measures.push(Measure {
            id: MeasureId::FreeGradients,
            bytes: device.part(PartId::Gradients),
            at_most: false,
            action: "optimizer.zero_grad(set_to_none=True)".to_owned(),
            because: "to PyTorch's cache, until the next backward",
        });
        measures.extend(containers(device).take(2));
    }
    let least = device.totals.reserved.0 / LEAST_SHARE;
    measures.retain(|measure| measure.bytes.0 > least);
    measures.sort_by_key(|measure| std::cmp::Reverse(measure.bytes));
    measures
}

/// Adds what expandable segments would have saved at the peak of reserved memory, by a replay of the requests.
pub(super) fn add_expandable_segments(device: &mut DeviceExplanation, replayed: &WhatIfDevice) {
    let saved = replayed
        .recorded
        .reserved
        .0
        .saturating_sub(replayed.simulated.reserved.0);
    if saved <= device.totals.reserved.0 / LEAST_SHARE {
        return;
    }
    device.measures.push(Measure {
        id: MeasureId::ExpandableSegments,
        bytes: Bytes(saved),
        at_most: !replayed.is_exact(),
        action: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_owned(),
        because: "less reserved at the peak, by a replay of the requests",
    });
    device
        .measures
        .sort_by_key(|measure| std::cmp::Reverse(measure.bytes));
}

/// The whole-free segments and pages, if the segments are known; else no more than what is cached.
fn empty_cache(device: &DeviceExplanation) -> Measure {
    let returnable = device.returnable;
    Measure {
        id: MeasureId::EmptyCache,
        bytes: returnable.unwrap_or_else(|| device.part(PartId::Cached)),
        at_most: returnable.is_none(),
        action: "torch.cuda.empty_cache()".to_owned(),
        because: match returnable {
            Some(_) => "segments without a live block",
            None => "segments with a live block stay",
        },
    }
}

/// Containers of Python that keep memory which nothing else keeps. A server needs its KV cache.
fn containers(device: &DeviceExplanation) -> impl Iterator<Item = Measure> {
    let owners = device.owners.iter();
    let owners = owners.filter(|owner| owner.kv_cache == Bytes(0));
    owners.filter_map(|owner| {
        let (name, class) = (owner.name.as_ref()?, owner.class.as_ref()?);
        CONTAINERS.contains(&&**class).then(|| Measure {
            id: MeasureId::DropRetainer,
            bytes: owner.exclusive.unwrap_or_default(),
            at_most: false,
            action: format!("without {name}"),
            because: "to PyTorch's cache",
        })
    })
}
