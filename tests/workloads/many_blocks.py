"""Many live tensors, and threads that make more of them.

It prints `READY` with the number of tensors, then allocates and frees, or also keeps with `--leak`, all the time. With
`--gaps` it also prints its progress."""

import argparse
import sys
import threading
import time

import torch

from many_objects import Gaps, Steps


def make():
    return torch.empty(16, device="cuda")


def below(depth):
    """Allocates with so many frames of Python on the stack."""
    return make() if depth <= 0 else below(depth - 1)


def work(rounds):
    """Computes for about so many times ten nanoseconds."""
    for _ in range(rounds):
        pass


def run(options, kept, steps):
    while True:
        for _ in range(options.each):
            made = below(options.depth)
            if options.leak:
                kept.append(made)
            if steps and options.work:
                steps.timed(lambda: work(options.work))
            else:
                work(options.work)
        if steps:
            steps.add()
        if options.pause:
            time.sleep(options.pause)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=50_000)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each round")
    parser.add_argument("--each", type=int, default=1, help="allocations of a round")
    parser.add_argument("--work", type=int, default=0, help="turns of an empty loop after each allocation")
    parser.add_argument("--depth", type=int, default=0, help="frames of Python below which they are made")
    parser.add_argument("--threads", type=int, default=1, help="that do the same")
    parser.add_argument("--leak", action="store_true", help="keep what the loop makes")
    parser.add_argument("--gaps", help="a file for the times that a thread could not look at the clock")
    options = parser.parse_args()
    sys.setrecursionlimit(options.depth + 1000)
    kept = [make() for _ in range(options.tensors)]
    if options.gaps:
        Gaps(options.gaps).start()
    for _ in range(options.threads - 1):
        threading.Thread(target=run, args=(options, kept, None), daemon=True).start()
    print(f"READY {len(kept)}", flush=True)
    run(options, kept, Steps() if options.gaps else None)


if __name__ == "__main__":
    main()
