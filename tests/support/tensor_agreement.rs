//! Compares a snapshot with the process's own account, row by row.

use std::collections::{BTreeMap, BTreeSet};

use crate::paused_workload::{Held, Saved, Truth};
use crate::snapshot::{Row, Snapshot};

/// Result of a comparison.
#[derive(Debug, Default)]
pub struct TensorAgreement {
    /// Differences in words.
    pub differences: Vec<String>,
    /// Tensors present on both sides.
    pub tensors: usize,
    /// Compared names.
    pub names: usize,
    /// Tensors that only the graph holds, present on both sides.
    pub saved: usize,
    /// Rows of memory without a tensor.
    pub blocks: usize,
}

/// Devices that a snapshot covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Devices {
    /// All but the CPU.
    Cuda,
    /// Also the CPU (`--cpu`).
    WithCpu,
}

/// Compares a snapshot with the truth.
pub fn compare(truth: &Truth, snapshot: &Snapshot, devices: Devices) -> TensorAgreement {
    let mut comparison = Comparison {
        truth,
        devices,
        rows: snapshot
            .tensors
            .iter()
            .filter_map(|row| Some((row.object.filter(|&object| object != 0)?, row)))
            .collect(),
        found: TensorAgreement::default(),
    };
    comparison.every_tensor();
    comparison.every_row(snapshot);
    comparison.everything_saved(snapshot);
    comparison.sums(snapshot);
    comparison.found
}

struct Comparison<'a> {
    truth: &'a Truth,
    devices: Devices,
    /// Rows of tensors by address of the `TensorImpl`.
    rows: BTreeMap<u64, &'a Row>,
    found: TensorAgreement,
}

