"""Runs a workload, and writes what its memory is for, as PyTorch itself and the objects of the process say it.

    python purposes.py --out FILE [--profile] [--wait-after N --until FILE] WORKLOAD [ARGUMENTS...]

With `--wait-after` it prints `ready PID` after N calls of modules from outside of modules, and waits for a file.

Each storage on the GPU that is seen to be for something is a sighting: how many blocks the allocator had handed out by then, the
address, and what for:

- `parameter` and `buffer` of the modules that are called, `gradient` and `optimizer_state` of the optimizers that step;
- `given`: an argument of a module that was called from outside of modules;
- `cached`: in a cache of keys and values, as the workload tells it;
- `saved`: kept by a node of autograd's graph, by `saved_tensors_hooks`; also when a checkpoint computes it again.

`calls` has how many blocks had been handed out when modules were called from outside of modules, and when that ended.

With `--profile` torch.profiler looks on, and `profiled` has its category of each block, in the order in which they were handed
out (torch/profiler/_memory_profiler.py): `no_tensor` where no tensor was ever seen in it, null where it has no category.
"""

import argparse
import contextlib
import json
import os
import runpy
import sys
import time

import torch
import torch.utils.checkpoint
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

# The CPU's allocator does not count what it hands out: there blocks of so many bytes are marks, and are counted.
MARK = 4099

device = "cuda"
marks = 0
sightings = []
calls = []
outermost = []
# After so many calls, for this file.
waits = [None, None]


def blocks():
    global marks
    if device == "cuda":
        return torch._C._cuda_memoryStats(0)["allocation"]["all"]["allocated"]
    marks += 1
    torch.empty(MARK, dtype=torch.uint8)
    return marks


def see(kind, tensors):
    number = None
    for tensor in tensors:
        if torch.is_tensor(tensor) and tensor.device.type == device and tensor.layout == torch.strided:
            number = blocks() if number is None else number
            sightings.append((number, tensor.untyped_storage().data_ptr(), kind))


def keep(tensor):
    see("saved", [tensor])
    # An output that its own node kept would keep that node.
    return tensor.detach() if tensor.requires_grad else tensor


def wait_at(number):
    if number == waits[0]:
        print("ready", os.getpid(), flush=True)
        while not os.path.exists(waits[1]):
            time.sleep(0.01)


def enter(module, arguments):
    if not outermost:
        wait_at(len(calls))
        calls.append([blocks(), None])
        see("given", arguments)
        see("parameter", module.parameters())
        see("buffer", module.buffers())
    outermost.append(module)


def leave(_module, _arguments, _output):
    outermost.pop()
    if not outermost:
        calls[-1][1] = blocks()


class Recomputation(torch.utils.checkpoint._recomputation_hook):
    """The hooks under which a checkpoint computes again: they take the place of ours."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        pack = self.pack_hook
        self.pack_hook = lambda tensor: pack(keep(tensor))


def step(optimizer, *_):
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    see("parameter", parameters)
    see("gradient", [parameter.grad for parameter in parameters])
    states = optimizer.state.values()
    see("optimizer_state", [value for state in states for value in state.values()])


def categories(profiler):
    from torch._C._profiler import _EventType
    from torch.profiler._memory_profiler import TensorKey

    profile = profiler._memory_profile()
    latest = {}
    for key, version in profile._category_snapshot():
        latest[key] = max(version, latest.get(key, 0))

    def category(allocation):
        key = TensorKey.from_allocation(allocation)
        if key is None:
            return "no_tensor"
        told = profile._categories.get(key, latest.get(key, 0))
        return told and told.name.lower()

    events = [event.typed for event in profile._op_tree.sorted_nodes]
    allocations = [fields for kind, fields in events if kind == _EventType.Allocation]
    on_gpu = [it for it in allocations if it.device.type == "cuda" and it.alloc_size > 0]
    return [(it.ptr, it.alloc_size, category(it)) for it in on_gpu]


class Ended(BaseException):
    """The workload wants to end at once."""


def end_at_once(_status):
    raise Ended


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--wait-after", type=int)
    parser.add_argument("--until")
    parser.add_argument("workload")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    waits[:] = options.wait_after, options.until
    torch.cuda.init()
    register_module_forward_pre_hook(enter)
    register_module_forward_hook(leave, always_call=True)
    torch.utils.checkpoint._recomputation_hook = Recomputation
    register_optimizer_step_pre_hook(step)
    register_optimizer_step_post_hook(step)
    # For what only a workload can tell.
    sys.modules["purposes"] = sys.modules["__main__"]
    # Only where the workload is loaded from: what is live at its end is what it left.
    sys.argv = [options.workload, *options.arguments]
    end, os._exit = os._exit, end_at_once
    profiler = contextlib.nullcontext()
    if options.profile:
        profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            profile_memory=True,
            record_shapes=True,
            with_stack=True,
        )
    with profiler, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with contextlib.suppress(Ended):
            runpy.run_path(options.workload, run_name="__main__")
    written = {"sightings": sightings, "calls": calls, "handed_out": blocks()}
    if options.profile:
        written["profiled"] = categories(profiler)
    with open(options.out, "w") as out:
        json.dump(written, out)
    sys.stdout.flush()
    end(0)


if __name__ == "__main__":
    main()
