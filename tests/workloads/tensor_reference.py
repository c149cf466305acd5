"""Stops a workload at named points, and says there which tensors it holds.

A test that gives a workload `--folder F` speaks with it through files in that folder:

    point   the workload stands still at the point of this name; `pid` has the process that does
    ask     written by the test; `answer` is written, `ask` goes
    go      written by the test; the workload goes on, `point` and `go` go
    over    the last point was passed

Without `--folder` nothing stops. What is asked of PyTorch changes what is there: a tensor that C++
alone knew has a Python object for ever once Python has seen it. So a fork answers, in which all
objects have their addresses, and the workload itself knows nothing of it.

The answer, as JSON:

    point, pid, python, torch
    devices     [{device, allocated, reserved, blocks}]; blocks are [address, bytes, requested bytes]
    tensors     what gc.get_objects() has, and their gradients; see `Truth.describe`
    saved       what the nodes of the graph keep for the backward pass; see `Graph`
    within      what other tensors stand on, which C++ alone may know
    nodes       how many nodes of the graph there are, by name
    expected    [[name, shape]] that the workload wants its tensors called
"""

import argparse
import gc
import json
import os
import sys
import time
import warnings

import torch
from torch import nn


class Points:
    """The points of a workload."""

    def __init__(self, folder):
        self.folder = folder
        # Python warns of forks beside threads from 3.12 on; the child touches no lock of theirs.
        warnings.filterwarnings("ignore", category=DeprecationWarning)

    def at(self, name, expected=()):
        """Stands still until the test says go. `expected` are pairs of a name and a shape."""
        if self.folder is None:
            print(f"point {name}", flush=True)
            return
        self._write("pid", str(os.getpid()))
        self._write("point", name)
        while not os.path.exists(self._path("go")):
            if os.path.exists(self._path("ask")):
                self._answer(name, expected)
                os.remove(self._path("ask"))
            time.sleep(0.002)
        os.remove(self._path("point"))
        os.remove(self._path("go"))

    def over(self):
        if self.folder is not None:
            self._write("over", "")

    def _path(self, name):
        return os.path.join(self.folder, name)

    def _write(self, name, text):
        # Whole or not at all.
        with open(self._path(name + ".new"), "w") as file:
            file.write(text)
        os.rename(self._path(name + ".new"), self._path(name))

    def _answer(self, name, expected):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self._write("answer", json.dumps(truth(name, expected)))
                status = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if status != 0:
            raise RuntimeError(f"the fork that takes the reference at {name!r} failed: {status}")


def points(parser=None):
    """Reads the command line; gives the points and the options."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--folder", help="where a test asks; without it nothing stops")
    options = parser.parse_args()
    return Points(options.folder), options


def run(main, parser=None):
    """Runs a workload: `main(points, options)`."""
    stops, options = points(parser)
    main(stops, options)
    stops.over()
    # Autograd's threads still drop Python objects; an interpreter that ends now may abort.
    time.sleep(0.2)


def truth(name, expected):
    """All that is said of a point."""
    gc.disable()
    objects = gc.get_objects()
    # The type itself: objects may lie about their class, and answer with side effects.
    tensors = [it for it in objects if issubclass(type(it), torch.Tensor)]
    modules = [it for it in objects if issubclass(type(it), nn.Module)]
    optimizers = [it for it in objects if issubclass(type(it), torch.optim.Optimizer)]
    del objects
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        devices = allocators()
        kept = Truth(tensors, modules, optimizers)
        graph = Graph(kept.tensors(), devices)
        return {
            "point": name,
            "pid": os.getppid(),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "devices": devices,
            "tensors": kept.described(),
            "saved": graph.saved,
            "within": graph.within,
            "nodes": graph.names,
            "expected": [[text, list(shape)] for text, shape in expected],
        }


def allocators():
    """The caching allocator's own words. Asking does not touch the device."""
    if not torch.cuda._initialized:
        return []
    # CUDA must not be used in a fork, and says so. Its books can be read.
    torch.cuda._is_in_bad_fork = lambda: False
    count = torch.cuda.device_count()
    devices = [
        {
            "device": device,
            "allocated": torch.cuda.memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
            "blocks": [],
        }
        for device in range(count)
    ]
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                row = [address, block["size"], block.get("requested_size", 0)]
                devices[segment["device"]]["blocks"].append(row)
            address += block["size"]
    for device in devices:
        device["blocks"].sort()
    return devices


class Truth:
    """The tensors of the process by its own account."""

    def __init__(self, tensors, modules, optimizers):
        self.rows = {}
        for tensor in tensors:
            self.add(tensor, seen=True)
        # A gradient may be C++'s alone until somebody looks at it.
        gradients = {}
        for tensor in tensors:
            gradient = gradient_of(tensor)
            if gradient is not None:
                self.add(gradient, seen=False)
                gradients.setdefault(gradient._cdata, []).append(tensor._cdata)
        self.gradients = gradients
        self.parameters = named(modules, "named_parameters")
        self.buffers = named(modules, "named_buffers")
        self.states = states(optimizers)

    def add(self, tensor, seen):
        self.rows.setdefault(tensor._cdata, (tensor, seen))

    def tensors(self):
        return [tensor for tensor, _ in self.rows.values()]

    def described(self):
        return [self.describe(tensor, seen) for tensor, seen in self.rows.values()]

    def describe(self, tensor, seen):
        """A tensor, as JSON."""
        address = tensor._cdata
        function = tensor.grad_fn
        return {
            "object": address,
            # Whether it has a Python object.
            "python": seen,
            "class": type(tensor).__name__,
            # A nested tensor has none.
            "shape": attempt(lambda: list(tensor.shape)),
            "stride": attempt(lambda: list(tensor.stride())),
            "dtype": str(tensor.dtype).replace("torch.", ""),
            "device": device_of(tensor),
            "layout": str(tensor.layout).replace("torch.", ""),
            "bytes": bytes_of(tensor),
            "storage": attempt(lambda: storage_of(tensor)),
            "requires_grad": tensor.requires_grad,
            "leaf": tensor.is_leaf,
            "grad_fn": None if function is None else function.name(),
            "view": tensor._base is not None,
            "parameter": self.parameters.get(address, []),
            "buffer": self.buffers.get(address, []),
            "state": self.states.get(address, []),
            "gradient_of": self.gradients.get(address, []),
        }


