//! What a block of the CPU is part of, by the stack that asked for it.
//!
//! Inferred from the names of PyTorch's own files and functions (torch@v2.15.0; the names are older than 2.0).

use crate::event::{Frame, Stack, StackKind};

/// What a program was doing when it asked for memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Phase {
    /// Anything but the others: making the model, and the forward pass.
    #[default]
    Forward,
    /// A backward pass.
    Backward,
    /// A step of an optimizer.
    Step,
    /// Loading data (`torch.utils.data`).
    Loading,
}

impl Phase {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Forward, Self::Backward, Self::Step, Self::Loading];
}

/// What is special about a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Nothing.
    Plain,
    /// It is asked for by `torch.nn.functional.dropout` itself.
    Dropout,
    /// A step of an optimizer takes one parameter after the other, and this is for one of them.
    Parameter(Together),
    /// It is an example for a batch, or belongs to the order of the examples.
    Sample,
    /// A thread without Python asked for it, which works for another (OpenMP's do): what goes on is what went on.
    Helper,
}

/// What becomes of the temporary tensors of a step where it takes all parameters at once, as it does on a GPU
/// (`foreach`; the functions `_multi_tensor_*` beside `_single_tensor_*` in torch/optim/*.py@v2.15.0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Together {
    /// Of two that a line makes one after the other, the second exists of all parameters at once, and the first not
    /// at all; nor does one that is alone (`_foreach_sqrt`, and the rest in place).
    Second,
    /// Each exists of all parameters at once.
    Each,
    /// As [`Self::Each`] for the first line that makes one; the others are in place.
    FirstLine,
    /// Nobody has looked.
    Unknown,
}

/// What a block is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    pub(super) phase: Phase,
    pub(super) part: Part,
}

impl Origin {
    /// Of a block whose stack is not known.
    pub(super) const UNKNOWN: Self = Self {
        phase: Phase::Forward,
        part: Part::Plain,
    };

    /// By a stack.
    pub(super) fn of(stack: &Stack) -> Self {
        // On the CPU a backward pass runs on the thread that asks for it, whose frames say so.
        let is_backward = match stack.kind {
            StackKind::Python => false,
            StackKind::Waiting { .. } => true,
            StackKind::Native | StackKind::Unknown { .. } => stack.context.node.is_some(),
        };
        let mut origin = Self::UNKNOWN;
        if stack.kind != StackKind::Python && !is_backward {
            origin.part = Part::Helper;
        }
        for (at, frame) in stack.frames.iter().enumerate() {
            let Some(file) = file_of_torch(frame) else {
                continue;
            };
            if at == 0 && file == "nn/functional.py" && &*frame.function == "dropout" {
                origin.part = Part::Dropout;
            }
            if is_backward {
                break;
            }
            // The innermost of these frames is what goes on: a closure that a step calls goes backward.
            if let Some(found) = told_by(&stack.frames, at, file) {
                origin.phase = found.phase;
                if found.part != Part::Plain {
                    origin.part = found.part;
                }
                break;
            }
        }
        if is_backward {
            origin.phase = Phase::Backward;
        }
        origin
    }
}

/// What a frame of a file of PyTorch says of all that it calls.
fn told_by(frames: &[Frame], at: usize, file: &str) -> Option<Origin> {
    let function = &*frames[at].function;
    let (phase, part) = match file {
        "autograd/graph.py" if function == "_engine_run_backward" => (Phase::Backward, Part::Plain),
        "autograd/__init__.py" if matches!(function, "backward" | "grad") => {
            (Phase::Backward, Part::Plain)
        }
        // Whoever fetches calls it.
        "utils/data/_utils/collate.py" => return None,
        "utils/data/_utils/fetch.py" => (Phase::Loading, fetched(frames, at)),
        _ if file.starts_with("utils/data/") => (Phase::Loading, Part::Sample),
        _ if file.starts_with("optim/") => (
            Phase::Step,
            match function.strip_prefix("_single_tensor_") {
                Some(optimizer) => Part::Parameter(together(optimizer)),
                None => Part::Plain,
            },
        ),
        _ => return None,
    };
    Some(Origin { phase, part })
}

/// `data = [self.dataset[index] for index in indices]` makes examples, and `return self.collate_fn(data)` a batch.
fn fetched(frames: &[Frame], at: usize) -> Part {
    let inner = at.checked_sub(1).map(|inner| &*frames[inner].function);
    match inner {
        Some("__getitem__" | "__getitems__" | "__next__" | "<listcomp>") => Part::Sample,
        _ => Part::Plain,
    }
}

