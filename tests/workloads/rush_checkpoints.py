"""Allocates as fast as it can, and stops now and then to write down what its allocator says.

At each checkpoint it keeps some blocks of earlier rounds and writes `checkpoint-N.json` into the folder. It goes on when
`go-N` is there, and ends after the last one.
"""

import argparse
import json
import os
import time

import torch

SIZES = (1, 200, 1_000, 4_000, 30_000, 100_000)


def kept_from_the_start(count):
    return [torch.empty(1_000 * (at + 1), device="cuda") for at in range(count)]


def short_lived(at):
    return torch.empty(SIZES[at % len(SIZES)], device="cuda")


def kept_from_a_round(at):
    return torch.empty(5_000 + at % 97, device="cuda")


def rush(seconds, live, kept):
    """Allocates and frees for so long. Blocks in `kept` come and go too, more slowly."""
    end = time.monotonic() + seconds
    at = 0
    while time.monotonic() < end:
        for _ in range(200):
            live[at % len(live)] = short_lived(at)
            if at % 500 == 0:
                kept.append(kept_from_a_round(at))
            if len(kept) > 100:
                del kept[at % 50]
            at += 1
    return at


def write_down(folder, number, rounds):
    stats = torch.cuda.memory_stats()
    answer = {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "blocks": stats["allocation.all.current"],
        "allocations": stats["allocation.all.allocated"],
        "rounds": rounds,
    }
    path = os.path.join(folder, f"checkpoint-{number}.json")
    with open(path + ".partial", "w") as file:
        json.dump(answer, file)
    os.replace(path + ".partial", path)


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--checkpoints", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12, help="between two checkpoints")
    options = parser.parse_args()

    first = kept_from_the_start(20)
    live = [None] * 50
    kept = []
    print("ready", flush=True)
    wait_for(os.path.join(options.folder, "go-0"))
    for number in range(1, options.checkpoints + 1):
        rounds = rush(options.seconds, live, kept)
        write_down(options.folder, number, rounds)
        wait_for(os.path.join(options.folder, f"go-{number}"))
    # Nothing is given back before the end.
    del first
    os._exit(0)


if __name__ == "__main__":
    main()
