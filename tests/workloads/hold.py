"""Holds memory on one device or more, and allocates a little now and then, so that it is heard of.

Options: --mib N (held on each device), --devices N, --until FILE (default: for ever), --anew (frees it and holds as
much again, now and then, so that memprobe sees its allocation however late it attaches)
Prints: PID, and READY once the memory is held.
"""

import argparse
import os
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--mib", type=int, default=64)
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--until")
parser.add_argument("--anew", action="store_true")
options = parser.parse_args()

print("PID", os.getpid(), flush=True)


def hold(device):
    return torch.empty(options.mib << 20, dtype=torch.uint8, device=f"cuda:{device}")


def breathe(device):
    breath = torch.empty(1 << 20, dtype=torch.uint8, device=f"cuda:{device}")
    del breath


held = [hold(device) for device in range(options.devices)]
print("READY", flush=True)
while not (options.until and os.path.exists(options.until)):
    for device in range(options.devices):
        breathe(device)
        if options.anew:
            held[device] = None
            held[device] = hold(device)
    time.sleep(0.02)
