"""A training loop whose forward pass is compiled by torch.compile, and which knows what its memory is for.

    python compiled.py --out FILE [--backend inductor] [--device cpu] [--iterations 8] [--whole]

It writes sightings as purposes.py does, but without hooks, which would be compiled too: what is saved is found by a walk of the
graph before each backward pass. It prints the figures of each iteration as JSON, or in a line why nothing can be compiled here.
"""

import argparse
import importlib.util
import json
import os
import sys
import time

import torch
from torch import nn

import purposes
from resnet50 import walk

WIDTH = 192
BATCH = 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block()])
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(net, x, target):
    return nn.functional.cross_entropy(net(x), target)


def missing(backend):
    """What inductor needs to compile for the CPU and does not find here."""
    if backend != "inductor":
        return None
    if importlib.util.find_spec("setuptools") is None:
        return "the package setuptools is not installed"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "there is no C++ compiler"
    return None


def live(tensors):
    storages = (tensor.untyped_storage() for tensor in tensors if tensor.device.type == purposes.device)
    storages = {storage.data_ptr(): storage.nbytes() for storage in storages}
    if purposes.device == "cpu":
        return sum(storages.values())
    # As the caching allocator rounds them.
    return sum(-(-size // 512) * 512 for size in storages.values())


def taken_back():
    """Blocks of the GPU's allocator that were freed so far; a mark says it for the CPU."""
    if purposes.device == "cpu":
        return None
    return torch._C._cuda_memoryStats(0)["allocation"]["all"]["freed"]


def train(options):
    net = Net().to(options.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    parameters = list(net.parameters())
    of_net = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    if options.whole:
        step = torch.compile(loss_of, backend=options.backend)
    else:
        compiled = torch.compile(net, backend=options.backend)
    for iteration in range(1, options.iterations + 1):
        x = torch.randn(BATCH, WIDTH, device=options.device)
        target = torch.randint(0, 10, (BATCH,), device=options.device)
        purposes.see("given", [x, target])
        optimizer.zero_grad()
        if options.whole:
            loss = step(net, x, target)
        else:
            loss = nn.functional.cross_entropy(compiled(x), target)
        saved = {at: size for at, size in walk(loss).items() if at not in of_net}
        number = purposes.blocks()
        purposes.sightings.extend((number, at, "saved") for at in saved)
        loss.backward()
        del loss
        gradients = [parameter.grad for parameter in parameters]
        purposes.see("parameter", parameters)
        purposes.see("gradient", gradients)
        optimizer.step()
        states = [value for state in optimizer.state.values() for value in state.values()]
        purposes.see("optimizer_state", states)
        told = {
            "iteration": iteration,
            "saved": sum(saved.values()),
            "parameters": live(parameters),
            "gradients": live(gradients),
            "optimizer_state": live(states),
            "device": options.device,
            "taken_back": taken_back(),
            "handed_out": purposes.blocks(),
        }
        print(json.dumps(told), flush=True)
    return net, optimizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--whole", action="store_true", help="compile the loss too")
    options = parser.parse_args()
    reason = missing(options.backend)
    if reason:
        print(f"skipped: {reason}", flush=True)
        os._exit(0)
    torch.manual_seed(0)
    purposes.device = options.device
    kept = train(options)
    written = {"device": options.device, "sightings": purposes.sightings, "calls": purposes.calls}
    with open(options.out, "w") as out:
        json.dump(written, out)
    sys.stdout.flush()
    # What was asked for last is still to be looked up in this process.
    time.sleep(1)
    os._exit(0 if kept else 1)


if __name__ == "__main__":
    main()