impl Comparison<'_> {
    fn differ(&mut self, difference: String) {
        self.found.differences.push(difference);
    }

    /// Checks that every tensor of the process has a correct row.
    fn every_tensor(&mut self) {
        let truth = self.truth;
        for held in &truth.tensors {
            let wanted = held.device.starts_with("cuda") || self.devices == Devices::WithCpu;
            match self.rows.get(&held.object).copied() {
                Some(row) => self.tensor(held, row),
                None if wanted => self.differ(format!("missing: {}", in_words(held))),
                None => {}
            }
        }
    }

    fn tensor(&mut self, held: &Held, row: &Row) {
        self.found.tensors += 1;
        for difference in differences(held, row) {
            self.differ(format!("{difference} of {}", in_words(held)));
        }
        if let Some(kind) = kind_of(held) {
            if row.kind != kind {
                let row = &row.kind;
                self.differ(format!("{row} for {kind}: {}", in_words(held)));
            }
        } else if !["tensor", "saved"].contains(&row.kind.as_str()) {
            self.differ(format!("{} for a tensor: {}", row.kind, in_words(held)));
        }
        self.names(held, row);
    }

    /// Checks its names, as far as the process knows them.
    fn names(&mut self, held: &Held, row: &Row) {
        let texts = row.texts();
        if row.name.as_deref() != texts.first().copied() {
            self.differ(format!("its name is not its first: {row:?}"));
        }
        let path = |name: &str| texts.iter().any(|text| is_path(text, name));
        for name in held.parameter.iter().chain(&held.buffer) {
            self.found.names += 1;
            if !path(name) {
                self.differ(format!("not called {name}: {texts:?}"));
            }
        }
        let called = |object: u64| self.rows.get(&object).and_then(|row| row.name.clone());
        let mut wanted = Vec::new();
        for &object in &held.gradient_of {
            wanted.extend(called(object).map(|name| format!("{name}.grad")));
        }
        for (optimizer, key, object) in &held.state {
            let name = called(*object).unwrap_or_default();
            wanted.push(format!("{optimizer}.{key}[{name}]"));
        }
        for name in wanted {
            self.found.names += 1;
            let is_it = |text: &&str| match name.strip_prefix('*') {
                Some(end) => text.ends_with(end) && text.len() > end.len(),
                None => **text == *name,
            };
            if !texts.iter().any(is_it) {
                self.differ(format!("not called {name}: {texts:?}"));
            }
        }
    }

    /// Checks that every row exists in the process.
    fn every_row(&mut self, snapshot: &Snapshot) {
        for row in &snapshot.tensors {
            let object = row.object.unwrap_or_default();
            if row.is_block() {
                self.block(row);
            } else if self.truth.tensor(object).is_none() {
                self.without_python(row);
            }
        }
    }

    /// Checks that the graph saves a tensor that Python does not hold.
    fn without_python(&mut self, row: &Row) {
        let truth = self.truth;
        let is_saved_now = truth.saved.iter().any(|saved| is_saved(row, saved));
        let within = truth.within.iter().any(|part| is_saved(row, part));
        if is_saved_now && row.kind == "saved" {
            self.found.saved += 1;
        } else if is_saved_now && !within {
            self.differ(format!("a tensor of the graph is no saved one: {row:?}"));
        } else if !within {
            self.differ(format!("nobody in the process has it: {row:?}"));
        }
    }

    /// Checks that memory without a tensor is a live block, or a storage in one, that no tensor
    /// uses.
    fn block(&mut self, row: &Row) {
        self.found.blocks += 1;
        let Some(data) = row.storage else {
            return self.differ(format!("a block without an address: {row:?}"));
        };
        let mut blocks = self.truth.devices.iter().flat_map(|it| &it.blocks);
        let block = blocks.find(|(start, size, _)| (*start..start + size).contains(&data));
        let Some(&(start, size, _)) = block else {
            return self.differ(format!("no live block: {row:?}"));
        };
        let inside = |storage: u64| (start..start + size).contains(&storage);
        let looking = self.truth.tensors.iter().find(|held| {
            held.storage
                .is_some_and(|storage| storage.bytes > 0 && inside(storage.data))
        });
        if let Some(held) = looking {
            let held = in_words(held);
            self.differ(format!("a block with a tensor in it: {row:?}, {held}"));
        }
    }

    /// Checks that every saved tensor has a row with the operation that saves it.
    fn everything_saved(&mut self, snapshot: &Snapshot) {
        let truth = self.truth;
        let mut said = BTreeSet::new();
        for saved in &truth.saved {
            let Some(storage) = saved.storage.filter(|storage| storage.bytes > 0) else {
                continue;
            };
            if !saved.device.starts_with("cuda") || !said.insert((storage.data, &saved.op)) {
                continue;
            }
            let there = |row: &&Row| row.storage == Some(storage.data) && !row.is_block();
            let rows: Vec<&Row> = snapshot.tensors.iter().filter(there).collect();
            if rows.is_empty() {
                self.differ(format!("the graph keeps it, and no row does: {saved:?}"));
                continue;
            }
            // If only the graph holds the memory, the row names the operation.
            let owned = truth
                .tensors
                .iter()
                .any(|held| held.storage.is_some_and(|it| it.data == storage.data));
            let retainers = truth
                .saved
                .iter()
                .filter(|other| other.storage.is_some_and(|it| it.data == storage.data));
            let retainers: Vec<&str> = retainers.map(|saved| saved.op.as_str()).collect();
            let by = |row: &&Row| {
                let by = row.saved_by.as_deref();
                by.is_some_and(|by| retainers.iter().any(|retainer| by.contains(retainer)))
            };
            if !owned && !rows.iter().any(by) {
                self.differ(format!(
                    "that {retainers:?} keeps it is not said: {saved:?}, {rows:?}"
                ));
            }
        }
    }

    /// Checks that the rows of a device add up to the allocator's total, block by block.
    fn sums(&mut self, snapshot: &Snapshot) {
        for device in &self.truth.devices {
            let name = format!("cuda:{}", device.device);
            let totals = snapshot.totals.iter().find(|it| it.device == name);
            let said = totals.map(|totals| (totals.allocated, totals.remainder));
            if said != Some((Some(device.allocated), Some(0))) {
                self.differ(format!("the account of {name} is {totals:?}"));
            }
            let sum = snapshot.holds(&name);
            if sum != device.allocated {
                self.found.differences.push(format!(
                    "the rows of {name} add up to {sum}, the allocator says {}",
                    device.allocated
                ));
            }
            for &(start, size, _) in &device.blocks {
                let rows = snapshot.on(&name);
                let inside = rows.filter(|row| {
                    row.storage
                        .is_some_and(|data| (start..start + size).contains(&data))
                });
                let holds: u64 = inside.map(|row| row.allocated).sum();
                if holds != size {
                    self.found.differences.push(format!(
                        "the block of {size} at {start:#x} is held with {holds}"
                    ));
                }
            }
        }
    }
}

