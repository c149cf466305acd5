"""Cells that are compiled, run once and dropped, as notebooks and generated code do.

Each allocates on the GPU from code objects that are freed a moment later, and whose addresses
soon hold the code objects of other cells. Cell N is the file `<cell N>`: after `N % 37` blank
lines it defines `fN`, which allocates `512 * (N + 1)` bytes on its second line, and calls it on
the line behind that.
"""

import argparse
import os
import time

import torch

WIDEST_GAP = 37


def source(number):
    return "\n" * (number % WIDEST_GAP) + (
        f"def f{number}(size):\n"
        f"    return torch.empty(size, dtype=torch.uint8, device='cuda')\n"
        f"kept.append(f{number}(512 * ({number} + 1)))\n"
    )


def run_cells(count):
    """Runs the cells one after another; returns at how many addresses their code objects were."""
    addresses = set()
    kept = []
    for number in range(count):
        code = compile(source(number), f"<cell {number}>", "exec")
        addresses.add(id(code))
        exec(code, {"torch": torch, "kept": kept})
        del code
        kept.clear()
    return len(addresses)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=300)
    parser.add_argument("--go", help="a file: wait with the first cell until it is there")
    options = parser.parse_args()

    torch.cuda.init()
    print(f"PID {os.getpid()}", flush=True)
    while options.go and not os.path.exists(options.go):
        time.sleep(0.01)
    addresses = run_cells(options.cells)
    print(f"{options.cells} cells at {addresses} addresses", flush=True)
    time.sleep(0.2)


if __name__ == "__main__":
    main()
