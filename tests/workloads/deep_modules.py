"""Forward and backward passes of many Linears in modules nested deeply: a new stack for each.

It prints `READY` with the number of modules, then its progress."""

import argparse
import sys

import torch
from torch import nn

from many_objects import Gaps, Steps


class Nest(nn.Module):
    """Some Linears, and another nest."""

    def __init__(self, linears, inner):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(linears))
        self.inner = inner

    def forward(self, x):
        for linear in self.linears:
            x = linear(x)
        return x if self.inner is None else self.inner(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--linears", type=int, default=20, help="in each nest")
    parser.add_argument("--gaps", help="a file for the times that a thread could not look at the clock")
    options = parser.parse_args()
    if options.gaps:
        Gaps(options.gaps).start()
    sys.setrecursionlimit(100 * options.depth + 1000)
    model = None
    for _ in range(options.depth):
        model = Nest(options.linears, model)
    model = model.cuda()
    x = torch.randn(4, 8, device="cuda")
    print(f"READY {sum(1 for _ in model.modules())}", flush=True)
    steps = Steps()
    while True:
        model(x).sum().backward()
        steps.add()


if __name__ == "__main__":
    main()
