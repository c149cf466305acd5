//! Python files and functions of PyTorch by which a frame on a stack is recognized. The names are those of PyTorch
//! 2.0 to 2.15; where versions differ, each row says so.

use std::sync::Arc;

use crate::event::Frame;

/// Name of the thread that watches a process group (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp@v2.15.0).
pub const WATCHDOG_THREAD: &str = "pt_nccl_watchdg";

/// A Python function of PyTorch whose presence on a stack has a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TorchCall {
    Module,
    /// Conversion of a module's parameters: `Module.to()` and the like.
    ModuleConversion,
    ModuleConstruction,
    Parameter,
    Dropout,
    Engine,
    /// `BackwardCFunction.apply`, by which autograd calls a Python `Function`. It has a frame up to 2.14.
    FunctionApply,
    Checkpoint,
    OptimizerStep,
    Optimizer,
    /// The fetcher of a data loader, which makes samples and batches.
    DataFetch,
    DataCollate,
    Data,
    CompiledForward,
    CompiledBackward,
}

impl TorchCall {
    pub fn of(frame: &Frame) -> Option<Self> {
        let file = torch_file(frame)?;
        Some(match (file, &*frame.function) {
            // torch/nn/modules/module.py@v2.0.1, @v2.15.0
            (MODULE, function) if ModuleFunction::of(function).is_some() => Self::Module,
            (MODULE, "_slow_forward") => Self::Module,
            (MODULE, "_apply" | "convert") => Self::ModuleConversion,
            (file, "__init__" | "reset_parameters" | "flatten_parameters")
                if file.starts_with("nn/modules/") =>
            {
                Self::ModuleConstruction
            }
            ("nn/parameter.py", _) => Self::Parameter,
            ("nn/functional.py", "dropout") => Self::Dropout,
            // The first up to 2.1, the second from 2.2 on.
            ("autograd/__init__.py", "backward" | "grad")
            | ("autograd/graph.py", "_engine_run_backward") => Self::Engine,
            ("autograd/function.py", function) if function.starts_with("apply") => {
                Self::FunctionApply
            }
            ("utils/checkpoint.py", "recompute_fn" | "unpack_hook" | "unpack" | "backward") => {
                Self::Checkpoint
            }
            // `Optimizer.profile_hook_step` wraps the `step` of every subclass, including those outside torch.
            ("optim/optimizer.py", "wrapper" | "_use_grad") => Self::OptimizerStep,
            (file, "step") if file.starts_with("optim/") && file != "optim/lr_scheduler.py" => {
                Self::OptimizerStep
            }
            (file, _) if file.starts_with("optim/") => Self::Optimizer,
            ("utils/data/_utils/fetch.py", _) => Self::DataFetch,
            ("utils/data/_utils/collate.py", _) => Self::DataCollate,
            (file, _) if file.starts_with("utils/data/") => Self::Data,
            (file, "forward") if defines_compiled_function(file) => Self::CompiledForward,
            (file, "backward") if defines_compiled_function(file) => Self::CompiledBackward,
            _ => return None,
        })
    }
}

const MODULE: &str = "nn/modules/module.py";

/// The function that every call of a module passes, in ascending order of preference
/// (torch/nn/modules/module.py@v2.15.0, @v2.0.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModuleFunction {
    /// `Module._call_impl`: up to 2.0. Later versions have it too, called by the other.
    CallImpl,
    /// `Module._wrapped_call_impl`: from 2.1 on.
    WrappedCallImpl,
}

impl ModuleFunction {
    fn of(function: &str) -> Option<Self> {
        match function {
            "_call_impl" => Some(Self::CallImpl),
            "_wrapped_call_impl" => Some(Self::WrappedCallImpl),
            _ => None,
        }
    }

    pub fn of_frame(frame: &Frame) -> Option<Self> {
        let call = Self::of(&frame.function)?;
        (torch_file(frame) == Some(MODULE)).then_some(call)
    }
}

/// True for files that define `CompiledFunction`, through which autograd calls compiled graphs (torch/_functorch):
/// `aot_autograd.py` in 2.0 and 2.1, `jit_compile_runtime_wrappers.py` in 2.2, `runtime_wrappers.py` since.
fn defines_compiled_function(file: &str) -> bool {
    let Some(inside) = file.strip_prefix(COMPILER) else {
        return false;
    };
    inside == "aot_autograd.py"
        || inside.starts_with("_aot_autograd/") && inside.ends_with("runtime_wrappers.py")
}

