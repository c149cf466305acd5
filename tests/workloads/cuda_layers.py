"""Keeps some tensors, drops others, and writes down what it holds: the bytes that it asked for, and
what PyTorch says where that counts them.

Which allocator PyTorch uses is said by the environment (PYTORCH_CUDA_ALLOC_CONF,
PYTORCH_NO_CUDA_MEMORY_CACHING) or by --pluggable LIBRARY.
"""

import argparse
import json
import os
import time

import torch


def keep_some(count, size):
    kept = []
    for at in range(count):
        kept.append(torch.empty(size + at * 512, dtype=torch.uint8, device="cuda"))
        torch.empty(size, dtype=torch.uint8, device="cuda")
    return kept[::2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pluggable")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    if options.pluggable:
        pluggable = torch.cuda.memory.CUDAPluggableAllocator
        allocator = pluggable(options.pluggable, "plug_malloc", "plug_free")
        torch.cuda.memory.change_current_allocator(allocator)
    kept = keep_some(20, 3 << 20) + keep_some(6, 200)
    pinned = torch.empty(5 << 20, dtype=torch.uint8, pin_memory=True)
    facts = {
        "requested": sum(tensor.untyped_storage().nbytes() for tensor in kept),
        "pinned": pinned.untyped_storage().nbytes(),
    }
    with open("/proc/self/maps") as maps:
        drivers = {line.split()[-1] for line in maps if "/libcuda.so." in line}
    (facts["driver"],) = drivers
    if not options.pluggable:
        facts["allocated"] = torch.cuda.memory_allocated()
        facts["reserved"] = torch.cuda.memory_reserved()
    with open(options.out, "w") as file:
        json.dump(facts, file)
    # memprobe reads the names of lines from the process.
    time.sleep(0.5)
    # What the end of the interpreter frees is of no interest.
    os._exit(0)


main()
