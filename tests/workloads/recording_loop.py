"""Trains until its allocator has made so many events, for `cargo xtask bench --only recording`.

    recording_loop.py EVENTS ENTRIES PICKLE

Prints READY, and trains after a line on standard input. PyTorch's own history keeps the last ENTRIES events, and is
written to PICKLE at the end.
"""

import sys

import torch

from bench_loop import Loop, events_so_far


def main():
    events, entries, pickle = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    loop = Loop()
    for _ in range(50):
        loop.step()
    print("READY", flush=True)
    sys.stdin.readline()
    torch.cuda.memory._record_memory_history(max_entries=entries, stacks="python")
    last = events_so_far() + events
    while events_so_far() < last:
        for _ in range(100):
            loop.step()
    torch.cuda.memory._dump_snapshot(pickle)
    torch.cuda.memory._record_memory_history(enabled=None)


if __name__ == "__main__":
    main()