def attempt(question):
    """The answer, or None where this tensor has none."""
    try:
        return question()
    except (RuntimeError, NotImplementedError):
        return None


def device_of(tensor):
    """Where it really is: a fake tensor says another device, and has no memory there."""
    return "meta" if type(tensor).__name__ == "FakeTensor" else str(tensor.device)


def bytes_of(tensor):
    """What its elements take; for a sparse tensor, its indices and values."""
    parts = [tensor]
    if tensor.layout == torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout == torch.sparse_csr:
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return sum(part.numel() * part.element_size() for part in parts)


def storage_of(tensor):
    storage = tensor.untyped_storage()
    return {"object": storage._cdata, "data": storage.data_ptr(), "bytes": storage.nbytes()}


def gradient_of(tensor):
    """What its `.grad` is; asking a tensor that keeps none would warn."""
    if tensor.is_leaf or tensor.retains_grad:
        return tensor.grad
    return None


def named(modules, which):
    """The names of parameters or buffers, by address, from every module that no other one holds."""
    held = {id(child) for module in modules for child in module._modules.values()}
    names = {}
    for root in modules:
        if id(root) not in held:
            for name, tensor in getattr(root, which)(remove_duplicate=False):
                names.setdefault(tensor._cdata, []).append(name)
    return names


def states(optimizers):
    """[optimizer, key, address of the parameter] of each tensor in an optimizer's state.

    The optimizer is its class, or `*` if the class has several: then it goes by its variable.
    """
    found = {}
    classes = [type(optimizer).__name__ for optimizer in optimizers]
    for optimizer in optimizers:
        # One that wraps another has its state by a property.
        for parameter, state in vars(optimizer).get("state", {}).items():
            for key, value in state.items():
                if issubclass(type(value), torch.Tensor):
                    name = type(optimizer).__name__
                    row = [name if classes.count(name) == 1 else "*", key, parameter._cdata]
                    found.setdefault(value._cdata, []).append(row)
    return found


class Graph:
    """What the nodes of a graph keep: [{op, attribute, shape, dtype, device, bytes, storage}]."""

    # What makes up a tensor of another layout.
    PARTS = ["_indices", "_values", "crow_indices", "col_indices", "values"]

    def __init__(self, tensors, devices):
        # Hooks make a tensor anew when it is asked for; such a one was not there.
        self.blocks = [block for device in devices for block in device["blocks"]]
        self.saved = []
        self.within = []
        self.names = {}
        # A node is known by its object, which lives as long as something holds it.
        self.held = []
        self.seen, self.waiting = set(), []
        for tensor in tensors:
            self.look_into(tensor)
        while self.waiting:
            node = self.waiting.pop()
            if node in self.seen:
                continue
            self.seen.add(node)
            self.held.append(node)
            name = node.name()
            self.names[name] = self.names.get(name, 0) + 1
            self.look_at(name, node)
            self.waiting.extend(next for next, _ in node.next_functions if next is not None)

    def look_into(self, tensor):
        """What a tensor leads to: its function, its base, its parts."""
        if tensor.grad_fn is not None:
            self.waiting.append(tensor.grad_fn)
        base = attempt(lambda: tensor._base)
        if base is not None:
            self.keep(self.within, type(tensor).__name__, "_base", base)
            if base.grad_fn is not None:
                self.waiting.append(base.grad_fn)
        if tensor.layout is not torch.strided:
            for attribute in self.PARTS:
                part = attempt(lambda: getattr(tensor, attribute)())
                if part is not None:
                    self.keep(self.within, type(tensor).__name__, attribute, part)

    def look_at(self, name, node):
        for attribute in dir(node):
            if attribute.startswith("_saved_") or attribute in ("saved_tensors", "variable"):
                # It may have been freed, or have been changed since.
                value = attempt(lambda: getattr(node, attribute))
                values = value if isinstance(value, (list, tuple)) else [value]
                for tensor in values:
                    if issubclass(type(tensor), torch.Tensor):
                        # An accumulator holds its leaf, which is not for the backward pass.
                        rows = self.within if attribute == "variable" else self.saved
                        self.keep(rows, name, attribute, tensor)
                        self.look_into(tensor)

    def was_there(self, storage):
        if storage is None or storage["bytes"] == 0:
            return True
        return any(start <= storage["data"] < start + size for start, size, _ in self.blocks)

    def keep(self, rows, owner, attribute, tensor):
        storage = attempt(lambda: storage_of(tensor))
        if tensor.device.type == "cuda" and not self.was_there(storage):
            return
        rows.append(
            {
                "op": owner,
                "attribute": attribute,
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype).replace("torch.", ""),
                "device": str(tensor.device),
                "bytes": tensor.numel() * tensor.element_size(),
                "storage": storage,
            }
        )
