//! Tensors of PyTorch, its graph, and the tables of its allocator.

use std::error::Error;
use std::ffi::OsStr;
use std::process::Command;

use memprobe::process::facts;
use memprobe::process::maps::Maps;
use memprobe::python::heap::capture::CaptureMode;
use memprobe::torch::allocator::active::AllocatorVariable;
use memprobe::torch::allocator::tables;
use memprobe::torch::objects::{Layouts, graph};
use memprobe_fuzz::pytorch::VERSIONS;

use crate::target::{Seen, Target};
use crate::write;

/// Prints the addresses of tensors of many kinds, one line for each input, and waits.
const PROGRAM: &str = r"
import sys, torch
from torch import nn
gpu = torch.device('cuda')
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2
model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).to(gpu)
x = torch.zeros(5, 4, device=gpu)
out = Twice.apply(model(x))
out.sum().backward(retain_graph=True)
weight = model[0].weight
with torch.autograd.graph.saved_tensors_hooks(lambda it: it, lambda it: it):
    hooked = (weight * weight).sum()
changed = torch.zeros(4, requires_grad=True) * 1
view = changed[1:]
changed.mul_(2)
values = [
    list(model.parameters()),
    [out, hooked, x],
    [weight[1:], weight.t(), view, changed, weight.detach()],
    [torch.zeros(2, 1, 3, 1, 2, 1, 2), torch.zeros(0), torch.tensor(1.5)],
    [x, torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()],
    [torch.zeros(3, device='meta'), torch.zeros(3, dtype=torch.complex64)],
    [torch.zeros(9, dtype=torch.int8), torch.zeros(9, dtype=torch.bfloat16, device=gpu)],
]
kept = [torch.zeros(size, device=gpu) for size in (1, 200, 300000, 400000, 9000000)]
freed = [torch.zeros(size, device=gpu) for size in (100, 500000)]
with torch.cuda.stream(torch.cuda.Stream()):
    other = torch.zeros(1000, device=gpu)
del freed
for kind in values:
    print(*[id(value) for value in kind])
print('end', flush=True)
sys.stdin.read()
";

/// Writes the inputs of a Python with PyTorch.
pub fn write_inputs(interpreter: &OsStr) -> Result<(), Box<dyn Error>> {
    let target = Target::start(Command::new(interpreter).args(["-c", PROGRAM]))?;
    let release = facts::torch_version(target.tgid()).ok_or("its PyTorch has no version")?;
    let release = release.split('+').next().unwrap_or_default();
    let version = VERSIONS.iter().position(|known| *known == Some(release));
    let version = version.ok_or_else(|| format!("no version {release}"))? as u8;
    for (number, objects) in target.lines.iter().enumerate() {
        let memory = Seen::of(target.tgid());
        let layouts = Layouts::find(&memory, Some(release), objects, CaptureMode::Paused)?;
        let reader = layouts.reader(&memory);
        let tensors = objects.iter().filter_map(|&at| reader.tensor_of(at));
        let _ = graph::collect(&reader, &tensors.collect::<Vec<_>>(), &[]);
        let input = memory.into_input(version, objects);
        write("tensors", &format!("torch{release}-{number}"), &input)?;
    }
    let maps = Maps::of(target.tgid())?;
    let variable = AllocatorVariable::find(target.tgid(), &maps)?.ok_or("no allocator")?;
    let memory = Seen::of(target.tgid());
    tables::read(&memory, variable, Some(release))?;
    let input = memory.into_input(version, &[variable.0]);
    Ok(write("allocator", &format!("torch{release}"), &input)?)
}