fn together(optimizer: &str) -> Together {
    match optimizer {
        "adam" | "adamw" => Together::Second,
        "rmsprop" | "adadelta" => Together::Each,
        "sgd" => Together::FirstLine,
        _ => Together::Unknown,
    }
}

/// The path of a file of PyTorch's Python code below its package.
fn file_of_torch(frame: &Frame) -> Option<&str> {
    if frame.library.is_some() {
        return None;
    }
    let (_, file) = frame.file.rsplit_once("/torch/")?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Context;

    fn stack(frames: &[(&str, &str)]) -> Stack {
        let frame = |(file, function): &(&str, &str)| Frame {
            file: match file.strip_prefix("torch/") {
                Some(_) => format!("/v/lib/python3.13/site-packages/{file}").into(),
                None => (*file).into(),
            },
            line: 1,
            function: (*function).into(),
            library: None,
        };
        Stack {
            kind: StackKind::Python,
            frames: frames.iter().map(frame).collect(),
            truncated: false,
            context: Context::default(),
        }
    }

    fn origin(frames: &[(&str, &str)]) -> (Phase, Part) {
        let Origin { phase, part } = Origin::of(&stack(frames));
        (phase, part)
    }

    const FORWARD: (&str, &str) = ("/home/me/model.py", "forward");
    const BACKWARD: (&str, &str) = ("torch/autograd/graph.py", "_engine_run_backward");
    const STEP: (&str, &str) = ("torch/optim/adam.py", "step");

    #[test]
    fn the_innermost_part_of_pytorch_says_what_goes_on() {
        assert_eq!(origin(&[FORWARD]), (Phase::Forward, Part::Plain));
        assert_eq!(origin(&[BACKWARD, FORWARD]), (Phase::Backward, Part::Plain));
        let closure = [BACKWARD, ("train.py", "closure"), STEP];
        assert_eq!(origin(&closure), (Phase::Backward, Part::Plain));
        let state = [("torch/optim/adam.py", "_init_group"), STEP];
        assert_eq!(origin(&state), (Phase::Step, Part::Plain));
    }

    #[test]
    fn a_step_that_takes_one_parameter_after_the_other_is_known_by_its_function() {
        let of = |name: &str| origin(&[("torch/optim/x.py", name), STEP]);
        let part = |together| (Phase::Step, Part::Parameter(together));
        assert_eq!(of("_single_tensor_adam"), part(Together::Second));
        assert_eq!(of("_single_tensor_rmsprop"), part(Together::Each));
        assert_eq!(of("_single_tensor_sgd"), part(Together::FirstLine));
        assert_eq!(of("_single_tensor_rprop"), part(Together::Unknown));
        assert_eq!(of("_fused_adam"), (Phase::Step, Part::Plain));
    }

    #[test]
    fn examples_are_told_from_the_batch_that_is_made_of_them() {
        let fetch = ("torch/utils/data/_utils/fetch.py", "fetch");
        let example = [("/home/me/data.py", "__getitem__"), fetch];
        assert_eq!(origin(&example), (Phase::Loading, Part::Sample));
        let collate = ("torch/utils/data/_utils/collate.py", "default_collate");
        let batch = [("/home/me/data.py", "pad"), fetch];
        assert_eq!(origin(&batch), (Phase::Loading, Part::Plain));
        assert_eq!(origin(&[collate, fetch]), (Phase::Loading, Part::Plain));
        let order = [("torch/utils/data/sampler.py", "__iter__")];
        assert_eq!(origin(&order), (Phase::Loading, Part::Sample));
    }

    #[test]
    fn a_thread_without_python_helps_another() {
        let helper = Stack {
            kind: StackKind::Unknown {
                thread: "python".into(),
                reason: crate::event::NoStack::NoPythonThread,
            },
            ..stack(&[])
        };
        assert_eq!(Origin::of(&helper).part, Part::Helper);
    }

    #[test]
    fn dropout_is_dropout_also_where_it_is_computed_again_in_a_backward_pass() {
        let dropout = ("torch/nn/functional.py", "dropout");
        assert_eq!(origin(&[dropout, FORWARD]), (Phase::Forward, Part::Dropout));
        assert_eq!(
            origin(&[dropout, FORWARD, BACKWARD]),
            (Phase::Backward, Part::Dropout)
        );
        let inside = [("torch/nn/functional.py", "linear"), dropout];
        assert_eq!(origin(&inside).1, Part::Plain);
    }
}
