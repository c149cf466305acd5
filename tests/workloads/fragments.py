"""Reserves much more than it needs: of equal blocks every second is kept, so that no segment is free.

Prints `READY` once it holds them, then allocates a little now and then. Options: --mib N (of each block), --blocks N, --until FILE."""

import argparse
import os
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--mib", type=int, default=2)
parser.add_argument("--blocks", type=int, default=200)
parser.add_argument("--until")
options = parser.parse_args()


def fill():
    return [torch.empty(options.mib << 20, dtype=torch.uint8, device="cuda") for _ in range(options.blocks)]


blocks = fill()
kept = blocks[::2]
del blocks
print("READY", flush=True)
while not (options.until and os.path.exists(options.until)):
    torch.empty(512, dtype=torch.uint8, device="cuda")
    time.sleep(0.05)
