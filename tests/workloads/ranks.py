"""What torchrun starts: each rank allocates as much as its number says, and tells its totals."""

import os
import time

import torch

rank = int(os.environ["RANK"])
kept = [torch.zeros(1000 * (rank + 1), device="cuda") for _ in range(20)]
print(f"rank {rank} pid {os.getpid()} allocated {torch.cuda.memory_allocated()}", flush=True)
time.sleep(1)
os._exit(0)
