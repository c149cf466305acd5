//! Choice of the stack frame that names a row: the user's own line.
//!
//! A tensor is nearly always allocated inside `torch`, so the innermost frame shows the operation
//! but not its user. The rule picks the line that a person would call theirs:
//!
//! 1. the innermost frame outside installed packages and Python itself;
//! 2. else the innermost frame of a package other than torch (for programs that consist of
//!    packages alone, such as an inference server);
//! 3. else the innermost frame.

use super::snapshot::{Grouping, Site};
use crate::event::{Frame, NoStack, Stack, StackKind};
use crate::torch::names::{TorchCall, is_of_compiler};

/// Owner of a source file, judged by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodeOwner {
    /// The user: neither an installed package nor part of Python.
    User,
    Package,
    /// torch, or code that torch generated.
    Torch,
    /// Python: its standard library and frozen modules.
    StandardLibrary,
    /// Start-up code written by an installer or `multiprocessing`.
    Launcher,
}

/// Top-level packages of the torch wheel.
const TORCH_PACKAGES: [&str; 3] = ["torch", "functorch", "torchgen"];

/// File names of code that packages generate and compile (numpy, attrs, decorator).
const GENERATED_BY_PACKAGES: [&str; 3] =
    ["<__array_function__", "<attrs generated", "<decorator-gen"];

/// Returns the owner of `file` (a `co_filename`).
///
/// Only the components of the path count; the file system is not read. `<string>` (`python -c`,
/// `exec`), `<stdin>` and notebook cells belong to the user.
pub fn origin(file: &str) -> CodeOwner {
    if file.starts_with('<') {
        return origin_of_generated(file);
    }
    let mut components = file.split('/').filter(|part| !part.is_empty()).peekable();
    let mut parent = "";
    let mut in_standard_library = false;
    while let Some(part) = components.next() {
        if part == "site-packages" || part == "dist-packages" {
            // A single-file module (`site-packages/six.py`) is its own package.
            let package = components.peek().copied().unwrap_or_default();
            return if TORCH_PACKAGES.contains(&package) {
                CodeOwner::Torch
            } else {
                CodeOwner::Package
            };
        }
        if part.starts_with("torchinductor_") && components.peek().is_some() {
            return CodeOwner::Torch;
        }
        in_standard_library |= matches!(parent, "lib" | "lib64") && is_python_directory(part);
        if components.peek().is_none() && is_of_inductor(parent, part) {
            return CodeOwner::Torch;
        }
        if components.peek().is_none() && parent == "bin" && !part.ends_with(".py") {
            return CodeOwner::Launcher;
        }
        parent = part;
    }
    if in_standard_library {
        CodeOwner::StandardLibrary
    } else {
        CodeOwner::User
    }
}

/// Returns true if inductor wrote the file, in any cache folder. Its name is a `c` and 51 digits of
/// base 32, of which the first two name the folder (`code_hash` and `get_path`,
/// torch/_inductor/codecache.py@v2.15.0; the same in 2.0).
fn is_of_inductor(folder: &str, file: &str) -> bool {
    let Some(hash) = file.strip_prefix('c').and_then(|it| it.strip_suffix(".py")) else {
        return false;
    };
    let is_digit = |byte: u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
    hash.len() == 51 && hash.bytes().all(is_digit) && folder == &hash[..2]
}

/// Returns the owner of code whose file name is in angle brackets.
fn origin_of_generated(file: &str) -> CodeOwner {
    if file.starts_with("<frozen ") {
        CodeOwner::StandardLibrary
    } else if file.starts_with("<eval_with_key>") {
        // torch.fx compiles its graphs under this name (torch/fx/graph_module.py).
        CodeOwner::Torch
    } else if GENERATED_BY_PACKAGES
        .iter()
        .any(|prefix| file.starts_with(prefix))
    {
        CodeOwner::Package
    } else {
        CodeOwner::User
    }
}

/// Returns true for a folder of Python under `lib`: `python3.11`, `python3.13t`, `python312.zip`
/// (CPython `Lib/sysconfig/__init__.py`, `Modules/getpath.py`).
fn is_python_directory(part: &str) -> bool {
    let Some(version) = part.strip_prefix("python") else {
        return false;
    };
    let version = version.strip_suffix(".zip").unwrap_or(version);
    let version = version.trim_end_matches(['t', 'd']);
    version.starts_with('3')
        && version
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
        && version.len() > 1
}

