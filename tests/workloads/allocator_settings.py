"""Requests memory in one of several ways, and prints the allocator's peaks as JSON at the end.

Run again with other settings in `PYTORCH_CUDA_ALLOC_CONF`, it makes the same requests in the same order. `--each` does
so for each of several settings, in children that have imported PyTorch and not yet used the GPU.
"""

import argparse
import json
import os
import random

import torch

MIB = 1 << 20


def block(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def churn(steps, sizes, kept=40):
    """Allocates blocks of random sizes and frees random ones."""
    live = []
    for _ in range(steps):
        if len(live) > kept or (live and random.random() < 0.45):
            live.pop(random.randrange(len(live)))
        else:
            live.append(block(random.choice(sizes)))
    return live


def fragments():
    """Blocks of all sizes in both pools, which leave gaps."""
    sizes = [random.randrange(1, 2 * MIB) for _ in range(40)]
    sizes += [random.randrange(MIB, 90 * MIB) for _ in range(60)]
    churn(1500, sizes)


def growing():
    """Batches that grow: each leaves segments that the next cannot use."""
    for step in range(24):
        live = [block((6 + step) * MIB + 4096 * number) for number in range(6)]
        live += [block((31 + 2 * step) * MIB)]
        del live


def streams():
    """Two streams, each with free blocks of its own."""
    other = torch.cuda.Stream()
    live = []
    for step in range(300):
        with torch.cuda.stream(other if step % 3 == 0 else torch.cuda.current_stream()):
            live.append(block(random.randrange(1, 40 * MIB)))
        if len(live) > 20:
            live.pop(random.randrange(len(live)))


def borrowed():
    """Blocks that a second stream uses too: each free awaits it."""
    other = torch.cuda.Stream()
    live = []
    for step in range(300):
        used = block(random.randrange(1, 40 * MIB))
        if step % 3 == 0:
            used.record_stream(other)
        live.append(used)
        del used
        if len(live) > 20:
            live.pop(random.randrange(len(live)))


def emptied():
    """Calls of empty_cache() between phases."""
    for _ in range(5):
        live = churn(120, [random.randrange(1, 70 * MIB) for _ in range(30)], kept=12)
        del live[::2]
        torch.cuda.empty_cache()


def training():
    """A training loop with batches of different lengths."""
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 3000), torch.nn.GELU(), torch.nn.Linear(3000, 512)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(12):
        inputs = torch.randn(500 + 333 * (step % 5), 512, device="cuda")
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def fits(size):
    try:
        block(size)
    except torch.cuda.OutOfMemoryError:
        return False
    return True


def gaps():
    """Fills the device with segments of 100 MiB that each keep a block of 2 MiB, then asks for 400 MiB."""
    free, _ = torch.cuda.mem_get_info()
    large, small = [], []
    for _ in range((free - 250 * MIB) // (100 * MIB)):
        whole = block(100 * MIB)
        del whole
        large.append(block(98 * MIB))
        small.append(block(2 * MIB))
    del large
    print(json.dumps({"fits": fits(400 * MIB)}), flush=True)


CASES = {
    case.__name__: case for case in (fragments, growing, streams, borrowed, emptied, training, gaps)
}


def run(case):
    random.seed(7)
    torch.manual_seed(7)
    case()
    print(
        json.dumps(
            {
                "peak_allocated": torch.cuda.max_memory_allocated(),
                "peak_reserved": torch.cuda.max_memory_reserved(),
            }
        ),
        flush=True,
    )
    # The peaks are known; what the interpreter does at its end is no part of them.
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--each", nargs="+", metavar="SETTINGS")
    options = parser.parse_args()
    case = CASES[options.case]
    for settings in options.each or ():
        child = os.fork()
        if child == 0:
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = settings
            run(case)
        _, status = os.waitpid(child, 0)
        if status != 0:
            raise SystemExit(f"{settings}: status {status}")
    if options.each is None:
        run(case)


main()
