"""Processes made in every way: forked before CUDA is used, spawned, forked after, and by exec.

Each tells its PID and what it holds. They stay for a moment, as programs do that train.
"""

import multiprocessing
import os
import sys
import time


def hold(count):
    import torch

    kept = [torch.zeros(1000, device="cuda") for _ in range(count)]
    tell(torch.cuda.memory_allocated())
    time.sleep(1)
    del kept


def tell(allocated):
    print(f"pid {os.getpid()} allocated {allocated}", flush=True)


def load(size):
    """What a DataLoader's workers do: nothing with the GPU."""
    import torch

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return size

        def __getitem__(self, at):
            return torch.full((10,), float(at))

    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    return sum(float(batch.sum()) for batch in loader)


def main():
    # Forked before torch is imported at all: a late import in a child.
    early = multiprocessing.get_context("fork").Process(target=hold, args=(1,))
    early.start()
    early.join()

    import torch

    forked = [
        multiprocessing.get_context("fork").Process(target=hold, args=(count,)) for count in (2, 3)
    ]
    for process in forked:
        process.start()
    for process in forked:
        process.join()
    spawned = multiprocessing.get_context("spawn").Process(target=hold, args=(5,))
    spawned.start()
    spawned.join()
    kept = torch.zeros(50_000, device="cuda")
    load(32)
    child = os.fork()
    if child == 0:
        # The books of its parent's allocator, which it has, are not its own.
        del kept
        os._exit(0)
    os.waitpid(child, 0)
    tell(torch.cuda.memory_allocated())
    os.execv(sys.executable, [sys.executable, "-c", AFTER_EXEC])


AFTER_EXEC = """
import os, time, torch
kept = torch.zeros(123, device='cuda')
print(f'pid {os.getpid()} allocated {torch.cuda.memory_allocated()}', flush=True)
time.sleep(1)
os._exit(4)
"""

if __name__ == "__main__":
    main()