/// Index into `frames` (innermost first) of the frame that names the row; `None` without frames.
fn naming_frame(frames: &[Frame], grouping: Grouping) -> Option<usize> {
    if frames.is_empty() {
        return None;
    }
    match grouping {
        Grouping::Innermost => Some(0),
        Grouping::User => Some(user_frame(frames)),
    }
}

/// Returns the row of the table of lines for a stack.
///
/// For a thread that waits in `backward()` the innermost frame is the same line of torch in every
/// program. The user's line therefore names the row in both groupings.
///
/// Memory of an autograd node belongs to the line of the forward pass that made the node, if known.
/// Memory allocated by the node's own Python (a `torch.autograd.Function`, or a recomputed forward
/// pass) belongs to that line.
pub fn site(stack: &Stack, grouping: Grouping) -> Site {
    if let Some(site) = node_site(stack, grouping) {
        return site;
    }
    let (thread, grouping, wrap): (_, _, fn(Frame) -> Site) = match &stack.kind {
        StackKind::Native => ("".into(), grouping, Site::Line),
        StackKind::Python => ("".into(), grouping, Site::Line),
        StackKind::Waiting { thread } => (thread.clone(), Grouping::User, Site::Backward),
        StackKind::Unknown { thread, reason } => {
            return Site::NoLine {
                thread: thread.clone(),
                reason: reason.as_str(),
            };
        }
    };
    let frames = naming_frames(stack);
    match naming_frame(frames, grouping) {
        Some(index) => wrap(frames[index].clone()),
        None => Site::NoLine {
            thread,
            reason: NoStack::NoPythonFrames.as_str(),
        },
    }
}

/// Row for memory that an autograd node allocated itself, if the node's forward stack is known.
fn node_site(stack: &Stack, grouping: Grouping) -> Option<Site> {
    let node = stack.context.node.as_ref()?;
    let is_its_own = match stack.kind {
        StackKind::Waiting { .. } | StackKind::Unknown { .. } => true,
        StackKind::Python => {
            let frames = naming_frames(stack);
            frames.first().is_some_and(calls_engine)
                || grouping == Grouping::User && is_compiled(frames)
        }
        StackKind::Native => false,
    };
    let forward = node.forward.as_ref().filter(|_| is_its_own)?;
    // A backward pass made the node: the innermost frame would be torch's, so the user's line names
    // it.
    let grouping = match forward.kind {
        StackKind::Python if !forward.frames.first().is_some_and(calls_engine) => grouping,
        _ => Grouping::User,
    };
    let frames = naming_frames(forward);
    let frame = &frames[naming_frame(frames, grouping)?];
    Some(Site::Node {
        forward: frame.clone(),
        name: node.name.clone(),
    })
}

/// Returns true if all Python of the node is torch's, as for a backward pass compiled by
/// `torch.compile` (torch/_functorch).
fn is_compiled(frames: &[Frame]) -> bool {
    let mut own = frames.iter().take_while(|frame| !calls_engine(frame));
    let is_of_torch = |frame: &Frame| {
        matches!(
            origin_of(frame),
            CodeOwner::Torch | CodeOwner::StandardLibrary
        )
    };
    own.clone().all(is_of_torch) && own.any(is_of_compiler)
}

/// Returns true for the frame in which PyTorch's Python runs autograd's engine. On the CPU, nodes run on that
/// same thread.
fn calls_engine(frame: &Frame) -> bool {
    TorchCall::of(frame) == Some(TorchCall::Engine)
}

/// Frames that may name the row: the Python frames, or all frames of a native stack.
fn naming_frames(stack: &Stack) -> &[Frame] {
    let native = match stack.kind {
        StackKind::Native => 0,
        _ => {
            let is_native = |frame: &&Frame| frame.library.is_some();
            stack.frames.iter().take_while(is_native).count()
        }
    };
    &stack.frames[native..]
}

pub fn origin_of(frame: &Frame) -> CodeOwner {
    match &frame.library {
        None => origin(&frame.file),
        Some(library) => origin_of_native(library, &frame.function),
    }
}

