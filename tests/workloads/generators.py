"""Allocations below generators, coroutines and async generators, whose frames lie on the heap."""

import argparse
import asyncio
import time

import torch

from checkpoints import checkpoint


def batches(count, width):
    """A generator that allocates."""
    for _ in range(count):
        yield torch.randn(64, width, device="cuda")


def scaled(source):
    """A generator above a generator."""
    for batch in source:
        yield batch * 2


def chained(count, width):
    """`yield from` passes through this frame."""
    yield from scaled(batches(count, width))


async def load(width):
    """A coroutine that allocates after it was suspended."""
    await asyncio.sleep(0)
    return torch.randn(32, width, device="cuda")


async def stream(count, width):
    """An async generator."""
    for _ in range(count):
        batch = await load(width)
        yield batch + 1


async def consume(name, count, width, kept):
    async for batch in stream(count, width):
        kept.append((name, batch.sum(dim=1)))


async def run_together(count, width, kept):
    """Two consumers whose coroutines take turns on one thread."""
    await asyncio.gather(
        consume("left", count, width, kept),
        consume("right", count, width, kept),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=4096)
    options = parser.parse_args()

    from_generators = [batch.mean(dim=0) for batch in chained(options.steps, options.width)]
    checkpoint("generators")
    from_comprehension = list(torch.ones(n + 1, 1024, device="cuda") for n in range(options.steps))
    checkpoint("generator expression")
    from_coroutines = []
    asyncio.run(run_together(options.steps, options.width, from_coroutines))
    checkpoint("coroutines")

    kept = len(from_generators) + len(from_comprehension) + len(from_coroutines)
    print(f"{kept} tensors, allocated {torch.cuda.memory_allocated()} bytes")
    time.sleep(0.2)


if __name__ == "__main__":
    main()
