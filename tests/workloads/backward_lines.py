"""Backward passes of several threads at once, each called from a line of its own.

What a thread allocates in its backward pass has a size that no other thread uses: 4 bytes for each
of the thread's own number of elements."""

import argparse
import threading
import time

import torch

ELEMENTS = {"first": 60_000, "second": 120_000, "third": 240_000}


def loss_of(elements):
    weights = torch.ones(elements, device="cuda", requires_grad=True)
    return (weights * weights).exp().sum()


def first(steps):
    for _ in range(steps):
        loss_of(ELEMENTS["first"]).backward()


def second(steps):
    for _ in range(steps):
        loss_of(ELEMENTS["second"]).backward()


def third(steps):
    for _ in range(steps):
        loss_of(ELEMENTS["third"]).backward()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    torch.cuda.init()
    trainers = [
        threading.Thread(target=train, args=[options.steps], name=train.__name__)
        for train in (first, second, third)
    ]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()
    print(f"allocated {torch.cuda.memory_allocated()} bytes")
    time.sleep(0.2)


if __name__ == "__main__":
    main()