/// Returns the owner of a native function. A program's own code lies outside the system's folders;
/// it may have CUDA's runtime linked in.
fn origin_of_native(library: &str, function: &str) -> CodeOwner {
    const SYSTEM: [&str; 4] = ["/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"];
    const NVIDIA: [&str; 5] = ["libcu", "libnv", "libnccl", "libnpp", "libnvidia"];
    let name = library.rsplit('/').next().unwrap_or(library);
    let is_cuda = |prefix: &str| {
        let rest = function.strip_prefix(prefix).unwrap_or_default();
        rest.starts_with(|next: char| next.is_ascii_uppercase())
    };
    if is_cuda("cuda") || is_cuda("cu") || function.contains("cudart") {
        return CodeOwner::Package;
    }
    match origin(library) {
        CodeOwner::User if NVIDIA.iter().any(|prefix| name.starts_with(prefix)) => {
            CodeOwner::Package
        }
        CodeOwner::User | CodeOwner::Launcher => {
            let of_system = library.starts_with('[')
                || name.starts_with("libpython")
                || name.starts_with("libstdc++.so")
                || SYSTEM.iter().any(|folder| library.starts_with(folder));
            if of_system {
                CodeOwner::StandardLibrary
            } else {
                CodeOwner::User
            }
        }
        other => other,
    }
}

/// Applies the rule at the head of this file; 0 if no better frame exists.
fn user_frame(frames: &[Frame]) -> usize {
    let mut package = None;
    for (index, frame) in frames.iter().enumerate() {
        match origin_of(frame) {
            CodeOwner::User if !starts_a_worker(frames, index) => return index,
            CodeOwner::Package => package = package.or(Some(index)),
            _ => {}
        }
    }
    package.unwrap_or(0)
}

