//! Origin of a block of the CPU: its phase and role, by the stack of its allocation.
//!
//! Inferred from names of PyTorch's own files and functions (torch@v2.15.0; the names predate 2.0).

use crate::event::{Frame, Stack, StackKind, StepSettings};
use crate::torch::names::TorchCall;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum EstimatePhase {
    /// Anything else: construction of the model, and the forward pass.
    #[default]
    Forward,
    Backward,
    Step,
    Loading,
}

impl EstimatePhase {
    /// All variants, in display order.
    pub const ALL: [Self; 4] = [Self::Forward, Self::Backward, Self::Step, Self::Loading];
}

/// Role of a block that needs special treatment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Part {
    #[default]
    Plain,
    /// Allocated directly by `torch.nn.functional.dropout`.
    Dropout,
    /// Allocated for one parameter, by an optimizer step that handles them one after the other.
    Parameter(ForeachTemporaries),
    /// A sample of a batch, or part of the sampling order.
    Sample,
    /// Allocated by a helper thread without Python, such as OpenMP's. It belongs to the phase of
    /// the last other allocation.
    Helper,
}

/// Temporary tensors of an optimizer step that handles all parameters at once, as on a GPU
/// (`foreach`; the functions `_multi_tensor_*` beside `_single_tensor_*` in
/// torch/optim/*.py@v2.15.0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ForeachTemporaries {
    /// A line allocates two in a row: the second exists for all parameters at once, the first not
    /// at all. A single one does not exist either (`_foreach_sqrt`, and the rest in place).
    Second,
    /// Each exists for all parameters at once.
    Each,
    /// Like [`Self::Each`] for the first line that allocates one; the others work in place.
    FirstLine,
    Unknown,
}

