//! Categories of memory, the rules that assign them, and sums by category.

use strum::{IntoStaticStr, VariantArray};

use crate::event::{Frame, Grad, Node, Purpose, Stack, StackKind};
use crate::torch::names::TorchCall;

/// Purpose of a block, in table order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum Category {
    /// Parameter or buffer of a module.
    Parameter,
    Gradient,
    /// State that an optimizer keeps between steps.
    OptimizerState,
    /// Saved by a forward pass for the backward pass.
    Activation,
    /// Tensor passed into the program's modules.
    Input,
    /// Keys and values that modules keep from one call to the next.
    KvCache,
    /// Allocated and freed within a backward pass: mostly gradients of non-parameters.
    IntermediateGradient,
    /// Freed within the phase that allocated it.
    Temporary,
    /// Library workspace: PyTorch made no tensor for the block.
    Workspace,
    Unknown,
}

impl Category {
    pub const ALL: &'static [Self] = Self::VARIANTS;

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OptimizerState => "optimizer state",
            Self::IntermediateGradient => "intermediate gradient",
            Self::KvCache => "KV cache",
            one_word => one_word.key(),
        }
    }

    /// Key for JSON and CSV.
    pub const fn key(self) -> &'static str {
        self.into_str()
    }
}

macro_rules! rules {
    ($($name:ident => $category:ident, $status:ident, $words:literal;)+) => {
        /// Rule that assigned a category to a block. Most rules infer it from the phases at allocation and
        /// free. [`Self::NoTensor`] and [`Self::NamedUse`] use the tensor information recorded at allocation.
        /// [`Self::is_exact`] selects the rules that use the process's heap objects.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum CategoryRule { $(#[doc = $words] $name,)+ }

        impl CategoryRule {
            pub const ALL: [Self; [$($words,)+].len()] = [$(Self::$name,)+];

            pub const fn category(self) -> Category {
                match self { $(Self::$name => Category::$category,)+ }
            }

            pub const fn status(self) -> RuleStatus {
                match self { $(Self::$name => RuleStatus::$status,)+ }
            }

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $words,)+ }
            }
        }
    };
}

/// Tells whether a later event may change the rule of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleStatus {
    /// Final: only a later heap snapshot changes it.
    Settled,
    /// Likely category; the next phases decide.
    Provisional,
}

