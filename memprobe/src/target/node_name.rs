//! What PyTorch calls a node of autograd's graph (`grad_fn.name()`), from the class that it is of.

use super::class_name;
use super::cpp_class::text;
use super::memory::ReadMemory;

/// The namespace of the operations whose backward pass PyTorch generates; their `name()` is that of
/// their class (tools/autograd/gen_autograd_functions.py).
const GENERATED: &str = "N5torch8autograd9generated";

/// The node of a `torch.autograd.Function`, whose `name()` is that of its Python type
/// (torch/csrc/autograd/python_function.cpp).
pub const PYTHON: &str = "N5torch8autograd6PyNodeE";

/// Bytes of the longest name of a Python type that is read.
const LONGEST_NAME: usize = 256;

/// Offset of `tp_name` in a type, in every version (Include/cpython/object.h).
const TYPE_NAME: u64 = 24;

/// The name of the nodes of a class, as it was mangled; `None` where memprobe cannot read that. Those of
/// [`PYTHON`] have names of their own.
pub fn of_class(mangled: &str) -> Option<String> {
    let name = class_name::class_name(mangled)?;
    Some(match mangled.starts_with(GENERATED) {
        true => name.rsplit("::").next()?.to_owned(),
        false => name,
    })
}

/// The name of the nodes of a `torch.autograd.Function`, whose objects are of the Python type at an address.
pub fn of_python_type(memory: &impl ReadMemory, kind: u64) -> Option<String> {
    let name = memory.read_u64(kind.checked_add(TYPE_NAME)?).ok()?;
    text(memory, name, LONGEST_NAME)
}
