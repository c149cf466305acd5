//! What memory is for, and by which rule.

use crate::event::{Node, Purpose, Stack, StackKind};

use super::phase::after_torch;

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// A parameter or a buffer of a module.
    Parameter,
    /// The gradient of a parameter.
    Gradient,
    /// What an optimizer keeps from step to step.
    OptimizerState,
    /// Saved by a forward pass for the backward pass (a feature map).
    Activation,
    /// What a program puts into its modules.
    Input,
    /// Made and used up by a backward pass: mostly gradients of what is no parameter.
    IntermediateGradient,
    /// Freed soon, by the same part of the program that made it.
    Temporary,
    /// Not a tensor: a workspace of a library.
    Workspace,
    /// Nobody knows.
    Unknown,
}

impl Category {
    /// All of them, as they stand in tables.
    pub const ALL: [Self; 9] = [
        Self::Parameter,
        Self::Gradient,
        Self::OptimizerState,
        Self::Activation,
        Self::Input,
        Self::IntermediateGradient,
        Self::Temporary,
        Self::Workspace,
        Self::Unknown,
    ];

    /// The words used in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Gradient => "gradient",
            Self::OptimizerState => "optimizer state",
            Self::Activation => "activation",
            Self::Input => "input",
            Self::IntermediateGradient => "intermediate gradient",
            Self::Temporary => "temporary",
            Self::Workspace => "workspace",
            Self::Unknown => "unknown",
        }
    }

    /// Its name for programs.
    pub const fn key(self) -> &'static str {
        match self {
            Self::OptimizerState => "optimizer_state",
            Self::IntermediateGradient => "intermediate_gradient",
            one_word => one_word.as_str(),
        }
    }
}

macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $name:ident => $category:ident, $standing:ident, $words:literal;)+) => {
        /// What decided on the category of a block. Most infer it, from when memory was asked for and when it was given
        /// back; [`Self::NoTensor`] and [`Self::NamedUse`] go by what PyTorch made, and [`Self::is_exact`] tells those that go
        /// by the process's own objects.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum CategoryRule { $($(#[doc = $doc])+ $name,)+ }

        impl CategoryRule {
            /// All of them.
            pub const ALL: [Self; [$($words,)+].len()] = [$(Self::$name,)+];

            /// The category that follows from it.
            pub const fn category(self) -> Category {
                match self { $(Self::$name => Category::$category,)+ }
            }

            /// Whether it stays.
            pub const fn standing(self) -> Standing {
                match self { $(Self::$name => Standing::$standing,)+ }
            }

            /// The rule in words: what is said of the block.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $words,)+ }
            }
        }
    };
}

/// Whether a category can still change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It stays what it is.
    Settled,
    /// What comes next decides: this is what it is likely to be.
    Provisional,
}

