"""Runs out of GPU memory for one cause, in a process with `CUDASIM_MEMORY=512m`.

Options: --cause too_large | growth | fragmentation | cached_elsewhere | another_process, --catch N (catches the error N
times, then goes on; without it the program ends with the error), --until FILE (goes on until there is a file of that
name). Another program can import the causes, and has `asleep` too.
Prints `READY` before the request that fails, and `CAUGHT n` after each that was caught.
"""

import argparse
import ctypes
import os
import sys
import time

import torch

MIB = 1 << 20


def hold(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def too_large(kept):
    if not kept:
        kept.append(hold(16))
        settle()
    return hold(4096)


def growth(kept):
    while True:
        kept.append(hold(12))
        temporary = hold(2)
        del temporary
        # The windows of a program without iterations are cut by time.
        time.sleep(0.02)


def fragmentation(kept):
    """Every second block of 10 MiB is kept, in segments of 20 MiB."""
    if not kept:
        blocks = [hold(9) for _ in range(48)]
        kept.extend(blocks[::2])
        del blocks
        settle()
    return hold(60)


def cached_elsewhere(kept):
    """A hole that is large enough belongs to another stream."""
    if not kept:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            large = hold(400)
            del large
            # Splits the segment, which can therefore not be returned.
            kept.append(hold(20))
        kept.append(side)
        settle()
    return hold(300)


def another_process(kept):
    if not kept:
        kept.append(hold(64))
        settle()
    return hold(500)


def asleep(kept):
    """The allocator may have half of the GPU, and counts a pool that sleeps.

    The program's option --pools names the library with the pool's allocator.
    """
    if not kept:
        torch.cuda.set_per_process_memory_fraction(0.5)
        path = sys.argv[sys.argv.index("--pools") + 1]
        functions = ("sleeping_malloc", "sleeping_free")
        allocator = torch.cuda.memory.CUDAPluggableAllocator(path, *functions)
        pool = torch.cuda.MemPool(allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            kept.extend([allocator, pool, hold(160), hold(30)])
            # Free, but it sleeps too.
            del kept[-1]
        settle()
        ctypes.CDLL(path).sleeping_sleep()
        settle()
    return hold(120)


def settle():
    """Gives memprobe the time to read the segments, at most once a second."""
    for _ in range(15):
        torch.empty(512, dtype=torch.uint8, device="cuda")
        time.sleep(0.1)


CAUSES = {cause.__name__: cause for cause in (too_large, growth, fragmentation, cached_elsewhere, another_process, asleep)}


def run(options):
    kept = []
    print("READY", flush=True)
    for caught in range(1, options.catch + 1):
        try:
            CAUSES[options.cause](kept)
        except torch.cuda.OutOfMemoryError:
            print(f"CAUGHT {caught}", flush=True)
        time.sleep(options.pause)
        if options.cause == "growth":
            kept.clear()
    if not options.catch:
        CAUSES[options.cause](kept)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cause", choices=[cause for cause in CAUSES if cause != "asleep"], required=True)
    parser.add_argument("--catch", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0, help="seconds after each error that is caught")
    parser.add_argument("--until")
    options = parser.parse_args()
    run(options)
    while options.until and not os.path.exists(options.until):
        time.sleep(0.05)
    time.sleep(0.2)


if __name__ == "__main__":
    main()
