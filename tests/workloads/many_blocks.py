"""Many live tensors, and a loop that makes more of them.

It prints `READY` with the number of tensors, then allocates and frees, or also keeps with `--leak`, all the time."""

import argparse
import time

import torch

from many_objects import Gaps


def make():
    return torch.empty(16, device="cuda")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=50_000)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two allocations")
    parser.add_argument("--leak", action="store_true", help="keep what the loop makes")
    parser.add_argument("--gaps", help="a file for the times that a thread could not look at the clock")
    options = parser.parse_args()
    if options.gaps:
        Gaps(options.gaps).start()
    kept = [make() for _ in range(options.tensors)]
    print(f"READY {len(kept)}", flush=True)
    while True:
        made = make()
        if options.leak:
            kept.append(made)
        if options.pause:
            time.sleep(options.pause)


if __name__ == "__main__":
    main()