rules! {
    /// It was made as parameters are.
    Built => Parameter, Settled, "made by Module.to(), a constructor of torch.nn or nn.Parameter, and kept: parameters and buffers";
    /// It outlived the backward pass that made it.
    OutlivesBackward => Gradient, Settled, "made in a backward pass and kept after it";
    /// `AccumulateGrad` made it.
    Accumulated => Gradient, Settled, "made by AccumulateGrad";
    /// It outlived the step that made it.
    OutlivesStep => OptimizerState, Settled, "made in Optimizer.step() and kept after it";
    /// Forward to backward.
    FreedInBackward => Activation, Settled, "made in a forward pass, live when the backward pass began, freed by it";
    /// As above, of what was computed again.
    Recomputed => Activation, Settled, "made again in a backward pass (checkpoint), freed by it later";
    /// `torch.utils.data` made it.
    Loaded => Input, Settled, "made in torch.utils.data and live when modules were called";
    /// It was there before modules were called, and gone soon after.
    GivenToForward => Input, Settled, "made outside of modules after the last batch or step, live when they were called, freed soon after";
    /// Within one backward pass.
    WithinBackward => IntermediateGradient, Settled, "made and freed in one backward pass";
    /// Within one backward pass, where nothing says what is a tensor: it may be a workspace.
    FreedAtOnce => Temporary, Settled, "made in a backward pass and freed by its next call of the allocator: a workspace, or used up at once";
    /// Within one forward pass.
    WithinForward => Temporary, Settled, "made and freed in one forward pass";
    /// Within one recomputation.
    WithinRecompute => Temporary, Settled, "made and freed while a checkpoint was computed again";
    /// Within one step.
    WithinStep => Temporary, Settled, "made and freed in one Optimizer.step()";
    /// Within one evaluation.
    WithinEvaluation => Temporary, Settled, "made and freed in modules called without grad";
    /// Before anything else began.
    WithinOther => Temporary, Settled, "made and freed outside of modules, passes and steps";
    /// PyTorch made no tensor.
    NoTensor => Workspace, Settled, "PyTorch made no tensor for it";
    /// A native function says for what.
    NamedUse => Workspace, Settled, "PyTorch made no tensor for it, and a native function tells its use";
    /// Made in forward, not freed by the backward pass.
    OutlivesItsPass => Unknown, Settled, "made in a forward pass and not freed by the backward pass: an output that the program keeps, or a graph";
    /// Made in forward; no backward pass came.
    NoBackward => Unknown, Settled, "made in a forward pass that no backward pass followed";
    /// Made by a recomputation and kept.
    OutlivesRecompute => Unknown, Settled, "made again in a backward pass (checkpoint) and kept after it";
    /// It outlived the backward pass that made it, and is not of a parameter's size, where nothing says what is a tensor.
    LikeNoParameter => Unknown, Settled, "made in a backward pass and kept after it, of no parameter's size: it may be a workspace";
    /// Made by modules without grad and kept.
    OutlivesEvaluation => Unknown, Settled, "made in modules called without grad and kept after them";
    /// Made outside and kept for long.
    LongLived => Unknown, Settled, "made outside of modules and kept through several forward passes";
    /// Nothing tells.
    NothingTells => Unknown, Settled, "made where nothing tells what for";
    /// Several threads train.
    Crowded => Unknown, Settled, "several threads train at once: whose pass it is cannot be told";
    /// In the `_parameters` of a module.
    NamedParameter => Parameter, Settled, "a parameter of a module, by the process's objects";
    /// In the `_buffers` of a module.
    NamedBuffer => Parameter, Settled, "a buffer of a module, by the process's objects";
    /// The `.grad` of a tensor.
    NamedGradient => Gradient, Settled, "the .grad of a tensor, by the process's objects";
    /// In the `state` of an optimizer.
    NamedOptimizerState => OptimizerState, Settled, "in the state of an optimizer, by the process's objects";
    /// Kept by a node of the graph.
    NamedSaved => Activation, Settled, "kept for the backward pass by a node, by the process's objects";
    /// In forward, still live.
    SoFarForward => Activation, Provisional, "made in a forward pass that still runs";
    /// Live when the backward pass began.
    SoFarSaved => Activation, Provisional, "made in a forward pass, live when the backward pass began";
    /// Computed again, still live.
    SoFarRecomputed => Activation, Provisional, "made again in a backward pass (checkpoint) that still runs";
    /// In backward, still live.
    SoFarBackward => IntermediateGradient, Provisional, "made in a backward pass that still runs";
    /// In a step, still live.
    SoFarStep => Temporary, Provisional, "made in an Optimizer.step() that still runs";
    /// Without grad, still live.
    SoFarEvaluation => Temporary, Provisional, "made in modules called without grad, which still run";
    /// Loaded, not used yet.
    SoFarLoaded => Input, Provisional, "made in torch.utils.data, no module was called since";
    /// Built, not used yet.
    SoFarBuilt => Parameter, Provisional, "made as parameters are, nothing ran since";
    /// Outside, used.
    SoFarGiven => Input, Provisional, "made outside of modules after the last batch or step, live when they were called";
    /// Outside, not used yet.
    SoFarOther => Unknown, Provisional, "made outside of modules, passes and steps, nothing ran since";
    /// As blocks of this stack were before.
    AsParameter => Parameter, Provisional, "what was made there before turned out to be that";
    /// As blocks of this stack were before.
    AsGradient => Gradient, Provisional, "what was made there before turned out to be that";
    /// As blocks of this stack were before.
    AsOptimizerState => OptimizerState, Provisional, "what was made there before turned out to be that";
    /// As blocks of this stack were before.
    AsActivation => Activation, Provisional, "what was made there before turned out to be that";
    /// As blocks of this stack were before.
    AsInput => Input, Provisional, "what was made there before turned out to be that";
    /// As blocks of this stack were before.
    AsIntermediateGradient => IntermediateGradient, Provisional, "what was made there before turned out to be that";
    /// As blocks of this stack were before.
    AsTemporary => Temporary, Provisional, "what was made there before turned out to be that";
    /// As blocks of this stack were before.
    AsUnknown => Unknown, Provisional, "what was made there before could not be told either";
}

impl CategoryRule {
    /// Whether it infers nothing: the process's own objects said so.
    pub const fn is_exact(self) -> bool {
        matches!(
            self,
            Self::NamedParameter
                | Self::NamedBuffer
                | Self::NamedGradient
                | Self::NamedOptimizerState
                | Self::NamedSaved
        )
    }

