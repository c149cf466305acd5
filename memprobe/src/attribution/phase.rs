//! Phase of the program at an allocation, from its stack alone.

use strum::{IntoStaticStr, VariantArray};

use crate::event::{Context, Frame, Grad, Module, Stack, StackKind};
use crate::torch::names::TorchCall;

/// Phase of a training program, in table order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum Phase {
    DataLoading,
    /// Computation recorded by autograd for a backward pass.
    Forward,
    /// Recomputation of discarded activations in a backward pass (`torch.utils.checkpoint`).
    Recompute,
    Backward,
    /// `Optimizer.step()`.
    OptimizerStep,
    /// Computation by modules, not recorded by autograd.
    Evaluation,
    /// None of these, or unknown.
    #[default]
    Other,
}

impl Phase {
    pub const ALL: &'static [Self] = Self::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OptimizerStep => "optimizer step",
            Self::DataLoading => "data loading",
            one_word => one_word.key(),
        }
    }

    /// Key for JSON and CSV.
    pub const fn key(self) -> &'static str {
        self.into_str()
    }

    pub const fn is_of_backward(self) -> bool {
        matches!(self, Self::Backward | Self::Recompute)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr)]
#[strum(const_into_str)]
pub enum PhaseRule {
    #[strum(serialize = "a node of autograd's graph was evaluated")]
    NodeEvaluated,
    #[strum(serialize = "a thread of autograd, for which another waits in backward()")]
    EngineThread,
    #[strum(serialize = "inside torch.autograd.backward() or grad()")]
    EngineCalled,
    #[strum(serialize = "a thread that begins with torch.autograd.Function")]
    FunctionApplied,
    #[strum(serialize = "a module was called inside of a backward pass")]
    ModuleInBackward,
    #[strum(serialize = "torch.utils.checkpoint inside of a backward pass")]
    CheckpointInBackward,
    #[strum(serialize = "inside Optimizer.step()")]
    OptimizerCalled,
    #[strum(serialize = "inside torch.utils.data")]
    DataCalled,
    /// Grad is disabled within such a graph in any case.
    #[strum(serialize = "inside the forward pass of a graph of torch.compile, to go back through")]
    CompiledForward,
    #[strum(serialize = "a module was called with grad enabled")]
    ModuleWithGrad,
    #[strum(serialize = "a module was called without grad")]
    ModuleWithoutGrad,
    /// The `forward` is not the module's own. Autograd calls that of a `torch.autograd.Function` without grad too.
    #[strum(
        serialize = "a module called a forward function without grad: evaluation, or a torch.autograd.Function"
    )]
    ForwardWithoutGrad,
    /// [`Self::ForwardWithoutGrad`], on a thread that called a module with grad since the last backward pass.
    #[strum(
        serialize = "a forward function without grad within a pass that has it: a torch.autograd.Function"
    )]
    FunctionInForward,
    #[strum(serialize = "a module was called; grad mode unknown")]
    ModuleOnly,
    #[strum(serialize = "after a module's call and before the backward pass")]
    AfterModule,
    #[strum(serialize = "no rule matches the stack")]
    NothingTells,
    #[default]
    #[strum(serialize = "there is no Python stack")]
    NoStack,
    #[strum(serialize = "the stack could not be read completely")]
    Unreadable,
}

