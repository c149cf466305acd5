"""A training of two linear layers whose bytes can be computed by hand: 1000 features to 2000 to 500, 256 examples.

`--keep` keeps a tensor of 256 x 500 in each iteration (a leak): one made after the step, the output of the model, or the loss. `--own-optimizer` steps
by code of the program, which knows nothing of `torch.optim` and drops the gradients itself. It prints `iteration N` and goes on, 50 a second,
until there is a file `--until`; then it ends at once, without freeing anything."""

import argparse
import os
import time

import torch
from torch import nn


class OwnOptimizer:
    def __init__(self, parameters):
        self.parameters = list(parameters)

    def step(self):
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.add_(parameter.grad, alpha=-1e-3)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", choices=["made", "output", "loss"])
    parser.add_argument("--own-optimizer", action="store_true")
    parser.add_argument("--until", required=True)
    options = parser.parse_args()

    layers = [nn.Linear(1000, 2000), nn.ReLU(), nn.BatchNorm1d(2000), nn.Linear(2000, 500)]
    if options.own_optimizer:
        layers.pop(2)
    model = nn.Sequential(*layers).cuda()
    optimizer = OwnOptimizer(model.parameters()) if options.own_optimizer else torch.optim.SGD(model.parameters(), lr=1e-3)
    target = torch.randn(256, 500, device="cuda")
    kept = []
    iteration = 0
    while not os.path.exists(options.until):
        iteration += 1
        x = torch.randn(256, 1000, device="cuda")
        output = model(x)
        loss = (output * target).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if options.keep == "made":
            kept.append(torch.zeros(256, 500, device="cuda"))
        elif options.keep == "output":
            kept.append(output.detach())
        elif options.keep == "loss":
            kept.append(loss)
        print(f"iteration {iteration}", flush=True)
        time.sleep(0.02)
    print(f"done {iteration}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
