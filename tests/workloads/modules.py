"""Modules that are called in many ways, and what is called and taken note of at every allocation.

    python modules.py --out FILE [--go FILE] [--steps N]

With `--go` it prints `PID n` once CUDA is initialised and nothing is allocated, and goes on when the file exists.
Every call of a module and every change of the grad mode is a mark: how many blocks the allocator had handed out by then,
the innermost module and the mode from there on. So the test knows of each block what it was allocated under, whatever
allocated it. What is written, as JSON:

    threads     [{thread: its native id, marks: [[blocks, module or null, grad], ...]}]
    names       [[path]] of each module
"""

import argparse
import contextlib
import json
import os
import threading
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

WIDTH = 64


class Reports:
    """A mixin: before `nn.Module`, Python derives the layout of objects from it."""


class Base(Reports, nn.Module):
    pass


class Attention(nn.Module, Reports):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.out(torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v)


class Block(Base):
    def __init__(self, shared):
        super().__init__()
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Sequential(nn.GELU(), nn.Identity()),
            nn.Linear(2 * WIDTH, WIDTH),
        )
        # In every block: its path is that of the first.
        self.norm = shared

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm(x))


class Net(Reports, nn.Module):
    def __init__(self, layers):
        super().__init__()
        shared = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Block(shared) for _ in range(layers))
        self.heads = nn.ModuleDict({"left": nn.Linear(WIDTH, 8), "right": nn.Linear(WIDTH, 8)})
        self.missing = None
        self.register_module("never", None)

    def forward(self, x, target=None):
        for layer in self.layers:
            x = layer(x)
        with no_grad():
            x.mean().add(1.0)
        y = self.heads["left"](x) + self.heads["right"](x)
        if target is None:
            return y
        # In no tree: a module of its own.
        return LOSS(y, target)


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MSELoss()

    def forward(self, y, target):
        return self.inner(y * 2.0, target)


class Wrapper(nn.Module):
    """As `DataParallel` does."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*(x * 1.0 for x in inputs))


class Growing(nn.Module):
    """Makes its child when it is first called."""

    def __init__(self):
        super().__init__()
        self.child = None

    def forward(self, x):
        x = x + 1.0
        if self.child is None:
            self.child = name_below(self, "Growing.child", on_gpu(nn.Linear(WIDTH, WIDTH)))
        return self.child(x)


class Rebuilt(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def forward(self, x):
        return self.second(self.first(x))


PATHS = {}
CALLED = []
MARKS = []
LOSS = Loss()


def blocks():
    """How many blocks the allocator has handed out so far."""
    return torch.cuda.memory_stats().get("allocation.all.allocated", 0)


def mark():
    mode = "enabled" if torch.is_grad_enabled() else "disabled"
    if torch.is_inference_mode_enabled():
        mode = "inference"
    MARKS.append((blocks(), CALLED[-1] if CALLED else None, mode))


def enter(module, inputs):
    CALLED.append(PATHS[id(module)])
    mark()


def leave(module, inputs, outputs):
    CALLED.pop()
    mark()


def name(root, path):
    """Names a tree as memprobe does: by the class of its top, and the paths of `named_modules()`."""
    for below, module in root.named_modules():
        PATHS[id(module)] = f"{path}.{below}" if below else path
    return root


def name_below(parent, path, module):
    PATHS[id(module)] = path
    return module


@contextlib.contextmanager
def changed(mode):
    with mode:
        mark()
        yield
    mark()


def no_grad():
    return changed(torch.no_grad())


def inference():
    return changed(torch.inference_mode())


def train(net, x, target):
    loss = net(x, target)
    loss.backward()
    net.zero_grad(set_to_none=True)
    return loss.detach()


def on_gpu(module):
    # PyTorch does so within `cuda()`, and a block knows of that.
    with no_grad():
        return module.cuda()


def rebuilt(x, times):
    for _ in range(times):
        net = name(on_gpu(Rebuilt()), "Rebuilt")
        net(x).sum()
        del net


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--go")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    torch.cuda.init()
    if arguments.go:
        print(f"PID {os.getpid()}", flush=True)
        while not os.path.exists(arguments.go):
            time.sleep(0.005)
    register_module_forward_pre_hook(enter)
    register_module_forward_hook(leave)
    mark()
    x = torch.randn(4, 16, WIDTH, device="cuda")
    target = torch.randn(4, 16, 8, device="cuda")
    # The first calls tell memprobe which code calls modules; it has a moment to take note of that.
    warm = name(nn.Tanh(), "Tanh")
    for _ in range(3):
        warm(x)
        time.sleep(0.2)
    first = name(on_gpu(Net(3)), "Net")
    second = name(on_gpu(Net(2)), "Net#2")
    wrapped = name(on_gpu(Wrapper(nn.Linear(WIDTH, WIDTH))), "Wrapper")
    growing = name(Growing(), "Growing")
    name(LOSS, "Loss")
    for step in range(arguments.steps):
        train(first, x, target)
        train(second, x, target)
        wrapped(x).sum()
        growing(x)
        F.relu(x - 1.0)
        with no_grad():
            first(x)
            with torch.enable_grad():
                mark()
                second(x)
            mark()
        with inference():
            first(x * 1.0)
        # No tree knows of it, and it is dropped at once.
        nn.functional.softmax(name(nn.ReLU(), "ReLU")(x), dim=-1)
        rebuilt(x, 2)
        # Growing has one module more now. On a busy machine memprobe has a moment to read that.
        time.sleep(0.05)
    paths = sorted({path for _, path, _ in MARKS if path})
    marks = [
        (blocks, paths.index(path) if path else None, grad) for blocks, path, grad in MARKS
    ]
    threads = [{"thread": threading.get_native_id(), "marks": marks}]
    with open(arguments.out, "w") as file:
        json.dump({"threads": threads, "names": [[path] for path in paths]}, file)


main()