/// Returns true for the `python -c` frame by which `multiprocessing` starts a process (CPython
/// `Lib/multiprocessing/spawn.py`, `get_command_line`).
fn starts_a_worker(frames: &[Frame], index: usize) -> bool {
    &*frames[index].file == "<string>"
        && index + 1 == frames.len()
        && index
            .checked_sub(1)
            .is_some_and(|inner| frames[inner].file.contains("/multiprocessing/"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::event::{Context, Node};

    fn named(files: &[&str]) -> Vec<Frame> {
        files
            .iter()
            .map(|file| Frame {
                file: (*file).into(),
                line: 1,
                function: "f".into(),
                library: None,
            })
            .collect()
    }

    fn user_file<'a>(files: &[&'a str]) -> &'a str {
        files[naming_frame(&named(files), Grouping::User).expect("there are frames")]
    }

    const LINEAR: &str = "/opt/conda/lib/python3.12/site-packages/torch/nn/modules/linear.py";
    const TRAINER: &str = "/opt/conda/lib/python3.12/site-packages/transformers/trainer.py";
    const RUNPY: &str = "/usr/lib/python3.11/runpy.py";

    #[test]
    fn the_standard_library_is_known_by_its_directory() {
        for file in [
            "/usr/lib/python3.11/contextlib.py",
            "/opt/conda/lib/python3.12/threading.py",
            "/usr/lib64/python3.9/asyncio/events.py",
            "/home/u/.pyenv/versions/3.13.1/lib/python3.13t/queue.py",
            "/usr/lib/python312.zip/runpy.py",
            "<frozen importlib._bootstrap>",
            "<frozen runpy>",
        ] {
            assert_eq!(origin(file), CodeOwner::StandardLibrary, "{file}");
        }
    }

    #[test]
    fn installed_packages_are_known_wherever_they_are_installed() {
        for file in [
            TRAINER,
            "/usr/lib/python3/dist-packages/numpy/core/numeric.py",
            "/home/u/.local/lib/python3.11/site-packages/six.py",
            "/venv/lib/python3.11/site-packages/torchvision/models/resnet.py",
            "<__array_function__ internals>",
        ] {
            assert_eq!(origin(file), CodeOwner::Package, "{file}");
        }
    }

    #[test]
    fn torch_and_what_it_generates_is_torch() {
        for file in [
            LINEAR,
            "/usr/local/lib/python3.10/dist-packages/torch/optim/adamw.py",
            "/usr/lib/python3.11/site-packages/functorch/compile.py",
            "/tmp/torchinductor_root/ab/cabdefghij.py",
            "/home/u/cache/my/cmynpzhse3jzvlqsln7lqrwffpldgjzp46skxav6dfxc3sntz5nb.py",
            "/usr/lib/python3.11/site-packages/torch/_functorch/_aot_autograd/codegen.py:codegen(forward)",
            "<eval_with_key>.12",
        ] {
            assert_eq!(origin(file), CodeOwner::Torch, "{file}");
        }
    }

    #[test]
    fn scripts_modules_notebooks_and_typed_code_are_the_users() {
        for file in [
            "train.py",
            "/home/u/project/model.py",
            "/home/u/cache/ym/cmynpzhse3jzvlqsln7lqrwffpldgjzp46skxav6dfxc3sntz5nb.py",
            "/home/u/lib/model.py",
            "/home/u/lib/pythonic/model.py",
            "/home/u/lib/python-project/model.py",
            "/home/u/torch/nn/mine.py",
            "/tmp/ipykernel_1/123.py",
            "<ipython-input-3-0123456789ab>",
            "<string>",
            "<stdin>",
            "/home/u/bin/train.py",
            "",
            "/",
        ] {
            assert_eq!(origin(file), CodeOwner::User, "{file}");
        }
    }

    #[test]
    fn the_script_that_an_installer_writes_is_a_launcher() {
        assert_eq!(origin("/usr/local/bin/torchrun"), CodeOwner::Launcher);
        assert_eq!(origin("/venv/bin/vllm"), CodeOwner::Launcher);
    }

    #[test]
    fn the_innermost_line_of_the_user_names_the_row() {
        assert_eq!(
            user_file(&[LINEAR, "/w/model.py", TRAINER, "/w/train.py"]),
            "/w/model.py"
        );
        assert_eq!(
            user_file(&[LINEAR, TRAINER, RUNPY, "/w/train.py"]),
            "/w/train.py"
        );
        assert_eq!(
            user_file(&["/tmp/ipykernel_1/123.py", TRAINER]),
            "/tmp/ipykernel_1/123.py"
        );
        assert_eq!(
            user_file(&["/tmp/torchinductor_u/x/cx.py", LINEAR, "/w/train.py"]),
            "/w/train.py"
        );
    }

    #[test]
    fn without_a_line_of_the_user_the_innermost_package_other_than_torch_names_the_row() {
        assert_eq!(
            user_file(&[LINEAR, TRAINER, RUNPY, "/usr/local/bin/accelerate"]),
            TRAINER
        );
        assert_eq!(user_file(&["<frozen runpy>", TRAINER]), TRAINER);
    }

    #[test]
    fn with_torch_and_python_alone_the_innermost_frame_names_the_row() {
        assert_eq!(user_file(&[LINEAR, RUNPY]), LINEAR);
        assert_eq!(
            user_file(&["<frozen importlib._bootstrap>"]),
            "<frozen importlib._bootstrap>"
        );
    }

    #[test]
    fn the_line_by_which_multiprocessing_starts_a_worker_is_not_the_users() {
        let spawn = "/usr/lib/python3.11/multiprocessing/spawn.py";
        assert_eq!(user_file(&[LINEAR, TRAINER, spawn, "<string>"]), TRAINER);
        assert_eq!(user_file(&[LINEAR, "<string>"]), "<string>");
    }

    #[test]
    fn a_waiting_thread_is_named_by_the_line_of_the_user_in_both_groupings() {
        let stack = Stack {
            kind: StackKind::Waiting {
                thread: "pt_autograd_0".into(),
            },
            frames: named(&[LINEAR, "/w/train.py"]),
            truncated: false,
            context: Context::default(),
        };
        for grouping in [Grouping::User, Grouping::Innermost] {
            assert_eq!(
                site(&stack, grouping),
                Site::Backward(stack.frames[1].clone())
            );
        }
    }

    const ENGINE: &str = "/opt/lib/python3.12/site-packages/torch/autograd/graph.py";

    /// Stack of a node made by an operation of `forward`. A frame in [`ENGINE`] runs the engine.
    fn of_node(kind: StackKind, files: &[&str], forward: Option<&[&str]>) -> Stack {
        let stack = |kind, files: &[&str]| {
            let mut frames = named(files);
            for frame in &mut frames {
                if &*frame.file == ENGINE {
                    frame.function = "_engine_run_backward".into();
                }
            }
            Stack {
                kind,
                frames,
                truncated: false,
                context: Context::default(),
            }
        };
        let mut own = stack(kind, files);
        own.context.node = Some(Arc::new(Node {
            name: "AddmmBackward0".into(),
            forward: forward.map(|files| Arc::new(stack(StackKind::Python, files))),
        }));
        own
    }

    #[test]
    fn what_a_node_asks_for_belongs_to_the_line_of_the_forward_pass() {
        let waiting = || StackKind::Waiting {
            thread: "pt_autograd_0".into(),
        };
        let forward: &[&str] = &[LINEAR, "/w/model.py", "/w/train.py"];
        let back_to = |file: &str| Site::Node {
            forward: named(&[file]).remove(0),
            name: "AddmmBackward0".into(),
        };
        let on_gpu = of_node(waiting(), &[ENGINE, "/w/train.py"], Some(forward));
        assert_eq!(site(&on_gpu, Grouping::User), back_to("/w/model.py"));
        assert_eq!(site(&on_gpu, Grouping::Innermost), back_to(LINEAR));
        let on_cpu = of_node(StackKind::Python, &[ENGINE, "/w/train.py"], Some(forward));
        assert_eq!(site(&on_cpu, Grouping::User), back_to("/w/model.py"));
    }

    #[test]
    fn what_the_python_of_a_node_asks_for_belongs_to_its_own_line() {
        let files = ["/w/square.py", ENGINE, "/w/train.py"];
        let own = of_node(StackKind::Python, &files, Some(&["/w/model.py"]));
        assert_eq!(
            site(&own, Grouping::User),
            Site::Line(own.frames[0].clone())
        );
    }

    #[test]
    fn what_compiled_python_of_a_node_asks_for_belongs_to_the_line_of_the_forward_pass() {
        const GENERATED: &str = "/tmp/torchinductor_u/x/cx.py";
        const FUNCTION: &str =
            "/opt/lib/python3.12/site-packages/torch/_functorch/_aot_autograd/runtime_wrappers.py";
        let forward: &[&str] = &[LINEAR, "/w/model.py"];
        for files in [
            &[GENERATED, FUNCTION][..],
            &[GENERATED, FUNCTION, ENGINE, "/w/train.py"],
        ] {
            let own = of_node(StackKind::Python, files, Some(forward));
            let Site::Node { forward, .. } = site(&own, Grouping::User) else {
                panic!("{files:?}");
            };
            assert_eq!(&*forward.file, "/w/model.py");
            let innermost = site(&own, Grouping::Innermost);
            assert_eq!(innermost, Site::Line(own.frames[0].clone()));
        }
    }

    #[test]
    fn an_unseen_node_leaves_the_waiting_line() {
        let waiting = StackKind::Waiting { thread: "w".into() };
        let stack = of_node(waiting, &[ENGINE, "/w/train.py"], None);
        assert_eq!(
            site(&stack, Grouping::User),
            Site::Backward(stack.frames[1].clone())
        );
    }

    #[test]
    fn a_stack_without_frames_names_the_reason() {
        let unknown = StackKind::Unknown {
            thread: "nccl".into(),
            reason: NoStack::Unreadable,
        };
        for (kind, thread, reason) in [
            (unknown, "nccl", NoStack::Unreadable),
            (StackKind::Python, "", NoStack::NoPythonFrames),
            (
                StackKind::Waiting { thread: "w".into() },
                "w",
                NoStack::NoPythonFrames,
            ),
        ] {
            let stack = Stack {
                kind,
                frames: Vec::new(),
                truncated: false,
                context: Context::default(),
            };
            let expected = Site::NoLine {
                thread: thread.into(),
                reason: reason.as_str(),
            };
            assert_eq!(site(&stack, Grouping::User), expected);
        }
    }

    #[test]
    fn the_innermost_grouping_takes_the_innermost_frame() {
        assert_eq!(
            naming_frame(&named(&[LINEAR, "/w/model.py"]), Grouping::Innermost),
            Some(0)
        );
        assert_eq!(naming_frame(&[], Grouping::Innermost), None);
        assert_eq!(naming_frame(&[], Grouping::User), None);
    }
}
