"""A recurrent net that keeps its losses, and with each all that the backward pass would need (a leak that people write by accident).

At the end of each iteration it prints `iteration N allocated BYTES`, what the allocator says, and at its own end `kept BYTES in N iterations`:
what only the list kept alive, which emptying it gives back. With `--detach` nothing but the numbers of the losses is kept. With `--function` the loss is
that of a custom Function, whose `ctx` keeps its input. With `--until` it goes on after these iterations, ten a second, until there is a file of that name."""

import argparse
import os
import time

import torch


class Reader(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = torch.nn.LSTM(64, width, batch_first=True)
        self.head = torch.nn.Linear(width, 16)

    def forward(self, words):
        states, _ = self.cell(words)
        return self.head(states[:, -1])


def iterate(model, criterion, optimizer, losses, detach):
    words = torch.randn(8, 12, 64, device="cuda")
    optimizer.zero_grad()
    loss = criterion(model(words))
    loss.backward(retain_graph=True)
    optimizer.step()
    losses.append(loss.item() if detach else loss)


def is_time(until):
    if until is None or os.path.exists(until):
        return True
    time.sleep(0.1)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--function", action="store_true")
    parser.add_argument("--until")
    options = parser.parse_args()

    model = Reader(128).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    criterion = Energy.apply if options.function else mean_square
    losses = []
    allocated = []
    iteration = 0
    while iteration < options.iterations or not is_time(options.until):
        iteration += 1
        iterate(model, criterion, optimizer, losses, options.detach)
        allocated.append(torch.cuda.memory_allocated())
        print(f"iteration {iteration} allocated {allocated[-1]}", flush=True)
    before = torch.cuda.memory_allocated()
    losses.clear()
    kept = before - torch.cuda.memory_allocated()
    print(f"kept {kept} in {iteration} iterations", flush=True)


class Energy(torch.autograd.Function):
    """The mean of squares. What it needs for the backward pass is an attribute, not saved with `save_for_backward`."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x.square().mean()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 * ctx.x / ctx.x.numel()


def mean_square(x):
    return x.square().mean()


if __name__ == "__main__":
    main()