    /// Whether it follows from when passes and steps began and ended.
    pub(super) const fn goes_by_passes(self) -> bool {
        !matches!(
            self,
            Self::Built
                | Self::Accumulated
                | Self::NoTensor
                | Self::NamedUse
                | Self::NothingTells
                | Self::WithinOther
        ) && !self.is_exact()
    }

    /// Where earlier blocks of a stack turned out to be of a category, the next is likely to be of it too.
    /// Workspaces are known at once.
    pub(super) const fn as_before(category: Category) -> Self {
        match category {
            Category::Parameter => Self::AsParameter,
            Category::Gradient => Self::AsGradient,
            Category::OptimizerState => Self::AsOptimizerState,
            Category::Activation => Self::AsActivation,
            Category::Input => Self::AsInput,
            Category::IntermediateGradient => Self::AsIntermediateGradient,
            Category::Temporary => Self::AsTemporary,
            Category::Workspace | Category::Unknown => Self::AsUnknown,
        }
    }
}

/// How the allocated bytes of a device divide. The sum of all is what the allocator says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Composition {
    by_rule: [u64; CategoryRule::ALL.len()],
    /// Bytes from before attach.
    pub before_attach: u64,
    /// The allocator's total less all that is known; 0 unless events were lost.
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
    /// Bytes whose category a rule decided.
    pub fn by_rule(&self, rule: CategoryRule) -> u64 {
        self.by_rule[rule as usize]
    }

    /// Bytes of a category.
    pub fn of(&self, category: Category) -> u64 {
        let rules = CategoryRule::ALL.iter();
        rules
            .filter(|rule| rule.category() == category)
            .map(|rule| self.by_rule(*rule))
            .fold(0, u64::saturating_add)
    }

    /// Bytes of each category, in the order in which they are declared.
    pub(super) fn by_category(&self) -> [u64; Category::ALL.len()] {
        let mut bytes = [0_u64; Category::ALL.len()];
        for (rule, held) in CategoryRule::ALL.iter().zip(self.by_rule) {
            let of = &mut bytes[rule.category() as usize];
            *of = of.saturating_add(held);
        }
        bytes
    }

    /// Bytes of a category that may turn out to be of another.
    pub fn provisional(&self, category: Category) -> u64 {
        let rules = CategoryRule::ALL.iter();
        rules
            .filter(|rule| rule.category() == category && rule.standing() == Standing::Provisional)
            .map(|rule| self.by_rule(*rule))
            .fold(0, u64::saturating_add)
    }

    /// Bytes of all categories together.
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

    pub(super) fn change(&mut self, from: CategoryRule, to: CategoryRule, size: u64) {
        self.take(from, size);
        self.add(to, size);
    }
}

/// Whether a stack makes parameters or buffers: it moves or converts those of a module, or constructs one that
/// torch brings, or makes an `nn.Parameter` (torch/nn/modules/module.py, torch/nn/parameter.py@v2.15.0).
pub(super) fn builds(stack: &Stack) -> bool {
    stack.kind == StackKind::Python
        && stack.frames.iter().any(|frame| {
            let Some(inside) = after_torch(&frame.file).filter(|_| frame.library.is_none()) else {
                return false;
            };
            match (inside, &*frame.function) {
                ("nn/modules/module.py", "_apply" | "convert") => true,
                ("nn/parameter.py", _) => true,
                (file, "__init__" | "reset_parameters" | "flatten_parameters") => {
                    file.starts_with("nn/modules/")
                }
                _ => false,
            }
        })
}

/// Whether it is autograd itself that accumulates a gradient there: in a hook of it, frames of Python say so.
pub(super) fn accumulates(stack: &Stack) -> bool {
    let name = |node: &Node| node.name.rsplit("::").next() == Some("AccumulateGrad");
    stack.kind != StackKind::Python && stack.context.node.as_deref().is_some_and(name)
}

/// Whether a use without a tensor is a workspace. A storage that is resized is what it was before.
pub(super) fn is_workspace(purpose: &Purpose) -> bool {
    purpose.what.is_some() || !purpose.function.contains("resize")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::event::{Context, Frame};

    #[test]
    fn every_rule_stands_at_its_own_number() {
        for (number, rule) in CategoryRule::ALL.iter().enumerate() {
            assert_eq!(*rule as usize, number);
        }
        for category in Category::ALL {
            let again = CategoryRule::as_before(category);
            assert_eq!(again.standing(), Standing::Provisional);
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