rules! {
    Built => Parameter, Settled, "made by Module.to(), a constructor of torch.nn or nn.Parameter, and kept: parameters and buffers";
    BuiltBuffer => Parameter, Settled, "made by Module.to() with grad enabled, and kept: buffers, since parameters are moved without";
    OutlivesBackward => Gradient, Settled, "made in a backward pass and kept after it";
    Accumulated => Gradient, Settled, "made by AccumulateGrad";
    FreedAfterBackward => Gradient, Settled, "made in a backward pass on its own thread and freed after it, as one block for each parameter was";
    OutlivesStep => OptimizerState, Settled, "made in Optimizer.step() and kept after it";
    FreedInBackward => Activation, Settled, "made in a forward pass, live when the backward pass began, freed by it";
    Recomputed => Activation, Settled, "made again in a backward pass (checkpoint), freed by it later";
    Loaded => Input, Settled, "made in torch.utils.data and live when modules were called";
    GivenToForward => Input, Settled, "made outside of modules after the last batch or step, live when they were called, freed soon after";
    HeldByVariable => Input, Settled, "made outside of modules and kept in a variable through several forward passes; a node saves it, by the process's objects";
    KeptForNextCall => KvCache, Settled, "made in modules without grad and kept, where the next call replaces such a block by a larger one";
    WithinBackward => IntermediateGradient, Settled, "made and freed in one backward pass";
    // Only in a stream without tensor information.
    FreedAtOnce => Temporary, Settled, "made in a backward pass and freed by its next call of the allocator: a workspace, or used up at once";
    WithinForward => Temporary, Settled, "made and freed in one forward pass";
    WithinRecompute => Temporary, Settled, "made and freed while a checkpoint was computed again";
    WithinStep => Temporary, Settled, "made and freed in one Optimizer.step()";
    WithinEvaluation => Temporary, Settled, "made and freed in modules called without grad";
    WithinOther => Temporary, Settled, "made and freed outside of modules, passes and steps";
    NoTensor => Workspace, Settled, "PyTorch made no tensor for it";
    NamedUse => Workspace, Settled, "PyTorch made no tensor for it, and a native function tells its use";
    OutlivesItsPass => Unknown, Settled, "made in a forward pass and not freed by the backward pass: an output that the program keeps, or a graph";
    InOrAfterBackward => Unknown, Settled, "made in a backward pass on its own thread and freed in it or after it, with the size of a parameter or without known ones";
    NoBackward => Unknown, Settled, "made in a forward pass that no backward pass followed";
    OutlivesRecompute => Unknown, Settled, "made again in a backward pass (checkpoint) and kept after it";
    // Only in a stream without tensor information.
    LikeNoParameter => Unknown, Settled, "made in a backward pass and kept after it, of no parameter's size: it may be a workspace";
    OutlivesEvaluation => Unknown, Settled, "made in modules called without grad and kept after them";
    LongLived => Unknown, Settled, "made outside of modules and kept through several forward passes";
    LikeLongLived => Unknown, Settled, "made outside of modules, where most blocks are kept through several forward passes";
    NothingTells => Unknown, Settled, "made where nothing tells what for";
    TensorOrWorkspace => Unknown, Settled, "a tensor or a workspace: made before the probes on tensors were in place";
    Crowded => Unknown, Settled, "several threads train at once: whose pass it is cannot be told";
    NamedParameter => Parameter, Settled, "a parameter of a module, by the process's objects";
    NamedBuffer => Parameter, Settled, "a buffer of a module, by the process's objects";
    NamedGradient => Gradient, Settled, "the .grad of a tensor, by the process's objects";
    NamedOptimizerState => OptimizerState, Settled, "in the state of an optimizer, by the process's objects";
    NamedCache => KvCache, Settled, "in a cache of keys and values of transformers, by the process's objects";
    NamedSaved => Activation, Settled, "kept for the backward pass by a node, by the process's objects";
    SoFarForward => Activation, Provisional, "made in a forward pass that still runs";
    SoFarSaved => Activation, Provisional, "made in a forward pass, live when the backward pass began";
    SoFarRecomputed => Activation, Provisional, "made again in a backward pass (checkpoint) that still runs";
    SoFarBackward => IntermediateGradient, Provisional, "made in a backward pass that still runs";
    SoFarStep => Temporary, Provisional, "made in an Optimizer.step() that still runs";
    SoFarEvaluation => Temporary, Provisional, "made in modules called without grad, which still run";
    SoFarLoaded => Input, Provisional, "made in torch.utils.data, no module was called since";
    SoFarBuilt => Parameter, Provisional, "made as parameters are, nothing ran since";
    SoFarGiven => Unknown, Provisional, "made outside of modules after the last batch or step, live when they were called, not freed yet";
    SoFarOther => Unknown, Provisional, "made outside of modules, passes and steps, nothing ran since";
    AsParameter => Parameter, Provisional, "what was made there before turned out to be that";
    AsGradient => Gradient, Provisional, "what was made there before turned out to be that";
    AsOptimizerState => OptimizerState, Provisional, "what was made there before turned out to be that";
    AsActivation => Activation, Provisional, "what was made there before turned out to be that";
    AsInput => Input, Provisional, "what was made there before turned out to be that";
    AsKvCache => KvCache, Provisional, "what was made there before turned out to be that";
    AsIntermediateGradient => IntermediateGradient, Provisional, "what was made there before turned out to be that";
    AsTemporary => Temporary, Provisional, "what was made there before turned out to be that";
    AsUnknown => Unknown, Provisional, "what was made there before could not be told either";
}

impl CategoryRule {
    /// True if the process's heap objects gave the category, without inference.
    pub const fn is_exact(self) -> bool {
        matches!(
            self,
            Self::NamedParameter
                | Self::NamedBuffer
                | Self::NamedGradient
                | Self::NamedOptimizerState
                | Self::NamedCache
                | Self::NamedSaved
        )
    }

