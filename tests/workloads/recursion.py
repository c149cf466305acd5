"""Allocations at the bottom of a recursion, at depths around those at which stack walkers give up."""

import argparse
import time

import torch

from checkpoints import checkpoint

DEPTHS = [1, 16, 60, 64, 68, 100, 124, 128, 132, 250, 500]


def descend(depth, width):
    """Allocates `depth` frames below the caller."""
    if depth <= 1:
        return torch.zeros(width, device="cuda")
    below = descend(depth - 1, width)
    return below


def sum_of_tree(depth, width):
    """A binary tree of recursion: every node allocates what it returns."""
    if depth == 0:
        return torch.ones(width, device="cuda")
    left = sum_of_tree(depth - 1, width)
    right = sum_of_tree(depth - 1, width)
    return left + right


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2, help="how often every depth is tried")
    parser.add_argument("--width", type=int, default=65536)
    options = parser.parse_args()

    kept = []
    for step in range(options.steps):
        for depth in DEPTHS:
            kept.append(descend(depth, options.width))
            checkpoint(f"step {step} depth {depth}")
        kept.append(sum_of_tree(6, options.width))
        checkpoint(f"step {step} tree")
    print(f"{len(kept)} tensors, allocated {torch.cuda.memory_allocated()} bytes")
    time.sleep(0.2)


if __name__ == "__main__":
    main()
