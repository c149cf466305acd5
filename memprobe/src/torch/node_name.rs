//! PyTorch's name of an autograd node (`grad_fn.name()`), derived from its class.

use crate::process::class_name;
use crate::process::cpp_class::text;
use crate::process::memory::ReadMemory;

/// The namespace of the generated node classes, whose `name()` is that of the class
/// (tools/autograd/gen_autograd_functions.py).
const GENERATED: &str = "N5torch8autograd9generated";

/// The node class of a `torch.autograd.Function`, whose `name()` is that of its Python type
/// (torch/csrc/autograd/python_function.cpp).
pub const PYTHON: &str = "N5torch8autograd6PyNodeE";

const LONGEST_NAME: usize = 256;

/// Offset of `tp_name` in a type, in every version (Include/cpython/object.h).
const TYPE_NAME: u64 = 24;

/// Returns the name of the nodes of a class, given its mangled name; `None` if memprobe cannot demangle it.
/// Nodes of class [`PYTHON`] have individual names.
pub fn of_class(mangled: &str) -> Option<String> {
    let name = class_name::class_name(mangled)?;
    Some(if mangled.starts_with(GENERATED) {
        name.rsplit("::").next()?.to_owned()
    } else {
        name
    })
}

/// Returns the name of `torch.autograd.Function` nodes whose Python type is at the address `kind`.
pub fn of_python_type(memory: &impl ReadMemory, kind: u64) -> Option<String> {
    let name = memory.read_u64(kind.checked_add(TYPE_NAME)?).ok()?;
    text(memory, name, LONGEST_NAME)
}