    /// True if the rule depends on the beginning and end of passes and steps.
    pub(super) const fn goes_by_passes(self) -> bool {
        !matches!(
            self,
            Self::Built
                | Self::BuiltBuffer
                | Self::Accumulated
                | Self::NoTensor
                | Self::NamedUse
                | Self::NothingTells
                | Self::WithinOther
        ) && !self.is_exact()
    }

    /// Returns the provisional rule for a stack whose earlier blocks had this category. Workspaces need none:
    /// they are known at allocation.
    pub(super) const fn as_before(category: Category) -> Self {
        match category {
            Category::Parameter => Self::AsParameter,
            Category::Gradient => Self::AsGradient,
            Category::OptimizerState => Self::AsOptimizerState,
            Category::Activation => Self::AsActivation,
            Category::Input => Self::AsInput,
            Category::KvCache => Self::AsKvCache,
            Category::IntermediateGradient => Self::AsIntermediateGradient,
            Category::Temporary => Self::AsTemporary,
            Category::Workspace | Category::Unknown => Self::AsUnknown,
        }
    }
}

/// Allocated bytes of a device by rule. All rules, `before_attach` and `unaccounted` add up to the
/// allocator's total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Composition {
    by_rule: [u64; CategoryRule::ALL.len()],
    /// Bytes allocated before attach.
    pub before_attach: u64,
    /// The allocator's total minus all known bytes; 0 unless events were lost.
    pub unaccounted: i64,
}

impl Default for Composition {
    fn default() -> Self {
        Self {
            by_rule: [0; CategoryRule::ALL.len()],
            before_attach: 0,
            unaccounted: 0,
        }
    }
}

impl Composition {
    pub fn by_rule(&self, rule: CategoryRule) -> u64 {
        self.by_rule[rule as usize]
    }

    pub fn of(&self, category: Category) -> u64 {
        self.by_category()[category as usize]
    }

    /// Bytes of each category, in declaration order.
    pub(super) fn by_category(&self) -> [u64; Category::ALL.len()] {
        let mut bytes = [0_u64; Category::ALL.len()];
        for (rule, held) in CategoryRule::ALL.iter().zip(self.by_rule) {
            let of = &mut bytes[rule.category() as usize];
            *of = of.saturating_add(held);
        }
        bytes
    }

    /// Bytes of a category whose rule is provisional.
    pub fn provisional(&self, category: Category) -> u64 {
        let rules = CategoryRule::ALL.iter();
        rules
            .filter(|rule| rule.category() == category && rule.status() == RuleStatus::Provisional)
            .map(|rule| self.by_rule(*rule))
            .fold(0, u64::saturating_add)
    }

    pub fn known(&self) -> u64 {
        self.by_rule.iter().copied().fold(0, u64::saturating_add)
    }

    pub(super) fn add(&mut self, rule: CategoryRule, size: u64) {
        let bytes = &mut self.by_rule[rule as usize];
        *bytes = bytes.saturating_add(size);
    }

    pub(super) fn take(&mut self, rule: CategoryRule, size: u64) {
        let bytes = &mut self.by_rule[rule as usize];
        *bytes = bytes.saturating_sub(size);
    }

    /// Takes the bytes that rules have in `taken`, and adds those in `added`.
    pub(super) fn exchange(&mut self, taken: &Self, added: &Self) {
        let changes = taken.by_rule.iter().zip(added.by_rule);
        for (held, (taken, added)) in self.by_rule.iter_mut().zip(changes) {
            *held = held.saturating_add(added).saturating_sub(*taken);
        }
    }

    /// Moves bytes from before attach to the rules that they have in `blocks`.
    pub(super) fn name(&mut self, blocks: &Self) {
        for (held, named) in self.by_rule.iter_mut().zip(blocks.by_rule) {
            let named = named.min(self.before_attach);
            self.before_attach -= named;
            *held = held.saturating_add(named);
        }
    }

    pub(super) fn change(&mut self, from: CategoryRule, to: CategoryRule, size: u64) {
        self.take(from, size);
        self.add(to, size);
    }
}

