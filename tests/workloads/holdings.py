"""Holds GPU memory in every way there is, and says what is live when it is asked.

Asked by a file `ask` in the folder: all threads stand still, `answer` is written, `ask` goes.
"""

import argparse
import json
import os
import random
import threading
import time

import torch


class Mover(threading.Thread):
    """Allocates and frees in random order, on one device and two of its streams."""

    def __init__(self, number, device, ground):
        super().__init__(name=f"mover-{number}")
        self.random = random.Random(number)
        self.device = device
        self.ground = ground
        self.held = []

    def run(self):
        torch.cuda.set_device(self.device)
        streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
        while not self.ground.over:
            with self.ground:
                for _ in range(self.random.randrange(1, 40)):
                    self.move(self.random.choice(streams), self.random.choice(streams))

    def move(self, stream, other):
        if len(self.held) > 300 or self.held and self.random.random() < 0.45:
            tensor = self.held.pop(self.random.randrange(len(self.held)))
            if self.random.random() < 0.2:
                # Its memory comes back when that stream has come so far.
                tensor.record_stream(other)
            return
        size = self.random.choice([1, 100, 513, 4096, 70_000, 600_000, 3_000_000])
        with torch.cuda.stream(stream):
            self.held.append(torch.empty(self.random.randrange(1, size + 1), dtype=torch.uint8, device="cuda"))


class Ground:
    """Lets threads move, or stand still."""

    def __init__(self):
        self.condition = threading.Condition()
        self.movers = 0
        self.still = False
        self.over = False

    def __enter__(self):
        with self.condition:
            self.condition.wait_for(lambda: not self.still)
            self.movers += 1

    def __exit__(self, *_):
        with self.condition:
            self.movers -= 1
            self.condition.notify_all()

    def stop(self):
        with self.condition:
            self.still = True
            self.condition.wait_for(lambda: self.movers == 0)

    def go_on(self):
        with self.condition:
            self.still = False
            self.condition.notify_all()


def blocks(device):
    """Address and bytes of each live block, by the allocator's own snapshot."""
    live = []
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and segment["device"] == device:
                live.append([address, block["size"]])
            address += block["size"]
    return sorted(live)


def answer(path):
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    devices = [
        {
            "device": device,
            "allocated": torch.cuda.memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
            "peak_allocated": torch.cuda.max_memory_allocated(device),
            "peak_reserved": torch.cuda.max_memory_reserved(device),
            "blocks": blocks(device),
        }
        for device in range(torch.cuda.device_count())
    ]
    with open(path + ".new", "w") as file:
        json.dump({"monotonic_ns": time.monotonic_ns(), "devices": devices}, file)
    os.rename(path + ".new", path)


def captured():
    """A graph, whose memory comes from a pool of its own."""
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(1000, device="cuda")
    with torch.cuda.graph(graph):
        y = x + 1
        z = y * 2
    return graph, x, y, z


def pooled():
    """A block in a pool that the program made itself, where this PyTorch can make one."""
    if not hasattr(torch.cuda, "use_mem_pool"):
        return None
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        return pool, torch.empty(3_000_000, device="cuda")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--threads", type=int, default=4, help="that move; 0: nothing happens")
    parser.add_argument("--blocks", type=int, default=50, help="that stay")
    options = parser.parse_args()

    devices = torch.cuda.device_count()
    kept = [torch.empty(1 + 700 * i % 90_000, device=f"cuda:{i % devices}") for i in range(options.blocks)]
    kept.append(torch.empty(3000, 3000, device="cuda"))
    kept.append(captured())
    kept.append(pooled())
    # What was live once shows in the peak alone.
    torch.empty(5_000_000, device="cuda")
    ground = Ground()
    for number in range(options.threads):
        Mover(number, number % devices, ground).start()
    print("holding", flush=True)
    while not os.path.exists(os.path.join(options.folder, "until")):
        time.sleep(0.005)
        ask = os.path.join(options.folder, "ask")
        if os.path.exists(ask):
            ground.stop()
            answer(os.path.join(options.folder, "answer"))
            os.remove(ask)
            ground.go_on()
    ground.over = True


if __name__ == "__main__":
    main()