const COMPILER: &str = "_functorch/";

pub fn is_of_compiler(frame: &Frame) -> bool {
    torch_file(frame).is_some_and(|file| file.starts_with(COMPILER))
}

/// Returns the function of `torch.distributed` that a stack is in, or else a wrapper of NCCL's own function. NCCL gets
/// memory in it for the communicators of that call: it makes them, or connects them for a first use.
pub fn communicator_call(frames: &[Frame]) -> Option<&Arc<str>> {
    // torch/distributed/distributed_c10d.py@v2.0.1, @v2.15.0. The outermost frame is the function that the program calls.
    let is_of_torch = |frame: &&Frame| torch_file(frame) == Some("distributed/distributed_c10d.py");
    // vllm/distributed/device_communicators/pynccl_wrapper.py@v0.33.0 names its methods after the C functions.
    let is_wrapper = |frame: &&Frame| frame.library.is_none() && frame.function.starts_with("nccl");
    let call = frames.iter().rev().find(is_of_torch);
    let call = call.or_else(|| frames.iter().find(is_wrapper));
    call.map(|frame| &frame.function)
}

/// Path of a Python frame's file inside the package `torch`: the part after the last `torch` component.
fn torch_file(frame: &Frame) -> Option<&str> {
    if frame.library.is_some() {
        return None;
    }
    match frame.file.rsplit_once("/torch/") {
        Some((_, inside)) => Some(inside),
        None => frame.file.strip_prefix("torch/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(file: &str, function: &str) -> Option<TorchCall> {
        TorchCall::of(&Frame {
            file: file.into(),
            line: 1,
            function: function.into(),
            library: None,
        })
    }

    #[test]
    fn a_file_counts_only_inside_the_package_torch() {
        let engine = Some(TorchCall::Engine);
        assert_eq!(
            call("/p/site-packages/torch/autograd/__init__.py", "grad"),
            engine
        );
        assert_eq!(call("torch/autograd/__init__.py", "grad"), engine);
        assert_eq!(call("/home/me/mytorch/autograd/__init__.py", "grad"), None);
    }

    #[test]
    fn a_learning_rate_scheduler_is_no_step_of_an_optimizer() {
        let of = |file: &str| call(&format!("/p/torch/optim/{file}"), "step");
        assert_eq!(of("adam.py"), Some(TorchCall::OptimizerStep));
        assert_eq!(of("lr_scheduler.py"), Some(TorchCall::Optimizer));
    }

    #[test]
    fn a_communicator_belongs_to_the_outermost_function_of_torch_distributed() {
        let frame = |file: &str, function: &str| Frame {
            file: file.into(),
            line: 1,
            function: function.into(),
            library: None,
        };
        let of = |frames: &[Frame]| communicator_call(frames).map(ToString::to_string);
        let (c10d, logger) = (
            "/p/torch/distributed/distributed_c10d.py",
            "/p/torch/distributed/c10d_logger.py",
        );
        let mut stack = vec![
            frame(c10d, "_new_process_group_helper"),
            frame(c10d, "new_group"),
            frame(logger, "wrapper"),
            frame("/home/ada/train.py", "setup"),
        ];
        assert_eq!(of(&stack).as_deref(), Some("new_group"));
        assert_eq!(of(&stack[2..]), None);
        let wrapper = frame("/p/vllm/pynccl_wrapper.py", "ncclCommInitRank");
        stack[0] = wrapper.clone();
        assert_eq!(of(&stack).as_deref(), Some("new_group"));
        assert_eq!(
            of(&[wrapper, frame("/s.py", "main")]).as_deref(),
            Some("ncclCommInitRank")
        );
        let native = Frame {
            library: Some("libnccl.so.2".into()),
            ..frame("", "ncclCommInitRank")
        };
        assert_eq!(of(&[native]), None);
    }

    #[test]
    fn a_native_frame_is_no_call_of_python() {
        let native = Frame {
            file: "/p/torch/autograd/__init__.py".into(),
            line: 1,
            function: "backward".into(),
            library: Some("libtorch.so".into()),
        };
        assert_eq!(TorchCall::of(&native), None);
    }
}
