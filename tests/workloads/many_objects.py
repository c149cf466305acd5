"""A model of many modules and a heap of many objects, for what a snapshot costs.

With `--gaps FILE` a thread looks at the clock all the time, and appends a line for each time that it
could not: nanoseconds, which are those that the process stood still, or another had the processor.
"""

import argparse
import ctypes
import gc
import threading
import time

import torch
from torch import nn

import tensor_reference


class Item:
    """As records are in programs: an object with a few attributes."""

    def __init__(self, number):
        self.number = number
        self.name = str(number)


def heap(objects):
    """So many objects of Python that its garbage collector knows, of five sorts."""
    held = []
    while objects > 0:
        number = len(held)
        # The object, a list, a dict, a tuple of a list that is not let go: five in all.
        held.append([Item(number), {"key": number, "more": [number]}, ([],)])
        objects -= 6
    return held


class Block(nn.Module):
    """Two modules, and itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.linear(x))


class Gaps(threading.Thread):
    """Writes down when it was kept from looking at the clock."""

    # Sleeps of a millisecond last no longer than that, where nothing else is done.
    LEAST_NS = 3_000_000

    def __init__(self, path):
        super().__init__(name="gaps", daemon=True)
        self.file = open(path, "a", buffering=1)

    def run(self):
        last = time.monotonic_ns()
        while True:
            time.sleep(0.001)
            now = time.monotonic_ns()
            if now - last >= self.LEAST_NS:
                self.file.write(f"{now - last}\n")
            last = now


class Steps:
    """Prints `steps N SECONDS` every fifth of a second: rounds so far, and CPU time of the thread that made them. Once
    there was a `timed` part, also its CPU time: `steps N SECONDS TIMED`."""

    EVERY_NS = 200_000_000

    def __init__(self):
        self.count = 0
        self.shown = 0
        self.timed_ns = 0

    def timed(self, part):
        """Runs a part of a round that does the same work each time, without an allocation of GPU memory."""
        begin = time.thread_time_ns()
        part()
        self.timed_ns += time.thread_time_ns() - begin

    def add(self):
        self.count += 1
        now = time.monotonic_ns()
        if now - self.shown >= self.EVERY_NS:
            self.shown = now
            timed = f" {self.timed_ns / 1e9:.6f}" if self.timed_ns else ""
            print(f"steps {self.count} {time.thread_time():.6f}{timed}", flush=True)


def damage():
    """Makes an object's header point back to itself, so that the collector's list is inconsistent for good."""
    gc.disable()
    gc.collect()
    # Nearly all objects come before it.
    victim = next(held for held in reversed(gc.get_objects()) if type(held) is list)
    # `PyGC_Head`: the next object, and the one before with two bits of flags (Include/internal/pycore_gc.h).
    previous = ctypes.c_size_t.from_address(id(victim) - 8)
    previous.value = (id(victim) - 16) | (previous.value & 3)
    return victim


def parser():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--modules", type=int, default=2000)
    options.add_argument("--objects", type=int, default=1_000_000)
    options.add_argument("--gaps", help="a file for them")
    options.add_argument("--damage", action="store_true", help="make the collector's list inconsistent")
    options.add_argument(
        "--then", choices=["rest", "train"], help="print READY when all is there, and do this from then on"
    )
    return options


def main(points, options):
    model = nn.Sequential(*[Block() for _ in range(max(1, options.modules // 3))]).cuda()
    adam = torch.optim.Adam(model.parameters())
    model(torch.zeros(4, 8, device="cuda")).sum().backward()
    adam.step()
    held = heap(options.objects)
    if options.damage:
        held.append(damage())
    # The collection before is no gap of memprobe's.
    if options.gaps:
        Gaps(options.gaps).start()
    if options.then:
        print(f"READY {options.objects}", flush=True)
    while options.then == "rest":
        time.sleep(1)
    steps = Steps()
    while options.then == "train":
        adam.zero_grad()
        model(torch.zeros(4, 8, device="cuda")).sum().backward()
        adam.step()
        steps.add()
    points.at("held")
    del held


if __name__ == "__main__":
    tensor_reference.run(main, parser())
