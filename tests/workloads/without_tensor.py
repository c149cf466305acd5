"""Asks for memory that no tensor is made for, and writes down who asked by PyTorch's own word.

    TORCH_SYMBOLIZE_MODE=addr2line python without_tensor.py --out log.json

What is written, as JSON: a list of {addr, frames}, one for each block in the order of the allocator's history;
`frames` are the functions on the stack of the thread, in C++ and Python, innermost first.
"""

import argparse
import json
import os

import torch

DEVICE = "cuda"


def work(kept):
    a = torch.randn(64, 64, device=DEVICE)
    kept.append(a @ a)
    layer = torch.nn.Linear(64, 64).to(DEVICE)
    layer(a).sum().backward()
    grown = torch.empty(0, device=DEVICE)
    grown.resize_(1000)
    kept.append(grown)
    kept.append(torch.arange(100, device=DEVICE))
    kept.append(torch.randint(0, 100, (100_000,), device=DEVICE).sort())
    kept.append(torch.randn(100_000, device=DEVICE).topk(7))
    kept.append(torch.randn(100_000, device=DEVICE).cumsum(0))
    kept.append(torch.randn(1 << 22, device=DEVICE).sum())
    kept.append(torch.randn(1000, device=DEVICE).nonzero())
    kept.append(torch.nn.Conv2d(3, 8, 3).to(DEVICE)(torch.randn(2, 3, 32, 32, device=DEVICE)))
    kept.append(torch.UntypedStorage(1000, device=DEVICE))
    kept.append(torch.cuda.caching_allocator_alloc(512))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(
        enabled="all", context="all", stacks="all", max_entries=100_000
    )
    work([])
    history = torch.cuda.memory._snapshot()["device_traces"][0]
    log = [
        {"addr": entry["addr"], "frames": [frame["name"] for frame in entry["frames"]]}
        for entry in history
        if entry["action"] == "alloc"
    ]
    with open(options.out + ".partial", "w") as file:
        json.dump(log, file)
    os.replace(options.out + ".partial", options.out)


if __name__ == "__main__":
    main()
