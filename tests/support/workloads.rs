//! Table of the workloads that are recorded from both sides, with the minimum numbers for a
//! meaningful comparison.

use crate::gated_workload::BothSides;

/// A training script that is compared event by event.
#[derive(Debug)]
pub struct Workload {
    /// Name on the command line and in the matrix.
    pub name: &'static str,
    /// Script in `tests/workloads`, and its arguments.
    pub command: &'static [&'static str],
    /// Environment variables of the simulated CUDA.
    pub settings: &'static [(&'static str, &'static str)],
    pub least: Least,
}

/// Minimum numbers for a meaningful comparison.
#[derive(Debug)]
pub struct Least {
    /// Python stacks.
    pub stacks: usize,
    /// Events of autograd's threads.
    pub backward: usize,
    /// Events by action.
    pub actions: &'static [(&'static str, usize)],
}

impl Least {
    const fn of(stacks: usize, backward: usize) -> Self {
        Self {
            stacks,
            backward,
            actions: &[],
        }
    }
}

pub const WORKLOADS: &[Workload] = &[
    Workload {
        name: "perceptron",
        command: &["mlp_adam.py", "--hidden", "512"],
        settings: &[],
        least: Least::of(400, 200),
    },
    Workload {
        name: "convolution",
        command: &["convnet.py"],
        settings: &[],
        least: Least::of(200, 50),
    },
    Workload {
        name: "transformer",
        command: &["transformer.py"],
        settings: &[],
        least: Least::of(200, 50),
    },
    Workload {
        name: "data loader",
        command: &["dataloader_pinned.py"],
        settings: &[],
        least: Least::of(50, 0),
    },
    Workload {
        name: "threads",
        command: &["threads.py"],
        settings: &[],
        least: Least::of(400, 0),
    },
    Workload {
        name: "generators",
        command: &["generators.py"],
        settings: &[],
        least: Least::of(50, 0),
    },
    Workload {
        name: "recursion",
        command: &["recursion.py"],
        settings: &[],
        least: Least::of(100, 0),
    },
    Workload {
        name: "out of memory",
        command: &["oom.py"],
        settings: &[],
        least: Least {
            stacks: 20,
            backward: 0,
            actions: &[("oom", 1), ("segment_free", 1)],
        },
    },
    Workload {
        name: "two devices",
        command: &["two_devices.py"],
        settings: &[("CUDASIM_DEVICES", "2")],
        least: Least::of(100, 0),
    },
];

impl Workload {
    /// Returns the workload of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        WORKLOADS.iter().find(|workload| workload.name == name)
    }
}

impl Least {
    /// Returns the first shortfall of a run, in words.
    pub fn missing(&self, both: &BothSides, stacks: usize, backward: usize) -> Option<String> {
        if stacks < self.stacks {
            return Some(format!("only {stacks} stacks were compared"));
        }
        if backward < self.backward {
            return Some(format!("only {backward} events of backward were compared"));
        }
        let absent = |(action, count): &&(&str, usize)| both.reference.count(action) < *count;
        let (action, _) = self.actions.iter().find(absent)?;
        Some(format!("too few events were {action}"))
    }
}
