"""Finds the largest batch that fits: tries, runs out of memory, halves the batch and goes on."""

import argparse
import time

import torch
from torch import nn

from checkpoints import checkpoint

WIDTH = 4096


def train_step(model, optimizer, batch):
    x = torch.randn(batch, WIDTH, device="cuda")
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def fitting_batch(model, optimizer, batch):
    """Halves the batch until a step succeeds. Returns it and how often memory ran out."""
    failures = 0
    while True:
        try:
            train_step(model, optimizer, batch)
            return batch, failures
        except torch.cuda.OutOfMemoryError:
            failures += 1
            batch //= 2
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        checkpoint(f"out of memory {failures}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    free, _ = torch.cuda.mem_get_info()
    # The inputs alone take all that is free, so the first tries cannot succeed.
    too_many = free // (WIDTH * 4)
    batch, failures = fitting_batch(model, optimizer, too_many)
    if failures == 0:
        raise SystemExit("memory was expected to run out and did not")
    for step in range(options.steps):
        train_step(model, optimizer, batch)
        checkpoint(f"step {step}")
    print(f"batch {batch} after {failures} failures, allocated {torch.cuda.memory_allocated()} bytes")
    time.sleep(0.2)


if __name__ == "__main__":
    main()
