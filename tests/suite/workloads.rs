//! The workloads that are recorded from both sides, as data: what each runs, and what must have
//! happened in it for a comparison to mean something.

use crate::rehearsal::BothSides;

/// A training script that is compared event by event.
#[derive(Debug)]
pub struct Workload {
    /// What people call it.
    pub name: &'static str,
    /// The script in `tests/workloads`, and its arguments.
    pub command: &'static [&'static str],
    /// Variables of the simulated CUDA.
    pub settings: &'static [(&'static str, &'static str)],
    /// What must have been compared.
    pub least: Least,
}

/// What must have happened for a comparison to mean something.
#[derive(Debug)]
pub struct Least {
    /// Stacks of Python threads.
    pub stacks: usize,
    /// Events of autograd's threads.
    pub backward: usize,
    /// Events by what they are.
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

/// Every workload.
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
    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        WORKLOADS.iter().find(|workload| workload.name == name)
    }
}

impl Least {
    /// What of this is missing in a run, in words.
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