impl PhaseRule {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// True if the facts that the rule names imply the phase.
    pub const fn is_certain(self) -> bool {
        !matches!(
            self,
            Self::ForwardWithoutGrad
                | Self::FunctionInForward
                | Self::ModuleOnly
                | Self::AfterModule
                | Self::FunctionApplied
                | Self::NothingTells
                | Self::NoStack
                | Self::Unreadable
        )
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClassifiedPhase {
    pub phase: Phase,
    pub rule: PhaseRule,
}

impl ClassifiedPhase {
    const fn new(phase: Phase, rule: PhaseRule) -> Self {
        Self { phase, rule }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Module,
    CompiledForward,
    CompiledBackward,
    Engine,
    Checkpoint,
    Optimizer,
    Data,
}

/// Classifies a stack by phase.
///
/// The innermost known call decides. A closure called by `LBFGS.step()` is forward and backward. An optimizer
/// that steps from a hook inside a backward pass is an optimizer step. A module called inside a backward pass
/// recomputes. Any call inside `torch.utils.data` is data loading.
pub fn phase_of(stack: &Stack) -> ClassifiedPhase {
    let context = &stack.context;
    match &stack.kind {
        StackKind::Waiting { .. } => ClassifiedPhase::new(Phase::Backward, backward_rule(context)),
        StackKind::Python => phase_of_python(stack),
        StackKind::Native | StackKind::Unknown { .. } if context.node.is_some() => {
            ClassifiedPhase::new(Phase::Backward, PhaseRule::NodeEvaluated)
        }
        StackKind::Native | StackKind::Unknown { .. } => {
            ClassifiedPhase::new(Phase::Other, PhaseRule::NoStack)
        }
    }
}

fn backward_rule(context: &Context) -> PhaseRule {
    match context.node {
        Some(_) => PhaseRule::NodeEvaluated,
        None => PhaseRule::EngineThread,
    }
}

fn phase_of_python(stack: &Stack) -> ClassifiedPhase {
    let calls = || stack.frames.iter().filter_map(call);
    if calls().any(|call| call == Call::Data) {
        return ClassifiedPhase::new(Phase::DataLoading, PhaseRule::DataCalled);
    }
    let mut around = calls().skip_while(|call| *call == Call::Module);
    match calls().next() {
        Some(Call::Module) if is_in_forward_function(stack) => {
            match phase_of_call(&stack.context, &mut around) {
                ClassifiedPhase {
                    rule: PhaseRule::ModuleWithoutGrad,
                    phase,
                } => ClassifiedPhase::new(phase, PhaseRule::ForwardWithoutGrad),
                told => told,
            }
        }
        Some(Call::Module | Call::CompiledForward | Call::CompiledBackward) => {
            phase_of_call(&stack.context, &mut around)
        }
        Some(Call::Engine) => ClassifiedPhase::new(Phase::Backward, PhaseRule::EngineCalled),
        Some(Call::Optimizer) => {
            ClassifiedPhase::new(Phase::OptimizerStep, PhaseRule::OptimizerCalled)
        }
        Some(Call::Checkpoint) => {
            ClassifiedPhase::new(Phase::Recompute, PhaseRule::CheckpointInBackward)
        }
        Some(Call::Data) | None => phase_of_untold(stack),
    }
}

/// Phase of a thread inside a module or a graph of `torch.compile`. `around` yields the calls outside the
/// innermost modules. An interpreted graph is a module too, called inside the compiled call.
fn phase_of_call(context: &Context, around: &mut impl Iterator<Item = Call>) -> ClassifiedPhase {
    let nearest = around.next();
    if nearest != Some(Call::CompiledForward) {
        return match nearest {
            Some(Call::CompiledBackward) => phase_of_compiled_backward(context, around),
            nearest => phase_of_module(context, nearest),
        };
    }
    let inner = |call: &Call| !matches!(call, Call::Module | Call::CompiledForward);
    match around.find(inner) {
        // Double backward: the backward pass itself is differentiated.
        Some(Call::CompiledBackward) => phase_of_compiled_backward(context, around),
        outside => match phase_of_module(context, outside) {
            again if again.phase == Phase::Recompute => again,
            _ => ClassifiedPhase::new(Phase::Forward, PhaseRule::CompiledForward),
        },
    }
}

/// A compiled backward runs on the calling thread for CPU graphs, whose frames show the call; otherwise on an
/// autograd thread.
fn phase_of_compiled_backward(
    context: &Context,
    around: &mut impl Iterator<Item = Call>,
) -> ClassifiedPhase {
    let rule = match (around.any(|call| call == Call::Engine), &context.node) {
        (true, _) => PhaseRule::EngineCalled,
        (false, Some(_)) => PhaseRule::NodeEvaluated,
        (false, None) => PhaseRule::FunctionApplied,
    };
    ClassifiedPhase::new(Phase::Backward, rule)
}

/// Phase of a thread that calls a module; `around` is the nearest other call outside it.
fn phase_of_module(context: &Context, around: Option<Call>) -> ClassifiedPhase {
    match around {
        Some(Call::Checkpoint) => {
            ClassifiedPhase::new(Phase::Recompute, PhaseRule::CheckpointInBackward)
        }
        Some(Call::Engine) => ClassifiedPhase::new(Phase::Recompute, PhaseRule::ModuleInBackward),
        _ if context.node.is_some() => {
            ClassifiedPhase::new(Phase::Recompute, PhaseRule::ModuleInBackward)
        }
        _ => match context.grad {
            Grad::Enabled => ClassifiedPhase::new(Phase::Forward, PhaseRule::ModuleWithGrad),
            Grad::Disabled | Grad::Inference => {
                ClassifiedPhase::new(Phase::Evaluation, PhaseRule::ModuleWithoutGrad)
            }
            Grad::Unknown => ClassifiedPhase::new(Phase::Forward, PhaseRule::ModuleOnly),
        },
    }
}

/// Phase of a thread without a known call on its stack.
fn phase_of_untold(stack: &Stack) -> ClassifiedPhase {
    let context = &stack.context;
    if context.module != Module::Outside {
        return phase_of_module(context, None);
    }
    if context.node.is_some() {
        return ClassifiedPhase::new(Phase::Backward, PhaseRule::NodeEvaluated);
    }
    if stack.frames.iter().any(is_unreadable) {
        return ClassifiedPhase::new(Phase::Other, PhaseRule::Unreadable);
    }
    let outermost = stack.frames.last().filter(|_| !stack.truncated);
    if outermost.is_some_and(|frame| TorchCall::of(frame) == Some(TorchCall::FunctionApply)) {
        return ClassifiedPhase::new(Phase::Backward, PhaseRule::FunctionApplied);
    }
    ClassifiedPhase::new(Phase::Other, PhaseRule::NothingTells)
}

/// Known call of a frame that decides its phase.
fn call(frame: &Frame) -> Option<Call> {
    Some(match TorchCall::of(frame)? {
        TorchCall::Module => Call::Module,
        TorchCall::Engine => Call::Engine,
        TorchCall::Checkpoint => Call::Checkpoint,
        TorchCall::OptimizerStep => Call::Optimizer,
        TorchCall::Data | TorchCall::DataFetch | TorchCall::DataCollate => Call::Data,
        TorchCall::CompiledForward => Call::CompiledForward,
        TorchCall::CompiledBackward => Call::CompiledBackward,
        _ => return None,
    })
}

/// True if the innermost module called a `forward` other than its own. Such a `forward` is called neither by
/// the module's call nor by itself. `Function.apply` has a frame up to 2.14 and none in 2.15.
fn is_in_forward_function(stack: &Stack) -> bool {
    let within = stack
        .frames
        .iter()
        .take_while(|frame| call(frame) != Some(Call::Module));
    let forwards = within.filter(|frame| &*frame.function == "forward");
    // The module's own `forward` is the outermost.
    forwards.count() > 1
}

fn is_unreadable(frame: &Frame) -> bool {
    &*frame.file == Frame::UNREADABLE
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::event::{NoStack, Node};

    const TRAIN: (&str, &str) = ("/w/train.py", "main");
    const MODULE: (&str, &str) = ("/p/site-packages/torch/nn/modules/module.py", "_call_impl");
    const ENGINE: (&str, &str) = ("/p/site-packages/torch/autograd/__init__.py", "backward");
    const STEP: (&str, &str) = ("/p/site-packages/torch/optim/optimizer.py", "wrapper");

    /// Python stack, innermost frame first.
    fn stack(frames: &[(&str, &str)]) -> Stack {
        let frame = |(file, function): &(&str, &str)| Frame {
            file: (*file).into(),
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

    fn with_grad(mut stack: Stack, grad: Grad) -> Stack {
        stack.context.grad = grad;
        stack
    }

    fn in_node(mut stack: Stack) -> Stack {
        stack.context.node = Some(Arc::new(Node {
            name: "AddmmBackward0".into(),
            forward: None,
        }));
        stack
    }

    fn classify(stack: &Stack) -> (Phase, PhaseRule) {
        let ClassifiedPhase { phase, rule } = phase_of(stack);
        (phase, rule)
    }

    #[test]
    fn a_module_goes_forward_with_grad_and_evaluates_without() {
        let call = || stack(&[("/w/model.py", "forward"), MODULE, TRAIN]);
        let classify_with = |grad| classify(&with_grad(call(), grad));
        assert_eq!(
            classify_with(Grad::Enabled),
            (Phase::Forward, PhaseRule::ModuleWithGrad)
        );
        let without = (Phase::Evaluation, PhaseRule::ModuleWithoutGrad);
        assert_eq!(classify_with(Grad::Disabled), without);
        assert_eq!(classify_with(Grad::Inference), without);
        assert_eq!(
            classify_with(Grad::Unknown),
            (Phase::Forward, PhaseRule::ModuleOnly)
        );
        assert!(!PhaseRule::ModuleOnly.is_certain());
    }

    #[test]
    fn a_module_that_only_the_context_knows_counts_as_one() {
        let mut outside = with_grad(stack(&[TRAIN]), Grad::Enabled);
        assert_eq!(classify(&outside), (Phase::Other, PhaseRule::NothingTells));
        outside.context.module = Module::Called("GPT.head".into());
        assert_eq!(
            classify(&outside),
            (Phase::Forward, PhaseRule::ModuleWithGrad)
        );
        outside.context.module = Module::Unknown;
        assert_eq!(classify(&outside).0, Phase::Forward);
    }

    #[test]
    fn threads_of_autograd_go_backward() {
        let mut waiting = stack(&[ENGINE, TRAIN]);
        waiting.kind = StackKind::Waiting {
            thread: "pt_autograd_0".into(),
        };
        assert_eq!(
            classify(&waiting),
            (Phase::Backward, PhaseRule::EngineThread)
        );
        let waiting = in_node(waiting);
        assert_eq!(
            classify(&waiting),
            (Phase::Backward, PhaseRule::NodeEvaluated)
        );
        let mut nobody = in_node(stack(&[]));
        nobody.kind = StackKind::Unknown {
            thread: "pt_autograd_0".into(),
            reason: NoStack::SeveralWaiting,
        };
        assert_eq!(
            classify(&nobody),
            (Phase::Backward, PhaseRule::NodeEvaluated)
        );
        nobody.context.node = None;
        assert_eq!(classify(&nobody), (Phase::Other, PhaseRule::NoStack));
    }

    #[test]
    fn a_module_that_a_backward_pass_calls_computes_again() {
        // Autograd thread: the checkpoint hook is the outermost frame.
        let hook = ("/p/site-packages/torch/utils/checkpoint.py", "unpack_hook");
        let own = in_node(stack(&[MODULE, hook]));
        assert_eq!(
            classify(&own),
            (Phase::Recompute, PhaseRule::CheckpointInBackward)
        );
        let own = in_node(stack(&[MODULE, ("/w/hooks.py", "again")]));
        assert_eq!(
            classify(&own),
            (Phase::Recompute, PhaseRule::ModuleInBackward)
        );
        // Thread that called `backward()`, with a CPU graph.
        let called = stack(&[MODULE, ENGINE, TRAIN]);
        assert_eq!(
            classify(&called),
            (Phase::Recompute, PhaseRule::ModuleInBackward)
        );
    }

    #[test]
    fn a_backward_pass_that_a_module_starts_goes_backward() {
        let inside = in_node(stack(&[ENGINE, MODULE, TRAIN]));
        assert_eq!(
            classify(&inside),
            (Phase::Backward, PhaseRule::EngineCalled)
        );
    }

    #[test]
    fn a_reentrant_checkpoint_computes_again_and_goes_back_in_turn() {
        let checkpoint = ("/p/site-packages/torch/utils/checkpoint.py", "backward");
        let apply = ("/p/site-packages/torch/autograd/function.py", "apply");
        let again = in_node(stack(&[("/w/f.py", "f"), checkpoint, apply]));
        assert_eq!(classify(&again).0, Phase::Recompute);
        let back = in_node(stack(&[ENGINE, checkpoint, apply]));
        assert_eq!(classify(&back).0, Phase::Backward);
    }

    #[test]
    fn a_function_of_python_goes_backward_on_a_thread_of_its_own_only() {
        let apply = ("/p/site-packages/torch/autograd/function.py", "apply");
        let own = stack(&[("/w/f.py", "backward"), apply]);
        assert_eq!(
            classify(&own),
            (Phase::Backward, PhaseRule::FunctionApplied)
        );
        let called = stack(&[("/w/f.py", "forward"), apply, TRAIN]);
        assert_eq!(classify(&called).0, Phase::Other);
    }

    #[test]
    fn the_innermost_of_optimizer_engine_and_module_decides() {
        assert_eq!(classify(&stack(&[STEP, TRAIN])).0, Phase::OptimizerStep);
        let adam = ("/p/site-packages/torch/optim/adam.py", "step");
        assert_eq!(classify(&stack(&[adam, TRAIN])).0, Phase::OptimizerStep);
        let closure = with_grad(
            stack(&[MODULE, ("/w/t.py", "closure"), STEP]),
            Grad::Enabled,
        );
        assert_eq!(classify(&closure).0, Phase::Forward);
        assert_eq!(classify(&stack(&[ENGINE, STEP, TRAIN])).0, Phase::Backward);
        let hook = in_node(stack(&[STEP, ("/w/t.py", "hook")]));
        assert_eq!(classify(&hook).0, Phase::OptimizerStep);
    }

    #[test]
    fn a_forward_without_grad_that_is_no_modules_may_be_that_of_a_function() {
        let (own, function) = (("/w/model.py", "forward"), ("/w/cube.py", "forward"));
        let without = |frames: &[_]| classify(&with_grad(stack(frames), Grad::Disabled));
        let maybe = (Phase::Evaluation, PhaseRule::ForwardWithoutGrad);
        assert_eq!(without(&[function, own, MODULE, TRAIN]), maybe);
        let apply = ("/p/site-packages/torch/autograd/function.py", "apply");
        assert_eq!(without(&[function, apply, own, MODULE, TRAIN]), maybe);
        let evaluation = (Phase::Evaluation, PhaseRule::ModuleWithoutGrad);
        assert_eq!(without(&[own, MODULE, function, MODULE, TRAIN]), evaluation);
        assert!(!PhaseRule::ForwardWithoutGrad.is_certain());
    }

    #[test]
    fn what_was_compiled_goes_forward_whatever_grad_is_within() {
        let wrappers = "/p/site-packages/torch/_functorch/_aot_autograd/runtime_wrappers.py";
        let forward = (wrappers, "forward");
        let generated = ("/tmp/torchinductor_me/ab/cab.py", "call");
        let classify_without = |frames: &[_]| classify(&with_grad(stack(frames), Grad::Disabled));
        let compiled = (Phase::Forward, PhaseRule::CompiledForward);
        assert_eq!(
            classify_without(&[generated, forward, MODULE, TRAIN]),
            compiled
        );
        assert_eq!(classify_without(&[generated, forward, TRAIN]), compiled);
        // An interpreted graph is called as a module.
        assert_eq!(classify_without(&[MODULE, forward, TRAIN]), compiled);
        let hook = ("/p/site-packages/torch/utils/checkpoint.py", "unpack_hook");
        let again = classify_without(&[generated, forward, MODULE, hook, ENGINE, TRAIN]);
        assert_eq!(again.0, Phase::Recompute);
    }

    #[test]
    fn what_was_compiled_goes_back_also_where_its_graph_is_a_module() {
        let wrappers = "/p/site-packages/torch/_functorch/_aot_autograd/runtime_wrappers.py";
        let backward = (wrappers, "backward");
        let on_cpu = classify(&stack(&[backward, ENGINE, MODULE, TRAIN]));
        assert_eq!(on_cpu, (Phase::Backward, PhaseRule::EngineCalled));
        let on_gpu = (Phase::Backward, PhaseRule::NodeEvaluated);
        assert_eq!(classify(&in_node(stack(&[MODULE, backward]))), on_gpu);
        let twice = in_node(stack(&[(wrappers, "forward"), backward]));
        assert_eq!(classify(&twice), on_gpu);
    }

    #[test]
    fn loading_data_is_that_whatever_it_calls() {
        let fetch = ("/p/site-packages/torch/utils/data/_utils/fetch.py", "fetch");
        let transform = stack(&[MODULE, ("/w/data.py", "__getitem__"), fetch, TRAIN]);
        assert_eq!(
            classify(&transform),
            (Phase::DataLoading, PhaseRule::DataCalled)
        );
    }

    #[test]
    fn an_unreadable_stack_has_no_phase() {
        let cut = |known| stack(&[(Frame::UNREADABLE, "?"), known]);
        assert_eq!(classify(&cut(TRAIN)), (Phase::Other, PhaseRule::Unreadable));
        assert_eq!(classify(&cut(STEP)).0, Phase::OptimizerStep);
    }

    #[test]
    fn files_outside_torch_decide_no_phase() {
        let lookalike = stack(&[("/w/optim/optimizer.py", "wrapper"), TRAIN]);
        assert_eq!(classify(&lookalike).0, Phase::Other);
        let scheduler = ("/p/site-packages/torch/optim/lr_scheduler.py", "step");
        assert_eq!(classify(&stack(&[scheduler])).0, Phase::Other);
    }
}
