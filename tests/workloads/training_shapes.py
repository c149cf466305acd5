"""A training of two linear layers whose bytes can be computed by hand: 1000 features to 2000 to 500, 256 examples.

`--keep` keeps a tensor of 256 x 500 in each iteration (a leak): one made after the step, the output of the model, or the loss. `--own-optimizer` steps
by code of the program, which knows nothing of `torch.optim` and drops the gradients itself. `--once` makes the examples before the loop. It prints
`iteration N` and goes on, 50 a second, until there is a file `--until`; then it ends at once, without freeing anything. It begins with the file
`--wait`, if given, and stays between forward and backward pass from the file `--hold` on."""

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


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", choices=["input", "made", "output", "loss"])
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--wait")
    parser.add_argument("--hold")
    parser.add_argument("--own-optimizer", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--until", required=True)
    options = parser.parse_args()

    # On the CPU each thread has a slot in a buffer of the sum.
    torch.set_num_threads(1)
    if options.wait:
        print("waiting", flush=True)
        wait_for(options.wait)
    layers = [nn.Linear(1000, 2000), nn.ReLU(), nn.BatchNorm1d(2000), nn.Linear(2000, 500)]
    if options.own_optimizer:
        layers.pop(2)
    model = nn.Sequential(*layers).to(options.device)
    optimizer = OwnOptimizer(model.parameters()) if options.own_optimizer else torch.optim.SGD(model.parameters(), lr=1e-3)
    targets = [torch.randn(256, 500, device=options.device)]
    x = torch.randn(256, 1000, device=options.device) if options.once else None
    kept = []
    iteration = 0
    while not os.path.exists(options.until):
        iteration += 1
        if not options.once:
            x = torch.randn(256, 1000, device=options.device)
        output = model(x)
        loss = (output * targets[0]).sum()
        if options.hold and os.path.exists(options.hold):
            print("holding", flush=True)
            wait_for(options.until)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if options.keep == "input":
            kept.append(x)
        elif options.keep == "made":
            kept.append(torch.zeros(256, 500, device=options.device))
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