/// Returns the differences between a tensor and its row.
fn differences(held: &Held, row: &Row) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |what: &str, same: bool, theirs: String, ours: String| {
        if !same {
            found.push(format!("{what} {ours} for {theirs}"));
        }
    };
    // For other layouts the sizes may be unknown, but never wrong.
    let plain = held.layout == "strided" && held.shape.is_some();
    check(
        "shape",
        row.shape == held.shape || !plain && row.shape.is_none(),
        format!("{:?}", held.shape),
        format!("{:?}", row.shape),
    );
    check(
        "dtype",
        row.dtype.as_deref() == Some(&held.dtype),
        held.dtype.clone(),
        format!("{:?}", row.dtype),
    );
    check(
        "device",
        row.device == held.device,
        held.device.clone(),
        row.device.clone(),
    );
    check(
        "bytes",
        row.bytes == Some(held.bytes)
            || !(plain || held.layout.starts_with("sparse")) && row.bytes.is_none(),
        held.bytes.to_string(),
        format!("{:?}", row.bytes),
    );
    let storage = held.storage.filter(|storage| storage.data != 0);
    check(
        "storage",
        row.storage.filter(|&data| data != 0) == storage.map(|storage| storage.data),
        format!("{:x?}", held.storage),
        format!("{:x?}", row.storage),
    );
    check(
        "storage bytes",
        storage.is_none_or(|storage| row.storage_bytes == Some(storage.bytes)),
        format!("{:?}", held.storage),
        format!("{:?}", row.storage_bytes),
    );
    check(
        "requires_grad",
        row.requires_grad == held.requires_grad,
        held.requires_grad.to_string(),
        row.requires_grad.to_string(),
    );
    // PyTorch makes this one when it is asked for the node of a view whose base was changed in place.
    let is_made = held.view && held.grad_fn.as_deref() == Some("AsStridedBackward0");
    check(
        "grad_fn",
        row.grad_fn == held.grad_fn || is_made && row.grad_fn.is_none(),
        format!("{:?}", held.grad_fn),
        format!("{:?}", row.grad_fn),
    );
    check(
        "class",
        !held.python || row.class.as_deref() == Some(&held.class),
        held.class.clone(),
        format!("{:?}", row.class),
    );
    found
}

/// Returns the kind of a tensor if it is unambiguous.
fn kind_of(held: &Held) -> Option<&'static str> {
    if !held.parameter.is_empty() {
        Some("parameter")
    } else if !held.buffer.is_empty() {
        Some("buffer")
    } else if !held.state.is_empty() {
        Some("optimizer_state")
    } else if !held.gradient_of.is_empty() {
        Some("gradient")
    } else {
        None
    }
}

/// True if a name is this path, possibly below the name of a root.
fn is_path(text: &str, path: &str) -> bool {
    text == path
        || text
            .strip_suffix(path)
            .is_some_and(|root| root.ends_with('.'))
}

fn is_saved(row: &Row, saved: &Saved) -> bool {
    row.storage == saved.storage.map(|storage| storage.data)
        && row.shape.as_ref() == Some(&saved.shape)
        && row.dtype.as_ref() == Some(&saved.dtype)
}

fn in_words(held: &Held) -> String {
    format!(
        "{} {:?} {} {} {:?}{:?} at {:#x}",
        held.class,
        held.shape.as_deref().unwrap_or_default(),
        held.dtype,
        held.device,
        held.parameter,
        held.buffer,
        held.object
    )
}
