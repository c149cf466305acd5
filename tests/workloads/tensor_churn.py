"""Makes and drops tensors, cycles and graphs in several threads, collects garbage all the time, and counts.

    --folder F    `progress` there holds the count, as 8 bytes; ends when `until` is there
"""

import argparse
import gc
import mmap
import os
import random
import struct
import threading
import time

import torch
from torch import nn

import many_objects


class Node:
    """Part of a cycle, so that only the collector frees it."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.self = self


class Worker(threading.Thread):
    def __init__(self, number, until):
        super().__init__(name=f"worker-{number}", daemon=True)
        self.random = random.Random(number)
        self.until = until
        self.count = 0
        self.model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.kept = {}
        # The first time, PyTorch imports more of itself.
        self.train()

    def run(self):
        while not self.until():
            for step in [self.hold, self.tie, self.train]:
                step()

    def hold(self):
        for _ in range(20):
            key = self.random.randrange(200)
            self.kept[key] = torch.empty(self.random.randrange(1, 5000), device="cuda")
            self.kept.pop(self.random.randrange(200), None)
            self.count += 1

    def tie(self):
        for _ in range(10):
            Node(torch.empty(3, self.random.randrange(1, 500), device="cuda"))
        # The young alone, or all.
        gc.collect(self.random.choice([0, 0, 0, 0, 0, 1, 2]))

    def train(self):
        self.optimizer.zero_grad(set_to_none=self.random.random() < 0.5)
        self.model(torch.empty(8, 16, device="cuda")).sum().backward()
        self.optimizer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--objects", type=int, default=0, help="that are there besides")
    options = parser.parse_args()
    held = many_objects.heap(options.objects)
    # The collector leaves them alone; they would cost it all the time there is.
    gc.freeze()
    until = os.path.join(options.folder, "until")
    with open(os.path.join(options.folder, "progress"), "wb+") as file:
        file.write(bytes(8))
        file.flush()
        progress = mmap.mmap(file.fileno(), 8)
    over = threading.Event()
    workers = [Worker(number, over.is_set) for number in range(options.threads)]
    for worker in workers:
        worker.start()
    print("churning", flush=True)
    while not os.path.exists(until):
        progress[:] = struct.pack("=Q", sum(worker.count for worker in workers))
        time.sleep(0.001)
    over.set()
    for worker in workers:
        worker.join()
    del held
    # Autograd's threads still drop Python objects; an interpreter that ends now may abort.
    time.sleep(0.2)


if __name__ == "__main__":
    main()
