"""Allocates and frees in iterations of an optimizer, far more often than one group of a recording holds.

    long_loop.py ITERATIONS

Each iteration has 1000 tensors, and iteration 20 one tall tensor more. A short sleep leaves a busy machine the time
to record all of them.
"""

import sys
import time

import torch

TENSORS = 1000
TALL_AT = 20


def allocate(size):
    return torch.empty(size, device="cuda", dtype=torch.uint8)


def main():
    weight = torch.zeros(1024, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for iteration in range(1, int(sys.argv[1]) + 1):
        tall = allocate(1 << 28) if iteration == TALL_AT else None
        for number in range(TENSORS):
            allocate(1 + number % 7 * 100_000)
        del tall
        optimizer.step()
        time.sleep(0.03)


if __name__ == "__main__":
    main()