impl ForeachTemporaries {
    /// True if a step on a GPU handles all parameters of such a group at once
    /// (`_default_to_fused_or_foreach`, torch/optim/optimizer.py@v2.0.1 to @v2.15.0, and its
    /// callers). Adam does not with a tensor as `lr` (torch/optim/adam.py), and SGD ignores
    /// `differentiable` there (torch/optim/sgd.py).
    pub(super) fn is_foreach(self, group: &StepSettings) -> bool {
        match (group.foreach, group.fused) {
            (None, None) => match self {
                Self::FirstLine => true,
                Self::Second => !group.differentiable && !group.has_tensor_rate,
                Self::Each | Self::Unknown => !group.differentiable,
            },
            (foreach, _) => foreach == Some(true),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct EstimateOrigin {
    pub(super) phase: EstimatePhase,
    pub(super) part: Part,
}

impl EstimateOrigin {
    pub(super) fn of(stack: &Stack) -> Self {
        // On the CPU a backward pass runs on the thread that called it, so its frames show the
        // pass.
        let is_backward = match stack.kind {
            StackKind::Python => false,
            StackKind::Waiting { .. } => true,
            StackKind::Native | StackKind::Unknown { .. } => stack.context.node.is_some(),
        };
        let mut origin = Self::default();
        if stack.kind != StackKind::Python && !is_backward {
            origin.part = Part::Helper;
        }
        for (at, frame) in stack.frames.iter().enumerate() {
            let Some(call) = TorchCall::of(frame) else {
                continue;
            };
            if at == 0 && call == TorchCall::Dropout {
                origin.part = Part::Dropout;
            }
            if is_backward {
                break;
            }
            // The innermost of these frames decides: a closure called by a step may run a backward
            // pass.
            if let Some(found) = origin_of_calls(&stack.frames, at, call) {
                origin.phase = found.phase;
                if found.part != Part::Plain {
                    origin.part = found.part;
                }
                break;
            }
        }
        if is_backward {
            origin.phase = EstimatePhase::Backward;
        }
        origin
    }
}

/// Origin of everything that a frame of PyTorch calls; `None` if the frame decides nothing.
fn origin_of_calls(frames: &[Frame], at: usize, call: TorchCall) -> Option<EstimateOrigin> {
    let (phase, part) = match call {
        TorchCall::Engine => (EstimatePhase::Backward, Part::Plain),
        // Its caller, the fetcher, decides.
        TorchCall::DataCollate => return None,
        TorchCall::DataFetch => (EstimatePhase::Loading, fetched(frames, at)),
        TorchCall::Data => (EstimatePhase::Loading, Part::Sample),
        TorchCall::OptimizerStep | TorchCall::Optimizer => (
            EstimatePhase::Step,
            match frames[at].function.strip_prefix("_single_tensor_") {
                Some(optimizer) => Part::Parameter(together(optimizer)),
                None => Part::Plain,
            },
        ),
        _ => return None,
    };
    Some(EstimateOrigin { phase, part })
}

/// Role by the call inside `fetch`: `data = [self.dataset[index] for index in indices]` makes
/// samples, `return self.collate_fn(data)` makes a batch.
fn fetched(frames: &[Frame], at: usize) -> Part {
    let inner = at.checked_sub(1).map(|inner| &*frames[inner].function);
    match inner {
        Some("__getitem__" | "__getitems__" | "__next__" | "<listcomp>") => Part::Sample,
        _ => Part::Plain,
    }
}

fn together(optimizer: &str) -> ForeachTemporaries {
    match optimizer {
        "adam" | "adamw" => ForeachTemporaries::Second,
        "rmsprop" | "adadelta" => ForeachTemporaries::Each,
        "sgd" => ForeachTemporaries::FirstLine,
        _ => ForeachTemporaries::Unknown,
    }
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

    fn origin(frames: &[(&str, &str)]) -> (EstimatePhase, Part) {
        let EstimateOrigin { phase, part } = EstimateOrigin::of(&stack(frames));
        (phase, part)
    }

    const FORWARD: (&str, &str) = ("/home/me/model.py", "forward");
    const BACKWARD: (&str, &str) = ("torch/autograd/graph.py", "_engine_run_backward");
    const STEP: (&str, &str) = ("torch/optim/adam.py", "step");

    #[test]
    fn the_innermost_part_of_pytorch_says_what_goes_on() {
        assert_eq!(origin(&[FORWARD]), (EstimatePhase::Forward, Part::Plain));
        assert_eq!(
            origin(&[BACKWARD, FORWARD]),
            (EstimatePhase::Backward, Part::Plain)
        );
        let closure = [BACKWARD, ("train.py", "closure"), STEP];
        assert_eq!(origin(&closure), (EstimatePhase::Backward, Part::Plain));
        let state = [("torch/optim/adam.py", "_init_group"), STEP];
        assert_eq!(origin(&state), (EstimatePhase::Step, Part::Plain));
    }

    #[test]
    fn a_step_that_takes_one_parameter_after_the_other_is_known_by_its_function() {
        let of = |name: &str| origin(&[("torch/optim/x.py", name), STEP]);
        let part = |together| (EstimatePhase::Step, Part::Parameter(together));
        assert_eq!(of("_single_tensor_adam"), part(ForeachTemporaries::Second));
        assert_eq!(of("_single_tensor_rmsprop"), part(ForeachTemporaries::Each));
        assert_eq!(
            of("_single_tensor_sgd"),
            part(ForeachTemporaries::FirstLine)
        );
        assert_eq!(
            of("_single_tensor_rprop"),
            part(ForeachTemporaries::Unknown)
        );
        assert_eq!(of("_fused_adam"), (EstimatePhase::Step, Part::Plain));
    }

    #[test]
    fn a_step_takes_all_parameters_at_once_unless_a_setting_prevents_it() {
        let default = StepSettings {
            class: "Adam".into(),
            foreach: None,
            fused: None,
            differentiable: false,
            has_tensor_rate: false,
        };
        let is_foreach = |kind: ForeachTemporaries, change: fn(&mut StepSettings)| {
            let mut group = default.clone();
            change(&mut group);
            kind.is_foreach(&group)
        };
        use ForeachTemporaries::{Each, FirstLine, Second};
        assert!(is_foreach(Second, |_| ()));
        assert!(!is_foreach(Second, |group| group.foreach = Some(false)));
        assert!(!is_foreach(Second, |group| group.fused = Some(false)));
        assert!(is_foreach(Each, |group| group.foreach = Some(true)));
        assert!(!is_foreach(Each, |group| group.differentiable = true));
        assert!(is_foreach(FirstLine, |group| group.differentiable = true));
        assert!(!is_foreach(Second, |group| group.has_tensor_rate = true));
        assert!(is_foreach(FirstLine, |group| group.has_tensor_rate = true));
    }

    #[test]
    fn distinguishes_examples_from_the_batch_made_of_them() {
        let fetch = ("torch/utils/data/_utils/fetch.py", "fetch");
        let example = [("/home/me/data.py", "__getitem__"), fetch];
        assert_eq!(origin(&example), (EstimatePhase::Loading, Part::Sample));
        let collate = ("torch/utils/data/_utils/collate.py", "default_collate");
        let batch = [("/home/me/data.py", "pad"), fetch];
        assert_eq!(origin(&batch), (EstimatePhase::Loading, Part::Plain));
        assert_eq!(
            origin(&[collate, fetch]),
            (EstimatePhase::Loading, Part::Plain)
        );
        let order = [("torch/utils/data/sampler.py", "__iter__")];
        assert_eq!(origin(&order), (EstimatePhase::Loading, Part::Sample));
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
        assert_eq!(EstimateOrigin::of(&helper).part, Part::Helper);
    }

    #[test]
    fn dropout_is_dropout_also_where_it_is_computed_again_in_a_backward_pass() {
        let dropout = ("torch/nn/functional.py", "dropout");
        assert_eq!(
            origin(&[dropout, FORWARD]),
            (EstimatePhase::Forward, Part::Dropout)
        );
        assert_eq!(
            origin(&[dropout, FORWARD, BACKWARD]),
            (EstimatePhase::Backward, Part::Dropout)
        );
        let inside = [("torch/nn/functional.py", "linear"), dropout];
        assert_eq!(origin(&inside).1, Part::Plain);
    }
}