/// True if a stack builds parameters or buffers. It converts those of a module, constructs a module of
/// `torch.nn`, or makes an `nn.Parameter` (torch/nn/modules/module.py, torch/nn/parameter.py@v2.15.0).
pub(super) fn builds(stack: &Stack) -> bool {
    let is_building = |frame: &Frame| {
        matches!(
            TorchCall::of(frame),
            Some(
                TorchCall::ModuleConversion | TorchCall::ModuleConstruction | TorchCall::Parameter
            )
        )
    };
    stack.kind == StackKind::Python && stack.frames.iter().any(is_building)
}

/// True if a stack that [`builds`] can only make a buffer. `Module._apply` converts parameters and their gradients in
/// `torch.no_grad()`, and buffers as its caller does (torch/nn/modules/module.py@v2.15.0 and @v2.0.1).
pub(super) fn builds_buffer(stack: &Stack) -> bool {
    let is_conversion = |frame: &Frame| TorchCall::of(frame) == Some(TorchCall::ModuleConversion);
    stack.context.grad == Grad::Enabled && stack.frames.iter().any(is_conversion)
}

/// True if autograd itself accumulates a gradient on this stack. A hook of `AccumulateGrad` has Python frames
/// and is excluded.
pub(super) fn accumulates(stack: &Stack) -> bool {
    let name = |node: &Node| node.name.rsplit("::").next() == Some("AccumulateGrad");
    stack.kind != StackKind::Python && stack.context.node.as_deref().is_some_and(name)
}

/// True if a block without a tensor is a workspace. A resized storage keeps its former category.
pub(super) fn is_workspace(purpose: &Purpose) -> bool {
    purpose.what.is_some() || !purpose.function.contains("resize")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::event::Context;

    #[test]
    fn every_rule_stands_at_its_own_number() {
        for (number, rule) in CategoryRule::ALL.iter().enumerate() {
            assert_eq!(*rule as usize, number);
        }
        for &category in Category::ALL {
            let again = CategoryRule::as_before(category);
            assert_eq!(again.status(), RuleStatus::Provisional);
            if category != Category::Workspace {
                assert_eq!(again.category(), category);
            }
        }
    }

    #[test]
    fn what_changes_its_category_changes_no_sum() {
        let mut live = Composition::default();
        live.add(CategoryRule::SoFarForward, 512);
        live.change(
            CategoryRule::SoFarForward,
            CategoryRule::FreedInBackward,
            512,
        );
        assert_eq!((live.known(), live.of(Category::Activation)), (512, 512));
        assert_eq!(live.provisional(Category::Activation), 0);
    }

    fn stack(kind: StackKind, file: &str, function: &str) -> Stack {
        Stack {
            kind,
            frames: vec![Frame {
                file: file.into(),
                line: 1,
                function: function.into(),
                library: None,
            }],
            truncated: false,
            context: Context::default(),
        }
    }

    #[test]
    fn parameters_are_built_by_torch_alone() {
        let python = |file: &str, function: &str| stack(StackKind::Python, file, function);
        let torch = "/p/site-packages/torch/nn/modules";
        assert!(builds(&python(&format!("{torch}/module.py"), "convert")));
        assert!(builds(&python(&format!("{torch}/linear.py"), "__init__")));
        assert!(!builds(&python(&format!("{torch}/linear.py"), "forward")));
        assert!(!builds(&python("/w/model.py", "__init__")));
    }

    #[test]
    fn a_hook_of_accumulate_grad_accumulates_nothing() {
        let waiting = StackKind::Waiting {
            thread: "pt_autograd_0".into(),
        };
        let mut engine = stack(waiting, "/w/train.py", "main");
        let mut hook = stack(StackKind::Python, "/w/train.py", "hook");
        let node = Arc::new(Node {
            name: "torch::autograd::AccumulateGrad".into(),
            forward: None,
        });
        engine.context.node = Some(Arc::clone(&node));
        hook.context.node = Some(node);
        assert!(accumulates(&engine));
        assert!(!accumulates(&hook));
    }
}
